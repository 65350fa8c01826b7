//! Loops and branches on values.

use crate::nest::{Counts, Flat, built};
use crate::options::options;
use crate::record::{compose_many, user_error};
use crate::{AsTensor, DType, Device, ErrorKind, MaybeInt, Nest, Result, Returned, Tensor};
use kiln_base::Dim;
use kiln_ir::{Builder, Fact, Op, ops};
use kiln_lazy::body::{Captured, Traced, trace};
use kiln_lazy::label::called;
use std::panic::Location;
use std::sync::Arc;

options! {
    /// The options of [`scan_with`].
    Scan () {
        /// True to scan from the last slice to the first. Results stand at the positions of their slices.
        reverse: bool = false,
        /// The number of steps, needed where nothing is scanned.
        length: MaybeInt = MaybeInt(None),
    }
}

/// Runs `step` for each slice of `xs` along its first dim, carrying a state: JAX's `lax.scan`. `step` takes the state
/// and a slice, and returns the next state and a result. `scan` returns the last state and the results, stacked along
/// a new first dim. All of them are structures of tensors ([`Nest`]), such as `()` for nothing. If `step` returns a
/// `Result`, so does `scan`.
///
/// `step` is recorded once and compiled as one loop, however long `xs` is, and its derivative is a
/// loop too. The state keeps its dtypes and shapes. Random numbers differ from step to step. A `Var`
/// can be read in `step` but not assigned.
///
/// ```
/// use kiln_tensor::{Tensor, scan};
/// // Exponential moving average.
/// let x = Tensor::from([1.0f32, 3.0, 5.0]);
/// let (last, means) = scan(Tensor::from(0.0f32), &x, |mean, x| {
///     let mean = (mean + x) * 0.5;
///     (mean.clone(), mean)
/// });
/// assert_eq!(means.to_vec::<f32>()?, [0.5, 1.75, 3.375]);
/// assert_eq!(last.item::<f32>()?, 3.375);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn scan<C, X, Y, R>(
    init: C,
    xs: X,
    step: impl FnOnce(C::Owned, X::Owned) -> R,
) -> R::Like<(C::Owned, Y)>
where
    C: Nest,
    X: Nest,
    Y: Nest<Owned = Y>,
    R: Returned<Nest = (C::Owned, Y)>,
{
    scan_with(init, xs, Scan::new(), step)
}

/// [`scan`] with options.
#[track_caller]
pub fn scan_with<C, X, Y, R>(
    init: C,
    xs: X,
    options: Scan,
    step: impl FnOnce(C::Owned, X::Owned) -> R,
) -> R::Like<(C::Owned, Y)>
where
    C: Nest,
    X: Nest,
    Y: Nest<Owned = Y>,
    R: Returned<Nest = (C::Owned, Y)>,
{
    let loc = kiln_lazy::caller::user_line(Location::caller());
    let (first, (scanned, paths)) = (Flat::of(&init), Flat::named(&xs));
    let counts = [first.counts.clone(), scanned.counts];
    let trips = trips(&options, &first.all, (&scanned.all, &paths), loc);
    let facts = match &trips {
        Ok(_) => facts(&first.all, &scanned.all),
        Err(_) => Vec::new(),
    };
    // Only `step` knows the structure of the results.
    let bad = trips
        .as_ref()
        .err()
        .map(|e| Tensor::poisoned(e.clone(), loc));
    let (result, mut traced) = trace(&facts, trips.as_ref().ok(), "scan", loc, |given| {
        let mut given = given
            .iter()
            .cloned()
            .map(Tensor::from)
            .chain(bad.iter().cycle().cloned());
        let carry = built::<C, Tensor>(&counts[0], given.by_ref());
        step(carry, built::<X, Tensor>(&counts[1], given)).into_result()
    });
    let result = match result {
        Ok(result) => result,
        Err(e) => return R::like(Err(e), &[]),
    };
    let gives = Flat::of(&result).counts;
    let (next, results) = (Flat::named(&result.0), Flat::of(&result.1).all);
    let state = State {
        first: (first.all, &counts[0]),
        next: (next.0.all, next.0.counts),
        paths: next.1,
    };
    let outputs = match trips {
        Ok(n) => recorded_loop(&options, n, state, scanned.all, results, &mut traced, loc),
        Err(e) => Err(e),
    };
    let outputs = outputs.map(|outputs| built::<(C::Owned, Y), Tensor>(&gives, outputs));
    R::like(outputs, &gives)
}

/// The dtypes, shapes and devices of the arguments of `step`.
fn facts(first: &[Tensor], scanned: &[Tensor]) -> Vec<(Fact, Option<Device>)> {
    let slice = |t: &Tensor| Fact::new(t.dtype(), t.dims()[1..].iter().cloned());
    let carried = first
        .iter()
        .map(|t| (t.fact().clone(), t.handle.node.device));
    let slices = scanned.iter().map(|t| (slice(t), t.handle.node.device));
    carried.chain(slices).collect()
}

/// The state that a loop carries.
struct State<'a> {
    first: (Vec<Tensor>, &'a Counts),
    /// The state after a step.
    next: (Vec<Tensor>, Counts),
    paths: Vec<String>,
}

/// Returns the number of steps of a scan.
fn trips(
    options: &Scan,
    first: &[Tensor],
    (scanned, paths): (&[Tensor], &[String]),
    loc: &'static Location<'static>,
) -> Result<Dim> {
    for t in first.iter().chain(scanned) {
        t.check()?;
    }
    let wrong = |message: String| Err(user_error(ErrorKind::Op, "scan", message, loc));
    let mut trips = options.length.0.map(Dim::Const);
    if let Some(n) = options.length.0.filter(|n| *n < 0) {
        return wrong(format!("there can't be {n} steps"));
    }
    for (t, path) in scanned.iter().zip(paths) {
        let (name, fact) = (called("value", path), t.fact());
        let Some(n) = t.dims().first() else {
            return wrong(format!("{name} of xs is {fact}, which has no dim to scan"));
        };
        match &trips {
            None => trips = Some(n.clone()),
            Some(known) if known == n => {}
            Some(known) => {
                return wrong(format!(
                    "{name} of xs is {fact}, but there are {known} steps"
                ));
            }
        }
    }
    match trips {
        Some(n) => Ok(n),
        None => wrong("nothing is scanned and no length is given".to_string()),
    }
}

/// Records the loop at the line of the enclosing call.
#[track_caller]
fn recorded_loop(
    options: &Scan,
    trips: Dim,
    state: State<'_>,
    scanned: Vec<Tensor>,
    results: Vec<Tensor>,
    traced: &mut Traced,
    loc: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let State {
        first: (first, before),
        next: (next, behind),
        paths,
    } = state;
    for t in next.iter().chain(&results) {
        t.check()?;
    }
    if behind != *before {
        let text = "the state holds another number of tensors behind a step than before it";
        return Err(user_error(ErrorKind::Op, "scan", text.to_string(), loc));
    }
    for ((from, to), path) in first.iter().zip(&next).zip(&paths) {
        if from.fact() != to.fact() {
            let message = format!(
                "{} of the state begins as {}, but the step makes it {}; the state keeps dtypes \
                 and shapes",
                called("tensor", path),
                from.fact(),
                to.fact()
            );
            return Err(user_error(ErrorKind::Op, "scan", message, loc));
        }
    }
    let mut captured = Captured::default();
    let outputs: Vec<Tensor> = next.into_iter().chain(results).collect();
    let body = traced.graph(&outputs, &mut captured)?;
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
    emitted("scan", op.into(), &operands, outputs.len())
}

/// Records an op with bodies and returns its results.
#[track_caller]
fn emitted(called: &'static str, op: Op, operands: &[Tensor], count: usize) -> Result<Vec<Tensor>> {
    if count == 0 {
        return Ok(vec![]);
    }
    let refs: Vec<&Tensor> = operands.iter().collect();
    let outputs = compose_many(called, &refs, count, |b| {
        Ok(b.emit(op, operands)?.into_vec())
    });
    match outputs.iter().find_map(Tensor::error) {
        Some(e) => Err(e.clone()),
        None => Ok(outputs),
    }
}

/// Returns the result of `then` if `condition` (one bool) holds, else that of `otherwise`: `torch.cond`, JAX's
/// `lax.cond`. Only one of them runs. Both return tensors of the same dtypes and shapes, in the same structure
/// ([`Nest`]). If they return `Result`s, so does `cond`.
///
/// ```
/// use kiln_tensor::{Tensor, cond};
/// let x = Tensor::from([1.0f32, -4.0]);
/// let y = cond(x.sum(()).gt(0.0), || &x * 2.0, || -&x);
/// assert_eq!(y.to_vec::<f32>()?, [-1.0, 4.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn cond<R: Returned>(
    condition: impl AsTensor,
    then: impl FnOnce() -> R,
    otherwise: impl FnOnce() -> R,
) -> R::Like<R::Nest> {
    let loc = kiln_lazy::caller::user_line(Location::caller());
    let (then, one) = trace(&[], None, "cond", loc, |_| then().into_result());
    let (otherwise, other) = trace(&[], None, "cond", loc, |_| otherwise().into_result());
    let [then, otherwise] = match then.and_then(|then| Ok([then, otherwise?])) {
        Ok(sides) => sides,
        Err(e) => return R::like(Err(e), &[]),
    };
    let sides = [Flat::named(&then), Flat::named(&otherwise)];
    let counts = sides[0].0.counts.clone();
    let outputs = branch(&condition.as_tensor(), sides, [one, other], loc);
    R::like(
        outputs.map(|o| built::<R::Nest, Tensor>(&counts, o)),
        &counts,
    )
}

/// Records the branch at the line of the enclosing call.
#[track_caller]
fn branch(
    condition: &Tensor,
    [(a, paths), (b, _)]: [(Flat, Vec<String>); 2],
    [mut then, mut otherwise]: [Traced; 2],
    loc: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let wrong = |message: String| Err(user_error(ErrorKind::Op, "cond", message, loc));
    condition.check()?;
    if condition.dtype() != DType::Bool || !condition.fact().numel().is(1) {
        let fact = condition.fact();
        return wrong(format!("the condition must be one bool, not {fact}"));
    }
    for t in a.all.iter().chain(&b.all) {
        t.check()?;
    }
    if a.counts != b.counts {
        let (a, b) = (a.all.len(), b.all.len());
        return wrong(match a == b {
            true => "the branches give tensors in other structures".to_string(),
            false => format!("one branch gives {a} tensors and the other {b}"),
        });
    }
    for ((a, b), path) in a.all.iter().zip(&b.all).zip(&paths) {
        if a.fact() != b.fact() {
            let (name, a, b) = (called("tensor", path), a.fact(), b.fact());
            return wrong(format!("{name} is {a} in one branch and {b} in the other"));
        }
    }
    let mut captured = Captured::default();
    let mut graphs = [
        then.graph(&a.all, &mut captured)?,
        otherwise.graph(&b.all, &mut captured)?,
    ];
    graphs.iter_mut().for_each(|g| captured.complete(g, 0));
    let op = ops::If {
        branches: graphs.map(Arc::new),
    };
    let mut operands = vec![condition.reshape(())];
    operands.extend(captured.values.into_iter().map(Tensor::from));
    emitted("cond", op.into(), &operands, a.all.len())
}
