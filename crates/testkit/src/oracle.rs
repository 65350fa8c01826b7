//! Running a graph on an engine and comparing it with the reference.

use kiln_compiler::{CompileError, Explain, Options, compile};
use kiln_ir::Graph;
use kiln_ir::eval::{self, Array};
use kiln_runtime::{Buffer, Executable};

/// The reference results of a graph for these inputs.
pub struct Oracle {
    /// The inputs of the graph.
    pub inputs: Vec<Array>,
    reference: eval::Oracle,
}

impl Oracle {
    /// Evaluates a graph on inputs that fit it, several times.
    ///
    /// # Panics
    /// If the graph is not sound.
    pub fn new(graph: &Graph, inputs: Vec<Array>) -> Oracle {
        Oracle {
            // Programs keep their values around 1; gelu near 0 is a difference of such values.
            reference: eval::Oracle::new(graph, &inputs, 1.0).expect("sound"),
            inputs,
        }
    }

    /// Compares an engine's outputs; `None` stands for a kept value it did not write.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn check(&self, outputs: &[Option<Buffer>]) -> Result<(), String> {
        let arrays: Vec<_> = outputs.iter().map(|o| o.as_ref().map(array)).collect();
        self.check_arrays(&arrays)
    }

    /// The same for arrays.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn check_arrays(&self, outputs: &[Option<Array>]) -> Result<(), String> {
        if outputs.len() != self.reference.outputs() {
            let (actual, expected) = (outputs.len(), self.reference.outputs());
            return Err(format!("{actual} outputs, not {expected}"));
        }
        for (i, output) in outputs.iter().enumerate() {
            let Some(array) = output else { continue };
            let wrong = |e: String| format!("output {i}: {e}");
            let deviation = self.reference.compare(i, array).map_err(wrong)?;
            if !deviation.is_right() {
                return Err(wrong(format!("{deviation:?}")));
            }
        }
        Ok(())
    }
}

/// A buffer of the host.
fn array(buffer: &Buffer) -> Array {
    let shape: Vec<usize> = buffer.shape().iter().map(|d| *d as usize).collect();
    let bytes = buffer.bytes().expect("on the host");
    Array::from_bytes(buffer.dtype(), &shape, bytes).expect("as many bytes as elements")
}

/// A compiled graph.
pub struct Engine {
    /// The program.
    pub executable: Executable,
    /// The index of each output of the graph among the program's; `None` for an output that it does not write.
    pub outputs: Vec<Option<usize>>,
    /// The compiler's report.
    pub explain: Explain,
}

impl Engine {
    /// Compiles a graph. If `KILN_TEST_DEVICE` is `cuda`, compiles for the first GPU, whatever the options say.
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

    /// Computes the outputs for these inputs, on the host; `None` for outputs that are not written.
    ///
    /// # Errors
    /// If the run fails.
    pub fn run(&self, inputs: &[Array]) -> Result<Vec<Option<Buffer>>, kiln_runtime::Error> {
        let values = run(&self.executable, inputs)?;
        Ok(self
            .outputs
            .iter()
            .map(|o| o.map(|index| values[index].clone()))
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
