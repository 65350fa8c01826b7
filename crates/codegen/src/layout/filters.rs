//! Filters of convolutions with channels last on a GPU, which are stored as `[out, kernel.., in]`.
//!
//! So a sum runs over neighbours of both its operands, and 16 bytes are copied at a time. A launch that computes
//! filters (casts them, folds a norm into them) writes them in this layout. Others are copied: once, in *prepare*, if
//! they depend on parameters only, else in each run, which the costs include.

use super::{differs, sort_axes};
use crate::flow::{Flow, Nid, Node, Op};
use crate::fuse::Group;
use hashbrown::HashMap;
use smallvec::SmallVec;

/// The launches whose filters can be stored in this layout.
pub(super) struct Filters {
    /// The launch that computes them.
    makers: HashMap<Nid, usize>,
}

impl Filters {
    /// Returns those of a program, in which the `convolutions` may have channels last.
    pub fn of(flow: &Flow, groups: &[Group], convolutions: &[bool]) -> Filters {
        let mut pinned = super::pinned(flow);
        for (group, conv) in groups.iter().zip(convolutions) {
            let operands = group
                .anchor
                .iter()
                .flat_map(|a| a.operands.iter().enumerate());
            let other = operands.filter(|(i, _)| !conv || *i != 1);
            pinned.extend(other.map(|(_, o)| o.held));
        }
        let plain = groups
            .iter()
            .enumerate()
            .filter(|(_, g)| g.anchor.is_none());
        let makers = plain.flat_map(|(g, group)| group.roots.iter().map(move |(n, _)| (*n, g)));
        Filters {
            makers: makers.filter(|(n, _)| !pinned.contains(n)).collect(),
        }
    }

    /// True if they have to be copied in each run.
    pub fn are_copied(&self, flow: &Flow, n: Nid) -> bool {
        differs(flow, n) && !flow.nodes[n].parameter_only && !self.makers.contains_key(&n)
    }
}

/// Stores the filters of these convolutions with channels last.
pub(super) fn store_channels_last(flow: &mut Flow, groups: &mut Vec<Group>, convolutions: &[bool]) {
    let filters = Filters::of(flow, groups, convolutions);
    let mut copies: HashMap<Nid, (Nid, usize)> = HashMap::new();
    for g in (0..convolutions.len()).filter(|g| convolutions[*g]) {
        let held = |group: &Group| group.anchor.as_ref().map(|a| a.operands[1].held);
        let Some(n) = held(&groups[g]).filter(|n| differs(flow, *n)) else {
            continue;
        };
        if let Some(maker) = filters.makers.get(&n) {
            flow.nodes[n].channels_last = true;
            sort_axes(flow, &mut groups[*maker]);
            continue;
        }
        let (copy, by) = *copies
            .entry(n)
            .or_insert_with(|| self::copy(flow, groups, n));
        let group = &mut groups[g];
        if let Some(anchor) = &mut group.anchor {
            anchor.operands[1].held = copy;
        }
        group.loaded.insert(copy);
        group.deps.push(by);
    }
}

/// Makes a copy of filters, and returns the launch that computes it.
fn copy(flow: &mut Flow, groups: &mut Vec<Group>, n: Nid) -> (Nid, usize) {
    let copy = Node {
        op: Op::Copy,
        inputs: SmallVec::from_iter([n]),
        helper: true,
        channels_last: true,
        apart: false,
        measured: None,
        ..flow.nodes[n].clone()
    };
    let at = flow.nodes.len();
    flow.nodes.push(copy);
    let stores = |group: &Group| group.roots.iter().any(|(r, _)| *r == n);
    let deps = groups.iter().position(stores).into_iter().collect();
    let mut group = Group::copying(flow, n, at, deps);
    sort_axes(flow, &mut group);
    groups.push(group);
    (at, groups.len() - 1)
}
