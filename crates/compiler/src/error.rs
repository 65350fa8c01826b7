//! The errors of compilation.

use kiln_codegen as codegen;
use kiln_ir::Graph;
use kiln_runtime::Error as RunError;

/// The reason why a graph could not be compiled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompileError {
    /// The engine can't run an op.
    #[error("{message}")]
    Unsupported {
        /// The position of the op in its recording, where that is known.
        at: Option<usize>,
        /// The reason why it is not supported.
        message: String,
    },
    /// The kernel of a custom op can't be compiled.
    #[error("{op}: {text}")]
    Custom {
        /// The position of the call in its recording, or its node.
        at: usize,
        /// The op's name.
        op: String,
        /// The problem.
        text: String,
    },
    /// The device, its driver or its compiler is missing or failed.
    #[error("{0}")]
    Device(String),
    /// The memory budget can't be kept.
    #[error("{0}")]
    Memory(String),
    /// The results of the stages can't be written where the environment asks for them.
    #[error("{0}")]
    Dump(String),
    /// A setting in the environment can't be read.
    #[error("{0}")]
    Environment(String),
    /// A defect in the compiler.
    #[error("internal error of the compiler: {0}")]
    Internal(String),
}

/// Converts an error of the runtime, which finds nothing wrong with the plan of a correct graph.
pub(crate) fn internal(e: RunError) -> CompileError {
    match e {
        RunError::Cuda(text) => CompileError::Device(text),
        RunError::Level(e) => CompileError::Environment(e.to_string()),
        RunError::OutOfMemory { .. } => CompileError::Memory(e.to_string()),
        RunError::Custom { node, op, text } => CompileError::Custom {
            at: node as usize,
            op,
            text,
        },
        e => CompileError::Internal(e.to_string()),
    }
}

/// Converts the reason why a graph can't be lowered, with the op's position in its recording.
pub(crate) fn lower_error(graph: &Graph, e: codegen::LowerError) -> CompileError {
    let node = graph.node(e.node);
    CompileError::Unsupported {
        at: node.loc.position(),
        message: format!("{}: {}", node.op.name(), e.text),
    }
}
