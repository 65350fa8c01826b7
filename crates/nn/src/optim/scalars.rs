//! The named inputs of a rule while a step is recorded.

use super::rule::Description;
use kiln_tensor::{DType, Device, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;

/// The name of the factor of the parameter under decoupled decay.
const DECAY_FACTOR: &str = "1 - lr * weight_decay";

/// The scalars of a step, in f64: the group's numbers, and those that [`Rule::scalars`](super::Rule::scalars) derives
/// from them.
pub struct Scalars<'a> {
    description: &'a Description,
    values: &'a [(&'static str, f64)],
    /// The numbers, `[K]`.
    data: Tensor,
    /// The numbers used so far, and the scalars that were set: rank 0, or `[P]` with one element per parameter.
    known: RefCell<Vec<(&'static str, Tensor)>>,
    /// The scalars that updates use, in the dtypes of these updates.
    cast: RefCell<HashMap<(&'static str, DType), Tensor>>,
}

impl<'a> Scalars<'a> {
    /// The scalars of the parameters on one device. `counts` are the numbers that are kept for each parameter, `step`
    /// first.
    pub(crate) fn new(
        description: &'a Description,
        values: &'a [(&'static str, f64)],
        data: &Tensor,
        counts: &[(&'static str, Tensor)],
        device: Device,
    ) -> Scalars<'a> {
        let moved = |(name, value): &(&'static str, Tensor)| (*name, value.to(device));
        let known = RefCell::new(counts.iter().map(moved).collect());
        let mut scalars = Scalars {
            description,
            values,
            data: data.to(device),
            known,
            cast: RefCell::default(),
        };
        if description.decoupled && scalars.uses("weight_decay") {
            let factor = 1.0 - scalars.number("lr") * scalars.number("weight_decay");
            scalars.set(DECAY_FACTOR, factor);
        }
        scalars
    }

    /// A number of the group, of rank 0; or a number that is kept for each parameter or was set, with one element each.
    /// An unknown name gives a tensor that carries an error.
    #[track_caller]
    pub fn number(&self, name: &str) -> Tensor {
        let known = self.known.borrow().iter().find(|k| k.0 == name).cloned();
        if let Some((_, value)) = known {
            return value;
        }
        let Some(index) = self.values.iter().position(|(n, _)| *n == name) else {
            return Tensor::from_error(
                self.description
                    .error(format!("there is no number {name:?}")),
            );
        };
        let value = self.data.select(0, index as i64);
        self.known
            .borrow_mut()
            .push((self.values[index].0, value.clone()));
        value
    }

    /// True if a number is not zero now. A formula may leave out a term whose number is zero.
    pub fn uses(&self, name: &str) -> bool {
        uses(self.values, name)
    }

    /// The number of steps each parameter has made, this one included: `[P]`.
    #[track_caller]
    pub fn step(&self) -> Tensor {
        self.number("step")
    }

    /// Names a scalar, or sets the next value of a number that is kept for each parameter.
    pub fn set(&mut self, name: &'static str, value: Tensor) {
        let known = self.known.get_mut();
        known.retain(|(n, _)| *n != name);
        known.push((name, value));
    }

    /// A scalar as an operand of one parameter's update, with one element.
    pub(crate) fn operand(&self, name: &'static str, dtype: DType, parameter: usize) -> Tensor {
        let mut cast = self.cast.borrow_mut();
        let cast_values = cast.entry((name, dtype));
        let cast_values = cast_values.or_insert_with(|| self.number(name).to_dtype(dtype));
        match cast_values.ndim() {
            0 => cast_values.clone(),
            _ => cast_values.narrow(0, parameter as i64, 1),
        }
    }

    /// Returns the `'static` form of a known name.
    fn static_name(&self, name: &str) -> Option<&'static str> {
        let known = self.known.borrow();
        let mut names = (known.iter().map(|k| k.0)).chain(self.values.iter().map(|v| v.0));
        names.find(|n| *n == name)
    }
}

fn uses(values: &[(&'static str, f64)], name: &str) -> bool {
    values.iter().any(|(n, v)| *n == name && *v != 0.0)
}

/// One parameter at one step: [`Rule::update`](super::Rule::update) reads its tensors by name. All have one
/// dtype, the parameter's, or f32 for f16 and bf16.
pub struct Update<'a> {
    scalars: &'a Scalars<'a>,
    dtype: DType,
    before_decay: Tensor,
    parameter: Tensor,
    gradient: Tensor,
    state: Vec<(&'static str, Tensor)>,
    operands: OperandScalars<'a>,
    /// The first error.
    failed: Option<Tensor>,
}

/// The scalars that are operands of an update, and those found to be missing among them.
pub(crate) struct OperandScalars<'a> {
    pub names: &'a [&'static str],
    pub values: Vec<Tensor>,
    pub missing: &'a RefCell<Vec<&'static str>>,
}

impl<'a> Update<'a> {
    pub(crate) fn new(
        scalars: &'a Scalars<'a>,
        dtype: DType,
        [parameter, gradient]: [Tensor; 2],
        state: Vec<(&'static str, Tensor)>,
        operands: OperandScalars<'a>,
    ) -> Update<'a> {
        let mut u = Update {
            scalars,
            dtype,
            before_decay: parameter.clone(),
            parameter,
            gradient,
            state,
            operands,
            failed: None,
        };
        if u.scalars.description.is_on("maximize") {
            u.gradient = u.gradient.neg();
        }
        if u.uses("weight_decay") {
            match u.scalars.description.decoupled {
                true => u.parameter = &u.parameter * u.number(DECAY_FACTOR),
                false => u.gradient = &u.gradient + &u.parameter * u.number("weight_decay"),
            }
        }
        u
    }

    /// The parameter, after decoupled decay.
    pub fn parameter(&self) -> Tensor {
        self.parameter.clone()
    }

    /// The parameter before decoupled decay.
    pub fn before_decay(&self) -> Tensor {
        self.before_decay.clone()
    }

    /// The gradient, negated with `maximize`, and with the term of `weight_decay` added.
    pub fn gradient(&self) -> Tensor {
        self.gradient.clone()
    }

    /// The dtype of the parameter itself.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// A number of the group, or one that [`Rule::scalars`](super::Rule::scalars) set, of rank 0. An unknown name gives
    /// a tensor that carries an error.
    #[track_caller]
    pub fn number(&self, name: &str) -> Tensor {
        let OperandScalars {
            names,
            values,
            missing,
        } = &self.operands;
        if let Some(value) = names.iter().zip(values).find(|(n, _)| **n == name) {
            return value.1.clone();
        }
        match self.scalars.static_name(name) {
            // Any value will do: the update is recorded again with this scalar among the operands.
            Some(name) => {
                let mut missing = missing.borrow_mut();
                if !missing.contains(&name) {
                    missing.push(name);
                }
                Tensor::scalar(1.0f32).to_dtype(self.parameter.dtype())
            }
            None => self.scalars.number(name),
        }
    }

    /// True if a number is not zero now. A formula may leave out a term whose number is zero.
    pub fn uses(&self, name: &str) -> bool {
        self.scalars.uses(name)
    }

    /// Returns a tensor that is kept for this parameter. An unknown name gives a tensor that carries an error.
    #[track_caller]
    pub fn state(&self, name: &str) -> Tensor {
        match self.state.iter().find(|(n, _)| *n == name) {
            Some((_, value)) => value.clone(),
            None => self.no_state(name),
        }
    }

    /// Replaces a tensor that is kept for this parameter.
    #[track_caller]
    pub fn set(&mut self, name: &str, value: Tensor) {
        match self.state.iter_mut().find(|(n, _)| *n == name) {
            Some((_, held)) => *held = value,
            None => self.failed = self.failed.take().or(Some(self.no_state(name))),
        }
    }

    #[track_caller]
    fn no_state(&self, name: &str) -> Tensor {
        let message = format!("no {name:?} is kept for this parameter");
        Tensor::from_error(self.scalars.description.error(message))
    }

    /// Returns the state, followed by `new`, the parameter's new value.
    pub(crate) fn finish(self, new: Tensor) -> Vec<Tensor> {
        let state = self.state.into_iter().map(|(_, value)| value);
        state.chain([self.failed.unwrap_or(new)]).collect()
    }
}
