//! The casts of one operation.

use super::lists::{AutocastList, AutocastRule, rule};
use super::{Autocast, current_autocast, set_autocast};
use crate::autograd::{Derivative, with_derivative};
use crate::record::compose;
use crate::{
    Affine, AsTensor, Attention, BinaryCrossEntropy, BinaryCrossEntropyWithLogits, Conv,
    ConvTranspose, CrossEntropy, DType, Error, MultiLabelSoftMargin, MultiMargin, Nll, Tensor, Var,
};
use kiln_base::Scoped;
use kiln_ir::Builder;
use kiln_lazy::caller::user_line;
use kiln_lazy::cell::Narrow;
use kiln_lazy::grad::edge::{Edge, Leaf};
use kiln_lazy::{body, scope};
use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;

/// The dtype that an operation casts its operands to. The operation then runs without further casts.
pub(crate) struct Cast {
    dtype: DType,
    /// The error, if the operation is not allowed.
    error: Option<Error>,
}

/// The casts of an operation, if it is called inside `autocast` and in the list of its operands' device.
#[track_caller]
pub(crate) fn begin(name: &str, operands: &[&Tensor]) -> Option<Cast> {
    find_cast(current_autocast()?, name, operands)
}

#[track_caller]
fn find_cast(options: Autocast, name: &str, operands: &[&Tensor]) -> Option<Cast> {
    let device = operands.iter().find_map(|t| t.handle.node.device);
    let list = options
        .list
        .unwrap_or(AutocastList::from(device.unwrap_or_default()));
    let rule = rule(name, list)?;
    let mut floats = operands
        .iter()
        .map(|t| t.dtype())
        .filter(|d| is_cast(*d))
        .peekable();
    floats.peek()?;
    let mut error = None;
    let dtype = match rule {
        AutocastRule::Lower => options.dtype,
        AutocastRule::Full => DType::F32,
        AutocastRule::Widest if floats.all(|d| d == options.dtype) => options.dtype,
        AutocastRule::Widest => DType::F32,
        AutocastRule::Refused => {
            let message = format!(
                "is not safe inside autocast; use {name}_with_logits, on what the sigmoid is of, or no_autocast"
            );
            error = Some(Error::invalid(name, message));
            DType::F32
        }
    };
    if !options.dtype.is_half() {
        let message = format!("autocast is to f16 or bf16, not {}", options.dtype);
        error = Some(Error::invalid(name, message));
    }
    Some(Cast { dtype, error })
}

/// True if operands of the dtype are cast: all floats but f64.
fn is_cast(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::F64
}

impl Cast {
    /// Casts an operand as the operation requires.
    #[track_caller]
    pub(crate) fn apply(&self, t: &Tensor) -> Tensor {
        if let Some(e) = &self.error {
            return Tensor::from_error(e.clone());
        }
        if !is_cast(t.dtype()) || t.dtype() == self.dtype {
            return t.clone();
        }
        let narrow_copy = self.narrow_copy(t, user_line(Location::caller()));
        match narrow_copy {
            Some(narrow_copy) => narrow_copy,
            None => compose("autocast", &[t], |b| b.cast(t, self.dtype)),
        }
    }

    /// The narrow copy that is kept of a cell's value, in place of a cast; see [`Var::keep_narrow`].
    fn narrow_copy(&self, t: &Tensor, loc: &'static Location<'static>) -> Option<Tensor> {
        let Edge::Leaf(leaf) = &t.handle.edge else {
            return None;
        };
        if body::is_tracing() {
            return None;
        }
        let narrow = leaf
            .narrow()
            .or_else(|| self.keep_narrow_copy(leaf, t, loc))?;
        let fits = narrow.cell().leaf.dtype() == self.dtype;
        if !fits || !narrow.stands_for(&t.handle, loc) {
            return None;
        }
        let cell = narrow.cell().clone();
        let copy = Var { cell }.get();
        let wide = t.dtype();
        let derivative =
            move || -> Arc<Derivative> { Arc::new(move |_, _, g| vec![Some(g.to_dtype(wide))]) };
        Some(with_derivative(&copy, &[t], ("autocast", loc), derivative))
    }

    /// The narrow copy that is kept from this cast on, if the cell requests one and holds this tensor; see
    /// [`Var::keep_casts`].
    fn keep_narrow_copy(
        &self,
        leaf: &Leaf,
        t: &Tensor,
        loc: &'static Location<'static>,
    ) -> Option<Arc<Narrow>> {
        let requested = leaf.keeps_casts()?;
        if t.dtype() != DType::F32 || !self.dtype.is_half() || scope::is_written(&requested) {
            return None;
        }
        let var = Var { cell: requested };
        // Outside recordings the copy is computed, so that this step has the plan of all steps. While recording it
        // can't be.
        let compute = |var: &Var| match scope::is_recording() {
            true => Ok(()),
            false => var.get().realize().map(drop),
        };
        compute(&var).ok()?;
        let narrow = Narrow::cast(&var.cell, self.dtype, loc).ok()?;
        if !narrow.stands_for(&t.handle, loc) {
            return None;
        }
        let copy = Var {
            cell: narrow.cell().clone(),
        };
        if let Some(name) = var.name() {
            copy.set_name(&format!("{name}.{}", self.dtype));
        }
        compute(&copy).ok()?;
        Some(leaf.narrow_or(narrow))
    }

    /// [`Cast::apply`] for an operand that may be missing.
    #[track_caller]
    #[allow(clippy::manual_map)] // a closure would hide whose line it is
    pub(crate) fn apply_to_option(&self, t: Option<&Tensor>) -> Option<Tensor> {
        match t {
            Some(t) => Some(self.apply(t)),
            None => None,
        }
    }

    /// Disables further casts until the guard is dropped: the operations that this one consists of compute in its
    /// dtype.
    pub(crate) fn enter(&self) -> Scoped<Cell<Option<Autocast>>> {
        set_autocast(None)
    }
}

/// Casts a tensor as an operation of this name does inside [`autocast`](crate::autocast). For code that uses parts of
/// a parameter: the parts of a cast parameter are those of its kept copy, whereas casts of the parts would run at
/// each use.
///
/// ```
/// use kiln_tensor::{DType, autocast, autocast_operand, randn};
/// let w = randn([6, 4]);
/// let cast = autocast(DType::BF16, || autocast_operand("linear", &w));
/// assert_eq!(cast.dtype(), DType::BF16);
/// assert_eq!(autocast_operand("linear", &w).dtype(), DType::F32);
/// ```
#[track_caller]
pub fn autocast_operand(name: &str, t: impl AsTensor) -> Tensor {
    let t: &Tensor = &t.as_tensor();
    match begin(name, &[t]) {
        Some(cast) => cast.apply(t),
        None => t.clone(),
    }
}

/// Casts the operands of an operation that contains no other operation of the lists.
#[track_caller]
pub(crate) fn cast_all(name: &str, operands: &mut [Tensor]) {
    let Some(options) = current_autocast() else {
        return;
    };
    let cast = find_cast(options, name, &operands.iter().collect::<Vec<_>>());
    if let Some(cast) = cast {
        for t in operands {
            *t = cast.apply(t);
        }
    }
}

/// Options that hold operands.
pub(crate) trait Castable: Sized {
    /// The operands in the options.
    fn tensors(&self) -> Vec<&Tensor>;

    /// The options with cast operands.
    fn cast(self, cast: &Cast) -> Self;
}

macro_rules! castable {
    ($($name:ident: $($tensor:ident)*;)*) => {$(
        impl Castable for $name {
            fn tensors(&self) -> Vec<&Tensor> {
                [$(&self.$tensor),*].into_iter().flatten().collect()
            }

            #[track_caller]
            fn cast(mut self, cast: &Cast) -> $name {
                $(self.$tensor = cast.apply_to_option(self.$tensor.as_ref());)*
                self
            }
        }
    )*};
}
castable! {
    Affine: weight bias;
    Attention: attn_mask;
    BinaryCrossEntropy: weight;
    BinaryCrossEntropyWithLogits: weight pos_weight;
    Conv: bias;
    ConvTranspose: bias;
    CrossEntropy: weight;
    MultiLabelSoftMargin: weight;
    MultiMargin: weight;
    Nll: weight;
}
