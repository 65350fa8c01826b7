//! What an update is made of.

use kiln_tensor::{DType, Tensor};

/// An optimiser's formula and the hyperparameters of one group.
///
/// Numbers are data of the compiled step: they may change between steps without a compilation. What
/// changes the formula itself (`nesterov`, `amsgrad`, whether a number is zero) is decided when a step
/// is recorded.
pub trait Rule: Send + Sync + 'static {
    /// PyTorch's name of the optimiser.
    fn name(&self) -> &'static str;

    /// The numbers and their names, `lr` first.
    fn numbers(&self) -> Vec<(&'static str, f64)>;

    /// The switches and their names.
    fn flags(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    /// What is wrong with the hyperparameters, where `value` gives the numbers by their names: asked
    /// when an optimiser is made and before a number changes.
    ///
    /// # Errors
    /// A message that names the hyperparameter.
    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String>;

    /// The tensors kept for each parameter, of its shape and dtype: their names and initial values.
    fn moments(&self) -> Vec<(&'static str, f64)>;

    /// Scalars that [`Rule::update`] needs, in f64: rank 0, or one an element of `step` (`[P]`, the
    /// number of steps each parameter has made, this one included).
    fn coefficients(&self, numbers: &Numbers, step: &Tensor) -> Vec<Tensor>;

    /// Whether [`Rule::update`] does nothing but record operations on its arguments, the same ones for all
    /// parameters of a dtype and shape as long as no number becomes zero or ceases to be: it is then asked
    /// once for all of them, not at every step.
    fn repeats(&self) -> bool {
        false
    }

    /// The new value of a parameter; replaces `moments`. Everything has one dtype (f32 for f16 and
    /// bf16 parameters), coefficients are of rank 0.
    fn update(
        &self,
        numbers: &Numbers,
        coefficients: Coefficients,
        parameter: &Tensor,
        gradient: &Tensor,
        moments: &mut [Tensor],
    ) -> Tensor;
}

/// The numbers of a group.
pub struct Numbers<'a> {
    pub(crate) values: &'a [(&'static str, f64)],
    /// `[K]` f64.
    pub(crate) data: Tensor,
}

impl Numbers<'_> {
    /// A number as data of the step: rank 0, f64. One the rule does not have is an error that the
    /// tensor carries.
    pub fn get(&self, name: &str) -> Tensor {
        let at = self.values.iter().position(|(n, _)| *n == name);
        self.data.select(0, at.map_or(i64::MAX, |i| i as i64))
    }

    /// Whether a number is not zero now. A formula may leave a term out that is.
    pub fn uses(&self, name: &str) -> bool {
        self.values.iter().any(|(n, v)| *n == name && *v != 0.0)
    }
}

/// The scalars of [`Rule::coefficients`] for one parameter, in order.
pub struct Coefficients(pub(crate) std::vec::IntoIter<Tensor>);

impl Coefficients {
    /// The next `N`.
    pub fn take<const N: usize>(&mut self) -> [Tensor; N] {
        std::array::from_fn(|_| self.next())
    }

    fn next(&mut self) -> Tensor {
        // A missing one is a tensor that does not fit anything, so that the step fails.
        let none = || Tensor::zeros([0], DType::F64).select(0, 0);
        self.0.next().unwrap_or_else(none)
    }
}

/// The gradient with PyTorch's first two steps applied: the sign of `maximize`, then the decay that
/// adds to the gradient, its coefficient the next one where `weight_decay` is in use.
pub(crate) fn decayed(
    numbers: &Numbers,
    maximize: bool,
    coefficients: &mut Coefficients,
    parameter: &Tensor,
    gradient: &Tensor,
) -> Tensor {
    let mut g = match maximize {
        true => gradient.neg(),
        false => gradient.clone(),
    };
    if numbers.uses("weight_decay") {
        let [decay] = coefficients.take();
        g += parameter * decay;
    }
    g
}

/// The coefficients that [`decayed`] takes.
pub(crate) fn decay(numbers: &Numbers) -> Vec<Tensor> {
    let decay = numbers.uses("weight_decay");
    decay
        .then(|| numbers.get("weight_decay"))
        .into_iter()
        .collect()
}

/// Says that a number must not be negative.
pub(crate) fn not_negative(name: &str, value: f64) -> Result<(), String> {
    match value >= 0.0 {
        true => Ok(()),
        false => Err(format!("{name} must not be negative, but is {value}")),
    }
}

/// Says that a number must be in [0, 1).
pub(crate) fn fraction(name: &str, value: f64) -> Result<(), String> {
    match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} must be in [0, 1), but is {value}")),
    }
}
