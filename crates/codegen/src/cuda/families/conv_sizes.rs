//! What the families of convolutions share: sizes, and how C++ is given them.

use crate::cuda::job::Job;
use crate::cuda::source::Source;
use kiln_base::{Dim, numel};
use kiln_plan::Conv;

/// Sizes of a convolution.
pub(super) struct Sizes {
    /// Elements of a channel of x, of a filter's channel, and of a channel of y.
    pub input: Dim,
    pub kernel: Dim,
    pub output: Dim,
    /// Elements from image to image of x and y, and from group to group of w.
    pub x_image: Dim,
    pub y_image: Dim,
    pub w_group: Dim,
}

impl Sizes {
    pub fn of(c: &Conv) -> Sizes {
        let (input, kernel, output) = (numel(&c.input), numel(&c.kernel), numel(&c.output));
        let product = |dims: &[&Dim]| dims.iter().fold(Dim::ONE, |n, d| &n * *d);
        Sizes {
            x_image: product(&[&c.groups, &c.in_channels, &input]),
            y_image: product(&[&c.groups, &c.out_channels, &output]),
            w_group: product(&[&c.out_channels, &c.in_channels, &kernel]),
            input,
            kernel,
            output,
        }
    }

    /// Elements of x, y and w.
    pub fn reach(&self, c: &Conv) -> [Dim; 3] {
        [
            &self.x_image * &c.batch,
            &self.y_image * &c.batch,
            &self.w_group * &c.groups,
        ]
    }
}

/// What the kernel is called.
pub(super) fn name(work: Job, c: &Conv) -> String {
    let own = || format!("{}_{}", c.role.name(), c.dtype());
    work.fused_name().map_or_else(own, str::to_string)
}

/// Whether its filter has one tap that falls on every position.
pub(super) fn is_pointwise(c: &Conv) -> bool {
    let all = |dims: &[Dim], n: i64| dims.iter().all(|d| d.is(n));
    let unpadded = all(&c.padding, 0) && c.input == c.output;
    all(&c.kernel, 1) && all(&c.stride, 1) && unpadded
}

/// Whether runs of so many elements are copied 16 bytes at a time.
pub(super) fn eights(d: &Dim) -> bool {
    d.as_const().is_some_and(|n| n % 8 == 0)
}

/// What a class of windows is made with: sizes, steps, padding and distances of taps, along each axis.
pub(super) fn windows_of(source: &mut Source, c: &Conv) -> String {
    let sizes = [&c.input, &c.output, &c.kernel, &c.stride].map(|dims| list(source, dims, 1));
    let padding = list(source, &c.padding, 0);
    let dilation = list(source, &c.dilation, 1);
    format!("{}, {padding}, {dilation}", sizes.join(", "))
}

/// One number an axis, as C++. Without spatial axes there is one position, and `none` is its number.
pub(super) fn list(source: &mut Source, dims: &[Dim], none: i64) -> String {
    let none = [Dim::Const(none)];
    let dims = if dims.is_empty() { &none } else { dims };
    let dims: Vec<String> = dims.iter().map(|d| source.dim(d)).collect();
    format!("{{{}}}", dims.join(", "))
}
