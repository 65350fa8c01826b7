//! Checks every kernel of a plan against the reference, on the values that the plan itself computed before it.
//!
//! The plan runs step by step. The results of a step are compared with a reference evaluation in f64 of the same
//! values from the operands that the step read. So an error is that of one kernel, and the first kernel to go wrong
//! is told apart from those that only pass the error on. A value that has changed by the time it is read was
//! overwritten, which would be an error of the memory plan.

use crate::subgraph::subgraph;
use crate::{Stages, StructureHasher};
use hashbrown::HashMap;
use kiln_base::Loc;
use kiln_codegen::{Launch, Origin};
use kiln_ir::eval::{Array, Deviation, Oracle};
use kiln_ir::{Graph, Op, Value};
use kiln_plan::Plan;
use kiln_runtime::{Buffer, Error, Executable, Traced, Tracer};
use std::borrow::Cow;
use std::fmt;

/// The deviation of one result of a kernel from the reference.
#[derive(Clone, Debug)]
pub struct KernelCheck {
    /// The kernel's name.
    pub kernel: String,
    /// True if it runs only when a parameter has changed.
    pub prepared: bool,
    /// Its position among the steps of its part.
    pub step: usize,
    /// The op that gives the result, and the result's type.
    pub value: String,
    /// The line where the user recorded it.
    pub loc: Loc,
    /// The error of the result.
    pub error: Deviation,
    /// The reason why it could not be compared, or another problem with it.
    pub problem: Option<String>,
}

/// The deviations of all kernels of a plan from the reference, the worst first.
#[derive(Clone, Debug)]
pub struct Verification {
    /// One entry for each result of a kernel.
    pub checks: Vec<KernelCheck>,
}

impl KernelCheck {
    /// True if the result was compared and is within its tolerance.
    pub fn is_right(&self) -> bool {
        self.problem.is_none() && self.error.is_right()
    }
}

impl Verification {
    /// True if every kernel is within its tolerance.
    pub fn is_right(&self) -> bool {
        self.checks.iter().all(KernelCheck::is_right)
    }

    /// Returns the result with the largest error relative to its tolerance.
    pub fn worst(&self) -> Option<&KernelCheck> {
        self.checks.first()
    }
}

/// Runs an executable of the plan that `stages` led to, and compares the results of each kernel with the reference.
///
/// # Errors
/// As [`Executable::run`].
pub fn verify(
    stages: &Stages,
    executable: &Executable,
    inputs: &[Buffer],
) -> Result<Verification, Error> {
    let mut verifier = Verifier {
        stages,
        symbols: symbols(executable.plan(), inputs)?,
        known: HashMap::new(),
        hashes: HashMap::new(),
        read: Vec::new(),
        checks: Vec::new(),
        inputs,
    };
    executable.trace(inputs, &mut verifier)?;
    let mut checks = verifier.checks;
    let rank = |c: &KernelCheck| match c.problem {
        Some(_) => f64::INFINITY,
        None => c.error.ratio,
    };
    checks.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    Ok(Verification { checks })
}

/// The values of a plan's symbols, as the shapes of its inputs give them.
pub(crate) fn symbols(plan: &Plan, inputs: &[Buffer]) -> Result<Vec<i64>, Error> {
    let dim = |s: &kiln_plan::Symbol| {
        let input = inputs.get(s.input as usize)?;
        input.shape().get(s.axis as usize).copied()
    };
    let missing = || Error::Buffer("the inputs don't give every symbol a value".to_string());
    let values = plan.symbols.iter().map(|s| dim(s).ok_or_else(missing));
    values.collect()
}

/// The value of the graph that a buffer holds.
pub(crate) fn value_in(stages: &Stages, buffer: u32) -> Option<Value> {
    match stages.sequence.buffers[buffer as usize].origin {
        Origin::Value(value) => Some(value),
        Origin::Input(i) => Some(stages.optimized.inputs()[i as usize].value()),
        _ => None,
    }
}

/// The value as an array, read from the bytes of its elements.
pub(crate) fn array(stages: &Stages, symbols: &[i64], value: Value, bytes: &[u8]) -> Option<Array> {
    let fact = stages.optimized.fact(value);
    let shape: Vec<usize> = (fact.shape.iter())
        .map(|d| d.eval(symbols) as usize)
        .collect();
    Array::from_bytes(fact.dtype, &shape, bytes).ok()
}

struct Verifier<'a> {
    stages: &'a Stages,
    inputs: &'a [Buffer],
    symbols: Vec<i64>,
    /// For each buffer with an intermediate of a value, the operands that it was computed from.
    known: HashMap<u32, Vec<(Value, Array)>>,
    /// For each buffer, the hash of its last known contents.
    hashes: HashMap<u32, u64>,
    /// The values that the running step reads.
    read: Vec<(Value, Array)>,
    checks: Vec<KernelCheck>,
}

impl Tracer for Verifier<'_> {
    fn before(&mut self, step: &Traced) -> Result<(), Error> {
        let launch = self.launch(step);
        let mut read = Vec::new();
        for (i, id) in launch.args.iter().enumerate() {
            if launch.written[i] {
                continue;
            }
            let bytes = step.bytes(i)?;
            let now = hash(&bytes);
            if self.hashes.insert(id.0, now).is_some_and(|old| old != now) {
                let check = self.check(step, None);
                let text = format!("what it reads was overwritten: argument {i}");
                self.checks.push(KernelCheck {
                    problem: Some(text),
                    ..check
                });
            }
            if let Some(operands) = self.known.get(&id.0) {
                read.extend(operands.iter().cloned());
            } else if let Some(value) = value_in(self.stages, id.0) {
                let bytes = self.row_major(id.0, &bytes);
                read.extend(self.array(value, &bytes).map(|a| (value, a)));
            }
        }
        self.read = read;
        Ok(())
    }

    fn after(&mut self, step: &Traced) -> Result<(), Error> {
        let launch = self.launch(step);
        let read = std::mem::take(&mut self.read);
        for (i, id) in launch.args.iter().enumerate() {
            if !launch.written[i] {
                continue;
            }
            let bytes = step.bytes(i)?;
            self.hashes.insert(id.0, hash(&bytes));
            match self.stages.sequence.buffers[id.0 as usize].origin {
                Origin::Value(value) => {
                    let bytes = self.row_major(id.0, &bytes);
                    let check = self.compare(step, value, &bytes, &read);
                    self.checks.push(check);
                }
                _ => {
                    self.known.insert(id.0, read.clone());
                }
            }
        }
        Ok(())
    }
}

impl<'a> Verifier<'a> {
    fn launch(&self, step: &Traced) -> &'a Launch {
        &self.stages.sequence.launches[self.stages.launch(step.prepare, step.step)]
    }

    /// The contents of a buffer, in row-major order.
    fn row_major<'b>(&self, buffer: u32, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        let info = &self.stages.sequence.buffers[buffer as usize];
        if !info.channels_last {
            return bytes.into();
        }
        let shape = info.shape.iter().map(|d| d.eval(&self.symbols) as usize);
        let shape: Vec<usize> = shape.collect();
        let (channels, positions) = (shape[1], shape[2..].iter().product::<usize>());
        let size = info.dtype.size();
        let mut out = Vec::with_capacity(bytes.len());
        for image in bytes.chunks((channels * positions * size).max(1)) {
            for c in 0..channels {
                for element in image.chunks(size).skip(c).step_by(channels) {
                    out.extend_from_slice(element);
                }
            }
        }
        out.into()
    }

    fn array(&self, value: Value, bytes: &[u8]) -> Option<Array> {
        array(self.stages, &self.symbols, value, bytes)
    }

    fn check(&self, step: &Traced, value: Option<Value>) -> KernelCheck {
        let (launch, graph) = (self.launch(step), &self.stages.optimized);
        let node = value.map(|v| v.node).or(launch.nodes.last().copied());
        let node = node.map(|n| graph.node(n));
        let output = value.map_or(0, |v| v.output as usize);
        KernelCheck {
            kernel: launch.kernel.name().to_string(),
            prepared: step.prepare,
            step: step.step,
            value: node.map_or_else(String::new, |n| {
                format!("{} {}", n.op.name(), n.facts[output])
            }),
            loc: node.map_or(Loc::UNKNOWN, |n| n.loc.clone()),
            error: Deviation::default(),
            problem: None,
        }
    }

    /// Compares a result with the reference, computed from the values that were read.
    fn compare(
        &self,
        step: &Traced,
        value: Value,
        bytes: &[u8],
        read: &[(Value, Array)],
    ) -> KernelCheck {
        let mut check = self.check(step, Some(value));
        let result = (|| {
            let got = self.array(value, bytes).ok_or("it has another size")?;
            let (graph, arrays) = self.cut(value, read)?;
            let largest = arrays.iter().filter_map(Array::floats).flatten();
            let min_scale = largest.fold(0.0, |m: f64, x| match x.is_finite() {
                true => m.max(x.abs()),
                false => m,
            });
            let oracle = Oracle::with_symbols(&graph, &arrays, &self.symbols, min_scale);
            oracle.map_err(|e| e.to_string())?.compare(0, &got)
        })();
        match result {
            Ok(error) => check.error = error,
            Err(problem) => check.problem = Some(problem),
        }
        check
    }

    /// Returns the subgraph between a value and the values that were read, and its inputs.
    fn cut(&self, value: Value, read: &[(Value, Array)]) -> Result<(Graph, Vec<Array>), String> {
        let graph = &self.stages.optimized;
        let find = |v: Value| read.iter().find(|(r, _)| *r == v);
        let subgraph = subgraph(graph, &[value], |v| find(v).is_some());
        let mut arrays = Vec::with_capacity(subgraph.inputs.len());
        for v in subgraph.inputs {
            if let Some((_, array)) = find(v) {
                arrays.push(array.clone());
            } else if let Op::Input(i) = &graph.node(v.node).op {
                let host = self.inputs[i.index as usize].to_host();
                let host = host.map_err(|e| e.to_string())?;
                let bytes = host.bytes().map_err(|e| e.to_string())?;
                arrays.push(self.array(v, bytes).ok_or("an input has another size")?);
            }
        }
        Ok((subgraph.graph, arrays))
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut h = StructureHasher::default();
    h.update(bytes);
    h.digest()
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong = self.checks.iter().filter(|c| !c.is_right()).count();
        let n = self.checks.len();
        match wrong {
            0 => writeln!(f, "{n} results of kernels, all within their tolerance")?,
            _ => writeln!(f, "{n} results of kernels, {wrong} outside their tolerance")?,
        }
        let of = "of tolerance";
        writeln!(
            f,
            "{of:>12}  {:>9}  {:>9}  {:>9}  kernel",
            "max abs", "max rel", "max ulp"
        )?;
        self.checks.iter().try_for_each(|c| writeln!(f, "{c}"))
    }
}

impl fmt::Display for KernelCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.error;
        write!(
            f,
            "{:>12.3}  {:>9.2e}  {:>9.2e}  {:>9.1}  {}: {}",
            e.ratio, e.max_abs, e.max_rel, e.max_ulp, self.kernel, self.value
        )?;
        if self.loc.is_known() {
            write!(f, " at {}", self.loc)?;
        }
        if let Some(problem) = &self.problem {
            return write!(f, "; {problem}");
        }
        match e.worst {
            Some((i, got, want)) if !e.is_right() => {
                write!(f, "; element {i} is {got} instead of {want}")
            }
            _ => Ok(()),
        }
    }
}
