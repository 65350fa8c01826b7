//! Parameters that are computed from others (`torch.nn.utils.parametrize`).

use crate::SOURCE;
use crate::layer::fact;
use crate::members::Member;
use crate::parametrized::Parametrized;
use crate::{ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Module};
use kiln_tensor::{
    Error, Int, Result, Tensor, Var, is_recording, no_grad, on_behalf_of_caller, options,
};
use std::sync::Arc;

options! {
    /// A weight as a length and a direction, `g · v / ‖v‖` (`torch.nn.utils.parametrizations.weight_norm`; Salimans and
    /// Kingma, 2016). `original0` holds g, `original1` v.
    WeightNorm () {
        /// The dim with a length for each index (default 0); `None` gives the whole weight one.
        dim: Option<i64> = 0,
    }
}

options! {
    /// A weight divided by its spectral norm (`torch.nn.utils.parametrizations.spectral_norm`; Miyato et al., 2018). In
    /// training, each read of the weight improves the estimate of that norm by power iteration.
    SpectralNorm () {
        /// The number of power iterations at each read in training (default 1).
        n_power_iterations: Int = 1,
        /// The least norm that vectors are divided by (default 1e-12).
        eps: f64 = 1e-12,
        /// The dim of the outputs. By default it is 1 for transposed convolutions and 0 for other layers.
        dim: Option<i64> = None,
    }
}

/// The computation of a parameter from others: [`WeightNorm`], [`SpectralNorm`], or a function of one tensor that keeps
/// its shape.
pub trait Parametrization {
    /// Makes the computation for a module's parameter.
    #[doc(hidden)]
    fn make_parametrized(self, module: &dyn Module, value: &Tensor) -> Result<Parametrized>;
}

impl Parametrization for WeightNorm {
    fn make_parametrized(self, _: &dyn Module, value: &Tensor) -> Result<Parametrized> {
        let dim = self.dim.map(|dim| axis("weight_norm", dim, value));
        Parametrized::weight(value, dim.transpose()?)
    }
}

impl Parametrization for SpectralNorm {
    fn make_parametrized(self, module: &dyn Module, value: &Tensor) -> Result<Parametrized> {
        let transposed = module.downcast_ref::<ConvTranspose1d>().is_some()
            || module.downcast_ref::<ConvTranspose2d>().is_some()
            || module.downcast_ref::<ConvTranspose3d>().is_some();
        let dim = axis(
            "spectral_norm",
            self.dim.unwrap_or(transposed.into()),
            value,
        )?;
        let Int(iterations @ 1..) = self.n_power_iterations else {
            let n = self.n_power_iterations.0;
            let message = format!("n_power_iterations must be at least 1, not {n}");
            return Err(Error::invalid("spectral_norm", message));
        };
        Parametrized::spectral(value, iterations as usize, self.eps, dim)
    }
}

impl<F: Fn(&Tensor) -> Tensor + Send + Sync + 'static> Parametrization for F {
    fn make_parametrized(self, _: &dyn Module, value: &Tensor) -> Result<Parametrized> {
        let computed = no_grad(|| self(value));
        computed.check()?;
        if computed.dims() != value.dims() || computed.dtype() != value.dtype() {
            let (before, after) = (fact(value), fact(&computed));
            let message =
                format!("the function must keep shape and dtype, but makes {after} of {before}");
            return Err(Error::invalid("register_parametrization", message));
        }
        Parametrized::function(value, self)
    }
}

/// Returns a dim of a weight, counted from its first.
#[track_caller]
fn axis(called: &str, dim: i64, weight: &Tensor) -> Result<usize> {
    let n = weight.ndim() as i64;
    match (-n..n).contains(&dim) {
        true => Ok(dim.rem_euclid(n) as usize),
        false => {
            let message = format!("there is no dim {dim} in a weight of {n} dims");
            Err(Error::invalid(called, message))
        }
    }
}

/// Returns the parameter that a module holds itself under a name.
#[track_caller]
fn parameter(module: &dyn Module, called: &str, name: &str) -> Result<Var> {
    let members = module.members();
    let parameter = members.iter().find_map(|(known, member)| match member {
        Member::Parameter(var) if known == name => Some(var.clone()),
        _ => None,
    });
    parameter.ok_or_else(|| module.without(called, "parameter", name))
}

/// Computes a module's parameter from others from now on (`torch.nn.utils.parametrize.register_parametrization`): by
/// [`WeightNorm`], [`SpectralNorm`] or a function. Reads of the parameter give the computed value, whose gradient
/// reaches the others, and assignments of it are theirs. In its place the module has these, under the names
/// `parametrizations.weight.original` and the like. An optimiser has to be made afterwards.
///
/// ```
/// use kiln_nn::{Forward, Linear, Module, SpectralNorm, register_parametrization};
/// use kiln_tensor::{DType, Tensor};
/// let symmetric = Linear::new(3, 3)?;
/// register_parametrization(&symmetric, "weight", |x: &Tensor| x.triu() + x.triu_with(1).t())?;
/// assert_eq!(symmetric.weight.to_vec::<f32>()?, symmetric.weight.t().to_vec::<f32>()?);
///
/// let layer = Linear::new(3, 2)?;
/// register_parametrization(&layer, "weight", SpectralNorm::new().n_power_iterations(5))?;
/// let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["bias", "parametrizations.weight.original"]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the module itself has no such parameter, it is computed already, the function changes its shape, or inside
/// `compile`.
#[track_caller]
pub fn register_parametrization(
    module: &dyn Module,
    name: &str,
    parametrization: impl Parametrization,
) -> Result<()> {
    let called = "register_parametrization";
    let module = module.current();
    if is_recording() {
        return Err(Error::invalid(called, "inside compile: do it before"));
    }
    let var = parameter(module, called, name)?;
    if var.source().is_some() {
        let message = format!("{name:?} is computed already: remove_parametrizations comes first");
        return Err(Error::invalid(called, message));
    }
    let value = var.get().detach();
    value.check()?;
    let new = on_behalf_of_caller(SOURCE, || parametrization.make_parametrized(module, &value))?;
    for original in new.originals() {
        original.requires_grad_(var.requires_grad())?;
    }
    var.zero_grad();
    var.set_source(Some(Arc::new(new)));
    Ok(())
}

/// Makes a computed parameter an ordinary one again (`torch.nn.utils.parametrize.remove_parametrizations`). It keeps
/// its computed value, or its original if `leave_parametrized` is false.
///
/// # Errors
/// If the parameter is not computed, the value can't be, there are several originals of which none can stay, or inside
/// `compile`.
#[track_caller]
pub fn remove_parametrizations(
    module: &dyn Module,
    name: &str,
    leave_parametrized: bool,
) -> Result<()> {
    let called = "remove_parametrizations";
    let var = parameter(module.current(), called, name)?;
    let Some(p) = Parametrized::of_cell(&var) else {
        let message = format!("{name:?} is not parametrized");
        return Err(Error::invalid(called, message));
    };
    let originals = p.originals();
    let value = match (leave_parametrized, &originals[..]) {
        (true, _) => var.get(),
        (false, [one]) => one.get(),
        (false, many) => {
            let n = many.len();
            let message = format!("{name:?} has {n} originals: leave_parametrized must be true");
            return Err(Error::invalid(called, message));
        }
    };
    value.realize()?;
    var.set_source(None);
    var.requires_grad_(originals[0].requires_grad())?;
    var.assign(value.detach())
}

/// True if a parameter that the module holds itself is computed from others.
pub fn is_parametrized(module: &dyn Module) -> bool {
    !module.current().computed().is_empty()
}

/// Gives a layer's `weight` a length for each output (`torch.nn.utils.parametrizations.weight_norm`): see
/// [`WeightNorm`]. [`register_parametrization`] takes other dims and names.
///
/// ```
/// use kiln_nn::{Linear, Module, weight_norm};
/// let layer = weight_norm(Linear::new(20, 40))?;
/// assert_eq!(layer.get_parameter("parametrizations.weight.original0")?.shape()?, [40, 1]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`register_parametrization`].
#[track_caller]
pub fn weight_norm<M: Module>(layer: impl IntoModule<M>) -> Result<M> {
    let layer = layer.into_module()?;
    register_parametrization(&layer, "weight", WeightNorm::new())?;
    Ok(layer)
}

/// Divides a layer's `weight` by its spectral norm (`torch.nn.utils.parametrizations.spectral_norm`): see
/// [`SpectralNorm`]. [`register_parametrization`] takes other settings and names.
///
/// ```
/// use kiln_nn::{Conv2d, Forward, Kernel, LeakyReLU, Module, sequential, spectral_norm};
/// use kiln_tensor::{DType, Tensor};
/// let critic = sequential![spectral_norm(Conv2d::new(3, 8, Kernel::new(4).stride(2))), LeakyReLU::new(0.2)]?;
/// critic.call(Tensor::randn([1, 3, 8, 8], DType::F32)).sum(()).backward()?;
/// assert!(critic.get_parameter("0.parametrizations.weight.original")?.grad().is_some());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`register_parametrization`].
#[track_caller]
pub fn spectral_norm<M: Module>(layer: impl IntoModule<M>) -> Result<M> {
    let layer = layer.into_module()?;
    register_parametrization(&layer, "weight", SpectralNorm::new())?;
    Ok(layer)
}

/// A module, or the result of making one.
pub trait IntoModule<M> {
    #[doc(hidden)]
    fn into_module(self) -> Result<M>;
}

impl<M: Module> IntoModule<M> for M {
    fn into_module(self) -> Result<M> {
        Ok(self)
    }
}

impl<M: Module> IntoModule<M> for Result<M> {
    fn into_module(self) -> Result<M> {
        self
    }
}
