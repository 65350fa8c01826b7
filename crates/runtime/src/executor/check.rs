//! Checks of a plan that need no sizes, and checks of the inputs.
//!
//! A plan that passes has:
//! * ids of buffers, kernels, sites, arguments and symbols that exist;
//! * inputs, outputs and constants whose buffers have the right allocation and dtype;
//! * steps whose arguments have the dtypes of their kernel, that write only arguments they may write, and that
//!   read only arguments written by an earlier step (or the caller, or the plan);
//! * guards that are one bool or i32, on steps that write nothing but outputs with a donor;
//! * no product by a library in a body, or that writes an output with a donor, since it can't be left out;
//! * prepare steps that depend on parameters only;
//! * in-place chains that end in a temporary.

use super::guard;
use crate::buffer::Buffer;
use kiln_base::{DType, Dim, Sym};
use kiln_cpu::check_supported;
use kiln_kernel::error::{Error, Result, damaged};
use kiln_kernel::memory::{Category, Holder, Storage};
use kiln_plan::memory::roots;
use kiln_plan::{
    self as plan, Allocation, ArgUse, BufferId, Contract, Dims, Kernel, Output, Plan, Reads, Role,
    Step,
};
use smallvec::SmallVec;
use std::sync::Arc;

/// The results of checking.
#[derive(Debug)]
pub(super) struct Facts {
    /// The contract of each kernel.
    pub contracts: Vec<Contract>,
    /// For each buffer, the temporary whose memory it uses (itself, if it is one).
    pub root: Vec<usize>,
    /// True if *prepare* depends on symbols.
    pub prepare_is_symbolic: bool,
    /// The symbols that each kernel uses.
    pub kernel_symbols: Vec<Vec<bool>>,
    /// The symbols that the lengths of buffers and the shapes of outputs use.
    pub size_symbols: Vec<bool>,
    /// For each output, the donor whose memory it may safely reuse.
    pub donors: Vec<Option<usize>>,
    /// For each buffer, true if its contents are invalid after a run with a data error.
    pub invalid_after_error: Vec<bool>,
    /// For each buffer the input whose contents it begins with, since a guarded step writes it.
    pub initial_inputs: Vec<Option<usize>>,
}

pub(super) fn check(plan: &Plan) -> Result<Facts> {
    check_within(plan, plan::MAX_DEPTH)
}

/// Checks a plan in which bodies may nest `depth` deep.
fn check_within(plan: &Plan, depth: usize) -> Result<Facts> {
    symbols(plan)?;
    allocations(plan)?;
    // Each body is checked once, also if several steps call it.
    for body in plan.kernels.iter().flat_map(|k| k.bodies()) {
        let depth_left = depth.checked_sub(1);
        let depth_left = depth_left
            .ok_or_else(|| damaged!("bodies are nested more than {} deep", plan::MAX_DEPTH))?;
        check_body(body, depth_left)?;
    }
    let contract = |kernel: &Arc<Kernel>| {
        check_supported(kernel)?;
        kernel.contract().map_err(|e| damaged!("{e}"))
    };
    let contracts = plan.kernels.iter().map(contract);
    let contracts: Vec<Contract> = contracts.collect::<Result<_>>()?;
    let root = roots(plan).map_err(|e| damaged!("{e}"))?;
    if plan.commit as usize > plan.run.len() {
        return Err(damaged!(
            "commit at step {} of {}",
            plan.commit,
            plan.run.len()
        ));
    }
    let mut written: Vec<bool> = plan.buffers.iter().map(|_| false).collect();
    for c in &plan.constants {
        written[c.buffer.0 as usize] = true;
    }
    for i in plan.inputs.iter().filter(|i| i.role == Role::Parameter) {
        written[i.buffer.0 as usize] = true;
    }
    for step in &plan.prepare {
        check_step(plan, &contracts, step, &mut written, true)?;
    }
    for (b, w) in plan.buffers.iter().zip(&mut written) {
        // Temporaries of prepare are gone when the run begins.
        *w &= !matches!(b.allocation, Allocation::Temporary | Allocation::InPlace(_));
    }
    for i in &plan.inputs {
        written[i.buffer.0 as usize] = true;
    }
    for step in &plan.run {
        check_step(plan, &contracts, step, &mut written, false)?;
    }
    for (i, o) in plan.outputs.iter().enumerate() {
        if !written[o.buffer.0 as usize] {
            return Err(damaged!("output {i} is never written"));
        }
    }
    Ok(Facts {
        invalid_after_error: invalid_after_error(plan, &contracts, &root),
        root,
        prepare_is_symbolic: prepare_is_symbolic(plan),
        donors: donors(plan, &contracts),
        initial_inputs: guard::initial_inputs(plan, &contracts),
        kernel_symbols: kernel_symbols(plan),
        size_symbols: size_symbols(plan),
        contracts,
    })
}

/// Checks a plan that is a body, in which others may nest `depth` deep.
fn check_body(plan: &Plan, depth: usize) -> Result<()> {
    let has_own_buffer = |o: &Output| {
        let same_buffer = plan.outputs.iter().filter(|p| p.buffer == o.buffer);
        let allocation = plan.buffers.get(o.buffer.0 as usize).map(|b| b.allocation);
        allocation == Some(Allocation::Output) && same_buffer.count() == 1
    };
    let is_prepared = |b: &plan::Buffer| b.allocation == Allocation::Prepared;
    let is_parameter = |i: &plan::Input| i.role == Role::Parameter;
    let is_plain = plan.symbols.is_empty()
        && plan.prepare.is_empty()
        && !plan.buffers.iter().any(is_prepared)
        && !plan.inputs.iter().any(is_parameter);
    if plan.has_library_kernels() {
        return Err(damaged!("a body with a kernel of a library"));
    }
    match is_plain && plan.outputs.iter().all(has_own_buffer) {
        true => check_within(plan, depth).map(|_| ()),
        false => Err(damaged!(
            "a body with symbols, parameters or shared outputs"
        )),
    }
}

fn symbols(plan: &Plan) -> Result<()> {
    for (s, symbol) in plan.symbols.iter().enumerate() {
        let dim = plan.inputs.get(symbol.input as usize);
        let dim = dim.and_then(|i| i.shape.get(symbol.axis as usize));
        if dim != Some(&Plan::symbol(s)) {
            return Err(damaged!("symbol {} has no input dim", symbol.name));
        }
    }
    Ok(())
}

fn buffer(plan: &Plan, id: BufferId) -> Result<&kiln_plan::Buffer> {
    let b = plan.buffers.get(id.0 as usize);
    b.ok_or_else(|| damaged!("no buffer {}", id.0))
}

fn allocations(plan: &Plan) -> Result<()> {
    let mut owned = vec![false; plan.buffers.len()];
    let mut claim = |name: &str, id: BufferId, dtype: DType, allocation: Allocation| {
        let b = buffer(plan, id)?;
        if b.dtype != dtype || b.allocation != allocation {
            return Err(damaged!(
                "{name} is in a buffer of dtype {} and allocation {:?}",
                b.dtype,
                b.allocation
            ));
        }
        if std::mem::replace(&mut owned[id.0 as usize], true) {
            return Err(damaged!("{name} shares its buffer"));
        }
        Ok(())
    };
    for (i, input) in plan.inputs.iter().enumerate() {
        claim(
            &format!("input {i}"),
            input.buffer,
            input.dtype,
            Allocation::Input,
        )?;
    }
    for c in &plan.constants {
        claim("a constant", c.buffer, c.dtype, Allocation::Constant)?;
    }
    for (i, o) in plan.outputs.iter().enumerate() {
        let b = buffer(plan, o.buffer)?;
        let is_temporary = matches!(b.allocation, Allocation::Temporary | Allocation::InPlace(_));
        if b.dtype != o.dtype || is_temporary {
            return Err(damaged!(
                "output {i} is in a buffer of dtype {} and allocation {:?}",
                b.dtype,
                b.allocation
            ));
        }
    }
    for o in &plan.outputs {
        owned[o.buffer.0 as usize] = true;
    }
    for (b, owned) in plan.buffers.iter().zip(owned) {
        if matches!(
            b.allocation,
            Allocation::Input | Allocation::Constant | Allocation::Output
        ) && !owned
        {
            return Err(damaged!(
                "a buffer of allocation {:?} is not an input, constant or output",
                b.allocation
            ));
        }
    }
    Ok(())
}

fn check_step(
    plan: &Plan,
    contracts: &[Contract],
    step: &Step,
    written: &mut [bool],
    is_prepare: bool,
) -> Result<()> {
    let contract = contracts.get(step.kernel as usize);
    let contract = contract.ok_or_else(|| damaged!("no kernel {}", step.kernel))?;
    let name = plan.kernels[step.kernel as usize].name();
    for id in step.touched() {
        buffer(plan, id)?;
    }
    let dtypes = step.args.iter().map(|id| plan.buffers[id.0 as usize].dtype);
    if !dtypes.eq(contract.args.iter().map(|a| a.dtype)) {
        return Err(damaged!(
            "{name} is called with other arguments than it takes: their number or dtypes differ"
        ));
    }
    if contract.sites as usize > step.sites.len()
        || step.sites.iter().any(|s| *s as usize >= plan.sites.len())
    {
        return Err(damaged!("a step of {name} lacks sites of its data errors"));
    }
    for (id, arg) in step.args.iter().zip(&contract.args) {
        let at = id.0 as usize;
        // A kernel may read back the elements that it has written itself.
        if arg.is_read() && !arg.writes && !written[at] {
            return Err(damaged!("{name} reads buffer {at} before it is written"));
        }
        let may_write = match plan.buffers[at].allocation {
            Allocation::Input | Allocation::Constant => false,
            Allocation::Prepared => is_prepare,
            Allocation::Output => !is_prepare,
            Allocation::Temporary | Allocation::InPlace(_) => true,
        };
        if arg.writes && !may_write {
            let allocation = plan.buffers[at].allocation;
            return Err(damaged!(
                "{name} writes a buffer of allocation {allocation:?}"
            ));
        }
    }
    guard::check(plan, contract, step, written)?;
    let is_donated = |id: &BufferId| {
        let mut outputs = plan.outputs.iter();
        outputs.any(|o| o.buffer == *id && o.donor.is_some())
    };
    let by_library = matches!(*plan.kernels[step.kernel as usize], Kernel::Library(_));
    if by_library && step.args.iter().any(is_donated) {
        return Err(damaged!("{name} writes over an input"));
    }
    for (id, arg) in step.args.iter().zip(&contract.args) {
        written[id.0 as usize] |= arg.writes;
    }
    Ok(())
}

/// The buffers that depend on a step that can fail, and those written from `commit` on if any step can.
fn invalid_after_error(plan: &Plan, contracts: &[Contract], root: &[usize]) -> Vec<bool> {
    let mut invalid_after_error = vec![false; root.len()];
    let fallible = plan.run.iter().any(|s| !s.sites.is_empty());
    for (i, step) in plan.run.iter().enumerate().filter(|_| fallible) {
        let root_of = |id: &BufferId| root[id.0 as usize];
        let invalidates = !step.sites.is_empty()
            || i >= plan.commit as usize
            || step.touched().any(|id| invalid_after_error[root_of(&id)]);
        for (id, arg) in step.args.iter().zip(&contracts[step.kernel as usize].args) {
            invalid_after_error[root_of(id)] |= invalidates && arg.writes;
        }
    }
    root.iter().map(|r| invalid_after_error[*r]).collect()
}

/// True if any size that *prepare* uses is symbolic: extents, offsets or strides.
fn prepare_is_symbolic(plan: &Plan) -> bool {
    let symbolic = |d: &Dim| d.as_const().is_none();
    let buffer = |b: &kiln_plan::Buffer| b.allocation == Allocation::Prepared && symbolic(&b.len);
    let parameter =
        |i: &kiln_plan::Input| i.role == Role::Parameter && i.shape.iter().any(symbolic);
    let step = |s: &Step| {
        let kernel = &plan.kernels[s.kernel as usize];
        let buffer = |a: &BufferId| symbolic(&plan.buffers[a.0 as usize].len);
        !kernel.all_dims(&mut |d| !symbolic(d)) || s.args.iter().any(buffer)
    };
    let packed = |s: &Step| plan.kernels[s.kernel as usize].packs_by_symbols();
    !plan.symbols.is_empty()
        && (plan.run.iter().any(packed)
            || plan.buffers.iter().any(buffer)
            || plan.inputs.iter().any(parameter)
            || plan.prepare.iter().any(step))
}

/// Marks the plan's symbols that a dim uses.
fn mark(used: &mut [bool], d: &Dim) {
    for symbol in d.symbols() {
        if let Some(used) = used.get_mut(symbol.0 as usize) {
            *used = true;
        }
    }
}

/// The symbols that each kernel uses.
fn kernel_symbols(plan: &Plan) -> Vec<Vec<bool>> {
    let symbols_of = |kernel: &Arc<Kernel>| {
        let mut used = vec![false; plan.symbols.len()];
        // In a plan without symbols there is nothing to find.
        if !used.is_empty() {
            kernel.all_dims(&mut |d| {
                mark(&mut used, d);
                true
            });
        }
        used
    };
    plan.kernels.iter().map(symbols_of).collect()
}

/// The symbols that the lengths of buffers and the shapes of outputs use.
fn size_symbols(plan: &Plan) -> Vec<bool> {
    let mut used = vec![false; plan.symbols.len()];
    let outputs = plan.outputs.iter().flat_map(|o| &o.shape);
    let dims = plan.buffers.iter().map(|b| &b.len).chain(outputs);
    dims.for_each(|d| mark(&mut used, d));
    used
}

/// Returns the donor of each output whose memory can safely be reused: every step that writes the output comes after
/// `commit`, no step after the first of these can report a data error, and nothing reads the donor after that first
/// step.
fn donors(plan: &Plan, contracts: &[Contract]) -> Vec<Option<usize>> {
    // For each buffer, the first step that writes it, the last that touches it, and the number of outputs that it is.
    let mut first_write = vec![None; plan.buffers.len()];
    let mut last_touch = vec![None; plan.buffers.len()];
    for (i, step) in plan.run.iter().enumerate() {
        for id in step.touched() {
            last_touch[id.0 as usize] = Some(i);
        }
        for (id, arg) in step.args.iter().zip(&contracts[step.kernel as usize].args) {
            let buffer = id.0 as usize;
            if arg.writes && first_write[buffer].is_none() {
                first_write[buffer] = Some(i);
            }
        }
    }
    let mut outputs = vec![0; plan.buffers.len()];
    for o in &plan.outputs {
        outputs[o.buffer.0 as usize] += 1;
    }
    let fails = |s: &Step| !s.sites.is_empty();
    let safe = plan
        .run
        .iter()
        .rposition(fails)
        .map_or(0, |buffer| buffer + 1);
    let safe = safe.max(plan.commit as usize);
    let mut is_claimed = vec![false; plan.inputs.len()];
    let donor = |o: &Output| {
        let donor = o.donor? as usize;
        let input = plan.inputs.get(donor)?;
        let was_claimed = std::mem::replace(&mut is_claimed[donor], true);
        let (target, source) = (o.buffer.0 as usize, input.buffer.0 as usize);
        let is_shared = outputs[target] > 1 || outputs[source] > 0 || was_claimed;
        if is_shared || plan.buffers[target].allocation != Allocation::Output {
            return None;
        }
        let first = first_write[target].filter(|first| *first >= safe)?;
        let read_before = last_touch[source].is_none_or(|last| last < first);
        let reads_in_place = || {
            let step = &plan.run[first];
            let args = step.args.iter().zip(&contracts[step.kernel as usize].args);
            let reads_donor = |(id, _): &(&BufferId, &ArgUse)| **id == input.buffer;
            last_touch[source] == Some(first)
                && args
                    .filter(reads_donor)
                    .all(|(_, arg)| arg.reads <= Reads::First)
        };
        (read_before || reads_in_place()).then_some(donor)
    };
    plan.outputs.iter().map(donor).collect()
}

/// The constants as buffers.
pub(super) fn constants(plan: &Plan) -> Result<Vec<Buffer>> {
    let constant = |c: &kiln_plan::Constant| {
        let len = plan.buffers[c.buffer.0 as usize].len.as_const();
        let bytes = len.and_then(|l| l.checked_mul(c.dtype.size() as i64));
        if bytes != Some(c.bytes.len() as i64) {
            return Err(damaged!(
                "a constant has {} bytes, which its buffer does not",
                c.bytes.len()
            ));
        }
        if c.dtype == DType::Bool && c.bytes.iter().any(|b| *b > 1) {
            return Err(damaged!(
                "a bool constant has an element other than 0 and 1"
            ));
        }
        let mut storage = Storage::from_bytes(&c.bytes)?;
        storage.set_holder(Holder::named(Category::Caches, "constants of plans"));
        if cfg!(target_endian = "big") {
            for element in storage.bytes_mut().chunks_exact_mut(c.dtype.size()) {
                element.reverse();
            }
        }
        Ok(Buffer::new(c.dtype, &[len.unwrap_or(0)], Arc::new(storage)))
    };
    plan.constants.iter().map(constant).collect()
}

/// Checks the inputs against the plan, and returns the symbols' values.
pub(super) fn inputs(plan: &Plan, inputs: &[Buffer]) -> Result<SmallVec<[i64; 4]>> {
    if inputs.len() != plan.inputs.len() {
        return Err(Error::InputCount {
            expected: plan.inputs.len(),
            found: inputs.len(),
        });
    }
    for (i, (b, want)) in inputs.iter().zip(&plan.inputs).enumerate() {
        if b.dtype() != want.dtype {
            return Err(Error::InputDType {
                input: i,
                expected: want.dtype,
                found: b.dtype(),
            });
        }
        if b.shape().len() != want.shape.len() {
            return Err(shape_error(plan, i, b));
        }
    }
    let values: SmallVec<[i64; 4]> = (plan.symbols.iter())
        .map(|s| inputs[s.input as usize].shape()[s.axis as usize])
        .collect();
    for (s, value) in plan.symbols.iter().zip(&values) {
        if *value < s.min.max(2) {
            return Err(Error::Symbol {
                input: s.input as usize,
                name: s.name.clone(),
                value: *value,
                min: s.min.max(2),
            });
        }
    }
    for (i, (b, want)) in inputs.iter().zip(&plan.inputs).enumerate() {
        let has_size = |(d, w): (&i64, &Dim)| w.eval_checked(&values) == Some(*d);
        if !b.shape().iter().zip(&want.shape).all(has_size) {
            return Err(shape_error(plan, i, b));
        }
    }
    Ok(values)
}

/// Checks the plan's constraints on the symbols' values.
pub(super) fn constraints(plan: &Plan, values: &[i64]) -> Result<()> {
    for need in &plan.needs {
        let value = need.size.eval_checked(values);
        let value = value.ok_or_else(|| damaged!("a size overflows, or has an unknown symbol"))?;
        if value < 0 {
            let symbols = plan.symbols.iter().zip(values).enumerate();
            let symbols =
                symbols.filter(|(s, _)| need.size.symbols().any(|used| used.0 == *s as u32));
            let symbols = symbols.map(|(_, (s, value))| format!("{} = {value}", s.name));
            return Err(Error::Size {
                op: need.op.clone(),
                node: need.node,
                size: need.size.named(|s| name(plan, s)),
                value,
                symbols: symbols.collect::<Vec<_>>().join(", "),
            });
        }
    }
    Ok(())
}

fn name(plan: &Plan, symbol: Sym) -> Option<&str> {
    plan.symbols.get(symbol.0 as usize).map(|s| s.name.as_str())
}

fn shape_error(plan: &Plan, input: usize, input_buffer: &Buffer) -> Error {
    let dims = plan.inputs[input].shape.iter();
    let dims = dims.map(|d| d.named(|s| name(plan, s)));
    Error::InputShape {
        input,
        expected: dims.collect::<Vec<_>>().join(", "),
        found: input_buffer.shape().to_vec(),
    }
}
