//! Groups under construction, and their demands on nodes.

use super::cost::{MAX_CHEAP_COST, NodeFacts, is_result};
use crate::Options;
use crate::affine::{Affine, Ax, Map, Space, flatten};
use crate::flow::{Flow, Nid, Node, Op};
use crate::limits::Limits;
use hashbrown::{HashMap, HashSet};
use kiln_base::Dim;
use smallvec::SmallVec;

/// A launch under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub space: Space,
    /// The values that it stores, each with its map.
    pub roots: Vec<(Nid, Map)>,
    /// The values that it reads from memory.
    pub loaded: HashSet<Nid>,
    /// The library kernel whose result the rest of the group reads.
    pub anchor: Option<Anchor>,
    /// The prologues of operands of the library kernel.
    pub prologues: Vec<Prologue>,
    /// For each reduction in it, the index of the reduced dims over the inner axes, or over those walked in order.
    pub reduced: HashMap<Nid, Map>,
    /// The nodes it computes, users before operands.
    pub members: Vec<Nid>,
    pub parameter_only: bool,
    /// The groups that must run before it. During construction, there may be duplicates.
    pub deps: Vec<usize>,
    /// The reasons why values that cross its border were not fused.
    pub why_not: Vec<String>,
    pub(super) ops: usize,
    pub(super) pending: HashSet<Nid>,
    pub(super) merged: Option<Box<Merged>>,
}

impl Group {
    /// Returns a launch that writes `copy`, a copy of a value, after the groups `deps`.
    pub fn for_copy(flow: &Flow, value: Nid, copy: Nid, deps: Vec<usize>) -> Group {
        let node = &flow.nodes[copy];
        let (space, map) = Space::over(&node.shape);
        Group {
            space,
            roots: vec![(copy, map)],
            loaded: HashSet::from_iter([value]),
            members: vec![copy],
            parameter_only: node.parameter_only,
            deps,
            ..Group::default()
        }
    }
}

/// A library kernel in a group.
#[derive(Clone, Debug)]
pub(crate) struct Anchor {
    pub node: Nid,
    pub operands: Vec<LibraryOperand>,
    /// The map under which the group reads the result.
    pub map: Map,
}

/// An operand of a library kernel.
#[derive(Clone, Debug)]
pub(crate) struct LibraryOperand {
    /// The node that is in memory.
    pub held: Nid,
    /// In elements, for operands that are read through strides.
    pub offset: Dim,
    /// One per axis (of a matrix product: `[batch.., row, column]`); empty if it is contiguous.
    pub strides: Vec<Dim>,
}

/// The demand of a group on a node: its value under a map, or its presence in memory.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub(super) group: usize,
    pub(super) map: Option<Map>,
}

/// All demands of one group on a node.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) group: usize,
    pub(super) maps: Vec<Map>,
    pub(super) in_memory: bool,
}

/// The prologue of an operand of a product.
#[derive(Clone, Debug)]
pub(crate) struct Prologue {
    /// The operand's position.
    pub side: usize,
    /// The group whose only value is the operand.
    pub group: Group,
}

/// The group that a group was merged into.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    pub into: usize,
    /// Its former space, and the names of its axes in the other group's.
    pub(super) space: Space,
    pub(super) names: Names,
}

impl Merged {
    /// Returns a map over the former space as one over the other group's.
    pub fn rename_map(&self, map: &Map) -> Map {
        rename_map(&self.space, &self.names, map)
    }
}

pub(super) struct Fuser<'a> {
    pub(super) flow: &'a Flow,
    pub(super) options: &'a Options,
    pub(super) limits: Limits,
    pub(super) facts: NodeFacts,
    pub(super) groups: Vec<Group>,
    pub(super) demands: Vec<Vec<Demand>>,
    pub(super) required: Vec<bool>,
    /// The groups of loops and branches with an output that is needed.
    pub(super) control: HashMap<Nid, usize>,
    /// The outputs of loops and branches.
    pub(super) parts: HashMap<Nid, Vec<Nid>>,
}

impl<'a> Fuser<'a> {
    pub(super) fn node(&self, v: Nid) -> &'a Node {
        &self.flow.nodes[v]
    }

    /// Returns the group that a merged group is part of now.
    pub(super) fn find(&self, g: usize) -> usize {
        representative(&self.groups, g)
    }

    /// Returns the group that a demand belongs to now, and its map over that group's space.
    pub(super) fn resolve_demand(&self, demand: Demand) -> (usize, Option<Map>) {
        let Demand { group, mut map } = demand;
        let mut g = group;
        while let Some(merged) = &self.groups[g].merged {
            map = map.map(|m| merged.rename_map(&m));
            g = merged.into;
        }
        (g, map.map(|m| self.groups[g].space.resolve_map(&m)))
    }

    /// Removes the demands on a node, and returns them by group, with resolved maps and without duplicates.
    pub(super) fn take_uses(&mut self, v: Nid) -> Vec<Use> {
        let mut uses: Vec<Use> = Vec::new();
        let mut index_of: HashMap<usize, usize> = HashMap::new();
        for d in std::mem::take(&mut self.demands[v]) {
            let (group, map) = self.resolve_demand(d);
            let index = *index_of.entry(group).or_insert_with(|| {
                uses.push(Use {
                    group,
                    maps: Vec::new(),
                    in_memory: false,
                });
                uses.len() - 1
            });
            match map {
                None => uses[index].in_memory = true,
                Some(m) if !uses[index].maps.contains(&m) => uses[index].maps.push(m),
                Some(_) => {}
            }
        }
        uses
    }

    /// Makes `readers` load `v`, which `writer` stores.
    pub(super) fn load_from(&mut self, v: Nid, writer: usize, readers: &[usize]) {
        for &g in readers {
            let group = &mut self.groups[g];
            group.loaded.insert(v);
            if group.deps.last() != Some(&writer) {
                group.deps.push(writer);
            }
        }
    }

    /// Returns the extents that a reduction runs over.
    pub(super) fn reduced_dims(&self, v: Nid) -> Vec<Dim> {
        let node = self.node(v);
        let shape = &self.node(node.inputs[0]).shape;
        match &node.op {
            Op::Reduce(_, axes) => axes.iter().map(|a| shape[*a].clone()).collect(),
            Op::ArgReduce(_, axis) => vec![shape[*axis].clone()],
            _ => Vec::new(),
        }
    }

    /// Adds a demand.
    pub(super) fn demand(&mut self, v: Nid, group: usize, map: Option<Map>) {
        if self.facts.sources[v] > 0 {
            self.groups[group].pending.insert(v);
        }
        let demand = Demand { group, map };
        self.demands[v].push(demand);
    }

    /// True if group `a` depends on group `b`, directly or not.
    pub(super) fn depends(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        let mut visited = HashSet::new();
        let mut stack = vec![a];
        while let Some(g) = stack.pop() {
            for d in self.groups[g].deps.iter().map(|d| self.find(*d)) {
                if d == b {
                    return true;
                }
                if visited.insert(d) {
                    stack.push(d);
                }
            }
        }
        false
    }

    /// Returns the flat index of a value under a map, over the current space.
    pub(super) fn flat(&self, v: Nid, g: usize, map: &[Affine]) -> Affine {
        let map = self.groups[g].space.resolve_map(map);
        flatten(&map, &self.node(v).shape)
    }

    /// True if every group that reads the value may compute it. A cast of a product's result to f16 or bf16 is
    /// excluded: the product would store f32 instead.
    pub(super) fn is_cheap(&self, v: Nid) -> bool {
        matches!(self.node(v).op, Op::Pw(_) | Op::Cast(_))
            && self.facts.cost[v] <= MAX_CHEAP_COST
            && !is_result(self.flow, v)
    }

    /// Returns the groups that are not merged, renumbered.
    pub(super) fn finish(mut self) -> Vec<Group> {
        let mut groups = std::mem::take(&mut self.groups);
        for g in 0..groups.len() {
            let deps = std::mem::take(&mut groups[g].deps).into_iter();
            groups[g].deps = deps.map(|d| representative(&groups, d)).collect();
        }
        let is_live = |g: &Group| g.merged.is_none();
        renumbered(
            groups
                .into_iter()
                .map(|g| Some(g).filter(is_live))
                .collect(),
        )
    }
}

/// Returns the group that a merged group is part of now.
fn representative(groups: &[Group], mut g: usize) -> usize {
    while let Some(merged) = &groups[g].merged {
        g = merged.into;
    }
    g
}

/// Returns the remaining groups, with renumbered dependences and without duplicates of these.
pub(super) fn renumbered(groups: Vec<Option<Group>>) -> Vec<Group> {
    let mut new_index = Vec::with_capacity(groups.len());
    let mut next = 0;
    for group in &groups {
        new_index.push(next);
        next += group.is_some() as usize;
    }
    let mut remaining: Vec<Group> = groups.into_iter().flatten().collect();
    for group in &mut remaining {
        group.deps.iter_mut().for_each(|d| *d = new_index[*d]);
        group.deps.sort();
        group.deps.dedup();
    }
    remaining
}

/// The names of one space's axes in another.
pub(super) type Names = SmallVec<[(Ax, Ax); 4]>;

pub(super) fn rename_map(space: &Space, names: &[(Ax, Ax)], map: &Map) -> Map {
    let map = space.resolve_map(map);
    let renamed = map.iter().map(|e| e.renamed(|a| rename_axis(names, a)));
    renamed.collect()
}

pub(super) fn rename_axis(rename: &[(Ax, Ax)], a: Ax) -> Ax {
    rename.iter().find(|r| r.0 == a).map_or(a, |r| r.1)
}
