//! The ways to compute a launch on a GPU: how products are cut into tiles and their sums into parts, how many
//! threads share a row, how many elements a thread takes.

use super::alone::{self, Arg, Part};
use super::choose::Choice;
use super::key;
use super::program::{Tuner, args};
use super::search::Candidate;
use super::settings::Precision;
use super::subject::KernelSubject;
use kiln_base::numel;
use kiln_codegen::{Program, Slot, Way, Ways};
use kiln_plan::{Kernel, Plan};
use kiln_runtime::cuda;
use std::sync::Arc;

impl Tuner<'_> {
    /// Chooses the way of the launch at `l`; how many launches it then is.
    pub(super) fn way(
        &mut self,
        program: &mut Program,
        l: usize,
        ways: &Ways,
    ) -> (Option<Arc<Choice>>, usize) {
        if ways.list.len() < 2 {
            return (None, program.choose(l, 0));
        }
        let values = key::typical(self.symbols);
        let default = ways.list.first().map_or("", |w| &w.name);
        let kernel = &ways.launch.kernel;
        let Some(key) = key::of_way(kernel, &values, default, &self.device) else {
            return (None, program.choose(l, 0));
        };
        let names = candidates(ways, &values);
        let choice = self.chooser.choose(key, &names, || {
            let args = args(program, &ways.launch, &self.assigned);
            Arc::new(subject(ways, args, values, self.gpu))
        });
        // Launches of one key may differ in what is legal.
        let choice = choice.among(names.iter().map(|c| &c.name));
        let chosen = names.iter().position(|c| c.name == choice.chosen);
        (Some(choice), program.choose(l, chosen.unwrap_or(0)))
    }
}

/// Leaves the ways that may be chosen.
pub(super) fn limit(ways: &mut Ways, precision: Precision) {
    let allowed = |way: &Way| way.approximation.is_none_or(|a| precision.allows(a));
    ways.list.retain(allowed);
}

/// The ways as candidates.
fn candidates(ways: &Ways, values: &[i64]) -> Vec<Candidate> {
    let candidate = |way: &Way| {
        let scratch = way.printed.scratch.iter();
        let bytes = scratch.map(|(dtype, shape)| key::bytes(*dtype, numel(shape).eval(values)));
        Candidate {
            name: way.name.clone(),
            workspace: bytes.sum::<usize>() as u64,
            predicted: way.predicted,
        }
    };
    ways.list.iter().map(candidate).collect()
}

/// The ways as something that can be tried.
pub(super) fn subject(
    ways: &Ways,
    args: Vec<Arg>,
    values: Vec<i64>,
    gpu: Option<&Arc<cuda::Device>>,
) -> KernelSubject {
    let plans = ways.list.iter().map(|way| {
        let plan = plan(way, &args, values.len());
        (plan, way.approximation)
    });
    let plans = candidates(ways, &values).into_iter().zip(plans).collect();
    KernelSubject::of_ways(&ways.launch.kernel, plans, args, values, gpu.cloned())
}

/// The program that runs a way alone.
fn plan(way: &Way, args: &[Arg], symbols: usize) -> Plan {
    let printed = &way.printed;
    let parts = printed.steps.iter().map(|step| Part {
        kernel: Kernel::Cuda(step.kernel.clone()),
        args: (step.args.iter())
            .map(|slot| match slot {
                Slot::Arg(a) => *a,
                Slot::Scratch(s) => args.len() + s,
            })
            .collect(),
        sites: step.sites.iter().map(|s| *s as u32).collect(),
    });
    let scratch = printed.scratch.iter();
    let scratch = scratch.map(|(dtype, shape)| (*dtype, numel(shape)));
    alone::plan_of(parts.collect(), args, scratch.collect(), symbols)
}
