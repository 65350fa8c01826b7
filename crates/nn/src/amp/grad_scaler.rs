//! The scaler of losses and gradients.

use super::scale::{GradScalerState, Scale, Scaling};
use super::unscale::{self, unscale};
use crate::optim::{NamedState, Optimizer};
use kiln_tensor::{
    AsTensor, Device, Error, Result, Tensor, is_recording, set_autocast, set_device,
    set_grad_enabled, stack,
};

/// Scales losses, so that gradients in f16 do not vanish, and skips the steps whose gradients overflow
/// (`torch.amp.GradScaler`); see the [module](super).
///
/// A step is skipped where it runs, by a flag of the step. By this flag the plan skips the updates
/// ([`assign_unless`](kiln_tensor::assign_unless)) and selects the new scale. A GPU's steps read nothing on the host,
/// and inside `compile` all of it is part of the plan.
///
/// After 20 skipped steps in a row there is a warning ([`set_warning_hook`](kiln_tensor::set_warning_hook)); on a GPU,
/// only while it is profiled. A profile has the scale of each of its steps
/// ([`Profile::numbers`](kiln_tensor::profiler::Profile::numbers)).
pub struct GradScaler {
    scale: Scale,
    /// Optimisers between `unscale_` and [`GradScaler::update`], by number.
    optimizers: Vec<(u64, Progress)>,
    /// True if these belong to a function being compiled.
    recorded: bool,
}

/// The progress of an optimiser's step.
struct Progress {
    /// A bool, true if a gradient was not finite.
    found_inf: Tensor,
    stepped: bool,
}

impl GradScaler {
    /// Makes a scaler with PyTorch's defaults: a scale of 65536, doubled every 2000 steps and halved after a skipped
    /// one.
    ///
    /// # Panics
    /// Never.
    pub fn new() -> GradScaler {
        GradScaler::with(Scaling::new()).expect("the defaults are right, and nothing is compiled")
    }

    /// Makes a scaler with other numbers.
    ///
    /// # Errors
    /// If a number is out of its range, or inside `compile`.
    #[track_caller]
    pub fn with(options: Scaling) -> Result<GradScaler> {
        Ok(GradScaler {
            scale: Scale::new(options)?,
            optimizers: Vec::new(),
            recorded: false,
        })
    }

    /// True if losses are scaled.
    pub fn is_enabled(&self) -> bool {
        self.scale.options.enabled
    }

    /// Moves its state to a device. Outside of `compile`, it follows the losses.
    ///
    /// # Errors
    /// If it can't be moved, or inside `compile`.
    #[track_caller]
    pub fn to(&self, device: Device) -> Result<()> {
        self.scale.to(device)
    }

    /// Returns a loss, or a part of one, times the scale; its backward pass gives scaled gradients. Inside `compile` it
    /// is an error if the scaler is on another device; see [`GradScaler::to`].
    #[track_caller]
    pub fn scale(&self, output: impl AsTensor) -> Tensor {
        let output: &Tensor = &output.as_tensor();
        if !self.is_enabled() {
            return output.clone();
        }
        if let Err(e) = self.scale.follow(output.device()) {
            return Tensor::from_error(e);
        }
        let _casts = set_autocast(None);
        output * self.scale.get().to(output.device())
    }

    /// Returns the scale as a tensor, f32 of rank 0 (1 if scaling is disabled), without reading it. It serves to
    /// unscale gradients by hand, such as those of a penalty.
    #[track_caller]
    pub fn scale_tensor(&self) -> Tensor {
        match self.is_enabled() {
            true => self.scale.get(),
            false => {
                let _anywhere = set_device(Device::Cpu);
                Tensor::from(1.0f32)
            }
        }
    }

    /// Divides the gradients of an optimiser by the scale, to clip or inspect them before [`GradScaler::step`], which
    /// otherwise does so itself. Gradients of parameters with master weights become the master weights'
    /// ([`Optimizer::master_params`]).
    ///
    /// # Errors
    /// If the optimiser's gradients are unscaled already, its step is done, it has no gradients, or parameters of f16
    /// have no master weights.
    #[track_caller]
    pub fn unscale_(&mut self, optimizer: &Optimizer) -> Result<()> {
        if !self.is_enabled() {
            return Ok(());
        }
        match self.progress(optimizer).map(|p| p.stepped) {
            Some(false) => {
                let message = "the gradients of this optimiser are unscaled already; call update() behind its step";
                return Err(Error::invalid("unscale_", message));
            }
            Some(true) => {
                let message =
                    "comes before step(), which this optimiser has made; call update() first";
                return Err(Error::invalid("unscale_", message));
            }
            None => {}
        }
        let inverse = unscale::inverse(&self.scale.get());
        let Some(found_inf) = unscale(optimizer, &inverse, false)? else {
            let message =
                "no parameter of this optimiser has a gradient; call scale(loss).backward() before";
            return Err(Error::invalid("unscale_", message));
        };
        let stepped = false;
        self.optimizers
            .push((optimizer.id(), Progress { found_inf, stepped }));
        Ok(())
    }

    /// Makes the optimiser's step with unscaled gradients; it changes nothing if one of them is not finite.
    ///
    /// # Errors
    /// Those of [`GradScaler::unscale_`] and [`Optimizer::step`]. Also if the optimiser has made a step since the last
    /// [`GradScaler::update`], or its rule evaluates the loss itself.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut Optimizer) -> Result<()> {
        if !self.is_enabled() {
            return optimizer.step();
        }
        if optimizer.searches() {
            let message = "an optimiser that evaluates the loss itself can't be scaled";
            return Err(Error::invalid("GradScaler::step", message));
        }
        match self.progress(optimizer).map(|p| p.stepped) {
            Some(true) => {
                let message = "this optimiser has made its step; call update() before the next one";
                return Err(Error::invalid("GradScaler::step", message));
            }
            Some(false) => {}
            None => self.unscale_(optimizer)?,
        }
        let id = optimizer.id();
        let Some((_, progress)) = self.optimizers.iter_mut().find(|(i, _)| *i == id) else {
            return Ok(()); // unscaled above
        };
        optimizer.step_unless(Some(&progress.found_inf))?;
        progress.stepped = true;
        Ok(())
    }

    /// Computes the next scale: smaller if a step was skipped, larger after enough that were not. Call it once per
    /// iteration, after the steps of all optimisers.
    ///
    /// # Errors
    /// If no gradients were unscaled since the last call.
    #[track_caller]
    pub fn update(&mut self) -> Result<()> {
        if !self.is_enabled() {
            return Ok(());
        }
        self.forget_other_recordings();
        if self.optimizers.is_empty() {
            let message =
                "nothing was unscaled since the last update(); call step(&mut optimizer) before";
            return Err(Error::invalid("GradScaler::update", message));
        }
        let (_mode, _casts) = (set_grad_enabled(false), set_autocast(None));
        let device = self.scale.device();
        let flags = self
            .optimizers
            .drain(..)
            .map(|(_, p)| p.found_inf.to(device));
        let found_inf = stack(flags, 0).any(());
        self.scale.update(&found_inf)?;
        self.scale.settle()
    }

    /// Sets the scale (PyTorch's `update(new_scale)`).
    ///
    /// # Errors
    /// If it is not positive and finite.
    #[track_caller]
    pub fn update_to(&mut self, scale: f64) -> Result<()> {
        self.optimizers.clear();
        self.scale.set(scale)
    }

    /// Returns the scale, read to the host; 1 if scaling is disabled.
    ///
    /// # Errors
    /// If it can't be computed, or inside `compile`.
    #[track_caller]
    pub fn get_scale(&self) -> Result<f64> {
        match self.is_enabled() {
            true => Ok(self.scale.state()?.scale),
            false => Ok(1.0),
        }
    }

    /// Returns the number of the last steps in a row that were skipped, and of all skipped steps; both are read to the
    /// host.
    ///
    /// # Errors
    /// As [`GradScaler::get_scale`].
    #[track_caller]
    pub fn skipped(&self) -> Result<[i64; 2]> {
        Ok(self.scale.state()?.skipped)
    }

    /// Returns the name of the first parameter of an optimiser, in its order, whose gradient is not finite: the reason
    /// why a step was skipped. It reads the gradients; `detect_anomaly` names the operation.
    ///
    /// # Errors
    /// If a gradient can't be computed.
    #[track_caller]
    pub fn first_not_finite(&self, optimizer: &Optimizer) -> Result<Option<String>> {
        unscale::first_not_finite(optimizer)
    }

    /// See [`Scaling::growth_factor`].
    pub fn get_growth_factor(&self) -> f64 {
        self.scale.options.growth_factor
    }

    /// Sets another growth factor, in compiled steps too.
    ///
    /// # Errors
    /// If it is not above 1, or inside `compile`.
    #[track_caller]
    pub fn set_growth_factor(&mut self, factor: f64) -> Result<()> {
        self.scale
            .set_options(self.scale.options.clone().growth_factor(factor))
    }

    /// See [`Scaling::backoff_factor`].
    pub fn get_backoff_factor(&self) -> f64 {
        self.scale.options.backoff_factor
    }

    /// Sets another back-off factor, in compiled steps too.
    ///
    /// # Errors
    /// If it is not in (0, 1), or inside `compile`.
    #[track_caller]
    pub fn set_backoff_factor(&mut self, factor: f64) -> Result<()> {
        self.scale
            .set_options(self.scale.options.clone().backoff_factor(factor))
    }

    /// See [`Scaling::growth_interval`].
    pub fn get_growth_interval(&self) -> i64 {
        self.scale.options.growth_interval
    }

    /// Sets another growth interval, in compiled steps too.
    ///
    /// # Errors
    /// If it is below 1, or inside `compile`.
    #[track_caller]
    pub fn set_growth_interval(&mut self, interval: i64) -> Result<()> {
        self.scale
            .set_options(self.scale.options.clone().growth_interval(interval))
    }

    /// Returns the state that is needed to resume training, read to the host; `Checkpoint::value` takes it.
    ///
    /// # Errors
    /// If it can't be computed, or inside `compile`.
    #[track_caller]
    pub fn state_dict(&self) -> Result<GradScalerState> {
        self.scale.state()
    }

    /// Loads a state.
    ///
    /// # Errors
    /// If a number is out of its range, or inside `compile`.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &GradScalerState) -> Result<()> {
        self.optimizers.clear();
        self.scale.load(state)
    }

    /// The cells of its state, in the form of [`Optimizer::named_state`]: `scale`, `counts`, `numbers`. An exporter
    /// names them in a package.
    pub fn named_state(&self) -> Vec<NamedState> {
        self.scale.named_state()
    }

    /// Returns the progress of an optimiser since the last update.
    fn progress(&mut self, optimizer: &Optimizer) -> Option<&Progress> {
        self.forget_other_recordings();
        let id = optimizer.id();
        let own = self.optimizers.iter().find(|(i, _)| *i == id);
        own.map(|(_, progress)| progress)
    }

    /// Forgets the steps begun so far if recording has started or ended since.
    fn forget_other_recordings(&mut self) {
        if self.recorded != is_recording() {
            self.recorded = is_recording();
            self.optimizers.clear();
        }
    }
}

impl Default for GradScaler {
    fn default() -> GradScaler {
        GradScaler::new()
    }
}
