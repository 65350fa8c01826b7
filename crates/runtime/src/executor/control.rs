//! Loops and branches: steps that run programs.

use super::binder::{Owner, Setting};
use super::bound::Bound;
use super::check;
use super::link::Link;
use super::loc::Loc;
use super::slices::Slices;
use crate::buffer::Buffer;
use kiln_cuda as cuda;
use kiln_cuda::Launch;
use kiln_kernel::affine::extent;
use kiln_kernel::calls::{Calls, LastCalls};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failure;
use kiln_kernel::memory::{ALIGN, Storage};
use kiln_kernel::work::{Call, Expand, LinkedKernel};
use kiln_plan::cuda::ARGUMENT_ALIGN;
use kiln_plan::{self as plan, Plan, Site};
use smallvec::SmallVec;
use std::sync::Arc;

/// A program with known sizes. The step around it provides the memory of its inputs and outputs.
pub(super) struct Body {
    pub bound: Bound,
    pub constants: Vec<Buffer>,
    pub sites: Vec<Site>,
    /// Bytes of each input and output.
    pub inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// The slot of each output.
    slots: Vec<usize>,
    /// The start of each packed copy of weights, and the bytes of all.
    packed: Vec<usize>,
    packed_bytes: usize,
    /// On a GPU, the launches that copy each input that an output begins with.
    pub copies: Vec<Arc<Launch>>,
}

pub(super) type Pointers = SmallVec<[*mut u8; 12]>;

impl Body {
    fn new(plan: &Plan, values: &[i64], linker: &dyn Link, owner: Owner) -> Result<Body> {
        let facts = check::check(plan)?;
        let setting = Setting {
            plan,
            facts: &facts,
            linker,
            owner,
        };
        let bound = Bound::new(setting, values)?;
        let mut constants = check::constants(plan)?;
        if let Some(loader) = linker.gpu() {
            for constant in &mut constants {
                *constant = constant.to_gpu(loader.device())?;
            }
        }
        let initial_bytes = bound
            .initial_inputs
            .iter()
            .map(|(_, slot)| bound.slots[*slot].bytes);
        let copies = initial_bytes.filter_map(|bytes| Some(cuda::copy(linker.gpu()?, bytes)));
        let slot = |(loc, _): &(Loc, Vec<i64>)| match loc {
            Loc::Slot(s) => Ok(*s),
            _ => Err(damaged!("a body's output has no buffer of its own")),
        };
        let mut packed_bytes = 0;
        let packed = (bound.prepared.iter()).map(|bytes| {
            let offset = packed_bytes;
            packed_bytes += bytes.next_multiple_of(ALIGN);
            offset
        });
        let packed = packed.collect();
        Ok(Body {
            packed,
            packed_bytes,
            constants,
            sites: plan.sites.clone(),
            inputs: plan
                .inputs
                .iter()
                .map(|i| plan.buffer_bytes(i.buffer, values))
                .collect(),
            outputs: plan
                .outputs
                .iter()
                .map(|o| plan.buffer_bytes(o.buffer, values))
                .collect(),
            slots: bound.outputs.iter().map(slot).collect::<Result<_>>()?,
            copies: copies.collect::<Result<_>>()?,
            bound,
        })
    }

    /// Returns an error unless arguments of these bytes each hold `times` inputs, or outputs, of the body.
    fn check_sizes(of_body: &[usize], args: &[u16], bytes: &[usize], times: i64) -> Result<()> {
        let matches = |(size, arg): (&usize, &u16)| {
            size.checked_mul(times as usize)
                .is_some_and(|total| total == bytes[*arg as usize])
        };
        match of_body.len() == args.len() && of_body.iter().zip(args).all(matches) {
            true => Ok(()),
            false => Err(damaged!(
                "a body's values have other sizes than its arguments"
            )),
        }
    }

    /// Returns the function from locations to addresses. The pointers of the inputs and outputs have the sizes that it
    /// was bound for, and `arena` has the bytes of its arena.
    pub fn addresses<'a>(&'a self, memory: &'a BodyMemory) -> impl Fn(Loc) -> *mut u8 + 'a {
        let mut slots: Pointers = SmallVec::from_elem(std::ptr::null_mut(), memory.outputs.len());
        for (slot, output) in self.slots.iter().zip(&memory.outputs) {
            slots[*slot] = *output;
        }
        move |loc: Loc| match loc {
            Loc::Input(i) => memory.inputs[i],
            Loc::Slot(s) => slots[s],
            Loc::Constant(c) => self.constants[c].storage().ptr(),
            Loc::Arena(offset) => memory.arena.wrapping_add(offset),
            Loc::Prepared(p) => memory.packed.wrapping_add(self.packed[p]),
        }
    }

    /// Returns the copies that initialise outputs from inputs: source, destination and number of bytes.
    pub fn initial_copies<'a>(
        &'a self,
        memory: &'a BodyMemory,
    ) -> impl Iterator<Item = (*mut u8, *mut u8, usize)> + 'a {
        let address = self.addresses(memory);
        self.bound.initial_inputs.iter().map(move |(input, slot)| {
            let bytes = self.bound.slots[*slot].bytes;
            (
                address(Loc::Input(*input)),
                address(Loc::Slot(*slot)),
                bytes,
            )
        })
    }

    /// The maximum number of calls that it makes on a GPU.
    pub fn calls(&self) -> usize {
        self.bound
            .run_on_gpu
            .calls
            .saturating_add(self.copies.len())
    }

    /// True if an element may be read, or be a result, that nothing has written.
    pub fn may_be_uninitialized(&self) -> bool {
        self.bound.clear || self.bound.slots.iter().any(|s| s.clear)
    }

    /// True if it may report a data error.
    pub fn can_fail(&self) -> bool {
        !self.sites.is_empty()
    }
}

/// The memory that a body runs on.
pub(super) struct BodyMemory {
    pub inputs: Pointers,
    pub outputs: Pointers,
    pub arena: *mut u8,
    pub packed: *mut u8,
}

/// A linked loop.
pub(crate) struct Loop {
    pub(super) trips: i64,
    reverse: bool,
    pub(super) conditional: bool,
    first: Vec<usize>,
    pub(super) scanned: Vec<Slices>,
    alike: Vec<usize>,
    pub(super) last: Vec<usize>,
    pub(super) stacked: Vec<Slices>,
    pub(super) body: Body,
    /// Offsets in the scratch memory: each carried value's second buffer, the body's arena and its packed weights.
    /// The step's number precedes them. Padded slices lie between the second buffers and the arena.
    second: Vec<usize>,
    arena: usize,
    packed: usize,
    scratch: usize,
    /// On a GPU, the numbers of all steps, and launches that copy each carried value if there are no steps.
    pub(super) numbers: Option<Buffer>,
    pub(super) copies: Vec<Arc<Launch>>,
}

/// A linked branch.
pub(crate) struct If {
    pub(super) condition: usize,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    pub(super) branches: [Body; 2],
    /// On a GPU, the launch that tells the sides which of them runs, and the one that reads their data errors.
    pub(super) branch: Option<Arc<Launch>>,
    pub(super) concurrent: Option<Arc<Launch>>,
}

/// The distance of the numbers of steps on a GPU, in numbers: each is an argument.
pub(super) const NUMBER: usize = ARGUMENT_ALIGN / size_of::<i64>();

/// The maximum number of steps of a loop on a GPU, which receives the launches of all of them.
const GPU_TRIPS: i64 = 1 << 24;

fn positions(args: &[u16]) -> Vec<usize> {
    args.iter().map(|a| *a as usize).collect()
}

impl Loop {
    /// Links a loop whose arguments have these sizes in bytes.
    pub(crate) fn new(
        p: &plan::Loop,
        values: &[i64],
        bytes: &[usize],
        linker: &dyn Link,
    ) -> Result<Loop> {
        let trips = extent(&p.trips, values)?;
        if linker.gpu().is_some() && trips > GPU_TRIPS {
            return Err(damaged!("a loop of {trips} steps on a GPU"));
        }
        if linker.gpu().is_some() && p.conditional {
            return Err(damaged!("a conditional loop on a GPU"));
        }
        let (carried, scanned) = (p.first.len(), p.scanned.len());
        let alike = 1 + carried + scanned;
        let body = Body::new(&p.body, values, linker, Owner::Loop { alike })?;
        let inputs = &body.inputs[1..];
        Body::check_sizes(&inputs[..carried], &p.first, bytes, 1)?;
        Body::check_sizes(
            &inputs[carried..carried + scanned],
            &p.scanned,
            bytes,
            trips,
        )?;
        Body::check_sizes(&inputs[carried + scanned..], &p.alike, bytes, 1)?;
        Body::check_sizes(&body.outputs[..carried], &p.last, bytes, 1)?;
        Body::check_sizes(&body.outputs[carried..], &p.stacked, bytes, trips)?;
        Body::check_sizes(&inputs[..carried], &p.last, bytes, 1)?;
        let mut scratch = ALIGN;
        let mut second = Vec::new();
        for bytes in &inputs[..carried] {
            second.push(scratch);
            scratch += bytes.next_multiple_of(ALIGN);
        }
        let mut slices = |args: &[u16], bytes: &[usize], reads: bool| {
            let memory = (&mut scratch, linker.gpu());
            Slices::new(args, &bytes[carried..], trips as usize, reads, memory)
        };
        let scanned = slices(&p.scanned, inputs, true)?;
        let stacked = slices(&p.stacked, &body.outputs, false)?;
        let (mut numbers, mut copies) = (None, Vec::new());
        if let Some(loader) = linker.gpu() {
            let step_numbers: Vec<[i64; NUMBER]> = (0..trips).map(|i| [i; NUMBER]).collect();
            let step_numbers =
                Buffer::from_slice(step_numbers.as_flattened(), &[trips, NUMBER as i64])?;
            numbers = Some(step_numbers.to_gpu(loader.device())?);
            let bytes = inputs[..carried].iter().filter(|_| trips == 0);
            copies = bytes
                .map(|b| cuda::copy(loader, *b))
                .collect::<Result<_>>()?;
        }
        Ok(Loop {
            numbers,
            copies,
            trips,
            reverse: p.reverse,
            conditional: p.conditional,
            first: positions(&p.first),
            scanned,
            alike: positions(&p.alike),
            last: positions(&p.last),
            stacked,
            second,
            arena: scratch,
            packed: scratch + body.bound.arena.next_multiple_of(ALIGN),
            scratch: scratch + body.bound.arena.next_multiple_of(ALIGN) + body.packed_bytes,
            body,
        })
    }

    /// The copies that a loop without steps makes: source, destination and number of bytes.
    pub(super) fn copies_without_steps<'a>(
        &'a self,
        args: &'a [*mut u8],
    ) -> impl Iterator<Item = (*mut u8, *mut u8, usize)> + 'a {
        let pairs = self
            .first
            .iter()
            .zip(&self.last)
            .filter(|_| self.trips == 0);
        let bytes = &self.body.inputs[1..];
        pairs
            .zip(bytes)
            .map(|((from, to), bytes)| (args[*from], args[*to], *bytes))
    }

    /// Calls `step` for each step with its number and memory, up to the first that returns a value. The number lies
    /// at the start of the scratch memory. The carried values alternate between two buffers, of which the last step
    /// writes the result.
    pub(super) fn steps<T>(
        &self,
        args: &[*mut u8],
        scratch: *mut u8,
        mut step: impl FnMut(i64, &mut BodyMemory) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let carried = self.first.len();
        let of_step = |j: usize, step: i64| match (self.trips - 1 - step) % 2 {
            0 => args[self.last[j]],
            _ => scratch.wrapping_add(self.second[j]),
        };
        let mut memory = BodyMemory {
            inputs: Pointers::new(),
            outputs: Pointers::new(),
            arena: scratch.wrapping_add(self.arena),
            packed: scratch.wrapping_add(self.packed),
        };
        for i in 0..self.trips {
            let number = if self.reverse { self.trips - 1 - i } else { i };
            let (inputs, outputs) = (&mut memory.inputs, &mut memory.outputs);
            inputs.clear();
            inputs.push(scratch);
            inputs.extend((0..carried).map(|j| match i {
                0 => args[self.first[j]],
                _ => of_step(j, i - 1),
            }));
            let slice = |slices: &Slices| slices.address(args, scratch, number);
            inputs.extend(self.scanned.iter().map(slice));
            inputs.extend(self.alike.iter().map(|a| args[*a]));
            outputs.clear();
            outputs.extend((0..carried).map(|j| of_step(j, i)));
            outputs.extend(self.stacked.iter().map(slice));
            if let Some(result) = step(number, &mut memory)? {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }
}

impl If {
    /// Links a branch whose arguments have these sizes in bytes.
    pub(crate) fn new(
        p: &plan::If,
        values: &[i64],
        bytes: &[usize],
        linker: &dyn Link,
    ) -> Result<If> {
        let [then, otherwise] = &*p.branches;
        let branches = [
            Body::new(then, values, linker, Owner::Side)?,
            Body::new(otherwise, values, linker, Owner::Side)?,
        ];
        for body in &branches {
            Body::check_sizes(&body.inputs, &p.inputs, bytes, 1)?;
            Body::check_sizes(&body.outputs, &p.outputs, bytes, 1)?;
        }
        if bytes[p.condition as usize] != 1 {
            return Err(damaged!("a condition of several elements"));
        }
        let can_fail = branches.iter().any(Body::can_fail);
        let joins = linker.gpu().filter(|_| can_fail);
        Ok(If {
            condition: p.condition as usize,
            inputs: positions(&p.inputs),
            outputs: positions(&p.outputs),
            branches,
            branch: linker.gpu().map(cuda::branch).transpose()?,
            concurrent: joins.map(cuda::joined).transpose()?,
        })
    }

    fn records(&self) -> usize {
        let bytes = self.branch.as_ref().map_or(0, |_| cuda::SIDES);
        bytes.next_multiple_of(ALIGN)
    }

    /// The memory that its sides run on.
    pub(super) fn memory(&self, args: &[*mut u8], scratch: *mut u8) -> BodyMemory {
        let addresses = |list: &[usize]| list.iter().map(|a| args[*a]).collect();
        BodyMemory {
            inputs: addresses(&self.inputs),
            outputs: addresses(&self.outputs),
            arena: scratch.wrapping_add(self.records()),
            packed: std::ptr::null_mut(),
        }
    }
}

impl LinkedKernel for Loop {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        self.run_steps(call)
    }

    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<LastCalls> {
        self.unroll(&with, calls)
    }

    fn scratch(&self) -> usize {
        self.scratch
    }

    fn has_bodies(&self) -> bool {
        true
    }

    fn may_be_uninitialized(&self) -> bool {
        self.body.may_be_uninitialized()
    }

    fn gpu_memory(&self) -> Vec<&Arc<Storage>> {
        self.gpu_memory()
    }

    fn calls(&self) -> usize {
        let slices = self.scanned.iter().chain(&self.stacked);
        (self.body.calls())
            .saturating_mul(self.trips as usize)
            .saturating_add(self.copies.len() + slices.filter(|s| s.is_padded()).count())
    }

    fn can_fail(&self) -> bool {
        self.body.can_fail()
    }
}

impl LinkedKernel for If {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let holds = call.args.view::<u8>(self.condition).get(0) != 0;
        let body = &self.branches[!holds as usize];
        let scratch = call.scratch.address_mut([0; 2]);
        let failure = body.run(&self.memory(call.args.addresses(), scratch), call.kernels)?;
        Ok(failure.map(|mut f| {
            f.site += match holds {
                true => 0,
                false => self.branches[0].sites.len() as u32,
            };
            f
        }))
    }

    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<LastCalls> {
        self.expand_sides(&with, calls)
    }

    /// On a GPU both sides' error records, then a side's arena.
    fn scratch(&self) -> usize {
        let [then, other] = &self.branches;
        self.records() + then.bound.arena.max(other.bound.arena)
    }

    fn has_bodies(&self) -> bool {
        true
    }

    fn may_be_uninitialized(&self) -> bool {
        self.branches.iter().any(Body::may_be_uninitialized)
    }

    fn gpu_memory(&self) -> Vec<&Arc<Storage>> {
        self.gpu_memory()
    }

    fn calls(&self) -> usize {
        (self.branches.iter().map(Body::calls)).fold(2, usize::saturating_add)
    }

    fn can_fail(&self) -> bool {
        self.concurrent.is_some()
    }
}
