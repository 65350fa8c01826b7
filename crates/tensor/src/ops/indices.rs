//! The items between the brackets of `x[..]`.

use crate::Tensor;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// One item of an index; see [`Tensor::i`] for the effect of each. Converts from numbers, ranges, lists, tensors,
/// [`NewAxis`] and [`Ellipsis`]; see also [`step`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Index {
    /// The slice at a position, without its dim; negative positions count from the end.
    At(i64),
    /// Python's `start:end:step`.
    Slice {
        /// The first index, by default 0.
        start: Option<i64>,
        /// The index after the last selected one, by default the size of the dim.
        end: Option<i64>,
        /// The distance between selected indices; negative steps start at the last index and go back.
        step: i64,
    },
    /// A new dim of size 1.
    NewAxis,
    /// All dims that the other items don't cover, whole.
    Ellipsis,
    /// A new dim of size 1 if true, 0 if false.
    Bool(bool),
    /// The slices at these positions.
    List(Vec<i64>),
    /// The slices where the list is true. It is as long as the dim.
    Mask(Vec<bool>),
    /// The slices at the positions in an integer tensor, or the elements where a bool tensor is true.
    Tensor(Tensor),
}

/// A new dim of size 1: Python's `None` between brackets.
#[derive(Copy, Clone, Debug)]
pub struct NewAxis;

/// All dims that the other items don't cover, whole: Python's `...`.
#[derive(Copy, Clone, Debug)]
pub struct Ellipsis;

/// Every `by`-th index of a range: Python's `start:end:by`. Negative steps, which PyTorch doesn't support, traverse
/// the range backwards from its last index, as in `ndarray`: `step(.., -1)` reverses the dim.
///
/// ```
/// use kiln_tensor::{Tensor, step};
/// let x = Tensor::arange(0, 10, 1);
/// assert_eq!(x.i(step(1..9, 3)).to_vec::<i64>()?, [1, 4, 7]);
/// assert_eq!(x.i(step(1..9, -3)).to_vec::<i64>()?, [8, 5, 2]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn step(range: impl Into<Index>, by: i64) -> Index {
    match range.into() {
        Index::Slice { start, end, .. } => Index::Slice {
            start,
            end,
            step: by,
        },
        other => other,
    }
}

impl From<NewAxis> for Index {
    fn from(_: NewAxis) -> Index {
        Index::NewAxis
    }
}

impl From<Ellipsis> for Index {
    fn from(_: Ellipsis) -> Index {
        Index::Ellipsis
    }
}

impl From<bool> for Index {
    fn from(keep: bool) -> Index {
        Index::Bool(keep)
    }
}

impl From<&Tensor> for Index {
    fn from(t: &Tensor) -> Index {
        Index::Tensor(t.clone())
    }
}

impl From<Tensor> for Index {
    fn from(t: Tensor) -> Index {
        Index::Tensor(t)
    }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Index {
        slice(None, None)
    }
}

fn slice(start: Option<i64>, end: Option<i64>) -> Index {
    Index::Slice {
        start,
        end,
        step: 1,
    }
}

/// Returns the index after an inclusive end; for the last index (−1) it is the end of the dim.
fn exclusive_end(end: i64) -> Option<i64> {
    (end != -1).then(|| end.saturating_add(1))
}

macro_rules! lists {
    ($($t:ty => $variant:ident $convert:expr;)*) => {$(
        impl From<&[$t]> for Index {
            fn from(list: &[$t]) -> Index {
                Index::$variant(list.iter().map($convert).collect())
            }
        }
        impl From<Vec<$t>> for Index {
            fn from(list: Vec<$t>) -> Index {
                Index::from(&list[..])
            }
        }
        impl From<&Vec<$t>> for Index {
            fn from(list: &Vec<$t>) -> Index {
                Index::from(&list[..])
            }
        }
        impl<const N: usize> From<[$t; N]> for Index {
            fn from(list: [$t; N]) -> Index {
                Index::from(&list[..])
            }
        }
        impl<const N: usize> From<&[$t; N]> for Index {
            fn from(list: &[$t; N]) -> Index {
                Index::from(&list[..])
            }
        }
    )*};
}
lists! {
    i32 => List |n| *n as i64;
    i64 => List |n| *n;
    isize => List |n| *n as i64;
    usize => List |n| *n as i64;
    bool => Mask |b| *b;
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl From<$t> for Index {
            fn from(n: $t) -> Index {
                Index::At(n as i64)
            }
        }
        impl From<Range<$t>> for Index {
            fn from(r: Range<$t>) -> Index {
                slice(Some(r.start as i64), Some(r.end as i64))
            }
        }
        impl From<RangeFrom<$t>> for Index {
            fn from(r: RangeFrom<$t>) -> Index {
                slice(Some(r.start as i64), None)
            }
        }
        impl From<RangeTo<$t>> for Index {
            fn from(r: RangeTo<$t>) -> Index {
                slice(None, Some(r.end as i64))
            }
        }
        impl From<RangeInclusive<$t>> for Index {
            fn from(r: RangeInclusive<$t>) -> Index {
                slice(Some(*r.start() as i64), exclusive_end(*r.end() as i64))
            }
        }
        impl From<RangeToInclusive<$t>> for Index {
            fn from(r: RangeToInclusive<$t>) -> Index {
                slice(None, exclusive_end(r.end as i64))
            }
        }
    )*};
}
numbers!(i32 i64 isize usize);

/// The arguments of [`Tensor::i`]: one item, a tuple of up to eight, or a slice of [`Index`].
#[diagnostic::on_unimplemented(
    message = "a tensor can't be indexed by `{Self}`",
    label = "not an index",
    note = "an index is a number, a range, `step(range, n)`, `NewAxis`, `Ellipsis`, a bool, a list of \
            numbers or bools, a tensor, or a tuple of these"
)]
pub trait Indices {
    /// The items, in order.
    fn into_indices(self) -> Vec<Index>;
}

impl<T: Into<Index>> Indices for T {
    fn into_indices(self) -> Vec<Index> {
        vec![self.into()]
    }
}

impl Indices for &[Index] {
    fn into_indices(self) -> Vec<Index> {
        self.to_vec()
    }
}

impl Indices for Vec<Index> {
    fn into_indices(self) -> Vec<Index> {
        self
    }
}

impl Indices for () {
    fn into_indices(self) -> Vec<Index> {
        Vec::new()
    }
}

macro_rules! tuples {
    ($(($($t:ident $at:tt),*))*) => {$(
        impl<$($t: Into<Index>),*> Indices for ($($t,)*) {
            fn into_indices(self) -> Vec<Index> {
                vec![$(self.$at.into()),*]
            }
        }
    )*};
}
tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
