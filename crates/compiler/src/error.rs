//! Why a graph could not be compiled.

use kiln_codegen as codegen;
use kiln_ir::Graph;
use kiln_runtime::Error as RunError;

/// Why a graph could not be compiled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompileError {
    /// The engine can't run an op.
    #[error("{message}")]
    Unsupported {
        /// The position of the op in its recording, where that is known.
        at: Option<usize>,
        /// What can't be done.
        message: String,
    },
    /// The kernel of a custom op can't be compiled.
    #[error("{op}: {text}")]
    Custom {
        /// The position of the call in its recording, or its node.
        at: usize,
        /// The op's name.
        op: String,
        /// What is wrong.
        text: String,
    },
    /// The device, its driver or its compiler is missing or failed.
    #[error("{0}")]
    Device(String),
    /// The memory budget can't be kept.
    #[error("{0}")]
    Memory(String),
    /// What the stages gave can't be written where the environment asks for it.
    #[error("{0}")]
    Dump(String),
    /// A setting in the environment can't be read.
    #[error("{0}")]
    Environment(String),
    /// A defect in the compiler.
    #[error("internal error of the compiler: {0}")]
    Internal(String),
}

/// An error of the runtime, which found nothing wrong with the plan of a right graph.
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

/// Why a graph can't be lowered, at the op's position in its recording.
pub(crate) fn lower_error(graph: &Graph, e: codegen::LowerError) -> CompileError {
    let node = graph.node(e.node);
    CompileError::Unsupported {
        at: node.loc.position(),
        message: format!("{}: {}", node.op.name(), e.text),
    }
}
