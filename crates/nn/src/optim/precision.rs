//! Optimisers of parameters in narrow floats: master weights and stochastic rounding.

use super::{Group, Optimizer};
use kiln_tensor::{DType, Error, Result, Var};

impl Optimizer {
    /// Keeps, from now on, a *master weight* for each parameter of f16 or bf16: its value in f32. Steps update the
    /// master weight and round it to the parameter, so that changes too small for the parameter's dtype add up. Master
    /// weights start from the current values of the parameters.
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

    /// Keeps, from now on, a copy in f16 or bf16 of each f32 parameter. Steps write the copy when they write the
    /// parameter, so that [`autocast`](kiln_tensor::autocast) to that dtype reads it and casts no weight. See
    /// [`Var::keep_narrow`].
    ///
    /// # Errors
    /// If a value can't be computed, the dtype is neither, or inside `compile`.
    #[track_caller]
    pub fn keep_narrow_copies(&self, dtype: DType) -> Result<()> {
        let parameters = self.groups.iter().flat_map(|g| &g.parameters);
        let mut wide = parameters.filter(|p| p.dtype() == DType::F32);
        wide.try_for_each(|p| p.keep_narrow(dtype))
    }

    /// True if there are master weights; see [`Optimizer::keep_master_weights`].
    pub fn keeps_master_weights(&self) -> bool {
        self.keeps_masters
    }

    /// Returns the cells that steps update, in the order of the parameters: their master weights, and those parameters
    /// that have none (Apex's `master_params`). Gradients of master weights, such as clipped ones, replace those of
    /// their parameters in the next step, which clears them.
    pub fn master_params(&self) -> Vec<Var> {
        let group = |g: &Group| -> Vec<Var> {
            let parameters = g.parameters.iter().enumerate();
            parameters
                .map(|(i, p)| g.masters.get(i).unwrap_or(p).clone())
                .collect()
        };
        self.groups.iter().flat_map(group).collect()
    }

    /// The parameters, and their master weights where they have some.
    pub(crate) fn with_masters(&self) -> Vec<(&Var, Option<&Var>)> {
        let mut pairs = Vec::new();
        for group in &self.groups {
            let parameters = group.parameters.iter().enumerate();
            pairs.extend(parameters.map(|(i, p)| (p, group.masters.get(i))));
        }
        pairs
    }

    /// Clears the gradients of master weights.
    pub(crate) fn forget_master_gradients(&self) {
        let masters = self.groups.iter().flat_map(|g| g.masters.all());
        masters.for_each(Var::zero_grad);
    }

    /// Rounds, from now on, new values of bf16 parameters *stochastically*: up or down, with probabilities whose mean
    /// is the f32 value. So changes too small for bf16 add up without master weights. The random numbers are those of
    /// the default generator ([`manual_seed`](kiln_tensor::manual_seed)), the same on every device. Parameters of other
    /// dtypes are rounded to nearest.
    ///
    /// ```
    /// use kiln_nn::optim::{Optimizer, SGD};
    /// use kiln_tensor::{DType, Tensor, Var, manual_seed};
    /// manual_seed(0);
    /// let w = Var::parameter(Tensor::ones([1000], DType::BF16))?;
    /// let mut optimizer = Optimizer::new(&w, SGD::new().lr(1e-3))?;
    /// optimizer.round_stochastically()?;
    /// for _ in 0..4 {
    ///     w.set_grad(Tensor::ones([1000], DType::BF16))?;
    ///     optimizer.step()?; // rounded to nearest, all would stay at 1
    /// }
    /// let mean = w.to_dtype(DType::F32).mean(()).item::<f32>()?;
    /// assert!((mean - 0.996).abs() < 1e-3);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it keeps master weights, which make stochastic rounding pointless, or its rule evaluates the loss itself.
    #[track_caller]
    pub fn round_stochastically(&mut self) -> Result<()> {
        if self.keeps_masters || self.searches() {
            let message =
                "goes with neither master weights nor a rule that evaluates the loss itself";
            return Err(Error::invalid("round_stochastically", message));
        }
        self.stochastic = true;
        Ok(())
    }
}
