//! The graph of gradients: the edges along which the gradients of tensors flow.

use super::hook::Hooks;
use super::is_grad_enabled;
use crate::Device;
use crate::cell::{Cell, Narrow};
use crate::device::Home;
use crate::label::Label;
use crate::node::{Handle, Node, Operand, serial};
use crate::postorder::Key;
use kiln_base::DType;
use kiln_ir::{Fact, Facts, OpError, Shape};
use kiln_runtime::lock::lock;
use kiln_runtime::memory::{Category, Holder};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

thread_local! {
    /// The operations recorded while this thread looks for leaks.
    pub(crate) static WATCHED: RefCell<Option<Vec<Weak<GradNode>>>> = const { RefCell::new(None) };
}

/// The destination of a tensor's gradient.
#[derive(Clone, Default)]
pub enum Edge {
    /// Nowhere: it is data, or detached.
    #[default]
    None,
    /// To an output of a recorded operation.
    Node(Arc<GradNode>, u32),
    /// To a leaf, which keeps it.
    Leaf(Arc<Leaf>),
}

impl Edge {
    /// True if it has a destination.
    #[inline]
    pub fn is_some(&self) -> bool {
        !matches!(self, Edge::None)
    }

    /// The key of the destination, if there is one.
    pub fn key(&self) -> Option<Key> {
        match self {
            Edge::None => None,
            Edge::Leaf(leaf) => Some(Key::of(leaf, 0)),
            Edge::Node(node, output) => Some(Key::of(node, *output)),
        }
    }
}

/// A tensor or parameter that keeps its gradient.
pub struct Leaf {
    /// A unique number among leaves.
    pub id: u64,
    shapes: Shapes,
    dtype: Mutex<DType>,
    /// The device of its values.
    pub device: Home,
    grad: Mutex<Option<Handle>>,
    /// The copy of the cell's value in a narrower dtype, if it has one.
    narrow: Mutex<Option<Arc<Narrow>>>,
    /// The cell, if a narrow copy is to be kept from the first cast on.
    keeps_casts: OnceLock<Weak<Cell>>,
    /// The hooks on its gradient.
    pub hooks: Arc<Hooks<Handle>>,
    /// The user's name for it.
    pub label: Arc<Label>,
}

impl Leaf {
    /// A leaf without a gradient.
    pub fn new(fact: Fact, device: Device) -> Arc<Leaf> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Leaf {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            shapes: Shapes::new(fact.shape),
            dtype: Mutex::new(fact.dtype),
            device: Home::new(device),
            grad: Mutex::new(None),
            narrow: Mutex::new(None),
            keeps_casts: OnceLock::new(),
            hooks: Arc::default(),
            label: Arc::default(),
        })
    }

    /// Dtype and shape.
    pub fn fact(&self) -> Fact {
        Fact {
            dtype: self.dtype(),
            shape: self.shape().clone(),
        }
    }

    /// The shape of its values. Shape and dtype of a cell's leaf are also the cell's.
    pub fn shape(&self) -> &Shape {
        self.shapes.get()
    }

    /// Sets the shape of values and gradient.
    pub fn set_shape(&self, shape: Shape) {
        self.shapes.set(shape);
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        *lock(&self.dtype)
    }

    /// Sets the element type of values and gradient.
    pub fn set_dtype(&self, dtype: DType) {
        *lock(&self.dtype) = dtype;
    }

    /// The copy of the cell's value in a narrower dtype, if it has one.
    pub fn narrow(&self) -> Option<Arc<Narrow>> {
        lock(&self.narrow).clone()
    }

    /// Replaces the copy, or removes it.
    pub fn set_narrow(&self, narrow: Option<Narrow>) {
        let mut slot = lock(&self.narrow);
        let old = std::mem::replace(&mut *slot, narrow.map(Arc::new));
        drop(slot);
        drop(old); // not under the lock
    }

    /// Returns the current copy, or sets this one if there is none.
    pub fn narrow_or(&self, narrow: Narrow) -> Arc<Narrow> {
        let mut slot = lock(&self.narrow);
        slot.get_or_insert_with(|| Arc::new(narrow)).clone()
    }

    /// Makes the leaf of `cell` keep a copy of the cell's value from the first cast on.
    pub fn keep_casts(&self, cell: &Arc<Cell>) {
        self.keeps_casts.get_or_init(|| Arc::downgrade(cell));
    }

    /// Returns the cell, if a narrow copy of its value is to be kept from the first cast on.
    pub fn keeps_casts(&self) -> Option<Arc<Cell>> {
        let cell = self.keeps_casts.get()?.upgrade()?;
        // A copy would miss what other processes write.
        (!cell.is_shared()).then_some(cell)
    }

    /// Returns the stored gradient; see [`Leaf::grad`] for the gradient within a recording.
    pub fn kept(&self) -> Option<Handle> {
        lock(&self.grad).clone()
    }

    /// Keeps a gradient, or none.
    pub fn keep(&self, grad: Option<Handle>) {
        if let Some(grad) = &grad {
            let node = &grad.node;
            node.is_gradient.store(true, Ordering::Relaxed);
            if let Some(buffer) = node.ready(grad.output) {
                let holder = Holder::line(Category::Gradients, node.loc);
                buffer.storage().set_holder(holder);
            }
        }
        let old = std::mem::replace(&mut *lock(&self.grad), grad);
        drop(old); // not under the lock
    }
}

/// A shape that can be replaced while it is borrowed: every distinct shape is kept.
struct Shapes {
    shape: Shape,
    next: OnceLock<Box<Shapes>>,
    /// The index of the current shape in the list.
    current: AtomicUsize,
}

impl Shapes {
    fn new(first: Shape) -> Shapes {
        Shapes {
            shape: first,
            next: OnceLock::new(),
            current: AtomicUsize::new(0),
        }
    }

    fn get(&self) -> &Shape {
        let list = std::iter::successors(Some(self), |s| s.next.get().map(|next| &**next));
        let current = self.current.load(Ordering::Acquire);
        list.take(current + 1)
            .last()
            .map_or(&self.shape, |s| &s.shape)
    }

    fn set(&self, shape: Shape) {
        let (mut entry, mut position) = (self, 0);
        while entry.shape != shape {
            entry = entry
                .next
                .get_or_init(|| Box::new(Shapes::new(shape.clone())));
            position += 1;
        }
        self.current.store(position, Ordering::Release);
    }
}

/// Items of a few of the outputs.
type PerOutput<T> = Mutex<SmallVec<[(u32, Arc<T>); 1]>>;

/// A recorded operation in the graph of gradients.
pub struct GradNode {
    /// The serial number, larger than those of earlier nodes.
    pub serial: u64,
    /// Dtypes and shapes of the outputs.
    pub facts: Facts,
    /// The device of the outputs.
    pub device: Option<Device>,
    /// The user's line.
    pub loc: &'static Location<'static>,
    /// The function that the user called.
    pub called: &'static str,
    saved: Mutex<Option<Saved>>,
    /// Operations on its outputs.
    users: Mutex<SmallVec<[Weak<GradNode>; 1]>>,
    /// One list for each output that has hooks.
    hooks: PerOutput<Hooks<Handle>>,
    /// Outputs that keep their gradient although they are not leaves.
    retained: PerOutput<Leaf>,
}

/// The data that a derivative needs; a backward pass releases it.
#[derive(Clone)]
pub struct Saved {
    /// The node whose values are the outputs.
    pub node: SavedNode,
    /// A user's derivative; `None` for the derivative of the node's op.
    pub custom: Option<Arc<CustomRule>>,
    /// The operands, and the destinations of their gradients.
    pub inputs: SmallVec<[(Operand, Edge); 2]>,
}

/// See [`kiln_autodiff::Custom`].
pub type CustomRule = dyn Fn(&[Handle], &[Handle], &[Option<Handle>], &[bool]) -> Result<Vec<Option<Handle>>, OpError>
    + Send
    + Sync;

/// A node whose values a backward pass may need; reads keep those that a plan materialises.
pub struct SavedNode(Arc<Node>);

impl SavedNode {
    /// Keeps the values of a node.
    pub fn new(node: &Arc<Node>) -> SavedNode {
        node.saved.fetch_add(1, Ordering::Relaxed);
        SavedNode(node.clone())
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.0
    }
}

impl Clone for SavedNode {
    fn clone(&self) -> SavedNode {
        SavedNode::new(&self.0)
    }
}

impl Drop for SavedNode {
    fn drop(&mut self) {
        self.0.saved.fetch_sub(1, Ordering::Relaxed);
    }
}

impl GradNode {
    /// The gradient node of an operation on `inputs`; `None` if no gradient flows through it.
    pub fn of_op<T: AsRef<Handle>>(node: &Arc<Node>, inputs: &[T]) -> Option<Arc<GradNode>> {
        let flows = is_grad_enabled()
            && inputs.iter().any(|t| t.as_ref().edge.is_some())
            && node.facts.iter().any(|f| f.dtype.is_float());
        flows.then(|| GradNode::new(node, None, inputs))
    }

    /// The gradient node of a node, which passes gradients to `inputs` by its op's derivative or by `custom`.
    pub fn new<T: AsRef<Handle>>(
        node: &Arc<Node>,
        custom: Option<Arc<CustomRule>>,
        inputs: &[T],
    ) -> Arc<GradNode> {
        GradNode::with_caller(node, custom, inputs, (node.called, node.loc))
    }

    /// [`GradNode::new`] for a function that the user called at a line.
    pub fn with_caller<T: AsRef<Handle>>(
        node: &Arc<Node>,
        custom: Option<Arc<CustomRule>>,
        inputs: &[T],
        (called, loc): (&'static str, &'static Location<'static>),
    ) -> Arc<GradNode> {
        let operand = |t: &T| (t.as_ref().operand(), t.as_ref().edge.clone());
        let new = Arc::new(GradNode {
            serial: serial(),
            facts: node.facts.clone(),
            device: node.device,
            loc,
            called,
            saved: Mutex::new(Some(Saved {
                node: SavedNode::new(node),
                custom,
                inputs: inputs.iter().map(operand).collect(),
            })),
            users: Mutex::default(),
            hooks: Mutex::default(),
            retained: Mutex::default(),
        });
        WATCHED.with_borrow_mut(|watched| {
            if let Some(watched) = watched {
                watched.push(Arc::downgrade(&new));
            }
        });
        let sources = inputs.iter().filter_map(|t| match &t.as_ref().edge {
            Edge::Node(source, _) => Some(source),
            _ => None,
        });
        for source in sources {
            source.add_user(&new);
        }
        new
    }

    /// Remembers an operation on an output. If this node is released already, the operation is released too.
    fn add_user(&self, user: &Arc<GradNode>) {
        if lock(&self.saved).is_none() {
            return user.release();
        }
        let mut users = lock(&self.users);
        if users.len().is_power_of_two() {
            users.retain(|u| u.strong_count() > 0);
        }
        users.push(Arc::downgrade(user));
    }

    /// The data that the derivative needs; `None` once released.
    pub fn saved(&self) -> Option<Saved> {
        lock(&self.saved).clone()
    }

    /// Releases everything that the derivative needs, and everything that later operations on its outputs need: a
    /// pass through those would end here. So a running sum of losses keeps nothing of earlier steps.
    pub fn release(&self) {
        let mut stack = self.release_one();
        while let Some(user) = stack.pop() {
            if let Some(user) = user.upgrade() {
                stack.append(&mut user.release_one());
            }
        }
    }

    /// Releases this operation alone; returns its users.
    fn release_one(&self) -> SmallVec<[Weak<GradNode>; 1]> {
        let saved = lock(&self.saved).take();
        drop(saved); // not under the lock
        std::mem::take(&mut *lock(&self.users))
    }

    /// The hooks of an output.
    pub fn hooks(&self, output: u32) -> Arc<Hooks<Handle>> {
        let mut hooks = lock(&self.hooks);
        if let Some((_, found)) = hooks.iter().find(|(o, _)| *o == output) {
            return found.clone();
        }
        let new = Arc::new(Hooks::default());
        hooks.push((output, new.clone()));
        new
    }

    /// True if no hook and no leaf observes the gradients of this operation.
    pub fn is_unobserved(&self) -> bool {
        let hooks = lock(&self.hooks);
        let retained = lock(&self.retained);
        hooks.is_empty() && retained.is_empty()
    }

    /// The leaf that keeps the gradient of an output, if there is one; `create` creates it.
    pub fn retained(&self, output: u32, create: bool) -> Option<Arc<Leaf>> {
        let mut retained = lock(&self.retained);
        if let Some((_, found)) = retained.iter().find(|(o, _)| *o == output) {
            return Some(found.clone());
        }
        create.then(|| {
            let leaf = Leaf::new(
                self.facts[output as usize].clone(),
                self.device.unwrap_or_default(),
            );
            retained.push((output, leaf.clone()));
            leaf
        })
    }
}

// A chain of a million operations must not overflow the stack when it is dropped.
impl Drop for GradNode {
    fn drop(&mut self) {
        let take = |node: &mut GradNode| {
            let saved = node
                .saved
                .get_mut()
                .unwrap_or_else(|e| e.into_inner())
                .take();
            saved.map_or_else(SmallVec::new, |s| s.inputs)
        };
        let mut stack = take(self);
        while let Some((operand, edge)) = stack.pop() {
            drop(operand);
            if let Edge::Node(node, _) = edge
                && let Some(mut node) = Arc::into_inner(node)
            {
                stack.append(&mut take(&mut node));
            }
        }
    }
}
