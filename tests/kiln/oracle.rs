//! Running a graph on the engine and comparing it with the reference.

use kiln_compiler::{CompileError, Explain, Options, compile};
use kiln_ir::Graph;
use kiln_ir::eval::{self, Array};
use kiln_runtime::{Buffer, Executable};

/// What the reference says of a graph with these inputs.
pub struct Oracle {
    pub inputs: Vec<Array>,
    reference: eval::Oracle,
}

impl Oracle {
    pub fn new(graph: &Graph, inputs: Vec<Array>) -> Oracle {
        Oracle {
            // Programs keep their values around 1; gelu near 0 is a difference of such values.
            reference: eval::Oracle::new(graph, &inputs, 1.0).expect("sound"),
            inputs,
        }
    }

    /// What is wrong with an engine's outputs; `None` stands for a kept value it did not write.
    pub fn check(&self, outputs: &[Option<Buffer>]) -> Result<(), String> {
        if outputs.len() != self.reference.outputs() {
            let (found, wanted) = (outputs.len(), self.reference.outputs());
            return Err(format!("{found} outputs, not {wanted}"));
        }
        for (i, output) in outputs.iter().enumerate() {
            let Some(buffer) = output else { continue };
            let wrong = |e: String| format!("output {i}: {e}");
            let found = self.reference.compare(i, &array(buffer)).map_err(wrong)?;
            if !found.is_right() {
                return Err(wrong(format!("{found:?}")));
            }
        }
        Ok(())
    }
}

fn array(buffer: &Buffer) -> Array {
    let shape: Vec<usize> = buffer.shape().iter().map(|d| *d as usize).collect();
    let bytes = buffer.bytes().expect("on the host");
    Array::from_bytes(buffer.dtype(), &shape, bytes).expect("as many bytes as elements")
}

/// A compiled graph: for the CPU, or with `KILN_TEST_DEVICE=cuda` for a GPU.
pub struct Engine {
    pub executable: Executable,
    pub outputs: Vec<Option<usize>>,
    pub explain: Explain,
}

impl Engine {
    pub fn new(graph: &Graph, options: &Options) -> Result<Engine, CompileError> {
        let mut options = options.clone();
        if std::env::var("KILN_TEST_DEVICE").is_ok_and(|d| d == "cuda")
            && crate::cuda::device().is_some()
        {
            options.gpu = Some(0);
        }
        let compilation = compile(graph, &[], &options)?;
        Ok(Engine {
            executable: compilation.executable,
            outputs: compilation.outputs,
            explain: compilation.explain,
        })
    }

    pub fn run(&self, inputs: &[Array]) -> Result<Vec<Option<Buffer>>, kiln_runtime::Error> {
        let values = run(&self.executable, inputs)?;
        Ok(self
            .outputs
            .iter()
            .map(|o| o.map(|at| values[at].clone()))
            .collect())
    }
}

/// Runs an executable on arrays.
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
