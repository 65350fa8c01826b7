//! Compiling a function once and running it many times.

use crate::gather::Gather;
use crate::node::{Node, State, input_op};
use crate::var::Busy;
use crate::{DType, Device, Error, ErrorKind, Generator, Result, Tensor, Var, realize};
use kiln_base::plan::Plan;
use kiln_base::{Dim, Loc, Sym};
use kiln_compiler::{Explain, Options};
use kiln_ir::{Fact, Facts, Output, Role, SymbolInfo, Target};
use kiln_runtime::{Buffer, Executable};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

/// Dtype and shape of an argument of a compiled function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<DimSpec>,
}

/// A size of a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimSpec {
    /// This size.
    Known(usize),
    /// Any size of at least 2; the same in every place where the name stands.
    Symbol(String),
}

impl Spec {
    /// A spec from numbers and names: `Spec::new(DType::F32, ["batch".into(), 64.into()])`.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = DimSpec>) -> Spec {
        Spec {
            dtype,
            dims: dims.into_iter().collect(),
        }
    }

    /// A spec whose sizes are all known.
    pub fn fixed(dtype: DType, shape: impl AsRef<[usize]>) -> Spec {
        Spec::new(dtype, shape.as_ref().iter().map(|d| DimSpec::Known(*d)))
    }

    /// The spec of tensors like this one.
    ///
    /// # Errors
    /// If the tensor is poisoned.
    pub fn like(t: &Tensor) -> Result<Spec> {
        Ok(Spec::fixed(t.dtype(), t.shape()?))
    }
}

impl From<usize> for DimSpec {
    fn from(n: usize) -> DimSpec {
        DimSpec::Known(n)
    }
}

impl From<&str> for DimSpec {
    fn from(name: &str) -> DimSpec {
        DimSpec::Symbol(name.to_string())
    }
}

/// What a function given to [`compile`] may return.
pub trait IntoOutputs {
    /// The tensors, in order.
    ///
    /// # Errors
    /// The function's own error.
    fn into_outputs(self) -> Result<Vec<Tensor>>;
}

impl IntoOutputs for Tensor {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(vec![self])
    }
}

impl IntoOutputs for Vec<Tensor> {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(self)
    }
}

impl<const N: usize> IntoOutputs for [Tensor; N] {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(self.into())
    }
}

impl<T: IntoOutputs> IntoOutputs for Result<T> {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        self?.into_outputs()
    }
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// What a function being compiled has touched.
#[derive(Default)]
struct Scope {
    vars: Vec<ScopeVar>,
    keys: Vec<(Tensor, Dim)>,
}

struct ScopeVar {
    var: Var,
    placeholder: Tensor,
    current: Tensor,
    written: bool,
}

/// Whether this thread is recording a function for [`compile`].
pub(crate) fn is_recording() -> bool {
    SCOPE.with_borrow(Option::is_some)
}

/// The recorded value of a cell, while recording.
pub(crate) fn get_var(var: &Var, loc: &'static Location<'static>) -> Option<Tensor> {
    SCOPE.with_borrow_mut(|s| s.as_mut().map(|s| s.var(var, loc).current.clone()))
}

/// Records an assignment, while recording.
pub(crate) fn assign_var(var: &Var, value: &Tensor) -> bool {
    let loc = value.node.loc;
    SCOPE.with_borrow_mut(|s| {
        let Some(s) = s.as_mut() else { return false };
        let entry = s.var(var, loc);
        entry.current = value.clone();
        entry.written = true;
        true
    })
}

/// The key of `count` random numbers that each run reserves anew, while recording.
pub(crate) fn random_key(count: &Dim) -> Option<Tensor> {
    SCOPE.with_borrow_mut(|s| {
        let s = s.as_mut()?;
        let fact = Fact::new(DType::I64, [2i64]);
        let key = placeholder(fact, Role::RandomKey, Location::caller(), "random key");
        s.keys.push((key.clone(), count.clone()));
        Some(key)
    })
}

impl Scope {
    fn var(&mut self, var: &Var, loc: &'static Location<'static>) -> &mut ScopeVar {
        let at = self.vars.iter().position(|v| v.var.cell.id == var.cell.id);
        let at = at.unwrap_or_else(|| {
            let t = placeholder(var.cell.fact.clone(), Role::Parameter, loc, "Var");
            self.vars.push(ScopeVar {
                var: var.clone(),
                placeholder: t.clone(),
                current: t,
                written: false,
            });
            self.vars.len() - 1
        });
        &mut self.vars[at]
    }
}

fn placeholder(
    fact: Fact,
    role: Role,
    loc: &'static Location<'static>,
    called: &'static str,
) -> Tensor {
    let op = input_op(fact.clone(), role);
    let facts = Facts::from_elem(fact, 1);
    Tensor::from_node(Node::new(
        op,
        facts,
        Device::Cpu,
        loc,
        called,
        State::Placeholder,
    ))
}

/// Ends the recording even if the user's function panics.
struct Recording;

impl Recording {
    fn start(loc: &'static Location<'static>) -> Result<Recording> {
        if is_recording() {
            let message = "a function is already being recorded on this thread";
            return Err(Error::new(
                ErrorKind::ReadWhileCompiling,
                "compile",
                message,
                Loc::from(loc),
            ));
        }
        SCOPE.set(Some(Scope::default()));
        Ok(Recording)
    }

    fn finish(self) -> Scope {
        SCOPE.take().unwrap_or_default()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        SCOPE.set(None);
    }
}

/// Where a plan input comes from at each run.
enum Binding {
    Argument(usize),
    Captured(Buffer),
    Var(usize),
    Key(Dim),
}

/// A compiled function.
///
/// Reads of [`Var`]s see their values at the time of each run, and assignments are committed when the
/// run succeeds. What depends only on `Var`s and captured tensors is computed once and again when one
/// of them changes.
pub struct Compiled {
    executable: Executable,
    explain: Explain,
    specs: Vec<Spec>,
    bindings: Vec<Binding>,
    vars: Vec<Var>,
    /// Positions of the results among the plan's outputs.
    results: Vec<usize>,
    writes: Vec<Write>,
    /// For each symbol the argument and axis that give it.
    symbols: Vec<(usize, usize)>,
    /// For messages: the recorded ops.
    gather: Gather,
    loc: &'static Location<'static>,
}

struct Write {
    var: usize,
    output: usize,
    /// The plan input that holds the old value.
    input: Option<usize>,
}

/// Records `f` once for arguments of these specs and compiles it.
///
/// # Errors
/// If `f` fails, an operation in it is invalid, it reads a value, or the engine can't run it.
///
/// ```
/// use kiln_tensor::{DType, Spec, Tensor, compile};
///
/// let double = compile(&[Spec::new(DType::F32, ["n".into()])], |x| &x[0] + &x[0])?;
/// let y = double.run(&[&Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3])])?;
/// assert_eq!(y[0].to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn compile<O: IntoOutputs>(specs: &[Spec], f: impl FnOnce(&[Tensor]) -> O) -> Result<Compiled> {
    compile_with(specs, &Options::default(), f)
}

/// [`compile`] with other options, such as `exact` (no rewrite that changes rounding).
///
/// # Errors
/// As [`compile`].
#[track_caller]
pub fn compile_with<O: IntoOutputs>(
    specs: &[Spec],
    options: &Options,
    f: impl FnOnce(&[Tensor]) -> O,
) -> Result<Compiled> {
    let loc = Location::caller();
    let mut names: Vec<String> = Vec::new();
    let arguments: Vec<Tensor> = specs.iter().map(|s| argument(s, &mut names, loc)).collect();
    let recording = Recording::start(loc)?;
    let outputs = f(&arguments).into_outputs();
    let scope = recording.finish();
    let outputs = outputs?;
    Builder {
        specs,
        arguments,
        names,
        scope,
        loc,
    }
    .build(&outputs, options)
}

fn argument(spec: &Spec, names: &mut Vec<String>, loc: &'static Location<'static>) -> Tensor {
    let dims = spec.dims.iter().map(|d| match d {
        DimSpec::Known(n) => Dim::from(*n),
        DimSpec::Symbol(name) => {
            let at = names.iter().position(|n| n == name).unwrap_or_else(|| {
                names.push(name.clone());
                names.len() - 1
            });
            Dim::symbol(Sym(at as u32))
        }
    });
    placeholder(Fact::new(spec.dtype, dims), Role::Data, loc, "argument")
}

struct Builder<'a> {
    specs: &'a [Spec],
    arguments: Vec<Tensor>,
    names: Vec<String>,
    scope: Scope,
    loc: &'static Location<'static>,
}

impl Builder<'_> {
    fn build(self, outputs: &[Tensor], options: &Options) -> Result<Compiled> {
        let mut gather = Gather::default();
        for a in &self.arguments {
            gather.add(a)?;
        }
        let mut asked = Vec::new();
        for t in outputs {
            asked.push(Output {
                value: gather.add(t.check()?)?,
                target: Target::Result,
            });
        }
        let written: Vec<usize> = (0..self.scope.vars.len())
            .filter(|v| self.scope.vars[*v].written)
            .collect();
        let mut values = Vec::new();
        for &v in &written {
            values.push(gather.add(self.scope.vars[v].current.check()?)?);
        }
        let bindings = self.bindings(&mut gather)?;
        let mut writes = Vec::new();
        for (&var, value) in written.iter().zip(values) {
            let input = bindings
                .iter()
                .position(|b| matches!(b, Binding::Var(v) if *v == var));
            let target = input.map_or(Target::Result, |i| Target::Assign(i as u32));
            writes.push(Write {
                var,
                output: asked.len(),
                input,
            });
            asked.push(Output { value, target });
        }
        let mut graph = gather
            .recording(asked)
            .to_graph()
            .map_err(|e| self.internal(e.to_string()))?;
        graph.symbols = self
            .names
            .iter()
            .map(|n| SymbolInfo {
                name: n.clone(),
                min: 2,
            })
            .collect();
        let locs: Vec<Loc> = (0..gather.entries.len()).map(|i| gather.loc(i)).collect();
        let compilation = kiln_compiler::compile(&graph, &locs, options)
            .map_err(|e| realize::compile_error(e, &gather, self.loc))?;
        let position = |i: usize| {
            compilation.outputs[i].ok_or_else(|| self.internal("a result has no place".to_string()))
        };
        for w in &mut writes {
            w.output = position(w.output)?;
        }
        Ok(Compiled {
            results: (0..outputs.len()).map(position).collect::<Result<_>>()?,
            executable: compilation.executable,
            explain: compilation.explain,
            specs: self.specs.to_vec(),
            bindings,
            writes,
            symbols: self.symbol_places(),
            vars: self.scope.vars.into_iter().map(|v| v.var).collect(),
            gather: gather.without_values(),
            loc: self.loc,
        })
    }

    /// What each input of the program is; captured tensors become parameters.
    fn bindings(&self, gather: &mut Gather) -> Result<Vec<Binding>> {
        let mut bindings = Vec::new();
        let is = |t: &Tensor, node: &Arc<Node>| Arc::ptr_eq(&t.node, node);
        for i in 0..gather.inputs.len() {
            let node = gather.entries[gather.inputs[i].entry].node.clone();
            if let Some(buffer) = gather.inputs[i].buffer.take() {
                gather.make_parameter(i);
                bindings.push(Binding::Captured(buffer));
            } else if let Some(a) = self.arguments.iter().position(|t| is(t, &node)) {
                bindings.push(Binding::Argument(a));
            } else if let Some(v) = self
                .scope
                .vars
                .iter()
                .position(|v| is(&v.placeholder, &node))
            {
                bindings.push(Binding::Var(v));
            } else if let Some((_, count)) = self.scope.keys.iter().find(|(t, _)| is(t, &node)) {
                bindings.push(Binding::Key(count.clone()));
            } else {
                let message =
                    "this tensor was recorded inside another compile and has no value here";
                return Err(Error::new(
                    ErrorKind::ReadWhileCompiling,
                    node.called,
                    message,
                    Loc::from(node.loc),
                ));
            }
        }
        Ok(bindings)
    }

    fn symbol_places(&self) -> Vec<(usize, usize)> {
        let place = |s: usize| {
            let dim = Dim::symbol(Sym(s as u32));
            self.arguments.iter().enumerate().find_map(|(a, t)| {
                let axis = t.dims().iter().position(|d| *d == dim)?;
                Some((a, axis))
            })
        };
        (0..self.names.len()).filter_map(place).collect()
    }

    fn internal(&self, message: String) -> Error {
        Error::new(ErrorKind::Internal, "compile", message, Loc::from(self.loc))
    }
}

impl Compiled {
    /// Runs the function. May be called from several threads; runs that write the same `Var` wait for
    /// each other.
    ///
    /// # Errors
    /// If the arguments don't fit the specs, or what goes wrong in the run. `Var`s then keep their
    /// values.
    #[track_caller]
    pub fn run(&self, arguments: &[&Tensor]) -> Result<Vec<Tensor>> {
        let loc = Location::caller();
        self.check(arguments, loc)?;
        realize::realize_at(arguments, loc)?;
        let busy = self.lock_written(loc)?;
        let mut inputs: SmallVec<[Buffer; 8]> = SmallVec::new();
        for binding in &self.bindings {
            inputs.push(self.input(binding, arguments, loc)?);
        }
        let donated = self.donate(&busy);
        let donate: SmallVec<[bool; 8]> = (0..inputs.len()).map(|i| donated.contains(&i)).collect();
        let result = self.executable.run(&mut inputs, &donate);
        let values = match result {
            Ok(values) => values,
            Err(e) => {
                self.take_back(&busy, &donated, &inputs);
                return Err(realize::run_error(e, &self.gather, loc));
            }
        };
        for w in &self.writes {
            let cell = &self.vars[w.var].cell;
            if let Some(b) = busy.iter().find(|b| b.cell().id == cell.id) {
                b.state().set(cell.leaf(values[w.output].clone(), loc));
            }
        }
        let result = |at: &usize| {
            Tensor::leaf(
                values[*at].clone(),
                Role::Data,
                Device::Cpu,
                loc,
                "Compiled::run",
            )
        };
        Ok(self.results.iter().map(result).collect())
    }

    fn check(&self, arguments: &[&Tensor], loc: &'static Location<'static>) -> Result<()> {
        let wrong = |m: String| Error::new(ErrorKind::Value, "Compiled::run", m, Loc::from(loc));
        if arguments.len() != self.specs.len() {
            return Err(wrong(format!(
                "the function takes {} arguments, not {}",
                self.specs.len(),
                arguments.len()
            )));
        }
        for (i, (t, spec)) in arguments.iter().zip(&self.specs).enumerate() {
            t.check()?;
            let fits = t.dtype() == spec.dtype
                && t.ndim() == spec.dims.len()
                && t.dims().iter().zip(&spec.dims).all(|(d, s)| match s {
                    DimSpec::Known(n) => d.is(*n as i64),
                    DimSpec::Symbol(_) => d.as_const().is_some_and(|d| d >= 2),
                });
            if !fits {
                return Err(wrong(format!(
                    "argument {i} must be {spec}, not {}",
                    t.fact()
                )));
            }
        }
        Ok(())
    }

    /// Locks the cells that the run writes, in order of their ids, each with a computed value.
    fn lock_written(&self, loc: &'static Location<'static>) -> Result<Vec<Busy>> {
        let mut cells: Vec<_> = self.writes.iter().map(|w| &self.vars[w.var].cell).collect();
        cells.sort_by_key(|c| c.id);
        loop {
            for cell in &cells {
                let current = cell.idle().current.clone();
                realize::realize_at(&[&current], loc)?;
            }
            let busy: Vec<Busy> = cells.iter().map(|c| c.acquire()).collect();
            if busy.iter().all(|b| b.state().current.is_realized()) {
                return Ok(busy);
            }
        }
    }

    fn input(
        &self,
        binding: &Binding,
        arguments: &[&Tensor],
        loc: &'static Location<'static>,
    ) -> Result<Buffer> {
        match binding {
            Binding::Argument(a) => realize::read(arguments[*a], loc),
            Binding::Captured(buffer) => Ok(buffer.clone()),
            Binding::Var(v) => {
                let cell = &self.vars[*v].cell;
                let written = self.writes.iter().any(|w| w.var == *v);
                // A cell that this run has locked must not be waited for.
                let current = if written {
                    cell.now()
                } else {
                    cell.idle().current.clone()
                };
                realize::read(&current, loc)
            }
            Binding::Key(count) => {
                let values: SmallVec<[i64; 4]> = self
                    .symbols
                    .iter()
                    .map(|(a, axis)| arguments[*a].dims()[*axis].as_const().unwrap_or(0))
                    .collect();
                let pair = Generator::default_generator().reserve(count.eval(&values) as u64);
                Buffer::from_slice(&pair, &[2])
                    .map_err(|e| realize::run_error(e, &self.gather, loc))
            }
        }
    }

    /// The inputs whose memory the run may write over: old values of written cells that nobody else
    /// holds. From here on they live in the run's inputs alone.
    fn donate(&self, busy: &[Busy]) -> SmallVec<[usize; 8]> {
        let mut donated = SmallVec::new();
        for w in &self.writes {
            let Some(input) = w.input else { continue };
            let id = self.vars[w.var].cell.id;
            let Some(b) = busy.iter().find(|b| b.cell().id == id) else {
                continue;
            };
            if b.state().give_up() {
                donated.push(input);
            }
        }
        donated
    }

    fn take_back(&self, busy: &[Busy], donated: &[usize], inputs: &[Buffer]) {
        for w in &self.writes {
            let Some(input) = w.input.filter(|i| donated.contains(i)) else {
                continue;
            };
            let id = self.vars[w.var].cell.id;
            if let Some(b) = busy.iter().find(|b| b.cell().id == id) {
                b.state().take_back(inputs[input].clone());
            }
        }
    }

    /// What the compiler did and why.
    pub fn explain(&self) -> &Explain {
        &self.explain
    }

    /// The program as data.
    pub fn plan(&self) -> &Plan {
        self.executable.plan()
    }

    /// The program as bytes that `kiln_runtime` runs with nothing else linked. Its inputs are the
    /// arguments, then captured tensors, `Var`s and random keys as [`Plan::inputs`] lists them.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.plan().to_bytes()
    }

    /// The executable, for its figures.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// Where `compile` was called.
    pub fn loc(&self) -> Loc {
        Loc::from(self.loc)
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.dims.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match d {
                DimSpec::Known(n) => write!(f, "{comma}{n}")?,
                DimSpec::Symbol(name) => write!(f, "{comma}{name} >= 2")?,
            }
        }
        f.write_str("]")
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Compiled({} kernels at {})",
            self.explain.kernels_run(),
            self.loc
        )
    }
}
