//! Loops and branches: programs that a step runs.

use super::Counts;
use super::bound::{Bound, Loc};
use super::check;
use super::run::run_steps;
use crate::buffer::Buffer;
use crate::error::{Result, damaged};
use crate::memory::ALIGN;
use crate::simd::Level;
use crate::tile::Failure;
use crate::tile::affine::extent;
use kiln_base::plan::{self, Plan, Site};
use smallvec::SmallVec;

/// A program with known sizes whose inputs and outputs the step around it places.
struct Body {
    bound: Bound,
    constants: Vec<Buffer>,
    sites: Vec<Site>,
    /// Bytes of each input and output.
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// The slot of each output.
    slots: Vec<usize>,
}

type Pointers = SmallVec<[*mut u8; 12]>;

impl Body {
    fn new(plan: &Plan, values: &[i64], level: Level) -> Result<Body> {
        let facts = check::check(plan)?;
        let bound = Bound::new(plan, &facts, values, level, None)?;
        let slot = |(loc, _): &(Loc, Vec<i64>)| match loc {
            Loc::Slot(s) => Ok(*s),
            _ => Err(damaged!("a body's output has no buffer of its own")),
        };
        Ok(Body {
            constants: check::constants(plan)?,
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
            bound,
        })
    }

    /// Errs unless arguments of these bytes each hold `times` inputs, or outputs, of the body.
    fn fits(of_body: &[usize], args: &[u16], bytes: &[usize], times: i64) -> Result<()> {
        let enough = |(one, arg): (&usize, &u16)| {
            one.checked_mul(times as usize)
                .is_some_and(|all| all == bytes[*arg as usize])
        };
        match of_body.len() == args.len() && of_body.iter().zip(args).all(enough) {
            true => Ok(()),
            false => Err(damaged!(
                "a body's values have other sizes than its arguments"
            )),
        }
    }

    /// Runs the program. The pointers of the inputs and outputs have the sizes it was bound for, and
    /// `arena` has the bytes of its arena.
    fn run(
        &self,
        inputs: &[*mut u8],
        outputs: &[*mut u8],
        arena: *mut u8,
        counts: &Counts,
    ) -> Result<Option<Failure>> {
        let mut slots: Pointers = SmallVec::from_elem(std::ptr::null_mut(), outputs.len());
        for (slot, output) in self.slots.iter().zip(outputs) {
            slots[*slot] = *output;
        }
        let place = |loc: Loc| match loc {
            Loc::Input(i) => inputs[i],
            Loc::Slot(s) => slots[s],
            Loc::Constant(c) => self.constants[c].storage().ptr(),
            Loc::Arena(offset) => arena.wrapping_add(offset),
            Loc::Prepared(_) => std::ptr::null_mut(), // checking allows none here
        };
        run_steps(&self.bound.run, place, &self.sites, counts, None)
    }
}

/// Errs unless a plan may be a body.
pub(super) fn check_body(plan: &Plan) -> Result<()> {
    let own = |o: &plan::Output| {
        let others = plan.outputs.iter().filter(|p| p.buffer == o.buffer);
        let place = plan.buffers.get(o.buffer.0 as usize).map(|b| b.place);
        place == Some(plan::Place::Output) && o.donor.is_none() && others.count() == 1
    };
    let plain = plan.symbols.is_empty() && plan.prepare.is_empty();
    match plain && plan.outputs.iter().all(own) {
        true => check::check(plan).map(|_| ()),
        false => Err(damaged!(
            "a body with symbols, parameters or shared outputs"
        )),
    }
}

/// A linked loop.
pub(crate) struct Loop {
    trips: i64,
    reverse: bool,
    first: Vec<usize>,
    scanned: Vec<usize>,
    alike: Vec<usize>,
    last: Vec<usize>,
    stacked: Vec<usize>,
    body: Body,
    /// In the scratch memory: each carried value's second buffer, and the body's arena. The step's
    /// number stands in front.
    second: Vec<usize>,
    arena: usize,
    scratch: usize,
}

/// A linked branch.
pub(crate) struct If {
    condition: usize,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    branches: [Body; 2],
    /// How many sites the first branch has.
    sites: u32,
}

fn positions(args: &[u16]) -> Vec<usize> {
    args.iter().map(|a| *a as usize).collect()
}

impl Loop {
    /// Links a loop whose arguments have these sizes in bytes.
    pub(super) fn new(
        p: &plan::Loop,
        values: &[i64],
        bytes: &[usize],
        level: Level,
    ) -> Result<Loop> {
        let trips = extent(&p.trips, values)?;
        let body = Body::new(&p.body, values, level)?;
        let (carried, scanned) = (p.first.len(), p.scanned.len());
        let inputs = &body.inputs[1..];
        Body::fits(&inputs[..carried], &p.first, bytes, 1)?;
        Body::fits(
            &inputs[carried..carried + scanned],
            &p.scanned,
            bytes,
            trips,
        )?;
        Body::fits(&inputs[carried + scanned..], &p.alike, bytes, 1)?;
        Body::fits(&body.outputs[..carried], &p.last, bytes, 1)?;
        Body::fits(&body.outputs[carried..], &p.stacked, bytes, trips)?;
        Body::fits(&inputs[..carried], &p.last, bytes, 1)?;
        let mut scratch = ALIGN;
        let mut second = Vec::new();
        for bytes in &inputs[..carried] {
            second.push(scratch);
            scratch += bytes.next_multiple_of(ALIGN);
        }
        Ok(Loop {
            trips,
            reverse: p.reverse,
            first: positions(&p.first),
            scanned: positions(&p.scanned),
            alike: positions(&p.alike),
            last: positions(&p.last),
            stacked: positions(&p.stacked),
            second,
            arena: scratch,
            scratch: scratch + body.bound.arena,
            body,
        })
    }

    /// Bytes of scratch memory.
    pub(super) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Runs every step. The carried values change places between two buffers so that the last step
    /// writes the result.
    ///
    /// # Safety
    /// The arguments have the sizes that the loop was linked for and the scratch memory has its size;
    /// those that are written are nobody else's.
    pub(super) unsafe fn run(
        &self,
        args: &[*mut u8],
        scratch: *mut u8,
        counts: &Counts,
    ) -> Result<Option<Failure>> {
        let carried = self.first.len();
        let bytes = &self.body.inputs[1..];
        if self.trips == 0 {
            for ((from, to), bytes) in self.first.iter().zip(&self.last).zip(bytes) {
                // SAFETY: both have this size, and the result shares memory with no operand.
                unsafe { std::ptr::copy_nonoverlapping(args[*from], args[*to], *bytes) };
            }
        }
        let of_step = |j: usize, step: i64| match (self.trips - 1 - step) % 2 {
            0 => args[self.last[j]],
            _ => scratch.wrapping_add(self.second[j]),
        };
        let mut inputs: Pointers = SmallVec::new();
        let mut outputs: Pointers = SmallVec::new();
        for step in 0..self.trips {
            let number = if self.reverse {
                self.trips - 1 - step
            } else {
                step
            };
            // SAFETY: the scratch memory begins with a place for the number.
            unsafe { scratch.cast::<i64>().write(number) };
            inputs.clear();
            inputs.push(scratch);
            inputs.extend((0..carried).map(|j| match step {
                0 => args[self.first[j]],
                _ => of_step(j, step - 1),
            }));
            let slices = self.scanned.iter().zip(&bytes[carried..]);
            inputs.extend(slices.map(|(a, b)| args[*a].wrapping_add(number as usize * b)));
            inputs.extend(self.alike.iter().map(|a| args[*a]));
            outputs.clear();
            outputs.extend((0..carried).map(|j| of_step(j, step)));
            let slices = self.stacked.iter().zip(&self.body.outputs[carried..]);
            outputs.extend(slices.map(|(a, b)| args[*a].wrapping_add(number as usize * b)));
            let arena = scratch.wrapping_add(self.arena);
            if let Some(failure) = self.body.run(&inputs, &outputs, arena, counts)? {
                return Ok(Some(failure));
            }
        }
        Ok(None)
    }
}

impl If {
    /// Links a branch whose arguments have these sizes in bytes.
    pub(super) fn new(p: &plan::If, values: &[i64], bytes: &[usize], level: Level) -> Result<If> {
        let [then, other] = &*p.branches;
        let branches = [
            Body::new(then, values, level)?,
            Body::new(other, values, level)?,
        ];
        for body in &branches {
            Body::fits(&body.inputs, &p.inputs, bytes, 1)?;
            Body::fits(&body.outputs, &p.outputs, bytes, 1)?;
        }
        if bytes[p.condition as usize] != 1 {
            return Err(damaged!("a condition of several elements"));
        }
        Ok(If {
            condition: p.condition as usize,
            inputs: positions(&p.inputs),
            outputs: positions(&p.outputs),
            branches,
            sites: then.sites.len() as u32,
        })
    }

    /// Bytes of scratch memory.
    pub(super) fn scratch(&self) -> usize {
        let [then, other] = &self.branches;
        then.bound.arena.max(other.bound.arena)
    }

    /// Runs one of the programs.
    ///
    /// # Safety
    /// As for [`Loop::run`].
    pub(super) unsafe fn run(
        &self,
        args: &[*mut u8],
        scratch: *mut u8,
        counts: &Counts,
    ) -> Result<Option<Failure>> {
        // SAFETY: the condition is one bool byte.
        let holds = unsafe { args[self.condition].read() } != 0;
        let at = |list: &[usize]| list.iter().map(|a| args[*a]).collect::<Pointers>();
        let body = &self.branches[!holds as usize];
        let failure = body.run(&at(&self.inputs), &at(&self.outputs), scratch, counts)?;
        Ok(failure.map(|mut f| {
            f.site += if holds { 0 } else { self.sites };
            f
        }))
    }
}
