//! The temporaries of a plan.

use super::{ALIGN, Layout, Lifetime, solve};
use crate::{Allocation, Kernel, Plan, Step};

/// The temporaries of one part of a plan.
#[derive(Clone, Debug, Default)]
pub struct Temporaries {
    /// The blocks in the order of their first use, then scratch memory. Steps that start together are one.
    pub blocks: Vec<Lifetime>,
    /// For each buffer that is the root of temporaries, its block.
    pub of: Vec<Option<usize>>,
    /// For each step, the block of its scratch memory.
    pub scratch: Vec<Option<usize>>,
    /// The time of each step.
    pub times: Vec<usize>,
}

impl Temporaries {
    /// Returns the temporaries of `steps`. `bytes` are the sizes of all buffers. `root` is for each buffer the one
    /// whose memory it uses. `scratch` returns the bytes that a step needs in addition to its arguments.
    pub fn new(
        plan: &Plan,
        steps: &[Step],
        bytes: &[usize],
        root: &[usize],
        scratch: impl Fn(usize) -> usize,
    ) -> Temporaries {
        let mut t = Temporaries {
            of: vec![None; plan.buffers.len()],
            ..Temporaries::default()
        };
        let mut time = 0;
        for (i, step) in steps.iter().enumerate() {
            time += (i > 0 && !step.concurrent) as usize;
            t.times.push(time);
            for buffer in step.touched().map(|id| id.0 as usize) {
                if plan.buffers[root[buffer]].allocation != Allocation::Temporary {
                    continue;
                }
                let block = match t.of[root[buffer]] {
                    Some(block) => block,
                    None => t.add(0, time),
                };
                t.of[root[buffer]] = Some(block);
                t.blocks[block].last = time;
                t.blocks[block].size = t.blocks[block].size.max(bytes[buffer]);
            }
        }
        t.extend_operations(plan, steps, root);
        for i in 0..steps.len() {
            let bytes = scratch(i);
            let block = (bytes > 0).then(|| t.add(bytes, t.times[i]));
            t.scratch.push(block);
        }
        t
    }

    /// Extends the lifetimes of the buffers of collective operations until a later step touches the result. The
    /// operation may run until then, and other steps must not wait for its memory.
    fn extend_operations(&mut self, plan: &Plan, steps: &[Step], root: &[usize]) {
        let end = self.times.last().copied().unwrap_or_default();
        for (i, step) in steps.iter().enumerate() {
            let Kernel::Collective(operation) = &*plan.kernels[step.kernel as usize] else {
                continue;
            };
            let out = root[step.args[usize::from(operation.out.arg)].0 as usize];
            let touches = |s: &Step| s.touched().any(|id| root[id.0 as usize] == out);
            let next = steps[i + 1..].iter().position(touches);
            let last = next.map_or(end, |n| self.times[i + 1 + n]);
            for id in step.touched() {
                if let Some(block) = self.of[root[id.0 as usize]] {
                    self.blocks[block].last = self.blocks[block].last.max(last);
                }
            }
        }
    }

    fn add(&mut self, size: usize, time: usize) -> usize {
        self.blocks.push(Lifetime {
            size,
            first: time,
            last: time,
        });
        self.blocks.len() - 1
    }
}

/// Returns the bytes of all buffers of a plan with these symbol values; `None` if one has no size.
fn sizes(plan: &Plan, values: &[i64]) -> Option<Vec<usize>> {
    let bytes = |b: &crate::Buffer| {
        let len = usize::try_from(b.len.eval_checked(values)?).ok()?;
        len.checked_mul(b.dtype.size())
    };
    plan.buffers.iter().map(bytes).collect()
}

/// Returns for each buffer the one whose memory it uses, in time linear in the number of buffers.
///
/// # Errors
/// If a buffer is in place of none, of one that is not a temporary, or of itself.
pub fn roots(plan: &Plan) -> Result<Vec<usize>, String> {
    let mut roots: Vec<usize> = (0..plan.buffers.len()).collect();
    let mut chain = Vec::new();
    for start in 0..roots.len() {
        let mut b = start;
        // The end of a chain that was followed before is known.
        while let (Allocation::InPlace(next), true) = (plan.buffers[b].allocation, roots[b] == b) {
            if chain.len() == roots.len() {
                return Err("buffers in place of each other".into());
            }
            chain.push(b);
            b = next.0 as usize;
            if b >= roots.len() {
                return Err(format!("no buffer {b}"));
            }
        }
        let root = roots[b];
        match plan.buffers[root].allocation {
            Allocation::Temporary => {}
            _ if chain.is_empty() => {}
            other => return Err(format!("a buffer in place of one at {other:?}")),
        }
        for b in chain.drain(..) {
            roots[b] = root;
        }
    }
    Ok(roots)
}

/// Returns the temporaries of a checked plan's run and their layout, with these symbol values, as the runtime plans
/// them on the CPU; `None` if a buffer has no size.
pub fn planned(plan: &Plan, values: &[i64]) -> Option<(Temporaries, Layout)> {
    let bytes = sizes(plan, values)?;
    let scratch: Option<Vec<usize>> = (plan.run.iter())
        .map(|step| scratch(plan, step, &bytes, values))
        .collect();
    let scratch = scratch?;
    let temporaries = Temporaries::new(plan, &plan.run, &bytes, &roots(plan).ok()?, |i| scratch[i]);
    let layout = solve(&temporaries.blocks);
    Some((temporaries, layout))
}

/// Returns the bytes that a loop or branch needs in addition to its arguments: for a loop the number of its step, the
/// second buffers of the carried values, and its body's arena; for a branch the larger arena.
fn scratch(plan: &Plan, step: &Step, bytes: &[usize], values: &[i64]) -> Option<usize> {
    let peak = |body: &Plan| Some(planned(body, values)?.1.peak);
    Some(match &*plan.kernels[step.kernel as usize] {
        Kernel::Loop(l) => {
            let size = |a: &u16| bytes[step.args[*a as usize].0 as usize].next_multiple_of(ALIGN);
            ALIGN + l.first.iter().map(size).sum::<usize>() + peak(&l.body)?
        }
        Kernel::If(i) => {
            let [then, otherwise] = &*i.branches;
            peak(then)?.max(peak(otherwise)?)
        }
        _ => 0,
    })
}
