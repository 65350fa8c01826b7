//! What layouts cost on the CPU, in thousandths of a multiply-add of a matrix product.

use crate::affine::estimate;
use crate::flow::ConvSpec;
use kiln_base::{Dim, numel};

/// What it costs to step through memory...
pub(super) const STRIDED: u64 = 60_000;
/// ...to copy an element to where the channels lie side by side...
pub(super) const TURNED: u64 = 48_000;
/// ...and to lay a weight into its panel.
pub(super) const PACKED: u64 = 100_000;

/// What a convolution costs with channels first, and last.
///
/// With channels first, positions fill vectors, of which those at the end of an image's rows are lost; a filter
/// for each channel copies it first. With channels last, channels fill vectors, and an address is found for
/// each position and tap.
pub(super) fn conv_cost(c: &ConvSpec) -> [u64; 2] {
    const ADDRESS: f64 = 110.0;
    let size = |d: &Dim| estimate(d).max(1) as f64;
    let all = |d: &[Dim]| size(&numel(d));
    let whole = |n: f64| (n / 16.0).ceil() * 16.0;
    let (inputs, outputs, taps) = (all(&c.input), all(&c.output), all(&c.kernel));
    let (cin, cout) = (size(&c.in_channels), size(&c.out_channels));
    let (groups, batch) = (c.groups as f64, size(&c.batch));
    let steps = c.stride.iter().any(|s| *s > 1);
    let addresses = outputs * taps * ADDRESS;
    let [first, last] = if (cin, cout) == (1.0, 1.0) {
        let copy = inputs * if steps { 45.0 } else { 15.0 };
        let sums = outputs * taps * 2.6;
        [groups * (9000.0 + copy + sums), addresses + groups * sums]
    } else {
        let sums = outputs * cin * cout * taps;
        let width = |d: &[Dim]| d.last().map_or(1.0, size);
        let gaps = (outputs / width(&c.output) - 1.0) * (width(&c.kernel) - 1.0);
        let filled = whole(outputs + gaps) / outputs;
        let pointwise = taps == 1.0 && !steps;
        let first = if pointwise || filled > 2.0 {
            // By columns, of several small images together.
            let images = if outputs <= 256.0 { batch } else { 1.0 };
            let filled = whole(outputs * images) / (outputs * images);
            let gather = if pointwise {
                0.0
            } else {
                outputs * cin * taps * 16.0
            };
            sums * filled * 1.08 + gather + cin * cout * taps * 8.0 / images
        } else {
            sums * filled * if steps { 1.25 } else { 1.0 }
        };
        let starts = outputs * taps * (cout / 48.0).ceil() * 28.0;
        let last = sums * 0.95 * whole(cout) / cout + addresses + starts;
        [groups * first, groups * last]
    };
    [first, last].map(|cost| (batch * cost * 1e3).min(1e14) as u64)
}
