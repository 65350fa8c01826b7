//! Which nodes share a launch.
//!
//! One walk over the nodes, users before operands. A *group* is what becomes a launch: an iteration
//! space, the values it stores (*roots*, each with the map from space to element), and the values it
//! loads. When the walk reaches a node, all its users are placed, and each group that needs it has
//! left a *demand*: the map under which it reads the node, or none where it needs it in memory. The
//! node then
//!
//! * is computed in place by every group that reads it, if it is an index map ([`Node::is_index_map`]),
//! * joins the one group that reads it, if [`Fuser::can_join`] allows it,
//! * is computed twice, if several groups read it and it is cheap ([`cost::CHEAP`]),
//! * else is stored: by a group that reads it at a bijective map as one more output, where that makes
//!   no cycle, or by a group of its own.
//!
//! Groups that read the same value over the same space are merged. Values that depend on parameters
//! only are not computed by groups that depend on data, unless they would be larger than what they
//! are made of.

use crate::Options;
use crate::affine::{Affine, Map, Space, flatten};
use crate::flow::{Flow, Nid, Node, Op, WIDE};
use hashbrown::{HashMap, HashSet};
use kiln_base::Dim;

mod absorb;
#[cfg(test)]
mod bugs;
mod cost;
mod join;
mod merge;
mod propagate;
mod turn;

use merge::Merged;

pub(crate) use absorb::{Before, absorb};
pub(crate) use propagate::{behind_reshapes, storage, through_reduction, through_view};

/// A launch in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub space: Space,
    /// What it stores, and under which map.
    pub roots: Vec<(Nid, Map)>,
    /// What it reads from memory.
    pub loaded: HashSet<Nid>,
    /// The library kernel whose result the rest works on.
    pub anchor: Option<Anchor>,
    /// What makes operands of the library kernel.
    pub before: Vec<Before>,
    /// For each reduction in it, the index of the reduced dims over the inner axes, or over those walked in order.
    pub reduced: HashMap<Nid, Map>,
    /// The nodes it computes, users before operands.
    pub members: Vec<Nid>,
    pub parameter_only: bool,
    /// Groups that must run before it; while groups are made, some more than once.
    pub deps: Vec<usize>,
    /// Why values that cross its border were not fused.
    pub why_not: Vec<String>,
    ops: usize,
    pending: HashSet<Nid>,
    merged: Option<Box<Merged>>,
}

impl Group {
    /// A launch that makes `copy` of a value, behind the groups `deps`.
    pub fn copying(flow: &Flow, value: Nid, copy: Nid, deps: Vec<usize>) -> Group {
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
    pub operands: Vec<Operand>,
    /// The map under which the group reads the result.
    pub map: Map,
}

/// An operand of a library kernel.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    /// The node that is in memory.
    pub held: Nid,
    /// In elements, for operands that are read through strides.
    pub offset: Dim,
    /// One an axis (of a matrix product: `[batch.., row, column]`); none where it is read as a whole.
    pub strides: Vec<Dim>,
}

/// What a group wants of a node: its value under a map, or that it is in memory.
#[derive(Clone, Debug)]
struct Demand {
    group: usize,
    map: Option<Map>,
}

/// What one group wants of a node.
#[derive(Clone, Debug)]
struct Use {
    group: usize,
    maps: Vec<Map>,
    in_memory: bool,
}

/// The groups, in no particular order; see [`Group::deps`].
pub(crate) fn group(flow: &Flow, options: &Options) -> Vec<Group> {
    let n = flow.nodes.len();
    let facts = cost::NodeFacts::of(flow);
    let mut required = vec![false; n];
    for o in flow.outputs.iter().filter(|o| o.required) {
        required[o.node] = true;
    }
    let mut parts: HashMap<Nid, Vec<Nid>> = HashMap::new();
    for (v, node) in flow.nodes.iter().enumerate() {
        if let Op::Part = node.op {
            parts.entry(node.inputs[0]).or_default().push(v);
        }
    }
    let mut fuser = Fuser {
        flow,
        options,
        facts,
        groups: Vec::new(),
        demands: vec![Vec::new(); n],
        required,
        control: HashMap::new(),
        parts,
    };
    for v in (0..n).rev() {
        fuser.visit(v);
    }
    fuser.finish()
}

struct Fuser<'a> {
    flow: &'a Flow,
    options: &'a Options,
    facts: cost::NodeFacts,
    groups: Vec<Group>,
    demands: Vec<Vec<Demand>>,
    required: Vec<bool>,
    /// The groups of loops and branches of which an output is needed.
    control: HashMap<Nid, usize>,
    /// The outputs of loops and branches.
    parts: HashMap<Nid, Vec<Nid>>,
}

impl<'a> Fuser<'a> {
    fn node(&self, v: Nid) -> &'a Node {
        &self.flow.nodes[v]
    }

    /// The group that a merged group is part of now.
    fn find(&self, mut g: usize) -> usize {
        while let Some(merged) = &self.groups[g].merged {
            g = merged.into;
        }
        g
    }

    /// The group that a demand's is part of now, and the map over its space.
    fn current(&self, demand: Demand) -> (usize, Option<Map>) {
        let Demand { group, mut map } = demand;
        let mut g = group;
        while let Some(merged) = &self.groups[g].merged {
            map = map.map(|m| merged.map(&m));
            g = merged.into;
        }
        (g, map.map(|m| self.groups[g].space.resolve_map(&m)))
    }

    fn visit(&mut self, v: Nid) {
        let mut uses = self.uses(v);
        if let Op::Control(_) = self.node(v).op {
            return self.place_control(v);
        }
        if uses.is_empty() && !self.required[v] {
            return;
        }
        for u in &uses {
            self.groups[u.group].pending.remove(&v);
        }
        let node = self.node(v);
        let may_fuse = (self.options.fuse && !node.apart) || node.helper;
        if let Op::Part = node.op {
            self.place_part(v, &uses);
        } else if node.is_leaf() {
            if self.options.fuse {
                self.merge_readers(v, &mut uses);
            }
            for u in &uses {
                self.groups[u.group].loaded.insert(v);
                if let Op::After = node.op {
                    self.await_all(v, u.group);
                }
            }
        } else if node.is_index_map() && may_fuse {
            self.place_index_map(v, &uses);
        } else {
            if self.options.fuse {
                self.merge_readers(v, &mut uses);
            }
            self.place(v, &uses, may_fuse);
        }
    }

    /// The demands on a node, by group, with resolved maps and without repetition.
    fn uses(&mut self, v: Nid) -> Vec<Use> {
        let mut uses: Vec<Use> = Vec::new();
        let mut known: HashMap<usize, usize> = HashMap::new();
        for d in std::mem::take(&mut self.demands[v]) {
            let (group, map) = self.current(d);
            let at = *known.entry(group).or_insert_with(|| {
                uses.push(Use {
                    group,
                    maps: Vec::new(),
                    in_memory: false,
                });
                uses.len() - 1
            });
            match map {
                None => uses[at].in_memory = true,
                Some(m) if !uses[at].maps.contains(&m) => uses[at].maps.push(m),
                Some(_) => {}
            }
        }
        uses
    }

    fn place_index_map(&mut self, v: Nid, uses: &[Use]) {
        let node = self.node(v);
        let stored = self.required[v] || uses.iter().any(|u| u.in_memory);
        let selects = match &node.op {
            Op::View(view) => view.fill.is_some(),
            Op::Concat(_) => true,
            _ => false,
        };
        let most = match self.facts.sources[v] {
            0 => usize::MAX,
            _ => 8 * self.options.max_ops,
        };
        let mut readers = Vec::new();
        for u in uses {
            let wide = matches!(node.op, Op::Concat(_)) && node.inputs.len() >= WIDE;
            let crowded = wide || self.groups[u.group].members.len() > most;
            if u.in_memory || (stored && selects) || u.maps.len() > 16 || crowded {
                readers.push(u.group);
                continue;
            }
            self.groups[u.group].members.push(v);
            for m in &u.maps {
                self.propagate(v, u.group, m, None);
            }
        }
        if self.required[v] || !readers.is_empty() {
            let own = self.new_group(v);
            self.load_from(v, own, &readers);
        }
    }

    fn place(&mut self, v: Nid, uses: &[Use], may_fuse: bool) {
        let mut reasons: Vec<String> = Vec::new();
        let mut plans = Vec::with_capacity(uses.len());
        if may_fuse && (self.required[v] || uses.len() > 1) {
            for u in uses {
                self.commit_rows(v, u);
            }
        }
        for u in uses {
            plans.push(match may_fuse {
                true => self.can_join(v, u),
                false => Err("fusion is off".into()),
            });
            if let Some(Err(why)) = plans.last() {
                reasons.push(why.clone());
            }
        }
        let stored = self.required[v] || uses.iter().any(|u| u.in_memory);
        let all_can = plans.iter().all(Result::is_ok);
        if !stored && all_can && (uses.len() == 1 || self.is_cheap(v)) {
            for (u, plan) in uses.iter().zip(plans) {
                self.join(v, u, plan.expect("checked above"));
            }
            return;
        }
        if all_can && uses.len() > 1 {
            reasons.push("several launches read it and it is not cheap to compute twice".into());
        } else if all_can && self.required[v] && !uses.is_empty() {
            reasons.push("it is an output".into());
        }
        let can_host = |i: &usize| {
            let u = &uses[*i];
            let mut others = uses.iter().filter(|o| o.group != u.group);
            plans[*i].is_ok()
                && self.can_store(v, u)
                && others.all(|o| !self.depends(u.group, o.group))
        };
        // A group that walks over all that a reduction needs can have the result in passing; a smaller one
        // would be one more walk.
        let points = |i: &usize| self.groups[uses[*i].group].space.points();
        let host = (0..uses.len()).rev().filter(can_host).max_by_key(points);
        let own = match host {
            Some(i) => {
                let plan = plans.swap_remove(i).expect("hosts can be joined");
                self.join(v, &uses[i], plan);
                let group = &mut self.groups[uses[i].group];
                group.roots.push((v, uses[i].maps[0].clone()));
                uses[i].group
            }
            None => self.new_group(v),
        };
        let readers: Vec<usize> = uses.iter().map(|u| u.group).filter(|g| *g != own).collect();
        self.load_from(v, own, &readers);
        let node = self.node(v);
        reasons.dedup();
        for why in reasons.iter().filter(|_| self.options.fuse) {
            let text = format!("{} ({}) is stored: {why}", node.source, node.name());
            self.groups[own].why_not.push(text);
        }
    }

    /// Makes the launch of a loop or branch store one of its outputs.
    fn place_part(&mut self, v: Nid, uses: &[Use]) {
        let call = self.node(v).inputs[0];
        let own = match self.control.get(&call) {
            Some(own) => *own,
            None => {
                self.groups.push(Group {
                    parameter_only: self.node(call).parameter_only,
                    ..Group::default()
                });
                self.control.insert(call, self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.groups[own].roots.push((v, Map::new()));
        let readers: Vec<usize> = uses.iter().map(|u| u.group).collect();
        self.load_from(v, own, &readers);
    }

    /// A loop or branch runs where one of its outputs is needed, and writes all of them.
    fn place_control(&mut self, v: Nid) {
        let Some(own) = self.control.get(&v).copied() else {
            return;
        };
        for at in self.parts.remove(&v).unwrap_or_default() {
            let stored = |g: &Group| g.roots.iter().any(|(r, _)| *r == at);
            if !stored(&self.groups[own]) {
                self.groups[own].roots.push((at, Map::new()));
            }
        }
        self.groups[own].roots.sort_by_key(|(at, _)| *at);
        self.groups[own].members.push(v);
        self.set_anchor(v, own, &[]);
    }

    /// Makes a group that reads what lies behind a barrier wait for everything before it.
    fn await_all(&mut self, v: Nid, g: usize) {
        for &i in &self.node(v).inputs {
            let held = self.whole(i).held;
            self.demand(held, g, None);
        }
    }

    /// Makes `readers` load `v`, which `own` stores.
    fn load_from(&mut self, v: Nid, own: usize, readers: &[usize]) {
        for &g in readers {
            let group = &mut self.groups[g];
            group.loaded.insert(v);
            if group.deps.last() != Some(&own) {
                group.deps.push(own);
            }
        }
    }

    /// A group that stores `v`.
    fn new_group(&mut self, v: Nid) -> usize {
        let node = self.node(v);
        let (mut space, map) = Space::over(&node.shape);
        let mut group = Group {
            parameter_only: node.parameter_only,
            ops: 0,
            ..Group::default()
        };
        let inner = match &node.op {
            Op::Reduce(..) | Op::ArgReduce(..) => Some(space.append(&self.reduced_dims(v), true)),
            _ => None,
        };
        group.space = space;
        group.roots.push((v, map.clone()));
        self.groups.push(group);
        let g = self.groups.len() - 1;
        let plan = match node.has_library() {
            true => join::Join::Anchor {
                space: Box::new(self.groups[g].space.clone()),
            },
            false => match inner {
                Some(inner) => join::Join::Reduce {
                    inner: Box::new(inner),
                    space: Box::new(self.groups[g].space.clone()),
                },
                None => join::Join::Inline,
            },
        };
        let u = Use {
            group: g,
            maps: vec![map],
            in_memory: false,
        };
        self.join(v, &u, plan);
        g
    }

    /// The extents that a reduction runs over.
    fn reduced_dims(&self, v: Nid) -> Vec<Dim> {
        let node = self.node(v);
        let shape = &self.node(node.inputs[0]).shape;
        match &node.op {
            Op::Reduce(_, axes) => axes.iter().map(|a| shape[*a].clone()).collect(),
            Op::ArgReduce(_, axis) => vec![shape[*axis].clone()],
            _ => Vec::new(),
        }
    }

    /// Leaves a demand.
    fn demand(&mut self, v: Nid, group: usize, map: Option<Map>) {
        if self.facts.sources[v] > 0 {
            self.groups[group].pending.insert(v);
        }
        let demand = Demand { group, map };
        self.demands[v].push(demand);
    }

    /// Whether group `a` needs, directly or not, that group `b` has run.
    fn depends(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        let mut seen = HashSet::new();
        let mut stack = vec![a];
        while let Some(g) = stack.pop() {
            for d in self.groups[g].deps.iter().map(|d| self.find(*d)) {
                if d == b {
                    return true;
                }
                if seen.insert(d) {
                    stack.push(d);
                }
            }
        }
        false
    }

    /// The flat index of a value under a map, over the space as it is now.
    fn flat(&self, v: Nid, g: usize, map: &[Affine]) -> Affine {
        let map = self.groups[g].space.resolve_map(map);
        flatten(&map, &self.node(v).shape)
    }

    /// Drops merged groups and renumbers.
    fn finish(mut self) -> Vec<Group> {
        let mut number = vec![usize::MAX; self.groups.len()];
        let live: Vec<usize> = (0..self.groups.len())
            .filter(|g| self.groups[*g].merged.is_none())
            .collect();
        for (new, old) in live.iter().enumerate() {
            number[*old] = new;
        }
        let renumber: Vec<usize> = (0..self.groups.len())
            .map(|g| number[self.find(g)])
            .collect();
        let mut groups = Vec::with_capacity(live.len());
        for &old in &live {
            let mut g = std::mem::take(&mut self.groups[old]);
            for d in &mut g.deps {
                *d = renumber[*d];
            }
            g.deps.sort();
            g.deps.dedup();
            groups.push(g);
        }
        groups
    }
}
