//! Compiled functions, their arguments and results.

use crate::nest::{Counts, Flat, build};
use crate::{DimSpec, Error, ErrorKind, Nest, Program, Result, Returned, Spec, Tensor, Var};
use kiln_base::{Dim, Sym};
use kiln_compiler::{Bisection, Options, Verification};
use kiln_ir::Fact;
use kiln_lazy::Handle;
use kiln_lazy::label::called;
use kiln_lazy::run::compiled::{Argument, Compiling};
use kiln_lazy::watch::{Recorded, live, watch};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;

/// Records `f` once for arguments of these specs and compiles it. The specs are one spec, or a tuple, array, `Vec` or
/// struct of them ([`Nest`]); a tensor stands for its own spec. `f` takes tensors in the same structure, and returns
/// tensors in any structure, or a `Result` of them.
///
/// # Errors
/// If `f` fails, an operation in it is invalid, it reads a value, or the engine can't run it.
///
/// ```
/// use kiln_tensor::{DType, Spec, Tensor, compile};
///
/// let double = compile(Spec::new(DType::F32, "n"), |x| &x + &x)?;
/// let y = double.run(Tensor::from([1.0f32, 2.0, 3.0]))?;
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
///
/// let linear = compile(
///     (Spec::new(DType::F32, ("batch", 3)), [Spec::new(DType::F32, (3, 2)), Spec::new(DType::F32, 2)]),
///     |(x, [w, b])| (x.matmul(&w) + &b).relu(),
/// )?;
/// let (w, b) = (Tensor::ones([3, 2], DType::F32), Tensor::zeros(2, DType::F32));
/// let y = linear.run((Tensor::ones([5, 3], DType::F32), [&w, &b]))?;
/// assert_eq!(y.shape()?, [5, 2]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn compile<S: Nest<Spec>, R: Returned>(
    specs: S,
    f: impl FnOnce(S::Owned) -> R,
) -> Result<Compiled<S::Owned, R::Nest>> {
    compile_with(specs, &Options::default(), f)
}

/// [`compile`] with other options, such as `exact` (no rewrite that changes rounding).
///
/// # Errors
/// As [`compile`].
#[track_caller]
pub fn compile_with<S: Nest<Spec>, R: Returned>(
    specs: S,
    options: &Options,
    f: impl FnOnce(S::Owned) -> R,
) -> Result<Compiled<S::Owned, R::Nest>> {
    let loc = Location::caller();
    let (specs, paths) = Flat::with_paths(&specs);
    let takes = specs.counts.clone();
    let (arguments, symbols) = arguments(specs, paths, loc)?;
    let compiling = Compiling::start(arguments, symbols, loc)?;
    let placeholders = compiling.arguments.iter().cloned().map(Tensor::from);
    let results = f(build::<S, Spec>(&takes, placeholders)).into_result()?;
    let (results, paths) = Flat::with_paths(&results);
    Ok(Compiled {
        program: compiling.finish(&results.leaves, paths, options)?,
        takes,
        gives: results.counts,
        types: PhantomData,
    })
}

/// A function as it was recorded.
#[doc(hidden)]
pub struct Recording<R> {
    /// The results of the function.
    pub results: R,
    /// The operations that results, assigned cells or gradients depend on, in order.
    pub operations: Vec<Recorded>,
    /// The serial numbers of the nodes that stand for parameters.
    pub parameters: HashSet<u64>,
}

/// Records `f` for arguments of these specs, as [`compile`] does. Nothing is compiled or run, and nothing that `f`
/// assigns is kept.
///
/// # Errors
/// If `f` fails, an operation in it is invalid, it reads a value, or a size is a name.
#[doc(hidden)]
#[track_caller]
pub fn record<S: Nest<Spec>, R: Returned>(
    specs: S,
    f: impl FnOnce(S::Owned) -> R,
) -> Result<Recording<R::Nest>> {
    let loc = Location::caller();
    let (specs, paths) = Flat::with_paths(&specs);
    let takes = specs.counts.clone();
    let (arguments, symbols) = arguments(specs, paths, loc)?;
    if let Some(name) = symbols.first() {
        let message = format!("figures need known sizes, but one is {name:?}");
        return Err(Error::new(ErrorKind::Value, "record", message, loc));
    }
    let recording = Compiling::start(arguments, symbols, loc)?;
    let placeholders = recording.arguments.iter().cloned().map(Tensor::from);
    let (results, operations) = watch(|| f(build::<S, Spec>(&takes, placeholders)).into_result());
    let results = results?;
    for t in Flat::of(&results).tensors() {
        t.check()?;
    }
    // Holds assigned values and gradients.
    let scope = recording.end();
    let parameters = scope.cells.iter().filter(|c| c.cell.is_parameter());
    Ok(Recording {
        results,
        operations: live(operations),
        parameters: parameters.map(|c| c.placeholder.node.serial).collect(),
    })
}

/// The arguments that specs describe, and the names of their symbols.
fn arguments(
    specs: Flat<Spec>,
    paths: Vec<String>,
    loc: &'static Location<'static>,
) -> Result<(Vec<Argument>, Vec<String>)> {
    if let Some(e) = specs.error {
        return Err(e);
    }
    let mut names: Vec<String> = Vec::new();
    let argument = |(spec, path): (&Spec, String)| {
        if spec.dims.iter().any(|d| matches!(d, DimSpec::Known(..0))) {
            let name = called("argument", &path);
            let message = format!("{name} can't be {spec}: a size is negative");
            return Err(Error::new(ErrorKind::Value, "compile", message, loc));
        }
        let dim = |d: &DimSpec| match d {
            DimSpec::Known(n) => Dim::Const(*n),
            DimSpec::Symbol(name) => {
                let index = names.iter().position(|n| n == name).unwrap_or_else(|| {
                    names.push(name.clone());
                    names.len() - 1
                });
                Dim::symbol(Sym(index as u32))
            }
        };
        Ok(Argument {
            path,
            fact: Fact::new(spec.dtype, spec.dims.iter().map(dim).collect::<Vec<_>>()),
            device: spec.device,
        })
    };
    let arguments = specs
        .leaves
        .iter()
        .zip(paths)
        .map(argument)
        .collect::<Result<_>>()?;
    Ok((arguments, names))
}

/// A compiled function from `I` to `O`.
///
/// Reads of [`Var`](crate::Var)s see their values at the time of each run, and assignments are committed when the run
/// succeeds. Values that depend only on `Var`s and captured tensors are computed once, and again when one of them
/// changes.
///
/// The part that does not depend on types is its [`Program`]. If the signature is only known when the program runs,
/// it is that of `Vec`s: `Compiled<Vec<Tensor>, Vec<Tensor>>`, or `Compiled` for short.
pub struct Compiled<I = Vec<Tensor>, O = Vec<Tensor>> {
    program: Program,
    takes: Counts,
    gives: Counts,
    types: PhantomData<fn(I) -> O>,
}

impl<I: Nest<Owned = I>, O: Nest<Owned = O>> Compiled<I, O> {
    /// Runs the function. May be called from several threads; runs that write the same
    /// [`Var`](crate::Var) wait for each other.
    ///
    /// # Errors
    /// If the arguments don't fit the specs, or the error of the run. `Var`s then keep their values.
    #[track_caller]
    pub fn run(&self, arguments: impl Nest<Owned = I>) -> Result<O> {
        let loc = Location::caller();
        let tensors = self.collect_tensors("Compiled::run", &arguments, loc)?;
        let results = self.program.run_at(&handles(&tensors), loc)?;
        Ok(build::<O, Tensor>(
            &self.gives,
            results.into_iter().map(Tensor::from),
        ))
    }

    /// Runs every kernel of the plan and compares its results with a reference evaluation in f64. The reference takes
    /// the values that the plan itself computed before, so each error is that of one kernel alone. The worst comes
    /// first, with the line that recorded it. The reference is slow; use small sizes.
    ///
    /// Nothing is committed: `Var`s and the generator of random numbers stay as they are, and the
    /// random numbers are those of the next run.
    ///
    /// # Errors
    /// If the arguments don't fit the specs, or the error of the run.
    ///
    /// ```
    /// use kiln_tensor::{DType, Spec, Tensor, compile};
    ///
    /// let f = compile(Spec::new(DType::F32, 8), |x| x.exp().softmax(0))?;
    /// let found = f.verify(Tensor::randn([8], DType::F32))?;
    /// assert!(found.is_right(), "{found}");
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn verify(&self, arguments: impl Nest<Owned = I>) -> Result<Verification> {
        let loc = Location::caller();
        let tensors = self.collect_tensors("Compiled::verify", &arguments, loc)?;
        self.program.verify_at(&handles(&tensors), loc)
    }

    /// Finds the rewrite of the optimiser that makes a result wrong. Compiles the function with fewer and fewer
    /// rewrites, and compares its results, and the values it assigns, with the reference evaluation of the recorded
    /// program. The tolerance is one that the program without rewrites meets. Commits nothing, like
    /// [`Compiled::verify`].
    ///
    /// # Errors
    /// If the arguments don't fit the specs, if the program is too large for the reference, or the error of a run.
    #[track_caller]
    pub fn bisect(&self, arguments: impl Nest<Owned = I>) -> Result<Bisection> {
        let loc = Location::caller();
        let tensors = self.collect_tensors("Compiled::bisect", &arguments, loc)?;
        self.program.bisect_at(&handles(&tensors), loc)
    }

    /// The tensors of the arguments of a call.
    #[track_caller]
    fn collect_tensors<N: Nest<Owned = I>>(
        &self,
        op: &'static str,
        arguments: &N,
        loc: &'static Location<'static>,
    ) -> Result<Vec<Tensor>> {
        let flat = Flat::of(arguments);
        if flat.counts != self.takes {
            let (_, paths) = Flat::with_paths(arguments);
            return Err(self.structure_error(op, &paths, loc));
        }
        Ok(flat.leaves)
    }

    /// The error of a call whose arguments have another structure than the function was compiled for.
    #[cold]
    fn structure_error(
        &self,
        op: &'static str,
        actual: &[String],
        loc: &'static Location<'static>,
    ) -> Error {
        let takes = self.signature().arguments.iter();
        let takes: Vec<String> = takes.map(|a| a.name.clone()).collect();
        let lacks = |a: &[String], b: &[String]| a.iter().find(|p| !b.contains(p)).cloned();
        let message = match (lacks(&takes, actual), lacks(actual, &takes)) {
            (Some(path), _) => format!("{} is not given", called("argument", &path)),
            (None, Some(path)) => {
                let argument = called("argument", &path);
                format!("{argument} is given, but the function was compiled without")
            }
            (None, None) => {
                let text = "the arguments hold other settings than the function was compiled for";
                return Error::new(ErrorKind::Value, op, text, loc);
            }
        };
        let counted = format!("{} tensors, not {}", takes.len(), actual.len());
        let message = format!("{message}: the function takes {counted}");
        Error::new(ErrorKind::Value, op, message, loc)
    }
}

impl<I, O> Compiled<I, O> {
    /// The [`Var`]s that the function reads or assigns, in the order of `signature().states`.
    ///
    /// ```
    /// use kiln_tensor::{DType, Spec, Tensor, Var, compile};
    ///
    /// let total = Var::new(Tensor::zeros(2, DType::F32))?;
    /// total.set_name("total");
    /// let add = compile(Spec::new(DType::F32, ("rows", 2)), |rows| total.add_(rows.sum(0)))?;
    /// let state = &add.signature().states[0];
    /// assert_eq!((&state.name[..], state.input, state.output), ("total", Some(1), Some(0)));
    /// assert_eq!(add.states()[0].id(), total.id());
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn states(&self) -> Vec<Var> {
        let cells = self.program.cells().iter();
        cells.map(|cell| Var { cell: cell.clone() }).collect()
    }

    /// The tensors that the function captured, in the order of `signature().captured`.
    pub fn captured(&self) -> Vec<Tensor> {
        let handles = self.program.captured();
        handles.map(Tensor::from).collect()
    }
}

fn handles(tensors: &[Tensor]) -> SmallVec<[&Handle; 8]> {
    tensors.iter().map(|t| &t.handle).collect()
}

impl<I, O> Deref for Compiled<I, O> {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl<I, O> std::fmt::Debug for Compiled<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.program.fmt(f)
    }
}
