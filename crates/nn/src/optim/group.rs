//! A group of parameters with common hyperparameters.

use super::master::Masters;
use super::rule::{Description, Rule};
use super::scalars::{OperandScalars, Scalars, Update};
use super::stochastic;
use kiln_tensor::memory::Category;
use kiln_tensor::{DType, Device, Error, Repeated, Result, Tensor, Var, set_device, where_};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Parameters that share a [`Rule`], and the state kept for them.
pub struct Group {
    pub(crate) rule: Box<dyn Rule>,
    pub(crate) description: Description,
    pub(crate) parameters: Vec<Var>,
    pub(crate) values: Vec<(&'static str, f64)>,
    /// `values` as data of the step: `[K]` f64.
    data: Var,
    /// Numbers that are kept for each parameter, `[P]` f64: its number of steps, then the rule's.
    pub(crate) counts: Vec<(&'static str, Var)>,
    /// The state of each parameter; made when it first requires gradients.
    pub(crate) state: Vec<Option<Vec<Cell>>>,
    /// The master weight of each parameter that has one.
    pub(crate) masters: Masters,
    updates: Updates,
    /// The state of a rule that searches.
    pub(crate) search_state: BTreeMap<String, Tensor>,
    /// The numbers of a schedule, which are saved with the rule's.
    pub(crate) schedule_numbers: BTreeMap<&'static str, f64>,
}

/// A part of a parameter's state.
pub(crate) type Cell = (&'static str, Var);

/// A value that a cell is about to be assigned.
pub(crate) type Assignment = (Var, Tensor);

impl Group {
    #[track_caller]
    pub(crate) fn new(parameters: Vec<Var>, rule: Box<dyn Rule>) -> Result<Group> {
        let description = rule.describe();
        if let Some(p) = parameters.iter().find(|p| !p.dtype().is_float()) {
            let message = format!("only floats can be trained, not {}", p.dtype());
            return Err(description.error(message));
        }
        let home = parameters.first().map(Var::device).unwrap_or_default();
        let values: Vec<_> = description
            .numbers
            .iter()
            .map(|n| (n.name, n.value))
            .collect();
        let named = |name: &str, cell: Var| {
            cell.set_name(&format!("{}.{name}", description.name));
            cell
        };
        let count = |(name, start): (&'static str, f64)| {
            let starts = vector(parameters.iter().map(|_| start));
            Ok((name, named(name, Var::new(starts.to(home))?)))
        };
        let counts = [("step", 0.0)]
            .into_iter()
            .chain(description.counts.iter().copied());
        let data = Var::volatile(vector(values.iter().map(|(_, v)| *v)).to(home))?;
        let mut group = Group {
            data: named("numbers", data),
            counts: counts.map(count).collect::<Result<_>>()?,
            state: parameters.iter().map(|_| None).collect(),
            masters: Masters::default(),
            updates: Updates::default(),
            search_state: BTreeMap::new(),
            schedule_numbers: BTreeMap::new(),
            rule,
            description,
            parameters,
            values,
        };
        if let Err(message) = group.check_values(&group.values) {
            return Err(group.description.error(message));
        }
        for i in 0..group.parameters.len() {
            if group.parameters[i].requires_grad() {
                group.make_state(i)?;
            }
        }
        Ok(group)
    }

    /// The parameters.
    pub fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    /// The rule. Its numbers are those that the group was made with; for the current ones see [`Group::number`].
    pub fn rule(&self) -> &dyn Rule {
        &*self.rule
    }

    /// The numbers as data of the step.
    pub(crate) fn numbers(&self) -> &Var {
        &self.data
    }

    /// A number such as `lr`, `momentum` or `weight_decay`, if the rule has it.
    pub fn number(&self, name: &str) -> Option<f64> {
        let number = self.values.iter().find(|(n, _)| *n == name);
        number.map(|(_, value)| *value)
    }

    /// Changes a number from the next step on. This includes compiled steps, except that a step compiled while the
    /// number was zero may have left its term out.
    ///
    /// # Errors
    /// If the rule has no such number or the value is out of its range (the number then stays as it is),
    /// or inside `compile`: call it between runs.
    #[track_caller]
    pub fn set_number(&mut self, name: &str, value: f64) -> Result<()> {
        let index = match self.check_value(name, value) {
            Ok(index) => index,
            Err(message) => return Err(Error::invalid("set_number", message)),
        };
        let mut values = self.values.clone();
        values[index].1 = value;
        self.set_values(values)
    }

    /// Changes all numbers at once, to values that fit.
    #[track_caller]
    pub(crate) fn set_values(&mut self, values: Vec<(&'static str, f64)>) -> Result<()> {
        let changed = self.values.iter().zip(&values).find(|(a, b)| a != b);
        let Some(((name, _), _)) = changed else {
            return Ok(());
        };
        if kiln_tensor::is_recording() {
            let message = format!("{name} can't change inside compile; set it between runs");
            return Err(Error::invalid("set_number", message));
        }
        let mut both = self.values.iter().zip(&values);
        if both.any(|(a, b)| (a.1 == 0.0) != (b.1 == 0.0)) {
            self.updates = Updates::default();
        }
        self.values = values;
        let values = vector(self.values.iter().map(|v| v.1));
        self.data.assign(values.to(self.data.device()))
    }

    /// Returns the index of a number that may take this value, or the reason why it can't.
    pub(crate) fn check_value(&self, name: &str, value: f64) -> Result<usize, String> {
        let index = self.values.iter().position(|(n, _)| *n == name);
        let index =
            index.ok_or_else(|| format!("{} has no number {name:?}", self.description.name))?;
        let mut values = self.values.clone();
        values[index].1 = value;
        self.check_values(&values).map(|()| index)
    }

    /// Checks that the numbers may take these values; the error names the reason.
    pub(crate) fn check_values(&self, values: &[(&'static str, f64)]) -> Result<(), String> {
        let value = |name: &str| values.iter().find(|(n, _)| *n == name).map_or(0.0, |v| v.1);
        self.description.check(&value)?;
        self.rule.check(&value)
    }

    /// Returns the next step's assignments. With `stochastic`, parameters of bf16 are rounded stochastically.
    #[track_caller]
    pub(crate) fn update(&mut self, stochastic: bool) -> Result<Vec<Assignment>> {
        let parameters = self.parameters.iter().enumerate();
        let gradient = |(i, p): (usize, &Var)| self.masters.gradient(i).or_else(|| p.grad());
        let gradients: Vec<Option<Tensor>> = parameters.map(gradient).collect();
        if gradients.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let devices = self.gather_on_devices(&gradients)?;
        let mut assignments = Vec::new();
        for device in devices {
            let counts = self.counts_of(&gradients, device);
            let mut scalars = Scalars::new(
                &self.description,
                &self.values,
                &self.data.get(),
                &counts,
                device,
            );
            self.rule.scalars(&mut scalars);
            if device == self.data.device() {
                assignments.extend(self.next_counts(&gradients, &scalars));
            }
            for (i, gradient) in gradients.iter().enumerate() {
                let (p, Some(g), Some(cells)) = (&self.parameters[i], gradient, &self.state[i])
                else {
                    continue;
                };
                if p.device() == device {
                    let inputs = UpdateInputs {
                        parameter: i,
                        cell: self.masters.get(i).unwrap_or(p),
                        gradient: g,
                        state: cells,
                        stochastic: stochastic && p.dtype() == DType::BF16,
                    };
                    let values = self.updates.record(&*self.rule, &scalars, inputs);
                    assignments.extend(self.masters.assignments(i, p, cells, values));
                }
            }
        }
        Ok(assignments)
    }

    /// Moves state to the devices of its parameters. Returns the first parameter's device, where the numbers live, then
    /// the other devices of parameters with gradients.
    #[track_caller]
    fn gather_on_devices(&mut self, gradients: &[Option<Tensor>]) -> Result<Vec<Device>> {
        let home = self.parameters[0].device();
        self.data.to_(home)?;
        for (_, count) in &self.counts {
            count.to_(home)?;
        }
        let mut devices = vec![home];
        for (i, _) in gradients.iter().enumerate().filter(|(_, g)| g.is_some()) {
            self.make_state(i)?;
            let device = self.parameters[i].device();
            let cells = self.state[i].iter().flatten().map(|(_, cell)| cell);
            for cell in cells.chain(self.masters.get(i)) {
                cell.to_(device)?;
            }
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    /// Returns the numbers that are kept for each parameter. Their step count includes this step where there is a
    /// gradient.
    fn counts_of(
        &self,
        gradients: &[Option<Tensor>],
        device: Device,
    ) -> Vec<(&'static str, Tensor)> {
        let value = |(name, count): &(&'static str, Var)| (*name, count.get().to(device));
        let mut counts: Vec<_> = self.counts.iter().map(value).collect();
        let step = &mut counts[0].1;
        *step = match gradients.iter().all(Option::is_some) {
            true => &*step + 1.0,
            false => &*step + has_gradient(gradients).to(device),
        };
        counts
    }

    /// Returns the step's assignments to these numbers.
    fn next_counts(&self, gradients: &[Option<Tensor>], scalars: &Scalars) -> Vec<Assignment> {
        let all_have_gradients = gradients.iter().all(Option::is_some);
        let next = |(name, count): &(&'static str, Var)| {
            let next = scalars.number(name);
            let next = match all_have_gradients || *name == "step" {
                true => next,
                false => where_(
                    has_gradient(gradients).to(count.device()).gt(0.0),
                    &next,
                    count.get(),
                ),
            };
            (count.clone(), next)
        };
        self.counts.iter().map(next).collect()
    }

    #[track_caller]
    pub(crate) fn make_state(&mut self, i: usize) -> Result<()> {
        if self.state[i].is_some() {
            return Ok(());
        }
        let p = &self.parameters[i];
        let dtype = wide(p.dtype());
        let mut cells = Vec::new();
        for state in &self.description.state {
            let Some(shape) = (state.shape)(&p.shape()?) else {
                continue;
            };
            // Zeros are given as data, not recorded, so that the first step has the same plan as all others.
            let bytes = vec![0; shape.iter().product::<usize>() * dtype.size()];
            let mut start = Tensor::from_bytes(&bytes, dtype, shape);
            if state.value != 0.0 {
                start += state.value;
                start.realize()?;
            }
            let cell = Var::new(start.to(p.device()))?;
            cell.count_as(Category::Moments);
            if let Some(name) = p.name() {
                cell.set_name(&format!("{name}.{}", state.name));
            }
            cells.push((state.name, cell));
        }
        self.state[i] = Some(cells);
        Ok(())
    }
}

/// Returns 1 for each parameter that has a gradient, else 0.
fn has_gradient(gradients: &[Option<Tensor>]) -> Tensor {
    vector(gradients.iter().map(|g| f64::from(u8::from(g.is_some()))))
}

/// The updates that have been recorded, where the rule repeats them.
#[derive(Default)]
struct Updates {
    recorded: Repeated,
    /// The scalars that updates use, which are operands of each update.
    operand_names: Vec<&'static str>,
}

/// The inputs of one update.
struct UpdateInputs<'a> {
    /// The number of the parameter in its group.
    parameter: usize,
    /// The cell to update: the parameter, or its master weight.
    cell: &'a Var,
    gradient: &'a Tensor,
    state: &'a [Cell],
    /// True if the result is rounded stochastically to a dtype narrower than the computation's.
    stochastic: bool,
}

impl Updates {
    /// Returns the new values of a parameter's state, followed by the parameter's own new value.
    fn record(&mut self, rule: &dyn Rule, scalars: &Scalars, inputs: UpdateInputs) -> Vec<Tensor> {
        let dtype = inputs.cell.dtype();
        let (wide, cell_count) = (wide(dtype), 2 + inputs.state.len());
        let random = inputs
            .stochastic
            .then(|| inputs.gradient.to_dtype(DType::F32).rand_like());
        loop {
            let mut operands = vec![inputs.cell.get(), inputs.gradient.clone()];
            operands.extend(inputs.state.iter().map(|(_, cell)| cell.get()));
            operands.extend(random.clone());
            let operand_names = self.operand_names.iter();
            operands
                .extend(operand_names.map(|name| scalars.operand(name, wide, inputs.parameter)));
            let missing = RefCell::new(Vec::new());
            let new = |x: &[Tensor]| {
                let (values, extra) = x.split_at(cell_count);
                let (random, numbers) = extra.split_at(inputs.stochastic.into());
                let mut wide_values = values.iter().map(|v| v.to_dtype(wide));
                let both =
                    std::array::from_fn(|_| wide_values.next().unwrap_or_else(|| x[0].clone()));
                let numbers = OperandScalars {
                    names: &self.operand_names,
                    values: numbers.iter().map(|c| c.reshape(())).collect(),
                    missing: &missing,
                };
                let names = inputs.state.iter().map(|(name, _)| *name);
                let mut u = Update::new(
                    scalars,
                    dtype,
                    both,
                    names.zip(wide_values).collect(),
                    numbers,
                );
                // Numbers of rank 0 join the operands.
                let _here = set_device(Device::Cpu);
                let new = rule.update(&mut u);
                let old = values[2..].iter().chain([&values[0]]);
                let next = |(new, old): (Tensor, &Tensor)| new.to_dtype(old.dtype());
                let mut new = u.finish(new);
                if let (Some(p), [random]) = (new.last_mut(), random) {
                    *p = stochastic::round(p, random);
                }
                new.into_iter().zip(old).map(next).collect()
            };
            let values = match rule.repeats() {
                true => self.recorded.call(&operands, new),
                false => new(&operands),
            };
            let missing = missing.into_inner();
            if missing.is_empty() {
                return values;
            }
            self.operand_names.extend(missing);
        }
    }
}

/// The dtype in which updates are computed and their state is kept: f32 for narrower floats.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

/// An f64 vector.
pub(crate) fn vector(values: impl Iterator<Item = f64>) -> Tensor {
    let _here = set_device(Device::Cpu);
    let values: Vec<f64> = values.collect();
    Tensor::from_slice(&values, [values.len()])
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use kiln_tensor::{DType, Result, Tensor, Var};

    /// Returns the number of kinds of updates recorded as one operation each, for two shapes and a number that changes.
    fn kinds(rule: impl Rule) -> Result<usize> {
        let p = |n: i64| Var::parameter(Tensor::ones([2, n], DType::F32));
        let all = [p(2)?, p(2)?, p(3)?];
        let mut optimizer = Optimizer::new(&all, rule)?;
        for i in 1..4 {
            optimizer.set_lr(0.1 / i as f64)?;
            all.iter().try_for_each(|p| p.set_grad(p.detach()))?;
            optimizer.step()?;
        }
        Ok(optimizer.groups[0].updates.recorded.kinds())
    }

    #[test]
    fn an_update_is_one_operation() -> Result<()> {
        let recorded = [
            kinds(SGD::new().momentum(0.9).dampening(0.1).weight_decay(0.1))?,
            kinds(SGD::new().momentum(0.9).nesterov(true))?,
            kinds(Adam::new().amsgrad(true).maximize(true))?,
            kinds(AdamW::new())?,
            kinds(RMSprop::new().momentum(0.9).centered(true))?,
            kinds(Adagrad::new())?,
            kinds(Adadelta::new())?,
            kinds(Adamax::new())?,
            kinds(ASGD::new())?,
            kinds(NAdam::new())?,
            kinds(RAdam::new())?,
            kinds(Rprop::new())?,
        ];
        assert_eq!(recorded, [2; 12]);
        // This rule reduces, so its updates are not pointwise.
        assert_eq!(kinds(Adafactor::new())?, 0);
        Ok(())
    }
}
