//! The backward pass over recorded tensors.

use super::edge::{GradNode, Leaf};
use super::walk::{GradEntry, Walk};
use super::{enable_grad, no_grad};
use crate::node::Handle;
use crate::recorder::Recorder;
use crate::{Error, ErrorKind, Result};
use kiln_autodiff::{Observer, StepOutput};
use kiln_base::Loc;
use kiln_ir::{Fact, OpError};
use std::panic::Location;
use std::sync::Arc;

/// Passes complete gradients to hooks, and records derivatives at the user's lines.
struct Watch<'a> {
    walk: &'a Walk,
}

impl Observer<Recorder> for Watch<'_> {
    fn enter(&mut self, b: &mut Recorder, step: usize) {
        if let GradEntry::Node(node, _) = &self.walk.entries[step] {
            b.at(node.loc, node.called, node.device);
        }
    }

    fn gradient(&mut self, _: &mut Recorder, of: StepOutput, g: Handle) -> Result<Handle, OpError> {
        match &self.walk.entries[of.0] {
            GradEntry::Leaf(leaf) => {
                let fact = g.fact().clone();
                fitting(leaf.hooks.apply(g), &fact)
            }
            GradEntry::Node(node, _) => node.observe(of.1, g),
            GradEntry::End => Ok(g),
        }
    }
}

/// The values that a backward pass keeps.
#[derive(Copy, Clone)]
pub struct Keep {
    /// The values that the derivatives need, for another pass.
    pub graph: bool,
    /// The gradients' own history, to differentiate them.
    pub create: bool,
}

/// A leaf, where leaves were requested, and the gradient found.
pub type LeafGradient = (Option<Arc<Leaf>>, Option<Handle>);

/// Computes the gradients of `targets` (all leaves if `None`); returns them with the leaves.
pub fn run(
    outputs: &[(&Handle, Handle)],
    targets: Option<&[&Handle]>,
    keep: Keep,
    loc: &'static Location<'static>,
) -> Result<Vec<LeafGradient>> {
    let roots: Vec<&Handle> = outputs.iter().map(|(y, _)| *y).collect();
    let walk = Walk::of(&roots, loc)?;
    let mut sources: Vec<Option<StepOutput>> = Vec::new();
    let mut leaves: Vec<Option<Arc<Leaf>>> = Vec::new();
    match targets {
        Some(targets) => {
            sources.extend(targets.iter().map(|t| walk.source(&t.edge)));
            leaves.resize(sources.len(), None);
        }
        None => {
            for (i, entry) in walk.entries.iter().enumerate() {
                if let GradEntry::Leaf(leaf) = entry {
                    sources.push(Some((i, 0)));
                    leaves.push(Some(leaf.clone()));
                }
            }
        }
    }
    let mut seeds = Vec::new();
    for (y, g) in outputs {
        seeds.extend(walk.source(&y.edge).map(|place| (place, g.clone())));
    }
    let target_outputs: Vec<StepOutput> = sources.iter().flatten().copied().collect();
    let chain = || {
        let steps = walk.steps(keep.create);
        let mut recorder = Recorder::backward(loc, roots[0].node.device);
        let mut watch = Watch { walk: &walk };
        kiln_autodiff::backward(&mut recorder, &steps, seeds, &target_outputs, &mut watch)
    };
    let gradients = match keep.create {
        true => enable_grad(chain),
        false => no_grad(chain),
    };
    let gradients = gradients.map_err(|p| match &walk.entries[p.step] {
        GradEntry::Node(node, _) => {
            let note = format!("in the gradients that are asked for at {}", Loc::from(loc));
            Error::new(ErrorKind::Op, node.called, p.error.0, node.loc).with_note(note)
        }
        GradEntry::Leaf(_) | GradEntry::End => {
            Error::new(ErrorKind::Op, "backward", p.error.0, loc)
        }
    })?;
    if !keep.graph {
        for entry in &walk.entries {
            if let GradEntry::Node(node, _) = entry {
                node.release();
            }
        }
    }
    let mut gradients = gradients.into_iter();
    let gradient = |place: Option<StepOutput>| place.and_then(|_| gradients.next().flatten());
    Ok(leaves
        .into_iter()
        .zip(sources.into_iter().map(gradient).collect::<Vec<_>>())
        .collect())
}

impl GradNode {
    /// Passes the complete gradient of an output to the hooks, and to the leaf that retains it.
    ///
    /// # Errors
    /// If the result of a hook is not a gradient for the output.
    pub fn observe(&self, output: u32, g: Handle) -> Result<Handle, OpError> {
        if self.is_unobserved() {
            return Ok(g);
        }
        let fact = g.fact().clone();
        let g = self.hooks(output).apply(g);
        if let Some(leaf) = self.retained(output, false) {
            leaf.set_grad(Some(g.clone()));
        }
        fitting(g, &fact)
    }
}

/// Checks that the result of a hook is a gradient with this fact.
pub fn fitting(g: Handle, fact: &Fact) -> Result<Handle, OpError> {
    if let Some(e) = g.error() {
        return Err(OpError(format!(
            "a hook gave an invalid tensor: {}",
            e.message()
        )));
    }
    if g.fact() != fact {
        return Err(OpError(format!(
            "a hook turned the gradient {fact} into {}; dtype and shape must stay",
            g.fact()
        )));
    }
    Ok(g)
}
