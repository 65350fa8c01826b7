//! Filters of convolutions of a GPU whose images have channels last, which are stored as `[out, kernel.., in]`.
//!
//! The reduction is then contiguous in both operands, and 16 bytes are copied at a time. A launch that computes filters
//! (casts them, folds a norm into them) writes them in this layout. Others are copied: once, in *prepare*, if they
//! depend on parameters only, else in each run, which the costs include. Images can be copied likewise.

use super::{Image, differs, sort_axes};
use crate::flow::{Flow, Nid, Node, Op};
use crate::fuse::Group;
use hashbrown::HashMap;
use smallvec::SmallVec;

/// The launches whose filters can be stored in this layout.
pub(super) struct Filters {
    /// The launch that computes each filter.
    producers: HashMap<Nid, usize>,
}

impl Filters {
    /// Returns the filters of a program. `is_channels_last` is, for each group, true if it is a convolution that may
    /// have channels last.
    pub fn of(flow: &Flow, groups: &[Group], is_channels_last: &[bool]) -> Filters {
        let mut pinned = super::pinned_values(flow);
        for (group, is_channels_last) in groups.iter().zip(is_channels_last) {
            let operands = group
                .anchor
                .iter()
                .flat_map(|a| a.operands.iter().enumerate());
            let operands = operands.filter(|(i, _)| !is_channels_last || *i != 1);
            pinned.extend(operands.map(|(_, o)| o.held));
        }
        let unanchored = groups
            .iter()
            .enumerate()
            .filter(|(_, g)| g.anchor.is_none());
        let producers =
            unanchored.flat_map(|(g, group)| group.roots.iter().map(move |(n, _)| (*n, g)));
        Filters {
            producers: producers.filter(|(n, _)| !pinned.contains(n)).collect(),
        }
    }

    /// True if filter `n` is copied in each run.
    pub fn is_copied_each_run(&self, flow: &Flow, n: Nid) -> bool {
        differs(flow, n) && !flow.nodes[n].parameter_only && !self.producers.contains_key(&n)
    }
}

/// Stores filters with channels last. `is_channels_last` is, for each group, true if its convolution has such filters.
pub(super) fn store_channels_last(
    flow: &mut Flow,
    groups: &mut Vec<Group>,
    is_channels_last: &[bool],
) {
    let filters = Filters::of(flow, groups, is_channels_last);
    let mut copies: HashMap<Nid, (Nid, usize)> = HashMap::new();
    for g in (0..is_channels_last.len()).filter(|g| is_channels_last[*g]) {
        let filter_of = |group: &Group| group.anchor.as_ref().map(|a| a.operands[1].held);
        let Some(n) = filter_of(&groups[g]).filter(|n| differs(flow, *n)) else {
            continue;
        };
        if let Some(producer) = filters.producers.get(&n) {
            flow.nodes[n].channels_last = true;
            sort_axes(flow, &mut groups[*producer]);
            continue;
        }
        let copy = *copies.entry(n).or_insert_with(|| add_copy(flow, groups, n));
        replace_operand(&mut groups[g], 1, copy);
    }
}

/// Makes convolutions read a copy of an image with channels last. It is a launch of its own: as a prologue it would be
/// read element by element.
pub(super) fn read_copy(flow: &mut Flow, groups: &mut Vec<Group>, image: &Image) {
    let copy = add_copy(flow, groups, image.value);
    flow.nodes[copy.0].apart = true;
    for (g, operand) in &image.readers {
        replace_operand(&mut groups[*g], *operand, copy);
    }
}

/// Replaces an operand of a launch by a copy, which launch `writer` writes.
fn replace_operand(group: &mut Group, operand: usize, (copy, writer): (Nid, usize)) {
    if let Some(anchor) = &mut group.anchor {
        anchor.operands[operand].held = copy;
    }
    group.loaded.insert(copy);
    group.deps.push(writer);
}

/// Adds a copy with channels last, and returns its node and launch.
fn add_copy(flow: &mut Flow, groups: &mut Vec<Group>, n: Nid) -> (Nid, usize) {
    let copy = Node {
        op: Op::Copy,
        inputs: SmallVec::from_iter([n]),
        helper: true,
        channels_last: true,
        apart: false,
        measured: None,
        ..flow.nodes[n].clone()
    };
    let index = flow.nodes.len();
    flow.nodes.push(copy);
    let stores = |group: &Group| group.roots.iter().any(|(r, _)| *r == n);
    let deps = groups.iter().position(stores).into_iter().collect();
    let mut group = Group::for_copy(flow, n, index, deps);
    sort_axes(flow, &mut group);
    groups.push(group);
    (index, groups.len() - 1)
}
