//! Fusion: the choice of nodes that share a launch.
//!
//! The pass visits each node once, users before operands. A *group* becomes a launch: an iteration space, the values
//! that it stores (*roots*, each with the map from space to element), and the values that it loads. When it reaches a
//! node, all users have been placed. Each group that needs the node has left a *demand*: the map under which it reads
//! the node, or none if it needs it in memory. The node then
//!
//! * is computed in place by every group that reads it, if it is an index map ([`Node::is_index_map`]),
//! * joins the one group that reads it, if [`Fuser::can_join`] allows it,
//! * is computed twice, if several groups read it and it is cheap ([`cost::MAX_CHEAP_COST`]),
//! * else is stored: by a group that reads it at a bijective map as one more output, where that makes
//!   no cycle, or by a group of its own.
//!
//! Groups that read the same value over the same space are merged. Values that depend on parameters only are not
//! computed by groups that depend on data, unless they would be larger than the values that they are computed from.

use crate::affine::{Map, Space};
use crate::flow::{Flow, Nid, Op, WIDE};
use crate::{Options, engine};
use hashbrown::HashMap;

mod absorb;
mod cost;
mod fuser;
mod join;
mod merge;
mod propagate;
#[cfg(test)]
mod tests;
mod transpose;

use fuser::{Fuser, Use};

pub(crate) use absorb::absorb;
pub(crate) use fuser::{Anchor, Group, LibraryOperand};
pub(crate) use propagate::{find_storage, through_reduction, through_reshapes, through_view};

/// On the CPU, reductions read concatenations of more elements than this from memory.
const LARGE_CONCAT: i64 = 1 << 14;

/// Returns the groups, in no particular order; see [`Group::deps`].
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
        limits: engine::limits(options),
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

impl<'a> Fuser<'a> {
    fn visit(&mut self, v: Nid) {
        let mut uses = self.take_uses(v);
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
                    self.demand_operands(v, u.group);
                }
            }
        } else if node.is_index_map() && may_fuse {
            self.place_index_map(v, &uses);
        } else {
            if self.options.fuse {
                self.merge_readers(v, &mut uses);
            }
            self.place_value(v, &uses, may_fuse);
        }
    }

    fn place_index_map(&mut self, v: Nid, uses: &[Use]) {
        let node = self.node(v);
        let is_stored = self.required[v] || uses.iter().any(|u| u.in_memory);
        let selects = match &node.op {
            Op::View(view) => view.fill.is_some(),
            Op::Concat(_) => true,
            _ => false,
        };
        let max_members = match self.facts.sources[v] {
            0 => usize::MAX,
            _ => 8 * self.options.max_ops,
        };
        let mut readers = Vec::new();
        for u in uses {
            // On the CPU, the loops of a reduction are not split at the borders of operands.
            let is_tested = self.options.machine.gpu().is_none()
                && !self.groups[u.group].space.inner.is_empty()
                && self.facts.numel[v] > LARGE_CONCAT;
            let is_wide =
                matches!(node.op, Op::Concat(_)) && (node.inputs.len() >= WIDE || is_tested);
            let is_crowded = is_wide || self.groups[u.group].members.len() > max_members;
            if u.in_memory || (is_stored && selects) || u.maps.len() > 16 || is_crowded {
                readers.push(u.group);
                continue;
            }
            self.groups[u.group].members.push(v);
            for m in &u.maps {
                self.propagate(v, u.group, m, None);
            }
        }
        if self.required[v] || !readers.is_empty() {
            let group = self.new_group(v);
            self.load_from(v, group, &readers);
        }
    }

    fn place_value(&mut self, v: Nid, uses: &[Use], may_fuse: bool) {
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
        let is_stored = self.required[v] || uses.iter().any(|u| u.in_memory);
        let all_can_join = plans.iter().all(Result::is_ok);
        if !is_stored && all_can_join && (uses.len() == 1 || self.is_cheap(v)) {
            for (u, plan) in uses.iter().zip(plans) {
                self.join(v, u, plan.expect("checked above"));
            }
            return;
        }
        if all_can_join && uses.len() > 1 {
            reasons.push("several launches read it and it is not cheap to compute twice".into());
        } else if all_can_join && self.required[v] && !uses.is_empty() {
            reasons.push("it is an output".into());
        }
        let can_host = |i: &usize| {
            let u = &uses[*i];
            let mut other_uses = uses.iter().filter(|o| o.group != u.group);
            plans[*i].is_ok()
                && self.can_store(v, u)
                && other_uses.all(|o| !self.depends(u.group, o.group))
        };
        // Prefer the largest group: one that reads all inputs of a reduction also computes its result.
        let points = |i: &usize| self.groups[uses[*i].group].space.points();
        let host = (0..uses.len()).rev().filter(can_host).max_by_key(points);
        let writer = match host {
            Some(i) => {
                let plan = plans.swap_remove(i).expect("hosts can be joined");
                self.join(v, &uses[i], plan);
                let group = &mut self.groups[uses[i].group];
                group.roots.push((v, uses[i].maps[0].clone()));
                uses[i].group
            }
            None => self.new_group(v),
        };
        let readers = uses.iter().map(|u| u.group).filter(|g| *g != writer);
        let readers: Vec<usize> = readers.collect();
        self.load_from(v, writer, &readers);
        let node = self.node(v);
        reasons.dedup();
        for why in reasons.iter().filter(|_| self.options.fuse) {
            let text = format!("{} ({}) is stored: {why}", node.source, node.name());
            self.groups[writer].why_not.push(text);
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

    /// Places a loop or branch, if one of its outputs is needed. It then writes all of them.
    fn place_control(&mut self, v: Nid) {
        let Some(own) = self.control.get(&v).copied() else {
            return;
        };
        for part in self.parts.remove(&v).unwrap_or_default() {
            let is_root = |g: &Group| g.roots.iter().any(|(r, _)| *r == part);
            if !is_root(&self.groups[own]) {
                self.groups[own].roots.push((part, Map::new()));
            }
        }
        self.groups[own].roots.sort_by_key(|(part, _)| *part);
        self.groups[own].members.push(v);
        self.set_anchor(v, own, &[]);
    }

    /// Adds the demands of a group that reads a value after a barrier on all operands of the barrier.
    fn demand_operands(&mut self, v: Nid, g: usize) {
        for &i in &self.node(v).inputs {
            let stored = self.contiguous(i).held;
            self.demand(stored, g, None);
        }
    }

    /// Adds a group that stores `v`, and returns its number.
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
}
