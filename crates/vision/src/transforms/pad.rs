//! Padding.

use super::Transform;
use super::arguments::{Fill, Padding, PaddingMode};
use crate::picture::Picture;
use kiln_data::Rng;
use kiln_tensor::{Result, options};
use std::fmt;

options! {
    /// Padding around an image.
    Pad (
        /// The widths.
        padding: Padding
    ) {
        /// The colour.
        fill: Fill = 0u8,
        /// The values of the padding.
        padding_mode: PaddingMode = PaddingMode::Constant,
    }
}

impl<P: Picture> Transform<P> for Pad {
    type Output = P;
    fn apply(&self, image: P, _: &mut Rng) -> Result<P> {
        image.extents("Pad")?;
        image.bordered("Pad", self.padding, &self.fill, self.padding_mode)
    }
}

impl fmt::Display for Pad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Pad {
            padding,
            fill,
            padding_mode,
        } = self;
        write!(
            f,
            "Pad(padding={padding}, fill={fill}, padding_mode={padding_mode})"
        )
    }
}
