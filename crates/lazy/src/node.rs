//! Recorded nodes and the handles to them.

use crate::caller::user_line;
use crate::cell::Cell;
use crate::grad::edge::Edge;
use crate::label::Label;
use crate::postorder::Key;
use crate::{Device, Error, ErrorKind, Result, recording, symbols};
use hashbrown::DefaultHashBuilder;
use kiln_base::{DType, Dim};
use kiln_ir::{Fact, Facts, Graph, Op, Role};
use kiln_runtime::lock::lock;
use kiln_runtime::{Buffer, Error as RunError};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hasher};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

/// A set of unrealised nodes that belong together.
pub type Recording = recording::Recording<Cell>;

/// A handle to one output of a recorded operation: a tensor without PyTorch's attributes.
///
/// Cloning is cheap and shares the node. A handle whose operation was invalid carries that first error;
/// every read returns it.
pub struct Handle {
    /// The operation.
    pub node: Arc<Node>,
    /// The index of the output.
    pub output: u32,
    /// The edge along which its gradient flows.
    pub edge: Edge,
}

/// A recorded operation, immutable except that it is realised.
pub struct Node {
    /// The operation. For leaves, an [`Op::Input`] whose index is unused.
    pub op: Op,
    /// The graph of several ops that were recorded as a single one, instead of `op`; see [`crate::repeated`].
    pub body: Option<Arc<Graph>>,
    /// Hash of the op without its sizes, or of the body.
    pub hash: u64,
    /// Dtypes and shapes of the outputs.
    pub facts: Facts,
    /// The device; `None` if it depends on no data, and may be computed anywhere.
    pub device: Option<Device>,
    /// The user's line.
    pub loc: &'static Location<'static>,
    /// The reason why it is invalid.
    pub error: Option<Error>,
    /// The function that the user called, which may differ from the op's name.
    pub called: &'static str,
    /// Further information for errors, in addition to the line.
    pub about: Option<Arc<About>>,
    /// The line where `backward` was called, for operations that it recorded.
    pub backward: Option<&'static Location<'static>>,
    /// The serial number. Later nodes have larger ones.
    pub serial: u64,
    /// The number of tensor handles, as opposed to operands of other nodes.
    pub handles: AtomicUsize,
    /// The number of recorded derivatives that may need a value.
    pub saved: AtomicUsize,
    /// True if the error of its values was returned to a caller.
    pub reported: AtomicBool,
    /// True if a leaf keeps a value of this node as its gradient.
    pub is_gradient: AtomicBool,
    state: Mutex<NodeState>,
}

/// The operands of an operation.
pub type Operands = SmallVec<[Operand; 2]>;

/// An operand: one output of a node, which it keeps alive without being a handle.
#[derive(Clone)]
pub struct Operand {
    /// The node.
    pub node: Arc<Node>,
    /// The index of the output.
    pub output: u32,
}

impl Operand {
    /// The key of the output.
    #[inline]
    pub fn key(&self) -> Key {
        Key::of(&self.node, self.output)
    }
}

/// Further information for errors of a node, in addition to its line.
#[derive(Clone, Default)]
pub struct About {
    /// The requirement on the data, shown instead of the range of an index.
    pub requirement: Option<&'static str>,
    /// The user's argument that holds the indices: its name, and its node and output. The reference is weak: labels
    /// are freed once a loss is computed.
    pub index: Option<(&'static str, Weak<Node>, u32)>,
    /// A further line, such as the layer it was recorded in.
    pub note: Option<Arc<str>>,
    /// The name of the cell whose value the node is.
    pub label: Option<Arc<Label>>,
}

/// The state of a node's values.
pub enum NodeState {
    /// To be computed from these operands; outputs that a plan materialised are kept.
    Lazy {
        /// The operands.
        inputs: Operands,
        /// The recording that it belongs to.
        recording: Option<Recording>,
        /// The values of outputs that are computed already.
        kept: SmallVec<[Option<Buffer>; 1]>,
    },
    /// Computed or created from data.
    Ready(SmallVec<[Buffer; 1]>),
    /// An input of a program being recorded; see [`crate::scope`] and [`crate::body`].
    Placeholder,
    /// The memory was donated to a newer value; no handle can reach this node any more.
    Donated,
    /// Invalid.
    Poisoned,
}

impl Node {
    /// A node with no information for errors except its line.
    pub fn new(
        op: Op,
        facts: Facts,
        device: Option<Device>,
        loc: &'static Location<'static>,
        called: &'static str,
        state: NodeState,
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
            reported: AtomicBool::new(false),
            is_gradient: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// The state, locked.
    #[inline]
    pub fn state(&self) -> MutexGuard<'_, NodeState> {
        lock(&self.state)
    }

    /// The realised value of an output.
    pub fn ready(&self, output: u32) -> Option<Buffer> {
        self.with_ready(output, |value| value.cloned())
    }

    /// Copies computed values out of memory that other processes may change.
    pub fn leave_shared_memory(&self) -> Result<(), RunError> {
        if let NodeState::Ready(values) = &mut *self.state() {
            for value in values {
                *value = value.unshared()?;
            }
        }
        Ok(())
    }

    /// Calls `f` with the realised value of an output.
    fn with_ready<R>(&self, output: u32, f: impl FnOnce(Option<&Buffer>) -> R) -> R {
        f(match &*self.state() {
            NodeState::Ready(values) => values.get(output as usize),
            NodeState::Lazy { kept, .. } => kept.get(output as usize).and_then(Option::as_ref),
            _ => None,
        })
    }
}

/// Returns a serial number, larger than all previous ones.
pub fn serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A hash of the op without its sizes, stable within the process.
pub fn structure_hash(op: &Op) -> u64 {
    static STATE: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);
    let mut h = STATE.build_hasher();
    op.hash_structure(&mut h);
    h.finish()
}

impl Handle {
    /// A handle to the first output of a new node.
    pub fn from_node(node: Node) -> Handle {
        Handle::output_of(&Arc::new(node), 0)
    }

    /// A handle to an output of a node, through which no gradient flows.
    #[inline]
    pub fn output_of(node: &Arc<Node>, output: u32) -> Handle {
        node.handles.fetch_add(1, Ordering::Relaxed);
        Handle {
            node: node.clone(),
            output,
            edge: Edge::None,
        }
    }

    /// Returns the same value without history.
    #[inline]
    pub fn plain(&self) -> Handle {
        Handle::output_of(&self.node, self.output)
    }

    /// A tensor of given values.
    pub fn leaf(
        buffer: Buffer,
        role: Role,
        device: Option<Device>,
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Handle {
        Handle::from_node(Handle::leaf_node(buffer, role, device, loc, called))
    }

    /// The node of a tensor of given values.
    pub fn leaf_node(
        buffer: Buffer,
        role: Role,
        device: Option<Device>,
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Node {
        let fact = Fact::new(buffer.dtype(), buffer.shape().iter().copied());
        let loc = user_line(loc);
        buffer.storage().claim(None, loc);
        let op = input_op(fact.clone(), role);
        let state = NodeState::Ready(SmallVec::from_buf([buffer]));
        let facts = Facts::from_buf([fact]);
        Node::new(op, facts, device, loc, called, state)
    }

    /// A tensor that carries an error.
    pub fn poisoned(error: Error, loc: &'static Location<'static>) -> Handle {
        let fact = Fact::new(DType::F32, [0i64]);
        let op = input_op(fact.clone(), Role::Data);
        let facts = Facts::from_buf([fact]);
        let mut node = Node::new(op, facts, None, loc, "poisoned", NodeState::Poisoned);
        node.error = Some(error);
        Handle::from_node(node)
    }

    /// The value as an operand.
    #[inline]
    pub fn operand(&self) -> Operand {
        Operand {
            node: self.node.clone(),
            output: self.output,
        }
    }

    /// The key of the value.
    #[inline]
    pub fn key(&self) -> Key {
        Key::of(&self.node, self.output)
    }

    /// Dtype and shape; meaningless for a poisoned handle.
    #[inline]
    pub fn fact(&self) -> &Fact {
        &self.node.facts[self.output as usize]
    }

    /// The error that this carries, if an operation it came from was invalid.
    #[inline]
    pub fn error(&self) -> Option<&Error> {
        self.node.error.as_ref()
    }

    /// The error it carries, if it carries one.
    ///
    /// # Errors
    /// That error.
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// Marks that an error of its run is being returned, unless another run may succeed.
    pub fn tell(&self, error: &Error) {
        use ErrorKind::{Anomaly, Data, Op, Unsupported};
        if matches!(error.kind(), Data | Op | Unsupported | Anomaly) {
            self.node.reported.store(true, Ordering::Relaxed);
        }
    }

    /// The element type; f32 for a poisoned handle.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.fact().dtype
    }

    /// The shape, outermost dim first.
    ///
    /// # Errors
    /// If the handle carries an error, or a dim is symbolic.
    pub fn shape(&self, loc: &'static Location<'static>) -> Result<Vec<usize>> {
        self.check()?;
        let known = |d: &Dim| d.as_const().map(|d| d as usize);
        let shape: Option<Vec<usize>> = self.dims().iter().map(known).collect();
        shape.ok_or_else(|| {
            let message = format!(
                "{} has a dim that each run decides anew; use dims()",
                symbols::named(&self.fact().to_string())
            );
            Error::new(ErrorKind::ReadWhileCompiling, "shape", message, loc)
        })
    }

    /// The shape with its symbolic dims.
    #[inline]
    pub fn dims(&self) -> &[Dim] {
        &self.fact().shape
    }

    /// Number of dims; 1 for a poisoned handle.
    #[inline]
    pub fn ndim(&self) -> usize {
        self.fact().rank()
    }

    /// The device of the values.
    #[inline]
    pub fn device(&self) -> Device {
        self.node.device.unwrap_or_default()
    }

    /// Returns the label of the cell whose value this is; it may be named later.
    pub fn label(&self) -> Option<Arc<Label>> {
        match &self.edge {
            Edge::Leaf(leaf) => Some(leaf.label.clone()),
            _ => self.node.about.as_ref()?.label.clone(),
        }
    }

    /// True if gradients flow to it.
    #[inline]
    pub fn requires_grad(&self) -> bool {
        self.edge.is_some()
    }

    /// The recording that it belongs to while it is not computed.
    pub fn recording(&self) -> Option<Recording> {
        match &*self.node.state() {
            NodeState::Lazy { recording, .. } => recording.as_ref().map(Recording::root),
            _ => None,
        }
    }

    /// True if the values are in memory, and reading them runs nothing.
    #[inline]
    pub fn is_realized(&self) -> bool {
        self.node.with_ready(self.output, |value| value.is_some())
    }
}

/// The op of a given value.
pub fn input_op(fact: Fact, role: Role) -> Op {
    kiln_ir::ops::Input {
        index: 0,
        fact,
        role,
    }
    .into()
}

impl AsRef<Handle> for Handle {
    #[inline]
    fn as_ref(&self) -> &Handle {
        self
    }
}

impl Clone for Handle {
    #[inline]
    fn clone(&self) -> Handle {
        let mut t = self.plain();
        t.edge = self.edge.clone();
        t
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        // A thread that sees that a handle is gone must also see the references that were made through it.
        self.node.handles.fetch_sub(1, Ordering::Release);
    }
}

// A chain of a million nodes must not overflow the stack when it is dropped.
impl Drop for Node {
    fn drop(&mut self) {
        let mut stack = Operands::new();
        take_inputs(&mut self.state, &mut stack);
        while let Some(operand) = stack.pop() {
            if let Some(mut node) = Arc::into_inner(operand.node) {
                take_inputs(&mut node.state, &mut stack);
            }
        }
    }
}

fn take_inputs(state: &mut Mutex<NodeState>, stack: &mut Operands) {
    let state = state.get_mut().unwrap_or_else(|e| e.into_inner());
    if let NodeState::Lazy { inputs, .. } = state {
        while let Some(operand) = inputs.pop() {
            stack.push(operand);
        }
    }
}
