//! Text. It lies on the host.

use crate::fault::invalid;
use kiln_tensor::{Result, Tensor};
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
        let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if count != Some(elements.len()) {
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

    /// Reads indices and returns the texts of a list that they choose. Outside of the list are empty texts.
    pub(crate) fn choose(index: &Tensor, from: &[String]) -> Result<Text> {
        let indices = index.to_vec::<i64>()?.into_iter();
        let indices = indices.map(|i| usize::try_from(i).ok().and_then(|i| from.get(i)));
        Text::new(
            indices.map(|t| t.cloned().unwrap_or_default()),
            &index.shape()?,
        )
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
