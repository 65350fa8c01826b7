//! Mixed precision: operations computed in a narrower float, and operations computed in f32.
//!
//! Inside [`autocast`], an operation that is in the list of its operands' device ([`lists`]) casts them by its rule
//! and is recorded with the casts (`cast`). Gradients flow through the casts: they arrive in the dtype of the uncast
//! operand. Operations in no list are unchanged.

mod cast;
mod lists;

pub use cast::autocast_operand;
pub(crate) use cast::{Castable, begin, cast_all};
pub use lists::{AutocastList, AutocastOp, AutocastRule, autocast_ops};

use crate::DType;
use kiln_base::Scoped;
use std::cell::Cell;

thread_local! {
    static SCOPE: Cell<Option<Autocast>> = const { Cell::new(None) };
}

/// The settings of [`autocast`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Autocast {
    /// The narrower dtype: f16 or bf16.
    pub dtype: DType,
    /// The list that decides which operations are cast: by default that of the operands' device.
    pub list: Option<AutocastList>,
}

impl Autocast {
    /// Casts to a dtype, by the list of the operands' device.
    pub fn new(dtype: DType) -> Autocast {
        Autocast { dtype, list: None }
    }

    /// Uses one list on all devices, for example to compute on the CPU as on a GPU.
    pub fn list(mut self, list: AutocastList) -> Autocast {
        self.list = Some(list);
        self
    }
}

/// Runs `f` with operations on this thread cast to f16 or bf16 where that is profitable, and to f32 where that is
/// needed (`torch.autocast`). `docs/pytorch.md` has the lists. Any other dtype is an error of the recorded
/// operations.
///
/// Parameters and inputs stay in f32: casts are recorded where they are used, and gradients arrive in f32. For
/// f16, scale the loss with a `GradScaler`. Only the forward pass and the loss belong inside.
///
/// ```
/// use kiln_tensor::{DType, Tensor, Var, autocast, no_autocast};
/// let x = Tensor::randn([4, 8], DType::F32);
/// let w = Var::parameter(Tensor::randn([3, 8], DType::F32))?;
/// let loss = autocast(DType::BF16, || {
///     let y = x.linear(&w);
///     assert_eq!(y.dtype(), DType::BF16);
///     let exact = no_autocast(|| x.linear(&w));
///     assert_eq!(exact.dtype(), DType::F32);
///     y.cross_entropy(Tensor::from([0i64, 2, 1, 0]))
/// });
/// assert_eq!(loss.dtype(), DType::F32);
/// loss.backward()?;
/// assert_eq!(w.grad().unwrap().dtype(), DType::F32);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn autocast<T>(dtype: DType, f: impl FnOnce() -> T) -> T {
    let _inside = set_autocast(Autocast::new(dtype));
    f()
}

/// Runs `f` without [`autocast`], even inside it (PyTorch's `autocast(enabled=False)`).
pub fn no_autocast<T>(f: impl FnOnce() -> T) -> T {
    let _inside = set_autocast(None);
    f()
}

/// Enables or disables casts on this thread until the guard is dropped.
///
/// ```
/// use kiln_tensor::{Autocast, AutocastList, DType, Tensor, is_autocast_enabled, set_autocast};
/// let x = Tensor::ones([3], DType::BF16);
/// {
///     let _inside = set_autocast(Autocast::new(DType::BF16).list(AutocastList::Cuda));
///     assert_eq!(x.exp().dtype(), DType::F32);
/// }
/// assert!(!is_autocast_enabled());
/// ```
pub fn set_autocast(options: impl Into<Option<Autocast>>) -> Scoped<Cell<Option<Autocast>>> {
    Scoped::new(&SCOPE, options.into())
}

/// Returns the casts of operations on this thread, if enabled.
#[inline]
pub fn current_autocast() -> Option<Autocast> {
    SCOPE.get()
}

/// True if operations on this thread are cast.
#[inline]
pub fn is_autocast_enabled() -> bool {
    SCOPE.get().is_some()
}
