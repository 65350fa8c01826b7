//! The scale of a loss: a number on the device, and its updates.

use crate::optim::NamedState;
use kiln_tensor::{
    Device, Error, Result, Tensor, Var, assign_together, is_recording, options, profiler,
    set_device, warn, where_,
};
use serde::{Deserialize, Serialize};

options! {
    /// The options of a [`GradScaler`](super::GradScaler).
    Scaling () {
        /// The first scale.
        init_scale: f64 = 65536.0,
        /// The factor of the scale after `growth_interval` steps in a row that were not skipped: above 1.
        growth_factor: f64 = 2.0,
        /// The factor of the scale after a skipped step: below 1.
        backoff_factor: f64 = 0.5,
        /// The number of steps after which the scale grows.
        growth_interval: i64 = 2000i64,
        /// True if losses are scaled; otherwise a step is the optimiser's own.
        enabled: bool = true,
        /// The lower bound of the scale after a skipped step.
        min_scale: f64 = 0.0,
        /// The upper bound of the scale after growth.
        max_scale: f64 = f64::INFINITY,
    }
}

impl Scaling {
    /// Checks that the options are valid.
    fn check(&self) -> Result<(), String> {
        let wrong = |what: &str, must: &str, value: f64| {
            Err(format!("{what} must be {must}, but is {value}"))
        };
        if !(self.init_scale > 0.0 && self.init_scale.is_finite()) {
            return wrong("init_scale", "positive and finite", self.init_scale);
        }
        if !(self.growth_factor > 1.0 && self.growth_factor.is_finite()) {
            return wrong("growth_factor", "above 1", self.growth_factor);
        }
        if !(self.backoff_factor > 0.0 && self.backoff_factor < 1.0) {
            return wrong("backoff_factor", "in (0, 1)", self.backoff_factor);
        }
        if self.growth_interval < 1 {
            return wrong("growth_interval", "at least 1", self.growth_interval as f64);
        }
        if !(self.min_scale >= 0.0 && self.min_scale <= self.max_scale) {
            return wrong("min_scale", "in 0 to max_scale", self.min_scale);
        }
        Ok(())
    }

    /// Returns the numbers that may change without a compilation.
    fn numbers(&self) -> Tensor {
        let numbers = [
            self.growth_factor,
            self.backoff_factor,
            self.growth_interval as f64,
            self.min_scale,
            self.max_scale,
        ];
        Tensor::from_slice(&numbers, [numbers.len()])
    }
}

/// The number of skipped steps in a row after which there is a warning.
const WARNING_COUNT: i32 = 20;

/// Warns if many steps in a row were skipped, once for each series of them.
fn warn_of(counts: &[i32]) {
    if counts.get(1) == Some(&WARNING_COUNT) {
        warn(&format!(
            "a GradScaler has skipped {WARNING_COUNT} steps in a row: gradients are not finite, however small the scale is; \
             GradScaler::first_not_finite names the first parameter whose gradient is not, and detect_anomaly the \
             operation"
        ));
    }
}

/// The state of a scale, under the names of PyTorch's state dict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradScalerState {
    /// The scale.
    pub scale: f64,
    /// See [`Scaling::growth_factor`].
    pub growth_factor: f64,
    /// See [`Scaling::backoff_factor`].
    pub backoff_factor: f64,
    /// See [`Scaling::growth_interval`].
    pub growth_interval: i64,
    /// The number of steps in a row that were not skipped since the scale changed.
    #[serde(rename = "_growth_tracker")]
    pub growth_tracker: i64,
    /// The number of steps in a row that were skipped, and of all skipped steps.
    #[serde(default)]
    pub skipped: [i64; 2],
}

/// The scale, as state of the plans that use it.
pub(super) struct Scale {
    pub(super) options: Scaling,
    /// f32 of rank 0.
    scale: Var,
    /// i32 `[3]`: steps in a row that were not skipped, steps in a row that were, and skipped steps in all.
    counts: Var,
    /// f64 `[5]`.
    numbers: Var,
}

impl Scale {
    #[track_caller]
    pub(super) fn new(options: Scaling) -> Result<Scale> {
        if let Err(message) = options.check() {
            return Err(Error::invalid("GradScaler", message));
        }
        let _here = set_device(Device::Cpu);
        let scale = Scale {
            scale: Var::volatile(Tensor::from(options.init_scale as f32))?,
            counts: Var::volatile(Tensor::from([0i32; 3]))?,
            numbers: Var::volatile(options.numbers())?,
            options,
        };
        for state in scale.named_state() {
            state.var.set_name(&format!("GradScaler.{}", state.name));
        }
        scale.scale.watch(|scale| {
            if profiler::is_profiling()
                && let Ok(scale) = scale.item::<f32>()
            {
                profiler::note_number("GradScaler.scale", scale.into());
            }
        });
        // On a GPU, a step reads nothing to the host.
        scale.counts.watch(|counts| {
            if counts.device() == Device::Cpu || profiler::is_profiling() {
                counts.to_vec::<i32>().iter().for_each(|c| warn_of(c));
            }
        });
        Ok(scale)
    }

    /// Returns the current scale, f32 of rank 0, on its device.
    pub(super) fn get(&self) -> Tensor {
        self.scale.get()
    }

    /// Moves to the device of the losses.
    #[track_caller]
    pub(super) fn follow(&self, device: Device) -> Result<()> {
        match is_recording() && self.scale.device() != device {
            true => {
                let message = format!(
                    "the scale is on {} and the loss on {device}; move it in front of compile: scaler.to({device})",
                    self.scale.device()
                );
                Err(Error::invalid("scale", message))
            }
            false => self.to(device),
        }
    }

    /// Moves to a device.
    #[track_caller]
    pub(super) fn to(&self, device: Device) -> Result<()> {
        let cells = [&self.scale, &self.counts, &self.numbers];
        cells.into_iter().try_for_each(|cell| cell.to_(device))
    }

    /// Returns its device.
    pub(super) fn device(&self) -> Device {
        self.scale.device()
    }

    /// Grows or backs off. `found_inf` is a bool of rank 0, true if a step was skipped.
    #[track_caller]
    pub(super) fn update(&self, found_inf: &Tensor) -> Result<()> {
        let number = |i: i64| self.numbers.get().select(0, i);
        let (old, counts) = (self.scale.get(), self.counts.get());
        let wide = old.to_dtype(kiln_tensor::DType::F64);
        let steps = counts.select(0, 0) + 1;
        let grows = steps.to_dtype(wide.dtype()).eq(number(2));
        let grown = (&wide * number(0)).to_dtype(old.dtype());
        let largest = number(4).to_dtype(old.dtype());
        let grown = where_(grown.isfinite(), grown.minimum(largest), &old);
        let less = (&wide * number(1)).maximum(number(3)).to_dtype(old.dtype());
        let kept = where_(&grows, grown, &old);
        let zero = steps.zeros_like();
        let steps = where_(grows.logical_or(found_inf), &zero, steps);
        let skipped = found_inf.to_dtype(counts.dtype());
        let in_a_row = (counts.select(0, 1) + &skipped) * &skipped;
        let in_all = counts.select(0, 2) + &skipped;
        let counts = kiln_tensor::stack([steps, in_a_row, in_all], 0);
        let scale = where_(found_inf, less, kept);
        assign_together([(&self.scale, scale), (&self.counts, counts)])
    }

    /// Sets another scale.
    #[track_caller]
    pub(super) fn set(&self, scale: f64) -> Result<()> {
        if !(scale > 0.0 && scale.is_finite()) {
            let message = format!("the scale must be positive and finite, but is {scale}");
            return Err(Error::invalid("GradScaler", message));
        }
        let new = Tensor::from(scale as f32).to(self.device());
        self.scale.assign(new)?;
        self.settle()
    }

    /// Sets other numbers, from now on, in compiled steps too.
    #[track_caller]
    pub(super) fn set_options(&mut self, options: Scaling) -> Result<()> {
        if let Err(message) = options.check() {
            return Err(Error::invalid("GradScaler", message));
        }
        if is_recording() {
            let message = "its numbers can't change inside compile; set them between runs";
            return Err(Error::invalid("GradScaler", message));
        }
        self.numbers.assign(options.numbers().to(self.device()))?;
        self.options = options;
        Ok(())
    }

    /// Computes the scale, so that the next step begins with a value and has one plan.
    #[track_caller]
    pub(super) fn settle(&self) -> Result<()> {
        match is_recording() {
            true => Ok(()),
            false => self.scale.get().realize().map(drop),
        }
    }

    /// Returns the named cells. Elements have names where they are f64.
    pub(super) fn named_state(&self) -> Vec<NamedState> {
        let named = |name: &str, var: &Var, elements: &[&str]| NamedState {
            name: name.to_string(),
            var: var.clone(),
            elements: elements.iter().map(|e| e.to_string()).collect(),
        };
        let numbers = [
            "growth_factor",
            "backoff_factor",
            "growth_interval",
            "min_scale",
            "max_scale",
        ];
        vec![
            named("scale", &self.scale, &[]),
            named("counts", &self.counts, &[]),
            named("numbers", &self.numbers, &numbers),
        ]
    }

    /// Returns the scale and its counts, read to the host.
    #[track_caller]
    pub(super) fn state(&self) -> Result<GradScalerState> {
        let counts = self.counts.get().to_vec::<i32>()?;
        let count = |i: usize| i64::from(counts[i]);
        Ok(GradScalerState {
            scale: f64::from(self.scale.get().item::<f32>()?),
            growth_factor: self.options.growth_factor,
            backoff_factor: self.options.backoff_factor,
            growth_interval: self.options.growth_interval,
            growth_tracker: count(0),
            skipped: [count(1), count(2)],
        })
    }

    #[track_caller]
    pub(super) fn load(&mut self, state: &GradScalerState) -> Result<()> {
        let options = Scaling {
            growth_factor: state.growth_factor,
            backoff_factor: state.backoff_factor,
            growth_interval: state.growth_interval,
            ..self.options.clone()
        };
        self.set_options(options)?;
        self.set(state.scale)?;
        let [in_a_row, in_all] = state.skipped;
        let counts = [state.growth_tracker, in_a_row, in_all].map(|n| n as i32);
        self.counts.assign(Tensor::from(counts).to(self.device()))
    }
}
