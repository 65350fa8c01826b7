//! Positions of elements in row-major tensors.

/// Row-major strides of a shape.
pub(super) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut out = vec![1isize; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        out[i] = out[i + 1].wrapping_mul(shape[i + 1] as isize);
    }
    out
}

/// `start + Σ index · stride` of every index of `shape`, in row-major order.
pub(super) fn offsets(shape: &[usize], strides: &[isize], start: isize) -> Vec<usize> {
    if shape.contains(&0) {
        return vec![];
    }
    let mut out = Vec::with_capacity(shape.iter().product());
    let mut index = vec![0usize; shape.len()];
    let mut offset = start;
    loop {
        out.push(offset as usize);
        let mut axis = shape.len();
        loop {
            if axis == 0 {
                return out;
            }
            axis -= 1;
            index[axis] += 1;
            offset += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * shape[axis] as isize;
            index[axis] = 0;
        }
    }
}

/// The elements that one axis runs over, for every index of the other axes.
pub(super) struct Lanes {
    /// The start of each lane, row-major over the other axes.
    pub starts: Vec<usize>,
    /// Distance between two elements of a lane.
    pub stride: usize,
    /// Elements of a lane.
    pub len: usize,
}

/// Returns the lanes of a tensor along `axis`.
pub(super) fn lanes(shape: &[usize], axis: usize) -> Lanes {
    let strides = strides(shape);
    let mut start_shape = shape.to_vec();
    start_shape[axis] = 1;
    Lanes {
        starts: offsets(&start_shape, &strides, 0),
        stride: strides[axis] as usize,
        len: shape[axis],
    }
}

/// A sum with Neumaier's compensation (1974): the error is that of one rounding, not of one for each
/// summand.
#[derive(Clone, Default)]
pub(super) struct Sum {
    sum: f64,
    compensation: f64,
}

impl Sum {
    /// Adds a number.
    pub fn add(&mut self, x: f64) {
        let t = self.sum + x;
        self.compensation += if self.sum.abs() >= x.abs() {
            (self.sum - t) + x
        } else {
            (x - t) + self.sum
        };
        self.sum = t;
    }

    /// The sum.
    pub fn get(&self) -> f64 {
        if self.sum.is_finite() {
            self.sum + self.compensation
        } else {
            self.sum // infinities make the compensation NaN
        }
    }
}
