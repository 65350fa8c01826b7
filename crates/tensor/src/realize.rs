//! Reading: compile what a value needs, run it, keep what it gave, commit what it assigned.

use crate::autograd::{Needed, needed};
use crate::gather::{Gather, Missing, leaked};
use crate::node::{Node, State, Tensor};
use crate::outcome::{self, Storing};
use crate::recording::Recording;
use crate::turns::{self, Donated};
use crate::var::{Busy, Cell};
use crate::{Device, Error, ErrorKind, Result, anomaly, profiler, scope, warning};
use hashbrown::{HashMap, HashSet};
use kiln_base::{DType, Loc, Scalar};
use kiln_compiler::{Cache, CacheStats, CompileError, Fit, Found, Options};
use kiln_ir::{Op, Output, Role, Target, Value};
use kiln_runtime::{Buffer, Error as RunError, fork};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// The plans of what is read lazily, by device and by how programs were compiled; those used last at the
/// end.
static CACHES: Mutex<Vec<(Options, Arc<Cache>)>> = Mutex::new(Vec::new());
/// So many caches are kept: a program uses few devices and settings.
const CACHES_KEPT: usize = 16;

fn caches() -> MutexGuard<'static, Vec<(Options, Arc<Cache>)>> {
    CACHES.lock().unwrap_or_else(|e| e.into_inner())
}

/// The cache of plans for a device.
fn cache(device: Device) -> Arc<Cache> {
    let options = Options {
        gpu: device.ordinal(),
        ..Options::default()
    };
    let mut caches = caches();
    let at = caches.iter().rposition(|(o, _)| *o == options);
    let entry = match at {
        Some(at) => caches.remove(at),
        None => {
            let cache = Cache::new(options.clone(), 64 << 20);
            (options, Arc::new(cache))
        }
    };
    let cache = entry.1.clone();
    caches.push(entry);
    if caches.len() > CACHES_KEPT {
        caches.remove(0);
    }
    cache
}

/// What the plan caches of all devices and settings have done so far in this process.
pub fn cache_stats() -> CacheStats {
    let mut sum = CacheStats::default();
    for stats in caches().iter().map(|(_, cache)| cache.stats()) {
        sum.hits += stats.hits;
        sum.compiled += stats.compiled;
        sum.evicted += stats.evicted;
        sum.bytes += stats.bytes;
        sum.new += stats.new;
        sum.numbers += stats.numbers;
        sum.sizes += stats.sizes;
        sum.symbolic += stats.symbolic;
    }
    sum
}

/// Computes the values of tensors in one program.
pub(crate) fn realize_at(tensors: &[&Tensor], loc: &'static Location<'static>) -> Result<()> {
    realize_with(tensors, OnFailure::RollBack, &[], loc)
}

/// The same for a run that has taken cells.
pub(crate) fn realize_holding(
    tensors: &[&Tensor],
    held: &[Busy],
    loc: &'static Location<'static>,
) -> Result<()> {
    realize_with(tensors, OnFailure::RollBack, held, loc)
}

/// What becomes of pending assignments when the run that would commit them fails.
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum OnFailure {
    /// Cells return to their last computed values.
    RollBack,
    /// They stay pending: nobody asked for the values that failed.
    Keep,
}

pub(crate) fn realize_with(
    tensors: &[&Tensor],
    on_failure: OnFailure,
    held: &[Busy],
    loc: &'static Location<'static>,
) -> Result<()> {
    forbid_while_compiling(loc)?;
    for t in tensors {
        t.check()?;
    }
    check_process("read", loc)?;
    // One program runs on one device.
    let mut devices: SmallVec<[Device; 2]> = SmallVec::new();
    for t in tensors {
        if !devices.contains(&t.device()) {
            devices.push(t.device());
        }
    }
    devices
        .iter()
        .try_for_each(|device| realize_on(*device, tensors, on_failure, held, loc))
}

/// Computes the values of those that are on a device.
fn realize_on(
    device: Device,
    tensors: &[&Tensor],
    on_failure: OnFailure,
    held: &[Busy],
    loc: &'static Location<'static>,
) -> Result<()> {
    let lazy = || -> Vec<Tensor> {
        let lazy = tensors
            .iter()
            .filter(|t| t.device() == device && !t.is_realized());
        lazy.map(|t| (*t).clone()).collect()
    };
    loop {
        let targets = lazy();
        if targets.is_empty() {
            return Ok(());
        }
        // What has one element may be a loss, whose gradients are asked for next. Derivatives may read
        // cells, so whoever has taken some leaves that alone.
        let losses = targets.iter().filter(|t| t.fact().numel().is(1));
        let losses = losses.filter(|_| held.is_empty());
        let saved = needed(&losses.collect::<Vec<_>>(), loc);
        let turns = turns::now();
        let pending = Pending::lock(&targets, device, held);
        // Another thread may have computed some meanwhile.
        let targets = lazy();
        if targets.is_empty() {
            return Ok(());
        }
        match Run::gathered(device, targets, saved, pending, on_failure) {
            Ok(mut run) => {
                run.keep_held();
                return run.run(loc);
            }
            // Another thread is writing over a value that this one needs, and computes what depends
            // on it in the same run.
            Err(Missing::Donated) if turns.wait() => {}
            Err(e @ Missing::Donated) => return Err(e.into()),
            Err(Missing::Error(e)) => return Err(e),
        }
    }
}

/// The values of a tensor on the host, computed if need be.
pub(crate) fn read(t: &Tensor, loc: &'static Location<'static>) -> Result<Buffer> {
    let buffer = value(t, loc)?;
    if buffer.gpu().is_none() {
        return Ok(buffer);
    }
    let host = buffer.to_host();
    host.map_err(|e| Error::new(ErrorKind::Device, "read", e.to_string(), Loc::from(loc)))
}

/// The values of a tensor where they are, computed if need be.
pub(crate) fn value(t: &Tensor, loc: &'static Location<'static>) -> Result<Buffer> {
    t.check()?;
    forbid_while_compiling(loc)?;
    realize_at(&[t], loc)?;
    let found = t.node.ready(t.output).ok_or_else(|| {
        Error::new(
            ErrorKind::Internal,
            "read",
            "a run did not give the value",
            loc,
        )
    })?;
    outcome::settle(&found)?;
    Ok(found)
}

impl Tensor {
    /// Waits for what may still be wrong with a computed value.
    pub(crate) fn settled(&self) -> Result<()> {
        let found = self.node.ready(self.output);
        found.map_or(Ok(()), |found| outcome::settle(&found))
    }
}

/// Errs in a process that was forked where it can't go on.
pub(crate) fn check_process(op: &str, loc: &'static Location<'static>) -> Result<()> {
    fork::check().map_err(|e| Error::new(ErrorKind::Unsupported, op, e.to_string(), loc))
}

fn forbid_while_compiling(loc: &'static Location<'static>) -> Result<()> {
    if scope::is_recording() {
        return Err(Error::new(
            ErrorKind::ReadWhileCompiling,
            "compile",
            "a value can't be read while recording: it is not known yet, and baking one example in \
             would be wrong for the next run; return the tensor instead",
            loc,
        ));
    }
    Ok(())
}

/// What the compiler did, or would do, for these tensors: passes, groups, kernels, memory.
///
/// # Errors
/// The first invalid operation, or what the engine can't run.
#[track_caller]
pub fn explain(tensors: &[&Tensor]) -> Result<String> {
    let loc = Location::caller();
    forbid_while_compiling(loc)?;
    let mut gather = Gather::default();
    let mut outputs = Vec::new();
    for t in tensors {
        outputs.push(Output {
            value: gather.add(t.check()?)?,
            target: Target::Result,
        });
    }
    let cache = cache(gather.device());
    let recording = gather.recording(outputs);
    let fit = cache.get(&recording);
    let fit = fit.map_err(|e| compile_error(e, &gather, loc))?;
    let mut text = fit.found.explain.to_string();
    let reasons = cache.reasons(&recording);
    if reasons.len() > 1 {
        text += &format!("plans for this structure: {}\n", reasons.len());
        for reason in reasons {
            text += &format!("  {reason}\n");
        }
    }
    Ok(text)
}

/// The pending assignments of the recordings being read, their cells locked.
struct Pending {
    roots: Vec<Recording>,
    cells: Vec<(Busy, Tensor)>,
}

impl Pending {
    /// Takes the cells that were assigned a value of the recordings of these tensors. Who has taken some
    /// before, `held`, does not wait for the others: those that are not free stay pending.
    fn lock(targets: &[Tensor], device: Device, held: &[Busy]) -> Pending {
        let mut known: HashSet<usize> = HashSet::new();
        let mut roots: Vec<Recording> = targets.iter().filter_map(recording_of).collect();
        roots.retain(|root| known.insert(root.address()));
        let mut cells: Vec<_> = roots.iter().flat_map(Recording::pending).collect();
        // Those of other devices wait until something there is read.
        cells.retain(|c| c.leaf.device.get() == device);
        cells.sort_by_key(|c| c.id);
        cells.dedup_by_key(|c| c.id);
        let ours: HashMap<u64, &Busy> = held.iter().map(|b| (b.cell().id, b)).collect();
        let take = |cell: &Arc<Cell>| match ours.get(&cell.id) {
            Some(ours) => Some(Busy::clone(ours)),
            None if held.is_empty() => Some(cell.acquire()),
            None => cell.try_acquire(),
        };
        let locked: Vec<Busy> = cells.iter().filter_map(take).collect();
        // Cells that were assigned something else since are left alone. Recordings may have been joined.
        let joined: HashSet<usize> = roots.iter().map(|r| r.root().address()).collect();
        let belongs = |t: &Tensor| recording_of(t).is_some_and(|r| joined.contains(&r.address()));
        let mut stale = Vec::new();
        let mut kept = Vec::new();
        for busy in locked {
            let value = busy.state().current.clone();
            match !value.is_realized() && belongs(&value) {
                true => kept.push((busy, value)),
                false => stale.push(busy),
            }
        }
        // They stay taken until they are forgotten, so that what they are assigned next is not.
        let cells = stale.iter().map(|b| b.cell().id).collect();
        for root in &roots {
            root.committed(&cells);
        }
        Pending { roots, cells: kept }
    }

    /// Forgets the assignments: they are committed, or rolled back.
    fn settle(&mut self) {
        let cells = self.cells.iter().map(|(b, _)| b.cell().id).collect();
        for root in &self.roots {
            root.committed(&cells);
        }
        self.cells.clear();
    }
}

/// Whether an op costs little beside reading its operands.
pub(crate) fn is_cheap(op: &Op) -> bool {
    op.is_view()
        || matches!(
            op,
            Op::Pointwise(_) | Op::Cast(_) | Op::Pad(_) | Op::Concat(_) | Op::BatchNorm(_)
        )
        || matches!(
            op,
            Op::Full(_) | Op::Constant(_) | Op::Iota(_) | Op::Numel(_) | Op::Random(_)
        )
}

fn is_product(op: &Op) -> bool {
    matches!(
        op,
        Op::MatMul(_) | Op::Conv(_) | Op::ConvTranspose(_) | Op::ConvWeight(_)
    )
}

/// The recording that an unrealised tensor belongs to.
pub(crate) fn recording_of(t: &Tensor) -> Option<Recording> {
    match &*t.node.state() {
        State::Lazy { recording, .. } => recording.as_ref().map(Recording::root),
        _ => None,
    }
}

/// One program run for its values.
struct Run {
    device: Device,
    gather: Gather,
    targets: Vec<Tensor>,
    pending: Pending,
    on_failure: OnFailure,
    outputs: Vec<Output>,
    /// The values among them.
    asked: HashSet<Value>,
    /// For each pending assignment its old value's input, if the run may write over it.
    donors: Vec<Option<usize>>,
}

impl Run {
    /// Gathers a program. `saved` is what a later backward pass needs.
    fn gathered(
        device: Device,
        targets: Vec<Tensor>,
        saved: Vec<Needed>,
        pending: Pending,
        on_failure: OnFailure,
    ) -> Result<Run, Missing> {
        let mut gather = Gather::default();
        let values = pending.cells.iter().map(|(_, t)| gather.add(t));
        let pending_values = values.collect::<Result<Vec<Value>, Missing>>()?;
        let values = targets.iter().map(|t| gather.add(t));
        let target_values = values.collect::<Result<Vec<Value>, Missing>>()?;
        if let Some(source) = gather.inputs.iter().find(|s| s.buffer.is_none()) {
            return Err(Missing::Error(leaked(&gather.entries[source.entry].node)));
        }
        let mut run = Run {
            device,
            gather,
            targets,
            pending,
            on_failure,
            outputs: Vec::new(),
            asked: HashSet::new(),
            donors: Vec::new(),
        };
        run.assignments(&pending_values);
        for value in target_values {
            run.ask(value, Target::Result);
        }
        run.keep_costly(saved);
        Ok(run)
    }

    /// Asks for what is costly behind these values, and for those that are compared: from that, a backward pass
    /// computes the rest again.
    fn keep_costly(&mut self, saved: Vec<Needed>) {
        let entries = &self.gather.entries;
        let mut is_read = vec![false; entries.len()];
        for entry in entries.iter().filter(|e| is_product(&e.node.op)) {
            for v in self.gather.operands(entry) {
                is_read[v.node.index()] = true;
            }
        }
        let mut seen = vec![false; entries.len()];
        let find = |n: &Needed| Some((self.gather.find(&n.value)?, n.compared));
        let saved: Vec<(Value, bool)> = saved.iter().filter_map(find).collect();
        let mut stack: Vec<Value> = saved.iter().map(|(v, _)| *v).collect();
        let compared = saved.iter().filter(|(_, compared)| *compared);
        let mut costly: Vec<Value> = compared
            .map(|(v, _)| *v)
            .filter(|v| !entries[v.node.index()].is_input)
            .collect();
        while let Some(v) = stack.pop() {
            let at = v.node.index();
            if entries[at].is_input {
                continue;
            }
            // The operands of products are written anyway.
            if is_read[at] || !is_cheap(&entries[at].node.op) {
                costly.push(v);
            } else if !std::mem::replace(&mut seen[at], true) {
                stack.extend(self.gather.operands(&entries[at]));
            }
        }
        for v in costly {
            self.ask(v, Target::Result);
        }
    }

    /// Asks for a value once.
    fn ask(&mut self, value: Value, target: Target) {
        if self.asked.insert(value) {
            self.outputs.push(Output { value, target });
        }
    }

    fn assignments(&mut self, values: &[Value]) {
        let inputs = self.gather.inputs.iter().enumerate();
        let inputs: HashMap<usize, usize> = inputs.map(|(i, s)| (s.entry, i)).collect();
        for (i, value) in values.iter().enumerate() {
            let old = self.pending.cells[i].0.state().realized.clone();
            let old = old.and_then(|old| self.gather.find(&old.operand()));
            let input = old.and_then(|old| inputs.get(&old.node.index()).copied());
            let target = input.map_or(Target::Result, |i| Target::Assign(i as u32));
            self.asked.insert(*value);
            self.outputs.push(Output {
                value: *value,
                target,
            });
            self.donors.push(input);
        }
    }

    /// Held intermediates come along: where the old value of a cell may be overwritten those that
    /// depend on it must, the others if the plan writes them anyway.
    fn keep_held(&mut self) {
        // References are counted while no other run lets go of operands; see `turns`.
        let still = self.donors.iter().any(Option::is_some).then(turns::still);
        let mut from_donor = vec![false; self.gather.entries.len()];
        for input in self.donors.iter().flatten() {
            from_donor[self.gather.inputs[*input].entry] = true;
        }
        let mut edges = vec![0usize; self.gather.entries.len()];
        let mut held = Vec::new();
        for (i, entry) in self.gather.entries.iter().enumerate() {
            // One that another run computed meanwhile has let go of its operands.
            let is_lazy = still.is_none() || matches!(*entry.node.state(), State::Lazy { .. });
            for v in self.gather.operands(entry) {
                edges[v.node.index()] += is_lazy as usize;
                from_donor[i] |= from_donor[v.node.index()];
            }
            let wanted = |n: &std::sync::atomic::AtomicUsize| n.load(Ordering::Acquire) > 0;
            if !entry.is_input && (wanted(&entry.node.handles) || wanted(&entry.node.saved)) {
                held.push((i, entry.node.facts.len(), from_donor[i]));
            }
        }
        for (i, facts, must) in held {
            for output in 0..facts as u32 {
                let value = Value {
                    node: kiln_ir::NodeId(i as u32),
                    output,
                };
                self.ask(value, if must { Target::Result } else { Target::Kept });
            }
        }
        if still.is_some() {
            self.keep_reachable(&from_donor, &edges);
        }
    }

    /// Writes over no old value that somebody else may still need. `edges` counts the operands that refer
    /// to each entry.
    fn keep_reachable(&mut self, from_donor: &[bool], edges: &[usize]) {
        let entries = &self.gather.entries;
        // Whatever depends on an old value and is not computed now, in all its outputs, must be out of
        // everybody's reach: referenced by nothing but this program.
        let reachable = (0..entries.len()).any(|i| {
            let (entry, node) = (&entries[i], kiln_ir::NodeId(i as u32));
            let outputs = 0..entry.node.facts.len() as u32;
            let computed = || outputs.map(|output| Value { node, output });
            from_donor[i]
                && !entry.is_input
                && Arc::strong_count(&entry.node) != edges[i] + 1
                && !computed().all(|value| self.asked.contains(&value))
        });
        for donor in &mut self.donors {
            let Some(input) = *donor else {
                continue;
            };
            let at = self.gather.inputs[input].entry;
            let node = &self.gather.entries[at].node;
            // The cell holds one handle; the recording holds its edges; this program one reference.
            let only_ours = node.handles.load(Ordering::Acquire) == 1
                && Arc::strong_count(node) == edges[at] + 2;
            if reachable || !only_ours {
                *donor = None;
            }
        }
    }

    fn run(mut self, loc: &'static Location<'static>) -> Result<()> {
        // Values of an earlier run that failed: nothing is computed from them.
        let mut given = self.gather.inputs.iter().filter_map(|s| s.buffer.as_ref());
        let settled = given.try_for_each(outcome::settle);
        if settled.is_err() {
            self.roll_back();
            return settled;
        }
        let recording = self.gather.recording(self.outputs.clone());
        let fit = match cache(self.device).get(&recording) {
            Ok(fit) => fit,
            Err(e) => {
                drop(recording);
                self.roll_back();
                return Err(compile_error(e, &self.gather, loc));
            }
        };
        let numbers = recording.nodes.iter().filter_map(|n| match n.op {
            Op::Full(f) => Some((f.value, f.dtype)),
            _ => None,
        });
        let numbers: Vec<(Scalar, DType)> = numbers.collect();
        let graph = anomaly::is_anomaly_enabled().then(|| recording.to_graph());
        drop(recording);
        if let Some(graph) = graph
            && let Err(e) = self.look_for_anomalies(graph, loc)
        {
            self.roll_back();
            return Err(e);
        }
        let found = fit.found.clone();
        let result = self.execute(&fit, &numbers, loc);
        match result {
            Ok((values, left, donated)) => {
                self.store(&found, values, left);
                drop(donated);
                if let Some(reason) = &fit.compiled {
                    warning::compiled(loc, reason);
                }
                Ok(())
            }
            Err(e) => {
                self.roll_back();
                Err(run_error(e, &self.gather, loc))
            }
        }
    }

    /// The error of the first operation that makes a NaN or an infinity, if one does.
    fn look_for_anomalies(
        &self,
        graph: Result<kiln_ir::Graph, kiln_ir::OpError>,
        loc: &'static Location<'static>,
    ) -> Result<()> {
        let wrong = |e: RunError| run_error(e, &self.gather, loc);
        let graph = graph.map_err(|e| wrong(RunError::Internal(e.to_string())))?;
        let known = self.gather.inputs.iter().filter_map(|s| s.buffer.clone());
        let inputs = known
            .map(|b| self.device.bring(b))
            .collect::<Result<Vec<_>, _>>();
        let inputs = inputs.map_err(wrong)?;
        anomaly::check(&self.gather, graph, self.device.ordinal(), &inputs, loc)
    }

    /// The values, what is left of the inputs, and which of these were written over.
    fn execute(
        &mut self,
        fit: &Fit,
        numbers: &[(Scalar, DType)],
        loc: &'static Location<'static>,
    ) -> Result<(Vec<Buffer>, Vec<Buffer>, Donated), RunError> {
        let mut inputs: Vec<Buffer> = Vec::with_capacity(self.gather.inputs.len());
        let mut donate = Vec::with_capacity(self.gather.inputs.len());
        let mut donated = Donated::default();
        let given: HashSet<usize> = self.donors.iter().copied().flatten().collect();
        let found = &fit.found;
        let result = (|| {
            for (i, source) in self.gather.inputs.iter_mut().enumerate() {
                let missing = || RunError::Internal("an input has no value".to_string());
                inputs.push(source.buffer.take().ok_or_else(missing)?);
                donate.push(given.contains(&i));
                if donate[i] {
                    // From here on the buffer lives in `inputs` alone.
                    donated.mark(i, &self.gather.entries[source.entry].node);
                }
            }
            for &at in &found.scalars {
                let (value, dtype) = numbers[at];
                inputs.push(number_buffer(value, dtype)?);
            }
            for &extent in &fit.extents {
                inputs.push(Buffer::from_slice::<u8>(&[], &[0, extent])?);
            }
            donate.resize(inputs.len(), false);
            self.bring(found, &mut inputs)?;
            let (executable, explain) = (&found.executable, &found.explain);
            profiler::watched(executable, explain, &mut inputs, loc, |inputs| {
                executable.run(inputs, &donate)
            })
        })();
        match result {
            Ok(values) => Ok((values, inputs, donated)),
            Err(e) => {
                donated.give_back(&inputs);
                Err(e)
            }
        }
    }

    /// Data that belongs to no device follows the program; numbers and random keys go with the run.
    fn bring(&self, found: &Found, inputs: &mut [Buffer]) -> Result<(), RunError> {
        let roles = found.executable.plan().inputs.iter().map(|i| i.role);
        inputs.iter_mut().zip(roles).try_for_each(|(buffer, role)| {
            let small = buffer.shape().is_empty() || role == Role::RandomKey;
            if small && buffer.gpu().is_none() {
                return Ok(());
            }
            if buffer.gpu().map(|gpu| gpu.ordinal()) != self.device.ordinal() {
                *buffer = self.device.bring(buffer.clone())?;
            }
            Ok(())
        })
    }

    /// Gives every value to its node, and the assigned ones to their cells. `left` are the inputs, those
    /// whose memory was taken without elements.
    fn store(&mut self, found: &Found, values: Vec<Buffer>, left: Vec<Buffer>) {
        // Dropping operands may drop long chains: once the lock is free.
        let mut released = Vec::new();
        let still = turns::still();
        for (output, position) in self.outputs.iter().zip(&found.outputs) {
            let Some(position) = position else { continue };
            let entry = &self.gather.entries[output.value.node.index()];
            let buffer = values[*position].clone();
            released.extend(keep_value(&entry.node, output.value.output, buffer));
        }
        drop(still);
        drop(released);
        let mut storing = Storing::new(&values);
        for (i, (busy, value)) in self.pending.cells.iter().enumerate() {
            if let Some(position) = found.outputs[i] {
                let left = self.donors[i].map(|input| &left[input]);
                storing.give(busy, position, left, value.node.loc);
            }
        }
        storing.finish(&found.executable.plan().sites, &self.gather);
        self.pending.settle();
        self.targets.clear();
    }

    /// Cells return to their last computed values, unless they stay pending.
    fn roll_back(&mut self) {
        if self.on_failure == OnFailure::Keep {
            return;
        }
        for (busy, _) in &self.pending.cells {
            let mut state = busy.state();
            if let Some(old) = state.realized.clone() {
                state.current = old;
            }
        }
        self.pending.settle();
    }
}

/// Makes a value of a node available; a node whose values all are there lets go of its operands, which are
/// in the state that is given back.
fn keep_value(node: &Node, output: u32, buffer: Buffer) -> Option<State> {
    let mut state = node.state();
    let State::Lazy { kept, .. } = &mut *state else {
        return None;
    };
    kept.resize(node.facts.len(), None);
    kept[output as usize] = Some(buffer);
    if !kept.iter().all(Option::is_some) {
        return None;
    }
    let values = kept.drain(..).flatten().collect();
    Some(std::mem::replace(&mut *state, State::Ready(values)))
}

/// A rank-0 buffer that holds a number.
fn number_buffer(value: Scalar, dtype: DType) -> Result<Buffer, RunError> {
    use half::{bf16, f16};
    let (f, i) = (value.as_f64(), value.cast(dtype).as_i64());
    match dtype {
        DType::Bool => Buffer::from_slice(&[value.as_bool()], &[]),
        DType::U8 => Buffer::from_slice(&[i as u8], &[]),
        DType::I8 => Buffer::from_slice(&[i as i8], &[]),
        DType::I16 => Buffer::from_slice(&[i as i16], &[]),
        DType::I32 => Buffer::from_slice(&[i as i32], &[]),
        DType::I64 => Buffer::from_slice(&[i], &[]),
        DType::U16 => Buffer::from_slice(&[i as u16], &[]),
        DType::U32 => Buffer::from_slice(&[i as u32], &[]),
        DType::U64 => Buffer::from_slice(&[i as u64], &[]),
        DType::F16 => Buffer::from_slice(&[f16::from_f64(f)], &[]),
        DType::BF16 => Buffer::from_slice(&[bf16::from_f64(f)], &[]),
        DType::F32 => Buffer::from_slice(&[f as f32], &[]),
        DType::F64 => Buffer::from_slice(&[f], &[]),
    }
}

/// What the compiler refused, at the line of the op it can't do.
pub(crate) fn compile_error(
    e: CompileError,
    gather: &Gather,
    loc: &'static Location<'static>,
) -> Error {
    match e {
        CompileError::Unsupported { at, message } => {
            let at = at.map_or(Loc::from(loc), |at| gather.loc(at));
            Error::new(ErrorKind::Unsupported, "compile", message, at)
        }
        CompileError::Custom { at, op, text } => {
            Error::new(ErrorKind::Data, &op, text, gather.loc(at))
        }
        CompileError::Device(text) => Error::new(ErrorKind::Device, "compile", text, loc),
        CompileError::Environment(text) => Error::new(ErrorKind::Value, "compile", text, loc),
        CompileError::Dump(text) => Error::new(ErrorKind::Io, "compile", text, loc),
        CompileError::Memory(text) => Error::new(ErrorKind::Memory, "compile", text, loc),
        e => Error::new(ErrorKind::Internal, "compile", e.to_string(), loc),
    }
}

/// What went wrong in a run, at the line of the op for data errors.
pub(crate) fn run_error(e: RunError, gather: &Gather, loc: &'static Location<'static>) -> Error {
    run_error_with(e, gather, loc, &|_| None)
}

/// [`run_error`] of a run in which placeholders had values.
pub(crate) fn run_error_with(
    e: RunError,
    gather: &Gather,
    loc: &'static Location<'static>,
    given: &dyn Fn(&Arc<Node>) -> Option<Buffer>,
) -> Error {
    let text = e.to_string();
    match e {
        RunError::Data { node, .. } => {
            let node = node as usize;
            let error = outcome::data_error(&e, gather.called(node), gather.loc(node));
            match gather.about(node) {
                Some(about) => about.complete(error, &e, about.argument(), given),
                None => error,
            }
        }
        RunError::Custom { node, op, text } => {
            Error::new(ErrorKind::Data, &op, text, gather.loc(node as usize))
        }
        RunError::Cancelled => Error::new(ErrorKind::Cancelled, "run", text, loc),
        RunError::Forked => Error::new(ErrorKind::Unsupported, "run", text, loc),
        RunError::Cuda(_) => Error::new(ErrorKind::Device, "run", text, loc),
        RunError::OutOfMemory { .. } => Error::new(ErrorKind::Memory, "run", text, loc),
        RunError::InputShape { .. }
        | RunError::InputDType { .. }
        | RunError::InputCount { .. }
        | RunError::Symbol { .. } => Error::new(ErrorKind::Value, "run", text, loc),
        _ => Error::new(ErrorKind::Internal, "run", text, loc),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Var;

    fn gathered(t: &Tensor) -> Run {
        let targets = vec![t.clone()];
        let pending = Pending::lock(&targets, Device::Cpu, &[]);
        let run = Run::gathered(Device::Cpu, targets, vec![], pending, OnFailure::RollBack);
        run.unwrap_or_else(|e| panic!("{}", Error::from(e)))
    }

    #[test]
    fn operands_that_another_run_released_hide_nobody() {
        let loc = Location::caller();
        let v = Var::new(Tensor::from([1.0f32, 2.0])).unwrap();
        let (m, other) = (v.get() * 2.0, v.get() * 3.0);
        // What one thread is about to compute, another makes the cell's next value depend on. One reference
        // to the old value goes and one is left, outside of this run.
        let mut early = gathered(&m);
        v.assign(&(&m + 1.0)).unwrap();
        let mut late = gathered(&v.get());
        assert_eq!(late.donors, [Some(0)]);
        early.keep_held();
        early.run(loc).unwrap();
        late.keep_held();
        assert_eq!(late.donors, [None]);
        late.run(loc).unwrap();
        assert_eq!(other.to_vec::<f32>().unwrap(), [3.0, 6.0]);
        assert_eq!(v.get().to_vec::<f32>().unwrap(), [3.0, 5.0]);
    }

    #[test]
    fn a_value_that_is_lost_is_an_error() {
        let v = Tensor::from([1.0f32, 2.0]);
        let y = &v * 2.0;
        Donated::default().mark(0, &v.node);
        let e = y.to_vec::<f32>().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal, "{e}");
    }
}
