//! Master weights: f32 values of parameters in narrower floats.

use super::Optimizer;
use super::group::{Assignment, Cell, Group, wide};
use kiln_tensor::{DType, Error, Result, Tensor, Var};

/// The master weights of a group, in the order of its parameters.
#[derive(Default)]
pub(crate) struct Masters {
    cells: Vec<Option<Var>>,
}

impl Masters {
    /// That of a parameter, if it has one.
    pub(crate) fn of(&self, parameter: usize) -> Option<&Var> {
        self.cells.get(parameter)?.as_ref()
    }

    /// Its gradient, where somebody gave it one.
    pub(crate) fn gradient(&self, parameter: usize) -> Option<Tensor> {
        self.of(parameter)?.grad()
    }

    /// What an update assigns: a parameter's state, and itself, or its master weight and, rounded, itself.
    pub(crate) fn assigned(
        &self,
        parameter: usize,
        p: &Var,
        state: &[Cell],
        mut values: Vec<Tensor>,
    ) -> Vec<Assignment> {
        let mut cells: Vec<Var> = state.iter().map(|(_, cell)| cell.clone()).collect();
        if let (Some(master), Some(new)) = (self.of(parameter), values.last()) {
            cells.push(master.clone());
            values.push(new.to_dtype(p.dtype()));
        }
        cells.push(p.clone());
        cells.into_iter().zip(values).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Var> {
        self.cells.iter().flatten()
    }
}

impl Optimizer {
    /// Keeps, from now on, a *master weight* for each parameter of f16 or bf16: its value in f32, which steps
    /// update and round to the parameter, so that changes too small for its dtype add up. They begin with what the
    /// parameters hold now.
    ///
    /// ```
    /// use kiln_nn::optim::{Optimizer, SGD};
    /// use kiln_tensor::{DType, Tensor, Var};
    /// let w = Var::parameter(Tensor::from(1.0f32).to_dtype(DType::BF16))?;
    /// let mut optimizer = Optimizer::new(&w, SGD::new().lr(1e-3))?;
    /// optimizer.keep_master_weights()?;
    /// for _ in 0..4 {
    ///     w.set_grad(Tensor::from(1.0f32).to_dtype(DType::BF16))?;
    ///     optimizer.step()?; // bf16 alone would stay at 1
    /// }
    /// let master = optimizer.master_params()[0].item::<f32>()?;
    /// assert!((master - 0.996).abs() < 1e-6);
    /// assert_eq!(w.get().to_dtype(DType::F32).item::<f32>()?, 0.99609375);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a value can't be computed, the rule evaluates the loss itself, parameters are
    /// [rounded stochastically](Optimizer::round_stochastically), or inside `compile`.
    #[track_caller]
    pub fn keep_master_weights(&mut self) -> Result<()> {
        if self.stochastic {
            let message = "stochastic rounding does without master weights";
            return Err(Error::invalid("keep_master_weights", message));
        }
        self.keeps_masters = true;
        self.groups.iter_mut().try_for_each(Group::make_masters)
    }

    /// Keeps, from now on, the value of each f32 parameter in f16 or bf16 beside it, which steps write as they write the
    /// parameter: [`autocast`](kiln_tensor::autocast) to that dtype reads it and casts no weight. See
    /// [`Var::keep_narrow`].
    ///
    /// # Errors
    /// If a value can't be computed, the dtype is neither, or inside `compile`.
    #[track_caller]
    pub fn keep_narrow_copies(&self, dtype: DType) -> Result<()> {
        let all = self.groups.iter().flat_map(|g| &g.parameters);
        let mut wide = all.filter(|p| p.dtype() == DType::F32);
        wide.try_for_each(|p| p.keep_narrow(dtype))
    }

    /// Whether there are master weights; see [`Optimizer::keep_master_weights`].
    pub fn keeps_master_weights(&self) -> bool {
        self.keeps_masters
    }

    /// What steps update, in the order of the parameters: their master weights, and those parameters that have none
    /// (Apex's `master_params`). Gradients of master weights, such as clipped ones, take the place of their
    /// parameters' in the next step, which forgets them.
    pub fn master_params(&self) -> Vec<Var> {
        let group = |g: &Group| -> Vec<Var> {
            let all = g.parameters.iter().enumerate();
            all.map(|(i, p)| g.masters.of(i).unwrap_or(p).clone())
                .collect()
        };
        self.groups.iter().flat_map(group).collect()
    }

    /// The parameters, and their master weights where they have some.
    pub(crate) fn with_masters(&self) -> Vec<(&Var, Option<&Var>)> {
        let mut all = Vec::new();
        for group in &self.groups {
            let parameters = group.parameters.iter().enumerate();
            all.extend(parameters.map(|(i, p)| (p, group.masters.of(i))));
        }
        all
    }

    /// Forgets the gradients of master weights.
    pub(crate) fn forget_master_gradients(&self) {
        let masters = self.groups.iter().flat_map(|g| g.masters.all());
        masters.for_each(Var::zero_grad);
    }
}

impl Group {
    /// A master weight for each parameter that wants one and has none.
    #[track_caller]
    pub(crate) fn make_masters(&mut self) -> Result<()> {
        if self.about.by_search {
            let message = "a search keeps no master weights";
            return Err(Error::invalid(self.about.name, message));
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
            if let Some(of) = p.name() {
                cell.set_name(&format!("{of}.{MASTER}"));
            }
            *master = Some(cell);
        }
        Ok(())
    }
}

/// What master weights are called among the state of an optimiser.
pub(crate) const MASTER: &str = "master_param";
