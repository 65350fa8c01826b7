//! The optimiser: groups of parameters and their steps.

use super::group::{Group, vector};
use super::rule::Rule;
use super::state_dict::{GroupDict, StateDict};
use kiln_tensor::{Error, Result, Tensor, Var, assign_together, realize_all, set_grad_enabled};
use std::collections::{BTreeMap, HashSet};

/// Updates parameters from their gradients; see the [module](crate::optim).
pub struct Optimizer {
    groups: Vec<Group>,
}

impl Optimizer {
    /// An optimiser of one group.
    ///
    /// # Errors
    /// If there are no parameters, a hyperparameter is out of range, a parameter is listed twice or is none
    /// (see [`Var::parameter`]), or inside `compile`.
    #[track_caller]
    pub fn new<'a>(
        parameters: impl IntoIterator<Item = &'a Var>,
        rule: impl Rule,
    ) -> Result<Optimizer> {
        let (mut optimizer, name) = (Optimizer { groups: Vec::new() }, rule.name());
        optimizer.add_group(parameters, rule)?;
        if optimizer.groups[0].parameters.is_empty() {
            return Err(Error::invalid(name, "there are no parameters to optimise"));
        }
        Ok(optimizer)
    }

    /// One more group with hyperparameters of its own.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    #[track_caller]
    pub fn add_group<'a>(
        &mut self,
        parameters: impl IntoIterator<Item = &'a Var>,
        rule: impl Rule,
    ) -> Result<()> {
        let parameters: Vec<Var> = parameters.into_iter().cloned().collect();
        let earlier = self.groups.iter().flat_map(|g| &g.parameters);
        let mut known: HashSet<u64> = earlier.map(Var::id).collect();
        for p in &parameters {
            if !known.insert(p.id()) {
                let message = format!("{p:?} is listed more than once");
                return Err(Error::invalid(rule.name(), message));
            }
            if !p.is_parameter() {
                let message = format!("{p:?} is no parameter; make it with Var::parameter");
                return Err(Error::invalid(rule.name(), message));
            }
        }
        self.groups.push(Group::new(parameters, Box::new(rule))?);
        Ok(())
    }

    /// The groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The groups, to change their numbers.
    pub fn groups_mut(&mut self) -> &mut [Group] {
        &mut self.groups
    }

    /// The learning rates of the groups.
    pub fn lr(&self) -> Vec<f64> {
        let lr = |g: &Group| g.number("lr").unwrap_or(0.0);
        self.groups.iter().map(lr).collect()
    }

    /// Changes the learning rate of every group.
    ///
    /// # Errors
    /// If it is negative or NaN, which leaves every group as it is, or inside `compile`: call it between
    /// runs.
    #[track_caller]
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        if let Some(Err(message)) = self
            .groups
            .iter()
            .map(|g| g.fits("lr", lr))
            .find(Result::is_err)
        {
            return Err(Error::invalid("set_lr", message));
        }
        self.groups
            .iter_mut()
            .try_for_each(|g| g.set_number("lr", lr))
    }

    /// Forgets the gradients.
    pub fn zero_grad(&self) {
        self.groups
            .iter()
            .flat_map(|g| &g.parameters)
            .for_each(Var::zero_grad);
    }

    /// Updates every parameter that has a gradient, and computes whatever this thread holds
    /// unrealised, the loss among it. Inside `compile` the update is recorded.
    ///
    /// # Errors
    /// If a gradient carries an error or the run fails. Every parameter and moment then keeps its
    /// value.
    #[track_caller]
    pub fn step(&mut self) -> Result<()> {
        let mode = set_grad_enabled(false);
        let mut assignments: Vec<(Var, Tensor)> = Vec::new();
        for group in &mut self.groups {
            assignments.extend(group.update()?);
        }
        drop(mode);
        assign_together(assignments.iter().map(|(cell, value)| (cell, value)))?;
        let cells: Vec<Var> = assignments.into_iter().map(|(cell, _)| cell).collect();
        let done = realize_all();
        if done.is_err() {
            // Reading a cell whose run fails returns it to its last value.
            for cell in &cells {
                let _ = cell.get().realize();
            }
        }
        done
    }

    /// What is needed to go on later: the moments and counts of every parameter that has made a step,
    /// and the hyperparameters. Parameters are numbered through the groups in order.
    ///
    /// # Errors
    /// If a pending step fails.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut dict = StateDict::default();
        let mut first = 0;
        for group in &self.groups {
            let steps = group.steps.get().to_vec::<f64>()?;
            for (i, step) in steps.iter().enumerate().filter(|(_, s)| **s > 0.0) {
                let names = group.rule.moments().into_iter().map(|(name, _)| name);
                let cells = group.moments[i].iter().flatten();
                let values = cells.map(|v| v.get().detach());
                let mut state: BTreeMap<String, Tensor> =
                    names.map(str::to_string).zip(values).collect();
                state.insert("step".to_string(), Tensor::scalar(*step as f32));
                dict.state.insert(first + i, state);
            }
            let owned = |(name, value): &(&'static str, f64)| (name.to_string(), *value);
            let flag = |(name, on): (&'static str, bool)| (name.to_string(), on);
            dict.param_groups.push(GroupDict {
                numbers: group.values.iter().map(owned).collect(),
                flags: group.rule.flags().into_iter().map(flag).collect(),
                params: (first..first + steps.len()).collect(),
            });
            first += steps.len();
        }
        Ok(dict)
    }

    /// Takes over moments, counts and numbers. Flags must be those of this optimiser.
    ///
    /// # Errors
    /// If groups, parameters, moments or flags do not match. Nothing is then changed.
    #[track_caller]
    pub fn load_state_dict(&mut self, dict: &StateDict) -> Result<()> {
        match self.plan_load(dict) {
            Ok(loads) => self.apply_load(loads),
            Err(message) => Err(Error::invalid("load_state_dict", message)),
        }
    }

    /// What loading assigns, one a group, or why it can't.
    pub(crate) fn plan_load(&mut self, dict: &StateDict) -> Result<Vec<Load>, String> {
        if dict.param_groups.len() != self.groups.len() {
            let (given, here) = (dict.param_groups.len(), self.groups.len());
            return Err(format!("{given} groups can't be loaded into {here}"));
        }
        let groups = self.groups.iter_mut().zip(&dict.param_groups);
        groups
            .map(|(group, given)| group.plan_load(given, dict))
            .collect()
    }

    #[track_caller]
    pub(crate) fn apply_load(&mut self, loads: Vec<Load>) -> Result<()> {
        for (group, (assignments, values)) in self.groups.iter_mut().zip(loads) {
            for (cell, value) in assignments {
                cell.assign(value.to(cell.device()))?;
            }
            for (name, value) in values {
                group.set_number(name, value)?;
            }
        }
        Ok(())
    }
}

/// Values for cells and numbers, checked.
pub(crate) type Load = (Vec<(Var, Tensor)>, Vec<(&'static str, f64)>);

impl Group {
    /// What loading assigns, or why it can't.
    fn plan_load(&mut self, given: &GroupDict, dict: &StateDict) -> Result<Load, String> {
        let failed = |e: Error| e.message().to_string();
        if given.params.len() != self.parameters.len() {
            let (given, here) = (given.params.len(), self.parameters.len());
            return Err(format!(
                "a group of {given} parameters can't be loaded into one of {here}"
            ));
        }
        for (name, on) in self.rule.flags() {
            if given.flags.get(name).is_some_and(|g| *g != on) {
                return Err(format!("{name} is {} there and {on} here", !on));
            }
        }
        let mut steps = Vec::new();
        let mut assignments = Vec::new();
        for (i, id) in given.params.iter().enumerate() {
            let Some(state) = dict.state.get(id) else {
                steps.push(0.0);
                continue;
            };
            // PyTorch's SGD keeps no count; it has made a step if it keeps anything.
            steps.push(match state.get("step") {
                Some(step) => step
                    .to_dtype(kiln_tensor::DType::F64)
                    .item::<f64>()
                    .map_err(failed)?,
                None => 1.0,
            });
            self.make_moments(i).map_err(failed)?;
            let names = self.rule.moments();
            for ((name, _), cell) in names.iter().zip(self.moments[i].iter().flatten()) {
                let Some(value) = state.get(*name) else {
                    let parameter = &self.parameters[i];
                    return Err(format!(
                        "the state of parameter {id}, {parameter:?}, has no {name}"
                    ));
                };
                let (given, here) = (value.shape().map_err(failed)?, cell.shape());
                if given != here {
                    let parameter = &self.parameters[i];
                    return Err(format!(
                        "{name} of parameter {id}, {parameter:?}, is {given:?}, not {here:?}"
                    ));
                }
                let value = value.detach().to_dtype(cell.dtype());
                assignments.push((cell.clone(), value.realize().map_err(failed)?.clone()));
            }
        }
        assignments.push((self.steps.clone(), vector(steps.into_iter())));
        let mut values = self.values.clone();
        for (name, value) in &mut values {
            *value = given.numbers.get(*name).copied().unwrap_or(*value);
        }
        self.all_fit(&values)?;
        Ok((assignments, values))
    }
}
