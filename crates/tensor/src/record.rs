//! Recording operations.

use crate::{
    Device, Error, ErrorKind, Tensor, default_device, names, promote, quantization, strides,
};
use kiln_base::Loc;
use kiln_base::prim::Reduction;
use kiln_ir::{Builder, Fact, Op, OpError};
use kiln_lazy::caller::user_line;
use kiln_lazy::error::Note;
use kiln_lazy::recorder::is_number;
use kiln_lazy::run::errors::check_process;
use kiln_lazy::{Handle, symbols};
use smallvec::SmallVec;
use std::panic::Location;

/// The folder of this crate's source. Lines in it are not the user's.
pub(crate) const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "record.rs".len()).0
};

/// A recorded value, or the reason why it is invalid.
pub(crate) type Recorded = Result<Tensor, OpError>;

/// The recorder under PyTorch's names. Its values also have strides and names of dims.
pub(crate) struct Recorder {
    pub(crate) lazy: kiln_lazy::Recorder,
    /// True if PyTorch's function returns a view of its operand.
    views: bool,
}

impl Builder for Recorder {
    type Value = Tensor;

    fn emit(&mut self, op: Op, inputs: &[Tensor]) -> Result<SmallVec<[Tensor; 1]>, OpError> {
        let names = names::infer(&op, inputs)?;
        let mut outputs = self.lazy.record(op, &quantization::read(inputs))?;
        let strides = (self.views.then(|| strides::infer(&outputs[0], inputs))).flatten();
        let named = |handle| Tensor {
            handle,
            strides: strides.clone(),
            names: names.clone(),
        };
        Ok(match outputs.len() {
            1 => SmallVec::from_buf([named(outputs.swap_remove(0))]),
            _ => outputs.into_iter().map(named).collect(),
        })
    }

    fn fact(&self, value: &Tensor) -> Fact {
        value.fact().clone()
    }

    fn with_fact<R>(&self, value: &Tensor, f: impl FnOnce(&Fact) -> R) -> R {
        f(value.fact())
    }

    fn on_one_device(&mut self, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>, OpError> {
        let moved = self.lazy.on_common_device(inputs)?;
        let named = |(handle, t): (Handle, &Tensor)| Tensor {
            handle,
            ..t.clone()
        };
        Ok(moved.map(|moved| moved.into_iter().zip(inputs).map(named).collect()))
    }

    fn reduce_keepdim(&mut self, kind: Reduction, x: &Tensor, axes: &[usize]) -> Recorded {
        let read = quantization::read(std::slice::from_ref(x));
        let reduced = Tensor::from(self.lazy.reduce_keepdim(kind, &read[0].handle, axes)?);
        Ok(reduced.with_names_of(x, |_| {}))
    }
}

impl Recorder {
    /// The same value, without gradients in the body being recorded.
    pub(crate) fn detach(&mut self, t: &Tensor) -> Recorded {
        Ok(Tensor {
            handle: self.lazy.detach(&t.handle)?,
            ..t.clone()
        })
    }

    /// The function that the user called, and its line.
    pub(crate) fn call_site(&self) -> (&'static str, &'static Location<'static>) {
        self.lazy.call_site()
    }

    /// Names the user's argument that holds the indices of the operations that follow, for data errors.
    pub(crate) fn indexed_by(&mut self, name: &'static str, t: &Tensor) {
        self.lazy.indexed_by(name, &t.handle);
    }

    /// Sets the device of the operations that follow.
    pub(crate) fn place_on(&mut self, device: Device) {
        self.lazy.place_on(device);
    }

    /// Casts both operands to the dtype that they promote to.
    pub(crate) fn promoted(&mut self, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor), OpError> {
        let dtype = promote::common_dtype(&[a, b])?;
        Ok((self.cast(a, dtype)?, self.cast(b, dtype)?))
    }
}

/// Records the operations of `f` on `operands`. An invalid operation gives a tensor that carries the error, located
/// at the user's call of `called`. If an operand is poisoned, its error is passed on.
#[track_caller]
pub(crate) fn compose(
    called: &'static str,
    operands: &[&Tensor],
    f: impl FnOnce(&mut Recorder) -> Recorded,
) -> Tensor {
    attempt(called, operands, Location::caller(), f).unwrap_or_else(|poisoned| poisoned)
}

/// [`compose`] for a function that returns a view in PyTorch: the result has the strides of a view.
#[track_caller]
pub(crate) fn view_of(
    called: &'static str,
    operands: &[&Tensor],
    f: impl FnOnce(&mut Recorder) -> Recorded,
) -> Tensor {
    compose(called, operands, |b| {
        b.views = true;
        f(b)
    })
}

/// [`view_of`] for functions that return several views.
#[track_caller]
pub(crate) fn views_of(
    called: &'static str,
    operands: &[&Tensor],
    count: usize,
    f: impl FnOnce(&mut Recorder) -> Result<Vec<Tensor>, OpError>,
) -> Vec<Tensor> {
    compose_many(called, operands, count, |b| {
        b.views = true;
        f(b)
    })
}

/// [`compose`] for functions that return several tensors. An error gives `count` poisoned ones.
#[track_caller]
pub(crate) fn compose_many(
    called: &'static str,
    operands: &[&Tensor],
    count: usize,
    f: impl FnOnce(&mut Recorder) -> Result<Vec<Tensor>, OpError>,
) -> Vec<Tensor> {
    let loc = Location::caller();
    attempt(called, operands, loc, f).unwrap_or_else(|poisoned| vec![poisoned; count])
}

/// [`compose`] for functions that return two tensors.
#[track_caller]
pub(crate) fn compose_pair(
    called: &'static str,
    operands: &[&Tensor],
    f: impl FnOnce(&mut Recorder) -> Result<(Tensor, Tensor), OpError>,
) -> (Tensor, Tensor) {
    let pair = attempt(called, operands, Location::caller(), f);
    pair.unwrap_or_else(|poisoned| (poisoned.clone(), poisoned))
}

/// Returns the result of `f`, or a poisoned tensor in its place.
fn attempt<T>(
    called: &'static str,
    operands: &[&Tensor],
    loc: &'static Location<'static>,
    f: impl FnOnce(&mut Recorder) -> Result<T, OpError>,
) -> Result<T, Tensor> {
    let mut recorder = recorder_for(called, operands, loc)?;
    f(&mut recorder).map_err(|e| poison(called, operands, e, loc))
}

/// Returns the recorder of a call, or the first operand that is poisoned. Not inlined into [`attempt`], which is
/// compiled once for each function that it is called with.
#[inline(never)]
fn recorder_for(
    called: &'static str,
    operands: &[&Tensor],
    loc: &'static Location<'static>,
) -> Result<Recorder, Tensor> {
    if let Some(bad) = operands.iter().find(|t| t.error().is_some()) {
        return Err((*bad).clone());
    }
    // After a fork, another thread of the parent process may have held a lock of an operand.
    check_process(called, loc).map_err(|e| Tensor::poisoned(e, loc))?;
    let device = operands
        .iter()
        .find_map(|t| t.handle.node.device.filter(|_| !is_number(&t.handle)));
    let device = device.or_else(|| operands.first().and_then(|t| t.handle.node.device));
    // Tensors that depend on no data are computed wherever they are used, unless the user said where.
    let default = || Some(default_device()).filter(|d| *d != Device::Cpu);
    let device = device.or_else(|| operands.is_empty().then(default).flatten());
    let lazy = kiln_lazy::Recorder::new(user_line(loc), called, device);
    Ok(Recorder { lazy, views: false })
}

/// A poisoned tensor in place of the result that could not be recorded.
#[cold]
fn poison(
    called: &'static str,
    operands: &[&Tensor],
    error: OpError,
    loc: &'static Location<'static>,
) -> Tensor {
    let loc = user_line(loc);
    Tensor::poisoned(op_error(called, operands, error, loc), loc)
}

/// An error at the user's line, with symbols shown by their names.
pub(crate) fn user_error(
    kind: ErrorKind,
    called: &str,
    message: String,
    loc: &'static Location<'static>,
) -> Error {
    Error::new(kind, called, symbols::named(&message), Loc::from(loc))
}

fn op_error(
    called: &str,
    operands: &[&Tensor],
    e: OpError,
    loc: &'static Location<'static>,
) -> Error {
    let note = |(i, t): (usize, &&Tensor)| {
        let suffix = match t.device() {
            Device::Cpu => String::new(),
            device => format!(" on {device}"),
        };
        let fact = symbols::named(&t.fact().to_string());
        Note {
            text: format!("operand {i}: {fact}{suffix}"),
            label: t.handle.label(),
            unnamed: format!(
                " from {} at {}",
                t.handle.node.called,
                Loc::from(t.handle.node.loc)
            ),
        }
    };
    let notes = operands.iter().enumerate().map(note).collect();
    let message = symbols::named(&e.0);
    Error::with_notes(ErrorKind::Op, called, message, loc, notes)
}
