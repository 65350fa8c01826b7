//! The geometry of convolutions: the positions that taps read.

/// The maximum number of lanes of a vector.
pub const LANES: i64 = 16;

/// One spatial axis.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The extent of the images.
    pub input: i64,
    /// The extent of the result.
    pub output: i64,
    /// The extent of the filters.
    pub kernel: i64,
    /// The steps of the filter; positive.
    pub stride: i64,
    /// The zeros before the image.
    pub padding: i64,
    /// The steps within the filter; positive.
    pub dilation: i64,
}

impl Axis {
    /// An absent axis.
    pub const ONE: Axis = Axis {
        input: 1,
        output: 1,
        kernel: 1,
        stride: 1,
        padding: 0,
        dilation: 1,
    };

    /// Returns the number of inputs from the first tap to the last, both included.
    pub fn span(&self) -> i64 {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Returns the input position that tap `k` of output `o` reads.
    #[inline(always)]
    pub fn source(&self, o: i64, k: i64) -> i64 {
        o * self.stride + k * self.dilation - self.padding
    }

    /// Returns the outputs within `from..to` that read inside the input at `offset` from their first position.
    #[inline(always)]
    pub fn inside(&self, offset: i64, from: i64, to: i64) -> (i64, i64) {
        let shift = offset - self.padding;
        let ceil = |a: i64| -(-a).div_euclid(self.stride);
        let low = ceil(-shift).clamp(from, to);
        (low, ceil(self.input - shift).clamp(low, to))
    }
}

/// Three spatial axes; the first have extent 1 if there are fewer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Depth, height and width.
    pub axes: [Axis; 3],
}

impl Geometry {
    /// Returns the number of positions of an image.
    pub fn inputs(&self) -> i64 {
        self.axes.iter().map(|a| a.input).product()
    }

    /// Returns the number of positions of the result.
    pub fn outputs(&self) -> i64 {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Returns the number of taps of a filter.
    pub fn kernels(&self) -> i64 {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// True if each position of the result reads only the same position of the input.
    pub fn is_pointwise(&self) -> bool {
        let is_unit =
            |a: &Axis| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.input == a.output;
        self.axes.iter().all(is_unit)
    }

    /// True if padding adds little to copies of whole rows.
    pub fn is_near(&self) -> bool {
        let is_dense = |a: &Axis| {
            let [input, output, stride, kernel, dilation] =
                [a.input, a.output, a.stride, a.kernel, a.dilation].map(i128::from);
            output * stride + kernel * dilation <= 4 * (input + output) + 64
        };
        self.axes.iter().all(is_dense)
    }

    /// Returns the row of output `position`: depth and row.
    pub fn row_of(&self, position: i64) -> (i64, i64) {
        let row = position / self.axes[2].output.max(1);
        let height = self.axes[1].output.max(1);
        (row / height, row % height)
    }

    /// Returns the footprint of the outputs `from..to` in their channel, as a range of whole rows: a part of one plane,
    /// or planes.
    pub fn footprint(&self, from: i64, to: i64) -> (i64, i64) {
        let [depth, height, _] = &self.axes;
        let (first, last) = (self.row_of(from), self.row_of((to - 1).max(from)));
        let rows = match first.0 == last.0 {
            true => (first.1, last.1),
            false => (0, height.output - 1),
        };
        let ends = |a: &Axis, (first, last)| (a.source(first, 0), a.source(last, a.kernel - 1) + 1);
        self.rows_between(ends(depth, (first.0, last.0)), ends(height, rows))
    }

    /// Returns the range in their channel of these planes, and these rows of each, some of which may be padding.
    pub fn rows_between(&self, planes: (i64, i64), rows: (i64, i64)) -> (i64, i64) {
        let [depth, height, width] = &self.axes;
        let clamp = |(from, to): (i64, i64), a: &Axis| {
            let from = from.clamp(0, a.input);
            (from, to.clamp(from, a.input))
        };
        let ((z, z_end), (y, y_end)) = (clamp(planes, depth), clamp(rows, height));
        if z == z_end || y == y_end {
            return (0, 0);
        }
        let row = |z: i64, y: i64| (z * height.input + y) * width.input;
        (row(z, y), row(z_end - 1, y_end))
    }

    /// Returns the offset of the input row that output row (d, h) reads at taps (kd, kh), if there is one.
    #[inline(always)]
    pub fn row(&self, (d, h): (i64, i64), (kd, kh): (i64, i64)) -> Option<i64> {
        let [depth, height, width] = &self.axes;
        let (z, y) = (depth.source(d, kd), height.source(h, kh));
        let inside = (0..depth.input).contains(&z) && (0..height.input).contains(&y);
        inside.then(|| (z * height.input + y) * width.input)
    }
}
