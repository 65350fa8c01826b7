//! Cells: they hold a tensor and are assigned others.

use crate::grad::edge::Leaf;
use crate::node::{About, Handle, Node, Recording};
use crate::recording::Assigned;
use crate::{Error, ErrorKind};
use kiln_ir::{Fact, Role};
use kiln_runtime::lock::lock;
use kiln_runtime::memory::{Category, Holder, SharedMemory};
use kiln_runtime::{Buffer, Error as RunError};
use std::any::Any;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};

/// A variable: holds a tensor, and is busy while a run assigns it.
pub struct Cell {
    /// A unique number among cells.
    pub id: u64,
    role: Role,
    /// The leaf that keeps its gradient.
    pub leaf: Arc<Leaf>,
    /// Information for messages about its values.
    about: Arc<About>,
    requires_grad: AtomicBool,
    /// True if it has ever required gradients.
    parameter: AtomicBool,
    /// A function that is called with each value that a run assigns.
    watcher: OnceLock<Watcher>,
    /// The computation of its value from other cells, if it does not hold a value itself.
    source: Mutex<Option<Source>>,
    /// The memory of its values, if it is shared with other processes.
    shared: OnceLock<Arc<SharedMemory>>,
    /// The holder of the memory of its values.
    holder: Mutex<Holder>,
    /// The line of its first value.
    loc: &'static Location<'static>,
    state: Mutex<CellState>,
    released: Condvar,
}

/// A function that sees the values that runs give a cell, once the cell is free again.
pub type Watcher = Box<dyn Fn(&Handle) + Send + Sync>;

/// The computation of a cell's value, of a type of the layer above.
pub type Source = Arc<dyn Any + Send + Sync>;

/// The contents of a cell.
pub struct CellState {
    /// The current value: a snapshot for readers.
    pub current: Handle,
    /// The last computed value, a leaf.
    pub realized: Option<Handle>,
    /// True if a run is about to commit; readers and writers wait.
    busy: bool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Assigned for Cell {
    fn id(&self) -> u64 {
        self.id
    }
}

impl Cell {
    /// A cell without a computed value, which will hold values with the type of this one.
    pub fn new(value: &Handle, role: Role) -> Arc<Cell> {
        let leaf = Leaf::new(value.fact().clone(), value.device());
        Arc::new(Cell {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            role,
            about: Arc::new(About {
                label: Some(leaf.label.clone()),
                ..About::default()
            }),
            leaf,
            requires_grad: AtomicBool::new(false),
            parameter: AtomicBool::new(false),
            watcher: OnceLock::new(),
            source: Mutex::new(None),
            shared: OnceLock::new(),
            holder: Mutex::new(Holder::line(Category::default(), value.node.loc)),
            loc: value.node.loc,
            state: Mutex::new(CellState {
                current: value.plain(),
                realized: None,
                busy: false,
            }),
            released: Condvar::new(),
        })
    }

    /// Returns the role of its value in plans. Shared memory may change, so it is not prepared.
    pub fn role(&self) -> Role {
        match self.is_shared() {
            true => Role::Data,
            false => self.role,
        }
    }

    /// True if other processes may have the memory of its values.
    pub fn is_shared(&self) -> bool {
        self.shared.get().is_some()
    }

    /// Moves its value, which is computed, to memory that forked children share. Runs write there from now on.
    ///
    /// # Errors
    /// If the memory can't be shared.
    pub fn share(
        self: &Arc<Cell>,
        value: &Handle,
        loc: &'static Location<'static>,
    ) -> Result<(), RunError> {
        let missing = || RunError::Internal("a value to share is not computed".into());
        let buffer = value.node.ready(value.output).ok_or_else(missing)?;
        let memory = SharedMemory::new(buffer.bytes()?)?;
        let mut state = self.idle();
        if self.shared.set(memory).is_ok() {
            state.set(self.leaf(buffer, None, loc));
        }
        Ok(())
    }

    /// Dtype and shape of its value.
    pub fn fact(&self) -> Fact {
        self.leaf.fact()
    }

    /// True if it has ever required gradients.
    pub fn is_parameter(&self) -> bool {
        self.parameter.load(Ordering::Relaxed)
    }

    /// True if its values require gradients.
    pub fn requires_grad(&self) -> bool {
        self.requires_grad.load(Ordering::Relaxed)
    }

    /// Sets whether its values require gradients.
    pub fn set_requires_grad(&self, requires_grad: bool) {
        self.requires_grad.store(requires_grad, Ordering::Relaxed);
        if !self.parameter.fetch_or(requires_grad, Ordering::Relaxed) && requires_grad {
            self.count_as(Category::Parameters);
        }
    }

    /// Counts the memory of its values in this category.
    pub fn count_as(&self, category: Category) {
        let holder = Holder::line(category, self.loc);
        *lock(&self.holder) = holder;
        let value = self.lock().realized.clone();
        if let Some(buffer) = value.and_then(|t| t.node.ready(t.output)) {
            buffer.storage().set_holder(holder);
        }
    }

    /// The holder of the memory of its values.
    pub fn holder(&self) -> Holder {
        *lock(&self.holder)
    }

    /// Sets the watcher of the values that runs give it, unless it has one.
    pub fn watch(&self, watcher: Watcher) {
        self.watcher.get_or_init(|| watcher);
    }

    /// The watcher of its values.
    pub fn watcher(&self) -> Option<&Watcher> {
        self.watcher.get()
    }

    /// Returns the computation of its value, if it does not hold a value itself.
    pub fn source(&self) -> Option<Source> {
        lock(&self.source).clone()
    }

    /// Sets the computation of its value; `None` if the cell holds its value itself.
    pub fn set_source(&self, source: Option<Source>) {
        *lock(&self.source) = source;
    }

    fn lock(&self) -> MutexGuard<'_, CellState> {
        lock(&self.state)
    }

    /// The state once no run is about to commit.
    pub fn idle(&self) -> MutexGuard<'_, CellState> {
        let mut state = self.lock();
        while state.busy {
            state = self.released.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state
    }

    /// The current value, for the run that has locked the cell.
    pub fn now(&self) -> Handle {
        self.lock().current.clone()
    }

    /// Takes the cell for a run that commits to it; see [`crate::run::commit`].
    pub fn acquire(self: &Arc<Cell>) -> Busy {
        self.idle().busy = true;
        Busy(Arc::new(Guard(self.clone())))
    }

    /// Takes the cell if it is free, without waiting.
    pub fn try_acquire(self: &Arc<Cell>) -> Option<Busy> {
        let was_busy = std::mem::replace(&mut self.lock().busy, true);
        (!was_busy).then(|| Busy(Arc::new(Guard(self.clone()))))
    }

    /// Makes the cell hold a value, now if it is computed, else once it is.
    pub fn hold(self: &Arc<Cell>, value: &Handle, loc: &'static Location<'static>) {
        // Taken before the value is read: without a recording, the value is already computed.
        let recording = value.recording();
        self.hold_in(self.idle(), value, recording, loc);
    }

    fn hold_in(
        self: &Arc<Cell>,
        mut state: MutexGuard<'_, CellState>,
        value: &Handle,
        recording: Option<Recording>,
        loc: &'static Location<'static>,
    ) {
        if let Some(buffer) = value.node.ready(value.output) {
            let leaf = self.leaf(buffer, Some(&state), loc);
            return state.set(leaf);
        }
        // A run that could not commit the last value may have computed it. A failure from here on returns to that
        // value.
        if let Some(buffer) = state.uncommitted() {
            let leaf = self.leaf(buffer, Some(&state), loc);
            state.set(leaf);
        }
        state.current = value.plain();
        drop(state);
        if let Some(recording) = recording {
            recording.add_pending(self);
        }
    }

    /// A computed value of the cell, to be put into its state.
    pub fn leaf(
        &self,
        buffer: Buffer,
        state: Option<&CellState>,
        loc: &'static Location<'static>,
    ) -> Handle {
        let buffer = match self.place(buffer, state) {
            Ok(buffer) => buffer,
            Err(e) => {
                let error = Error::new(ErrorKind::Memory, "assign", e.to_string(), loc);
                return Handle::poisoned(error, loc);
            }
        };
        let device = Some(self.leaf.device.get());
        let holder = self.holder();
        if buffer.storage().holder().is_some_and(|now| now != holder) {
            buffer.storage().set_holder(holder);
        }
        let mut node = Handle::leaf_node(buffer, self.role(), device, loc, "Var");
        node.about = Some(self.about.clone());
        Handle::from_node(node)
    }

    /// Moves a value into the shared memory of this cell, or out of that of another cell.
    fn place(&self, buffer: Buffer, state: Option<&CellState>) -> Result<Buffer, RunError> {
        match (self.shared.get(), buffer.storage().shared()) {
            (None, _) => buffer.unshared(),
            (Some(memory), Some(source)) if Arc::ptr_eq(memory, source) => Ok(buffer),
            (Some(memory), _) => {
                state.map_or(Ok(()), CellState::keep_snapshots)?;
                let bytes = buffer.bytes()?;
                memory.write(bytes);
                Buffer::from_storage(buffer.dtype(), buffer.shape(), memory.storage(bytes.len())?)
            }
        }
    }

    /// Reverts the cell from the leaf `new`, whose run failed, to its last computed value `old`.
    pub fn roll_back(&self, new: &Weak<Node>, old: Option<Handle>) {
        let is_new = |t: &Handle| std::ptr::eq(Arc::as_ptr(&t.node), new.as_ptr());
        let mut state = self.lock();
        if let Some(old) = &old
            && is_new(&state.current)
        {
            state.current = old.clone();
        }
        if state.realized.as_ref().is_some_and(is_new) {
            state.realized = old;
        }
    }
}

impl CellState {
    /// The current value, if it is computed and not the last committed one.
    fn uncommitted(&self) -> Option<Buffer> {
        let (current, committed) = (&self.current.node, self.realized.as_ref());
        let is_new = committed.is_none_or(|leaf| !Arc::ptr_eq(&leaf.node, current));
        current.ready(self.current.output).filter(|_| is_new)
    }

    /// Returns the node of the computed value, if only the cell holds it.
    pub fn sole_leaf(&self) -> Option<Arc<Node>> {
        let node = &self.realized.as_ref()?.node;
        // `current` and `realized` are the two handles of the cell itself.
        let is_sole = Arc::ptr_eq(&self.current.node, node)
            && node.handles.load(Ordering::Acquire) == 2
            && Arc::strong_count(node) == 2;
        is_sole.then(|| node.clone())
    }

    /// Copies the last computed value out of shared memory if it is referenced elsewhere.
    fn keep_snapshots(&self) -> Result<(), RunError> {
        let Some(Handle { node, .. }) = &self.realized else {
            return Ok(());
        };
        let own_references = 1 + usize::from(Arc::ptr_eq(&self.current.node, node));
        match Arc::strong_count(node) > own_references {
            true => node.leave_shared_memory(),
            false => Ok(()),
        }
    }

    /// Returns to the last computed value.
    pub fn roll_back(&mut self) {
        if let Some(old) = self.realized.clone() {
            self.current = old;
        }
    }

    /// Holds a computed value.
    pub fn set(&mut self, leaf: Handle) {
        self.current = leaf.clone();
        self.realized = Some(leaf);
    }
}

/// A cell that a run is about to commit to. It is free again when the last copy is dropped.
#[derive(Clone)]
pub struct Busy(Arc<Guard>);

struct Guard(Arc<Cell>);

impl Busy {
    /// The cell.
    pub fn cell(&self) -> &Arc<Cell> {
        &self.0.0
    }

    /// [`Cell::hold`], for the run that has taken the cell.
    pub fn hold(&self, value: &Handle, loc: &'static Location<'static>) {
        let recording = value.recording();
        self.cell().hold_in(self.state(), value, recording, loc);
    }

    /// The state, which only this run may touch now.
    pub fn state(&self) -> MutexGuard<'_, CellState> {
        self.cell().lock()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.lock().busy = false;
        self.0.released.notify_all();
    }
}

/// A copy of a cell's value in another dtype. Every assignment to the cell also assigns the copy.
pub struct Narrow {
    pub(crate) of: Weak<Cell>,
    pub(crate) cell: Arc<Cell>,
}

impl Narrow {
    /// Returns a copy `cell` of the value of `of` in another dtype.
    pub fn new(of: &Arc<Cell>, cell: Arc<Cell>) -> Narrow {
        let of = Arc::downgrade(of);
        Narrow { of, cell }
    }

    /// The cell of the copy.
    pub fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }
}
