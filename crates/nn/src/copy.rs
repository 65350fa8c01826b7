//! Copies of modules.

use crate::parametrized::Parametrized;
use kiln_tensor::{DType, Error, Result, Tensor, Var, is_recording, realize_first};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The parts copied so far. A part that is shared within a module is shared within its copy.
#[derive(Default)]
pub struct Copies {
    /// Copies of cells, by the id of the original.
    vars: BTreeMap<u64, Var>,
    /// Copies of shared modules, by the address of the original.
    shared: HashMap<usize, Box<dyn Any>>,
    /// The new dtype of floats, if it changes.
    dtype: Option<DType>,
}

impl Copies {
    /// Starts copies whose floats have another dtype.
    ///
    /// # Errors
    /// If the dtype is not a float.
    #[track_caller]
    pub(crate) fn of_float(called: &'static str, dtype: DType) -> Result<Copies> {
        if !dtype.is_float() {
            let message = format!("the dtype must be a float, not {dtype}");
            return Err(Error::invalid(called, message));
        }
        Ok(Copies {
            dtype: Some(dtype),
            ..Copies::default()
        })
    }

    /// Computes the values of all copied cells in one program.
    ///
    /// # Errors
    /// If a value can't be computed.
    #[track_caller]
    pub(crate) fn compute(&self) -> Result<()> {
        realize_first(self.vars.values().filter(|var| var.source().is_none()))
    }

    /// Returns the copy of a cell: a new one with its value, which requires gradients if the cell does.
    ///
    /// # Errors
    /// If the value can't be computed, or inside `compile`.
    #[track_caller]
    pub fn var(&mut self, var: &Var) -> Result<Var> {
        if let Some(copy) = self.vars.get(&var.id()) {
            return Ok(copy.clone());
        }
        let computed = Parametrized::of_cell(var);
        let mut value = match computed {
            Some(_) => Tensor::zeros(var.shape()?, var.dtype()).to(var.device()),
            None => var.get().detach(),
        };
        if let Some(dtype) = self.dtype.filter(|_| value.dtype().is_float()) {
            value = value.to_dtype(dtype);
        }
        if is_recording() {
            value.realize()?;
        }
        let copy = match var.is_parameter() {
            true => Var::parameter(&value)?,
            false => Var::new(&value)?,
        };
        copy.requires_grad_(var.requires_grad())?;
        self.vars.insert(var.id(), copy.clone());
        if let Some(p) = computed {
            let p = p.remap(|var| self.var(var))?;
            copy.set_source(Some(Arc::new(p)));
        }
        Ok(copy)
    }

    /// Returns the copy of a module that may be shared.
    pub(crate) fn shared<M: BoxCopy + ?Sized + 'static>(
        &mut self,
        module: &Arc<M>,
    ) -> Result<Arc<M>> {
        let address = Arc::as_ptr(module).cast::<()>() as usize;
        if let Some(copy) = self
            .shared
            .get(&address)
            .and_then(|c| c.downcast_ref::<Arc<M>>())
        {
            return Ok(copy.clone());
        }
        let copy: Arc<M> = module.box_copy(self)?.into();
        self.shared.insert(address, Box::new(copy.clone()));
        Ok(copy)
    }
}

/// A type that can be copied into a box of itself: every module, `dyn Module` and `dyn Forward`. Modules of other trait
/// objects can't be in a `Box` or an `Arc` of a module.
#[diagnostic::on_unimplemented(
    message = "a pointer to `{Self}` is not a module, since it can't be copied",
    note = "use `dyn Forward` or `dyn Module`"
)]
pub trait BoxCopy {
    /// Returns the copy.
    ///
    /// # Errors
    /// As [`Module::deep_copy`](crate::Module::deep_copy).
    fn box_copy(&self, copies: &mut Copies) -> Result<Box<Self>>;
}

/// A field that a module leaves out, for the derive: it is cloned if its type allows.
#[doc(hidden)]
pub struct Skipped<'a, T>(pub &'a T, pub &'static str);

/// Copies a field of a type that can be cloned. The derive's call finds this before [`SkippedOther`].
#[doc(hidden)]
pub trait SkippedClone<T> {
    fn copied(&self) -> Result<T>;
}

impl<T: Clone> SkippedClone<T> for Skipped<'_, T> {
    fn copied(&self) -> Result<T> {
        Ok(self.0.clone())
    }
}

#[doc(hidden)]
pub trait SkippedOther<T> {
    fn copied(&self) -> Result<T>;
}

impl<T> SkippedOther<T> for &Skipped<'_, T> {
    #[track_caller]
    fn copied(&self) -> Result<T> {
        let message = format!("the field {} can't be cloned", self.1);
        Err(Error::invalid("deep_copy", message))
    }
}
