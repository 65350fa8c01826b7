//! Loops and branches on values.

use crate::record::{compose_many, user_error};
use crate::{DType, Device, Error, ErrorKind, Nest, Result, Tensor};
use kiln_base::Dim;
use kiln_ir::{Builder, Fact, ops};
use kiln_lazy::Handle;
use kiln_lazy::body::{Captured, Traced, trace};
use std::panic::Location;
use std::sync::Arc;

/// How [`scan_with`] runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanOptions {
    /// Whether the last slice comes first. Results stand at the positions of their slices.
    pub reverse: bool,
    /// How many steps, where nothing is scanned.
    pub length: Option<usize>,
}

/// Runs `step` for each slice of `xs` along its first dim, carrying a state: JAX's `lax.scan`. `step`
/// takes the state and a slice, and gives the next state and a result; `scan` gives the last state and
/// the results, stacked along a new first dim.
///
/// `step` is recorded once and compiled as one loop, however long `xs` is, and its derivative is a
/// loop too. The state keeps its dtypes and shapes. Random numbers differ from step to step. A `Var`
/// can be read in `step` but not assigned.
///
/// ```
/// use kiln_tensor::{Tensor, scan};
/// // Exponential moving average.
/// let x = Tensor::from_slice(&[1.0f32, 3.0, 5.0], [3]);
/// let start = Tensor::from_slice(&[0.0f32], [1]).squeeze(0);
/// let (last, means) = scan(start, x, |mean, x| {
///     let mean = (mean + x) * 0.5;
///     (mean.clone(), mean)
/// });
/// assert_eq!(means.to_vec::<f32>()?, [0.5, 1.75, 3.375]);
/// assert_eq!(last.item::<f32>()?, 3.375);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn scan<C: Nest, X: Nest, Y: Nest>(
    init: C,
    xs: X,
    step: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    scan_with(&ScanOptions::default(), init, xs, step)
}

/// [`scan`] with options.
#[track_caller]
pub fn scan_with<C: Nest, X: Nest, Y: Nest>(
    options: &ScanOptions,
    init: C,
    xs: X,
    step: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    let loc = kiln_lazy::caller::user_line(Location::caller());
    let (first, scanned) = (init.tensors(), xs.tensors());
    let trips = match trips(options, &first, &scanned, loc) {
        Ok(trips) => trips,
        // The arrangement of the results is known only to `step`.
        Err(e) => {
            let bad = Tensor::poisoned(e, loc);
            let mut bads = std::iter::repeat(bad.clone());
            let (carry, x) = (init.with(&mut bads), xs.with(&mut bads));
            return all(
                &trace(&[], None, "scan", loc, |_| step(carry, x)).result,
                &bad,
            );
        }
    };
    let mut facts: Vec<(Fact, Option<Device>)> = first
        .iter()
        .map(|t| (t.fact().clone(), t.handle.node.device))
        .collect();
    facts.extend(scanned.iter().map(|t| {
        let slice = Fact::new(t.dtype(), t.dims()[1..].iter().cloned());
        (slice, t.handle.node.device)
    }));
    let mut traced = trace(&facts, Some(&trips), "scan", loc, |given| {
        let mut given = given.iter().cloned().map(Tensor::from);
        let carry = init.with(&mut given);
        let x = xs.with(&mut given);
        step(carry, x)
    });
    let loops = recorded_loop(options, trips, first, scanned, &mut traced, loc);
    match loops {
        Ok(outputs) if outputs.iter().all(|t| t.error().is_none()) => {
            traced.result.with(&mut outputs.into_iter())
        }
        Ok(outputs) => all(&traced.result, &outputs[0]),
        Err(e) => all(&traced.result, &Tensor::poisoned(e, loc)),
    }
}

/// The same arrangement of one tensor.
fn all<T: Nest>(like: &T, t: &Tensor) -> T {
    like.with(&mut std::iter::repeat(t.clone()))
}

/// How many steps a scan has.
fn trips(
    options: &ScanOptions,
    first: &[Tensor],
    scanned: &[Tensor],
    loc: &'static Location<'static>,
) -> Result<Dim> {
    for t in first.iter().chain(scanned) {
        t.check()?;
    }
    let wrong = |message: String| Err(user_error(ErrorKind::Op, "scan", message, loc));
    let mut trips = options.length.map(Dim::from);
    for (i, t) in scanned.iter().enumerate() {
        let Some(n) = t.dims().first() else {
            return wrong(format!(
                "value {i} of xs is {}, which has no dim to scan",
                t.fact()
            ));
        };
        match &trips {
            None => trips = Some(n.clone()),
            Some(known) if known == n => {}
            Some(known) => {
                let fact = t.fact();
                return wrong(format!(
                    "value {i} of xs is {fact}, but there are {known} steps"
                ));
            }
        }
    }
    match trips {
        Some(n) => Ok(n),
        None => wrong("nothing is scanned and no length is given".to_string()),
    }
}

/// Records the loop at the line of the call around this one.
#[track_caller]
fn recorded_loop<C: Nest, Y: Nest>(
    options: &ScanOptions,
    trips: Dim,
    first: Vec<Tensor>,
    scanned: Vec<Tensor>,
    traced: &mut Traced<(C, Y)>,
    loc: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let (next, results) = (traced.result.0.tensors(), traced.result.1.tensors());
    let wrong = |message: String| Err(user_error(ErrorKind::Op, "scan", message, loc));
    for t in next.iter().chain(&results) {
        t.check()?;
    }
    if next.len() != first.len() {
        let (from, to) = (first.len(), next.len());
        return wrong(format!(
            "the state begins with {from} tensors, but the step gives {to}"
        ));
    }
    for (i, (from, to)) in first.iter().zip(&next).enumerate() {
        if from.fact() != to.fact() {
            return wrong(format!(
                "tensor {i} of the state begins as {}, but the step makes it {}; the state keeps \
                 dtypes and shapes",
                from.fact(),
                to.fact()
            ));
        }
    }
    let mut captured = Captured::default();
    let outputs: Vec<Tensor> = next.into_iter().chain(results).collect();
    let results: Vec<&Handle> = outputs.iter().map(|t| &t.handle).collect();
    let body = traced.graph(&results, &mut captured)?;
    let op = ops::Loop {
        trips,
        carried: first.len(),
        scanned: scanned.len(),
        reverse: options.reverse,
        body: Arc::new(body),
    };
    let mut operands = first;
    operands.extend(scanned);
    operands.extend(captured.values.into_iter().map(Tensor::from));
    if outputs.is_empty() {
        return Ok(vec![]);
    }
    let refs: Vec<&Tensor> = operands.iter().collect();
    Ok(compose_many("scan", &refs, outputs.len(), |b| {
        Ok(b.emit(op.into(), &operands)?.into_vec())
    }))
}

/// What `then` gives if `condition` (one bool) holds, else what `otherwise` gives: `torch.cond`,
/// JAX's `lax.cond`. Only one of them runs. Both give tensors of the same dtypes and shapes.
///
/// ```
/// use kiln_tensor::{Tensor, cond};
/// let x = Tensor::from_slice(&[1.0f32, -4.0], [2]);
/// let y = cond(&x.sum(()).gt(0.0), || &x * 2.0, || -&x);
/// assert_eq!(y.to_vec::<f32>()?, [-1.0, 4.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn cond<T: Nest>(
    condition: &Tensor,
    then: impl FnOnce() -> T,
    otherwise: impl FnOnce() -> T,
) -> T {
    let loc = kiln_lazy::caller::user_line(Location::caller());
    let mut then = trace(&[], None, "cond", loc, |_| then());
    let mut otherwise = trace(&[], None, "cond", loc, |_| otherwise());
    match branch(condition, &mut then, &mut otherwise, loc) {
        Ok(outputs) => then.result.with(&mut outputs.into_iter()),
        Err(e) => all(&then.result, &Tensor::poisoned(e, loc)),
    }
}

/// Records the branch at the line of the call around this one.
#[track_caller]
fn branch<T: Nest>(
    condition: &Tensor,
    then: &mut Traced<T>,
    otherwise: &mut Traced<T>,
    loc: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let wrong = |message: String| -> Result<Vec<Tensor>, Error> {
        Err(user_error(ErrorKind::Op, "cond", message, loc))
    };
    condition.check()?;
    if condition.dtype() != DType::Bool || !condition.fact().numel().is(1) {
        return wrong(format!(
            "the condition must be one bool, not {}",
            condition.fact()
        ));
    }
    let sides = [&then, &otherwise].map(|t| t.result.tensors());
    for t in sides.iter().flatten() {
        t.check()?;
    }
    let [a, b] = &sides;
    if a.len() != b.len() {
        let (a, b) = (a.len(), b.len());
        return wrong(format!("one branch gives {a} tensors and the other {b}"));
    }
    if a.is_empty() {
        return Ok(vec![]);
    }
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        if a.fact() != b.fact() {
            return wrong(format!(
                "tensor {i} is {} in one branch and {} in the other",
                a.fact(),
                b.fact()
            ));
        }
    }
    let mut captured = Captured::default();
    let [a, b] = [a, b].map(|side| side.iter().map(|t| &t.handle).collect::<Vec<_>>());
    let mut graphs = [
        then.graph(&a, &mut captured)?,
        otherwise.graph(&b, &mut captured)?,
    ];
    graphs.iter_mut().for_each(|g| captured.complete(g, 0));
    let op = ops::If {
        branches: graphs.map(Arc::new),
    };
    let mut operands = vec![condition.reshape(())];
    operands.extend(captured.values.into_iter().map(Tensor::from));
    let refs: Vec<&Tensor> = operands.iter().collect();
    let outputs = compose_many("cond", &refs, a.len(), |b| {
        Ok(b.emit(op.into(), &operands)?.into_vec())
    });
    match outputs.iter().find_map(Tensor::error) {
        Some(e) => Err(e.clone()),
        None => Ok(outputs),
    }
}
