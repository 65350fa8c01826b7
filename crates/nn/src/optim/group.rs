//! A group of parameters with common hyperparameters.

use super::rule::{Coefficients, Numbers, Rule};
use kiln_tensor::{DType, Error, Repeated, Result, Tensor, Var};
use std::collections::HashMap;

/// Parameters that share a [`Rule`], and what the rule keeps for them.
pub struct Group {
    pub(crate) rule: Box<dyn Rule>,
    pub(crate) parameters: Vec<Var>,
    pub(crate) values: Vec<(&'static str, f64)>,
    /// `values` as data of the step: `[K]` f64.
    data: Var,
    /// How many steps each parameter has made: `[P]` f64.
    pub(crate) steps: Var,
    /// For each parameter what the rule keeps; made when it first requires gradients.
    pub(crate) moments: Vec<Option<Vec<Var>>>,
    /// The updates that have been recorded, where the rule repeats them.
    recorded: Repeated,
}

/// A value that a cell is about to be assigned.
pub(crate) type Assignment = (Var, Tensor);

impl Group {
    #[track_caller]
    pub(crate) fn new(parameters: Vec<Var>, rule: Box<dyn Rule>) -> Result<Group> {
        if let Some(p) = parameters.iter().find(|p| !p.dtype().is_float()) {
            let message = format!("only floats can be trained, not {}", p.dtype());
            return Err(Error::invalid(rule.name(), message));
        }
        let values = rule.numbers();
        if let Err(message) = check(&*rule, &values) {
            return Err(Error::invalid(rule.name(), message));
        }
        let home = parameters.first().map(Var::device).unwrap_or_default();
        let mut group = Group {
            data: Var::volatile(vector(values.iter().map(|(_, v)| *v)).to(home))?,
            steps: Var::new(vector(parameters.iter().map(|_| 0.0)).to(home))?,
            moments: parameters.iter().map(|_| None).collect(),
            rule,
            parameters,
            values,
            recorded: Repeated::default(),
        };
        for i in 0..group.parameters.len() {
            if group.parameters[i].requires_grad() {
                group.make_moments(i)?;
            }
        }
        Ok(group)
    }

    /// The parameters.
    pub fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    /// The rule. Its numbers are those that the group was made with; see [`Group::number`].
    pub fn rule(&self) -> &dyn Rule {
        &*self.rule
    }

    /// A number such as `lr`, `momentum` or `weight_decay`, if the rule has it.
    pub fn number(&self, name: &str) -> Option<f64> {
        let found = self.values.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| *value)
    }

    /// Changes a number from the next step on, also of compiled steps (where a number that was zero
    /// when the step was compiled may have been left out).
    ///
    /// # Errors
    /// If the rule has no such number or the value is out of its range (the number then stays as it is),
    /// or inside `compile`: call it between runs.
    #[track_caller]
    pub fn set_number(&mut self, name: &str, value: f64) -> Result<()> {
        let at = match self.fits(name, value) {
            Ok(at) => at,
            Err(message) => return Err(Error::invalid("set_number", message)),
        };
        if self.values[at].1 == value {
            return Ok(());
        }
        if kiln_tensor::is_recording() {
            let message = format!("{name} can't change inside compile; set it between runs");
            return Err(Error::invalid("set_number", message));
        }
        if (self.values[at].1 == 0.0) != (value == 0.0) {
            self.recorded.forget();
        }
        self.values[at].1 = value;
        let values = vector(self.values.iter().map(|v| v.1));
        self.data.assign(values.to(self.data.device()))
    }

    /// Where the number stands that may take this value, or why it can't.
    pub(crate) fn fits(&self, name: &str, value: f64) -> Result<usize, String> {
        let found = self.values.iter().position(|(n, _)| *n == name);
        let at = found.ok_or_else(|| format!("{} has no number {name:?}", self.rule.name()))?;
        let mut values = self.values.clone();
        values[at].1 = value;
        self.all_fit(&values).map(|()| at)
    }

    /// What keeps the numbers from taking these values.
    pub(crate) fn all_fit(&self, values: &[(&'static str, f64)]) -> Result<(), String> {
        let momentum = values
            .iter()
            .any(|(name, v)| *name == "momentum" && *v != 0.0);
        let mut moments = self.rule.moments().into_iter();
        if momentum && !moments.any(|(name, _)| name == "momentum_buffer") {
            let message = "a group that was made without momentum keeps none; make it with some";
            return Err(message.to_string());
        }
        check(&*self.rule, values)
    }

    /// What the next step assigns.
    #[track_caller]
    pub(crate) fn update(&mut self) -> Result<Vec<Assignment>> {
        let gradients: Vec<Option<Tensor>> = self.parameters.iter().map(Var::grad).collect();
        if gradients.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let home = self.parameters[0].device();
        self.data.to_(home)?;
        self.steps.to_(home)?;
        for (i, _) in gradients.iter().enumerate().filter(|(_, g)| g.is_some()) {
            self.make_moments(i)?;
            for moment in self.moments[i].iter().flatten() {
                moment.to_(self.parameters[i].device())?;
            }
        }
        let made = vector(gradients.iter().map(|g| f64::from(u8::from(g.is_some())))).to(home);
        let steps = match gradients.iter().all(Option::is_some) {
            true => self.steps.get() + 1.0,
            false => self.steps.get() + made,
        };
        let numbers = Numbers {
            values: &self.values,
            data: self.data.get(),
        };
        let coefficients = self.rule.coefficients(&numbers, &steps);
        let mut assignments = vec![(self.steps.clone(), steps)];
        // The coefficients in each dtype that parameters are updated in.
        let mut cast: HashMap<DType, Vec<Tensor>> = HashMap::new();
        for (i, gradient) in gradients.iter().enumerate() {
            let (Some(g), Some(cells)) = (gradient, &self.moments[i]) else {
                continue;
            };
            let (p, dtype) = (&self.parameters[i], self.parameters[i].dtype());
            let wide = match dtype {
                DType::F16 | DType::BF16 => DType::F32,
                dtype => dtype,
            };
            let of_this = |c: &Tensor| match c.ndim() {
                0 => c.clone(),
                _ => c.narrow(0, i as i64, 1),
            };
            let all = cast.entry(wide);
            let all =
                all.or_insert_with(|| coefficients.iter().map(|c| c.to_dtype(wide)).collect());
            let mut operands = vec![p.get(), g.clone()];
            operands.extend(cells.iter().map(Var::get));
            operands.extend(all.iter().map(of_this));
            let new = |x: &[Tensor]| {
                let (values, scalars) = x.split_at(2 + cells.len());
                let values: Vec<Tensor> = values.iter().map(|v| v.to_dtype(wide)).collect();
                let scalars: Vec<Tensor> = scalars.iter().map(|c| c.reshape(())).collect();
                let mut moments = values[2..].to_vec();
                let coefficients = Coefficients(scalars.into_iter());
                let (p, g) = (&values[0], &values[1]);
                let new = (self.rule).update(&numbers, coefficients, p, g, &mut moments);
                moments.push(new);
                moments.iter().map(|v| v.to_dtype(dtype)).collect()
            };
            let values = match self.rule.repeats() {
                true => self.recorded.call(&operands, new),
                false => new(&operands),
            };
            assignments.extend(cells.iter().chain([p]).cloned().zip(values));
        }
        Ok(assignments)
    }

    #[track_caller]
    pub(crate) fn make_moments(&mut self, i: usize) -> Result<()> {
        if self.moments[i].is_some() {
            return Ok(());
        }
        let p = &self.parameters[i];
        let make = |(_, value): (_, f64)| {
            // Zeros are given, not recorded: so the first step is the plan of all steps.
            let bytes = vec![0; p.shape().iter().product::<usize>() * p.dtype().size()];
            let mut start = Tensor::from_bytes(&bytes, p.dtype(), p.shape());
            if value != 0.0 {
                start += value;
                start.realize()?;
            }
            Var::new(start.to(p.device()))
        };
        let moments = self.rule.moments().into_iter().map(make);
        self.moments[i] = Some(moments.collect::<Result<_>>()?);
        Ok(())
    }
}

/// What a rule says to these values of its numbers.
fn check(rule: &dyn Rule, values: &[(&'static str, f64)]) -> Result<(), String> {
    let value = |name: &str| values.iter().find(|(n, _)| *n == name).map_or(0.0, |v| v.1);
    rule.check(&value)
}

/// An f64 vector.
pub(crate) fn vector(values: impl Iterator<Item = f64>) -> Tensor {
    let values: Vec<f64> = values.collect();
    Tensor::from_slice(&values, [values.len()])
}
