//! Images of convolutions, which products read and write with channels last and with zeros around them.

use super::dialect::memory;
use super::kernel::{Emitter, packed_strides};
use super::text::{affine, indices};
use crate::error::Result;
use kiln_base::DType;

/// The images of an argument.
pub(super) struct Images {
    pub dtype: DType,
    pub channels: i64,
    pub extents: Vec<i64>,
    pub padding: Vec<i64>,
    /// The extents with zeros around them.
    pub padded: Vec<i64>,
    /// True if channels are last in memory.
    pub last: bool,
}

impl Images {
    /// The number of positions of an image.
    fn positions(&self) -> i64 {
        self.extents.iter().product()
    }

    /// The number of elements of an image.
    pub fn len(&self) -> i64 {
        self.positions() * self.channels
    }

    /// The number of elements of a padded image.
    pub fn padded_len(&self) -> i64 {
        self.padded.iter().product::<i64>() * self.channels
    }

    /// The strides of positions of a padded image with channels last.
    pub fn strides(&self) -> Vec<i64> {
        packed_strides(&self.padded, self.channels)
    }

    /// True if images are in memory as products access them.
    pub fn is_direct(&self) -> bool {
        (self.last || self.channels == 1) && self.padded == self.extents
    }

    /// Emits `name`, a pointer to image `n` of an array, or to a copy of it.
    pub fn read(&self, k: &mut Emitter<'_>, name: &str, array: &str) -> Result<()> {
        let image = match self.is_direct() {
            true => format!("{array} + n * {}", self.len()),
            false => {
                let copy = k.array(self.dtype, self.padded_len())?;
                if self.padded != self.extents {
                    k.body.zero(&copy, self.padded_len());
                }
                self.pad(k, &copy, (array, "n"));
                copy
            }
        };
        let ty = memory(self.dtype);
        k.body
            .line(format!("const {ty} *restrict {name} = {image};"));
        Ok(())
    }

    /// Emits the copy of the image with this number in an array into a padded one.
    fn pad(&self, k: &mut Emitter<'_>, padded: &str, from: (&str, &str)) {
        let Some((line, outer)) = self.extents.split_last() else {
            return self.copy(k, padded, from, ("0", "1"), false);
        };
        let names = indices("y", outer.len());
        for (name, n) in names.iter().zip(outer) {
            k.body.loop_to(name, n);
        }
        let strides = self.strides();
        let offset = strides.iter().zip(&self.padding).map(|(s, p)| s * p).sum();
        let element = affine(offset, &strides, &names);
        let position = affine(0, &packed_strides(&self.extents, 1), &names);
        let positions = (&position[..], &line.to_string()[..]);
        self.copy(
            k,
            &format!("({padded} + {element})"),
            from,
            positions,
            false,
        );
        k.body.close_all(names.len());
    }

    /// Emits the copy of `len` contiguous positions, from number `start` on, to (`outward`) or from an image.
    pub fn copy(
        &self,
        k: &mut Emitter<'_>,
        channels_last: &str,
        (array, image): (&str, &str),
        (start, len): (&str, &str),
        outward: bool,
    ) {
        let (channels, positions) = (self.channels, self.positions());
        let pair = |inner: String, outer: String| match outward {
            true => (outer, inner),
            false => (inner, outer),
        };
        if self.last {
            let element = format!("{array} + ({image} * {positions} + {start}) * {channels}");
            let (to, from) = pair(channels_last.into(), element);
            return k.body.copy(&to, &from, format!("{len} * {channels}"));
        }
        k.body.loop_to("c", channels);
        k.body.loop_to("p", len);
        let (to, from) = pair(
            format!("{channels_last}[p * {channels} + c]"),
            format!("{array}[({image} * {channels} + c) * {positions} + {start} + p]"),
        );
        k.body.line(format!("{to} = {from};"));
        k.body.close_all(2);
    }
}
