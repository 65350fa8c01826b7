//! The kernels of a program, once the candidates of its tasks are chosen.

use crate::program::{BufId, BufferInfo, Cost, Origin, Program, Task};
use crate::work::{KernelCall, Slot};
use kiln_base::Machine;
use kiln_ir::NodeId;
use kiln_plan::{Kernel, Site};
use std::sync::Arc;

/// A program as a list of kernel launches over buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// The target machine.
    pub machine: Machine,
    /// The buffers of the program, then the scratch memory of tasks.
    pub buffers: Vec<BufferInfo>,
    /// The launches, in an order in which they can run.
    pub launches: Vec<Launch>,
    /// The buffer of each graph output, as in the program.
    pub outputs: Vec<Option<BufId>>,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// The buffer of each kernel argument.
    pub args: Vec<BufId>,
    /// For each of `args`, true if it is written.
    pub written: Vec<bool>,
    /// The programs that a loop or branch runs; their plans are still missing in `kernel`.
    pub bodies: Vec<Sequence>,
    /// The data-error sites that the kernel names by position.
    pub sites: Vec<Site>,
    /// The graph nodes computed here, ascending.
    pub nodes: Vec<NodeId>,
    /// Pairs (read argument, written argument) that may alias: every element is read before it is written, at the same
    /// address, with the same dtype and size.
    pub in_place: Vec<(usize, usize)>,
    /// The cost of the launch; if a task has several launches, the last has the cost of all.
    pub cost: Cost,
    /// The program's tasks that it computes, or of which it computes a part.
    pub tasks: Vec<usize>,
}

impl Program {
    /// Returns the launches of the chosen candidates.
    pub fn sequence(&self) -> Sequence {
        let mut sequence = Sequence {
            machine: self.machine,
            buffers: self.buffers.clone(),
            launches: Vec::with_capacity(self.tasks.len()),
            outputs: self.outputs.clone(),
        };
        for (i, task) in self.tasks.iter().enumerate() {
            sequence.add_task(i, task);
        }
        sequence
    }
}

impl Sequence {
    fn add_task(&mut self, task_index: usize, task: &Task) {
        let calls = &task.candidate().calls;
        let scratch = self.buffers.len() as u32;
        if !calls.scratch.is_empty() {
            let result = task.written().next().expect("a task has a result");
            let result = &self.buffers[result.0 as usize];
            let (parameter_only, origin) = match result.origin {
                Origin::Value(v) | Origin::Derived(v) => {
                    (result.parameter_only, Origin::Derived(v))
                }
                _ => unreachable!("tasks write values of the graph"),
            };
            let buffers = calls.scratch.iter().map(|(dtype, shape)| BufferInfo {
                dtype: *dtype,
                shape: shape.clone(),
                origin: origin.clone(),
                parameter_only,
                channels_last: false,
            });
            self.buffers.extend(buffers);
        }
        for (i, step) in calls.steps.iter().enumerate() {
            let position_of = |a: usize| step.args.iter().position(|s| *s == Slot::Arg(a));
            let pair = |(r, w): &(usize, usize)| Some((position_of(*r)?, position_of(*w)?));
            let args = step.args.iter().map(|slot| match slot {
                Slot::Arg(a) => task.args[*a],
                Slot::Scratch(s) => BufId(scratch + *s as u32),
            });
            let bodies = task.work.bodies().iter().map(Program::sequence);
            self.launches.push(Launch {
                args: args.collect(),
                written: task.written_by(step),
                bodies: bodies.collect(),
                sites: step.sites.iter().map(|s| task.sites[*s].clone()).collect(),
                nodes: task.nodes.clone(),
                in_place: calls.in_place.iter().filter_map(pair).collect(),
                cost: match i + 1 == calls.steps.len() {
                    true => task.work.cost(),
                    false => Cost::default(),
                },
                kernel: step.kernel.clone(),
                tasks: vec![task_index],
            });
        }
    }
}

impl Task {
    /// For each argument of a step, true if the step writes it.
    fn written_by(&self, step: &KernelCall) -> Vec<bool> {
        if let Kernel::Cuda(kernel) = &*step.kernel {
            return kernel.args.iter().map(|a| a.written).collect();
        }
        let written = |slot: &Slot| match slot {
            Slot::Arg(a) => self.work.args[*a].written,
            Slot::Scratch(_) => true,
        };
        step.args.iter().map(written).collect()
    }
}
