//! Clipping of gradients.

use kiln_tensor::{DType, Error, Result, Tensor, Var, set_grad_enabled, stack};

/// How [`clip_grad_norm_`] measures, with PyTorch's defaults.
#[derive(Copy, Clone, Debug)]
pub struct ClipNorm {
    /// The order of the norm; infinity for the largest element.
    pub norm_type: f64,
    /// Whether a total norm that is NaN or infinite is an error. Checking reads it, so that backward
    /// runs before the step; not inside `compile`.
    pub error_if_nonfinite: bool,
}

impl Default for ClipNorm {
    fn default() -> ClipNorm {
        ClipNorm {
            norm_type: 2.0,
            error_if_nonfinite: false,
        }
    }
}

/// Scales the gradients so that their norm, taken together as one vector, is at most about `max_norm`:
/// by `max_norm / (norm + 1e-6)` where that is less than 1. Gives the norm before (rank 0), which need not
/// be read.
///
/// # Errors
/// If a gradient carries an error, or the norm is not finite where that is asked for; the gradients
/// are then as before.
///
/// ```
/// use kiln_nn::optim::{ClipNorm, clip_grad_norm_};
/// use kiln_tensor::{Tensor, Var};
/// let w = Var::parameter(&Tensor::from_slice(&[3.0f32, 4.0], [2]))?;
/// (w.get().square() * 0.5).sum(()).backward()?;
/// let norm = clip_grad_norm_([&w], 1.0, ClipNorm::default())?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn clip_grad_norm_<'a>(
    parameters: impl IntoIterator<Item = &'a Var>,
    max_norm: f64,
    how: ClipNorm,
) -> Result<Tensor> {
    let with = with_gradients(parameters);
    if with.is_empty() {
        return Ok(Tensor::scalar(0.0f32));
    }
    let _mode = set_grad_enabled(false);
    let mut norms = Vec::new();
    for (_, g) in &with {
        norms.push(g.vector_norm(how.norm_type, ()));
    }
    let norms: Vec<&Tensor> = norms.iter().collect();
    let total = stack(&norms, 0).vector_norm(how.norm_type, ());
    total.check()?;
    if how.error_if_nonfinite {
        let value = total.to_dtype(DType::F64).item::<f64>()?;
        if !value.is_finite() {
            let message = format!("the norm of the gradients is {value}");
            return Err(Error::invalid("clip_grad_norm_", message));
        }
    }
    let scale = (max_norm / (&total + 1e-6)).clamp_max(1.0);
    for (p, g) in with {
        p.set_grad(Some(&(g * scale.to_dtype(p.dtype()))))?;
    }
    Ok(total)
}

/// Limits every element of the gradients to `-clip_value..=clip_value`.
///
/// # Errors
/// If a gradient carries an error.
#[track_caller]
pub fn clip_grad_value_<'a>(
    parameters: impl IntoIterator<Item = &'a Var>,
    clip_value: f64,
) -> Result<()> {
    let _mode = set_grad_enabled(false);
    for (p, g) in with_gradients(parameters) {
        p.set_grad(Some(&g.clamp(-clip_value, clip_value)))?;
    }
    Ok(())
}

fn with_gradients<'a>(parameters: impl IntoIterator<Item = &'a Var>) -> Vec<(&'a Var, Tensor)> {
    parameters
        .into_iter()
        .filter_map(|p| Some((p, p.grad()?)))
        .collect()
}
