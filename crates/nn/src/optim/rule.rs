//! The parts of an update rule.

use super::scalars::{Scalars, Update};
use super::search::Search;
use kiln_tensor::{Error, Result, Tensor};
use std::ops::{Bound, RangeBounds};

/// An optimiser's formula and the hyperparameters of one group.
///
/// [`Rule::describe`] names the parts: numbers, switches, and the state that is kept for each parameter.
/// [`Rule::update`] reads these by name. Groups, saving and loading, changing numbers, and writing new values over
/// old ones need nothing more. Two names have a meaning: where a rule has a number `weight_decay` or a switch
/// `maximize`, they are already applied to the gradient (or to the parameter, see [`Description::decoupled`]).
///
/// Numbers are data of the compiled step: they may change between steps without a compilation. Anything that changes
/// the formula itself (`nesterov`, `amsgrad`, whether a number is zero) is decided when a step is recorded.
///
/// ```
/// use kiln_nn::optim::{Description, Optimizer, Rule, Update};
/// use kiln_tensor::{Tensor, Var};
///
/// /// Lion (Chen et al., 2023).
/// struct Lion {
///     lr: f64,
///     betas: (f64, f64),
///     weight_decay: f64,
/// }
///
/// impl Rule for Lion {
///     fn describe(&self) -> Description {
///         Description::new("Lion")
///             .number("lr", self.lr)
///             .fractions(["beta1", "beta2"], self.betas)
///             .number("weight_decay", self.weight_decay)
///             .decoupled(true)
///             .state("exp_avg")
///     }
///
///     fn update(&self, u: &mut Update) -> Tensor {
///         let (g, m) = (u.gradient(), u.state("exp_avg"));
///         let direction = (&g + (&m - &g) * u.number("beta1")).sign();
///         u.set("exp_avg", &g + (&m - &g) * u.number("beta2"));
///         u.parameter() - direction * u.number("lr")
///     }
/// }
///
/// let w = Var::parameter(Tensor::from([3.0f32, -2.0]))?;
/// let lion = Lion { lr: 0.1, betas: (0.9, 0.99), weight_decay: 0.0 };
/// let mut optimizer = Optimizer::new(&w, lion)?;
/// w.get().square().sum(()).backward()?;
/// optimizer.step()?;
/// assert_eq!(w.get().to_vec::<f32>()?, [2.9, -1.9]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait Rule: Send + Sync + 'static {
    /// Returns the name, the numbers and switches with their values, and the state of each parameter. Called once, when
    /// a group is made.
    fn describe(&self) -> Description;

    /// Checks the numbers taken together, where `value` returns each by its name. Called when a group is made and
    /// before a number changes, and only if each number is in its own range.
    ///
    /// # Errors
    /// A message that names the number.
    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        let _ = value;
        Ok(())
    }

    /// Names scalars that depend on numbers and steps alone. They are computed in f64, once for all parameters of the
    /// group, and [`Rule::update`] reads them like numbers.
    fn scalars(&self, scalars: &mut Scalars) {
        let _ = scalars;
    }

    /// Returns the new value of a parameter, and sets the new values of its state. It must only record operations on
    /// its inputs; see [`Rule::repeats`].
    fn update(&self, u: &mut Update) -> Tensor;

    /// True if [`Rule::update`] records the same operations for all parameters of one dtype and shape, as long as no
    /// number becomes zero or ceases to be zero. It is then called once for all of them, not at every step.
    fn repeats(&self) -> bool {
        true
    }

    /// Makes the step of a rule that evaluates the loss itself, as [`Description::by_search`] declares. Returns the
    /// loss before the step.
    ///
    /// # Errors
    /// If the loss can't be evaluated. The parameters then return to where they were.
    fn search(&self, search: &mut Search) -> Result<Tensor> {
        search.evaluate()
    }
}

/// The parts of a [`Rule`], by name.
#[derive(Clone, Debug)]
pub struct Description {
    pub(crate) name: &'static str,
    pub(crate) numbers: Vec<Number>,
    pub(crate) flags: Vec<(&'static str, bool)>,
    /// The tensors that are kept for each parameter.
    pub(crate) state: Vec<StateTensor>,
    /// The numbers that are kept for each parameter, with their initial values.
    pub(crate) counts: Vec<(&'static str, f64)>,
    pub(crate) decoupled: bool,
    pub(crate) by_search: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Number {
    pub name: &'static str,
    pub value: f64,
    range: (Bound<f64>, Bound<f64>),
}

/// A tensor that is kept for each parameter.
#[derive(Clone, Debug)]
pub(crate) struct StateTensor {
    pub name: &'static str,
    /// The initial value of its elements.
    pub value: f64,
    /// Returns its shape for a parameter's shape, or `None` if such a parameter has no state of this kind.
    pub shape: fn(&[usize]) -> Option<Vec<usize>>,
}

impl Description {
    /// A description with only a name: PyTorch's, where it has one.
    pub fn new(name: &'static str) -> Description {
        Description {
            name,
            numbers: Vec::new(),
            flags: Vec::new(),
            state: Vec::new(),
            counts: Vec::new(),
            decoupled: false,
            by_search: false,
        }
    }

    /// Adds a number that must not be negative, such as `lr`.
    pub fn number(self, name: &'static str, value: f64) -> Description {
        self.number_in(name, value, 0.0..)
    }

    /// Adds a number that must be in a range; `..` allows any.
    pub fn number_in(
        mut self,
        name: &'static str,
        value: f64,
        range: impl RangeBounds<f64>,
    ) -> Description {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        self.numbers.push(Number { name, value, range });
        self
    }

    /// Adds two numbers in [0, 1), such as `beta1` and `beta2`.
    pub fn fractions(self, names: [&'static str; 2], values: (f64, f64)) -> Description {
        self.number_in(names[0], values.0, 0.0..1.0)
            .number_in(names[1], values.1, 0.0..1.0)
    }

    /// Adds a switch, such as `nesterov`.
    pub fn flag(mut self, name: &'static str, on: bool) -> Description {
        self.flags.push((name, on));
        self
    }

    /// Adds a tensor that is kept for each parameter, with the parameter's shape and dtype. It begins with zeros.
    /// `None` adds nothing.
    pub fn state(self, name: impl Into<Option<&'static str>>) -> Description {
        match name.into() {
            Some(name) => self.state_of(name, 0.0),
            None => self,
        }
    }

    /// Adds such a tensor that begins with this value.
    pub fn state_of(mut self, name: &'static str, value: f64) -> Description {
        let shape = |shape: &[usize]| Some(shape.to_vec());
        self.state.push(StateTensor { name, value, shape });
        self
    }

    /// Adds a kept tensor whose shape is a function of the parameter's. It begins with zeros; there is none where the
    /// function returns `None`.
    pub fn state_shaped(
        mut self,
        name: &'static str,
        shape: fn(&[usize]) -> Option<Vec<usize>>,
    ) -> Description {
        let value = 0.0;
        self.state.push(StateTensor { name, value, shape });
        self
    }

    /// Adds a number that is kept for each parameter, with its initial value. [`Rule::scalars`] reads it and sets the
    /// next.
    pub fn count(mut self, name: &'static str, value: f64) -> Description {
        self.counts.push((name, value));
        self
    }

    /// Sets whether `weight_decay` shrinks the parameter (times `1 − lr · weight_decay`) rather than adding to its
    /// gradient.
    pub fn decoupled(mut self, decoupled: bool) -> Description {
        self.decoupled = decoupled;
        self
    }

    /// Declares that a step is [`Rule::search`].
    pub fn by_search(mut self) -> Description {
        self.by_search = true;
        self
    }

    /// True if a switch is on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.flags.iter().any(|(n, value)| *n == name && *value)
    }

    /// Checks that each number is in its range.
    pub(crate) fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        let mut numbers = self.numbers.iter();
        numbers.try_for_each(|n| n.check(value(n.name)))
    }

    /// Makes an error of this rule with this message.
    #[track_caller]
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        Error::invalid(self.name, message.into())
    }
}

impl Number {
    fn check(&self, value: f64) -> Result<(), String> {
        if self.range.contains(&value) {
            return Ok(());
        }
        let must = match self.range {
            (Bound::Included(0.0), Bound::Unbounded) => "not be negative".to_string(),
            (Bound::Included(a), Bound::Unbounded) => format!("be at least {a}"),
            (Bound::Excluded(a), Bound::Unbounded) => format!("be above {a}"),
            (Bound::Unbounded, Bound::Included(b)) => format!("be at most {b}"),
            (Bound::Unbounded, Bound::Excluded(b)) => format!("be below {b}"),
            (Bound::Unbounded, Bound::Unbounded) => "be a number".to_string(),
            (Bound::Included(a), Bound::Included(b)) => format!("be in [{a}, {b}]"),
            (Bound::Included(a), Bound::Excluded(b)) => format!("be in [{a}, {b})"),
            (Bound::Excluded(a), Bound::Included(b)) => format!("be in ({a}, {b}]"),
            (Bound::Excluded(a), Bound::Excluded(b)) => format!("be in ({a}, {b})"),
        };
        Err(format!("{} must {must}, but is {value}", self.name))
    }
}

/// Checks that a group that was made without momentum gets none later: it has no state for it.
pub(crate) fn check_momentum(initial: f64, now: f64) -> Result<(), String> {
    match initial == 0.0 && now != 0.0 {
        true => Err("a group that was made without momentum keeps none; make it with some".into()),
        false => Ok(()),
    }
}
