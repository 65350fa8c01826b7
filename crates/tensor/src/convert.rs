//! Conversions from Rust values to tensors and back.

use crate::{Element, Error, ErrorKind, Result, Tensor};
use half::{bf16, f16};
use std::panic::Location;

// The dtype is that of the Rust type: a literal `1.0` without a suffix is an f64, `1` an i32.
macro_rules! conversions {
    ($($t:ty)*) => {$(
        impl From<$t> for Tensor {
            /// A rank-0 tensor.
            #[track_caller]
            fn from(value: $t) -> Tensor {
                Tensor::data(&[value], &[], Location::caller(), "from")
            }
        }
        impl From<&[$t]> for Tensor {
            /// A vector.
            #[track_caller]
            fn from(values: &[$t]) -> Tensor {
                Tensor::data(values, &[values.len() as i64], Location::caller(), "from")
            }
        }
        impl From<Vec<$t>> for Tensor {
            /// A vector.
            #[track_caller]
            fn from(values: Vec<$t>) -> Tensor {
                Tensor::data(&values, &[values.len() as i64], Location::caller(), "from")
            }
        }
        impl<const N: usize> From<[$t; N]> for Tensor {
            /// A vector.
            #[track_caller]
            fn from(values: [$t; N]) -> Tensor {
                Tensor::data(&values, &[N as i64], Location::caller(), "from")
            }
        }
        impl<const M: usize, const N: usize> From<[[$t; N]; M]> for Tensor {
            /// A matrix.
            #[track_caller]
            fn from(rows: [[$t; N]; M]) -> Tensor {
                let shape = [M as i64, N as i64];
                Tensor::data(rows.as_flattened(), &shape, Location::caller(), "from")
            }
        }
        impl<const L: usize, const M: usize, const N: usize> From<[[[$t; N]; M]; L]> for Tensor {
            /// A tensor of rank 3.
            #[track_caller]
            fn from(slices: [[[$t; N]; M]; L]) -> Tensor {
                let shape = [L as i64, M as i64, N as i64];
                let values = slices.as_flattened().as_flattened();
                Tensor::data(values, &shape, Location::caller(), "from")
            }
        }
        impl<const N: usize> From<Vec<[$t; N]>> for Tensor {
            /// A matrix of these rows.
            #[track_caller]
            fn from(rows: Vec<[$t; N]>) -> Tensor {
                let shape = [rows.len() as i64, N as i64];
                Tensor::data(rows.as_flattened(), &shape, Location::caller(), "from")
            }
        }
        impl From<Vec<Vec<$t>>> for Tensor {
            /// A matrix of these rows. Rows of unequal lengths make an error.
            #[track_caller]
            fn from(rows: Vec<Vec<$t>>) -> Tensor {
                matrix(&rows, Location::caller())
            }
        }
        impl TryFrom<&Tensor> for Vec<$t> {
            type Error = Error;
            /// The elements in row-major order; see [`Tensor::to_vec`].
            #[track_caller]
            fn try_from(t: &Tensor) -> Result<Vec<$t>> {
                t.to_vec()
            }
        }
        impl TryFrom<&Tensor> for $t {
            type Error = Error;
            /// The only element; see [`Tensor::item`].
            #[track_caller]
            fn try_from(t: &Tensor) -> Result<$t> {
                t.item()
            }
        }
    )*};
}
conversions!(bool u8 i8 i16 i32 i64 u16 u32 u64 f16 bf16 f32 f64);

/// A matrix of rows, which are to be of one length.
fn matrix<T: Element>(rows: &[Vec<T>], loc: &'static Location<'static>) -> Tensor {
    let columns = rows.first().map_or(0, Vec::len);
    if let Some(index) = rows.iter().position(|row| row.len() != columns) {
        let len = rows[index].len();
        let message = format!("row 0 has {columns} elements, but row {index} has {len}");
        return Tensor::poisoned(Error::new(ErrorKind::Value, "from", message, loc), loc);
    }
    let shape = [rows.len() as i64, columns as i64];
    Tensor::data(&rows.concat(), &shape, loc, "from")
}
