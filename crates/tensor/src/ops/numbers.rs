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

impl From<Int> for i64 {
    fn from(n: Int) -> i64 {
        n.0
    }
}

/// Conversions to a list: of one item, of a slice, a vector, an array or a tuple of items, and of `()`.
macro_rules! from_items {
    ($list:ident, $item:ident, $held:ident) => {
        impl<T: Into<$item>> From<T> for $list {
            fn from(item: T) -> $list {
                $list(vec![$held::from(Into::<$item>::into(item))])
            }
        }
        impl From<()> for $list {
            fn from((): ()) -> $list {
                $list::default()
            }
        }
        from_items! {
            @sequences $list, $item, $held;
            &[T],; Vec<T>,; &Vec<T>,; [T; N], N; &[T; N], N;
        }
        from_items! {
            @tuples $list, $item, $held;
            (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F)
        }
    };
    (@sequences $list:ident, $item:ident, $held:ident; $($items:ty, $($n:ident)?;)*) => {$(
        impl<T: Into<$item> + Clone $(, const $n: usize)?> From<$items> for $list {
            fn from(items: $items) -> $list {
                let held = |item: &T| $held::from(Into::<$item>::into(item.clone()));
                $list(items.iter().map(held).collect())
            }
        }
    )*};
    (@tuples $list:ident, $item:ident, $held:ident; $(($($t:ident)*))*) => {$(
        impl<$($t: Into<$item>),*> From<($($t,)*)> for $list {
            #[allow(non_snake_case)]
            fn from(($($t,)*): ($($t,)*)) -> $list {
                $list(vec![$($held::from(Into::<$item>::into($t))),*])
            }
        }
    )*};
}
pub(crate) use from_items;

from_items!(IntList, Int, i64);

impl IntList {
    /// One number for each of `n` axes; a single number stands for all of them.
    pub(crate) fn for_axes(&self, n: usize, what: &str, least: i64) -> Result<Axes, OpError> {
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
