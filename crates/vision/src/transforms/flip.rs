//! Flips.

use super::arguments::{printed, probability};
use super::{Transform, draw_bool};
use crate::picture::Picture;
use kiln_data::Rng;
use kiln_tensor::{Result, options};

macro_rules! flips {
    ($($(#[$doc:meta])* $name:ident $columns:literal;)*) => {$(
        options! {
            $(#[$doc])*
            $name () {
                /// The probability of the flip.
                p: f64 = 0.5,
            }
        }

        impl<P: Picture> Transform<P> for $name {
            type Output = P;
            fn apply(&self, image: P, rng: &mut Rng) -> Result<P> {
                let op = stringify!($name);
                image.extents(op)?;
                match draw_bool(rng, probability(op, self.p)?) {
                    true => image.mirror($columns),
                    false => Ok(image),
                }
            }
        }

        printed! { $name, t: "p={:?}", t.p }
    )*};
}
flips! {
    /// Columns in reverse, by chance.
    RandomHorizontalFlip true;
    /// Rows in reverse, by chance.
    RandomVerticalFlip false;
}
