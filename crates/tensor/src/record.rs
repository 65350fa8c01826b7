//! Recording operations.

use crate::about::About;
use crate::autograd::edge::{Edge, GradNode};
use crate::caller::user_line;
use crate::error::Note;
use crate::node::{Node, Operands, State};
use crate::ops::index::checked_index;
use crate::ops::record::Recorded;
use crate::recording::Recording;
use crate::run::boundary;
use crate::{
    Device, Error, ErrorKind, Tensor, is_grad_enabled, names, promote, scope, strides, trace,
};
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Loc};
use kiln_ir::{Builder, Fact, Facts, Op, OpError, Pw, Shape, ops};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Weak};

/// The lazy [`Builder`]: what it emits carries the location of the user's call.
pub(crate) struct Recorder {
    loc: &'static Location<'static>,
    called: &'static str,
    /// Where what has no operands is computed; `None` for anywhere.
    device: Option<Device>,
    /// Where `backward` was called, for its recorder.
    backward: Option<&'static Location<'static>>,
    /// The user's argument that holds the indices of what is recorded.
    index: Option<(&'static str, Weak<Node>, u32)>,
    /// What the data must be that is being checked.
    requirement: Option<&'static str>,
}

impl Builder for Recorder {
    type Value = Tensor;

    fn emit(&mut self, op: Op, inputs: &[Tensor]) -> Result<SmallVec<[Tensor; 1]>, OpError> {
        let facts = {
            let facts: SmallVec<[&Fact; 3]> = inputs.iter().map(|t| t.fact()).collect();
            let inferred = op.infer(&facts)?;
            if let Op::Slice(slice) = &op {
                slice.check(facts[0])?;
            }
            inferred
        };
        let names = names::of(&op, inputs)?;
        let strides = strides::of(self.called, &op, &facts[0], inputs);
        let device = common_device(inputs)?;
        let moved = on_device(inputs, device);
        let inputs = moved.as_deref().unwrap_or(inputs);
        let count = facts.len();
        let (op, facts) = match op {
            Op::Loop(op) => with_residuals(op, facts, inputs)?,
            op => (op, facts),
        };
        let mut outputs = self.push(op, facts, inputs, device.or(self.device));
        outputs.truncate(count);
        if trace::detaches() && inputs.iter().any(|t| t.dtype().is_float()) {
            let cut = |t: &Tensor| self.cut(t);
            outputs = outputs.iter().map(cut).collect::<Result<_, _>>()?;
        }
        if names.is_some() || strides.is_some() {
            for t in &mut outputs {
                t.names = names.clone();
                t.strides = strides.clone();
            }
        }
        Ok(outputs)
    }

    fn fact(&self, value: &Tensor) -> Fact {
        value.fact().clone()
    }

    fn ask<R>(&self, value: &Tensor, f: impl FnOnce(&Fact) -> R) -> R {
        f(value.fact())
    }

    fn beside(&mut self, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>, OpError> {
        Ok(on_device(inputs, common_device(inputs)?))
    }

    fn reduce_keepdim(&mut self, kind: Reduction, x: &Tensor, axes: &[usize]) -> Recorded {
        let mut shape = Shape::from(x.dims());
        for &a in axes {
            shape[a] = Dim::ONE;
        }
        let reduce = ops::Reduce {
            kind,
            axes: axes.into(),
        };
        let reduced = self.op(reduce, std::slice::from_ref(x))?;
        Ok(self.reshape(&reduced, &shape)?.with_names_of(x, |_| {}))
    }
}

impl Recorder {
    pub(crate) fn new(
        loc: &'static Location<'static>,
        called: &'static str,
        device: Option<Device>,
    ) -> Recorder {
        Recorder {
            loc,
            called,
            device,
            backward: None,
            index: None,
            requirement: None,
        }
    }

    /// The recorder of a backward pass that was called at `loc`.
    pub(crate) fn backward(loc: &'static Location<'static>, device: Option<Device>) -> Recorder {
        Recorder {
            backward: Some(loc),
            ..Recorder::new(loc, "backward", device)
        }
    }

    /// Records what follows as the user's call of `called` at `loc`.
    pub(crate) fn at(
        &mut self,
        loc: &'static Location<'static>,
        called: &'static str,
        device: Option<Device>,
    ) {
        *self = Recorder {
            backward: self.backward,
            ..Recorder::new(loc, called, device)
        };
    }

    /// The same value, through which no gradient flows in the body being recorded.
    pub(crate) fn cut(&mut self, t: &Tensor) -> Result<Tensor, OpError> {
        if !t.dtype().is_float() {
            return Ok(t.clone());
        }
        let facts = Facts::from_buf([t.fact().clone()]);
        let op = ops::Barrier { detach: true };
        let mut cut = self
            .push(op.into(), facts, std::slice::from_ref(t), t.node.device)
            .swap_remove(0);
        cut.edge = Edge::None;
        Ok(cut)
    }

    /// What the user called, and at which line.
    pub(crate) fn place(&self) -> (&'static str, &'static Location<'static>) {
        (self.called, self.loc)
    }

    /// Says which argument of the user's holds the indices of what follows, for data errors.
    pub(crate) fn indexed_by(&mut self, name: &'static str, t: &Tensor) {
        self.index = Some((name, Arc::downgrade(&t.node), t.output));
    }

    /// `value`, or a data error with this text where `fine`, which broadcasts to it, is false.
    pub(crate) fn require(
        &mut self,
        fine: &Tensor,
        value: &Tensor,
        what: &'static str,
    ) -> Result<Tensor, OpError> {
        // The only index of one element is 0, which is then added.
        let (zero, one) = (
            self.full(0i64, DType::I64, &[])?,
            self.full(1i64, DType::I64, &[])?,
        );
        let at = self.select(fine, &zero, &one)?;
        let at = self.reshape(&at, &[fine.fact().numel()])?;
        self.requirement = Some(what);
        let zero = checked_index(self, &at, &Dim::ONE);
        self.requirement = None;
        let zero = self.reshape(&zero?, fine.dims())?;
        let zero = self.cast(&zero, value.dtype())?;
        self.binary(Pw::Add, value, &zero)
    }

    /// What follows is computed on a device.
    pub(crate) fn place_on(&mut self, device: Device) {
        self.device = Some(device);
    }

    fn push(
        &mut self,
        op: Op,
        facts: Facts,
        inputs: &[Tensor],
        device: Option<Device>,
    ) -> SmallVec<[Tensor; 1]> {
        let outputs = facts.len() as u32;
        let state = State::Lazy {
            inputs: inputs.iter().map(Tensor::operand).collect::<Operands>(),
            recording: Some(joined_recording(inputs)),
            kept: SmallVec::new(),
        };
        let mut node = Node::new(op, facts, device, self.loc, self.called, state);
        node.backward = self.backward;
        node.about = About::of(&node.op, self.requirement, self.index.as_ref());
        let node = Arc::new(node);
        boundary::recorded(&node);
        trace::saw(inputs);
        let history = GradNode::of_op(&node, inputs);
        let output = |o: u32| {
            let mut t = Tensor::output_of(&node, o);
            if let Some(history) = history.as_ref().filter(|_| t.dtype().is_float()) {
                t.edge = Edge::Node(history.clone(), o);
            }
            t
        };
        (0..outputs).map(output).collect()
    }

    /// Both operands in the dtype they promote to.
    pub(crate) fn promoted(&mut self, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor), OpError> {
        let dtype = promote::common(&[a, b])?;
        Ok((self.cast(a, dtype)?, self.cast(b, dtype)?))
    }
}

/// A loop that stacks what its derivative needs, where gradients may be asked for.
fn with_residuals(op: ops::Loop, facts: Facts, inputs: &[Tensor]) -> Result<(Op, Facts), OpError> {
    let flows = |t: &Tensor| {
        is_grad_enabled() && t.dtype().is_float() && (t.edge.is_some() || trace::may_flow())
    };
    let wanted: Vec<bool> = inputs.iter().map(flows).collect();
    if !wanted.contains(&true) {
        return Ok((op.into(), facts));
    }
    // A body without derivative is an error once somebody asks for it.
    let Ok(op) = kiln_autodiff::with_residuals(&op, &wanted) else {
        return Ok((op.into(), facts));
    };
    let op = Op::from(op);
    let facts: SmallVec<[&Fact; 3]> = inputs.iter().map(|t| t.fact()).collect();
    let facts = op.infer(&facts)?;
    Ok((op, facts))
}

/// The device that the operands are on, if any of them is on one.
fn common_device(inputs: &[Tensor]) -> Result<Option<Device>, OpError> {
    let mut found: Option<&Tensor> = None;
    for t in inputs.iter().filter(|t| t.node.device.is_some()) {
        match found {
            None => found = Some(t),
            Some(f) if f.node.device == t.node.device || is_number(t) => {}
            Some(f) if is_number(f) => found = Some(t),
            Some(f) => {
                return Err(OpError(format!(
                    "the operands are on different devices, {} and {}; move one with to(device)",
                    f.device(),
                    t.device()
                )));
            }
        }
    }
    Ok(found.and_then(|t| t.node.device))
}

/// Whether this is a number on the CPU, which goes to any device.
fn is_number(t: &Tensor) -> bool {
    t.ndim() == 0 && t.device() == Device::Cpu
}

/// The operands with numbers moved to the device, if there are any.
fn on_device(inputs: &[Tensor], device: Option<Device>) -> Option<Vec<Tensor>> {
    let elsewhere = |t: &Tensor| t.node.device.is_some() && t.node.device != device;
    if !inputs.iter().any(elsewhere) {
        return None;
    }
    let device = device?;
    Some(
        inputs
            .iter()
            .map(|t| {
                if elsewhere(t) {
                    t.to(device)
                } else {
                    t.clone()
                }
            })
            .collect(),
    )
}

/// The recording of an op on these operands: theirs, joined.
pub(crate) fn joined_recording(inputs: &[Tensor]) -> Recording {
    let mut found: Option<Recording> = None;
    for t in inputs {
        if let State::Lazy {
            recording: Some(r), ..
        } = &*t.node.state()
        {
            match &found {
                Some(f) => f.join(r),
                None => found = Some(r.root()),
            }
        }
    }
    found.unwrap_or_else(Recording::new)
}

/// Records what `f` builds from `operands`. An invalid operation gives a tensor that carries the error,
/// drawn at the user's call of `called`; a poisoned operand passes its own error on.
#[track_caller]
pub(crate) fn compose(
    called: &'static str,
    operands: &[&Tensor],
    f: impl FnOnce(&mut Recorder) -> Result<Tensor, OpError>,
) -> Tensor {
    attempt(called, operands, Location::caller(), f).unwrap_or_else(|poisoned| poisoned)
}

/// Like [`compose`] for functions that give several tensors. An error gives `count` poisoned ones.
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

/// What `f` builds, or the poisoned tensor that stands for it.
fn attempt<T>(
    called: &'static str,
    operands: &[&Tensor],
    loc: &'static Location<'static>,
    f: impl FnOnce(&mut Recorder) -> Result<T, OpError>,
) -> Result<T, Tensor> {
    let mut recorder = recorder_for(called, operands, loc)?;
    f(&mut recorder).map_err(|e| failed(called, operands, e, loc))
}

/// Apart from [`attempt`], of which there is a copy for each function it is called with.
#[inline(never)]
fn recorder_for(
    called: &'static str,
    operands: &[&Tensor],
    loc: &'static Location<'static>,
) -> Result<Recorder, Tensor> {
    if let Some(bad) = operands.iter().find(|t| t.error().is_some()) {
        return Err((*bad).clone());
    }
    // Another thread of the parent may have held a lock of an operand.
    crate::run::errors::check_process(called, loc).map_err(|e| Tensor::poisoned(e, loc))?;
    let device = operands
        .iter()
        .find_map(|t| t.node.device.filter(|_| !is_number(t)));
    let device = device.or_else(|| operands.first().and_then(|t| t.node.device));
    Ok(Recorder::new(user_line(loc), called, device))
}

/// The poisoned tensor that stands for what could not be recorded.
#[cold]
fn failed(
    called: &'static str,
    operands: &[&Tensor],
    error: OpError,
    loc: &'static Location<'static>,
) -> Tensor {
    let loc = user_line(loc);
    Tensor::poisoned(op_error(called, operands, error, loc), loc)
}

/// An error at the user's line, with the names of symbols.
pub(crate) fn user_error(
    kind: ErrorKind,
    called: &str,
    message: String,
    loc: &'static Location<'static>,
) -> Error {
    Error::new(
        kind,
        called,
        scope::with_symbol_names(&message),
        Loc::from(loc),
    )
}

fn op_error(
    called: &str,
    operands: &[&Tensor],
    e: OpError,
    loc: &'static Location<'static>,
) -> Error {
    let note = |(i, t): (usize, &&Tensor)| {
        let on = match t.device() {
            Device::Cpu => String::new(),
            device => format!(" on {device}"),
        };
        let fact = scope::with_symbol_names(&t.fact().to_string());
        Note {
            text: format!("operand {i}: {fact}{on}"),
            of: t.label(),
            from: format!(" from {} at {}", t.node.called, Loc::from(t.node.loc)),
        }
    };
    let notes = operands.iter().enumerate().map(note).collect();
    let message = scope::with_symbol_names(&e.0);
    Error::with_notes(ErrorKind::Op, called, message, loc, notes)
}
