//! What an update is made of.

use super::scalars::{Scalars, Update};
use super::search::Search;
use kiln_tensor::{Error, Result, Tensor};
use std::ops::{Bound, RangeBounds};

/// An optimiser's formula and the hyperparameters of one group.
///
/// [`Rule::describe`] names what there is: numbers, switches, and the state that is kept for each parameter.
/// [`Rule::update`] asks for these by name. Groups, saving and loading, changing numbers, and writing new values
/// over old ones need nothing more. Two names mean something: where a rule has a number `weight_decay` or a
/// switch `maximize`, the gradient (or the parameter, see [`Description::decoupled`]) comes with them applied.
///
/// Numbers are data of the compiled step: they may change between steps without a compilation. What
/// changes the formula itself (`nesterov`, `amsgrad`, whether a number is zero) is decided when a step
/// is recorded.
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
    /// The name, the numbers and switches with their values, and what is kept for each parameter. Asked
    /// once, when a group is made.
    fn describe(&self) -> Description;

    /// What is wrong with the numbers taken together, where `value` gives each by its name: asked when a
    /// group is made and before a number changes, and only where each is in its own range.
    ///
    /// # Errors
    /// A message that names the number.
    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        let _ = value;
        Ok(())
    }

    /// Gives names to scalars that depend on numbers and steps alone: they are computed in f64, once for all
    /// parameters of the group, and [`Rule::update`] asks for them as for numbers.
    fn scalars(&self, scalars: &mut Scalars) {
        let _ = scalars;
    }

    /// The new value of a parameter; the new values of its state are set on the way. It must do nothing but
    /// record operations on what it is given; see [`Rule::repeats`].
    fn update(&self, u: &mut Update) -> Tensor;

    /// Whether [`Rule::update`] records the same operations for all parameters of a dtype and shape, as long
    /// as no number becomes zero or ceases to be: it is then asked once for all of them, not at every step.
    fn repeats(&self) -> bool {
        true
    }

    /// The step of a rule that evaluates the loss itself, one that [`Description::by_search`] says so of.
    /// Gives the loss in front of the step.
    ///
    /// # Errors
    /// If the loss can't be evaluated. The parameters then return to where they were.
    fn search(&self, search: &mut Search) -> Result<Tensor> {
        search.evaluate()
    }
}

/// What a [`Rule`] is made of, by name.
#[derive(Clone, Debug)]
pub struct Description {
    pub(crate) name: &'static str,
    pub(crate) numbers: Vec<Number>,
    pub(crate) flags: Vec<(&'static str, bool)>,
    /// What is kept for each parameter.
    pub(crate) state: Vec<State>,
    /// Numbers that are kept for each parameter, and what they begin with.
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
pub(crate) struct State {
    pub name: &'static str,
    /// What it begins with.
    pub value: f64,
    /// Its shape by that of the parameter, where it has one.
    pub shape: fn(&[usize]) -> Option<Vec<usize>>,
}

impl Description {
    /// Nothing but a name, PyTorch's where it has one.
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

    /// A number that must not be negative, such as `lr`.
    pub fn number(self, name: &'static str, value: f64) -> Description {
        self.number_in(name, value, 0.0..)
    }

    /// A number that must be in a range; `..` takes any.
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

    /// Two numbers in [0, 1), such as `beta1` and `beta2`.
    pub fn fractions(self, names: [&'static str; 2], values: (f64, f64)) -> Description {
        self.number_in(names[0], values.0, 0.0..1.0)
            .number_in(names[1], values.1, 0.0..1.0)
    }

    /// A switch, such as `nesterov`.
    pub fn flag(mut self, name: &'static str, on: bool) -> Description {
        self.flags.push((name, on));
        self
    }

    /// A tensor of each parameter's shape and dtype that is kept for it and begins with zeros; or none.
    pub fn state(self, name: impl Into<Option<&'static str>>) -> Description {
        match name.into() {
            Some(name) => self.state_of(name, 0.0),
            None => self,
        }
    }

    /// One that begins with this value.
    pub fn state_of(mut self, name: &'static str, value: f64) -> Description {
        let shape = |shape: &[usize]| Some(shape.to_vec());
        self.state.push(State { name, value, shape });
        self
    }

    /// One of a shape of its own, from the parameter's, where it has one; it begins with zeros.
    pub fn state_shaped(
        mut self,
        name: &'static str,
        shape: fn(&[usize]) -> Option<Vec<usize>>,
    ) -> Description {
        let value = 0.0;
        self.state.push(State { name, value, shape });
        self
    }

    /// A number that is kept for each parameter, and what it begins with: [`Rule::scalars`] reads it and sets
    /// the next.
    pub fn count(mut self, name: &'static str, value: f64) -> Description {
        self.counts.push((name, value));
        self
    }

    /// Whether `weight_decay` shrinks the parameter (times `1 − lr · weight_decay`) in place of adding to its
    /// gradient.
    pub fn decoupled(mut self, decoupled: bool) -> Description {
        self.decoupled = decoupled;
        self
    }

    /// Says that a step is [`Rule::search`].
    pub fn by_search(mut self) -> Description {
        self.by_search = true;
        self
    }

    /// Whether a switch is on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.flags.iter().any(|(n, on)| *n == name && *on)
    }

    /// Says that each number is in its range.
    pub(crate) fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        let mut numbers = self.numbers.iter();
        numbers.try_for_each(|n| n.check(value(n.name)))
    }

    /// What this rule says of a call that goes wrong.
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

/// Says that a group which was made without momentum, and so keeps none, does not get some later.
pub(crate) fn momentum_was_there(made: f64, now: f64) -> Result<(), String> {
    match made == 0.0 && now != 0.0 {
        true => Err("a group that was made without momentum keeps none; make it with some".into()),
        false => Ok(()),
    }
}
