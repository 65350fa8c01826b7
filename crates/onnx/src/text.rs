//! Text. It lies on the host.

use crate::fault::invalid;
use kiln_tensor::Result;
use std::sync::Arc;

/// A tensor of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    shape: Vec<usize>,
    elements: Arc<[String]>,
}

impl Text {
    /// A tensor of these elements in row-major order.
    ///
    /// # Errors
    /// If the shape takes another number of elements.
    pub fn new<T: Into<String>>(
        elements: impl IntoIterator<Item = T>,
        shape: &[usize],
    ) -> Result<Text> {
        let elements: Arc<[String]> = elements.into_iter().map(Into::into).collect();
        let wanted = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if wanted != Some(elements.len()) {
            return Err(invalid(format!(
                "{} texts are not of shape {shape:?}",
                elements.len()
            )));
        }
        Ok(Text {
            shape: shape.to_vec(),
            elements,
        })
    }

    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements in row-major order.
    pub fn elements(&self) -> &[String] {
        &self.elements
    }
}
