//! Health of training: gradients, updates and activations by layer.

use crate::{SOURCE, lock};
use kiln_nn::{Hookable, Module};
use kiln_tensor::{
    DType, Error, HookHandles, Result, Tensor, Var, is_recording, keep, no_grad,
    on_behalf_of_caller, realize_first,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// The last activations by path: each kind of figure with its value.
type Seen = Arc<Mutex<BTreeMap<String, Vec<(Figure, Tensor)>>>>;

/// A figure of a layer or a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The root of the mean square of a layer's first output.
    Activation,
    /// The share of a ReLU's units that are 0 for the whole batch.
    DeadUnits,
    /// The deviation of the model's outputs over the batch, divided by the root of their mean square.
    Spread,
    /// The root of the mean square of a parameter.
    Weight,
    /// The root of the mean square of a parameter's gradient.
    Gradient,
    /// The change of a parameter since the report before, divided by the parameter: the root of mean squares of both.
    Update,
}

/// Watches a model while it trains; see [`Health::watch`].
pub struct Health {
    parameters: Vec<(String, Var)>,
    previous: Mutex<Vec<Tensor>>,
    figures: Seen,
    _hooks: HookHandles,
}

impl Health {
    /// Watches the layers of a model and their parameters until it is dropped. It keeps the parameters' values of the
    /// report before, and each call records a few reductions, which run with the next step.
    ///
    /// ```
    /// use kiln_nn::{Forward, Linear, Module, ReLU, optim::{Optimizer, SGD}, sequential};
    /// use kiln_observe::Health;
    /// use kiln_tensor::{DType, Tensor};
    ///
    /// let model = sequential!["fc": Linear::new(4, 8), "act": ReLU::new(), "head": Linear::new(8, 2)]?;
    /// let health = Health::watch(&model)?;
    /// let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
    /// model.call(Tensor::randn([16, 4], DType::F32)).square().mean(()).backward()?;
    /// optimizer.step()?;
    /// let report = health.report()?;
    /// println!("{report}"); // or writer.add_health(&report, step)?
    /// for warning in report.warnings() {
    ///     println!("{warning}");
    /// }
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a submodule without submodules has no storage for hooks.
    #[track_caller]
    pub fn watch(model: &impl Module) -> Result<Health> {
        let figures_by_path = Seen::default();
        let mut hooks = HookHandles::default();
        for (path, module) in model.as_module().named_modules() {
            let is_model = path.is_empty();
            if !is_model && !module.children().is_empty() {
                continue;
            }
            let is_relu = module.name().starts_with("ReLU");
            let figures_by_path = figures_by_path.clone();
            let hook = move |_: &dyn Module, _: &[Tensor], outputs: &[Tensor]| {
                let Some(y) = outputs.first().filter(|y| y.error().is_none()) else {
                    return;
                };
                if y.dtype().is_float() && !is_recording() {
                    let compute = || no_grad(|| output_figures(&y.detach(), is_model, is_relu));
                    let figures = on_behalf_of_caller(SOURCE, compute);
                    lock(&figures_by_path).insert(path.clone(), figures);
                }
            };
            // Without storage for hooks in the model, only its layers are observed.
            match module.register_forward_hook(hook) {
                Ok(hook) => hooks.0.push(hook),
                Err(_) if is_model => {}
                Err(e) => return Err(e),
            }
        }
        let parameters = model.named_parameters();
        Ok(Health {
            previous: Mutex::new(snapshots(&parameters)),
            parameters,
            figures: figures_by_path,
            _hooks: hooks,
        })
    }

    /// Returns figures of the last call, of the gradients that there are, and of the updates since the report before.
    /// Call it behind an optimiser's step, before gradients are cleared.
    ///
    /// # Errors
    /// If a value can't be computed, or inside `compile`, where there are no values.
    #[track_caller]
    pub fn report(&self) -> Result<HealthReport> {
        if is_recording() {
            let message =
                "inside compile there are no values; use Health around steps that are not compiled";
            return Err(Error::invalid("Health::report", message));
        }
        let (mut names, mut values) = (Vec::new(), Vec::new());
        let mut add = |name: &str, figure: Figure, value: Tensor| {
            names.push((name.to_string(), figure));
            values.push(value);
        };
        for (path, figures) in std::mem::take(&mut *lock(&self.figures)) {
            for (figure, value) in figures {
                add(&path, figure, value);
            }
        }
        let new = snapshots(&self.parameters);
        let previous = std::mem::replace(&mut *lock(&self.previous), new);
        let mut missing = Vec::new();
        on_behalf_of_caller(SOURCE, || {
            no_grad(|| {
                for ((name, var), old) in self.parameters.iter().zip(previous) {
                    let now = var.get().detach();
                    if old.dims() == now.dims() {
                        add(name, Figure::Update, rms(&(&now - &old)) / rms(&old));
                    }
                    add(name, Figure::Weight, rms(&now));
                    match var.grad() {
                        Some(grad) => add(name, Figure::Gradient, rms(&grad)),
                        None if var.requires_grad() => missing.push(name.clone()),
                        None => {}
                    }
                }
            })
        });
        realize_first(&values)?;
        let numbers = values.iter().map(Tensor::item::<f64>);
        let numbers: Vec<f64> = numbers.collect::<Result<_>>()?;
        let rows = names.into_iter().zip(numbers);
        Ok(HealthReport {
            rows: rows
                .map(|((name, figure), value)| (name, figure, value))
                .collect(),
            missing,
        })
    }
}

fn output_figures(y: &Tensor, is_model: bool, is_relu: bool) -> Vec<(Figure, Tensor)> {
    let mut figures = vec![(Figure::Activation, rms(y))];
    if is_relu && y.ndim() > 1 {
        // A unit is a channel, at all positions.
        let axes: Vec<i64> = (0..y.ndim() as i64).filter(|axis| *axis != 1).collect();
        let is_dead = y.le(0).to_dtype(DType::F64).amin(axes);
        figures.push((Figure::DeadUnits, is_dead.mean(())));
    }
    if is_model && y.ndim() > 0 {
        let y = y.to_dtype(DType::F64);
        let centred = &y - y.mean(keep(0));
        figures.push((Figure::Spread, rms(&centred) / rms(&y)));
    }
    figures
}

/// The root of the mean square, in f64.
fn rms(x: &Tensor) -> Tensor {
    x.to_dtype(DType::F64).square().mean(()).sqrt()
}

fn snapshots(parameters: &[(String, Var)]) -> Vec<Tensor> {
    parameters
        .iter()
        .map(|(_, var)| var.get().detach())
        .collect()
}

/// Figures of a model in training; see [`Health`]. It prints as a table.
#[derive(Clone, Debug)]
pub struct HealthReport {
    rows: Vec<(String, Figure, f64)>,
    missing: Vec<String>,
}

/// The updates of a parameter, relative to it, below which it stands still and above which it jumps.
const USUAL_UPDATES: (f64, f64) = (1e-8, 1.0);

/// The smallest share of the largest gradient, and the largest gradient.
const USUAL_GRADIENTS: (f64, f64) = (1e-6, 1e3);

/// The smallest and the largest activations.
const USUAL_ACTIVATIONS: (f64, f64) = (1e-6, 1e4);

impl HealthReport {
    /// The figures: the path of a layer or parameter, the kind, and the value.
    pub fn figures(&self) -> &[(String, Figure, f64)] {
        &self.rows
    }

    /// The tags and values for a log, such as `gradient/fc.weight`.
    pub fn scalars(&self) -> impl Iterator<Item = (String, f64)> {
        self.rows.iter().map(|(name, figure, value)| {
            let name = if name.is_empty() { "model" } else { name };
            (format!("{}/{name}", figure.name()), *value)
        })
    }

    /// Returns findings: figures that are not finite, layers whose gradients or activations vanish or explode,
    /// dead ReLUs, parameters that stand still or jump or have no gradient, and predictions that don't depend on the
    /// input.
    pub fn warnings(&self) -> Vec<String> {
        let gradients = self
            .rows
            .iter()
            .filter(|(_, figure, _)| *figure == Figure::Gradient);
        let largest = gradients.map(|(_, _, value)| *value).fold(0.0, f64::max);
        let missing = self
            .missing
            .iter()
            .map(|name| format!("{name} has no gradient"));
        let rows = self.rows.iter().filter_map(|(name, figure, value)| {
            let name = if name.is_empty() { "the model" } else { name };
            Some(format!("{name} {}", figure.wrong(*value, largest)?))
        });
        missing.chain(rows).collect()
    }
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Figure::Activation => "activation",
            Figure::DeadUnits => "dead_units",
            Figure::Spread => "spread",
            Figure::Weight => "weight",
            Figure::Gradient => "gradient",
            Figure::Update => "update",
        }
    }

    /// Returns the finding about a value, if it is unusual. `largest` is the largest gradient of the model.
    fn wrong(self, value: f64, largest: f64) -> Option<String> {
        // A parameter of zeros has no relative update, and outputs of zeros have no relative spread.
        let relative = matches!(self, Figure::Update | Figure::Spread);
        if !value.is_finite() && !relative {
            return Some(format!("has {} {value}", self.name()));
        }
        let (text, is_wrong) = match self {
            Figure::Activation if value > USUAL_ACTIVATIONS.1 => ("explodes: activations of", true),
            Figure::Activation => ("vanishes: activations of", value < USUAL_ACTIVATIONS.0),
            Figure::DeadUnits => ("has dead units, a share of", value > 0.5),
            Figure::Spread => (
                "gives the same for every input: a spread of",
                value < 1e-4 || value.is_nan(),
            ),
            Figure::Weight => ("", false),
            Figure::Gradient if value > USUAL_GRADIENTS.1 => ("explodes: a gradient of", true),
            Figure::Gradient => (
                "vanishes: a gradient of",
                value <= largest * USUAL_GRADIENTS.0,
            ),
            Figure::Update if value > USUAL_UPDATES.1 && value.is_finite() => {
                ("jumps: an update of", true)
            }
            Figure::Update => ("stands still: an update of", value < USUAL_UPDATES.0),
        };
        is_wrong.then(|| format!("{text} {value:.3e}"))
    }
}

impl fmt::Display for HealthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (tag, value)) in self.scalars().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{tag:40} {value:>12.4e}")?;
        }
        Ok(())
    }
}
