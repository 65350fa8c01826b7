//! Conversion of errors of a run to errors for the user.

use super::gather::Gather;
use super::outcome;
use crate::node::Node;
use crate::{Error, ErrorKind, Result, scope};
use kiln_base::Loc;
use kiln_compiler::CompileError;
use kiln_runtime::{Buffer, Error as RunError, fork};
use std::panic::Location;
use std::sync::Arc;
use tracing::warn;

/// Fails in a process that was forked where it can't continue.
pub fn check_process(op: &str, loc: &'static Location<'static>) -> Result<()> {
    fork::check().map_err(|e| Error::new(ErrorKind::Unsupported, op, e.to_string(), loc))
}

/// Fails while a function is being recorded, where nothing can be read.
///
/// # Errors
/// If a function is being recorded.
pub fn forbid_while_compiling(loc: &'static Location<'static>) -> Result<()> {
    if scope::is_recording() {
        return Err(Error::new(
            ErrorKind::ReadWhileCompiling,
            "compile",
            "a value can't be read while recording: it is not known yet, and baking one example in \
             would be wrong for the next run; return the tensor instead",
            loc,
        ));
    }
    Ok(())
}

/// Converts an error of the compiler, at the line of the op that it rejects.
pub fn compile_error(e: CompileError, gather: &Gather, loc: &'static Location<'static>) -> Error {
    match e {
        CompileError::Unsupported { at, message } => {
            let loc = at.map_or(Loc::from(loc), |entry| gather.loc(entry));
            Error::new(ErrorKind::Unsupported, "compile", message, loc)
        }
        CompileError::Custom { at, op, text } => {
            Error::new(ErrorKind::Data, &op, text, gather.loc(at))
        }
        CompileError::Device(text) => Error::new(ErrorKind::Device, "compile", text, loc),
        CompileError::Environment(text) => Error::new(ErrorKind::Value, "compile", text, loc),
        CompileError::Dump(text) => Error::new(ErrorKind::Io, "compile", text, loc),
        CompileError::Memory(text) => Error::new(ErrorKind::Memory, "compile", text, loc),
        e => Error::new(ErrorKind::Internal, "compile", e.to_string(), loc),
    }
}

/// Converts an error of a run; data errors are at the line of the op.
pub fn run_error(e: RunError, gather: &Gather, loc: &'static Location<'static>) -> Error {
    run_error_with(e, gather, loc, &|_| None)
}

/// [`run_error`] for a run in which placeholders had values.
pub fn run_error_with(
    e: RunError,
    gather: &Gather,
    loc: &'static Location<'static>,
    placeholder_value: &dyn Fn(&Arc<Node>) -> Option<Buffer>,
) -> Error {
    let text = e.to_string();
    let error = match e {
        RunError::Data { node, .. } => {
            let node = node as usize;
            let error = outcome::data_error(&e, &gather.called_function(node), gather.loc(node));
            match gather.about(node) {
                Some(about) => about.complete(error, &e, about.argument(), placeholder_value),
                None => error,
            }
        }
        RunError::Custom { node, op, text } => {
            Error::new(ErrorKind::Data, &op, text, gather.loc(node as usize))
        }
        RunError::Size {
            node,
            size,
            value,
            symbols,
            ..
        } => {
            let node = node as usize;
            let text = format!("needs {size} to be at least 0, and it is {value} for {symbols}");
            Error::new(
                ErrorKind::Op,
                &gather.called_function(node),
                text,
                gather.loc(node),
            )
        }
        RunError::Cancelled => Error::new(ErrorKind::Cancelled, "run", text, loc),
        RunError::Forked => Error::new(ErrorKind::Unsupported, "run", text, loc),
        RunError::Cuda(_) => Error::new(ErrorKind::Device, "run", text, loc),
        RunError::OutOfMemory { .. } => {
            warn!(target: "kiln::memory", line = %loc, "{text}");
            Error::new(ErrorKind::Memory, "run", text, loc)
        }
        RunError::InputShape { .. }
        | RunError::InputDType { .. }
        | RunError::InputCount { .. }
        | RunError::Symbol { .. } => Error::new(ErrorKind::Value, "run", text, loc),
        _ => Error::new(ErrorKind::Internal, "run", text, loc),
    };
    gather.device().named_in(error)
}

/// The error of reading a placeholder outside the function it was recorded in.
pub fn leaked(node: &Node) -> Error {
    Error::new(
        ErrorKind::ReadWhileCompiling,
        node.called,
        "this tensor was recorded inside a function given to compile, scan or cond, and has no value \
         there or outside it; return it from the function instead",
        Loc::from(node.loc),
    )
}
