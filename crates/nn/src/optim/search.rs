//! Steps that evaluate the loss themselves.

use kiln_tensor::{Result, Tensor, Var, assign_together, no_grad};
use std::collections::BTreeMap;

/// The input of [`Rule::search`](super::Rule::search).
pub struct Search<'a> {
    pub(crate) values: &'a [(&'static str, f64)],
    pub(crate) parameters: &'a [Var],
    /// The state that is kept from step to step.
    pub(crate) kept: &'a mut BTreeMap<String, Tensor>,
    pub(crate) loss: &'a mut dyn FnMut() -> Result<Tensor>,
}

impl Search<'_> {
    /// A number of the group; 0 if it has none of this name.
    pub fn number(&self, name: &str) -> f64 {
        let number = self.values.iter().find(|(n, _)| *n == name);
        number.map_or(0.0, |(_, value)| *value)
    }

    /// The parameters.
    pub fn parameters(&self) -> &[Var] {
        self.parameters
    }

    /// Returns the loss at the current parameters, and computes their gradients with backward.
    ///
    /// # Errors
    /// Those of the function that was given.
    pub fn evaluate(&mut self) -> Result<Tensor> {
        self.parameters.iter().for_each(Var::zero_grad);
        (self.loss)()
    }

    /// The gradients as one vector, zeros for a parameter that has none.
    ///
    /// # Errors
    /// If a gradient can't be computed.
    pub fn gradient(&self) -> Result<Vec<f64>> {
        let mut flat = Vec::new();
        for p in self.parameters {
            match p.grad() {
                Some(g) => flat.extend(g.to_dtype(kiln_tensor::DType::F64).to_vec::<f64>()?),
                None => flat.resize(flat.len() + p.numel()?, 0.0),
            }
        }
        Ok(flat)
    }

    /// The parameters as one vector.
    ///
    /// # Errors
    /// If a value can't be computed.
    pub fn position(&self) -> Result<Vec<f64>> {
        let mut flat = Vec::new();
        for p in self.parameters {
            let value = p.get().detach().to_dtype(kiln_tensor::DType::F64);
            flat.extend(value.to_vec::<f64>()?);
        }
        Ok(flat)
    }

    /// Moves the parameters to a position.
    ///
    /// # Errors
    /// If its length is not the number of elements of the parameters, or a device fails.
    pub fn go_to(&self, position: &[f64]) -> Result<()> {
        let flat = Tensor::from_slice(position, [position.len()]);
        let mut from = 0;
        let mut values = Vec::new();
        for p in self.parameters {
            let (n, shape) = (p.numel()?, p.shape()?);
            let value = no_grad(|| flat.narrow(0, from as i64, n as i64).reshape(shape));
            values.push(value.to_dtype(p.dtype()).to(p.device()));
            from += n;
        }
        assign_together(self.parameters.iter().zip(&values))
    }

    /// Returns a value kept from the step before, if there is one.
    pub fn state(&self, name: &str) -> Option<&Tensor> {
        self.kept.get(name)
    }

    /// Keeps a value for the next step; it is saved with the optimiser.
    pub fn set(&mut self, name: &str, value: Tensor) {
        self.kept.insert(name.to_string(), value);
    }
}
