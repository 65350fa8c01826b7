//! Apex's `amp`: a model and its optimisers, prepared by a level.

use super::level::{Initialize, LossScale, Properties};
use super::scale::{Scale, Scaling};
use super::unscale::{self, unscale};
use crate::optim::Optimizer;
use crate::{Module, is_batch_norm};
use kiln_tensor::{
    Autocast, DType, Error, ErrorKind, Flat, Nest, Result, Tensor, Var, options, set_autocast,
    stack,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::panic::Location;

/// The state of a training in mixed precision, as in Apex's `amp`; [`initialize`] makes it.
pub struct Amp {
    properties: Properties,
    enabled: bool,
    half: DType,
    cast_model_outputs: Option<DType>,
    /// The scale of each loss.
    scales: Vec<Scale>,
    /// The overflows of each loss that its scale has not processed yet.
    delayed_checks: Vec<Option<Tensor>>,
    /// The optimisers, by number.
    optimizers: Vec<u64>,
}

/// Casts a model of f32 in place and prepares its optimisers, for a level or for [`Initialize`] with more keywords.
///
/// ```
/// use kiln_nn::amp::{self, OptLevel};
/// use kiln_nn::optim::{Optimizer, SGD};
/// use kiln_nn::{Forward, Linear, Module};
/// use kiln_tensor::{Tensor, randn};
/// let model = Linear::new(8, 3)?;
/// let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
/// let mut amp = amp::initialize(&model, &mut [&mut optimizer], OptLevel::O1)?;
/// let (x, y) = (randn([4, 8]), Tensor::from([0i64, 2, 1, 0]));
/// optimizer.zero_grad();
/// let loss = amp.forward(&x, |x| model.call(x).cross_entropy(&y));
/// amp.scale_loss(&loss, &mut [&mut optimizer], |scaled| scaled.backward())?;
/// optimizer.step()?; // changes nothing if a gradient is not finite
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the model is not in f32 or is wrapped for data parallel training, an optimiser was given before, keywords
/// contradict each other, or inside `compile`.
#[track_caller]
pub fn initialize(
    model: &dyn Module,
    optimizers: &mut [&mut Optimizer],
    options: impl Into<Initialize>,
) -> Result<Amp> {
    let options = options.into();
    let properties = options.properties()?;
    if optimizers.iter().any(|o| o.amp.initialized) {
        let message =
            "an optimiser was given to initialize before; call it once, with all optimisers";
        return Err(Error::invalid("amp::initialize", message));
    }
    if let Some(name) = model.wrapper() {
        let message = format!(
            "the model is in a {name}: call amp::initialize first, and wrap the model then: `{name}::new(model)?`"
        );
        return Err(Error::invalid("amp::initialize", message));
    }
    let narrow = |(_, p): &(String, Var)| p.dtype().is_float() && p.dtype() != DType::F32;
    if options.enabled
        && let Some((name, p)) = model.named_parameters().iter().find(|p| narrow(p))
    {
        let dtype = p.dtype();
        let message = format!("`{name}` is {dtype}: give it a model of f32, which it casts");
        return Err(Error::invalid("amp::initialize", message));
    }
    let scaling = match properties.loss_scale {
        LossScale::Dynamic => Scaling::new()
            .min_scale(options.min_loss_scale.unwrap_or(0.0))
            .max_scale(options.max_loss_scale),
        LossScale::Fixed(scale) => Scaling::new().init_scale(scale),
    };
    let scales: Vec<Scale> = (0..options.num_losses)
        .map(|_| Scale::new(scaling.clone()))
        .collect::<Result<_>>()?;
    if let Some(p) = model.parameters().first().filter(|_| options.enabled) {
        scales.iter().try_for_each(|scale| scale.to(p.device()))?;
    }
    let mut amp = Amp {
        properties,
        enabled: options.enabled,
        half: options.half,
        cast_model_outputs: options.cast_model_outputs,
        delayed_checks: scales.iter().map(|_| None).collect(),
        scales,
        optimizers: Vec::new(),
    };
    if !options.enabled {
        amp.optimizers = optimizers.iter().map(|o| o.id()).collect();
        return Ok(amp);
    }
    if let Some(dtype) = properties.cast_model_type {
        match properties.keep_batchnorm_fp32 {
            Some(true) => model.to_dtype_where(dtype, &|m| !is_batch_norm(m))?,
            _ => model.to_dtype(dtype)?,
        }
    }
    for optimizer in optimizers {
        if properties.master_weights == Some(true) {
            optimizer.keep_master_weights()?;
        }
        optimizer.amp.initialized = true;
        amp.optimizers.push(optimizer.id());
    }
    if options.verbosity > 0 {
        eprintln!("{properties}");
    }
    Ok(amp)
}

options! {
    /// The options of [`Amp::scale_loss_with`].
    ScaleLoss () {
        /// The number of the loss.
        loss_id: i64 = 0i64,
        /// True if gradients stay scaled, because more gradients of the same loss are to be added before the step.
        delay_unscale: bool = false,
        /// True if the scale reacts to an overflow only at the next loss of this number.
        delay_overflow_check: bool = false,
    }
}

impl Amp {
    /// Returns the chosen properties.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Calls `f` with inputs, as a model of this level is called. Inputs of floats, in any structure, are cast to the
    /// model's dtype. Under O1, operations in the lists of [`autocast`](kiln_tensor::autocast) are cast. Outputs of
    /// floats are cast to `cast_model_outputs`, or to f32 where the model was cast.
    #[track_caller]
    pub fn forward<I: Nest, O: Nest<Owned = O>>(
        &self,
        inputs: I,
        f: impl FnOnce(I::Owned) -> O,
    ) -> O {
        let cast = |flat: &Flat, dtype: Option<DType>| -> Vec<Tensor> {
            let dtype = dtype.filter(|_| self.enabled);
            let cast = |t: &Tensor| match dtype.filter(|_| t.dtype().is_float()) {
                Some(dtype) => t.to_dtype(dtype),
                None => t.clone(),
            };
            flat.tensors().iter().map(cast).collect()
        };
        let model = self.properties.cast_model_type;
        let leaves = Flat::of(&inputs);
        let leaves = leaves.build::<I>(cast(&leaves, model));
        let outputs = {
            let patched = self.enabled && self.properties.patch_torch_functions;
            let casts = match patched {
                true => Some(Autocast::new(self.half)),
                false => kiln_tensor::current_autocast(),
            };
            let _casts = set_autocast(casts);
            f(leaves)
        };
        let flat = Flat::of(&outputs);
        let dtype = self.cast_model_outputs.or(model.map(|_| DType::F32));
        flat.build::<O>(cast(&flat, dtype))
    }

    /// Calls `f`, which is to call `backward`, with the loss in f32 times its scale. Then unscales the gradients of the
    /// optimisers. If one is not finite, their next steps change nothing.
    ///
    /// # Errors
    /// Those of `f`, or if an optimiser was not given to [`initialize`].
    #[track_caller]
    pub fn scale_loss(
        &mut self,
        loss: &Tensor,
        optimizers: &mut [&mut Optimizer],
        f: impl FnOnce(Tensor) -> Result<()>,
    ) -> Result<()> {
        self.scale_loss_with(loss, optimizers, ScaleLoss::new(), f)
    }

    /// [`Amp::scale_loss`] of one of several losses, or of a part of one.
    ///
    /// # Errors
    /// As [`Amp::scale_loss`], or if there is no loss of this number.
    #[track_caller]
    pub fn scale_loss_with(
        &mut self,
        loss: &Tensor,
        optimizers: &mut [&mut Optimizer],
        options: ScaleLoss,
        f: impl FnOnce(Tensor) -> Result<()>,
    ) -> Result<()> {
        self.check(optimizers, &options)?;
        if !self.enabled {
            return f(loss.clone());
        }
        let dynamic = self.properties.loss_scale == LossScale::Dynamic;
        let masters = optimizers.iter().any(|o| o.keeps_master_weights());
        let wide = loss.to_dtype(DType::F32);
        if self.properties.loss_scale == LossScale::Fixed(1.0) && !masters {
            return f(wide);
        }
        let scale = &self.scales[options.loss_id as usize];
        scale.follow(loss.device())?;
        // Unscaled gradients are stashed, and are added again afterwards.
        let stashed: Vec<Vec<(Var, Tensor)>> = match options.delay_unscale {
            true => Vec::new(),
            false => optimizers.iter().map(|o| take_gradients(o)).collect(),
        };
        let inverse = unscale::inverse(&scale.get());
        {
            let _casts = set_autocast(None);
            f(wide * scale.get().to(loss.device()))?;
        }
        if options.delay_unscale {
            optimizers.iter_mut().for_each(|o| o.amp.scaled = true);
            return Ok(());
        }
        let mut flags = Vec::new();
        for (optimizer, stashed) in optimizers.iter_mut().zip(stashed) {
            let found_inf = unscale(optimizer, &inverse, true)?;
            add_back(stashed)?;
            optimizer.amp.scaled = false;
            if let Some(found_inf) = found_inf.filter(|_| dynamic) {
                flags.push(found_inf.clone());
                let before = optimizer.amp.skip.take();
                optimizer.amp.skip = Some(match before {
                    Some(before) => found_inf.logical_or(before),
                    None => found_inf,
                });
            }
        }
        match flags.is_empty() {
            true => Ok(()),
            false => self.overflowed(stack(flags, 0).any(()), &options),
        }
    }

    /// Updates the scale of a loss, now or the next time; `found_inf` is true if gradients were not finite.
    #[track_caller]
    fn overflowed(&mut self, found_inf: Tensor, options: &ScaleLoss) -> Result<()> {
        let delayed_checks = &mut self.delayed_checks[options.loss_id as usize];
        let found_inf = match delayed_checks.take() {
            Some(before) => found_inf.logical_or(before),
            None => found_inf,
        };
        if options.delay_overflow_check {
            *delayed_checks = Some(found_inf);
            return Ok(());
        }
        let _casts = set_autocast(None);
        self.scales[options.loss_id as usize].update(&found_inf)
    }

    #[track_caller]
    fn check(&self, optimizers: &[&mut Optimizer], options: &ScaleLoss) -> Result<()> {
        let loc = Location::caller();
        let wrong = |message: String| {
            Err(Error::new(
                ErrorKind::Value,
                "amp::scale_loss",
                message,
                loc,
            ))
        };
        if optimizers
            .iter()
            .any(|o| !self.optimizers.contains(&o.id()))
        {
            return wrong(
                "this optimiser was not given to amp::initialize: call that with it first".into(),
            );
        }
        if !(0..self.scales.len() as i64).contains(&options.loss_id) {
            return wrong(format!(
                "there is no loss {}: initialize was called with num_losses {}",
                options.loss_id,
                self.scales.len()
            ));
        }
        Ok(())
    }

    /// Returns the scale of a loss, read to the host.
    ///
    /// # Errors
    /// If there is no loss of this number, or the scale can't be computed.
    #[track_caller]
    pub fn loss_scale(&self, loss_id: usize) -> Result<f64> {
        match self.scales.get(loss_id) {
            Some(scale) => Ok(scale.state()?.scale),
            None => Err(Error::invalid(
                "loss_scale",
                format!("there is no loss {loss_id}"),
            )),
        }
    }

    /// Returns the scales of all losses, read to the host.
    ///
    /// # Errors
    /// If they can't be computed, or inside `compile`.
    #[track_caller]
    pub fn state_dict(&self) -> Result<AmpState> {
        let mut state = AmpState::default();
        for (i, scale) in self.scales.iter().enumerate() {
            let kept = scale.state()?;
            let kept = LossScalerState {
                loss_scale: kept.scale,
                unskipped: kept.growth_tracker,
            };
            state.0.insert(format!("loss_scaler{i}"), kept);
        }
        Ok(state)
    }

    /// Loads a state.
    ///
    /// # Errors
    /// If its number of losses differs, a scale is invalid, or inside `compile`.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &AmpState) -> Result<()> {
        if state.0.len() != self.scales.len() {
            let message = format!(
                "a state of {} losses can't be loaded into one of {}; see num_losses",
                state.0.len(),
                self.scales.len()
            );
            return Err(Error::invalid("amp::load_state_dict", message));
        }
        for (i, scale) in self.scales.iter_mut().enumerate() {
            let name = format!("loss_scaler{i}");
            let Some(kept) = state.0.get(&name) else {
                let message = format!("the state has no {name}");
                return Err(Error::invalid("amp::load_state_dict", message));
            };
            let mut states = scale.state()?;
            (states.scale, states.growth_tracker) = (kept.loss_scale, kept.unskipped);
            scale.load(&states)?;
        }
        Ok(())
    }
}

/// The scales of a training's losses, as Apex's `amp.state_dict()` has them: `loss_scaler0`, …
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AmpState(pub BTreeMap<String, LossScalerState>);

/// The scale of one loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScalerState {
    /// The scale.
    pub loss_scale: f64,
    /// The number of steps in a row that were not skipped since the scale changed.
    pub unskipped: i64,
}

/// Returns the cells that an optimiser's steps update: master weights, and parameters that have none.
pub fn master_params(optimizer: &Optimizer) -> Vec<Var> {
    optimizer.master_params()
}

/// Removes and returns the unscaled gradients.
fn take_gradients(optimizer: &Optimizer) -> Vec<(Var, Tensor)> {
    let mut stashed = Vec::new();
    if optimizer.amp.scaled {
        return stashed;
    }
    for (p, master) in optimizer.with_masters() {
        let target = master.unwrap_or(p);
        if let Some(g) = target.grad() {
            stashed.push((target.clone(), g));
        }
        p.zero_grad();
        target.zero_grad();
    }
    stashed
}

/// Adds gradients to the present ones.
#[track_caller]
fn add_back(stashed: Vec<(Var, Tensor)>) -> Result<()> {
    for (var, earlier) in stashed {
        let sum = match var.grad() {
            Some(current) => kiln_tensor::no_grad(|| earlier + current),
            None => earlier,
        };
        var.set_grad(sum)?;
    }
    Ok(())
}
