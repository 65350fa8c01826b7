//! What layouts cost on the CPU, in thousandths of a multiply-add of a matrix product.

use crate::affine::typical;
use kiln_plan::{Algorithm, Conv, Images};

/// What it costs to step through memory...
pub(super) const STRIDED: u64 = 60_000;
/// ...to copy an element to where the channels lie side by side...
pub(super) const TURNED: u64 = 48_000;
/// ...and to lay a weight into its panel.
pub(super) const PACKED: u64 = 100_000;

/// What a convolution costs with channels first, and last, by its usual algorithms. Its weights may be `transformed`.
pub(super) fn conv_cost(c: &Conv, transformed: bool) -> [u64; 2] {
    let values = typical(c);
    [Images::ChannelsFirst, Images::ChannelsLast].map(|images| {
        let c = Conv {
            images,
            ..c.clone()
        };
        let by = c.usual(transformed, &values).unwrap_or(Algorithm::Columns);
        let cost = c.cost(by, &values).unwrap_or(f64::INFINITY);
        (cost * 1e3).min(1e14) as u64
    })
}
