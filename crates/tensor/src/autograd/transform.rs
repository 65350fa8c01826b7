//! Derivatives of functions: products with the Jacobian matrix from either side, the Jacobian matrix, and the Hessian
//! matrix.
//!
//! The function is recorded once, on stand-ins for its inputs. Results can be differentiated again if gradients may
//! be requested for other tensors too: those that require them among the inputs, or those that the function captures.

use super::seed;
use crate::nest::{Counts, Flat, NestOf, build, build_of};
use crate::record::compose;
use crate::{
    Error, ErrorKind, Nest, Result, Returned, Tensor, enable_grad, is_grad_enabled, no_grad,
    on_behalf_of_caller, scan, set_device, stack,
};
use kiln_ir::{Builder, ops};
use kiln_lazy::grad::edge::{Edge, Leaf};
use kiln_lazy::grad::engine::{self, Keep};
use kiln_lazy::grad::walk::{GradEntry, Walk};
use kiln_lazy::label::called;
use kiln_lazy::{Handle, body};
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

/// This file. Operations recorded in it belong to the user's line.
const HERE: &str = file!();

/// The maximum number of rows of a Jacobian matrix that are recorded one by one. More rows are recorded as a loop.
const UNROLLED: i64 = 8;

/// Returns `f(inputs)`, and a function from gradients of the result to those of the inputs: the vector-Jacobian
/// product (`torch.func.vjp`; called with a gradient, it is `torch.autograd.functional.vjp`). Inputs and result are
/// structures of tensors ([`Nest`]).
///
/// ```
/// use kiln_tensor::{Tensor, vjp};
/// let (x, w) = (Tensor::from([1.0f64, 2.0]), Tensor::from([3.0f64, 4.0]));
/// let (y, pull) = vjp(|(x, w)| x * w, (&x, &w))?;
/// assert_eq!(y.to_vec::<f64>()?, [3.0, 8.0]);
/// let (dx, dw) = pull.call(Tensor::from([1.0f64, 10.0]))?;
/// assert_eq!((dx.to_vec::<f64>()?, dw.to_vec::<f64>()?), (vec![3.0, 40.0], vec![1.0, 20.0]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If `f` fails, or an input is not a float tensor.
#[track_caller]
pub fn vjp<I: Nest, R: Returned>(f: impl FnOnce(I::Owned) -> R, inputs: I) -> Result<Pulled<I, R>> {
    let recorded = RecordedFunction::record::<I, R>(f, &inputs, "vjp", Location::caller())?;
    let y = recorded.results.iter().map(|y| recorded.finish(y));
    let y = build::<R::Nest, Tensor>(&recorded.gives, y.collect::<Vec<_>>());
    let types = PhantomData;
    Ok((y, Pullback { recorded, types }))
}

/// The result of [`vjp`]: that of the function, and its pullback.
type Pulled<I, R> = (
    <R as Returned>::Nest,
    Pullback<<I as Nest>::Owned, <R as Returned>::Nest>,
);

/// The function from gradients of the results to gradients of the inputs; see [`vjp`].
pub struct Pullback<I, O> {
    recorded: RecordedFunction,
    types: PhantomData<fn(O) -> I>,
}

impl<I: Nest<Owned = I>, O: Nest<Owned = O>> Pullback<I, O> {
    /// Returns the gradients of the inputs for those of the results; zeros where no result depends on an input.
    ///
    /// # Errors
    /// If a gradient doesn't have the dtype and shape of its result, or as [`Tensor::backward`].
    #[track_caller]
    pub fn call(&self, gradients: impl Nest<Owned = O>) -> Result<I> {
        let loc = Location::caller();
        let (flat, paths) = Flat::with_paths(&gradients);
        let recorded = &self.recorded;
        check_same_kind(
            &flat,
            (&recorded.results, &recorded.gives),
            |i, actual, y| {
                let name = called("gradient", &paths[i]);
                let message = format!("{name} is {actual}, but the result is {y}");
                Error::new(ErrorKind::Value, "vjp", message, loc)
            },
        )?;
        let pulled =
            on_behalf_of_caller(HERE, || recorded.pull(&recorded.results, &flat.leaves, loc))?;
        let pulled = pulled.iter().map(|g| recorded.finish(g));
        Ok(build::<I, Tensor>(
            &recorded.takes,
            pulled.collect::<Vec<_>>(),
        ))
    }
}

/// Returns the error of `wrong` if tensors don't have the structure, dtypes and shapes of others.
fn check_same_kind(
    actual: &Flat,
    (wanted, counts): (&[Tensor], &Counts),
    wrong: impl Fn(usize, String, String) -> Error,
) -> Result<()> {
    for (i, (t, expected)) in actual.leaves.iter().zip(wanted).enumerate() {
        if t.check()?.fact() != expected.fact() {
            return Err(wrong(i, t.fact().to_string(), expected.fact().to_string()));
        }
    }
    if actual.counts != *counts || actual.leaves.len() != wanted.len() {
        let number = |n: usize| format!("one of {n} tensors");
        return Err(wrong(0, number(actual.leaves.len()), number(wanted.len())));
    }
    Ok(())
}

/// Returns `f(inputs)` and its directional derivative along `tangents`, a structure like the inputs: the
/// Jacobian-vector product (`torch.func.jvp`). It is computed as the derivative of the vector-Jacobian product, which
/// is linear in its cotangent.
///
/// ```
/// use kiln_tensor::{Tensor, jvp};
/// let x = Tensor::from([1.0f64, 2.0]);
/// let (y, dy) = jvp(|x: Tensor| x.square(), &x, Tensor::from([1.0f64, 10.0]))?;
/// assert_eq!((y.to_vec::<f64>()?, dy.to_vec::<f64>()?), (vec![1.0, 4.0], vec![2.0, 40.0]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If `f` fails, an input is not a float tensor, or a tangent doesn't have the dtype and shape of its input.
#[track_caller]
pub fn jvp<I: Nest, R: Returned>(
    f: impl FnOnce(I::Owned) -> R,
    inputs: I,
    tangents: impl Nest<Owned = I::Owned>,
) -> Result<(R::Nest, R::Nest)> {
    let loc = Location::caller();
    let (along, paths) = Flat::with_paths(&tangents);
    let recorded = RecordedFunction::record::<I, R>(f, &inputs, "jvp", loc)?;
    check_same_kind(&along, (&recorded.inputs, &recorded.takes), |i, t, x| {
        let name = called("tangent", paths.get(i).map_or("", |p| p));
        let message = format!("{name} is {t}, but the input is {x}");
        Error::new(ErrorKind::Value, "jvp", message, loc)
    })?;
    let dy = on_behalf_of_caller(HERE, || recorded.push(&along.leaves, loc))?;
    let results = |values: &[Tensor]| {
        let values = values
            .iter()
            .map(|t| recorded.finish(t))
            .collect::<Vec<_>>();
        build::<R::Nest, Tensor>(&recorded.gives, values)
    };
    Ok((results(&recorded.results), results(&dy)))
}

/// The derivatives of each element of `f(inputs)` with respect to each element of the inputs
/// (`torch.autograd.functional.jacobian`). For one result and one input it is a tensor of the result's shape followed
/// by the input's. For structures, the place of each result holds a structure like the inputs.
///
/// The rows are computed in one program; if there are many, by a [`scan`]. They can be differentiated again if an
/// input requires gradients.
///
/// ```
/// use kiln_tensor::{Tensor, jacobian};
/// let x = Tensor::from([1.0f64, 2.0]);
/// let j = jacobian(|x: Tensor| x.square(), &x)?;
/// assert_eq!(j.to_vec::<f64>()?, [2.0, 0.0, 0.0, 4.0]);
/// let (of_sum, of_first) = jacobian(|(x, y): (Tensor, Tensor)| (&x + &y, x.narrow(0, 0, 1)), (&x, &x))?;
/// assert_eq!(of_sum.1.shape()?, [2, 2]);
/// assert_eq!(of_first.1.to_vec::<f64>()?, [0.0, 0.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If `f` fails, an input is not a float tensor, or an operation has no derivative.
#[track_caller]
pub fn jacobian<I: Nest, R: Returned<Nest: NestOf>>(
    f: impl FnOnce(I::Owned) -> R,
    inputs: I,
) -> Result<<R::Nest as NestOf>::Of<I::Owned>> {
    let loc = Location::caller();
    let recorded = RecordedFunction::record::<I, R>(f, &inputs, "jacobian", loc)?;
    let blocks = on_behalf_of_caller(HERE, || recorded.jacobian(&recorded.results, loc))?;
    let mut blocks = blocks.into_iter();
    Ok(build_of::<R::Nest, _>(&recorded.gives, || {
        build::<I, Tensor>(&recorded.takes, blocks.next().unwrap_or_default())
    }))
}

/// The second derivatives of `f(inputs)`, which must be one number (`torch.autograd.functional.hessian`). For one
/// input it is a tensor with the input's shape twice. For a structure, the place of each tensor holds a structure
/// like the inputs.
///
/// ```
/// use kiln_tensor::{Tensor, hessian};
/// let x = Tensor::from([1.0f64, 2.0]);
/// let h = hessian(|x: Tensor| x.pow(3).sum(()), &x)?;
/// assert_eq!(h.to_vec::<f64>()?, [6.0, 0.0, 0.0, 12.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`jacobian`], or if `f` returns more than one number.
#[track_caller]
pub fn hessian<I: Nest<Owned: NestOf>, R: Returned<Nest = Tensor>>(
    f: impl FnOnce(I::Owned) -> R,
    inputs: I,
) -> Result<<I::Owned as NestOf>::Of<I::Owned>> {
    let loc = Location::caller();
    let recorded = RecordedFunction::record::<I, R>(f, &inputs, "hessian", loc)?;
    let blocks = on_behalf_of_caller(HERE, || {
        let slopes = recorded.scalar_gradients(&recorded.results[0], loc)?;
        recorded.jacobian(&slopes, loc)
    })?;
    let mut blocks = blocks.into_iter();
    Ok(build_of::<I::Owned, _>(&recorded.takes, || {
        build::<I, Tensor>(&recorded.takes, blocks.next().unwrap_or_default())
    }))
}

/// A function, recorded once.
struct RecordedFunction {
    /// The stand-ins for the inputs.
    inputs: Vec<Tensor>,
    results: Vec<Tensor>,
    takes: Counts,
    gives: Counts,
    /// True if derivatives may be differentiated again.
    create: bool,
}

impl RecordedFunction {
    #[track_caller]
    fn record<I: Nest, R: Returned>(
        f: impl FnOnce(I::Owned) -> R,
        inputs: &I,
        op: &'static str,
        loc: &'static Location<'static>,
    ) -> Result<RecordedFunction> {
        let (flat, paths) = Flat::with_paths(inputs);
        let mut inputs = Vec::new();
        for (x, path) in flat.leaves.iter().zip(&paths) {
            if !x.check()?.dtype().is_float() {
                let (name, fact) = (called("input", path), x.fact());
                let message = format!("only floats have derivatives, but {name} is {fact}");
                return Err(Error::new(ErrorKind::Value, op, message, loc));
            }
            inputs.push(stand_in(x, op).check()?.clone());
        }
        let stand_ins = build::<I, Tensor>(&flat.counts, inputs.iter().cloned());
        let result = enable_grad(|| f(stand_ins)).into_result()?;
        let results = Flat::of(&result);
        for y in &results.leaves {
            y.check()?;
        }
        let create = is_grad_enabled()
            && (body::may_flow() || reach_other_leaves(&results.leaves, &inputs, loc)?);
        Ok(RecordedFunction {
            inputs,
            results: results.leaves,
            takes: flat.counts,
            gives: results.counts,
            create,
        })
    }

    /// A derivative or a result as the user receives it: without gradients unless it may be differentiated again.
    fn finish(&self, t: &Tensor) -> Tensor {
        let mut t = t.clone();
        if !self.create {
            t.handle.edge = Edge::None;
        }
        t
    }

    /// The gradients of the inputs for one number, recorded so that they can be differentiated again.
    fn scalar_gradients(&self, y: &Tensor, loc: &'static Location<'static>) -> Result<Vec<Tensor>> {
        let gradients = match y.requires_grad() {
            true => {
                let seed = seed(y, None, "hessian", loc)?;
                enable_grad(|| gradients(&[(y, seed)], &self.inputs, true, loc))?
            }
            false => vec![None; self.inputs.len()],
        };
        Ok(or_zeros(gradients, &self.inputs))
    }

    /// The gradients of the inputs for those of the results.
    fn pull(
        &self,
        results: &[Tensor],
        cotangents: &[Tensor],
        loc: &'static Location<'static>,
    ) -> Result<Vec<Tensor>> {
        let pairs = results.iter().zip(cotangents.iter().cloned());
        let seeds: Vec<_> = pairs.filter(|(y, _)| y.requires_grad()).collect();
        let pulled = gradients(&seeds, &self.inputs, self.create, loc)?;
        Ok(or_zeros(pulled, &self.inputs))
    }

    /// The derivatives of the results along tangents of the inputs.
    fn push(&self, along: &[Tensor], loc: &'static Location<'static>) -> Result<Vec<Tensor>> {
        let cotangent = |y: &Tensor| y.zeros_like().requires_grad_(y.requires_grad());
        let cotangents: Vec<Tensor> = self.results.iter().map(cotangent).collect();
        let pairs = self.results.iter().zip(cotangents.iter().cloned());
        let seeds: Vec<_> = pairs.filter(|(y, _)| y.requires_grad()).collect();
        let pulled = gradients(&seeds, &self.inputs, true, loc)?;
        let linear = pulled.iter().zip(along);
        let linear = linear.filter_map(|(g, t)| Some((g.as_ref()?, t.clone())));
        let seeds: Vec<_> = linear.filter(|(g, _)| g.requires_grad()).collect();
        let pushed = gradients(&seeds, &cotangents, self.create, loc)?;
        Ok(or_zeros(pushed, &self.results))
    }

    /// For each result, the derivatives with respect to each input.
    fn jacobian(
        &self,
        results: &[Tensor],
        loc: &'static Location<'static>,
    ) -> Result<Vec<Vec<Tensor>>> {
        let recorded = || results.iter().map(|y| self.rows(y, loc)).collect();
        match self.create {
            true => recorded(),
            false => no_grad(recorded),
        }
    }

    /// The derivatives of the elements of `y` with respect to each input.
    fn rows(&self, y: &Tensor, loc: &'static Location<'static>) -> Result<Vec<Tensor>> {
        let device_scope = set_device(y.device());
        let zeros = |x: &Tensor| Tensor::zeros([y.dims(), x.dims()].concat(), x.dtype());
        if !y.requires_grad() || y.fact().numel().is(0) {
            return Ok(self.inputs.iter().map(zeros).collect());
        }
        let count = y.fact().numel();
        let numbers = Tensor::arange(0, count.clone(), 1);
        drop(device_scope);
        let row = |i: &Tensor| {
            let hot = numbers.eq(i).to_dtype(y.dtype()).reshape(y.dims());
            gradients(&[(y, hot.check()?.clone())], &self.inputs, self.create, loc)
        };
        let mut reached = Vec::new();
        let gradients: Vec<Tensor> = match count.as_const().filter(|n| *n <= UNROLLED) {
            Some(n) => {
                let mut rows = Vec::new();
                for i in 0..n {
                    let gradients = row(&numbers.select(0, i))?;
                    reached = gradients.iter().map(Option::is_some).collect();
                    rows.push(gradients.into_iter().flatten().collect::<Vec<_>>());
                }
                let inputs = 0..rows[0].len();
                inputs
                    .map(|x| stack(rows.iter().map(|r| &r[x]), 0))
                    .collect()
            }
            None => {
                scan((), &numbers, |(), i| {
                    let gradients = row(&i)?;
                    reached = gradients.iter().map(Option::is_some).collect();
                    Ok(((), gradients.into_iter().flatten().collect::<Vec<_>>()))
                })?
                .1
            }
        };
        let mut gradients = gradients.into_iter();
        let block = |(x, reached): (&Tensor, &bool)| match reached {
            true => gradients.next().map_or_else(
                || zeros(x),
                |rows| rows.reshape([y.dims(), x.dims()].concat()),
            ),
            false => zeros(x),
        };
        Ok(self.inputs.iter().zip(&reached).map(block).collect())
    }
}

/// The argument that a function receives for an input: the same value as a leaf of its own. If the input itself
/// requires gradients, they flow on to it.
#[track_caller]
fn stand_in(x: &Tensor, op: &'static str) -> Tensor {
    let shared = body::is_tracing() || x.requires_grad();
    let own = match shared {
        true => on_behalf_of_caller(HERE, || enable_grad(|| copy_value(x, op))),
        false => x.clone(),
    };
    match own.requires_grad() {
        true => own,
        false => own.requires_grad_(true),
    }
}

/// The same value as the result of a separate operation.
fn copy_value(x: &Tensor, op: &'static str) -> Tensor {
    compose(op, &[x], |b| {
        let shape = x.dims().into();
        b.op(ops::Reshape { shape }, std::slice::from_ref(x))
    })
}

/// True if gradients of the results flow to more leaves than the inputs.
fn reach_other_leaves(
    results: &[Tensor],
    inputs: &[Tensor],
    loc: &'static Location<'static>,
) -> Result<bool> {
    let own = |leaf: &Arc<Leaf>| {
        let same = |x: &Tensor| matches!(&x.handle.edge, Edge::Leaf(l) if Arc::ptr_eq(l, leaf));
        inputs.iter().any(same)
    };
    let results: Vec<&Handle> = results.iter().map(|t| &t.handle).collect();
    let walk = Walk::of(&results, loc)?;
    let beyond = |e: &GradEntry| matches!(e, GradEntry::Leaf(leaf) if !own(leaf));
    Ok(walk.entries.iter().any(beyond))
}

/// The gradients of these tensors, zeros where there are none.
fn or_zeros(gradients: Vec<Option<Tensor>>, tensors: &[Tensor]) -> Vec<Tensor> {
    let gradients = gradients.into_iter().zip(tensors);
    gradients
        .map(|(g, x)| g.unwrap_or_else(|| x.zeros_like()))
        .collect()
}

/// The gradients of `tensors` for those of `seeds`, `None` where no seed depends on a tensor.
fn gradients(
    seeds: &[(&Tensor, Tensor)],
    tensors: &[Tensor],
    create: bool,
    loc: &'static Location<'static>,
) -> Result<Vec<Option<Tensor>>> {
    if seeds.is_empty() {
        return Ok(vec![None; tensors.len()]);
    }
    let seeds = seeds.iter().map(|(y, g)| (&y.handle, g.handle.clone()));
    let tensors: Vec<&Handle> = tensors.iter().map(|t| &t.handle).collect();
    let keep = Keep {
        graph: true,
        create,
    };
    let leaf_gradients = engine::run(&seeds.collect::<Vec<_>>(), Some(&tensors), keep, loc)?;
    Ok(leaf_gradients
        .into_iter()
        .map(|(_, g)| g.map(Tensor::from))
        .collect())
}
