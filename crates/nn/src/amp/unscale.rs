//! Unscaling of gradients, and the search for gradients that are not finite.

use crate::optim::Optimizer;
use kiln_tensor::{DType, Error, Result, Tensor, Var, set_autocast, set_grad_enabled, stack};

/// Multiplies the gradients of an optimiser by `inverse`, f32 of rank 0. Returns a bool of rank 0, on the device of
/// `inverse`, that is true if a gradient was not finite. Gradients of parameters with master weights become those of
/// the master weights, in f32. Returns `None` if there are no gradients.
#[track_caller]
pub(super) fn unscale(
    optimizer: &Optimizer,
    inverse: &Tensor,
    allow_f16: bool,
) -> Result<Option<Tensor>> {
    let (_mode, _casts) = (set_grad_enabled(false), set_autocast(None));
    let mut flags = Vec::new();
    let mut new: Vec<(Var, Tensor)> = Vec::new();
    for (p, master) in optimizer.with_masters() {
        let Some(g) = p.grad() else { continue };
        g.check()?;
        if master.is_none() && p.dtype() == DType::F16 && !allow_f16 {
            let message = format!(
                "{p:?} has a gradient of f16, which unscaling would make zero; keep master weights \
                 (Optimizer::keep_master_weights), or parameters of f32 inside autocast"
            );
            return Err(Error::invalid("unscale_", message));
        }
        flags.push(g.isfinite().all(()).logical_not().to(inverse.device()));
        let to = master.unwrap_or(p);
        let factor = inverse.to(p.device());
        let unscaled = match p.dtype() {
            DType::F64 => g * factor.to_dtype(DType::F64),
            _ => (g.to_dtype(DType::F32) * factor).to_dtype(to.dtype()),
        };
        new.push((to.clone(), unscaled));
    }
    for (to, gradient) in new {
        to.set_grad(gradient)?;
    }
    Ok(match flags.is_empty() {
        true => None,
        false => Some(stack(flags, 0).any(())),
    })
}

/// `1 / scale`, rounded once.
pub(super) fn inverse(scale: &Tensor) -> Tensor {
    let (_mode, _casts) = (set_grad_enabled(false), set_autocast(None));
    scale.to_dtype(DType::F64).reciprocal().to_dtype(DType::F32)
}

/// Returns the name of the first parameter whose gradient is not finite now, if there is one; it reads the gradients.
#[track_caller]
pub(super) fn first_not_finite(optimizer: &Optimizer) -> Result<Option<String>> {
    let _mode = set_grad_enabled(false);
    for (i, (p, _)) in optimizer.with_masters().into_iter().enumerate() {
        let Some(g) = p.grad() else { continue };
        if !g.isfinite().all(()).item::<bool>()? {
            let name = p.name().map_or_else(|| i.to_string(), |n| n.to_string());
            return Ok(Some(name));
        }
    }
    Ok(None)
}
