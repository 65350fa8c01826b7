//! The static facts of a value: its dtype and shape.

use crate::{OpError, ensure};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// A shape, outermost dim first.
pub type Shape = SmallVec<[Dim; 4]>;

/// The facts of an op's outputs.
pub type Facts = SmallVec<[Fact; 1]>;

/// Dtype and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fact {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
}

impl Fact {
    /// Returns a fact; sizes are converted to dims.
    pub fn new<D: Into<Dim>>(dtype: DType, shape: impl IntoIterator<Item = D>) -> Fact {
        Fact {
            dtype,
            shape: shape.into_iter().map(Into::into).collect(),
        }
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> Dim {
        kiln_base::numel(&self.shape)
    }

    /// Errs where a size is negative, or the number of bytes of all elements is not representable.
    ///
    /// # Errors
    /// The shape and the problem with it.
    pub fn check(&self) -> Result<(), OpError> {
        let negative = |d: &Dim| d.as_const().is_some_and(|d| d < 0);
        ensure!(
            !self.shape.iter().any(negative),
            "a size is negative in {self}"
        );
        ensure!(
            kiln_base::addressable(&self.shape, self.dtype.size()),
            "{self} would take more than 2^63 bytes"
        );
        Ok(())
    }

    /// The same shape with another dtype.
    pub fn with_dtype(&self, dtype: DType) -> Fact {
        Fact {
            dtype,
            shape: self.shape.clone(),
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

/// The facts, separated by commas.
pub(crate) fn list(facts: &[Fact]) -> String {
    let texts: Vec<String> = facts.iter().map(Fact::to_string).collect();
    texts.join(", ")
}

/// The shape that all of these broadcast to: aligned at the last dim, dims of 1 stretch. `None` where
/// two dims disagree.
pub fn broadcast_shapes<'a>(shapes: impl IntoIterator<Item = &'a [Dim]>) -> Option<Shape> {
    let mut out: Shape = Shape::new(); // reversed while it grows
    for shape in shapes {
        for (i, d) in shape.iter().rev().enumerate() {
            match out.get_mut(i) {
                None => out.push(d.clone()),
                Some(o) if o == d || d.is(1) => {}
                Some(o) if o.is(1) => *o = d.clone(),
                Some(_) => return None,
            }
        }
    }
    out.reverse();
    Some(out)
}
