//! A plan with known sizes: linked kernels and places for every buffer.

use super::MemoryReport;
use super::check::{self, Facts};
use super::control;
use super::gpu::OnGpu;
use crate::attention::Attention;
use crate::buffer::Buffer;
use crate::conv::Conv;
use crate::cuda::{self, Launch};
use crate::custom::Custom;
use crate::error::{Error, Result, damaged};
use crate::matmul::MatMul;
use crate::memory::{ALIGN, too_much};
use crate::scan::Scan;
use crate::scatter::Scatter;
use crate::simd::Level;
use crate::sort::ArgSort;
use crate::tile::{self, Linked};
use hashbrown::HashMap;
use kiln_base::Dim;
use kiln_plan::memory::{Temporaries, solve};
use kiln_plan::{BufferId, Kernel, Place, Plan, Role, Step};
use smallvec::{SmallVec, smallvec};
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

/// A linked kernel.
pub(super) enum Work {
    Tile(Linked),
    MatMul(MatMul),
    Conv(Conv),
    Attention(Box<Attention>),
    /// Weights in the form that a convolution or a product reads them in: its operand, then the packed weights.
    Pack(Arc<Work>),
    Scan(Scan),
    ArgSort(ArgSort),
    Scatter(Scatter),
    Custom(Custom),
    Cuda(Arc<Launch>),
    Loop(Box<control::Loop>),
    If(Box<control::If>),
}

impl Work {
    /// Bytes of memory that it needs beside its arguments.
    pub fn scratch(&self) -> usize {
        match self {
            Work::Loop(l) => l.scratch(),
            Work::If(i) => i.scratch(),
            _ => 0,
        }
    }

    /// The programs that it runs.
    pub fn bodies(&self) -> &[control::Body] {
        match self {
            Work::Loop(l) => std::slice::from_ref(&l.body),
            Work::If(i) => &i.branches,
            _ => &[],
        }
    }

    /// What it holds on a GPU.
    pub fn held(&self) -> Vec<&Buffer> {
        match self {
            Work::Loop(l) => l.held(),
            Work::If(i) => i.held(),
            _ => Vec::new(),
        }
    }
}

/// A step with known sizes.
#[derive(Clone)]
pub(super) struct BoundStep {
    pub work: Arc<Work>,
    /// The arguments, and behind them the weights that were packed in *prepare*, if `packed` says so.
    pub args: SmallVec<[Loc; 6]>,
    pub packed: bool,
    /// Which of these it writes.
    pub writes: SmallVec<[bool; 6]>,
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

pub(super) struct Binder<'a> {
    plan: &'a Plan,
    facts: &'a Facts,
    values: &'a [i64],
    level: Level,
    gpu: Option<&'a Arc<cuda::Device>>,
    /// The CUDA kernels, by kernel.
    launches: Vec<Option<Arc<Launch>>>,
    lens: Vec<i64>,
    /// Places of all buffers but temporaries.
    fixed: Vec<Loc>,
    /// One number for all buffers that may be the same memory.
    memory: Vec<usize>,
    linked: HashMap<(u32, SmallVec<[i64; 6]>), Arc<Work>>,
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
        let mut slots = Vec::new();
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
        let mut prepare = b.steps(&plan.prepare)?;
        let mut run = b.steps(&plan.run)?;
        for step in run.steps.iter_mut().filter(|_| owner == Owner::Executable) {
            prepare.steps.extend(b.pack(step, &mut prepared));
        }
        let outputs = b.outputs()?;
        for at in &run.bare {
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

    /// Links the steps of one part and lays out its temporaries.
    fn steps(&mut self, steps: &[Step]) -> Result<Laid> {
        let works = steps.iter().map(|s| self.link(s));
        let works = works.collect::<Result<Vec<_>>>()?;
        let sizes: Vec<usize> = (self.lens.iter().zip(&self.plan.buffers))
            .map(|(len, b)| *len as usize * b.dtype.size())
            .collect();
        let scratch = |i: usize| works[i].scratch();
        let found = Temporaries::new(self.plan, steps, &sizes, &self.facts.root, scratch);
        let (blocks, block_of) = (found.blocks, found.of);
        let total = blocks
            .iter()
            .try_fold(0usize, |n, b| n.checked_add(b.size + ALIGN));
        total.ok_or_else(|| damaged!("temporaries of too many bytes"))?;
        let layout = solve(&blocks);
        let offset = |root: usize| block_of[root].map_or(0, |b| layout.offsets[b]);
        let (bare, bare_bodies) = self.bare(steps, &works)?;
        let mut bound = Vec::with_capacity(steps.len());
        for (i, ((step, work), scratch)) in steps.iter().zip(works).zip(found.scratch).enumerate() {
            let place = |id: &BufferId| match self.fixed[id.0 as usize] {
                Loc::Arena(_) => Loc::Arena(offset(self.facts.root[id.0 as usize])),
                fixed => fixed,
            };
            let args = step.args.iter().map(place).collect();
            let (parallel, writes) = self.parallel(step, &work)?;
            bound.push(BoundStep {
                work,
                args,
                packed: false,
                writes,
                scratch: scratch.map_or(0, |b| layout.offsets[b]),
                step: i,
                sites: step.sites.iter().copied().collect(),
                parallel,
                joined: step.joined,
            });
        }
        steps
            .chunk_by(|_, next| next.joined)
            .try_for_each(|group| self.apart(group))?;
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

    /// Lets a convolution or a product read weights that depend on parameters alone, and that the run does not
    /// write over, from a packed copy; gives the step of *prepare* that makes it.
    fn pack(&self, step: &mut BoundStep, prepared: &mut Vec<usize>) -> Option<BoundStep> {
        let (bytes, weights) = match &*step.work {
            Work::Conv(conv) => (conv.packed_bytes()?, conv.weights()),
            Work::MatMul(product) => (product.packed_bytes()?, product.right()),
            _ => return None,
        };
        let weights = step.args[weights];
        let known = match weights {
            Loc::Input(i) => {
                let parameter = self.plan.inputs[i].role == Role::Parameter;
                parameter && !self.facts.donors.contains(&Some(i))
            }
            Loc::Constant(_) | Loc::Prepared(_) => true,
            Loc::Slot(_) | Loc::Arena(_) => false,
        };
        if !known {
            return None;
        }
        let to = Loc::Prepared(prepared.len());
        prepared.push(bytes);
        step.args.push(to);
        step.packed = true;
        Some(BoundStep {
            work: Arc::new(Work::Pack(step.work.clone())),
            args: smallvec![weights, to],
            packed: false,
            writes: smallvec![false, true],
            scratch: 0,
            step: self.plan.prepare.len(),
            sites: smallvec![],
            parallel: true,
            joined: false,
        })
    }

    /// Checks that steps which run together can, and that none touches what another writes.
    fn apart(&self, group: &[Step]) -> Result<()> {
        // For each place in memory the steps that touch it, and whether they write.
        let mut touched: HashMap<usize, (usize, bool)> = HashMap::new();
        for (i, step) in group.iter().enumerate().filter(|_| group.len() > 1) {
            let kernel = &self.plan.kernels[step.kernel as usize];
            if !kernel.can_join() {
                let name = kernel.name();
                return Err(damaged!(
                    "{name} is joined with others but can only run alone"
                ));
            }
            let access = self.access(step)?;
            for (id, writes) in step.args.iter().zip(access.writes) {
                let place = self.memory[id.0 as usize];
                let (other, written) = touched.entry(place).or_insert((i, writes));
                if *other != i && (writes || *written) {
                    return Err(damaged!("joined steps write what the others touch"));
                }
                *written |= writes;
            }
        }
        Ok(())
    }

    /// The buffers whose first step is not known to write all of them, and whether there are such in bodies.
    fn bare(&self, steps: &[Step], works: &[Arc<Work>]) -> Result<(Vec<usize>, bool)> {
        let mut bare = Vec::new();
        let mut bare_bodies = false;
        if self.gpu.is_some() {
            return Ok((bare, false)); // what the text of a kernel does is the compiler's word
        }
        let mut written = vec![false; self.lens.len()];
        for (step, work) in steps.iter().zip(works) {
            let writes = self.access(step)?.writes;
            let covered = self.covered(step, work, self.values);
            bare_bodies |= work.bodies().iter().any(|b| b.is_bare());
            for (arg, id) in step.args.iter().enumerate().filter(|(arg, _)| writes[*arg]) {
                let at = id.0 as usize;
                let first = !std::mem::replace(&mut written[at], true);
                if first && !covered[arg] {
                    bare.push(at);
                }
            }
        }
        Ok((bare, bare_bodies))
    }

    /// For each argument of a step whether it writes all of it, and reads nothing of it before.
    pub fn covered(&self, step: &Step, work: &Work, values: &[i64]) -> SmallVec<[bool; 6]> {
        let kernel = &self.plan.kernels[step.kernel as usize];
        let lens = step.args.iter().map(|id| self.lens[id.0 as usize]);
        let all = lens.enumerate();
        all.map(|(arg, len)| covers(work, kernel, values, arg, len))
            .collect()
    }

    /// What a step does with its arguments.
    fn access(&self, step: &Step) -> Result<check::Access> {
        let dtype = |id: &BufferId| self.plan.buffers[id.0 as usize].dtype;
        let dtypes: SmallVec<[_; 6]> = step.args.iter().map(dtype).collect();
        check::access(&self.plan.kernels[step.kernel as usize], &dtypes)
    }

    pub fn link(&mut self, step: &Step) -> Result<Arc<Work>> {
        let lens = step.args.iter().map(|id| self.lens[id.0 as usize]);
        let lens: SmallVec<[i64; 6]> = lens.collect();
        let key = (step.kernel, lens);
        if let Some(work) = self.linked.get(&key) {
            return Ok(work.clone());
        }
        let (values, level, gpu) = (self.values, self.level, self.gpu);
        let kernel = &self.plan.kernels[step.kernel as usize];
        let anywhere = matches!(
            kernel,
            Kernel::Cuda(_) | Kernel::Loop(_) | Kernel::If(_) | Kernel::Custom(_)
        );
        if gpu.is_some() && !anywhere {
            return Err(damaged!(
                "{} is a CPU kernel in a plan for a GPU",
                kernel.name()
            ));
        }
        let work = match kernel {
            Kernel::Tile(p) => Work::Tile(tile::link(&tile::bind(p, values, &key.1)?, level)?),
            Kernel::MatMul(m) => Work::MatMul(MatMul::new(m, values, &key.1, level)?),
            Kernel::Conv(c) => Work::Conv(Conv::new(c, values, &key.1, level)?),
            Kernel::Scan(s) => Work::Scan(Scan::new(s, values, &key.1, level)?),
            Kernel::ArgSort(s) => Work::ArgSort(ArgSort::new(s, values, &key.1, level)?),
            Kernel::Scatter(s) => Work::Scatter(Scatter::new(s, values, &key.1, level)?),
            Kernel::Loop(l) => Work::Loop(Box::new(control::Loop::new(
                l,
                values,
                &self.bytes(step),
                (level, gpu),
            )?)),
            Kernel::If(i) => Work::If(Box::new(control::If::new(
                i,
                values,
                &self.bytes(step),
                (level, gpu),
            )?)),
            Kernel::Custom(c) => {
                let custom = Custom::new(c, values, &key.1)?;
                match gpu {
                    None => Work::Custom(custom),
                    Some(device) => {
                        let linked = custom.on_gpu(device);
                        Work::Cuda(linked.map_err(|e| self.failed(step, e))?)
                    }
                }
            }
            Kernel::Cuda(k) => match self.launches.get(step.kernel as usize) {
                Some(Some(launch)) => Work::Cuda(launch.clone()),
                _ => return Err(damaged!("{} is a GPU kernel in a plan for the CPU", k.name)),
            },
            Kernel::Attention(a) => {
                Work::Attention(Box::new(Attention::new(a, values, &key.1, level)?))
            }
        };
        let work = Arc::new(work);
        self.linked.insert(key, work.clone());
        Ok(work)
    }

    /// Why a custom op can't run, at its node.
    fn failed(&self, step: &Step, e: Error) -> Error {
        let site = step.sites.first();
        let site = site.and_then(|s| self.plan.sites.get(*s as usize));
        match (site, e) {
            (Some(site), Error::Cuda(text)) => Error::Custom {
                op: site.op.clone(),
                text,
                node: site.node,
            },
            (_, e) => e,
        }
    }

    /// Bytes of each argument.
    fn bytes(&self, step: &Step) -> Vec<usize> {
        let args = step.args.iter().map(|id| id.0 as usize);
        args.map(|i| self.lens[i] as usize * self.plan.buffers[i].dtype.size())
            .collect()
    }

    /// Whether the parts of a step may run at the same time, and which arguments it writes. They may
    /// where each place in memory that the step writes is touched by one part only.
    pub fn parallel(&self, step: &Step, work: &Work) -> Result<(bool, SmallVec<[bool; 6]>)> {
        let kernel = &self.plan.kernels[step.kernel as usize];
        let dtype = |id: &BufferId| self.plan.buffers[id.0 as usize].dtype;
        let dtypes: Vec<_> = step.args.iter().map(dtype).collect();
        let access = self.access(step)?;
        let linked = match work {
            Work::Tile(l) => Some(l),
            Work::MatMul(m) => m.epilogue.as_ref(),
            Work::Conv(c) => c.epilogue(),
            Work::Attention(a) => a.epilogue.as_ref(),
            _ => None,
        };
        // Operands that are read after a part of the result is written.
        let operands: SmallVec<[u16; 4]> = match kernel {
            Kernel::Tile(_) | Kernel::Scan(_) | Kernel::Cuda(_) => smallvec![],
            Kernel::Attention(a) => a.operands().map(|(arg, _)| arg).collect(),
            Kernel::MatMul(m) => m.operands().into(),
            Kernel::Conv(c) => c.operands().into(),
            Kernel::ArgSort(s) => smallvec![s.x],
            Kernel::Scatter(s) => smallvec![s.index.arg, s.src.arg],
            Kernel::Custom(c) => c.operands.iter().map(|o| o.arg).collect(),
            Kernel::Loop(_) | Kernel::If(_) => (0..step.args.len() as u16)
                .filter(|a| access.reads[*a as usize])
                .collect(),
        };
        let mut parallel = linked.is_none_or(|l| l.parallel);
        for w in (0..step.args.len()).filter(|w| access.writes[*w]) {
            let same: Vec<usize> = (0..step.args.len())
                .filter(|a| self.shares(step.args[*a], step.args[w]))
                .collect();
            if operands.iter().any(|o| same.contains(&(*o as usize))) {
                return Err(damaged!("a {} writes over its own operand", kernel.name()));
            }
            let sizes_differ = same.iter().any(|a| dtypes[*a].size() != dtypes[w].size());
            parallel &= !sizes_differ && linked.is_none_or(|l| l.keeps_apart(&same));
        }
        Ok((parallel, access.writes.into()))
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

/// Whether a step writes all of an argument of `len` elements, and reads nothing of it before.
fn covers(work: &Work, kernel: &Kernel, values: &[i64], arg: usize, len: i64) -> bool {
    let program = match work {
        Work::Tile(l) => Some(l),
        Work::MatMul(m) => m.epilogue.as_ref(),
        Work::Conv(c) => c.epilogue(),
        Work::Attention(a) => a.epilogue.as_ref(),
        // The body's results have the sizes of the arguments, or of slices of them.
        Work::Loop(_) | Work::If(_) => return !work.bodies().iter().any(|b| b.is_bare()),
        _ => None,
    };
    match program {
        Some(program) => program.covered.get(arg) == Some(&true),
        None => kernel.results().is_some_and(|dims| {
            let size = |n: i64, d: &Dim| n.checked_mul(d.eval_checked(values)?);
            dims.into_iter().try_fold(1, size) == Some(len)
        }),
    }
}
