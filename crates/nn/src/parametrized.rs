//! Computations of parameters from others.

use crate::{Mode, SOURCE};
use kiln_tensor::{Normalize, Result, Source, Tensor, Var, assign_together, keep, no_grad};
use std::any::Any;
use std::sync::Arc;

/// The number of power iterations at first.
const FIRST_ITERATIONS: usize = 15;

/// A computation with the cells that it reads.
#[doc(hidden)]
pub struct Parametrized {
    /// The parameters, then the buffers, by the ends of their names.
    cells: Vec<(&'static str, Var)>,
    parameters: usize,
    rule: Rule,
    mode: Mode,
}

#[derive(Clone)]
enum Rule {
    /// The dim with a length for each index, if there is one.
    Weight(Option<usize>),
    Spectral {
        iterations: usize,
        eps: f64,
        dim: usize,
    },
    Function(Arc<dyn Fn(&Tensor) -> Tensor + Send + Sync>),
}

impl Parametrized {
    /// Weight norm: a length for each index of a dim, or one of all.
    pub(crate) fn weight(value: &Tensor, dim: Option<usize>) -> Result<Parametrized> {
        let length = Var::parameter(norms_along(value, dim))?;
        let originals = [("original0", length), ("original1", Var::parameter(value)?)];
        Ok(Parametrized::new(originals, Rule::Weight(dim)))
    }

    /// Spectral norm, with the outputs in a dim.
    pub(crate) fn spectral(
        value: &Tensor,
        iterations: usize,
        eps: f64,
        dim: usize,
    ) -> Result<Parametrized> {
        let rule = Rule::Spectral {
            iterations,
            eps,
            dim,
        };
        let mut p = Parametrized::new([("original", Var::parameter(value)?)], rule);
        if value.ndim() > 1 {
            let matrix = matrix(value, dim);
            let drawn =
                |n: usize| normalize(Tensor::randn([n], value.dtype()).to(value.device()), eps);
            let [u, v] = matrix.size()?.map(drawn);
            let (u, v) = iterate(&matrix, u, v, FIRST_ITERATIONS, eps);
            p.cells.push(("0._u", Var::new(u)?));
            p.cells.push(("0._v", Var::new(v)?));
        }
        Ok(p)
    }

    /// A function of the parameter.
    pub(crate) fn function(
        value: &Tensor,
        f: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static,
    ) -> Result<Parametrized> {
        let original = ("original", Var::parameter(value)?);
        Ok(Parametrized::new([original], Rule::Function(Arc::new(f))))
    }

    fn new<const N: usize>(parameters: [(&'static str, Var); N], rule: Rule) -> Parametrized {
        Parametrized {
            cells: parameters.into(),
            parameters: N,
            rule,
            mode: Mode::new(),
        }
    }

    /// The computation of a cell's value, if it has one.
    pub(crate) fn of_cell(var: &Var) -> Option<Arc<Parametrized>> {
        let source: Arc<dyn Any + Send + Sync> = var.source()?;
        source.downcast().ok()
    }

    /// The cells that it reads, by the ends of their names, each with true if it is a parameter.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (&'static str, &Var, bool)> {
        let cells = self.cells.iter().enumerate();
        cells.map(|(i, (name, var))| (*name, var, i < self.parameters))
    }

    /// The parameters that it reads.
    pub(crate) fn originals(&self) -> Vec<&Var> {
        let originals = self.cells().filter(|(_, _, is_parameter)| *is_parameter);
        originals.map(|(_, var, _)| var).collect()
    }

    /// The ends of older names of its parameters, with those of today: before PyTorch 2.1, weight norm had `weight_g` and
    /// `weight_v`.
    pub(crate) fn older_names(&self) -> &'static [(&'static str, &'static str)] {
        match self.rule {
            Rule::Weight(_) => &[("g", "original0"), ("v", "original1")],
            Rule::Spectral { .. } | Rule::Function(_) => &[],
        }
    }

    pub(crate) fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Returns the same computation from copies of the cells.
    pub(crate) fn remap(&self, mut copy: impl FnMut(&Var) -> Result<Var>) -> Result<Parametrized> {
        let copied = |(name, var): &(&'static str, Var)| Ok((*name, copy(var)?));
        Ok(Parametrized {
            cells: self.cells.iter().map(copied).collect::<Result<_>>()?,
            parameters: self.parameters,
            rule: self.rule.clone(),
            mode: self.mode.clone(),
        })
    }

    fn get(&self, index: usize) -> Tensor {
        self.cells[index].1.get()
    }

    fn normalize_by(&self, iterations: usize, eps: f64, dim: usize) -> Result<Tensor> {
        let weight = self.get(0);
        let [_, (_, u), (_, v)] = &self.cells[..] else {
            return Ok(normalize(weight, eps));
        };
        let matrix = matrix(&weight, dim);
        if self.mode.is_training() {
            let (new_u, new_v) = iterate(&matrix, u.get(), v.get(), iterations, eps);
            assign_together([(u, new_u), (v, new_v)])?;
        }
        Ok(&weight / u.get().dot(matrix.mv(v)))
    }
}

impl Source for Parametrized {
    fn library(&self) -> &'static str {
        SOURCE
    }

    fn value(&self) -> Tensor {
        match &self.rule {
            Rule::Weight(dim) => {
                let (length, direction) = (self.get(0), self.get(1));
                &direction * (length / norms_along(&direction, *dim))
            }
            Rule::Spectral {
                iterations,
                eps,
                dim,
            } => (self.normalize_by(*iterations, *eps, *dim)).unwrap_or_else(Tensor::from_error),
            Rule::Function(f) => f(&self.get(0)),
        }
    }

    fn inverse(&self, value: &Tensor) -> Result<Vec<(Var, Tensor)>> {
        let values = match &self.rule {
            Rule::Weight(dim) => vec![norms_along(value, *dim), value.clone()],
            Rule::Spectral { .. } | Rule::Function(_) => vec![value.clone()],
        };
        let cells = self.cells.iter().map(|(_, var)| var.clone());
        Ok(cells.zip(values).collect())
    }
}

/// The norms of a weight along all dims but one, which stay as dims of 1, or of the whole weight.
fn norms_along(weight: &Tensor, dim: Option<usize>) -> Tensor {
    match dim {
        None => weight.vector_norm(2.0, ()),
        Some(_) if weight.ndim() == 1 => weight.abs(),
        Some(dim) => {
            let other_dims: Vec<i64> = (0..weight.ndim() as i64)
                .filter(|d| *d != dim as i64)
                .collect();
            weight.vector_norm(2.0, keep(other_dims))
        }
    }
}

/// A weight as a matrix with a row for each output.
fn matrix(weight: &Tensor, dim: usize) -> Tensor {
    weight.movedim(dim as i64, 0).flatten(1)
}

/// A vector of length 1.
fn normalize(vector: Tensor, eps: f64) -> Tensor {
    vector.normalize_with(0, Normalize::new().eps(eps))
}

/// Returns left and right singular vectors after some power iterations.
fn iterate(matrix: &Tensor, mut u: Tensor, mut v: Tensor, n: usize, eps: f64) -> (Tensor, Tensor) {
    no_grad(|| {
        for _ in 0..n {
            u = normalize(matrix.mv(&v), eps);
            v = normalize(matrix.t().mv(&u), eps);
        }
    });
    (u, v)
}
