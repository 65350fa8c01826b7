//! Cells that hold a tensor.

use crate::{
    AsTensor, AsVar, DType, Device, Error, ErrorKind, Indices, Other, Result, Tensor,
    on_behalf_of_caller, set_autocast, set_grad_enabled, where_,
};
use kiln_base::Dim;
use kiln_ir::Role;
use kiln_lazy::cell::Cell;
use kiln_lazy::grad::edge::Edge;
use kiln_lazy::{Handle, body, given, scope};
use kiln_runtime::memory::Category;
use std::any::Any;
use std::panic::Location;
use std::sync::Arc;

/// A parameter, running statistic or optimiser moment: a cell that holds a tensor.
///
/// It can be used in place of a tensor: as an argument, as an operand of operators such as `+`, and with the methods
/// of tensors, which apply to its current value. [`Var::get`] takes a snapshot that never changes; [`Var::assign`]
/// replaces the value. A pending (not yet computed) value is committed when any value of its recording is read. If
/// that run fails, the cell returns to its last computed value. Cloning gives another handle to the same cell.
///
/// A cell keeps its shape, since gradients, the state of optimisers and compiled functions are made for it. Only
/// [`Var::t_`], [`Var::transpose_`], [`Var::squeeze_`] and [`Var::unsqueeze_`] change it.
///
/// ```
/// use kiln_tensor::{Tensor, Var};
/// let w = Var::parameter(Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]))?;
/// let x = Tensor::from([1.0f32, 1.0]);
/// let loss = x.matmul(w.t()).square().sum(()) + w.abs().sum(()) * 0.5;
/// loss.backward()?;
/// assert_eq!(w.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [6.5, 6.5, 14.5, 14.5]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Var {
    pub(crate) cell: Arc<Cell>,
}

impl Var {
    /// A cell that holds `value`.
    ///
    /// # Errors
    /// If `value` carries an error or has a symbolic shape.
    #[track_caller]
    pub fn new(value: impl AsTensor) -> Result<Var> {
        Var::with_role(&value.as_tensor(), Role::Parameter)
    }

    /// A cell whose value changes often, such as a learning rate. Plans compute values that depend on it in every
    /// run, instead of preparing them once, as they do for other cells.
    ///
    /// # Errors
    /// As [`Var::new`].
    #[track_caller]
    pub fn volatile(value: impl AsTensor) -> Result<Var> {
        Var::with_role(&value.as_tensor(), Role::Data)
    }

    #[track_caller]
    fn with_role(value: &Tensor, role: Role) -> Result<Var> {
        value.shape()?;
        value.handle.settled()?;
        check_outside_compile("Var::new", "made", "make")?;
        let var = Var {
            cell: Cell::new(&value.handle, role),
        };
        var.cell.hold(&value.handle, Location::caller());
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

    /// The current value of the cell: a snapshot that later assignments don't change. Inside `compile` the read is
    /// recorded and happens at each run.
    #[track_caller]
    pub fn get(&self) -> Tensor {
        let loc = Location::caller();
        if let Some(value) = given::value(self.id()) {
            return value.into();
        }
        if let Some(source) = self.source() {
            // The value has the cell's dtype; what reads it casts it.
            let _casts = set_autocast(None);
            return on_behalf_of_caller(source.library(), || source.value());
        }
        let recorded = scope::get(&self.cell, loc);
        let mut handle = recorded.unwrap_or_else(|| self.cell.idle().current.clone());
        if self.requires_grad() {
            handle.edge = Edge::Leaf(self.cell.leaf.clone());
        }
        handle.into()
    }

    /// The current value of the cell, without its gradient.
    #[track_caller]
    pub fn detach(&self) -> Tensor {
        self.get().detach()
    }

    /// Assigns `value` to the cell. Inside `compile` the assignment is recorded and happens at each run.
    ///
    /// # Errors
    /// If `value` carries an error, or its dtype, shape or device differ from the cell's. The cell then keeps its
    /// value.
    #[track_caller]
    pub fn assign(&self, value: impl AsTensor) -> Result<()> {
        assign_together([(self, value)])
    }

    /// Makes every read of the cell an error until it is assigned again.
    pub(crate) fn fail(&self, error: Error) {
        let failed = Tensor::from_error(error);
        if scope::is_recording() {
            return scope::assign(&self.cell, &failed.handle);
        }
        self.cell.idle().current = failed.handle;
    }

    /// The value, moved to the cell's device if it has none, or an error if the cell can't hold it.
    fn check_value(&self, value: &Tensor, loc: &'static Location<'static>) -> Result<Tensor> {
        value.check()?;
        if body::is_tracing() {
            let message = "a Var can't be assigned inside scan and cond; return the value and assign it \
                           behind them";
            return Err(Error::new(ErrorKind::Assign, "assign", message, loc));
        }
        let home = self.device();
        let anywhere = value.handle.node.device.is_none();
        let value = match anywhere && home != Device::Cpu {
            true => value.to(home),
            false => value.clone(),
        };
        let (fact, device) = (value.fact(), value.device());
        let own = self.cell.fact();
        if *fact != own || device != home {
            let mut message = match self.name() {
                Some(name) => format!("`{name}`, {own} on {home}, can't hold {fact} on {device}"),
                None => format!("a Var of {own} on {home} can't hold {fact} on {device}"),
            };
            if fact.shape != own.shape {
                message += "; a Var keeps its shape: make another one of the new value";
            }
            return Err(Error::new(ErrorKind::Assign, "assign", message, loc));
        }
        Ok(value)
    }

    /// Python's `var[items] = value`: assigns the cell its current value with `value` in the part that [`Tensor::i`]
    /// selects; see [`Tensor::set`].
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
    /// If the index or the value does not fit; the cell then keeps its value.
    #[track_caller]
    pub fn set<'a>(&self, items: impl Indices, value: impl Into<Other<'a>>) -> Result<()> {
        self.assign(self.get().detach().set(items, value))
    }

    /// True if this cell has ever required gradients. A frozen parameter is still a parameter.
    pub fn is_parameter(&self) -> bool {
        self.cell.is_parameter()
    }

    /// A number that all handles to this cell share, and that no other cell has.
    pub fn id(&self) -> u64 {
        self.cell.id
    }

    /// The name of this cell in errors and in signatures of compiled functions: the name set by [`Var::set_name`], or
    /// its path in a module, such as `fc.weight`, once the module has been walked.
    pub fn name(&self) -> Option<Arc<str>> {
        self.cell.leaf.label.get()
    }

    /// Sets the name of this cell in errors, and in signatures of functions compiled from now on, for all its
    /// handles.
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
        self.cell.leaf.dtype()
    }

    /// The shape, outermost dim first.
    ///
    /// # Errors
    /// None: a cell's shape is known. The result is there for code that takes a cell or a tensor.
    pub fn shape(&self) -> Result<Vec<usize>> {
        Ok(self.sizes())
    }

    /// The shape, outermost dim first.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        let known = self.dims().iter().filter_map(Dim::as_const);
        known.map(|d| d as usize).collect()
    }

    /// The shape as dims, none of which is symbolic.
    pub fn dims(&self) -> &[Dim] {
        self.cell.leaf.shape()
    }

    /// The number of dims.
    pub fn ndim(&self) -> usize {
        self.dims().len()
    }

    /// The device of the values.
    pub fn device(&self) -> Device {
        let replaced = given::value(self.id()).map(|t| t.device());
        replaced.unwrap_or_else(|| self.cell.leaf.device.get())
    }

    /// Moves the cell's value and gradient to another device, for all holders of the cell. Snapshots stay where they
    /// are.
    ///
    /// # Errors
    /// If the value can't be computed or the device fails; the cell then stays where it is. Inside
    /// `compile`, cells can't be moved.
    #[track_caller]
    pub fn to_(&self, device: Device) -> Result<()> {
        if self.device() == device {
            return Ok(());
        }
        check_outside_compile("to_", "moved", "move")?;
        if self.source().is_some() {
            self.cell.leaf.device.set(device);
            return Ok(());
        }
        self.check_unshared("to_")?;
        if let Some(narrow) = self.cell.leaf.narrow() {
            let cell = narrow.cell().clone();
            Var { cell }.to_(device)?;
        }
        let value = self.get().detach().to(device);
        value.check()?;
        let grad = self.checked_grad(|g| g.to(device))?;
        self.cell.leaf.device.set(device);
        self.cell.leaf.set_grad(grad);
        self.cell.hold(&value.handle, Location::caller());
        Ok(())
    }

    /// Casts the cell's value and gradient, for all holders of the cell, such as an optimiser. Snapshots, and
    /// functions that were compiled before, keep the old dtype; such functions no longer run.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor, Var};
    /// let w = Var::parameter(Tensor::from([1.0f32, 2.5]))?;
    /// w.to_dtype_(DType::BF16)?;
    /// assert_eq!((w.dtype(), w.get().dtype()), (DType::BF16, DType::BF16));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the value can't be computed, or if the cell requires gradients and the dtype is not a float; the cell then
    /// stays as it is. Inside `compile`, cells can't be cast.
    #[track_caller]
    pub fn to_dtype_(&self, dtype: DType) -> Result<()> {
        if self.dtype() == dtype {
            return Ok(());
        }
        if self.requires_grad() && !dtype.is_float() {
            let message = format!("only floats have gradients, not {dtype}");
            return Err(Error::invalid("to_dtype_", message));
        }
        check_outside_compile("to_dtype_", "cast", "cast")?;
        if self.source().is_some() {
            self.cell.leaf.set_dtype(dtype);
            return Ok(());
        }
        self.check_unshared("to_dtype_")?;
        // Computed here: if the run failed later, the cell would return to a value of the old dtype.
        let value = self.get().detach().to_dtype(dtype);
        value.realize()?;
        let grad = self.checked_grad(|g| g.to_dtype(dtype))?;
        self.cell.leaf.set_narrow(None);
        self.cell.leaf.set_dtype(dtype);
        self.cell.leaf.set_grad(grad);
        self.cell.hold(&value.handle, Location::caller());
        Ok(())
    }

    /// Replaces the cell's value and gradient by `view` of them, which may have another shape.
    #[track_caller]
    pub(crate) fn become_view(
        &self,
        called: &'static str,
        view: impl Fn(&Tensor) -> Tensor,
    ) -> Result<()> {
        let value = view(&self.detach());
        value.check()?;
        let grad = self.checked_grad(&view)?;
        if value.dims() == self.dims() {
            self.assign(value)?;
        } else {
            let is_given = given::value(self.id()).is_some();
            if scope::is_recording() || body::is_tracing() || is_given || self.source().is_some() {
                let message = "the shape of a Var can't change inside compile, scan, cond and functional_call, \
                               nor while it is computed from others";
                return Err(Error::at_caller(ErrorKind::Assign, called, message));
            }
            // Computed here: if the run failed later, the cell would return to a value of the old shape.
            value.realize()?;
            self.cell.leaf.set_narrow(None);
            self.cell.leaf.set_shape(value.fact().shape.clone());
            self.cell.hold(&value.handle, Location::caller());
        }
        self.cell.leaf.set_grad(grad);
        Ok(())
    }

    /// Returns the gradient in another form, if there is one.
    fn checked_grad(&self, form: impl FnOnce(&Tensor) -> Tensor) -> Result<Option<Handle>> {
        let grad = self.grad().map(|g| form(&g));
        grad.map(|g| Ok(g.check()?.handle.clone())).transpose()
    }
}

/// Returns an error while a function is recorded for `compile`.
#[track_caller]
pub(crate) fn check_outside_compile(called: &str, done: &str, first: &str) -> Result<()> {
    if !scope::is_recording() {
        return Ok(());
    }
    let message =
        format!("a Var can't be {done} while recording inside compile; {first} it before");
    Err(Error::at_caller(
        ErrorKind::ReadWhileCompiling,
        called,
        message,
    ))
}

impl Var {
    /// Registers `f` to be called after each run with the value that the run assigns to the cell. Reading that value
    /// waits for a GPU. Only the first registration counts.
    pub fn watch(&self, f: impl Fn(&Tensor) + Send + Sync + 'static) {
        self.cell
            .watch(Box::new(move |value| f(&value.clone().into())));
    }

    /// Counts the memory of its values in another category: that of the state of an optimiser of your own is
    /// [`Category::Moments`].
    pub fn count_as(&self, category: Category) {
        self.cell.count_as(category);
    }
}

/// Runs `f`, for which the cells of these ids have the given values on this thread, with their gradients. Assignments
/// replace these; the cells keep their own.
#[doc(hidden)]
pub fn with_values<T>(values: impl IntoIterator<Item = (u64, Tensor)>, f: impl FnOnce() -> T) -> T {
    given::with_values(values.into_iter().map(|(id, t)| (id, t.handle)), f)
}

/// The computation of a cell's value from other cells.
pub trait Source: Any + Send + Sync {
    /// The folder of the source files that record the computation.
    fn library(&self) -> &'static str;

    /// Returns the value, with its gradient.
    fn value(&self) -> Tensor;

    /// Returns the other cells, with values from which this one is computed.
    ///
    /// # Errors
    /// If there are no such values.
    fn inverse(&self, value: &Tensor) -> Result<Vec<(Var, Tensor)>>;
}

impl Var {
    /// The computation of the cell's value, if it holds none itself.
    #[doc(hidden)]
    pub fn source(&self) -> Option<Arc<dyn Source>> {
        self.cell.source()?.downcast_ref().cloned()
    }

    /// Makes a computation give the cell's value from now on. It holds none then, and has to be assigned one when the
    /// computation is taken away.
    #[doc(hidden)]
    #[track_caller]
    pub fn set_source(&self, source: Option<Arc<dyn Source>>) {
        if source.is_some() {
            let message = "the value is computed from other cells";
            let unreadable = Tensor::from_error(Error::at_caller(ErrorKind::Value, "Var", message));
            let mut state = self.cell.idle();
            state.set(unreadable.handle);
            state.realized = None;
            self.cell.leaf.set_narrow(None);
        }
        let source = source.map(|source| Arc::new(source) as Arc<dyn Any + Send + Sync>);
        self.cell.set_source(source);
    }
}

/// Assigns several cells values that belong together, as [`Var::assign`] does for one. If the run that computes one
/// of them fails, all return to their last computed values.
///
/// ```
/// use kiln_tensor::{Tensor, Var, assign_together};
/// let mean = Var::new(&Tensor::from([0.0, 0.0]))?;
/// let count = Var::new(&Tensor::from(0i64))?;
/// let row = Tensor::from([[1.0, 2.0]]).index_select(0, &Tensor::from([7i64]));
/// assign_together([(&mean, row.squeeze(0)), (&count, &count + 1)])?;
/// assert!(mean.get().to_vec::<f64>().is_err(), "there is no row 7");
/// assert_eq!(count.get().item::<i64>()?, 0);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Var::assign`], for any of them; nothing is then assigned.
#[track_caller]
pub fn assign_together<V: AsVar, T: AsTensor>(
    assignments: impl IntoIterator<Item = (V, T)>,
) -> Result<()> {
    assign_all(assignments, None)
}

/// As [`assign_together`], but leaves the cells as they are if `flag`, a bool of rank 0, is true. The flag is read
/// when the assignment runs: a plan then skips the steps that would compute and write the new values.
///
/// ```
/// use kiln_tensor::{Tensor, Var, assign_unless};
/// let w = Var::new(&Tensor::from([1.0, 2.0]))?;
/// for (by, wanted) in [(f64::INFINITY, [1.0, 2.0]), (3.0, [3.0, 6.0])] {
///     let new = w.get() * by;
///     assign_unless(new.isfinite().all(()).logical_not(), [(&w, new)])?;
///     assert_eq!(w.get().to_vec::<f64>()?, wanted);
/// }
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`assign_together`], or if `flag` is not a bool of rank 0.
#[track_caller]
pub fn assign_unless<V: AsVar, T: AsTensor>(
    flag: impl AsTensor,
    assignments: impl IntoIterator<Item = (V, T)>,
) -> Result<()> {
    let flag: &Tensor = &flag.as_tensor();
    flag.check()?;
    if flag.dtype() != DType::Bool || !flag.dims().is_empty() {
        let message = format!("the flag must be bool[], not {}", flag.handle.fact());
        return Err(Error::invalid("assign_unless", message));
    }
    assign_all(assignments, Some(flag))
}

/// Adds the assignments that give a cell a value: its own, or those of the cells from which it is computed.
#[track_caller]
fn push_assignments(
    var: &Var,
    value: &Tensor,
    loc: &'static Location<'static>,
    assignments: &mut Vec<(Var, Tensor)>,
) -> Result<()> {
    let value = var.check_value(value, loc)?;
    match var.source().filter(|_| given::value(var.id()).is_none()) {
        Some(source) => {
            let originals = on_behalf_of_caller(source.library(), || source.inverse(&value))?;
            for (var, value) in &originals {
                push_assignments(var, value, loc, assignments)?;
            }
        }
        None => assignments.push((var.clone(), value)),
    }
    Ok(())
}

#[track_caller]
fn assign_all<V: AsVar, T: AsTensor>(
    assignments: impl IntoIterator<Item = (V, T)>,
    unless: Option<&Tensor>,
) -> Result<()> {
    let loc = Location::caller();
    // The iterator may compute the values.
    let assignments: Vec<(V, T)> = assignments.into_iter().collect();
    let (_mode, _casts) = (set_grad_enabled(false), set_autocast(None));
    let mut fitting = Vec::new();
    for (var, value) in assignments {
        push_assignments(var.as_var(), &value.as_tensor(), loc, &mut fitting)?;
    }
    let mut cell_values: Vec<(Arc<Cell>, Tensor)> = Vec::new();
    let mut replacements: Vec<(u64, Tensor)> = Vec::new();
    let new = |var: &Var, value: Tensor| match unless {
        Some(flag) => where_(flag.to(var.device()), var.get(), value),
        None => value,
    };
    for (var, value) in fitting {
        if given::value(var.id()).is_some() {
            let value = new(&var, value);
            replacements.push((var.id(), value));
            continue;
        }
        if let Some(narrow) = var.cell.leaf.narrow() {
            let copy = value.detach().to_dtype(narrow.cell().leaf.dtype());
            let cell = narrow.cell().clone();
            cell_values.push((cell.clone(), new(&Var { cell }, copy)));
        }
        let value = new(&var, value);
        cell_values.push((var.cell, value));
    }
    let replace_given = || {
        let replacements = replacements.iter();
        replacements.for_each(|(id, value)| given::replace(*id, value.handle.plain()));
    };
    if scope::is_recording() {
        for (cell, value) in &cell_values {
            scope::assign(cell, &value.handle);
        }
        replace_given();
        return Ok(());
    }
    let values = cell_values.iter().map(|(_, value)| value);
    for value in values.chain(replacements.iter().map(|(_, value)| value)) {
        // A computed value that turned out to be wrong could not be undone.
        value.handle.settled()?;
    }
    replace_given();
    let mut recordings = (cell_values.iter()).filter_map(|(_, value)| value.handle.recording());
    if let Some(recording) = recordings.next() {
        recordings.for_each(|other| recording.join(&other));
    }
    for (cell, value) in &cell_values {
        cell.hold(&value.handle, loc);
    }
    Ok(())
}

impl std::fmt::Display for Var {
    /// Prints the value of the cell as a tensor.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl std::fmt::Debug for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "Var({name}: {})", self.cell.fact()),
            None => write!(f, "Var({})", self.cell.fact()),
        }
    }
}
