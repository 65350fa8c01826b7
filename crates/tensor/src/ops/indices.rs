//! What stands between the brackets of `x[..]`.

use crate::Tensor;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// One item of an index; see [`Tensor::i`] for what each does. Made with `into` from numbers, ranges,
/// lists, tensors, [`NewAxis`] and [`Ellipsis`], or by [`step`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Index {
    /// The slice at a number, without its dim; negative numbers count from the end.
    At(i64),
    /// Python's `start:end:step`.
    Slice {
        /// The first index, by default 0.
        start: Option<i64>,
        /// The first index that is not taken any more, by default behind the last.
        end: Option<i64>,
        /// The distance between two; negative steps walk from the last one back.
        step: i64,
    },
    /// A new dim of size 1.
    NewAxis,
    /// As many whole dims as the other items leave.
    Ellipsis,
    /// A new dim of size 1 if true, 0 if false.
    Bool(bool),
    /// The slices at these numbers.
    List(Vec<i64>),
    /// The slices where the list, which is as long as the dim, is true.
    Mask(Vec<bool>),
    /// The slices at the numbers in an integer tensor, or the elements where a bool tensor is true.
    Tensor(Tensor),
}

/// A new dim of size 1: Python's `None` between brackets.
#[derive(Copy, Clone, Debug)]
pub struct NewAxis;

/// As many whole dims as the other items leave: Python's `...`.
#[derive(Copy, Clone, Debug)]
pub struct Ellipsis;

/// Every `by`-th index of a range: Python's `start:end:by`. Negative steps, which PyTorch doesn't have,
/// take the range from its last index back, as `ndarray` does: `step(.., -1)` is the dim in reverse.
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

/// The index behind an inclusive end; behind the last one is the end itself.
fn behind(end: i64) -> Option<i64> {
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
                slice(Some(*r.start() as i64), behind(*r.end() as i64))
            }
        }
        impl From<RangeToInclusive<$t>> for Index {
            fn from(r: RangeToInclusive<$t>) -> Index {
                slice(None, behind(r.end as i64))
            }
        }
    )*};
}
numbers!(i32 i64 isize usize);

/// What [`Tensor::i`] takes: one item, a tuple of up to eight, or a slice of [`Index`].
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
