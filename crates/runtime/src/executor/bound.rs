//! A plan with known sizes: linked kernels and a location for every buffer.

use super::after::chain_wide_body;
use super::binder::{Binder, Owner, Setting};
use super::guard::Guard;
use super::loc::Loc;
use super::on_gpu::OnGpu;
use super::pack::interleave_packs;
use super::phases::PreparePhases;
use super::report::{MemoryBlock, MemoryReport};
use super::step::{After, BoundStep};
use hashbrown::HashMap;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::{ALIGN, Category, Holder};
use kiln_plan::memory::{Temporaries, solve};
use kiln_plan::{Allocation, BufferId, Plan, Step};

/// Memory that outlives a run.
#[derive(Clone)]
pub(super) struct Slot {
    pub bytes: usize,
    pub donor: Option<usize>,
    /// True if it begins as zeros, since it is not known that all of it is written.
    pub clear: bool,
}

/// A bound plan.
pub(super) struct Bound {
    pub values: Vec<i64>,
    pub prepare: Vec<BoundStep>,
    pub run: Vec<BoundStep>,
    /// Buffers that this run allocates for its outputs.
    pub slots: Vec<Slot>,
    /// The inputs whose contents slots begin with, unless the slots take the inputs' memory.
    pub initial_inputs: Vec<(usize, usize)>,
    /// Bytes of each prepared buffer.
    pub prepared: Vec<usize>,
    /// The index of the first of them that holds packed weights.
    pub packs_from: usize,
    /// For each of these, true if runs touch it; see [`Bound::touched_by_run`].
    pub touched: Vec<bool>,
    /// The phases in which *prepare* runs on the CPU.
    pub phases: PreparePhases,
    /// The location of each output, and its shape.
    pub outputs: Vec<(Loc, Vec<i64>)>,
    pub arena: usize,
    pub prepare_arena: usize,
    /// True if the arena must be zeroed, since steps may read elements that none has written.
    pub clear: bool,
    /// True if the arena and the results of *prepare* must be zeroed.
    pub prepare_clear: bool,
    pub report: MemoryReport,
    /// The temporaries of the run part.
    pub blocks: Vec<MemoryBlock>,
    /// The properties of *prepare* and of the run that a GPU needs.
    pub prepare_on_gpu: OnGpu,
    pub run_on_gpu: OnGpu,
    pub holders: Holders,
}

/// The steps of a part, its arena and the layout of that.
struct PartSteps {
    steps: Vec<BoundStep>,
    /// The buffers that may be read before they are written, and whether bodies have any.
    bare: Vec<usize>,
    bare_bodies: bool,
    peak: usize,
    lower_bound: usize,
    blocks: Vec<MemoryBlock>,
}

/// The holders of the memory of runs.
#[derive(Clone, Copy)]
pub(super) struct Holders {
    pub outputs: Holder,
    pub prepared: Holder,
    pub arena: Holder,
}

impl Holders {
    fn new(plan: &Plan) -> Holders {
        let last = plan.run.last().or(plan.prepare.last());
        let kernel = last.map_or("nothing", |s| plan.kernels[s.kernel as usize].name());
        let holder = |category, kind: &str| {
            let name = format!("{kind} of the program that ends in {kernel}");
            Holder::named(category, &name)
        };
        Holders {
            outputs: holder(Category::Activations, "results"),
            prepared: holder(Category::Caches, "prepared parameters"),
            arena: holder(Category::Activations, "temporaries"),
        }
    }
}

impl Bound {
    pub(super) fn new(setting: Setting<'_>, values: &[i64]) -> Result<Bound> {
        let Setting {
            plan, facts, owner, ..
        } = setting;
        let mut b = Binder::new(setting, values)?;
        let lens = b.lens.clone();
        let (mut slots, mut initial_inputs) = (Vec::new(), Vec::new());
        let mut prepared = Vec::new();
        let bytes = |i: usize| lens[i] as usize * plan.buffers[i].dtype.size();
        let inputs = first_positions(plan.inputs.iter().map(|x| x.buffer));
        let constants = first_positions(plan.constants.iter().map(|x| x.buffer));
        let outputs = first_positions(plan.outputs.iter().map(|x| x.buffer));
        let index_in = |list: &HashMap<usize, usize>, i| list.get(&i).copied().unwrap_or(0);
        let fixed = (plan.buffers.iter().enumerate()).map(|(i, b)| match b.allocation {
            Allocation::Input => Loc::Input(index_in(&inputs, i)),
            Allocation::Constant => Loc::Constant(index_in(&constants, i)),
            Allocation::Output => {
                slots.push(Slot {
                    bytes: bytes(i),
                    donor: outputs.get(&i).and_then(|o| facts.donors[*o]),
                    clear: false,
                });
                initial_inputs
                    .extend(facts.initial_inputs[i].map(|input| (input, slots.len() - 1)));
                Loc::Slot(slots.len() - 1)
            }
            Allocation::Prepared => {
                prepared.push(bytes(i));
                Loc::Prepared(prepared.len() - 1)
            }
            Allocation::Temporary | Allocation::InPlace(_) => Loc::Arena(0),
        });
        b.fixed = fixed.collect();
        b.check_lens()?;
        let prepare = b.steps(&plan.prepare, plan.prepare.len())?;
        let commit = match owner {
            Owner::Executable => plan.commit as usize,
            Owner::Loop { .. } | Owner::Side => 0, // a branch's steps do nothing after an error of their side
        };
        let mut run = b.steps(&plan.run, commit)?;
        let packs_from = prepared.len();
        let packs = b.packs(owner, &mut run.steps, &prepare.steps, &mut prepared);
        let prepare_steps = interleave_packs(prepare.steps, packs);
        if owner != Owner::Executable {
            chain_wide_body(&mut run.steps);
        }
        let outputs = b.outputs()?;
        for index_in in run
            .bare
            .iter()
            .filter(|index_in| facts.initial_inputs[**index_in].is_none())
        {
            if let Loc::Slot(slot) = b.fixed[*index_in] {
                // Elements that are not written over must not keep the donor's contents.
                (slots[slot].clear, slots[slot].donor) = (true, None);
            }
        }
        let temporary = |index_in: &usize| matches!(b.fixed[*index_in], Loc::Arena(_));
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
        let bound = Bound {
            values: values.to_vec(),
            packs_from,
            touched: Vec::new(),
            phases: PreparePhases::default(),
            prepare_on_gpu: OnGpu::new(&prepare_steps),
            run_on_gpu: OnGpu::new(&run.steps),
            prepare: prepare_steps,
            run: run.steps,
            slots,
            initial_inputs,
            prepared,
            outputs,
            arena: run.peak,
            prepare_arena: prepare.peak,
            clear,
            prepare_clear,
            report,
            blocks: run.blocks,
            holders: Holders::new(plan),
        };
        Ok(bound.with_touched(b.gpu.is_some()))
    }
}

/// Returns the first position in the list of each buffer.
fn first_positions(ids: impl Iterator<Item = BufferId>) -> HashMap<usize, usize> {
    let mut first = HashMap::new();
    for (position, id) in ids.enumerate() {
        first.entry(id.0 as usize).or_insert(position);
    }
    first
}

impl Binder<'_> {
    /// Checks that inputs and outputs have the sizes of their buffers.
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

    /// Links the steps of one part and lays out its temporaries. Steps from `commit` on do nothing after a data
    /// error.
    fn steps(&mut self, steps: &[Step], commit: usize) -> Result<PartSteps> {
        let works = steps.iter().map(|s| self.link(s));
        let works = works.collect::<Result<Vec<_>>>()?;
        let sizes: Vec<usize> = (self.lens.iter().zip(&self.plan.buffers))
            .map(|(len, b)| *len as usize * b.dtype.size())
            .collect();
        let is_guarded_on_gpu = |i: usize| steps[i].guard.is_some() && self.gpu.is_some();
        let scratch = |i: usize| match is_guarded_on_gpu(i) {
            true => Guard::record_offset(works[i].scratch()) + ALIGN,
            false => works[i].scratch(),
        };
        let memory = Temporaries::new(self.plan, steps, &sizes, &self.facts.root, scratch);
        let (blocks, block_of) = (memory.blocks, memory.of);
        let total = blocks
            .iter()
            .try_fold(0usize, |n, b| n.checked_add(b.size + ALIGN));
        total.ok_or_else(|| damaged!("temporaries of too many bytes"))?;
        let layout = solve(&blocks);
        let offset = |root: usize| block_of[root].map_or(0, |b| layout.offsets[b]);
        let (bare, bare_bodies) = self.uncovered(steps, &works);
        let mut bound = Vec::with_capacity(steps.len());
        for (i, ((step, work), scratch)) in steps.iter().zip(works).zip(memory.scratch).enumerate()
        {
            let location = |id: &BufferId| match self.fixed[id.0 as usize] {
                Loc::Arena(_) => Loc::Arena(offset(self.facts.root[id.0 as usize])),
                fixed => fixed,
            };
            let args = step.args.iter().map(location).collect();
            let (parallel, writes) = self.parallel(step, &*work)?;
            let guard = step.guard.map(|id| {
                let dtype = self.plan.buffers[id.0 as usize].dtype;
                Guard::new(location(&id), dtype, work.scratch(), self.gpu)
            });
            bound.push(BoundStep {
                guard: guard.transpose()?,
                work,
                args,
                packed: false,
                sizes: step.args.iter().map(|id| sizes[id.0 as usize]).collect(),
                writes,
                scratch: scratch.map_or(0, |b| layout.offsets[b]),
                step: i,
                sites: step.sites.iter().copied().collect(),
                parallel,
                concurrent: step.concurrent,
                after: After::new(),
            });
        }
        self.order(steps, &mut bound, &sizes, commit)?;
        let mut firsts = vec![None; blocks.len()];
        for (buffer, block) in block_of.iter().enumerate().rev() {
            block.iter().for_each(|b| firsts[*b] = Some(buffer as u32));
        }
        let located = blocks.iter().zip(&layout.offsets).zip(firsts);
        let blocks = located.map(|((block, offset), buffer)| MemoryBlock {
            buffer,
            offset: *offset,
            bytes: block.size,
            first: block.first,
            last: block.last,
        });
        Ok(PartSteps {
            blocks: blocks.collect(),
            steps: bound,
            bare,
            bare_bodies,
            peak: layout.peak,
            lower_bound: layout.lower_bound,
        })
    }
}
