//! Planned timelines of compiled functions.

use super::{Timeline, TimelineBlock};
use crate::run::compiled::Program;
use kiln_compiler::Explain;
use kiln_ir::Role;
use kiln_runtime::memory::{ALIGN, Category};

impl Program {
    /// Returns the planned memory of a run: its inputs, caches and results, and its arena over the launches. `None` if
    /// sizes are symbolic.
    pub fn memory_timeline(&self) -> Option<Timeline> {
        let (explain, report) = (self.explain(), self.explain().memory?);
        let mut blocks = Vec::new();
        let last_of = |b: &TimelineBlock| b.last;
        push_arena(explain, report.peak, &mut blocks);
        let steps = 1 + blocks.iter().map(last_of).max().unwrap_or(0);
        let mut push_fixed = |category, holder: String, bytes: usize| {
            blocks.push(TimelineBlock {
                category,
                holder,
                bytes: bytes.next_multiple_of(ALIGN),
                first: 0,
                last: steps - 1,
            });
        };
        let (plan, signature) = (self.plan(), self.signature());
        let states = signature.states.iter().zip(self.cells());
        for (state, cell) in states {
            let Some(input) = state.input else { continue };
            let holder = cell.holder();
            push_fixed(
                holder.category(),
                holder.to_string(),
                input_bytes(plan, input),
            );
        }
        let arguments = signature.arguments.iter().map(|a| ("argument", a));
        let captured = signature.captured.iter().map(|c| ("captured", c));
        for (kind, named) in arguments.chain(captured) {
            let name = format!("{kind} {}", named.name);
            push_fixed(
                Category::Data,
                name.trim_end().into(),
                input_bytes(plan, named.at),
            );
        }
        let keys = plan.inputs.iter().filter(|i| i.role == Role::RandomKey);
        push_fixed(Category::Data, "random keys".into(), keys.count() * ALIGN);
        push_fixed(Category::Caches, "constants".into(), report.constants);
        push_fixed(
            Category::Caches,
            "prepared parameters".into(),
            report.prepared,
        );
        push_fixed(Category::Activations, "results".into(), report.outputs);
        blocks.retain(|b| b.bytes > 0);
        Some(Timeline {
            title: format!("planned memory of the function compiled at {}", self.loc()),
            steps,
            blocks,
        })
    }
}

fn input_bytes(plan: &kiln_plan::Plan, input: u32) -> usize {
    let input = &plan.inputs[input as usize];
    let sizes = input
        .shape
        .iter()
        .map(|d| d.as_const().unwrap_or(0) as usize);
    sizes.product::<usize>() * input.dtype.size()
}

/// Appends a block for each temporary, and for the free part at each step. The last op of the kernel that writes a
/// temporary names it.
fn push_arena(explain: &Explain, bytes: usize, blocks: &mut Vec<TimelineBlock>) {
    let mut writers: Vec<String> = Vec::new();
    for kernel in explain.kernels.iter().filter(|k| !k.prepared) {
        let op = kernel.ops.last().unwrap_or(&kernel.name);
        match writers.last_mut().filter(|_| kernel.concurrent) {
            Some(writer) => *writer = format!("{writer} and concurrent kernels"),
            None => writers.push(op.clone()),
        }
    }
    for block in &explain.temporaries {
        let (category, kind) = match block.buffer {
            Some(_) => (Category::Activations, "result"),
            None => (Category::Workspaces, "workspace"),
        };
        let writer = writers.get(block.first).map_or("", |w| w);
        blocks.push(TimelineBlock {
            category,
            holder: format!("{kind} of {writer}"),
            bytes: block.bytes.next_multiple_of(ALIGN),
            first: block.first,
            last: block.last,
        });
    }
    let steps = writers.len().max(1);
    let temporaries = Timeline {
        title: String::new(),
        steps,
        blocks: blocks.clone(),
    };
    for (step, alive) in temporaries.course(|_| true).into_iter().enumerate() {
        blocks.push(TimelineBlock {
            category: Category::Workspaces,
            holder: "free parts of the arena".into(),
            bytes: bytes.saturating_sub(alive),
            first: step,
            last: step,
        });
    }
}
