//! Recording operations.

use crate::body;
use crate::grad::edge::{Edge, GradNode};
use crate::grad::is_grad_enabled;
use crate::node::{About, Handle, Node, NodeState, Operands, Recording};
use crate::run::{boundary, transfer};
use crate::{Device, note, scope, watch};
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim};
use kiln_ir::{Builder, Fact, Facts, Op, OpError, Role, Shape, ops};
use kiln_runtime::Buffer;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Weak};

/// The lazy [`Builder`]: the operations that it emits carry the location of the user's call.
pub struct Recorder {
    loc: &'static Location<'static>,
    called: &'static str,
    /// The device of operations without operands; `None` for any.
    device: Option<Device>,
    /// The line where `backward` was called, for its recorder.
    backward: Option<&'static Location<'static>>,
    /// The user's argument that holds the indices of the recorded operations.
    index: Option<(&'static str, Weak<Node>, u32)>,
    /// The requirement on the data that is being checked.
    requirement: Option<&'static str>,
    /// The number of the user's call, while operations are watched.
    call: u32,
}

impl Builder for Recorder {
    type Value = Handle;

    fn emit(&mut self, op: Op, inputs: &[Handle]) -> Result<SmallVec<[Handle; 1]>, OpError> {
        self.record(op, inputs)
    }

    fn fact(&self, value: &Handle) -> Fact {
        value.fact().clone()
    }

    fn with_fact<R>(&self, value: &Handle, f: impl FnOnce(&Fact) -> R) -> R {
        f(value.fact())
    }

    fn on_one_device(&mut self, inputs: &[Handle]) -> Result<Option<Vec<Handle>>, OpError> {
        self.on_common_device(inputs)
    }

    fn reduce_keepdim(
        &mut self,
        kind: Reduction,
        x: &Handle,
        axes: &[usize],
    ) -> Result<Handle, OpError> {
        let mut shape = Shape::from(x.dims());
        for &a in axes {
            shape[a] = Dim::ONE;
        }
        let reduce = ops::Reduce {
            kind,
            axes: axes.into(),
        };
        let reduced = self.op(reduce, std::slice::from_ref(x))?;
        self.reshape(&reduced, &shape)
    }
}

impl Recorder {
    /// Records a function that the user called at a line; operations without operands are computed on `device`.
    #[inline]
    pub fn new(
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
            call: watch::call(),
        }
    }

    /// The recorder of a backward pass that was called at `loc`.
    pub fn backward(loc: &'static Location<'static>, device: Option<Device>) -> Recorder {
        Recorder {
            backward: Some(loc),
            ..Recorder::new(loc, "backward", device)
        }
    }

    /// Records the following operations as the user's call of `called` at `loc`.
    pub fn at(
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
    ///
    /// # Errors
    /// None; the type is that of every recording function.
    pub fn detach(&mut self, t: &Handle) -> Result<Handle, OpError> {
        if !t.dtype().is_float() {
            return Ok(t.clone());
        }
        let facts = Facts::from_buf([t.fact().clone()]);
        let op = ops::Barrier { detach: true };
        let mut detached = self
            .push(op.into(), facts, &[t], t.node.device)
            .swap_remove(0);
        detached.edge = Edge::None;
        Ok(detached)
    }

    /// The function that the user called, and the line.
    #[inline]
    pub fn call_site(&self) -> (&'static str, &'static Location<'static>) {
        (self.called, self.loc)
    }

    /// Sets the user's argument that holds the indices of the following operations, for data errors.
    pub fn indexed_by(&mut self, name: &'static str, t: &Handle) {
        self.index = Some((name, Arc::downgrade(&t.node), t.output));
    }

    /// Sets the requirement that the following operations check, for their errors.
    pub fn set_requirement(&mut self, requirement: Option<&'static str>) {
        self.requirement = requirement;
    }

    /// Sets the device of the following operations.
    pub fn place_on(&mut self, device: Device) {
        self.device = Some(device);
    }

    /// The operands on one device: numbers are moved there. `None` if there are none to move.
    ///
    /// # Errors
    /// If others are on different devices.
    pub fn on_common_device<T: AsRef<Handle>>(
        &self,
        inputs: &[T],
    ) -> Result<Option<Vec<Handle>>, OpError> {
        on_device(inputs, common_device(inputs)?)
    }

    /// Returns a tensor of the elements with these bytes. It is data, so programs that differ only in it share a plan.
    /// While a function is recorded, it is a constant.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn list(
        &mut self,
        dtype: DType,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> Result<Handle, OpError> {
        if scope::is_recording() || body::is_tracing() {
            let (shape, bytes) = (shape.into(), bytes.into());
            let op = ops::Constant {
                dtype,
                shape,
                bytes,
            };
            return self.op(op, &[]);
        }
        let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
        let device = self.device.filter(|d| *d != Device::Cpu);
        let buffer = Buffer::from_bytes(dtype, &shape, &bytes)
            .and_then(|buffer| device.unwrap_or_default().bring(buffer))
            .map_err(|e| OpError(e.to_string()))?;
        let role = Role::Data;
        Ok(Handle::leaf(buffer, role, device, self.loc, self.called))
    }

    /// Records an operation.
    ///
    /// # Errors
    /// If it does not apply to the operands.
    pub fn record<T: AsRef<Handle>>(
        &mut self,
        op: Op,
        inputs: &[T],
    ) -> Result<SmallVec<[Handle; 1]>, OpError> {
        let facts = {
            let facts: SmallVec<[&Fact; 3]> = inputs.iter().map(|t| t.as_ref().fact()).collect();
            op.infer(&facts)?
        };
        let device = common_device(inputs)?;
        match on_device(inputs, device)? {
            Some(moved) => self.recorded(op, facts, &moved, device),
            None => self.recorded(op, facts, inputs, device),
        }
    }

    /// Records an operation on operands that are on one device.
    fn recorded<T: AsRef<Handle>>(
        &mut self,
        op: Op,
        facts: Facts,
        inputs: &[T],
        device: Option<Device>,
    ) -> Result<SmallVec<[Handle; 1]>, OpError> {
        let count = facts.len();
        let (op, facts) = match op {
            Op::Loop(op) => with_residuals(op, facts, inputs)?,
            op => (op, facts),
        };
        let mut outputs = self.push(op, facts, inputs, device.or(self.device));
        outputs.truncate(count);
        if body::detaches() && inputs.iter().any(|t| t.as_ref().dtype().is_float()) {
            let detach = |t: &Handle| self.detach(t);
            outputs = outputs.iter().map(detach).collect::<Result<_, _>>()?;
        }
        Ok(outputs)
    }

    fn push<T: AsRef<Handle>>(
        &mut self,
        op: Op,
        facts: Facts,
        inputs: &[T],
        device: Option<Device>,
    ) -> SmallVec<[Handle; 1]> {
        let outputs = facts.len() as u32;
        let state = NodeState::Lazy {
            inputs: inputs
                .iter()
                .map(|t| t.as_ref().operand())
                .collect::<Operands>(),
            recording: Some(join_recordings(inputs)),
            kept: SmallVec::new(),
        };
        let mut node = Node::new(op, facts, device, self.loc, self.called, state);
        node.backward = self.backward;
        node.about = self.about(&node.op);
        let node = Arc::new(node);
        boundary::recorded(&node);
        watch::recorded(&node, self.call);
        body::saw(inputs);
        let history = GradNode::of_op(&node, inputs);
        let output = |o: u32| {
            let mut t = Handle::output_of(&node, o);
            if let Some(history) = history.as_ref().filter(|_| t.dtype().is_float()) {
                t.edge = Edge::Node(history.clone(), o);
            }
            t
        };
        match outputs {
            1 => SmallVec::from_buf([output(0)]),
            _ => (0..outputs).map(output).collect(),
        }
    }

    /// Returns the information for messages to keep with the node of an op.
    fn about(&self, op: &Op) -> Option<Arc<About>> {
        if !matches!(op, Op::Gather(_) | Op::Scatter(_)) {
            return None;
        }
        let about = About {
            requirement: self.requirement,
            index: self.index.clone(),
            note: note::current(),
            label: None,
        };
        let is_informative =
            about.requirement.is_some() || about.index.is_some() || about.note.is_some();
        is_informative.then(|| Arc::new(about))
    }
}

/// Makes a loop stack the residuals of its derivative, if gradients may be needed.
fn with_residuals<T: AsRef<Handle>>(
    op: ops::Loop,
    facts: Facts,
    inputs: &[T],
) -> Result<(Op, Facts), OpError> {
    let flows = |t: &T| {
        let t = t.as_ref();
        is_grad_enabled() && t.dtype().is_float() && (t.edge.is_some() || body::may_flow())
    };
    let needs_grad: Vec<bool> = inputs.iter().map(flows).collect();
    if !needs_grad.contains(&true) {
        return Ok((op.into(), facts));
    }
    // A body without derivative is an error once its gradient is needed.
    let Ok(op) = kiln_autodiff::with_residuals(&op, &needs_grad) else {
        return Ok((op.into(), facts));
    };
    let op = Op::from(op);
    let facts: SmallVec<[&Fact; 3]> = inputs.iter().map(|t| t.as_ref().fact()).collect();
    let facts = op.infer(&facts)?;
    Ok((op, facts))
}

/// Returns the device of the operands; `None` if none of them depends on data.
fn common_device<T: AsRef<Handle>>(inputs: &[T]) -> Result<Option<Device>, OpError> {
    let mut placed: Option<(usize, &Handle)> = None;
    let inputs = inputs.iter().map(AsRef::as_ref).enumerate();
    for (i, t) in inputs.filter(|(_, t)| t.node.device.is_some()) {
        match placed {
            None => placed = Some((i, t)),
            Some((_, f)) if f.node.device == t.node.device || is_number(t) => {}
            Some((_, f)) if is_number(f) => placed = Some((i, t)),
            Some(f) => {
                let describe = |(i, t): (usize, &Handle)| {
                    let name = t.label().and_then(|l| l.get());
                    let name = name.map_or(format!("operand {i}"), |n| n.to_string());
                    format!("{name} ({}) on {}", t.fact(), t.device())
                };
                return Err(OpError(format!(
                    "the operands are on different devices, {} and {}; move one with to(device)",
                    describe(f),
                    describe((i, t))
                )));
            }
        }
    }
    Ok(placed.and_then(|(_, t)| t.node.device))
}

/// True if this is a number on the CPU, which may be moved to any device.
#[inline]
pub fn is_number(t: &Handle) -> bool {
    t.ndim() == 0 && t.device() == Device::Cpu
}

/// The operands with numbers moved to the device; `None` if there are none to move.
fn on_device<T: AsRef<Handle>>(
    inputs: &[T],
    device: Option<Device>,
) -> Result<Option<Vec<Handle>>, OpError> {
    let elsewhere = |t: &Handle| t.node.device.is_some() && t.node.device != device;
    let Some(device) = device.filter(|_| inputs.iter().any(|t| elsewhere(t.as_ref()))) else {
        return Ok(None);
    };
    let moved = inputs
        .iter()
        .map(AsRef::as_ref)
        .map(|t| match elsewhere(t) {
            true => {
                transfer::to(t, device, t.node.loc).map_err(|e| OpError(e.message().to_string()))
            }
            false => Ok(t.clone()),
        });
    moved.collect::<Result<Vec<_>, _>>().map(Some)
}

/// Joins the recordings of the operands of an op.
pub(crate) fn join_recordings<T: AsRef<Handle>>(inputs: &[T]) -> Recording {
    let mut shared_recording: Option<Recording> = None;
    for t in inputs.iter().map(AsRef::as_ref) {
        if let NodeState::Lazy {
            recording: Some(r), ..
        } = &*t.node.state()
        {
            match &shared_recording {
                Some(f) => f.join(r),
                None => shared_recording = Some(r.root()),
            }
        }
    }
    shared_recording.unwrap_or_default()
}
