//! The padding transform.

use super::Transform;
use super::arguments::{Fill, Padding, PaddingMode, printed};
use crate::picture::Picture;
use kiln_data::Rng;
use kiln_tensor::{Result, options};

options! {
    /// Padding around an image.
    Pad (
        /// The widths at the four sides.
        padding: Padding
    ) {
        /// The colour of constant padding.
        fill: Fill = 0u8,
        /// The rule that fills the padding.
        padding_mode: PaddingMode = PaddingMode::Constant,
    }
}

impl<P: Picture> Transform<P> for Pad {
    type Output = P;
    fn apply(&self, image: P, _: &mut Rng) -> Result<P> {
        image.extents("Pad")?;
        image.pad("Pad", self.padding, &self.fill, self.padding_mode)
    }
}

printed! { Pad, t: "padding={}, fill={}, padding_mode={}", t.padding, t.fill, t.padding_mode }
