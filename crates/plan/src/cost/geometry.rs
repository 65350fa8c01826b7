//! Where the taps of a convolution read, and the copies of image rows with their padding in which every tap reads the
//! results' positions side by side.
//!
//! A result row is `Wp` positions apart from the next, so the position of result (h, w) is `h · Wp + w`, and
//! tap k reads it at that position plus an offset of its own. Where the filter steps by s > 1, rows and
//! columns are taken apart by their remainder mod s (phases), each of which is stepped through by 1. The
//! zeros behind a row are those in front of the next.

/// The most lanes of a vector.
pub const LANES: i64 = 16;

/// One spatial axis.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Extent of the images.
    pub input: i64,
    /// Extent of the result.
    pub output: i64,
    /// Extent of the filters.
    pub kernel: i64,
    /// Steps of the filter; positive.
    pub stride: i64,
    /// Zeros in front.
    pub padding: i64,
    /// Steps within the filter; positive.
    pub dilation: i64,
}

impl Axis {
    /// An axis that is not there.
    pub const ONE: Axis = Axis {
        input: 1,
        output: 1,
        kernel: 1,
        stride: 1,
        padding: 0,
        dilation: 1,
    };

    /// How many inputs lie between the first tap and the last, both counted.
    pub fn span(&self) -> i64 {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Where tap `k` of output `o` reads.
    #[inline(always)]
    pub fn source(&self, o: i64, k: i64) -> i64 {
        o * self.stride + k * self.dilation - self.padding
    }

    /// The outputs within `from..to` that read inside the input at `offset` from their first place.
    #[inline(always)]
    pub fn inside(&self, offset: i64, from: i64, to: i64) -> (i64, i64) {
        let shift = offset - self.padding;
        let ceil = |a: i64| -(-a).div_euclid(self.stride);
        let low = ceil(-shift).clamp(from, to);
        (low, ceil(self.input - shift).clamp(low, to))
    }
}

/// Three spatial axes, the first ones of extent 1 where there are fewer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Depth, height and width.
    pub axes: [Axis; 3],
}

impl Geometry {
    /// Positions of an image.
    pub fn inputs(&self) -> i64 {
        self.axes.iter().map(|a| a.input).product()
    }

    /// Positions of the result.
    pub fn outputs(&self) -> i64 {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Taps of a filter.
    pub fn kernels(&self) -> i64 {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// Whether each position of the result reads its own of the input, and nothing else.
    pub fn is_pointwise(&self) -> bool {
        let plain =
            |a: &Axis| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.input == a.output;
        self.axes.iter().all(plain)
    }

    /// The geometry of the convolution that the gradient of the images is, of the result's gradient with turned
    /// filters; none where the filter steps, or with too much padding.
    pub fn turned(&self) -> Option<Geometry> {
        let turned = |a: &Axis| {
            let padding = (a.kernel - 1) * a.dilation - a.padding;
            let legal = a.stride == 1 && padding.abs() < 1 << 31;
            legal.then_some(Axis {
                input: a.output,
                output: a.input,
                padding,
                ..*a
            })
        };
        let [depth, height, width] = self.axes.each_ref().map(turned);
        Some(Geometry {
            axes: [depth?, height?, width?],
        })
    }

    /// Whether register tiles pay, with a filter for `each` channel or for all: vectors are filled by results, at
    /// least half of them, and the padded copy is not much larger than the images.
    pub fn pays(&self, channels: i64, each: bool) -> bool {
        let [depth, height, width] = &self.axes;
        let Some(padded) = Padded::new(self, channels) else {
            return false;
        };
        if self.outputs() == 0 || self.kernels() == 0 {
            return false;
        }
        let plane = height.output * width.output;
        let positions = padded.positions(self, height.output);
        let vectors = (positions + LANES - 1) / LANES * LANES;
        let copy = padded.channel(self, height.output) / depth.kernel;
        (each || !self.is_pointwise() && 2 * plane >= vectors)
            && copy <= 4 * (height.input * width.input + plane)
    }

    /// Whether padded copies of so many channels can be indexed.
    pub fn is_copied(&self, channels: i64) -> bool {
        Padded::new(self, channels).is_some()
    }

    /// Whether padding adds little to copies of whole rows, as the gradient of weights makes them.
    pub fn is_near(&self) -> bool {
        let near = |a: &Axis| {
            let [input, output, stride, kernel, dilation] =
                [a.input, a.output, a.stride, a.kernel, a.dilation].map(i128::from);
            output * stride + kernel * dilation <= 4 * (input + output) + 64
        };
        self.axes.iter().all(near)
    }

    /// The outputs' row that output `at` is in: depth and row.
    pub fn row_of(&self, at: i64) -> (i64, i64) {
        let row = at / self.axes[2].output.max(1);
        let height = self.axes[1].output.max(1);
        (row / height, row % height)
    }

    /// From where to where in its channel, in whole rows, the outputs `from..to` read: a part of one plane, or
    /// planes.
    pub fn reach(&self, from: i64, to: i64) -> (i64, i64) {
        let [depth, height, _] = &self.axes;
        let (first, last) = (self.row_of(from), self.row_of((to - 1).max(from)));
        let rows = match first.0 == last.0 {
            true => (first.1, last.1),
            false => (0, height.output - 1),
        };
        let ends = |a: &Axis, (first, last)| (a.source(first, 0), a.source(last, a.kernel - 1) + 1);
        self.rows_between(ends(depth, (first.0, last.0)), ends(height, rows))
    }

    /// From where to where in its channel planes and rows of each lie, of which some may be padding.
    pub fn rows_between(&self, planes: (i64, i64), rows: (i64, i64)) -> (i64, i64) {
        let [depth, height, width] = &self.axes;
        let within = |(from, to): (i64, i64), a: &Axis| {
            let from = from.clamp(0, a.input);
            (from, to.clamp(from, a.input))
        };
        let ((z, deep), (y, high)) = (within(planes, depth), within(rows, height));
        if z == deep || y == high {
            return (0, 0);
        }
        let row = |z: i64, y: i64| (z * height.input + y) * width.input;
        (row(z, y), row(deep - 1, high))
    }

    /// The offset of the input row that output row (d, h) reads at taps (kd, kh), if there is one.
    #[inline(always)]
    pub fn row(&self, (d, h): (i64, i64), (kd, kh): (i64, i64)) -> Option<i64> {
        let [depth, height, width] = &self.axes;
        let (z, y) = (depth.source(d, kd), height.source(h, kh));
        let inside = (0..depth.input).contains(&z) && (0..height.input).contains(&y);
        inside.then(|| (z * height.input + y) * width.input)
    }
}

/// The layout of the copy of one channel: `[kernel depth, row phases, column phases]` planes.
#[derive(Debug)]
pub struct Padded {
    /// Distance of two result rows, and of two rows of a plane.
    pub width: i64,
    /// Elements of a row, some of which it shares with the next.
    pub row: i64,
    /// Rows of a plane beyond those of the result.
    pub halo: i64,
    /// Phases of rows and columns.
    pub phases: (i64, i64),
}

/// The phases of an axis that taps read, and the largest step within one.
fn phases(a: &Axis) -> (i64, i64) {
    // After as many taps as the filter steps they come again.
    let taps = 0..a.kernel.min(a.stride);
    let phases = taps.map(|k| k * a.dilation % a.stride).max().unwrap_or(0) + 1;
    (phases, (a.kernel - 1).max(0) * a.dilation / a.stride)
}

impl Padded {
    /// None if the copies of `channels` channels would be too large to index.
    pub fn new(g: &Geometry, channels: i64) -> Option<Padded> {
        let [_, height, width] = &g.axes;
        let ((row_phases, halo), (columns, reach)) = (phases(height), phases(width));
        let row = width.output + reach;
        let zeros = (0..columns).map(|p| {
            let (low, high) = width.inside(p, 0, row);
            low.min(row - high)
        });
        let planes = [g.axes[0].kernel, row_phases, columns];
        let sizes = planes
            .into_iter()
            .chain([channels, height.output + halo, row]);
        let mut sizes = sizes.map(i128::from);
        if sizes.try_fold(1, i128::checked_mul)? >= 1 << 46 {
            return None;
        }
        Some(Padded {
            width: row - zeros.min().unwrap_or(0).min(reach),
            row,
            halo,
            phases: (row_phases, columns),
        })
    }

    /// Elements of one plane that holds what some result rows need.
    pub fn plane(&self, rows: i64) -> i64 {
        (rows + self.halo - 1) * self.width + self.row
    }

    /// Elements of one channel.
    pub fn channel(&self, g: &Geometry, rows: i64) -> i64 {
        g.axes[0].kernel * self.phases.0 * self.phases.1 * self.plane(rows)
    }

    /// Where each tap reads, from the position of its result on.
    pub fn taps(&self, g: &Geometry, rows: i64) -> Vec<isize> {
        let [depth, height, width] = &g.axes;
        let mut taps = Vec::with_capacity(g.kernels() as usize);
        for kd in 0..depth.kernel {
            for kh in (0..height.kernel).map(|k| k * height.dilation) {
                for kw in (0..width.kernel).map(|k| k * width.dilation) {
                    let phase = (kd * self.phases.0 + kh % height.stride) * self.phases.1;
                    let plane = (phase + kw % width.stride) * self.plane(rows);
                    let at = plane + kh / height.stride * self.width + kw / width.stride;
                    taps.push(at as isize);
                }
            }
        }
        taps
    }

    /// Positions of some result rows, the gaps between them included.
    pub fn positions(&self, g: &Geometry, rows: i64) -> i64 {
        (rows - 1) * self.width + g.axes[2].output
    }

    /// From where to where in its channel a copy of some rows at a depth is read.
    pub fn reach(&self, g: &Geometry, (d, from, rows): (i64, i64, i64)) -> (i64, i64) {
        let [depth, height, _] = &g.axes;
        let planes = (depth.source(d, 0), depth.source(d, depth.kernel - 1) + 1);
        let first = from * height.stride - height.padding;
        let rows = (rows + self.halo - 1) * height.stride + self.phases.0;
        g.rows_between(planes, (first, first + rows))
    }
}
