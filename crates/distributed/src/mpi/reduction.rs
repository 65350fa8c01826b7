//! Reductions that MPI does not have: of f16 and bf16, and extremes of floats, which keep NaN.

use super::library::{Api, Count, Handle, UserFunction, constant};
use half::{bf16, f16};
use kiln_base::DType;
use kiln_base::collective::Reducer;
use std::collections::BTreeMap;
use std::ffi::c_void;

/// A float that is reduced in a wider one, or in itself.
trait Reduced: Copy {
    type Wide: Copy;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn apply(reducer: Reducer, a: Self::Wide, b: Self::Wide) -> Self::Wide;
}

macro_rules! reduced {
    ($($float:ty as $wide:ty: $widen:expr, $narrow:expr;)*) => {$(
        impl Reduced for $float {
            type Wide = $wide;
            fn widen(self) -> $wide {
                $widen(self)
            }
            fn narrow(wide: $wide) -> $float {
                $narrow(wide)
            }
            fn apply(reducer: Reducer, a: $wide, b: $wide) -> $wide {
                match reducer {
                    Reducer::Sum | Reducer::Mean => a + b,
                    Reducer::Product => a * b,
                    Reducer::Max | Reducer::Min if a.is_nan() || b.is_nan() => <$wide>::NAN,
                    Reducer::Max => a.max(b),
                    Reducer::Min => a.min(b),
                }
            }
        }
    )*};
}

reduced! {
    f16 as f32: f16::to_f32, f16::from_f32;
    bf16 as f32: bf16::to_f32, bf16::from_f32;
    f32 as f32: std::convert::identity, std::convert::identity;
    f64 as f64: std::convert::identity, std::convert::identity;
}

const SUM: u8 = Reducer::Sum as u8;
const MAX: u8 = Reducer::Max as u8;
const MIN: u8 = Reducer::Min as u8;
const PRODUCT: u8 = Reducer::Product as u8;

/// MPI's callback for a reduction, by its number.
unsafe extern "C" fn reduce<T: Reduced, const REDUCER: u8>(
    x: *mut c_void,
    y: *mut c_void,
    len: *mut Count,
    _: *mut Handle,
) {
    let reducer = match REDUCER {
        MAX => Reducer::Max,
        MIN => Reducer::Min,
        PRODUCT => Reducer::Product,
        _ => Reducer::Sum,
    };
    // SAFETY: MPI passes vectors of the dtype that the operation is called with, of this length.
    unsafe {
        let (x, y) = (x.cast::<T>(), y.cast::<T>());
        for i in 0..*len as usize {
            let (a, b) = (x.add(i).read_unaligned(), y.add(i).read_unaligned());
            let reduced = T::apply(reducer, a.widen(), b.widen());
            y.add(i).write_unaligned(T::narrow(reduced));
        }
    }
}

fn callback<T: Reduced + 'static>(reducer: Reducer) -> UserFunction {
    match reducer {
        Reducer::Sum | Reducer::Mean => reduce::<T, SUM>,
        Reducer::Max => reduce::<T, MAX>,
        Reducer::Min => reduce::<T, MIN>,
        Reducer::Product => reduce::<T, PRODUCT>,
    }
}

/// The operations that were made so far.
#[derive(Default)]
pub(super) struct Reductions(BTreeMap<(DType, u8), Handle>);

impl Reductions {
    /// MPI's dtype and operation for a reduction. A mean is a sum.
    ///
    /// # Errors
    /// If MPI can't make the operation, or the dtype is only stored.
    pub fn of(
        &mut self,
        api: &Api,
        reducer: Reducer,
        dtype: DType,
    ) -> Result<(Handle, Handle), String> {
        use constant::{DOUBLE, FLOAT, INT8, INT16, INT32, INT64, UINT8, UINT16};
        let extreme = matches!(reducer, Reducer::Max | Reducer::Min);
        let (dtype_of_mpi, callback) = match dtype {
            DType::F16 => (UINT16, Some(callback::<f16>(reducer))),
            DType::BF16 => (UINT16, Some(callback::<bf16>(reducer))),
            DType::F32 => (FLOAT, extreme.then(|| callback::<f32>(reducer))),
            DType::F64 => (DOUBLE, extreme.then(|| callback::<f64>(reducer))),
            DType::Bool | DType::U8 => (UINT8, None),
            DType::I8 => (INT8, None),
            DType::I16 => (INT16, None),
            DType::I32 => (INT32, None),
            DType::I64 => (INT64, None),
            other => return Err(format!("{other} is only stored")),
        };
        let op = match (callback, reducer) {
            (None, Reducer::Sum | Reducer::Mean) => constant::SUM,
            (None, Reducer::Max) => constant::MAX,
            (None, Reducer::Min) => constant::MIN,
            (None, Reducer::Product) => constant::PRODUCT,
            (Some(callback), _) => match self.0.get(&(dtype, reducer as u8)) {
                Some(op) => *op,
                None => {
                    let mut op = constant::NO_REQUEST;
                    // SAFETY: MPI is initialised, and the callback lives as long as the program.
                    let status = unsafe { (api.create_op)(callback, 1, &mut op) };
                    if status != 0 {
                        return Err(format!("MPI_Op_create failed with {status}"));
                    }
                    self.0.insert((dtype, reducer as u8), op);
                    op
                }
            },
        };
        Ok((dtype_of_mpi, op))
    }
}
