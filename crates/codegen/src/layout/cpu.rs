//! The costs of layouts on the CPU, in thousandths of a multiply-add of a matrix product.

use crate::affine::{estimate, typical_values};
use kiln_base::numel;
use kiln_plan::{Algorithm, Conv, ConvRole, Images};

/// The cost of an element that is read or written through a stride.
pub(super) const STRIDED: u64 = 60_000;
/// The extra cost of an element that a window reads with channels first, where neighbours are at other taps.
pub(super) const WINDOW: u64 = 40_000;
/// The cost of copying an element to a layout with channels last.
pub(super) const TO_CHANNELS_LAST: u64 = 20_000;
/// The cost of starting a loop over a run of elements.
pub(super) const RUN: u64 = 3_000_000;
/// The cost of packing an element of a weight into its panel.
pub(super) const PACKED: u64 = 30_000;

/// Returns the costs of a convolution with channels first, and last, by its usual algorithms. They may be Winograd's or
/// Fourier's if weights can be `transformed` once.
pub(super) fn conv_cost(c: &Conv, transformed: bool) -> [u64; 2] {
    let values = typical_values(c);
    [false, true].map(|last| {
        let c = Conv {
            images: Images::of([last; 2]),
            ..c.clone()
        };
        let algorithm = c.usual(transformed, &values).unwrap_or(Algorithm::Direct);
        let cost = c.cost(algorithm, &values).unwrap_or(f64::INFINITY);
        (cost * 1e3).min(1e14) as u64
    })
}

/// Returns the extra cost of a convolution with channels first whose image has channels last. A gradient of weights
/// reads each image in its own layout, at no cost.
pub(super) fn channels_last_read_cost(c: &Conv) -> u64 {
    let result = match c.role {
        ConvRole::Result => [&c.out_channels, &numel(&c.output)],
        ConvRole::Input => [&c.in_channels, &numel(&c.input)],
        ConvRole::Weight => return 0,
    };
    let sizes = [&c.batch, &c.groups].into_iter().chain(result);
    let written = sizes.map(estimate).fold(1i64, i64::saturating_mul);
    let [first, last] = conv_cost(c, false);
    (written.clamp(0, 1 << 32) as u64 * TO_CHANNELS_LAST + last).saturating_sub(first)
}
