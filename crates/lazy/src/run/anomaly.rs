//! Finds the operation that produced the first NaN or infinity.
//!
//! The requested values are computed before the run itself, as recorded: no rewrites, one operation per
//! kernel. The operands and results of each kernel are checked, so the operation that is named is the user's, however
//! the optimised program would have changed it.

use super::errors;
use super::gather::Gather;
use super::place::index_of;
use crate::error::Note;
use crate::{Error, ErrorKind, Result};
use kiln_base::{Loc, Scoped};
use kiln_compiler::{Anomaly, Layout, Options, compile, first_anomaly};
use kiln_ir::Graph;
use kiln_runtime::Buffer;
use std::cell::Cell;
use std::panic::Location;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(false) };
}

/// True if runs of this thread look for NaNs and infinities.
pub fn is_anomaly_enabled() -> bool {
    ENABLED.get()
}

/// Runs `f`. Reads and runs of compiled functions in it look for operations that produce a NaN from operands without
/// one, or an infinity from finite operands, forward and backward. The first one recorded is returned as an error of
/// kind [`ErrorKind::Anomaly`] at the user's line. For a derivative, that is the line of the operation that it
/// belongs to, and a note gives the line of `backward`.
///
/// Infinities that are constants of the program (a mask's `-inf`) are ignored, and so are those already present in
/// data and parameters. Every run takes several times as long, and compiles each time.
///
/// ```
/// use kiln_tensor::{Tensor, detect_anomaly};
///
/// let x = Tensor::from_slice(&[4.0f32, 0.0], [2]).requires_grad_(true);
/// let y = x.sqrt().sum(());
/// y.backward()?;
/// let e = detect_anomaly(|| x.grad().unwrap().to_vec::<f32>()).unwrap_err();
/// assert!(e.to_string().contains("sqrt: its derivative"), "{e}");
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn detect_anomaly<T>(f: impl FnOnce() -> T) -> T {
    let _guard = set_detect_anomaly(true);
    f()
}

/// Switches the search of [`detect_anomaly`] on or off on this thread until the guard is dropped.
pub fn set_detect_anomaly(enabled: bool) -> Scoped<Cell<bool>> {
    Scoped::new(&ENABLED, enabled)
}

/// Looks for anomalies in the program of `gather`, given as a graph whose locations are positions in it.
pub fn check(
    gather: &Gather,
    graph: Graph,
    gpu: Option<u32>,
    inputs: &[Buffer],
    loc: &'static Location<'static>,
) -> Result<()> {
    let options = Options {
        gpu,
        optimize: false,
        fuse: false,
        tune: Default::default(),      // not worth measuring
        layout: Layout::ChannelsFirst, // elements are numbered in row-major order
        ..Options::default()
    };
    let positions: Vec<Loc> = (0..gather.positions()).map(Loc::recorded).collect();
    let c = compile(&graph, &positions, &options);
    let c = c.map_err(|e| errors::compile_error(e, gather, loc))?;
    let serial_of = |at: usize| gather.serial(at);
    let search = first_anomaly(&c.stages, &c.executable, inputs, &serial_of);
    match search.map_err(|e| errors::run_error(e, gather, loc))? {
        Some(anomaly) => Err(anomaly_error(anomaly, gather)),
        None => Ok(()),
    }
}

/// Returns the error of an anomaly at the user's line.
fn anomaly_error(anomaly: Anomaly, gather: &Gather) -> Error {
    let index = index_of(anomaly.element as i64, &anomaly.shape);
    let entry = anomaly.at;
    let backward = gather.entries.get(entry).and_then(|e| e.node.backward);
    let verb = match backward {
        Some(_) => "its derivative produced",
        None => "produced",
    };
    let (value, shape) = (anomaly.value, &anomaly.shape);
    let message = format!("{verb} {value} at {index:?} of {shape:?}");
    let mut notes = anomaly.operands;
    notes.extend(backward.map(|b| format!("recorded by backward at {}", Loc::from(b))));
    let (mut function, mut loc) = (gather.called_function(entry), gather.loc(entry));
    if let Some(inside) = anomaly.inside {
        notes.push(format!("in step {} of {function} at {loc}", inside.step));
        (function, loc) = (gather.called_function(inside.at), gather.loc(inside.at));
    }
    let notes = notes.into_iter().map(Note::from).collect();
    Error::with_notes(ErrorKind::Anomaly, &function, message, loc, notes)
}
