//! Reads: compiles the program of a value, runs it, keeps the results and commits the assignments.

use super::cached::cache;
use super::commit::{self, CellUpdate, Donor, Inputs, Running};
use super::errors::{check_process, compile_error, forbid_while_compiling, run_error};
use super::gather::Missing;
use super::outcome::Watched;
use super::wanted::{Wanted, is_product};
use super::{anomaly, outcome, profiler};
use crate::cell::Busy;
use crate::grad::needs::{Needed, needed};
use crate::node::{Node, NodeState, Recording};
use crate::{Device, Error, ErrorKind, Handle, Result, warning};
use hashbrown::HashSet;
use kiln_base::{DType, Loc, Scalar};
use kiln_compiler::{Fit, Found};
use kiln_ir::{Op, Role};
use kiln_runtime::memory::Category;
use kiln_runtime::{Buffer, Error as RunError};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::trace;

/// Computes the values of tensors in one program.
pub fn realize_at(tensors: &[&Handle], loc: &'static Location<'static>) -> Result<()> {
    realize_with(tensors, OnFailure::RollBack, &[], loc)
}

/// The fate of pending assignments when the run that would commit them fails.
#[derive(Copy, Clone, PartialEq)]
pub enum OnFailure {
    /// Cells return to their last computed values.
    RollBack,
    /// They stay pending: the values that failed were not requested.
    Keep,
}

/// [`realize_at`] for a run that has already taken the cells `held`; `on_failure` decides about its assignments.
///
/// # Errors
/// As [`realize_at`].
pub fn realize_with(
    tensors: &[&Handle],
    on_failure: OnFailure,
    held: &[Busy],
    loc: &'static Location<'static>,
) -> Result<()> {
    forbid_while_compiling(loc)?;
    for t in tensors {
        t.check()?;
    }
    check_process("read", loc)?;
    if tensors.iter().all(|t| t.is_realized()) {
        return Ok(());
    }
    // One program runs on one device.
    let mut devices: SmallVec<[Device; 2]> = SmallVec::new();
    for t in tensors {
        if !devices.contains(&t.device()) {
            devices.push(t.device());
        }
    }
    let mut devices = devices.iter();
    let result = devices.try_for_each(|device| realize_on(*device, tensors, on_failure, held, loc));
    if let (Err(e), [t], OnFailure::RollBack) = (&result, tensors, on_failure) {
        t.tell(e);
    }
    result
}

/// Computes the values of the tensors on a device.
fn realize_on(
    device: Device,
    tensors: &[&Handle],
    on_failure: OnFailure,
    held: &[Busy],
    loc: &'static Location<'static>,
) -> Result<()> {
    let unrealized = || -> Vec<Handle> {
        let unrealized = tensors
            .iter()
            .filter(|t| t.device() == device && !t.is_realized());
        unrealized.map(|t| (*t).clone()).collect()
    };
    loop {
        let targets = unrealized();
        if targets.is_empty() {
            return Ok(());
        }
        // A value with one element may be a loss whose gradients are needed next. Derivatives may read cells, so this
        // is skipped if the caller has taken some.
        let losses = targets.iter().filter(|t| t.fact().numel().is(1));
        let losses = losses.filter(|_| held.is_empty());
        let saved = needed(&losses.collect::<Vec<_>>(), loc);
        let tickets = commit::now();
        let mut pending = Pending::lock(&targets, device, held);
        // Another thread may have computed some of them meanwhile.
        if unrealized().is_empty() {
            return Ok(());
        }
        let parameters = initialise(device, &mut pending, on_failure, loc)?;
        let targets = unrealized();
        if targets.is_empty() && pending.cells.is_empty() {
            return Ok(());
        }
        match Run::gather(device, targets, saved, pending, on_failure) {
            Ok(mut run) => {
                run.program.gather.make_parameters(&parameters);
                drop(parameters);
                run.program.keep_referenced();
                return run.run(loc);
            }
            // Another thread is writing over a value that this one needs, and computes the values that depend on it
            // in the same run.
            Err(Missing::Donated) if tickets.wait() => {}
            Err(e @ Missing::Donated) => return Err(e.into()),
            Err(Missing::Error(e)) => return Err(e),
        }
    }
}

/// Computes the random initial values of cells, together with the other initial values, before anything reads them.
/// All programs then read them as parameters. Returns the values of parameters.
fn initialise(
    device: Device,
    pending: &mut Pending,
    on_failure: OnFailure,
    loc: &'static Location<'static>,
) -> Result<Vec<Handle>> {
    let initial_state = |(cell, value): &(Busy, Handle)| {
        let is_first = cell.state().realized.is_none();
        is_first.then(|| is_random_initial(value)).flatten()
    };
    let states: Vec<Option<bool>> = pending.cells.iter().map(initial_state).collect();
    if !states.contains(&Some(true)) {
        return Ok(Vec::new());
    }
    let cells = pending.cells.drain(..).zip(states);
    let (initial, others): (Vec<_>, Vec<_>) =
        cells.partition(|(_, initial_state)| initial_state.is_some());
    pending.cells = others.into_iter().map(|(cell, _)| cell).collect();
    let initial: Vec<(Busy, Handle)> = initial.into_iter().map(|(cell, _)| cell).collect();
    let parameters = initial.iter();
    let parameters = parameters.filter(|(cell, _)| cell.cell().role() == Role::Parameter);
    let parameters = parameters.map(|(_, value)| value.clone()).collect();
    let initial = Pending {
        roots: pending.roots.clone(),
        cells: initial,
    };
    let mut run = Run::gather(device, Vec::new(), Vec::new(), initial, on_failure)?;
    run.program.keep_referenced();
    run.run(loc)?;
    Ok(parameters)
}

/// True if a value is computed from random numbers, false if from constants; `None` if it depends on other values or
/// products.
fn is_random_initial(value: &Handle) -> Option<bool> {
    let mut is_random = false;
    let mut visited: HashSet<*const Node> = HashSet::new();
    let mut stack = vec![value.node.clone()];
    while let Some(node) = stack.pop() {
        if !visited.insert(Arc::as_ptr(&node)) {
            continue;
        }
        match (&node.op, &*node.state()) {
            (Op::Input(input), NodeState::Ready(_)) if input.role == Role::RandomKey => {
                is_random = true;
            }
            (op, NodeState::Lazy { inputs, .. }) if !is_product(op) => {
                stack.extend(inputs.iter().map(|operand| operand.node.clone()));
            }
            _ => return None,
        }
    }
    Some(is_random)
}

/// The values of a tensor on the host, computed if necessary.
pub fn read(t: &Handle, loc: &'static Location<'static>) -> Result<Buffer> {
    let buffer = value(t, loc)?;
    if buffer.gpu().is_none() {
        return Ok(buffer);
    }
    let host = buffer.to_host();
    host.map_err(|e| Error::new(ErrorKind::Device, "read", e.to_string(), Loc::from(loc)))
}

/// Returns the values of a tensor on its device, computed if necessary.
pub fn value(t: &Handle, loc: &'static Location<'static>) -> Result<Buffer> {
    t.check()?;
    forbid_while_compiling(loc)?;
    check_process("read", loc)?;
    let mut value = t.node.ready(t.output);
    if value.is_none() {
        realize_at(&[t], loc)?;
        value = t.node.ready(t.output);
    }
    let message = "a run did not give the value";
    let value = value.ok_or_else(|| Error::new(ErrorKind::Internal, "read", message, loc))?;
    outcome::settle(&value)?;
    Ok(value)
}

impl Handle {
    /// Waits until the run of a computed value is known to have had no error.
    pub fn settled(&self) -> Result<()> {
        let value = self.node.ready(self.output);
        value.map_or(Ok(()), |value| outcome::settle(&value))
    }
}

/// The pending assignments of the recordings being read, their cells locked.
struct Pending {
    roots: Vec<Recording>,
    cells: Vec<(Busy, Handle)>,
}

impl Pending {
    /// Takes the cells that were assigned a value of the recordings of these tensors. If the caller has already taken
    /// `held`, it does not wait for the others: those that are busy stay pending.
    fn lock(targets: &[Handle], device: Device, held: &[Busy]) -> Pending {
        let mut seen: HashSet<usize> = HashSet::new();
        let mut roots: Vec<Recording> = targets.iter().filter_map(Handle::recording).collect();
        roots.retain(|root| seen.insert(root.address()));
        let mut cells: Vec<_> = roots.iter().flat_map(Recording::pending).collect();
        // Cells on other devices wait until a value there is read.
        cells.retain(|c| c.leaf.device.get() == device);
        // Cells that were assigned something else since are skipped. Recordings may have been joined.
        let joined: HashSet<usize> = roots.iter().map(|r| r.root().address()).collect();
        let is_of_roots = |t: &Handle| t.recording().is_some_and(|r| joined.contains(&r.address()));
        let mut stale = Vec::new();
        let mut current = Vec::new();
        for busy in commit::take(cells, held) {
            let value = busy.state().current.clone();
            match !value.is_realized() && is_of_roots(&value) {
                true => current.push((busy, value)),
                false => stale.push(busy),
            }
        }
        // They stay taken until they are forgotten, so their next assignments are not forgotten too.
        let cells = stale.iter().map(|b| b.cell().id).collect();
        for root in &roots {
            root.committed(&cells);
        }
        Pending {
            roots,
            cells: current,
        }
    }

    /// Forgets the assignments: they are committed, or rolled back.
    fn settle(&mut self) {
        let cells = self.cells.iter().map(|(b, _)| b.cell().id).collect();
        for root in &self.roots {
            root.committed(&cells);
        }
        self.cells.clear();
    }

    /// Returns the cells to their last computed values.
    fn roll_back(&mut self) {
        for (busy, _) in &self.cells {
            busy.state().roll_back();
        }
        self.settle();
    }
}

/// One program that is run for its values.
struct Run {
    device: Device,
    program: Wanted,
    targets: Vec<Handle>,
    pending: Pending,
    on_failure: OnFailure,
}

impl Run {
    /// Gathers the program of a run; see [`Wanted::gather`].
    fn gather(
        device: Device,
        targets: Vec<Handle>,
        saved: Vec<Needed>,
        pending: Pending,
        on_failure: OnFailure,
    ) -> Result<Run, Missing> {
        let wanted = Wanted::gather(&pending.cells, &targets, saved)?;
        Ok(Run {
            device,
            program: wanted,
            targets,
            pending,
            on_failure,
        })
    }

    fn run(mut self, loc: &'static Location<'static>) -> Result<()> {
        let result = self.execute(loc);
        if result.is_err() && self.on_failure == OnFailure::RollBack {
            self.pending.roll_back();
        }
        result
    }

    fn execute(&mut self, loc: &'static Location<'static>) -> Result<()> {
        let gather = &self.program.gather;
        // Values of an earlier run that failed: nothing may be computed from them.
        let mut inputs_given = gather.inputs.iter().filter_map(|s| s.buffer.as_ref());
        inputs_given.try_for_each(outcome::settle)?;
        let recording = gather.recording(self.program.outputs.clone());
        let fit = cache(self.device).get(&recording);
        let fit = fit.map_err(|e| compile_error(e, gather, loc))?;
        match &fit.compiled {
            Some(reason) => {
                profiler::note_compiled(loc, &reason.text, &fit.plan.explain);
                warning::compiled(loc, reason);
            }
            None => trace!(target: "kiln::cache", line = %loc, "found a plan"),
        }
        let numbers = recording.nodes.iter().filter_map(|n| match n.op {
            Op::Full(f) => Some((f.value, f.dtype)),
            _ => None,
        });
        let numbers: Vec<(Scalar, DType)> = numbers.collect();
        if anomaly::is_anomaly_enabled() {
            self.check_anomalies(recording.to_graph(), loc)?;
        }
        drop(recording);
        let fail = |e, run: &Run| run_error(e, &run.program.gather, loc);
        let inputs = self.inputs(&fit, &numbers).map_err(|e| fail(e, self))?;
        let mut running = Running::new(inputs, self.donors());
        let (executable, explain) = (&fit.plan.executable, &fit.plan.explain);
        let values = running.run(|inputs, donate| {
            profiler::run_profiled(executable, explain, inputs, loc, |i| {
                executable.run(i, donate)
            })
        });
        let values = values.map_err(|e| fail(e, self))?;
        let watched = self.store(&fit.plan, &values, running);
        watched.see();
        Ok(())
    }

    /// Fails if an operation produces a NaN or an infinity, with the first such operation.
    fn check_anomalies(
        &self,
        graph: Result<kiln_ir::Graph, kiln_ir::OpError>,
        loc: &'static Location<'static>,
    ) -> Result<()> {
        let gather = &self.program.gather;
        let fail = |e: RunError| run_error(e, gather, loc);
        let graph = graph.map_err(|e| fail(RunError::Internal(e.to_string())))?;
        let buffers = gather.inputs.iter().filter_map(|s| s.buffer.clone());
        let inputs: Result<Vec<_>, _> = buffers.map(|b| self.device.bring(b)).collect();
        let inputs = inputs.map_err(fail)?;
        anomaly::check(gather, graph, self.device.ordinal(), &inputs, loc)
    }

    /// The inputs of the plan: values computed before, then numbers and sizes. The values are moved out of the
    /// program.
    fn inputs(&mut self, fit: &Fit, numbers: &[(Scalar, DType)]) -> Result<Inputs, RunError> {
        let missing = || RunError::Internal("an input has no value".to_string());
        let sources = self.program.gather.inputs.iter_mut();
        let mut inputs: Inputs = sources
            .map(|s| s.buffer.take().ok_or_else(missing))
            .collect::<Result<_, _>>()?;
        for &at in &fit.plan.scalars {
            let (value, dtype) = numbers[at];
            inputs.push(Buffer::from_bytes(dtype, &[], &value.to_bytes(dtype))?);
        }
        for &extent in &fit.extents {
            inputs.push(Buffer::from_slice::<u8>(&[], &[0, extent])?);
        }
        self.bring(&fit.plan, &mut inputs)?;
        Ok(inputs)
    }

    /// The old values that the run may write over.
    fn donors(&self) -> Vec<Donor> {
        let donor = |input: &usize| {
            let entry = self.program.gather.inputs[*input].entry;
            Donor {
                input: *input,
                leaf: self.program.gather.entries[entry].node.clone(),
            }
        };
        self.program.donors.iter().flatten().map(donor).collect()
    }

    /// Data without a device is moved to the program's device; numbers and random keys are passed with the run.
    fn bring(&self, plan: &Found, inputs: &mut [Buffer]) -> Result<(), RunError> {
        let roles = plan.executable.plan().inputs.iter().map(|i| i.role);
        inputs.iter_mut().zip(roles).try_for_each(|(buffer, role)| {
            let stays_on_host = buffer.shape().is_empty() || role == Role::RandomKey;
            if stays_on_host && buffer.gpu().is_none() {
                return Ok(());
            }
            if buffer.gpu().map(|gpu| gpu.ordinal()) != self.device.ordinal() {
                *buffer = self.device.bring(buffer.clone())?;
            }
            Ok(())
        })
    }

    /// Stores every value in its node, and assigned values in their cells.
    fn store(&mut self, plan: &Found, values: &[Buffer], running: Running) -> Watched {
        let gather = &self.program.gather;
        // Dropping operands may drop long chains, so it waits until the lock is free.
        let mut released = Vec::new();
        let lock = commit::still();
        let assigned = self.pending.cells.len();
        for (i, (output, position)) in self.program.outputs.iter().zip(&plan.outputs).enumerate() {
            let Some(position) = position else { continue };
            let entry = &gather.entries[output.value.node.index()];
            let mut buffer = values[*position].clone();
            // Memory shared with other processes belongs to the cell alone. If there is no memory for a copy, the value
            // shows what they write: the run has succeeded.
            if i >= assigned || entry.node.handles.load(Ordering::Acquire) > 1 {
                buffer = buffer.unshared().unwrap_or(buffer);
            }
            released.extend(keep_value(&entry.node, output.value.output, buffer));
        }
        drop(lock);
        drop(released);
        let updates = self.pending.cells.iter().enumerate();
        let updates = updates.filter_map(|(i, (cell, value))| {
            Some(CellUpdate {
                cell,
                position: plan.outputs[i]?,
                old: self.program.donors[i],
                loc: value.node.loc,
            })
        });
        let watched = running.finish(values, updates, &plan.executable.plan().sites, gather);
        self.pending.settle();
        self.targets.clear();
        watched
    }
}

/// Stores a value of a node. Once the node has all its values, its operands are released, with the returned state.
fn keep_value(node: &Node, output: u32, buffer: Buffer) -> Option<NodeState> {
    let mut state = node.state();
    let NodeState::Lazy { kept: values, .. } = &mut *state else {
        return None;
    };
    let category = match node.is_gradient.load(Ordering::Relaxed) {
        true => Category::Gradients,
        false => Category::Activations,
    };
    buffer.storage().claim(Some(category), node.loc);
    values.resize(node.facts.len(), None);
    values[output as usize] = Some(buffer);
    if !values.iter().all(Option::is_some) {
        return None;
    }
    let values = values.drain(..).flatten().collect();
    Some(std::mem::replace(&mut *state, NodeState::Ready(values)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Cell;
    use crate::testing::{values, vector, with};
    use kiln_ir::Pw;

    fn gather(t: &Handle) -> Run {
        let targets = vec![t.clone()];
        let pending = Pending::lock(&targets, Device::Cpu, &[]);
        let run = Run::gather(Device::Cpu, targets, vec![], pending, OnFailure::RollBack);
        run.unwrap_or_else(|e| panic!("{}", Error::from(e)))
    }

    #[test]
    fn operands_that_another_run_released_hide_nobody() {
        let loc = Location::caller();
        let first = vector(&[1.0, 2.0]);
        let v = Cell::new(&first, Role::Parameter);
        v.hold(&first, loc);
        let get = || v.idle().current.clone();
        let (m, other) = (with(&get(), Pw::Mul, 2.0), with(&get(), Pw::Mul, 3.0));
        // One thread is about to compute a value; another makes the cell's next value depend on it. One reference to
        // the old value goes and one is left, outside of this run.
        let mut early = gather(&m);
        v.hold(&with(&m, Pw::Add, 1.0), loc);
        let mut late = gather(&get());
        assert_eq!(late.program.donors, [Some(0)]);
        early.program.keep_referenced();
        early.run(loc).unwrap();
        late.program.keep_referenced();
        assert_eq!(late.program.donors, [None]);
        late.run(loc).unwrap();
        assert_eq!(values(&other).unwrap(), [3.0, 6.0]);
        assert_eq!(values(&get()).unwrap(), [3.0, 5.0]);
    }
}
