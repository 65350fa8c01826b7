//! The optimiser: groups of parameters and their steps.

use super::amp_status::AmpStatus;
use super::group::Group;
use super::rule::Rule;
use super::search::Search;
use crate::SOURCE;
use kiln_tensor::{
    Error, Result, Tensor, Var, Vars, assign_together, assign_unless, enable_grad,
    on_behalf_of_caller, realize_first, set_autocast, set_grad_enabled,
};
use std::collections::HashSet;

/// Updates parameters from their gradients; see the [module](crate::optim).
pub struct Optimizer {
    pub(crate) groups: Vec<Group>,
    /// True if parameters of narrower floats have master weights.
    pub(crate) keeps_masters: bool,
    /// True if parameters of bf16 are rounded stochastically.
    pub(super) stochastic: bool,
    /// The state that `amp` keeps in it.
    pub(crate) amp: AmpStatus,
}

impl Optimizer {
    /// Makes an optimiser of one group.
    ///
    /// ```
    /// use kiln_nn::optim::{AdamW, Optimizer};
    /// use kiln_nn::{Linear, Module};
    /// let model = Linear::new(8, 2)?;
    /// let optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(1e-3).weight_decay(0.1))?;
    /// assert_eq!(optimizer.lr(), [1e-3]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are no parameters, a hyperparameter is out of range, a parameter is listed twice or is not a parameter
    /// (see [`Var::parameter`]), or inside `compile`.
    #[track_caller]
    pub fn new(parameters: impl Vars, rule: impl Rule) -> Result<Optimizer> {
        let mut optimizer = Optimizer {
            groups: Vec::new(),
            keeps_masters: false,
            stochastic: false,
            amp: AmpStatus::default(),
        };
        optimizer.add_group(parameters, rule)?;
        let group = &optimizer.groups[0];
        if group.parameters.is_empty() {
            return Err(group
                .description
                .error("there are no parameters to optimise"));
        }
        Ok(optimizer)
    }

    /// Adds a group with hyperparameters of its own.
    ///
    /// ```
    /// use kiln_nn::optim::{Adam, Optimizer};
    /// use kiln_nn::{Linear, Module};
    /// let (backbone, head) = (Linear::new(8, 4)?, Linear::new(4, 2)?);
    /// let mut optimizer = Optimizer::new(backbone.parameters(), Adam::new().lr(1e-5))?;
    /// optimizer.add_group(head.parameters(), Adam::new().lr(1e-3))?;
    /// assert_eq!(optimizer.lr(), [1e-5, 1e-3]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    #[track_caller]
    pub fn add_group(&mut self, parameters: impl Vars, rule: impl Rule) -> Result<()> {
        let parameters = parameters.into_vars();
        let earlier = self.groups.iter().flat_map(|g| &g.parameters);
        let mut known: HashSet<u64> = earlier.map(Var::id).collect();
        for p in &parameters {
            p.get().check()?;
            if !known.insert(p.id()) {
                let message = format!("{p:?} is listed more than once");
                return Err(rule.describe().error(message));
            }
            if !p.is_parameter() {
                let message = format!("{p:?} is not a parameter; make it with Var::parameter");
                return Err(rule.describe().error(message));
            }
        }
        let mut group = Group::new(parameters, Box::new(rule))?;
        let search = |g: &Group| g.description.by_search;
        if search(&group) && !self.groups.is_empty() || self.groups.iter().any(search) {
            let message = "a search is over all parameters: there can't be other groups";
            return Err(group.description.error(message));
        }
        if self.keeps_masters {
            group.make_masters()?;
        }
        group.parameters.iter().for_each(Var::keep_casts);
        self.groups.push(group);
        Ok(())
    }

    /// A number that no other optimiser has.
    pub(crate) fn id(&self) -> u64 {
        self.groups.first().map_or(0, |g| g.numbers().id())
    }

    /// True if its steps evaluate the loss themselves.
    pub(crate) fn searches(&self) -> bool {
        self.groups.iter().any(|g| g.description.by_search)
    }

    /// The groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The groups, with mutable access to their numbers.
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
            .map(|g| g.check_value("lr", lr))
            .find(Result::is_err)
        {
            return Err(Error::invalid("set_lr", message));
        }
        self.groups
            .iter_mut()
            .try_for_each(|g| g.set_number("lr", lr))
    }

    /// Clears the gradients.
    pub fn zero_grad(&self) {
        self.groups
            .iter()
            .flat_map(|g| &g.parameters)
            .for_each(Var::zero_grad);
        self.forget_master_gradients();
    }

    /// Updates every parameter that has a gradient, and computes every unrealised tensor of this thread, such as the
    /// loss. Inside `compile` the update is recorded.
    ///
    /// # Errors
    /// If a gradient carries an error or the run of the update fails. Every parameter and its state then keep their
    /// values; other tensors of the thread report their errors when they are read. Also if the rule evaluates the loss
    /// itself; see [`Optimizer::step_with`].
    #[track_caller]
    pub fn step(&mut self) -> Result<()> {
        if self.amp.scaled {
            let message = "the gradients are still scaled: call scale_loss without delay_unscale before step()";
            return Err(Error::invalid("step", message));
        }
        let skip = self.amp.skip.take();
        self.step_unless(skip.as_ref())
    }

    /// [`Optimizer::step`], which changes nothing where `skip`, a bool of rank 0, is true. The flag is read when the
    /// step runs, not here.
    #[track_caller]
    pub(crate) fn step_unless(&mut self, skip: Option<&Tensor>) -> Result<()> {
        on_behalf_of_caller(SOURCE, || self.record_step(skip))
    }

    fn record_step(&mut self, skip: Option<&Tensor>) -> Result<()> {
        if let Some(group) = self.groups.iter().find(|g| g.description.by_search) {
            let message = "evaluates the loss several times a step; use step_with";
            return Err(group.description.error(message));
        }
        let (mode, casts) = (set_grad_enabled(false), set_autocast(None));
        let mut assignments: Vec<(Var, Tensor)> = Vec::new();
        for group in &mut self.groups {
            assignments.extend(group.update(self.stochastic)?);
        }
        drop((mode, casts));
        let pairs = assignments.iter().map(|(cell, value)| (cell, value));
        match skip {
            Some(skip) => assign_unless(skip, pairs)?,
            None => assign_together(pairs)?,
        }
        self.forget_master_gradients();
        let cells: Vec<Var> = assignments.into_iter().map(|(cell, _)| cell).collect();
        realize_first(&cells)
    }

    /// Makes a step that evaluates the loss as often as the rule needs it (PyTorch's `step(closure)`). `loss` returns
    /// the loss, and computes the gradients with `backward`. The gradients are cleared before each call. Returns the
    /// loss before the step.
    ///
    /// ```
    /// use kiln_nn::optim::{LBFGS, LineSearch, Optimizer};
    /// use kiln_tensor::{Tensor, Var};
    /// let w = Var::parameter(Tensor::from([3.0, -2.0]))?;
    /// let mut optimizer = Optimizer::new(&w, LBFGS::new().line_search_fn(LineSearch::StrongWolfe))?;
    /// optimizer.step_with(|| {
    ///     let loss = (w.get() - Tensor::from([1.0, 5.0])).square().sum(());
    ///     loss.backward()?;
    ///     Ok(loss)
    /// })?;
    /// let left = (w.get() - Tensor::from([1.0, 5.0])).abs().amax(());
    /// assert!(left.item::<f64>()? < 1e-12);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `loss` and of [`Optimizer::step`]; the parameters and their state then keep their values.
    #[track_caller]
    pub fn step_with(&mut self, mut loss: impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        let mut loss = || enable_grad(&mut loss);
        if let [group] = &mut self.groups[..]
            && group.description.by_search
        {
            return on_behalf_of_caller(SOURCE, || group.search(&mut loss));
        }
        self.zero_grad();
        let loss = loss()?;
        self.step()?;
        Ok(loss.detach())
    }
}

impl Group {
    fn search(&mut self, loss: &mut dyn FnMut() -> Result<Tensor>) -> Result<Tensor> {
        if kiln_tensor::is_recording() {
            let message = "reads the loss, which inside compile has no value yet";
            return Err(self.description.error(message));
        }
        let before: Vec<Tensor> = self.parameters.iter().map(|p| p.get().detach()).collect();
        let mut kept = self.search_state.clone();
        let mut search = Search {
            values: &self.values,
            parameters: &self.parameters,
            kept: &mut kept,
            loss,
        };
        let loss = self.rule.search(&mut search);
        let loss = loss.and_then(|loss| realize_first(&self.parameters).map(|()| loss.detach()));
        match loss {
            Ok(_) => self.search_state = kept,
            Err(_) => {
                let restored = assign_together(self.parameters.iter().zip(&before));
                restored.and_then(|()| realize_first(&self.parameters))?;
            }
        }
        loss
    }
}
