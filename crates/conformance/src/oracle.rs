//! Running a graph on an engine and comparing it with the reference.

use kiln_compiler::{CompileError, Explain, Options, compile};
use kiln_ir::eval::{Array, Data, Mode, evaluate, symbol_values};
use kiln_ir::fuzz::Rng;
use kiln_ir::{DType, Graph, Value};
use kiln_runtime::{Buffer, Executable};

/// What the reference says of a graph with these inputs.
pub struct Oracle {
    /// The inputs of the graph.
    pub inputs: Vec<Array>,
    rounded: Vec<Array>,
    exact: Vec<Array>,
    /// For each output how far its elements move when the inputs are nudged.
    nudged: Vec<Vec<f64>>,
    /// For each output the rounding of the narrowest type that it was computed in.
    compute: Vec<f64>,
}

impl Oracle {
    /// Evaluates a graph on inputs that fit it, several times.
    ///
    /// # Panics
    /// If the graph is not sound.
    pub fn new(graph: &Graph, inputs: Vec<Array>) -> Oracle {
        let symbols = symbol_values(graph, &inputs).expect("random inputs fit");
        let eval = |inputs: &[Array], mode| evaluate(graph, inputs, &symbols, mode).expect("sound");
        let exact = eval(&inputs, Mode::Exact);
        let mut nudged: Vec<Vec<f64>> = exact.iter().map(|a| vec![0.0; a.len()]).collect();
        let mut rng = Rng::new(1);
        for _ in 0..3 {
            let outputs = eval(&nudge(&inputs, &mut rng), Mode::Exact);
            for ((output, exact), moved) in outputs.iter().zip(&exact).zip(&mut nudged) {
                let distances = output.to_f64().into_iter().zip(exact.to_f64());
                for (m, (a, b)) in moved.iter_mut().zip(distances) {
                    *m = m.max(finite((a - b).abs()));
                }
            }
        }
        Oracle {
            rounded: eval(&inputs, Mode::Rounded),
            exact,
            nudged,
            compute: graph
                .outputs
                .iter()
                .map(|o| coarsest(graph, o.value))
                .collect(),
            inputs,
        }
    }

    /// Compares an engine's outputs; `None` stands for a kept value it did not write.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self, outputs: &[Option<Buffer>]) -> Result<(), String> {
        if outputs.len() != self.rounded.len() {
            return Err(format!(
                "{} outputs, not {}",
                outputs.len(),
                self.rounded.len()
            ));
        }
        for (i, output) in outputs.iter().enumerate() {
            let Some(buffer) = output else { continue };
            compare(
                buffer,
                &self.rounded[i],
                &self.exact[i],
                &self.nudged[i],
                self.compute[i],
            )
            .map_err(|e| format!("output {i}: {e}"))?;
        }
        Ok(())
    }
}

/// The coarsest rounding among the floats that a value depends on.
fn coarsest(graph: &Graph, value: Value) -> f64 {
    let mut needed = vec![false; graph.len()];
    needed[value.node.index()] = true;
    let mut coarsest = f64::EPSILON;
    for (id, node) in graph
        .iter()
        .rev()
        .filter(|(id, _)| id.index() <= value.node.index())
    {
        if needed[id.index()] {
            node.inputs
                .iter()
                .for_each(|v| needed[v.node.index()] = true);
            let floats = node.facts.iter().filter(|f| f.dtype.is_float());
            coarsest = floats.fold(coarsest, |c, f| c.max(compute_unit(f.dtype)));
        }
    }
    coarsest
}

/// The tolerance of an element is a small multiple of the error that rounding each op to its dtype
/// makes (there, and at most anywhere in the tensor) and of what one rounding of every input does
/// to it (which bounds how far sums that the reference carries exactly may drift), plus the rounding
/// of one result.
fn compare(
    buffer: &Buffer,
    rounded: &Array,
    exact: &Array,
    nudged: &[f64],
    compute: f64,
) -> Result<(), String> {
    let shape: Vec<usize> = buffer.shape().iter().map(|d| *d as usize).collect();
    if shape != rounded.shape() || buffer.dtype() != rounded.dtype() {
        return Err(format!(
            "{}{shape:?} instead of {}{:?}",
            buffer.dtype(),
            rounded.dtype(),
            rounded.shape()
        ));
    }
    let bytes = buffer.bytes().map_err(|e| e.to_string())?;
    let got = Array::from_bytes(buffer.dtype(), &shape, bytes).map_err(|e| e.to_string())?;
    if let (Some(got), Some(want)) = (got.ints(), rounded.ints()) {
        let wrong = got.iter().zip(want).position(|(a, b)| a != b);
        return wrong.map_or(Ok(()), |i| {
            Err(format!("element {i} is {} instead of {}", got[i], want[i]))
        });
    }
    let (got, rounded, exact) = (got.to_f64(), rounded.to_f64(), exact.to_f64());
    let errors = rounded
        .iter()
        .zip(&exact)
        .map(|(r, e)| finite((r - e).abs()));
    let worst = errors.fold(0.0, f64::max);
    // Programs keep their values around 1; gelu near 0 is a difference of such values.
    let largest = exact.iter().map(|e| finite(e.abs())).fold(1.0, f64::max);
    for (i, ((g, r), e)) in got.iter().zip(&rounded).zip(&exact).enumerate() {
        if !r.is_finite() || !e.is_finite() {
            // Where rounding alone overflows, either answer is right.
            let right = |x: f64| *g == x || g.is_nan() && x.is_nan();
            if right(*r) || right(*e) || r.is_finite() != e.is_finite() {
                continue;
            }
            return Err(format!("element {i} is {g} instead of {e}"));
        }
        let floor = unit(buffer.dtype()) * e.abs() + 32.0 * compute * largest;
        let tolerance = 8.0 * ((r - e).abs() + nudged[i]) + 4.0 * worst + floor + 1e-30;
        if (g - e).abs() <= tolerance {
            continue;
        }
        return Err(format!(
            "element {i} is {g} instead of {e} (tolerance {tolerance:e})"
        ));
    }
    Ok(())
}

fn finite(x: f64) -> f64 {
    if x.is_finite() { x } else { 0.0 }
}

/// The distance from 1 to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => f32::EPSILON as f64,
        _ => f64::EPSILON,
    }
}

/// The same of the type that kernels compute in.
fn compute_unit(dtype: DType) -> f64 {
    unit(if dtype == DType::F64 {
        DType::F64
    } else {
        DType::F32
    })
}

/// The inputs with every float off by up to two roundings of its compute type.
fn nudge(inputs: &[Array], rng: &mut Rng) -> Vec<Array> {
    let mut moved = |array: &Array| {
        let size = 2.0 * compute_unit(array.dtype());
        let data = array
            .floats()?
            .iter()
            .map(|x| x * (1.0 + size * (2.0 * rng.unit() - 1.0)));
        Array::new(array.dtype(), array.shape(), Data::Float(data.collect())).ok()
    };
    inputs
        .iter()
        .map(|a| moved(a).unwrap_or_else(|| a.clone()))
        .collect()
}

/// A compiled graph.
pub struct Engine {
    /// The program.
    pub executable: Executable,
    /// For each output of the graph its place among the program's; `None` for what it does not write.
    pub outputs: Vec<Option<usize>>,
    /// What was done.
    pub explain: Explain,
}

impl Engine {
    /// Compiles a graph; for the first GPU where `KILN_TEST_DEVICE` is `cuda`, whatever the options say.
    ///
    /// # Errors
    /// If it can't be compiled.
    pub fn new(graph: &Graph, options: &Options) -> Result<Engine, CompileError> {
        let mut options = options.clone();
        if std::env::var("KILN_TEST_DEVICE").is_ok_and(|d| d == "cuda") {
            options.gpu = Some(0);
        }
        let compilation = compile(graph, &[], &options)?;
        Ok(Engine {
            executable: compilation.executable,
            outputs: compilation.outputs,
            explain: compilation.explain,
        })
    }

    /// The outputs for these inputs, on the host; `None` for what is not written.
    ///
    /// # Errors
    /// If the run fails.
    pub fn run(&self, inputs: &[Array]) -> Result<Vec<Option<Buffer>>, kiln_runtime::Error> {
        let values = run(&self.executable, inputs)?;
        Ok(self
            .outputs
            .iter()
            .map(|o| o.map(|at| values[at].clone()))
            .collect())
    }
}

/// Runs an executable on arrays; the outputs are on the host.
///
/// # Errors
/// If the inputs don't fit or the run fails.
pub fn run(executable: &Executable, inputs: &[Array]) -> Result<Vec<Buffer>, kiln_runtime::Error> {
    let mut buffers = Vec::new();
    for array in inputs {
        let shape: Vec<i64> = array.shape().iter().map(|d| *d as i64).collect();
        let buffer = Buffer::from_bytes(array.dtype(), &shape, &array.to_bytes())?;
        buffers.push(match executable.gpu() {
            None => buffer,
            Some(gpu) => buffer.to_gpu(gpu)?,
        });
    }
    let outputs = executable.run(&mut buffers, &vec![false; inputs.len()])?;
    outputs.iter().map(Buffer::to_host).collect()
}
