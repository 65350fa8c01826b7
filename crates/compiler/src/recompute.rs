//! Rematerialises values, where a plan must stay within a memory budget.
//!
//! A value that is read soon and then not for a long time holds memory in between: for example an activation of a
//! forward pass, until the backward pass. Its later readers can read a copy of it that is computed shortly before,
//! from values that are in memory then. The copy comes after a [barrier](kiln_ir::ops::Barrier) of its operands and
//! of a value that is computed late, so that it is not computed early.
//!
//! The values are chosen on a model of the plan ([`model`]), which weighs bytes and steps against operations. The
//! plan of the rewritten graph ([`rewrite`]) alone decides whether a choice is good enough: the model may err, the
//! plan does not.

mod model;
mod rewrite;

use crate::CompileError;
use crate::lines::{describe_op, resolved};
use crate::lowered::Lowered;
use kiln_codegen::{self as codegen, Origin};
use kiln_ir::Loc;
use kiln_plan::memory::{Layout, Temporaries, planned};
pub use model::Recomputed;
use model::{Choice, Model};

/// The number of plans that are made while the choice is adapted to the memory that its plans need.
const ADAPTATIONS: usize = 6;
/// The number of targets, from the peak without recomputation downwards, that are tried to find the lowest reachable
/// peak.
const RUNGS: usize = 16;
/// The maximum number of holders of memory that an error names.
const HOLDERS: usize = 5;

/// Returns a plan of the graph that needs at most `budget` bytes of temporaries, and the values that it recomputes.
///
/// # Errors
/// If sizes are not known, or no such plan is found. The error then names the smallest peak that was found, and the
/// largest holders of memory there.
pub(crate) fn fit_budget(
    base: Lowered,
    budget: usize,
    options: &codegen::Options,
    locs: &[Loc],
) -> Result<(Lowered, Vec<Recomputed>), CompileError> {
    let Some((temporaries, layout)) = planned(&base.placed.plan, &[]) else {
        let text = "a memory budget needs sizes that are known when the program is compiled";
        return Err(CompileError::Memory(text.into()));
    };
    if layout.peak <= budget {
        return Ok((base, Vec::new()));
    }
    let mut search = Search {
        model: Model::new(&base, &temporaries),
        base: &base,
        options,
        tried: Vec::new(),
        smallest: None,
    };
    if let Some((lowered, choice)) = search.run(layout.peak, budget)? {
        let recomputed = choice
            .iter()
            .map(|c| search.model.report(c, &base.graph, locs));
        return Ok((lowered, recomputed.collect()));
    }
    let (min_graph, peak) = match search.smallest.take() {
        Some((peak, lowered)) if peak < layout.peak => (lowered, peak),
        _ => (base, layout.peak),
    };
    Err(CompileError::Memory(unreachable(
        &min_graph, peak, budget, locs,
    )))
}

struct Search<'a> {
    base: &'a Lowered,
    model: Model,
    options: &'a codegen::Options,
    /// The choices that were lowered, each with the peak of its plan.
    tried: Vec<(Choice, usize)>,
    /// The plan that needs least, with its peak.
    smallest: Option<(usize, Lowered)>,
}

impl Search<'_> {
    /// First the choice is adapted: if a plan needs more than the model said, the model gets a lower target. If that
    /// does not help, a series of falling targets is tried. These do not depend on the budget, so the smallest peak
    /// that the error for one budget names can be reached with that peak as the budget.
    fn run(
        &mut self,
        peak: usize,
        budget: usize,
    ) -> Result<Option<(Lowered, Choice)>, CompileError> {
        let mut target = budget;
        for _ in 0..ADAPTATIONS {
            let choice = self.model.choose(target);
            match self.attempt(choice, budget)? {
                Ok(result) => return Ok(Some(result)),
                Err(needs) => target = target.saturating_sub((needs - budget).max(target / 64)),
            }
        }
        (self.smallest, self.tried) = (None, Vec::new());
        for rung in 1..RUNGS {
            let choice = self.model.choose(peak / RUNGS * (RUNGS - rung));
            if let Ok(result) = self.attempt(choice, budget)? {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// Returns the plan of a choice if it fits the budget, else its peak.
    fn attempt(
        &mut self,
        choice: Choice,
        budget: usize,
    ) -> Result<Result<(Lowered, Choice), usize>, CompileError> {
        if let Some((_, peak)) = self.tried.iter().find(|(c, _)| *c == choice) {
            return Ok(Err(*peak));
        }
        let graph = rewrite::rewrite(&self.base.graph, &self.model, &choice)
            .ok_or_else(|| CompileError::Internal("recomputation made a cycle".into()))?;
        let lowered = Lowered::with(graph, self.options)?;
        let peak = lowered.peak().unwrap_or(usize::MAX);
        if peak <= budget {
            return Ok(Ok((lowered, choice)));
        }
        self.tried.push((choice, peak));
        if self.smallest.as_ref().is_none_or(|(min, _)| peak < *min) {
            self.smallest = Some((peak, lowered));
        }
        Ok(Err(peak))
    }
}

/// Describes why a budget can't be reached.
fn unreachable(lowered: &Lowered, peak: usize, budget: usize, locs: &[Loc]) -> String {
    let mut text = format!(
        "the least that was found is {peak} bytes of temporaries, more than the memory budget of {budget}"
    );
    let Some((temporaries, layout)) = planned(&lowered.placed.plan, &[]) else {
        return text;
    };
    let holders = holders(lowered, &temporaries, &layout, locs);
    if !holders.is_empty() {
        text += &format!(". Most of it is held by {}", holders.join(", "));
    }
    text
}

/// Describes the largest temporaries of the step with the most live bytes, with the user's lines.
fn holders(
    lowered: &Lowered,
    temporaries: &Temporaries,
    layout: &Layout,
    locs: &[Loc],
) -> Vec<String> {
    let blocks = &temporaries.blocks;
    let alive = |step: usize| {
        (0..blocks.len()).filter(move |b| blocks[*b].first <= step && step <= blocks[*b].last)
    };
    let bytes = |step: usize| alive(step).map(|b| blocks[b].size).sum::<usize>();
    let steps = temporaries.times.iter().copied();
    let Some(peak_step) = steps.max_by_key(|s| (bytes(*s), std::cmp::Reverse(*s))) else {
        return Vec::new();
    };
    debug_assert!(bytes(peak_step) <= layout.peak);
    let mut blocks_alive: Vec<usize> = alive(peak_step).collect();
    blocks_alive.sort_by_key(|b| (std::cmp::Reverse(blocks[*b].size), *b));
    let describe = |b: &usize| {
        let size = blocks[*b].size;
        let buffer = temporaries.of.iter().position(|block| *block == Some(*b));
        let Some(buffer) = buffer else {
            return format!("{size} bytes inside a loop or branch");
        };
        match &lowered.sequence.buffers[buffer].origin {
            Origin::Value(v) | Origin::Derived(v) => {
                let node = lowered.graph.node(v.node);
                let loc = resolved(&node.loc, locs);
                let op = describe_op(node.op.name(), lowered.graph.fact(*v), &loc);
                format!("{size} bytes of {op}")
            }
            _ => format!("{size} bytes"),
        }
    };
    let mut texts: Vec<(String, usize)> = Vec::new();
    for text in blocks_alive.iter().map(describe) {
        match texts.iter().position(|(other, _)| *other == text) {
            Some(index) => texts[index].1 += 1,
            None if texts.len() == HOLDERS => break,
            None => texts.push((text, 1)),
        }
    }
    let texts = texts.into_iter().map(|(text, times)| match times {
        1 => text,
        _ => format!("{times} times {text}"),
    });
    texts.collect()
}
