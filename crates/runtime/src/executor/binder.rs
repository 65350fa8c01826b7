//! Binding: the values of a plan's sizes, and the kernels that are linked for them.

use super::check::Facts;
use super::link::Link;
use super::loc::Loc;
use hashbrown::HashMap;
use kiln_base::Dim;
use kiln_cuda as cuda;
use kiln_cuda::Launch;
use kiln_kernel::error::{Error, Result, damaged};
use kiln_kernel::memory::out_of_memory;
use kiln_kernel::work::{LinkedKernel, Sizes};
use kiln_plan::{BufferId, Contract, Dims, Kernel, Plan, Reads, Site, Step};
use smallvec::SmallVec;
use std::sync::Arc;

/// The owner of a bound plan.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It runs *prepare* and keeps the results.
    Executable,
    /// A loop, which has neither a *prepare* nor memory for its results. The inputs from number `alike` on are the
    /// same for all of its steps: weights among them are packed in the first step and kept.
    Loop { alike: usize },
    /// A side of a branch: like a loop's body that runs once.
    Side,
}

/// The inputs of binding.
#[derive(Copy, Clone)]
pub(super) struct Setting<'a> {
    pub plan: &'a Plan,
    pub facts: &'a Facts,
    pub linker: &'a dyn Link,
    pub owner: Owner,
}

/// A kernel and the lengths of its arguments.
type Called = (u32, SmallVec<[i64; 6]>);

pub(super) struct Binder<'a> {
    pub plan: &'a Plan,
    pub facts: &'a Facts,
    pub values: &'a [i64],
    linker: &'a dyn Link,
    pub gpu: Option<&'a cuda::Loader>,
    /// The CUDA kernels, by kernel.
    launches: Vec<Option<Arc<Launch>>>,
    pub lens: Vec<i64>,
    /// The locations of all buffers but temporaries.
    pub fixed: Vec<Loc>,
    /// A number for each buffer, equal for buffers that may alias.
    pub memory: Vec<usize>,
    linked: HashMap<Called, Arc<dyn LinkedKernel>>,
}

/// The maximum number of bytes of one buffer.
const BUFFER_LIMIT: i64 = 1 << 46;

impl<'a> Binder<'a> {
    /// Returns a binder without locations of buffers.
    pub fn new(setting: Setting<'a>, values: &'a [i64]) -> Result<Binder<'a>> {
        let mut has_value = |d: &Dim| d.eval_checked(values).is_some();
        if setting.owner == Owner::Executable && !setting.plan.all_dims(&mut has_value) {
            return Err(damaged!("a size without a value"));
        }
        let lens = setting.plan.buffers.iter().map(|b| {
            let len = b.len.eval_checked(values).filter(|len| *len >= 0);
            match len.ok_or_else(|| damaged!("a buffer of {} elements", b.len))? {
                len if len < BUFFER_LIMIT / 8 => Ok(len),
                len => Err(out_of_memory((len as usize).saturating_mul(b.dtype.size()))),
            }
        });
        Ok(Binder {
            plan: setting.plan,
            facts: setting.facts,
            values,
            linker: setting.linker,
            gpu: setting.linker.gpu(),
            lens: lens.collect::<Result<_>>()?,
            launches: match setting.linker.gpu() {
                Some(loader) => Launch::all(loader, setting.plan, values)?,
                None => Vec::new(),
            },
            fixed: Vec::new(),
            memory: memory(setting.plan, setting.facts),
            linked: HashMap::new(),
        })
    }
}

impl Binder<'_> {
    /// The contract of a step's kernel.
    pub fn contract(&self, step: &Step) -> &Contract {
        &self.facts.contracts[step.kernel as usize]
    }

    pub fn link(&mut self, step: &Step) -> Result<Arc<dyn LinkedKernel>> {
        let lens = step.args.iter().map(|id| self.lens[id.0 as usize]);
        let lens: SmallVec<[i64; 6]> = lens.collect();
        let key = (step.kernel, lens);
        if let Some(work) = self.linked.get(&key) {
            return Ok(work.clone());
        }
        let kernel = &self.plan.kernels[step.kernel as usize];
        let launch = self.launches.get(step.kernel as usize);
        let launch = launch.and_then(Option::as_ref);
        let sizes = Sizes {
            values: self.values,
            lens: &key.1,
        };
        let work = (self.linker).link(kernel, self.contract(step), sizes, launch);
        let site = step.sites.first();
        let site = site.and_then(|s| self.plan.sites.get(*s as usize));
        let custom = matches!(**kernel, Kernel::Custom(_));
        let work = work.map_err(|e| at_site(site.filter(|_| custom), e))?;
        self.linked.insert(key, work.clone());
        Ok(work)
    }

    /// Returns true if the parts of a step may be concurrent, and the arguments that it writes. They may be concurrent
    /// if each location in memory that the step writes is touched by one part only.
    pub fn parallel(
        &self,
        step: &Step,
        work: &dyn LinkedKernel,
    ) -> Result<(bool, SmallVec<[bool; 6]>)> {
        let args = &self.contract(step).args;
        let program = work.program();
        let mut parallel = program.is_none_or(|p| p.is_parallel());
        for w in (0..step.args.len()).filter(|w| args[*w].writes) {
            let aliases: Vec<usize> = (0..step.args.len())
                .filter(|a| self.shares(step.args[*a], step.args[w]))
                .collect();
            if aliases.iter().any(|a| args[*a].reads == Reads::Throughout) {
                let name = self.plan.kernels[step.kernel as usize].name();
                return Err(damaged!("a {name} writes over its own operand"));
            }
            let size = |a: usize| args[a].dtype.size();
            let sizes_differ = aliases.iter().any(|a| size(*a) != size(w));
            parallel &= !sizes_differ && program.is_none_or(|p| p.never_overlap(&aliases));
        }
        Ok((parallel, args.iter().map(|a| a.writes).collect()))
    }

    /// True if two buffers may alias.
    fn shares(&self, a: BufferId, b: BufferId) -> bool {
        self.memory[a.0 as usize] == self.memory[b.0 as usize]
    }
}

/// A number for each buffer, equal for buffers that may alias.
fn memory(plan: &Plan, facts: &Facts) -> Vec<usize> {
    let mut memory = facts.root.clone();
    for (o, donor) in plan.outputs.iter().zip(&facts.donors) {
        if let Some(input) = donor {
            memory[o.buffer.0 as usize] = plan.inputs[*input].buffer.0 as usize;
        }
    }
    memory
}

/// The reason that a custom op can't run, at its site.
fn at_site(site: Option<&Site>, e: Error) -> Error {
    match (site, e) {
        (Some(site), Error::Cuda(text)) => Error::Custom {
            op: site.op.clone(),
            text,
            node: site.node,
        },
        (_, e) => e,
    }
}
