//! Recorded nodes and the handles to them.

use crate::about::About;
use crate::autograd::edge::Edge;
use crate::names::Names;
use crate::recording::Recording;
use crate::strides::Strides;
use crate::{Device, Error, ErrorKind, Result, scope};
use hashbrown::DefaultHashBuilder;
use kiln_base::{DType, Dim};
use kiln_ir::{Fact, Facts, Graph, Op, Role};
use kiln_runtime::Buffer;
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hasher};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// A tensor: a handle to one output of a recorded operation.
///
/// Cloning is cheap and shares the node. A tensor whose operation was invalid carries that first error;
/// every read returns it.
pub struct Tensor {
    pub(crate) node: Arc<Node>,
    pub(crate) output: u32,
    /// Where the gradient goes.
    pub(crate) edge: Edge,
    /// Set for views that PyTorch would not call contiguous.
    pub(crate) strides: Option<Strides>,
    /// Set where a dim is named.
    pub(crate) names: Option<Names>,
}

/// A recorded operation, immutable but for being realised.
pub(crate) struct Node {
    /// For leaves an [`Op::Input`] whose index means nothing.
    pub(crate) op: Op,
    /// What stands for many ops that were recorded as one, in place of the op; see [`crate::repeated`].
    pub(crate) body: Option<Arc<Graph>>,
    /// Hash of the op without its sizes, or of the body.
    pub(crate) hash: u64,
    pub(crate) facts: Facts,
    /// `None` where it depends on no data, so that it may be computed anywhere.
    pub(crate) device: Option<Device>,
    pub(crate) loc: &'static Location<'static>,
    pub(crate) error: Option<Error>,
    /// The function that the user called, where it isn't the op's own name.
    pub(crate) called: &'static str,
    /// What errors say of it beside the line.
    pub(crate) about: Option<Arc<About>>,
    /// Where `backward` was called, for what it recorded.
    pub(crate) backward: Option<&'static Location<'static>>,
    /// Later nodes have larger ones.
    pub(crate) serial: u64,
    /// Tensor handles, as opposed to operands of other nodes.
    pub(crate) handles: AtomicUsize,
    /// Recorded derivatives that may ask for a value.
    pub(crate) saved: AtomicUsize,
    state: Mutex<State>,
}

pub(crate) type Operands = SmallVec<[Operand; 2]>;

/// An operand: one output of a node, which it keeps alive without being a handle.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) node: Arc<Node>,
    pub(crate) output: u32,
}

/// What is known of a node's values.
pub(crate) enum State {
    /// To be computed from these operands; outputs that a plan happened to write are kept.
    Lazy {
        inputs: Operands,
        recording: Option<Recording>,
        kept: SmallVec<[Option<Buffer>; 1]>,
    },
    /// Computed or given.
    Ready(SmallVec<[Buffer; 1]>),
    /// An input of a program being compiled; see [`crate::compile`].
    Placeholder,
    /// The memory was given to a newer value; nobody can reach this node any more.
    Donated,
    /// Invalid.
    Poisoned,
}

impl Node {
    pub(crate) fn new(
        op: Op,
        facts: Facts,
        device: Option<Device>,
        loc: &'static Location<'static>,
        called: &'static str,
        state: State,
    ) -> Node {
        Node {
            hash: structure_hash(&op),
            op,
            body: None,
            facts,
            device,
            loc,
            error: None,
            called,
            about: None,
            backward: None,
            serial: serial(),
            handles: AtomicUsize::new(0),
            saved: AtomicUsize::new(0),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The realised value of an output.
    pub(crate) fn ready(&self, output: u32) -> Option<Buffer> {
        match &*self.state() {
            State::Ready(values) => values.get(output as usize).cloned(),
            State::Lazy { kept, .. } => kept.get(output as usize).cloned().flatten(),
            _ => None,
        }
    }
}

/// A number that is larger than every one given before.
pub(crate) fn serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A hash of the op without its sizes, the same for the time of the process.
pub(crate) fn structure_hash(op: &Op) -> u64 {
    static STATE: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);
    let mut h = STATE.build_hasher();
    op.hash_structure(&mut h);
    h.finish()
}

impl Tensor {
    pub(crate) fn from_node(node: Node) -> Tensor {
        Tensor::output_of(&Arc::new(node), 0)
    }

    /// A handle to an output of a node, through which no gradient flows.
    pub(crate) fn output_of(node: &Arc<Node>, output: u32) -> Tensor {
        node.handles.fetch_add(1, Ordering::Relaxed);
        Tensor {
            node: node.clone(),
            output,
            edge: Edge::None,
            strides: None,
            names: None,
        }
    }

    /// The same value without history and names, contiguous.
    pub(crate) fn plain(&self) -> Tensor {
        Tensor::output_of(&self.node, self.output)
    }

    /// A tensor of given values.
    pub(crate) fn leaf(
        buffer: Buffer,
        role: Role,
        device: Option<Device>,
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Tensor {
        Tensor::from_node(Tensor::leaf_node(buffer, role, device, loc, called))
    }

    /// The node of a tensor of given values.
    pub(crate) fn leaf_node(
        buffer: Buffer,
        role: Role,
        device: Option<Device>,
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Node {
        let fact = Fact::new(buffer.dtype(), buffer.shape().iter().copied());
        let op = input_op(fact.clone(), role);
        let state = State::Ready(SmallVec::from_buf([buffer]));
        let facts = Facts::from_buf([fact]);
        Node::new(op, facts, device, loc, called, state)
    }

    /// A tensor that carries an error.
    pub(crate) fn poisoned(error: Error, loc: &'static Location<'static>) -> Tensor {
        let fact = Fact::new(DType::F32, [0i64]);
        let op = input_op(fact.clone(), Role::Data);
        let facts = Facts::from_buf([fact]);
        let mut node = Node::new(op, facts, None, loc, "poisoned", State::Poisoned);
        node.error = Some(error);
        Tensor::from_node(node)
    }

    /// A tensor that carries an error, which every read returns: what a function gives that can't give a
    /// value.
    #[track_caller]
    pub fn from_error(error: Error) -> Tensor {
        Tensor::poisoned(error, Location::caller())
    }

    pub(crate) fn operand(&self) -> Operand {
        Operand {
            node: self.node.clone(),
            output: self.output,
        }
    }

    /// Dtype and shape; meaningless for a poisoned tensor.
    pub(crate) fn fact(&self) -> &Fact {
        &self.node.facts[self.output as usize]
    }

    /// The error that this tensor carries, if an operation it came from was invalid.
    pub fn error(&self) -> Option<&Error> {
        self.node.error.as_ref()
    }

    /// This tensor, or the error it carries.
    ///
    /// # Errors
    /// The first invalid operation that this tensor came from.
    pub fn check(&self) -> Result<&Tensor> {
        match self.error() {
            Some(e) => Err(e.clone()),
            None => Ok(self),
        }
    }

    /// The element type; f32 for a poisoned tensor.
    pub fn dtype(&self) -> DType {
        self.fact().dtype
    }

    /// The shape, outermost dim first.
    ///
    /// # Errors
    /// If the tensor is poisoned, or a dim is symbolic (inside `compile`; see [`Tensor::dims`]).
    #[track_caller]
    pub fn shape(&self) -> Result<Vec<usize>> {
        let loc = Location::caller();
        self.check()?;
        let known = |d: &Dim| d.as_const().map(|d| d as usize);
        let shape: Option<Vec<usize>> = self.dims().iter().map(known).collect();
        shape.ok_or_else(|| {
            let message = format!(
                "{} has a dim that each run decides anew; use dims()",
                scope::with_symbol_names(&self.fact().to_string())
            );
            Error::new(ErrorKind::ReadWhileCompiling, "shape", message, loc)
        })
    }

    /// The shape with its symbolic dims.
    pub fn dims(&self) -> &[Dim] {
        &self.fact().shape
    }

    /// Number of dims; 1 for a poisoned tensor.
    pub fn ndim(&self) -> usize {
        self.fact().rank()
    }

    /// Where the values live.
    pub fn device(&self) -> Device {
        self.node.device.unwrap_or_default()
    }

    /// The recording that it belongs to while it is not computed.
    pub(crate) fn recording(&self) -> Option<Recording> {
        match &*self.node.state() {
            State::Lazy { recording, .. } => recording.as_ref().map(Recording::root),
            _ => None,
        }
    }

    /// Whether the values are in memory, so that reading them runs nothing.
    pub fn is_realized(&self) -> bool {
        self.node.ready(self.output).is_some()
    }
}

pub(crate) fn input_op(fact: Fact, role: Role) -> Op {
    kiln_ir::ops::Input {
        index: 0,
        fact,
        role,
    }
    .into()
}

impl Clone for Tensor {
    fn clone(&self) -> Tensor {
        let mut t = self.plain();
        t.edge = self.edge.clone();
        t.strides = self.strides.clone();
        t.names = self.names.clone();
        t
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // Whoever sees that a handle is gone sees the references that were made through it.
        self.node.handles.fetch_sub(1, Ordering::Release);
    }
}

// A chain of a million nodes must not overflow the stack when it is dropped.
impl Drop for Node {
    fn drop(&mut self) {
        let mut stack = take_inputs(&mut self.state);
        while let Some(operand) = stack.pop() {
            if let Some(mut node) = Arc::into_inner(operand.node) {
                stack.append(&mut take_inputs(&mut node.state));
            }
        }
    }
}

fn take_inputs(state: &mut Mutex<State>) -> Operands {
    match state.get_mut().unwrap_or_else(|e| e.into_inner()) {
        State::Lazy { inputs, .. } => std::mem::take(inputs),
        _ => Operands::new(),
    }
}
