//! Numbers as arguments: single, optional, or lists.

use kiln_ir::ops::Axes;
use kiln_ir::{OpError, ensure};

/// An integer of any type: a size, a count or a position.
///
/// ```
/// use kiln_tensor::{DType, Tensor};
/// let x = Tensor::ones([6, 2], DType::F32);
/// let n: usize = 3;
/// assert_eq!(x.narrow(0, 1, n).shape()?, x.narrow(0, 1u8, 3).shape()?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Int(pub i64);

/// An integer of any type, or `None`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MaybeInt(pub Option<i64>);

/// One or several numbers, such as dims to reduce, sizes of a window or shifts: an array, a slice, a vector or a
/// tuple. `()` is the empty list, which means "all dims" to reductions and "the default" to windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntList(pub Vec<i64>);

// Numbers that an i64 doesn't hold become its largest one, which is out of range everywhere.
macro_rules! int_from {
    ($($int:ty)*) => {$(
        impl From<$int> for Int {
            fn from(n: $int) -> Int {
                Int(i64::try_from(n).unwrap_or(i64::MAX))
            }
        }
    )*};
}
int_from!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize);

impl<T: Into<Int>> From<T> for MaybeInt {
    fn from(n: T) -> MaybeInt {
        MaybeInt(Some(n.into().0))
    }
}

// For one type only, so that the type of a bare `None` is known.
impl From<Option<i64>> for MaybeInt {
    fn from(n: Option<i64>) -> MaybeInt {
        MaybeInt(n)
    }
}

impl<T: Into<Int>> From<T> for IntList {
    fn from(n: T) -> IntList {
        IntList(vec![n.into().0])
    }
}

impl<T: Into<Int> + Copy> From<&[T]> for IntList {
    fn from(list: &[T]) -> IntList {
        IntList(list.iter().map(|n| (*n).into().0).collect())
    }
}

macro_rules! list_from {
    ($($list:ty, $($n:ident)?;)*) => {$(
        impl<T: Into<Int> + Copy $(, const $n: usize)?> From<$list> for IntList {
            fn from(list: $list) -> IntList {
                IntList::from(&list[..])
            }
        }
    )*};
}
list_from! {
    Vec<T>,;
    &Vec<T>,;
    [T; N], N;
    &[T; N], N;
}

macro_rules! list_from_tuple {
    ($($($t:ident)*;)*) => {$(
        impl<$($t: Into<Int>),*> From<($($t,)*)> for IntList {
            #[allow(non_snake_case)]
            fn from(($($t,)*): ($($t,)*)) -> IntList {
                IntList(vec![$($t.into().0),*])
            }
        }
    )*};
}
list_from_tuple! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

impl From<()> for IntList {
    fn from(_: ()) -> IntList {
        IntList::default()
    }
}

impl IntList {
    /// One number for each of `n` axes; a single number stands for all of them.
    pub(crate) fn each(&self, n: usize, what: &str, least: i64) -> Result<Axes, OpError> {
        ensure!(
            self.0.len() == n || self.0.len() == 1,
            "{what} needs one number or {n}, not {:?}",
            self.0
        );
        for &v in &self.0 {
            ensure!(v >= least, "{what} must be at least {least}, not {v}");
        }
        Ok((0..n).map(|i| self.0[i % self.0.len()] as usize).collect())
    }
}
