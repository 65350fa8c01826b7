//! Clipping of gradients.

use crate::SOURCE;
use kiln_tensor::{
    DType, Device, Error, Result, Tensor, Var, Vars, on_behalf_of_caller, options, set_autocast,
    set_grad_enabled, stack,
};

options! {
    /// Options of [`clip_grad_norm_with`].
    ClipNorm () {
        /// The order of the norm; infinity for the largest element.
        norm_type: f64 = 2.0,
        /// True if a NaN or infinite total norm is an error. The check reads the norm, so backward runs before the
        /// step; not available inside `compile`.
        error_if_nonfinite: bool = false,
    }
}

/// Scales the gradients so that their norm, taken together as one vector, is at most about `max_norm`: by `max_norm /
/// (norm + 1e-6)` where that is less than 1. Returns the norm before scaling (rank 0), which need not be read. Where
/// parameters are on several devices, backward runs first, and the norm is on the first parameter's device.
///
/// # Errors
/// If a gradient carries an error. The gradients are then as before.
///
/// ```
/// use kiln_nn::optim::clip_grad_norm_;
/// use kiln_tensor::{Tensor, Var};
/// let w = Var::parameter(&Tensor::from_slice(&[3.0f32, 4.0], [2]))?;
/// (w.get().square() * 0.5).sum(()).backward()?;
/// let norm = clip_grad_norm_(&w, 1.0)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn clip_grad_norm_(parameters: impl Vars, max_norm: impl Into<f64>) -> Result<Tensor> {
    clip_grad_norm_with(parameters, max_norm, ClipNorm::new())
}

/// [`clip_grad_norm_`] with another norm, or with a norm that must be finite.
///
/// # Errors
/// If a gradient carries an error, or the norm must be finite and is not. The gradients are then as before.
#[track_caller]
pub fn clip_grad_norm_with(
    parameters: impl Vars,
    max_norm: impl Into<f64>,
    options: ClipNorm,
) -> Result<Tensor> {
    let (clipped, max_norm) = (with_gradients(parameters), max_norm.into());
    on_behalf_of_caller(SOURCE, || clip_norm(&clipped, max_norm, options))
}

fn clip_norm(pairs: &[(Var, Tensor)], max_norm: f64, options: ClipNorm) -> Result<Tensor> {
    let Some((first_var, _)) = pairs.first() else {
        return Ok(Tensor::scalar(0.0f32));
    };
    let (_mode, _casts) = (set_grad_enabled(false), set_autocast(None));
    let home = first_var.device();
    let mut devices: Vec<(Device, Vec<Tensor>)> = Vec::new();
    for (p, g) in pairs {
        let norm = g.vector_norm(options.norm_type, ());
        match devices.iter_mut().find(|(d, _)| *d == p.device()) {
            Some((_, norms)) => norms.push(norm),
            None => devices.push((p.device(), vec![norm])),
        }
    }
    let together = |norms: &[Tensor]| stack(norms, 0).vector_norm(options.norm_type, ());
    let mut norms: Vec<Tensor> = devices.iter().map(|(_, norms)| together(norms)).collect();
    let total = match &mut norms[..] {
        [one] => one.clone(),
        many => {
            for norm in many.iter_mut() {
                *norm = norm.to(home);
                norm.check()?;
            }
            together(many)
        }
    };
    total.check()?;
    if options.error_if_nonfinite {
        let value = total.to_dtype(DType::F64).item::<f64>()?;
        if !value.is_finite() {
            let message = format!("the norm of the gradients is {value}");
            return Err(Error::invalid("clip_grad_norm_", message));
        }
    }
    let scale = (max_norm / (&total + 1e-6)).clamp_max(1.0);
    let mut scaled = Vec::new();
    for (p, g) in pairs {
        let scale = scale.to(p.device()).to_dtype(p.dtype());
        scaled.push((g * scale).check()?.clone());
    }
    set_all(pairs, &scaled)?;
    Ok(total)
}

/// Limits every element of the gradients to `-clip_value..=clip_value`.
///
/// # Errors
/// If a gradient carries an error. The gradients are then as before.
#[track_caller]
pub fn clip_grad_value_(parameters: impl Vars, clip_value: impl Into<f64>) -> Result<()> {
    let (_mode, _casts) = (set_grad_enabled(false), set_autocast(None));
    let (clamped, limit) = (with_gradients(parameters), clip_value.into());
    let mut clipped = Vec::new();
    for (_, g) in &clamped {
        clipped.push(g.clamp(-limit, limit).check()?.clone());
    }
    set_all(&clamped, &clipped)
}

#[track_caller]
fn set_all(pairs: &[(Var, Tensor)], gradients: &[Tensor]) -> Result<()> {
    let mut both = pairs.iter().zip(gradients);
    both.try_for_each(|((p, _), g)| p.set_grad(g))
}

fn with_gradients(parameters: impl Vars) -> Vec<(Var, Tensor)> {
    let parameters = parameters.into_vars().into_iter();
    parameters
        .filter_map(|p| p.grad().map(|g| (p, g)))
        .collect()
}
