//! Images of one size with labels, in memory.

use crate::fault::{invalid, out_of_range};
use crate::{Image, Mode};
use kiln_tensor::{DType, Result, Tensor};
use std::collections::BTreeMap;

/// The order of an image's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[channels, height, width]`.
    RowMajor,
    /// `[channels, width, height]`, as MATLAB has it.
    ColumnMajor,
}

/// Images with labels.
pub(super) struct Labelled {
    /// The name of the set, for errors.
    pub set: &'static str,
    pub pixels: Vec<u8>,
    pub layout: Layout,
    /// Channels, height, width.
    pub shape: [usize; 3],
    pub targets: Vec<i64>,
    pub classes: Vec<String>,
}

impl Labelled {
    /// Checks that each image has a label and each label a class.
    #[track_caller]
    pub(super) fn check(self) -> Result<Labelled> {
        self.check_from(0)
    }

    /// The same, with labels from `min_label` on: -1 is the label of an image without one.
    #[track_caller]
    pub(super) fn check_from(self, min_label: i64) -> Result<Labelled> {
        let (images, labels) = (
            self.pixels.len() / self.image_len().max(1),
            self.targets.len(),
        );
        if images * self.image_len() != self.pixels.len()
            || images != labels
            || self.image_len() == 0
        {
            let (len, shape) = (self.pixels.len(), self.shape);
            let message =
                format!("{len} bytes are not images of shape {shape:?} for {labels} labels");
            return Err(invalid(self.set, message));
        }
        let is_class = |label: &i64| *label >= min_label && *label < self.classes.len() as i64;
        match self.targets.iter().position(|label| !is_class(label)) {
            None => Ok(self),
            Some(at) => {
                let (label, classes) = (self.targets[at], self.classes.len());
                let message =
                    format!("image {at} has the label {label}, but there are {classes} classes");
                Err(invalid(self.set, message))
            }
        }
    }

    /// The number of bytes of an image.
    fn image_len(&self) -> usize {
        self.shape.iter().product()
    }

    #[track_caller]
    pub(super) fn get(&self, index: usize) -> Result<(Image, i64)> {
        let Some(label) = self.targets.get(index) else {
            return Err(out_of_range(self.set, index, self.targets.len()));
        };
        let [channels, height, width] = self.shape;
        let planes = &self.pixels[index * self.image_len()..][..self.image_len()];
        let mode = match channels {
            1 => Mode::L,
            _ => Mode::RGB,
        };
        if (channels, self.layout) == (1, Layout::RowMajor) {
            return Ok((Image::from_bytes(planes, width, height, mode)?, *label));
        }
        let (row_stride, column_stride) = match self.layout {
            Layout::RowMajor => (width, 1),
            Layout::ColumnMajor => (1, height),
        };
        let mut pixels = Vec::with_capacity(planes.len());
        for y in 0..height {
            for x in 0..width {
                let pos = y * row_stride + x * column_stride;
                pixels.extend(planes[pos..].iter().step_by(height * width).take(channels));
            }
        }
        Ok((Image::from_bytes(pixels, width, height, mode)?, *label))
    }

    /// All images as a u8 tensor, `[n, channels, height, width]`, or `[n, height, width]` of grey ones.
    #[track_caller]
    pub(super) fn data(&self) -> Result<Tensor> {
        let (n, [c, h, w]) = (self.targets.len(), self.shape);
        let shape = match self.layout {
            Layout::RowMajor => [n, c, h, w],
            Layout::ColumnMajor => [n, c, w, h],
        };
        let images = Tensor::from_bytes(&self.pixels, DType::U8, shape);
        let images = match self.layout {
            Layout::RowMajor => images,
            Layout::ColumnMajor => images.transpose(2, 3),
        };
        let images = if c == 1 { images.squeeze(1) } else { images };
        Ok(images.check()?.clone())
    }

    pub(super) fn class_to_idx(&self) -> BTreeMap<String, usize> {
        let classes = self.classes.iter().enumerate();
        classes.map(|(i, class)| (class.clone(), i)).collect()
    }
}

/// Implements the common methods for a set whose field is a `Labelled`.
macro_rules! labelled {
    ($($set:ident)*) => {$(
        impl $set {
            /// The names of the classes, in the order of the labels.
            pub fn classes(&self) -> &[String] {
                &self.0.classes
            }

            /// The label of each class by name.
            pub fn class_to_idx(&self) -> std::collections::BTreeMap<String, usize> {
                self.0.class_to_idx()
            }

            /// The labels of all images.
            pub fn targets(&self) -> &[i64] {
                &self.0.targets
            }

            /// All images as a u8 tensor, `[n, channels, height, width]`, or `[n, height, width]` of grey ones.
            ///
            /// # Errors
            /// If there is no memory for it.
            #[track_caller]
            pub fn data(&self) -> kiln_tensor::Result<kiln_tensor::Tensor> {
                self.0.data()
            }
        }

        impl kiln_data::Dataset for $set {
            type Item = (crate::Image, i64);
            fn len(&self) -> usize {
                self.0.targets.len()
            }
            #[track_caller]
            fn get(&self, index: usize) -> kiln_tensor::Result<(crate::Image, i64)> {
                self.0.get(index)
            }
        }
    )*};
}
pub(super) use labelled;
