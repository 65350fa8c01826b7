//! A plan with known sizes: linked kernels and places for every buffer.

use super::MemoryReport;
use super::after::{After, narrow};
use super::check::Facts;
use super::gpu::OnGpu;
use super::guard::Guard;
use super::link::{Linker, at_site};
use super::work::Work;
use crate::cuda::{self, Launch};
use crate::error::{Result, damaged};
use crate::memory::{ALIGN, too_much};
use crate::simd::Level;
use hashbrown::HashMap;
use kiln_base::Dim;
use kiln_plan::memory::{Temporaries, solve};
use kiln_plan::{BufferId, Contract, Kernel, Place, Plan, Reads, Step};
use smallvec::SmallVec;
use std::sync::Arc;

/// Where a buffer is during a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Loc {
    Input(usize),
    /// Index into [`Bound::slots`].
    Slot(usize),
    Constant(usize),
    Prepared(usize),
    /// Byte offset in the arena.
    Arena(usize),
}

/// A step with known sizes.
#[derive(Clone)]
pub(super) struct BoundStep {
    pub work: Arc<dyn Work>,
    /// The arguments, and behind them the weights that were packed in *prepare*, if `packed` says so.
    pub args: SmallVec<[Loc; 6]>,
    pub packed: bool,
    /// Which of these it writes.
    pub writes: SmallVec<[bool; 6]>,
    /// What may leave it out.
    pub guard: Option<Guard>,
    /// The byte offset of its scratch memory in the arena.
    pub scratch: usize,
    /// Index into the plan's steps.
    pub step: usize,
    /// The plan's site for each of the kernel's.
    pub sites: SmallVec<[u32; 2]>,
    /// Whether its parts may run at the same time.
    pub parallel: bool,
    /// Whether it runs at the same time as the step before it.
    pub joined: bool,
    /// The steps of its part that it waits for.
    pub after: After,
}

impl BoundStep {
    /// Bytes of its scratch memory.
    pub fn scratch_bytes(&self) -> usize {
        let record = self.guard.as_ref().and_then(|g| g.launch.as_ref());
        record.map_or_else(|| self.work.scratch(), |(_, record)| record + ALIGN)
    }
}

/// Memory that outlives a run.
#[derive(Clone)]
pub(super) struct Slot {
    pub bytes: usize,
    pub donor: Option<usize>,
    /// Whether it begins as zeros, since it is not known that all of it is written.
    pub clear: bool,
}

/// A bound plan.
pub(super) struct Bound {
    pub values: Vec<i64>,
    pub prepare: Vec<BoundStep>,
    pub run: Vec<BoundStep>,
    /// Buffers that this run allocates for its outputs.
    pub slots: Vec<Slot>,
    /// The inputs whose contents slots begin with, unless they take their memory.
    pub kept: Vec<(usize, usize)>,
    /// Bytes of each prepared buffer.
    pub prepared: Vec<usize>,
    /// Where each output is, and its shape.
    pub outputs: Vec<(Loc, Vec<i64>)>,
    pub arena: usize,
    pub prepare_arena: usize,
    /// Whether the arena begins as zeros, since it is not known that all that is read was written.
    pub clear: bool,
    /// The same of the arena and the results of *prepare*.
    pub prepare_clear: bool,
    pub report: MemoryReport,
    /// The temporaries of the run part.
    pub blocks: Vec<MemoryBlock>,
    /// What a GPU needs to know of *prepare* and of the run.
    pub prepare_on_gpu: OnGpu,
    pub run_on_gpu: OnGpu,
    pub holders: Holders,
}

/// A part of the arena and the steps that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// The first buffer of the plan that it holds; `None` for scratch memory of a step.
    pub buffer: Option<u32>,
    /// Where it begins in the arena, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// The first step that uses it; steps that start together are one.
    pub first: usize,
    /// The last step that uses it.
    pub last: usize,
}

/// The steps of a part, its arena and what is in that.
struct Laid {
    steps: Vec<BoundStep>,
    /// The buffers that may be read where nothing was written, and whether bodies have such.
    bare: Vec<usize>,
    bare_bodies: bool,
    peak: usize,
    lower_bound: usize,
    blocks: Vec<MemoryBlock>,
}

/// What a GPU's memory is held for.
#[derive(Clone)]
pub(super) struct Holders {
    pub outputs: Arc<str>,
    pub prepared: Arc<str>,
    pub arena: Arc<str>,
}

impl Holders {
    fn new(plan: &Plan) -> Holders {
        let last = plan.run.last().or(plan.prepare.last());
        let kernel = last.map_or("nothing", |s| plan.kernels[s.kernel as usize].name());
        let of = |what: &str| format!("{what} of the program that ends in {kernel}").into();
        Holders {
            outputs: of("results"),
            prepared: of("prepared parameters"),
            arena: of("temporaries"),
        }
    }
}

/// A kernel and the lengths of its arguments.
type Called = (u32, SmallVec<[i64; 6]>);

pub(super) struct Binder<'a> {
    pub plan: &'a Plan,
    pub facts: &'a Facts,
    pub values: &'a [i64],
    level: Level,
    pub gpu: Option<&'a Arc<cuda::Device>>,
    /// The CUDA kernels, by kernel.
    launches: Vec<Option<Arc<Launch>>>,
    pub lens: Vec<i64>,
    /// Places of all buffers but temporaries.
    fixed: Vec<Loc>,
    /// One number for all buffers that may be the same memory.
    pub memory: Vec<usize>,
    linked: HashMap<Called, Arc<dyn Work>>,
}

/// Who runs a bound plan.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It runs *prepare* and keeps the results.
    Executable,
    /// A loop or branch, which has neither a *prepare* nor memory for its results.
    Body,
}

/// The most bytes of one buffer.
const BUFFER_LIMIT: i64 = 1 << 46;

impl Bound {
    pub(super) fn new(with: Setting<'_>, values: &[i64]) -> Result<Bound> {
        let Setting {
            plan, facts, owner, ..
        } = with;
        let mut b = Binder::new(with, values)?;
        let lens = b.lens.clone();
        let (mut slots, mut kept) = (Vec::new(), Vec::new());
        let mut prepared = Vec::new();
        let bytes = |i: usize| lens[i] as usize * plan.buffers[i].dtype.size();
        let inputs = first_of(plan.inputs.iter().map(|x| x.buffer));
        let constants = first_of(plan.constants.iter().map(|x| x.buffer));
        let outputs = first_of(plan.outputs.iter().map(|x| x.buffer));
        let at = |list: &HashMap<usize, usize>, i| list.get(&i).copied().unwrap_or(0);
        let fixed = (plan.buffers.iter().enumerate()).map(|(i, b)| match b.place {
            Place::Input => Loc::Input(at(&inputs, i)),
            Place::Constant => Loc::Constant(at(&constants, i)),
            Place::Output => {
                slots.push(Slot {
                    bytes: bytes(i),
                    donor: outputs.get(&i).and_then(|o| facts.donors[*o]),
                    clear: false,
                });
                kept.extend(facts.kept[i].map(|input| (input, slots.len() - 1)));
                Loc::Slot(slots.len() - 1)
            }
            Place::Prepared => {
                prepared.push(bytes(i));
                Loc::Prepared(prepared.len() - 1)
            }
            Place::Temporary | Place::InPlace(_) => Loc::Arena(0),
        });
        b.fixed = fixed.collect();
        b.check_lens()?;
        let mut prepare = b.steps(&plan.prepare, plan.prepare.len())?;
        let commit = match owner {
            Owner::Executable => plan.commit as usize,
            Owner::Body => 0, // a branch's steps do nothing after an error of their side
        };
        let mut run = b.steps(&plan.run, commit)?;
        match owner {
            Owner::Executable => {
                for step in &mut run.steps {
                    let packs = b.pack(step, &prepare.steps, &mut prepared);
                    prepare.steps.extend(packs);
                }
            }
            Owner::Body => narrow(&mut run.steps),
        }
        let outputs = b.outputs()?;
        for at in run.bare.iter().filter(|at| facts.kept[**at].is_none()) {
            if let Loc::Slot(slot) = b.fixed[*at] {
                // What is not written over keeps nothing of the donor's.
                (slots[slot].clear, slots[slot].donor) = (true, None);
            }
        }
        let temporary = |at: &usize| matches!(b.fixed[*at], Loc::Arena(_));
        let clear = run.bare_bodies || run.bare.iter().any(temporary);
        let prepare_clear = prepare.bare_bodies || !prepare.bare.is_empty();
        let undonated = slots.iter().filter(|s| s.donor.is_none());
        let report = MemoryReport {
            peak: run.peak,
            lower_bound: run.lower_bound,
            prepare_peak: prepare.peak,
            prepared: prepared.iter().sum(),
            outputs: undonated.map(|s| s.bytes).sum(),
            constants: plan.constants.iter().map(|c| c.bytes.len()).sum(),
            cleared: run.peak * usize::from(clear)
                + slots
                    .iter()
                    .filter(|s| s.clear)
                    .map(|s| s.bytes)
                    .sum::<usize>()
                + (prepare.peak + prepared.iter().sum::<usize>()) * usize::from(prepare_clear),
        };
        Ok(Bound {
            values: values.to_vec(),
            prepare_on_gpu: OnGpu::new(&prepare.steps),
            run_on_gpu: OnGpu::new(&run.steps),
            prepare: prepare.steps,
            run: run.steps,
            slots,
            kept,
            prepared,
            outputs,
            arena: run.peak,
            prepare_arena: prepare.peak,
            clear,
            prepare_clear,
            report,
            blocks: run.blocks,
            holders: Holders::new(plan),
        })
    }
}

/// What a plan is bound with.
#[derive(Copy, Clone)]
pub(super) struct Setting<'a> {
    pub plan: &'a Plan,
    pub facts: &'a Facts,
    pub level: Level,
    pub gpu: Option<&'a Arc<cuda::Device>>,
    pub owner: Owner,
}

/// For each buffer of a list its first position there.
fn first_of(ids: impl Iterator<Item = BufferId>) -> HashMap<usize, usize> {
    let mut first = HashMap::new();
    for (at, id) in ids.enumerate() {
        first.entry(id.0 as usize).or_insert(at);
    }
    first
}

impl<'a> Binder<'a> {
    /// Without places of buffers.
    pub fn new(with: Setting<'a>, values: &'a [i64]) -> Result<Binder<'a>> {
        let known = |d: &Dim| d.eval_checked(values).is_some();
        if with.owner == Owner::Executable && !with.plan.all_dims(known) {
            return Err(damaged!("a size without a value"));
        }
        let lens = with.plan.buffers.iter().map(|b| {
            let len = b.len.eval_checked(values).filter(|len| *len >= 0);
            match len.ok_or_else(|| damaged!("a buffer of {} elements", b.len))? {
                len if len < BUFFER_LIMIT / 8 => Ok(len),
                len => Err(too_much((len as usize).saturating_mul(b.dtype.size()))),
            }
        });
        Ok(Binder {
            plan: with.plan,
            facts: with.facts,
            values,
            level: with.level,
            gpu: with.gpu,
            lens: lens.collect::<Result<_>>()?,
            launches: match with.gpu {
                Some(device) => Launch::all(device, with.plan, values)?,
                None => Vec::new(),
            },
            fixed: Vec::new(),
            memory: memory(with.plan, with.facts),
            linked: HashMap::new(),
        })
    }
}

impl Binder<'_> {
    /// Inputs and outputs have the sizes of their buffers.
    fn check_lens(&self) -> Result<()> {
        let inputs = self.plan.inputs.iter().map(|i| (&i.shape, i.buffer));
        let outputs = self.plan.outputs.iter().map(|o| (&o.shape, o.buffer));
        for (shape, buffer) in inputs.chain(outputs) {
            let len = shape.iter().try_fold(1i64, |n, d| {
                let d = d.eval_checked(self.values).filter(|d| *d >= 0)?;
                n.checked_mul(d)
            });
            if len != Some(self.lens[buffer.0 as usize]) {
                return Err(damaged!(
                    "a tensor of shape {shape:?} in a buffer of another size"
                ));
            }
        }
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(Loc, Vec<i64>)>> {
        let outputs = self.plan.outputs.iter().map(|o| {
            let shape = o.shape.iter().map(|d| d.eval_checked(self.values));
            let shape: Option<Vec<i64>> = shape.collect();
            let shape = shape.ok_or_else(|| damaged!("an output's shape has no value"))?;
            Ok((self.fixed[o.buffer.0 as usize], shape))
        });
        outputs.collect()
    }

    /// Links the steps of one part, of which those from `commit` on do nothing after a data error, and lays out its
    /// temporaries.
    fn steps(&mut self, steps: &[Step], commit: usize) -> Result<Laid> {
        let works = steps.iter().map(|s| self.link(s));
        let works = works.collect::<Result<Vec<_>>>()?;
        let sizes: Vec<usize> = (self.lens.iter().zip(&self.plan.buffers))
            .map(|(len, b)| *len as usize * b.dtype.size())
            .collect();
        let guarded_there = |i: usize| steps[i].guard.is_some() && self.gpu.is_some();
        let scratch = |i: usize| match guarded_there(i) {
            true => Guard::record_behind(works[i].scratch()) + ALIGN,
            false => works[i].scratch(),
        };
        let found = Temporaries::new(self.plan, steps, &sizes, &self.facts.root, scratch);
        let (blocks, block_of) = (found.blocks, found.of);
        let total = blocks
            .iter()
            .try_fold(0usize, |n, b| n.checked_add(b.size + ALIGN));
        total.ok_or_else(|| damaged!("temporaries of too many bytes"))?;
        let layout = solve(&blocks);
        let offset = |root: usize| block_of[root].map_or(0, |b| layout.offsets[b]);
        let (bare, bare_bodies) = self.bare(steps, &works);
        let mut bound = Vec::with_capacity(steps.len());
        for (i, ((step, work), scratch)) in steps.iter().zip(works).zip(found.scratch).enumerate() {
            let place = |id: &BufferId| match self.fixed[id.0 as usize] {
                Loc::Arena(_) => Loc::Arena(offset(self.facts.root[id.0 as usize])),
                fixed => fixed,
            };
            let args = step.args.iter().map(place).collect();
            let (parallel, writes) = self.parallel(step, &*work)?;
            let guard = step.guard.map(|id| {
                let dtype = self.plan.buffers[id.0 as usize].dtype;
                Guard::new(place(&id), dtype, work.scratch(), self.gpu)
            });
            bound.push(BoundStep {
                guard: guard.transpose()?,
                work,
                args,
                packed: false,
                writes,
                scratch: scratch.map_or(0, |b| layout.offsets[b]),
                step: i,
                sites: step.sites.iter().copied().collect(),
                parallel,
                joined: step.joined,
                after: After::new(),
            });
        }
        self.order(steps, &mut bound, &sizes, commit)?;
        let mut holds = vec![None; blocks.len()];
        for (buffer, block) in block_of.iter().enumerate().rev() {
            block.iter().for_each(|b| holds[*b] = Some(buffer as u32));
        }
        let placed = blocks.iter().zip(&layout.offsets).zip(holds);
        let blocks = placed.map(|((block, offset), buffer)| MemoryBlock {
            buffer,
            offset: *offset,
            bytes: block.size,
            first: block.first,
            last: block.last,
        });
        Ok(Laid {
            blocks: blocks.collect(),
            steps: bound,
            bare,
            bare_bodies,
            peak: layout.peak,
            lower_bound: layout.lower_bound,
        })
    }

    /// What a step does with its arguments.
    pub fn contract(&self, step: &Step) -> &Contract {
        &self.facts.contracts[step.kernel as usize]
    }

    pub fn link(&mut self, step: &Step) -> Result<Arc<dyn Work>> {
        let lens = step.args.iter().map(|id| self.lens[id.0 as usize]);
        let lens: SmallVec<[i64; 6]> = lens.collect();
        let key = (step.kernel, lens);
        if let Some(work) = self.linked.get(&key) {
            return Ok(work.clone());
        }
        let linker = Linker {
            values: self.values,
            level: self.level,
            gpu: self.gpu,
        };
        let kernel = &self.plan.kernels[step.kernel as usize];
        let launch = self.launches.get(step.kernel as usize);
        let launch = launch.and_then(Option::as_ref);
        let work = linker.link(kernel, self.contract(step), &key.1, launch);
        let site = step.sites.first();
        let site = site.and_then(|s| self.plan.sites.get(*s as usize));
        let custom = matches!(kernel, Kernel::Custom(_));
        let work = work.map_err(|e| at_site(site.filter(|_| custom), e))?;
        self.linked.insert(key, work.clone());
        Ok(work)
    }

    /// Whether the parts of a step may run at the same time, and which arguments it writes. They may
    /// where each place in memory that the step writes is touched by one part only.
    pub fn parallel(&self, step: &Step, work: &dyn Work) -> Result<(bool, SmallVec<[bool; 6]>)> {
        let args = &self.contract(step).args;
        let linked = work.last();
        let mut parallel = linked.is_none_or(|l| l.parallel);
        for w in (0..step.args.len()).filter(|w| args[*w].writes) {
            let same: Vec<usize> = (0..step.args.len())
                .filter(|a| self.shares(step.args[*a], step.args[w]))
                .collect();
            if same.iter().any(|a| args[*a].reads == Reads::Throughout) {
                let name = self.plan.kernels[step.kernel as usize].name();
                return Err(damaged!("a {name} writes over its own operand"));
            }
            let size = |a: usize| args[a].dtype.size();
            let sizes_differ = same.iter().any(|a| size(*a) != size(w));
            parallel &= !sizes_differ && linked.is_none_or(|l| l.keeps_apart(&same));
        }
        Ok((parallel, args.iter().map(|a| a.writes).collect()))
    }

    /// Whether two buffers may be the same memory.
    fn shares(&self, a: BufferId, b: BufferId) -> bool {
        self.memory[a.0 as usize] == self.memory[b.0 as usize]
    }
}

/// One number for all buffers that may be the same memory.
fn memory(plan: &Plan, facts: &Facts) -> Vec<usize> {
    let mut memory = facts.root.clone();
    for (o, donor) in plan.outputs.iter().zip(&facts.donors) {
        if let Some(input) = donor {
            memory[o.buffer.0 as usize] = plan.inputs[*input].buffer.0 as usize;
        }
    }
    memory
}
