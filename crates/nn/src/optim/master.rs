//! Master weights: f32 copies of parameters in narrower floats.

use super::group::{Assignment, Cell, Group, wide};
use kiln_tensor::memory::Category;
use kiln_tensor::{Error, Result, Tensor, Var};

/// The master weights of a group, in the order of its parameters.
#[derive(Default)]
pub(crate) struct Masters {
    cells: Vec<Option<Var>>,
}

impl Masters {
    /// The master weight of a parameter, if it has one.
    pub(crate) fn get(&self, parameter: usize) -> Option<&Var> {
        self.cells.get(parameter)?.as_ref()
    }

    /// The gradient of a master weight, where the caller has set one.
    pub(crate) fn gradient(&self, parameter: usize) -> Option<Tensor> {
        self.get(parameter)?.grad()
    }

    /// Returns an update's assignments: the parameter's state, then the parameter. A parameter with a master weight has
    /// the master assigned first, and then its rounded value.
    pub(crate) fn assignments(
        &self,
        parameter: usize,
        p: &Var,
        state: &[Cell],
        mut values: Vec<Tensor>,
    ) -> Vec<Assignment> {
        let mut cells: Vec<Var> = state.iter().map(|(_, cell)| cell.clone()).collect();
        if let (Some(master), Some(new)) = (self.get(parameter), values.last()) {
            cells.push(master.clone());
            values.push(new.to_dtype(p.dtype()));
        }
        cells.push(p.clone());
        cells.into_iter().zip(values).collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Var> {
        self.cells.iter().flatten()
    }
}

impl Group {
    /// Makes a master weight for each parameter of a narrower float that has none.
    #[track_caller]
    pub(crate) fn make_masters(&mut self) -> Result<()> {
        if self.description.by_search {
            let message = "a search keeps no master weights";
            return Err(Error::invalid(self.description.name, message));
        }
        self.masters.cells.resize(self.parameters.len(), None);
        for (p, master) in self.parameters.iter().zip(&mut self.masters.cells) {
            let dtype = wide(p.dtype());
            if master.is_some() || dtype == p.dtype() {
                continue;
            }
            let value = p.get().detach().to_dtype(dtype);
            value.realize()?;
            let cell = Var::new(value)?;
            cell.count_as(Category::Moments);
            if let Some(name) = p.name() {
                cell.set_name(&format!("{name}.{MASTER}"));
            }
            *master = Some(cell);
        }
        Ok(())
    }
}

/// The name of master weights in the state of an optimiser.
pub(crate) const MASTER: &str = "master_param";
