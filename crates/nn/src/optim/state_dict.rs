//! The saved state of an optimiser.

use super::Optimizer;
use super::group::{Group, vector};
use super::master::MASTER;
use kiln_formats::Value;
use kiln_tensor::{DType, Error, Result, Tensor, Var};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of an [`Optimizer`], laid out as PyTorch's.
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// The state of each parameter that has made a step, by its number: `step` (rank 0, f32), the tensors under
    /// PyTorch's names, and the numbers that are kept for it (rank 0, f64). A search keeps all its state under its
    /// first parameter.
    pub state: BTreeMap<usize, BTreeMap<String, Tensor>>,
    /// The groups.
    pub param_groups: Vec<GroupDict>,
}

/// The hyperparameters of a group and the numbers of its parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupDict {
    /// `lr`, `momentum`, `beta1`, …
    pub numbers: BTreeMap<String, f64>,
    /// `nesterov`, `amsgrad`, …
    pub flags: BTreeMap<String, bool>,
    /// Keys of [`OptimizerState::state`].
    pub params: Vec<usize>,
}

/// The state of one of PyTorch's optimisers, as a checkpoint holds it.
///
/// # Errors
/// If the value is not such a state; the message says what is missing.
impl TryFrom<&Value> for OptimizerState {
    type Error = Error;

    #[track_caller]
    fn try_from(dict: &Value) -> Result<OptimizerState> {
        let mut saved = OptimizerState::default();
        for (id, kept) in dict.get("state")?.entries() {
            let moments = kept.entries().iter().filter_map(|(name, value)| {
                let value = match value {
                    Value::Tensor(t) => t.clone(),
                    // Old versions kept steps as numbers. State that an optimiser does not use is `None`.
                    other => Tensor::scalar(other.float().ok()?),
                };
                Some((name.str().ok()?.to_string(), value))
            });
            saved.state.insert(id.int()? as usize, moments.collect());
        }
        for group in dict.get("param_groups")?.list()? {
            let mut group_dict = GroupDict::default();
            for id in group.get("params")?.list()? {
                group_dict.params.push(id.int()? as usize);
            }
            for (name, value) in group.entries() {
                let name = name.str()?;
                let tuple = TUPLES.iter().find(|(torch, _)| *torch == name);
                match (value, tuple) {
                    (Value::Tuple(values) | Value::List(values), Some((_, names))) => {
                        for (name, value) in names.iter().zip(values.iter()) {
                            group_dict.numbers.insert(name.to_string(), value.float()?);
                        }
                    }
                    (Value::Bool(on), _) => drop(group_dict.flags.insert(name.to_string(), *on)),
                    (Value::Int(_) | Value::Float(_), _) => {
                        group_dict.numbers.insert(name.to_string(), value.float()?);
                    }
                    // A learning rate may be a tensor in PyTorch.
                    (Value::Tensor(t), _) if t.ndim() == 0 => {
                        group_dict
                            .numbers
                            .insert(name.to_string(), t.to_dtype(DType::F64).item()?);
                    }
                    _ => {} // Flags of the implementation, such as `foreach`.
                }
            }
            saved.param_groups.push(group_dict);
        }
        Ok(saved)
    }
}

/// The form that PyTorch's optimisers load.
impl From<&OptimizerState> for Value {
    fn from(dict: &OptimizerState) -> Value {
        let state = dict.state.iter().map(|(id, kept)| (*id, Value::dict(kept)));
        let groups = dict.param_groups.iter().map(|group| {
            let in_tuple = |name: &str| TUPLES.iter().any(|(_, names)| names.contains(&name));
            let single = group.numbers.iter().filter(|(name, _)| !in_tuple(name));
            let tuples = TUPLES.iter().filter_map(|(torch, names)| {
                let values = names
                    .iter()
                    .map(|name| group.numbers.get(*name).copied().map(Value::from));
                Some((*torch, Value::Tuple(values.collect::<Option<_>>()?)))
            });
            let flags = group
                .flags
                .iter()
                .map(|(name, flag)| (name.as_str(), Value::from(*flag)));
            let single = single.map(|(name, value)| (name.as_str(), Value::from(*value)));
            let params = ("params", Value::from(group.params.clone()));
            Value::dict(single.chain(tuples).chain(flags).chain([params]))
        });
        let groups: Vec<Value> = groups.collect();
        Value::dict([
            ("state", Value::dict(state)),
            ("param_groups", groups.into()),
        ])
    }
}

/// Hyperparameters that PyTorch keeps as one tuple of numbers.
const TUPLES: [(&str, [&str; 2]); 3] = [
    ("betas", ["beta1", "beta2"]),
    ("etas", ["etaminus", "etaplus"]),
    ("step_sizes", ["step_size_min", "step_size_max"]),
];

/// The changes of a load, already checked.
pub(crate) struct Load {
    assignments: Vec<(Var, Tensor)>,
    values: Vec<(&'static str, f64)>,
    search_state: BTreeMap<String, Tensor>,
    /// Master weights that were not saved, each with the parameter that it is made from.
    masters: Vec<(Var, Var)>,
}

impl Optimizer {
    /// Returns the state that is needed to resume training: the tensors and counts of every parameter that has made a
    /// step, and the hyperparameters. Parameters are numbered through the groups in order.
    ///
    /// # Errors
    /// If a pending step fails.
    #[track_caller]
    pub fn state_dict(&self) -> Result<OptimizerState> {
        let mut dict = OptimizerState::default();
        let mut first_id = 0;
        for group in &self.groups {
            for (i, state) in group.saved_state()? {
                dict.state.insert(first_id + i, state);
            }
            let owned = |(name, value): &(&'static str, f64)| (name.to_string(), *value);
            let flag = |(name, flag_value): &(&'static str, bool)| (name.to_string(), *flag_value);
            let notes = group.schedule_numbers.iter();
            let notes = notes.map(|(name, value)| (name.to_string(), *value));
            let next = first_id + group.parameters.len();
            dict.param_groups.push(GroupDict {
                numbers: notes.chain(group.values.iter().map(owned)).collect(),
                flags: group.description.flags.iter().map(flag).collect(),
                params: (first_id..next).collect(),
            });
            first_id = next;
        }
        Ok(dict)
    }

    /// Loads tensors, counts and numbers. Flags must be those of this optimiser.
    ///
    /// # Errors
    /// If groups, parameters, state or flags do not match. Nothing is then changed.
    #[track_caller]
    pub fn load_state_dict(&mut self, dict: &OptimizerState) -> Result<()> {
        match self.plan_load(dict) {
            Ok(loads) => self.apply_load(loads),
            Err(message) => Err(Error::invalid("load_state_dict", message)),
        }
    }

    /// Returns the changes of a load, one per group, or the reason why it can't be loaded.
    pub(crate) fn plan_load(&mut self, dict: &OptimizerState) -> Result<Vec<Load>, String> {
        if dict.param_groups.len() != self.groups.len() {
            let (saved_count, own_count) = (dict.param_groups.len(), self.groups.len());
            return Err(format!(
                "{saved_count} groups can't be loaded into {own_count}"
            ));
        }
        let groups = self.groups.iter_mut().zip(&dict.param_groups);
        groups
            .map(|(group, saved)| group.plan_load(saved, dict))
            .collect()
    }

    #[track_caller]
    pub(crate) fn apply_load(&mut self, loads: Vec<Load>) -> Result<()> {
        for (group, load) in self.groups.iter_mut().zip(loads) {
            for (cell, value) in load.assignments {
                cell.assign(value.to(cell.device()))?;
            }
            for (master, parameter) in load.masters {
                let value = parameter.get().detach().to_dtype(master.dtype());
                master.assign(value.realize()?)?;
            }
            group.set_values(load.values)?;
            group.search_state = load.search_state;
        }
        Ok(())
    }
}

impl Group {
    /// Returns the state of each parameter that has made a step.
    #[track_caller]
    fn saved_state(&self) -> Result<Vec<(usize, BTreeMap<String, Tensor>)>> {
        if self.description.by_search {
            let kept = (!self.search_state.is_empty()).then(|| (0, self.search_state.clone()));
            return Ok(kept.into_iter().collect());
        }
        let mut counts = Vec::new();
        for (name, count) in &self.counts {
            counts.push((*name, count.get().to_vec::<f64>()?));
        }
        let mut states = Vec::new();
        for i in (0..self.parameters.len()).filter(|i| counts[0].1[*i] > 0.0) {
            let cells = self.state[i].iter().flatten();
            let mut state: BTreeMap<String, Tensor> = cells
                .map(|(name, cell)| (name.to_string(), cell.get().detach()))
                .collect();
            if let Some(master) = self.masters.get(i) {
                state.insert(MASTER.to_string(), master.get().detach());
            }
            for (name, count) in &counts {
                let value = match *name {
                    "step" => Tensor::scalar(count[i] as f32),
                    _ => Tensor::scalar(count[i]),
                };
                state.insert(name.to_string(), value);
            }
            states.push((i, state));
        }
        Ok(states)
    }

    /// Returns the changes of a load, or the reason why it can't be loaded.
    fn plan_load(&mut self, saved: &GroupDict, dict: &OptimizerState) -> Result<Load, String> {
        if saved.params.len() != self.parameters.len() {
            let (saved_count, own_count) = (saved.params.len(), self.parameters.len());
            return Err(format!(
                "a group of {saved_count} parameters can't be loaded into one of {own_count}"
            ));
        }
        for (name, own_flag) in &self.description.flags {
            if saved.flags.get(*name).is_some_and(|g| g != own_flag) {
                return Err(format!("{name} is {} there and {own_flag} here", !own_flag));
            }
        }
        let mut values = self.values.clone();
        for (name, value) in &mut values {
            *value = saved.numbers.get(*name).copied().unwrap_or(*value);
        }
        self.check_values(&values)?;
        let states: Vec<_> = saved.params.iter().map(|id| dict.state.get(id)).collect();
        if self.description.by_search {
            let kept = states.first().copied().flatten().cloned();
            return Ok(Load {
                assignments: Vec::new(),
                values,
                search_state: kept.unwrap_or_default(),
                masters: Vec::new(),
            });
        }
        let mut assignments = self.plan_counts(&states)?;
        for (i, state) in states.iter().enumerate() {
            if let Some(state) = state {
                assignments.extend(self.plan_state(i, saved.params[i], state)?);
            }
        }
        let mut masters = Vec::new();
        for (i, p) in self.parameters.iter().enumerate() {
            let Some(master) = self.masters.get(i) else {
                continue;
            };
            match states[i].and_then(|s| s.get(MASTER)) {
                Some(value) => {
                    assignments.push(plan_cell(MASTER, value, master, saved.params[i], p)?)
                }
                None => masters.push((master.clone(), p.clone())),
            }
        }
        Ok(Load {
            assignments,
            values,
            search_state: BTreeMap::new(),
            masters,
        })
    }

    /// Returns the assignments to the numbers that are kept for each parameter.
    fn plan_counts(
        &self,
        states: &[Option<&BTreeMap<String, Tensor>>],
    ) -> Result<Vec<(Var, Tensor)>, String> {
        let starts = [("step", 0.0)].into_iter();
        let starts = starts.chain(self.description.counts.iter().copied());
        let mut assignments = Vec::new();
        for ((name, start), (_, count)) in starts.zip(&self.counts) {
            let mut counts = Vec::new();
            for state in states {
                counts.push(match state.map(|s| s.get(name)) {
                    Some(Some(value)) => value.to_dtype(DType::F64).item().map_err(text)?,
                    // PyTorch's SGD keeps no count; it has made a step if it keeps anything.
                    Some(None) if name == "step" => 1.0,
                    Some(None) => return Err(format!("a parameter's state has no {name}")),
                    None => start,
                });
            }
            assignments.push((count.clone(), vector(counts.into_iter())));
        }
        Ok(assignments)
    }

    /// Returns the assignments to the state of one parameter, whose number in the saved state is `id`.
    fn plan_state(
        &mut self,
        i: usize,
        id: usize,
        state: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(Var, Tensor)>, String> {
        self.make_state(i).map_err(text)?;
        let parameter = &self.parameters[i];
        let mut assignments = Vec::new();
        for (name, cell) in self.state[i].iter().flatten() {
            let Some(value) = state.get(*name) else {
                return Err(format!(
                    "the state of parameter {id}, {parameter:?}, has no {name}"
                ));
            };
            assignments.push(plan_cell(name, value, cell, id, parameter)?);
        }
        Ok(assignments)
    }
}

/// Returns the assignment to one cell of a parameter's state. The parameter's number in the saved state is `id`.
fn plan_cell(
    name: &str,
    value: &Tensor,
    cell: &Var,
    id: usize,
    parameter: &Var,
) -> Result<(Var, Tensor), String> {
    let (saved_shape, own_shape) = (value.shape().map_err(text)?, cell.shape().map_err(text)?);
    if saved_shape != own_shape {
        return Err(format!(
            "{name} of parameter {id}, {parameter:?}, is {saved_shape:?}, not {own_shape:?}"
        ));
    }
    let value = value.detach().to_dtype(cell.dtype());
    Ok((cell.clone(), value.realize().map_err(text)?.clone()))
}

fn text(e: Error) -> String {
    e.message().to_string()
}
