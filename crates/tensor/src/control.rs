//! Loops and branches on values.

use crate::nest::{Flat, build};
use crate::options::options;
use crate::record::{compose_many, user_error};
use crate::{AsTensor, DType, Device, ErrorKind, MaybeInt, Nest, Result, Returned, Tensor};
use kiln_base::Dim;
use kiln_ir::{Builder, Fact, Op, ops};
use kiln_lazy::body::{Captured, Traced, trace};
use kiln_lazy::label;
use std::panic::Location;
use std::sync::Arc;

options! {
    /// The options of [`while_loop_with`].
    WhileLoop () {
        /// The number of steps after which it ends even if the condition holds.
        max_trips: MaybeInt = MaybeInt(None),
    }
}

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
    let (start, (scanned, paths)) = (Flat::of(&init), Flat::with_paths(&xs));
    let counts = [start.counts.clone(), scanned.counts];
    let trips = count_steps(&options, &start.leaves, (&scanned.leaves, &paths), loc);
    let facts = match &trips {
        Ok(_) => argument_facts(&start.leaves, &scanned.leaves),
        Err(_) => Vec::new(),
    };
    // Only `step` knows the structure of the results.
    let bad = trips
        .as_ref()
        .err()
        .map(|e| Tensor::poisoned(e.clone(), loc));
    let (result, mut traced) = trace(&facts, trips.as_ref().ok(), "scan", loc, |arguments| {
        let mut arguments = arguments
            .iter()
            .cloned()
            .map(Tensor::from)
            .chain(bad.iter().cycle().cloned());
        let carry = build::<C, Tensor>(&counts[0], arguments.by_ref());
        step(carry, build::<X, Tensor>(&counts[1], arguments)).into_result()
    });
    let result = match result {
        Ok(result) => result,
        Err(e) => return R::like(Err(e), &[]),
    };
    let gives = Flat::of(&result).counts;
    let ((next, paths), results) = (Flat::with_paths(&result.0), Flat::of(&result.1).leaves);
    let state = State {
        init: start,
        next,
        paths,
    };
    let outputs = match trips {
        Ok(n) => loop_outputs(
            &options,
            n,
            state,
            scanned.leaves,
            results,
            &mut traced,
            loc,
        ),
        Err(e) => Err(e),
    };
    let outputs = outputs.map(|outputs| build::<(C::Owned, Y), Tensor>(&gives, outputs));
    R::like(outputs, &gives)
}

/// The dtypes, shapes and devices of the arguments of `step`.
fn argument_facts(init: &[Tensor], scanned: &[Tensor]) -> Vec<(Fact, Option<Device>)> {
    let slice = |t: &Tensor| Fact::new(t.dtype(), t.dims()[1..].iter().cloned());
    let carried = init
        .iter()
        .map(|t| (t.fact().clone(), t.handle.node.device));
    let slices = scanned.iter().map(|t| (slice(t), t.handle.node.device));
    carried.chain(slices).collect()
}

/// The state that a loop carries.
struct State {
    init: Flat,
    /// The state after a step.
    next: Flat,
    paths: Vec<String>,
}

/// Returns the number of steps of a scan.
fn count_steps(
    options: &Scan,
    init: &[Tensor],
    (scanned, paths): (&[Tensor], &[String]),
    loc: &'static Location<'static>,
) -> Result<Dim> {
    for t in init.iter().chain(scanned) {
        t.check()?;
    }
    let wrong = |message: String| Err(user_error(ErrorKind::Op, "scan", message, loc));
    let mut trips = options.length.0.map(Dim::Const);
    if let Some(n) = options.length.0.filter(|n| *n < 0) {
        return wrong(format!("there can't be {n} steps"));
    }
    for (t, path) in scanned.iter().zip(paths) {
        let (name, fact) = (label::called("value", path), t.fact());
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
fn loop_outputs(
    options: &Scan,
    trips: Dim,
    state: State,
    scanned: Vec<Tensor>,
    results: Vec<Tensor>,
    traced: &mut Traced,
    loc: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let State { init, next, paths } = state;
    check_state("scan", [&init, &next], &paths, loc)?;
    for t in &results {
        t.check()?;
    }
    let (init, next) = (init.leaves, next.leaves);
    let mut captured = Captured::default();
    let outputs: Vec<Tensor> = next.into_iter().chain(results).collect();
    let body = traced.graph(&outputs, &mut captured)?;
    let op = ops::Loop {
        trips,
        carried: init.len(),
        scanned: scanned.len(),
        reverse: options.reverse,
        conditional: false,
        body: Arc::new(body),
    };
    let mut operands = init;
    operands.extend(scanned);
    operands.extend(captured.values.into_iter().map(Tensor::from));
    emit_op("scan", op.into(), &operands, outputs.len())
}

/// Records an op with bodies and returns its results.
#[track_caller]
fn emit_op(called: &'static str, op: Op, operands: &[Tensor], count: usize) -> Result<Vec<Tensor>> {
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

/// Runs `step` on a state while `condition` (one bool) holds for it: `torch.while_loop`, JAX's `lax.while_loop`.
/// Returns the state for which it does not. The state is a structure of tensors ([`Nest`]) that keep dtypes and shapes.
/// If `step` returns a `Result`, so does `while_loop`.
///
/// `condition` and `step` are recorded, and compiled as one loop; `condition` a second time for the first state. There
/// are no gradients, no random numbers and no runs on a GPU unless the number of steps is bounded:
/// [`while_loop_with`].
///
/// ```
/// use kiln_tensor::{Tensor, while_loop};
/// // Newton's method for √2.
/// let root = while_loop(
///     Tensor::from(1.0f64),
///     |x| (&x * &x - 2.0).abs().gt(1e-12),
///     |x| (&x + 2.0 / &x) * 0.5,
/// );
/// assert!((root.item::<f64>()? - 2f64.sqrt()).abs() < 1e-12);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn while_loop<C, B, R>(
    init: C,
    condition: impl Fn(C::Owned) -> B,
    step: impl FnOnce(C::Owned) -> R,
) -> R::Like<C::Owned>
where
    C: Nest,
    B: AsTensor,
    R: Returned<Nest = C::Owned>,
{
    while_loop_with(init, WhileLoop::new(), condition, step)
}

/// [`while_loop`] with options. With a largest number of steps it has gradients, by way of a loop of that many steps
/// which do nothing after the end. On a GPU it is this loop too.
///
/// ```
/// use kiln_tensor::{Tensor, Var, WhileLoop, while_loop_with};
/// let x = Var::parameter(Tensor::from(3.0f32))?;
/// // x is doubled three times.
/// let y = while_loop_with(x.get(), WhileLoop::new().max_trips(8), |y| y.lt(20.0), |y| y * 2.0);
/// y.backward()?;
/// assert_eq!(x.grad().unwrap().item::<f32>()?, 8.0);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn while_loop_with<C, B, R>(
    init: C,
    options: WhileLoop,
    condition: impl Fn(C::Owned) -> B,
    step: impl FnOnce(C::Owned) -> R,
) -> R::Like<C::Owned>
where
    C: Nest,
    B: AsTensor,
    R: Returned<Nest = C::Owned>,
{
    let loc = kiln_lazy::caller::user_line(Location::caller());
    let (start, paths) = Flat::with_paths(&init);
    let holds = |state: &[Tensor]| -> Result<Tensor> {
        let state = build::<C, Tensor>(&start.counts, state.iter().cloned());
        scalar_condition("while_loop", &condition(state).as_tensor(), loc)
    };
    let traced = || {
        for t in &start.leaves {
            t.check()?;
        }
        let trips = match options.max_trips.0 {
            None => ops::Loop::UNBOUNDED,
            Some(n) if n >= 0 => Dim::Const(n),
            Some(n) => {
                let message = format!("there can't be {n} steps");
                return Err(user_error(ErrorKind::Op, "while_loop", message, loc));
            }
        };
        let mut carried = vec![holds(&start.leaves)?];
        carried.extend(start.leaves.iter().cloned());
        let (next, mut traced): (Result<Vec<Tensor>>, _) = trace(
            &argument_facts(&carried, &[]),
            Some(&trips),
            "while_loop",
            loc,
            |arguments| {
                let state = arguments[1..].iter().cloned().map(Tensor::from);
                let next = step(build::<C, Tensor>(&start.counts, state)).into_result()?;
                let next = Flat::of(&next);
                check_state("while_loop", [&start, &next], &paths, loc)?;
                let mut outputs = vec![holds(&next.leaves)?];
                outputs.extend(next.leaves);
                Ok(outputs)
            },
        );
        let (next, mut captured) = (next?, Captured::default());
        let op = ops::Loop {
            conditional: true,
            ..ops::Loop::repeat(trips, traced.graph(&next, &mut captured)?)
        };
        carried.extend(captured.values.into_iter().map(Tensor::from));
        Ok((op, carried))
    };
    let outputs = match traced() {
        Ok((op, operands)) => {
            let count = op.carried;
            emit_op("while_loop", op.into(), &operands, count)
        }
        Err(e) => Err(e),
    };
    let state = outputs.map(|o| build::<C, Tensor>(&start.counts, o.into_iter().skip(1)));
    R::like(state, &start.counts)
}

/// Errs unless a step keeps the structure, dtypes and shapes of the state.
fn check_state(
    called: &'static str,
    [before, after]: [&Flat; 2],
    paths: &[String],
    loc: &'static Location<'static>,
) -> Result<()> {
    for t in &after.leaves {
        t.check()?;
    }
    let wrong = |message: String| Err(user_error(ErrorKind::Op, called, message, loc));
    if before.counts != after.counts {
        let text = "the state holds another number of tensors after a step than before it";
        return wrong(text.to_string());
    }
    for ((from, to), path) in before.leaves.iter().zip(&after.leaves).zip(paths) {
        if from.fact() != to.fact() {
            return wrong(format!(
                "{} of the state begins as {}, but the step makes it {}; the state keeps dtypes \
                 and shapes",
                label::called("tensor", path),
                from.fact(),
                to.fact()
            ));
        }
    }
    Ok(())
}

/// A condition of rank 0.
fn scalar_condition(
    called: &'static str,
    condition: &Tensor,
    loc: &'static Location<'static>,
) -> Result<Tensor> {
    condition.check()?;
    if condition.dtype() != DType::Bool || !condition.fact().numel().is(1) {
        let message = format!("the condition must be one bool, not {}", condition.fact());
        return Err(user_error(ErrorKind::Op, called, message, loc));
    }
    Ok(condition.reshape(()))
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
    let (then, on_true) = trace(&[], None, "cond", loc, |_| then().into_result());
    let (otherwise, on_false) = trace(&[], None, "cond", loc, |_| otherwise().into_result());
    let [then, otherwise] = match then.and_then(|then| Ok([then, otherwise?])) {
        Ok(sides) => sides,
        Err(e) => return R::like(Err(e), &[]),
    };
    let branches = [Flat::with_paths(&then), Flat::with_paths(&otherwise)];
    let counts = branches[0].0.counts.clone();
    let outputs = record_if(&condition.as_tensor(), branches, [on_true, on_false], loc);
    R::like(
        outputs.map(|o| build::<R::Nest, Tensor>(&counts, o)),
        &counts,
    )
}

/// Records the branch at the line of the enclosing call.
#[track_caller]
fn record_if(
    condition: &Tensor,
    [(a, paths), (b, _)]: [(Flat, Vec<String>); 2],
    [mut then, mut otherwise]: [Traced; 2],
    loc: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let wrong = |message: String| Err(user_error(ErrorKind::Op, "cond", message, loc));
    let condition = scalar_condition("cond", condition, loc)?;
    for t in a.leaves.iter().chain(&b.leaves) {
        t.check()?;
    }
    if a.counts != b.counts {
        let (a, b) = (a.leaves.len(), b.leaves.len());
        return wrong(match a == b {
            true => "the branches give tensors in other structures".to_string(),
            false => format!("one branch gives {a} tensors and the other {b}"),
        });
    }
    for ((a, b), path) in a.leaves.iter().zip(&b.leaves).zip(&paths) {
        if a.fact() != b.fact() {
            let (name, a, b) = (label::called("tensor", path), a.fact(), b.fact());
            return wrong(format!("{name} is {a} in one branch and {b} in the other"));
        }
    }
    let mut captured = Captured::default();
    let mut graphs = [
        then.graph(&a.leaves, &mut captured)?,
        otherwise.graph(&b.leaves, &mut captured)?,
    ];
    graphs.iter_mut().for_each(|g| captured.complete(g, 0));
    let op = ops::If {
        branches: graphs.map(Arc::new),
    };
    let mut operands = vec![condition];
    operands.extend(captured.values.into_iter().map(Tensor::from));
    emit_op("cond", op.into(), &operands, a.leaves.len())
}
