//! Cells that hold a tensor.

use crate::about::About;
use crate::autograd::edge::{Edge, Leaf};
use crate::node::{Node, State};
use crate::realize::recording_of;
use crate::{
    AsTensor, DType, Device, Error, ErrorKind, Indices, Other, Result, Tensor, scope, trace,
};
use kiln_ir::{Fact, Role};
use kiln_runtime::Buffer;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

/// A parameter, running statistic or optimiser moment: a cell that holds a tensor.
///
/// [`Var::get`] takes a snapshot that never changes; [`Var::assign`] swaps what the cell holds. A
/// pending (not yet computed) value is committed when any value of its recording is read. If that
/// run fails, the cell returns to its last computed value. Cloning gives another handle to the same
/// cell.
#[derive(Clone)]
pub struct Var {
    pub(crate) cell: Arc<Cell>,
}

pub(crate) struct Cell {
    pub(crate) id: u64,
    pub(crate) fact: Fact,
    /// What plans take its value for.
    pub(crate) role: Role,
    /// Keeps the gradient.
    pub(crate) leaf: Arc<Leaf>,
    /// What messages say of its values.
    about: Arc<About>,
    requires_grad: AtomicBool,
    /// Has ever required gradients.
    parameter: AtomicBool,
    state: Mutex<CellState>,
    released: Condvar,
}

pub(crate) struct CellState {
    /// What the cell holds: a snapshot for readers.
    pub(crate) current: Tensor,
    /// The last computed value, a leaf.
    pub(crate) realized: Option<Tensor>,
    /// Whether a run is about to commit; readers and writers wait.
    busy: bool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Var {
    /// A cell that holds `value`.
    ///
    /// # Errors
    /// If `value` carries an error or has a symbolic shape.
    #[track_caller]
    pub fn new(value: impl AsTensor) -> Result<Var> {
        Var::with_role(&value.as_tensor(), Role::Parameter)
    }

    /// A cell whose value changes often, such as a learning rate: plans compute what depends on it in
    /// every run, where they would prepare what depends on other cells.
    ///
    /// # Errors
    /// As [`Var::new`].
    #[track_caller]
    pub fn volatile(value: impl AsTensor) -> Result<Var> {
        Var::with_role(&value.as_tensor(), Role::Data)
    }

    #[track_caller]
    fn with_role(value: &Tensor, role: Role) -> Result<Var> {
        let loc = Location::caller();
        value.shape()?;
        value.settled()?;
        if scope::is_recording() {
            return Err(Error::new(
                ErrorKind::ReadWhileCompiling,
                "Var::new",
                "a Var can't be made while recording inside compile; make it before",
                loc,
            ));
        }
        let leaf = Leaf::new(value.fact().clone(), value.device());
        let var = Var {
            cell: Arc::new(Cell {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                fact: value.fact().clone(),
                role,
                about: About::of_cell(&leaf.label),
                leaf,
                requires_grad: AtomicBool::new(false),
                parameter: AtomicBool::new(false),
                state: Mutex::new(CellState {
                    current: value.detach(),
                    realized: None,
                    busy: false,
                }),
                released: Condvar::new(),
            }),
        };
        var.cell.hold(value, loc);
        Ok(var)
    }

    /// A cell that holds `value` and requires gradients: a parameter to train.
    ///
    /// # Errors
    /// As [`Var::new`], or if the value is not a float tensor.
    #[track_caller]
    pub fn parameter(value: impl AsTensor) -> Result<Var> {
        let var = Var::new(value)?;
        var.requires_grad_(true)?;
        Ok(var)
    }

    /// What the cell holds now: a snapshot that later assignments don't change. Inside `compile` the
    /// read is recorded and happens at each run.
    #[track_caller]
    pub fn get(&self) -> Tensor {
        let loc = Location::caller();
        let mut t = scope::get_var(self, loc).unwrap_or_else(|| self.cell.idle().current.clone());
        if self.requires_grad() {
            t.edge = Edge::Leaf(self.cell.leaf.clone());
        }
        t
    }

    /// Makes the cell hold `value`. Inside `compile` the assignment is recorded and happens at each
    /// run.
    ///
    /// # Errors
    /// If `value` carries an error, or its dtype, shape or device differ from the cell's. The cell then
    /// keeps what it holds.
    #[track_caller]
    pub fn assign(&self, value: impl AsTensor) -> Result<()> {
        assign_together([(self, &*value.as_tensor())])
    }

    /// Makes the cell give an error until it is assigned anew.
    pub(crate) fn fail(&self, error: Error) {
        let failed = Tensor::from_error(error);
        if scope::is_recording() {
            return scope::assign_var(self, &failed);
        }
        self.cell.idle().current = failed;
    }

    /// The value as this cell can hold it.
    fn fitting(&self, value: &Tensor, loc: &'static Location<'static>) -> Result<Tensor> {
        value.check()?;
        if trace::is_tracing() {
            let message = "a Var can't be assigned inside scan and cond; return the value and assign it \
                           behind them";
            return Err(Error::new(ErrorKind::Assign, "assign", message, loc));
        }
        let home = self.device();
        let anywhere = value.node.device.is_none();
        let value = match anywhere && home != Device::Cpu {
            true => value.to(home),
            false => value.clone(),
        };
        let (fact, device) = (value.fact(), value.device());
        if *fact != self.cell.fact || device != home {
            let own = &self.cell.fact;
            let message = match self.name() {
                Some(name) => format!("`{name}`, {own} on {home}, can't hold {fact} on {device}"),
                None => format!("a Var of {own} on {home} can't hold {fact} on {device}"),
            };
            return Err(Error::new(ErrorKind::Assign, "assign", message, loc));
        }
        Ok(value)
    }

    /// Python's `var[items] = value`: assigns the cell what it holds with `value` in the part that
    /// [`Tensor::i`] takes; see [`Tensor::set`].
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor, Var};
    /// let v = Var::new(&Tensor::zeros([2, 3], DType::F32))?;
    /// v.set((.., 1), 5.0)?;
    /// assert_eq!(v.get().to_vec::<f32>()?, [0.0, 5.0, 0.0, 0.0, 5.0, 0.0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the index or the value does not fit; the cell then keeps what it holds.
    #[track_caller]
    pub fn set<'a>(&self, items: impl Indices, value: impl Into<Other<'a>>) -> Result<()> {
        self.assign(self.get().detach().set(items, value))
    }

    /// Whether this cell has ever required gradients: a frozen parameter is still one.
    pub fn is_parameter(&self) -> bool {
        self.cell.parameter.load(Ordering::Relaxed)
    }

    /// A number that every handle to this cell has in common, and no other cell.
    pub fn id(&self) -> u64 {
        self.cell.id
    }

    /// What errors call this cell: its path in a module, such as `fc.weight`, once a walk over that has
    /// seen it, or what [`Var::set_name`] said.
    pub fn name(&self) -> Option<Arc<str>> {
        self.cell.leaf.label.get()
    }

    /// Says what errors call this cell, for every handle to it.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor, Var};
    /// let w = Var::parameter(&Tensor::zeros([3, 4], DType::F32))?;
    /// w.set_name("head.weight");
    /// let y = Tensor::zeros([2, 5], DType::F32).matmul(&w.get());
    /// assert!(y.error().unwrap().to_string().contains("operand 1: f32[3, 4], `head.weight`"));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn set_name(&self, name: &str) {
        self.cell.leaf.label.set(name);
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.cell.fact.dtype
    }

    /// The shape, outermost dim first.
    pub fn shape(&self) -> Vec<usize> {
        let dims = self.cell.fact.shape.iter();
        dims.filter_map(|d| d.as_const())
            .map(|d| d as usize)
            .collect()
    }

    /// Where the values live.
    pub fn device(&self) -> Device {
        self.cell.leaf.device.get()
    }

    /// Moves the cell's value and gradient to another device: whoever holds the cell finds them there.
    /// Snapshots stay where they are.
    ///
    /// # Errors
    /// If the value can't be computed or the device fails; the cell then stays where it is. Inside
    /// `compile`, cells can't be moved.
    #[track_caller]
    pub fn to_(&self, device: Device) -> Result<()> {
        let loc = Location::caller();
        if self.device() == device {
            return Ok(());
        }
        if scope::is_recording() {
            return Err(Error::new(
                ErrorKind::ReadWhileCompiling,
                "to_",
                "a Var can't be moved while recording inside compile; move it before",
                loc,
            ));
        }
        let value = self.get().detach().to(device);
        value.check()?;
        let grad = self.grad().map(|g| g.to(device));
        if let Some(grad) = &grad {
            grad.check()?;
        }
        self.cell.leaf.device.set(device);
        self.cell.leaf.set_grad(grad);
        self.cell.hold(&value, loc);
        Ok(())
    }
}

/// Makes several cells hold values that belong together, as [`Var::assign`] does for one: if the run that
/// computes one of them fails, all return to their last computed values.
///
/// ```
/// use kiln_tensor::{Tensor, Var, assign_together};
/// let mean = Var::new(&Tensor::from([0.0, 0.0]))?;
/// let count = Var::new(&Tensor::from(0i64))?;
/// let row = Tensor::from([[1.0, 2.0]]).index_select(0, &Tensor::from([7i64]));
/// assign_together([(&mean, &row.squeeze(0)), (&count, &(count.get() + 1))])?;
/// assert!(mean.get().to_vec::<f64>().is_err(), "there is no row 7");
/// assert_eq!(count.get().item::<i64>()?, 0);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Var::assign`], for any of them; nothing is then assigned.
#[track_caller]
pub fn assign_together<'a>(
    assignments: impl IntoIterator<Item = (&'a Var, &'a Tensor)>,
) -> Result<()> {
    let loc = Location::caller();
    let mut fitting = Vec::new();
    for (var, value) in assignments {
        fitting.push((var, var.fitting(value, loc)?));
    }
    if scope::is_recording() {
        for (var, value) in &fitting {
            scope::assign_var(var, value);
        }
        return Ok(());
    }
    for (_, value) in &fitting {
        // A computed value that turned out wrong could not be taken back.
        value.settled()?;
    }
    let mut recordings = fitting.iter().filter_map(|(_, value)| recording_of(value));
    if let Some(first) = recordings.next() {
        recordings.for_each(|other| first.join(&other));
    }
    for (var, value) in &fitting {
        var.cell.hold(value, loc);
    }
    Ok(())
}

impl Cell {
    pub(crate) fn requires_grad(&self) -> bool {
        self.requires_grad.load(Ordering::Relaxed)
    }

    pub(crate) fn set_requires_grad(&self, requires_grad: bool) {
        self.requires_grad.store(requires_grad, Ordering::Relaxed);
        self.parameter.fetch_or(requires_grad, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The state once no run is about to commit.
    pub(crate) fn idle(&self) -> MutexGuard<'_, CellState> {
        let mut state = self.lock();
        while state.busy {
            state = self.released.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state
    }

    /// What the cell holds, for the run that has locked it.
    pub(crate) fn now(&self) -> Tensor {
        self.lock().current.clone()
    }

    /// Takes the cell for a run that commits to it. Several cells are taken in order of their ids; see
    /// [`crate::turns`].
    pub(crate) fn acquire(self: &Arc<Cell>) -> Busy {
        self.idle().busy = true;
        Busy(Arc::new(Taken(self.clone())))
    }

    /// The same for who may not wait, if the cell is free.
    pub(crate) fn try_acquire(self: &Arc<Cell>) -> Option<Busy> {
        let was_busy = std::mem::replace(&mut self.lock().busy, true);
        (!was_busy).then(|| Busy(Arc::new(Taken(self.clone()))))
    }

    fn hold(self: &Arc<Cell>, value: &Tensor, loc: &'static Location<'static>) {
        // Asked for first: where there is none, or no longer, the value is there.
        let recording = recording_of(value);
        let mut state = self.idle();
        if let Some(buffer) = value.node.ready(value.output) {
            return state.set(self.leaf(buffer, loc));
        }
        // A run that could not commit the last value may have computed it: what fails from here on
        // returns to that.
        if let Some(buffer) = state.uncommitted() {
            state.set(self.leaf(buffer, loc));
        }
        state.current = value.plain();
        drop(state);
        if let Some(recording) = recording {
            recording.add_pending(self);
        }
    }

    /// A computed value of the cell.
    pub(crate) fn leaf(&self, buffer: Buffer, loc: &'static Location<'static>) -> Tensor {
        let device = Some(self.leaf.device.get());
        let mut node = Tensor::leaf_node(buffer, self.role, device, loc, "Var");
        node.about = Some(self.about.clone());
        Tensor::from_node(node)
    }
}

impl Cell {
    /// Takes back that the cell was given the leaf `new`, whose run failed; `old` is its last computed value.
    pub(crate) fn roll_back(&self, new: &Weak<Node>, old: Option<Tensor>) {
        let is_new = |t: &Tensor| std::ptr::eq(Arc::as_ptr(&t.node), new.as_ptr());
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
    /// What the cell holds, if that is computed and not its last committed value.
    fn uncommitted(&self) -> Option<Buffer> {
        let (current, committed) = (&self.current.node, self.realized.as_ref());
        let is_new = committed.is_none_or(|leaf| !Arc::ptr_eq(&leaf.node, current));
        current.ready(self.current.output).filter(|_| is_new)
    }

    /// Gives up the memory of the computed value if nobody else holds it.
    pub(crate) fn give_up(&mut self) -> bool {
        let Some(leaf) = &self.realized else {
            return false;
        };
        let node = &leaf.node;
        // `current` and `realized` are the two handles of the cell itself.
        let ours = Arc::ptr_eq(&self.current.node, node)
            && node.handles.load(Ordering::Acquire) == 2
            && Arc::strong_count(node) == 2;
        if ours {
            *node.state() = State::Donated;
        }
        ours
    }

    /// Takes memory back that [`CellState::give_up`] gave.
    pub(crate) fn take_back(&mut self, buffer: Buffer) {
        if let Some(leaf) = &self.realized {
            *leaf.node.state() = State::Ready(smallvec::SmallVec::from_buf([buffer]));
        }
    }

    /// Holds a computed value.
    pub(crate) fn set(&mut self, leaf: Tensor) {
        self.current = leaf.clone();
        self.realized = Some(leaf);
    }
}

/// A cell that a run is about to commit to; free again when the last copy is dropped.
#[derive(Clone)]
pub(crate) struct Busy(Arc<Taken>);

struct Taken(Arc<Cell>);

impl Busy {
    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.0.0
    }

    /// The state, which only this run may touch now.
    pub(crate) fn state(&self) -> MutexGuard<'_, CellState> {
        self.cell().lock()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.lock().busy = false;
        self.0.released.notify_all();
    }
}

impl std::fmt::Display for Var {
    /// What the cell holds, as a tensor prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl std::fmt::Debug for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "Var({name}: {})", self.cell.fact),
            None => write!(f, "Var({})", self.cell.fact),
        }
    }
}
