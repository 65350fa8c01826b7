use super::array::element_count;
use super::index::{offsets, strides};
use super::pad::bordered;
use super::{Array, Context, Data, Problem};
use crate::ops::Conv;

/// Zeros in the padding are ordinary numbers: an infinite weight gives NaN.
pub(super) fn eval(op: &Conv, x: &Array, w: &Array, cx: &Context) -> Result<Data, Problem> {
    let kernel = &w.shape()[2..];
    let windows = Windows::new(
        x.shape(),
        kernel,
        &cx.shape,
        &op.stride,
        &op.padding,
        &op.dilation,
    )?;
    let sizes = Sizes {
        groups: op.groups,
        group_in: w.shape()[1],
        group_out: w.shape()[0] / op.groups,
    };
    Ok(match (x.data(), w.data()) {
        (Data::Float(xs), Data::Float(w)) => {
            let xs = windows.pad(xs, x.shape(), 0.0);
            let add = |sum: f64, x, y| cx.partial(sum + x * y);
            Data::Float(correlate(&windows, &sizes, x.shape()[0], &xs, w, 0.0, add))
        }
        (Data::Int(xs), Data::Int(w)) => {
            let xs = windows.pad(xs, x.shape(), 0);
            let add = |sum: i64, x: i64, y| sum.wrapping_add(x.wrapping_mul(y));
            Data::Int(correlate(&windows, &sizes, x.shape()[0], &xs, w, 0, add))
        }
        _ => unreachable!("inference wants one dtype"),
    })
}

struct Sizes {
    groups: usize,
    group_in: usize,
    group_out: usize,
}

fn correlate<T: Copy>(
    windows: &Windows,
    s: &Sizes,
    batch: usize,
    x: &[T],
    w: &[T],
    zero: T,
    multiply_add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let plane = windows.plane;
    let taps: Vec<usize> = (0..s.group_in)
        .flat_map(|c| windows.taps.iter().map(move |t| c * plane + t))
        .collect();
    let mut out = Vec::with_capacity(batch * s.groups * s.group_out * windows.bases.len());
    for n in 0..batch {
        for o in 0..s.groups * s.group_out {
            let first_channel = n * s.groups * s.group_in + o / s.group_out * s.group_in;
            let image = &x[first_channel * plane..(first_channel + s.group_in) * plane];
            let weight = &w[o * taps.len()..(o + 1) * taps.len()];
            for base in &windows.bases {
                let pairs = taps.iter().zip(weight);
                out.push(pairs.fold(zero, |sum, (t, w)| multiply_add(sum, image[base + t], *w)));
            }
        }
    }
    out
}

/// Windows that slide over the last axes of a padded tensor.
pub(super) struct Windows {
    padded: Vec<usize>,
    low: Vec<usize>,
    /// Elements of the padded last axes.
    pub plane: usize,
    /// The start of each window in the plane.
    pub bases: Vec<usize>,
    /// The offsets of a window's elements from its start.
    pub taps: Vec<usize>,
}

impl Windows {
    /// Windows of extents `kernel` over the last axes of `shape`; `result` has the numbers of windows
    /// as its last axes.
    pub fn new(
        shape: &[usize],
        kernel: &[usize],
        result: &[usize],
        stride: &[usize],
        padding: &[(usize, usize)],
        dilation: &[usize],
    ) -> Result<Windows, Problem> {
        let lead = shape.len() - kernel.len();
        let mut padded = shape.to_vec();
        let mut low = vec![0; shape.len()];
        for (a, p) in padding.iter().enumerate() {
            padded[lead + a] = shape[lead + a].saturating_add(p.0).saturating_add(p.1);
            low[lead + a] = p.0;
        }
        if element_count(&padded).is_none() || element_count(kernel).is_none() {
            return Err(Problem::TooLarge(format!("the padded operand {padded:?}")));
        }
        // Where an axis has one window or one tap, its step is never taken and may have any value.
        let steps = strides(&padded[lead..]);
        let scale = |factors: &[usize]| -> Vec<isize> {
            let pairs = steps.iter().zip(factors);
            pairs.map(|(s, n)| s.saturating_mul(*n as isize)).collect()
        };
        Ok(Windows {
            plane: padded[lead..].iter().product(),
            bases: offsets(&result[result.len() - kernel.len()..], &scale(stride), 0),
            taps: offsets(kernel, &scale(dilation), 0),
            padded,
            low,
        })
    }

    /// Maps positions of a padded plane to those in a plane of `extents`; `None` in the padding.
    pub fn unpadded(&self, extents: &[usize]) -> Vec<Option<usize>> {
        let n: usize = extents.iter().product();
        let numbers: Vec<Option<usize>> = (0..n).map(Some).collect();
        let first_axis = self.low.len() - extents.len();
        bordered(
            &numbers,
            extents,
            &self.low[first_axis..],
            &self.padded[first_axis..],
            None,
        )
    }

    /// The tensor with its padding.
    pub fn pad<T: Copy>(&self, x: &[T], shape: &[usize], fill: T) -> Vec<T> {
        bordered(x, shape, &self.low, &self.padded, fill)
    }
}
