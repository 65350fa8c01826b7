//! The ways to compute a launch, of which a program holds one.

use super::{Printed, Slot, Way};
use crate::program::{BufId, BufferInfo, Cost, GroupReport, Launch, Origin, Program};
use kiln_plan::Kernel;

/// The ways to compute a launch. They take the same arguments and write the same of them; how many kernels they
/// are, and the memory between these, differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Ways {
    /// What is computed, as a launch of the CPU engine.
    pub launch: Launch,
    /// The ways, the default first.
    pub list: Vec<Way>,
}

impl Program {
    /// Computes what launch `l` stands for by way number `way`, and forgets the others; the number of launches
    /// that it then is. Nothing changes for the default, for a way that is not there, and where there is one
    /// way only.
    pub fn choose(&mut self, l: usize, way: usize) -> usize {
        let Some(ways) = self.launches[l].ways.take() else {
            return 1;
        };
        let Ways { launch, mut list } = *ways;
        let count = list[0].printed.steps.len();
        if way == 0 || way >= list.len() {
            return count;
        }
        let launches = self.expand(&launch, list.swap_remove(way).printed);
        let report = self.groups[l].clone();
        let groups = launches.iter().map(|l| GroupReport {
            name: l.kernel.name().to_string(),
            ..report.clone()
        });
        let chosen = launches.len();
        self.groups.splice(l..l + count, groups);
        self.launches.splice(l..l + count, launches);
        chosen
    }

    /// The launches that a launch is on a GPU, with memory of theirs added to the buffers.
    pub(crate) fn expand(&mut self, launch: &Launch, printed: Printed) -> Vec<Launch> {
        let mut results = launch.args.iter().zip(&launch.written).filter(|a| *a.1);
        let (result, _) = results.next().expect("a launch writes something");
        let result = &self.buffers[result.0 as usize];
        let (parameter_only, origin) = match result.origin {
            Origin::Value(v) | Origin::Derived(v) => (result.parameter_only, Origin::Derived(v)),
            _ => unreachable!("nothing else is written"),
        };
        let scratch = printed.scratch.into_iter().map(|(dtype, shape)| {
            self.buffers.push(BufferInfo {
                dtype,
                shape,
                origin: origin.clone(),
                parameter_only,
                channels_last: false,
            });
            BufId(self.buffers.len() as u32 - 1)
        });
        let scratch: Vec<BufId> = scratch.collect();
        let last = printed.steps.len().saturating_sub(1);
        let step = |(i, step): (usize, super::Step)| {
            let of = |a: usize| step.args.iter().position(|s| *s == Slot::Arg(a));
            let together = |(r, w): &(usize, usize)| Some((of(*r)?, of(*w)?));
            let args = step.args.iter().map(|slot| match slot {
                Slot::Arg(a) => launch.args[*a],
                Slot::Scratch(s) => scratch[*s],
            });
            let site = |s: &usize| launch.sites[*s].clone();
            Launch {
                variants: Vec::new(),
                args: args.collect(),
                written: step.kernel.args.iter().map(|a| a.written).collect(),
                sites: step.sites.iter().map(site).collect(),
                nodes: launch.nodes.clone(),
                in_place: printed.in_place.iter().filter_map(together).collect(),
                cost: match i == last {
                    true => launch.cost.clone(),
                    false => Cost::default(),
                },
                kir: launch.kir.clone().filter(|_| i == last),
                made: if i == 0 {
                    launch.made.clone()
                } else {
                    Vec::new()
                },
                kernel: Kernel::Cuda(step.kernel),
                bodies: Vec::new(),
                ways: None,
            }
        };
        printed.steps.into_iter().enumerate().map(step).collect()
    }
}
