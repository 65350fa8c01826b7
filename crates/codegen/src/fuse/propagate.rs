//! The demands of computing a node at a map on its operands.

use super::fuser::{Anchor, Fuser, LibraryOperand};
use crate::affine::{Affine, Map, Space, flatten};
use crate::flow::{Flow, Nid, Op, View};
use kiln_base::Dim;

/// Returns the operand's map under a view.
pub(crate) fn through_view(view: &View, map: &[Affine]) -> Map {
    let substitute = |index: &Affine| {
        let mut e = Affine::constant(index.offset.clone());
        for (axis, c) in &index.terms {
            e.add_scaled(&map[*axis as usize], c);
        }
        e
    };
    view.index.iter().map(substitute).collect()
}

/// Returns a reduction's operand map: its own map for the kept dims, `inner` for the reduced ones.
pub(crate) fn through_reduction(op: &Op, rank: usize, map: &[Affine], inner: &[Affine]) -> Map {
    let is_reduced = |a: usize| match op {
        Op::Reduce(_, axes) => axes.contains(&a),
        Op::ArgReduce(_, axis) => *axis == a,
        _ => false,
    };
    let (mut kept, mut reduced) = (map.iter(), inner.iter());
    (0..rank)
        .map(|a| {
            let from = if is_reduced(a) {
                &mut reduced
            } else {
                &mut kept
            };
            from.next().expect("one entry per dim").clone()
        })
        .collect()
}

/// Returns the value in memory that `v` is a view of, and the flat index into it. The search stops at a value that
/// satisfies `is_stop`, or that is not a plain view.
pub(crate) fn find_storage(
    flow: &Flow,
    space: &mut Space,
    v: Nid,
    map: &[Affine],
    is_stop: &dyn Fn(Nid) -> bool,
) -> (Nid, Affine) {
    let mut map: Map = map.into();
    let mut v = v;
    loop {
        let node = &flow.nodes[v];
        if is_stop(v) {
            return (v, node.address(&map));
        }
        match &node.op {
            Op::View(view) if view.fill.is_none() => {
                map = through_view(view, &map);
                v = node.inputs[0];
            }
            Op::Reshape => {
                let operand = node.inputs[0];
                let from = &flow.nodes[operand].shape;
                match space.through_reshape(&map, from, &node.shape, false) {
                    Some(m) => {
                        map = m;
                        v = operand;
                    }
                    None => return through_reshapes(flow, v, flatten(&map, &node.shape), is_stop),
                }
            }
            _ => return (v, node.address(&map)),
        }
    }
}

/// Returns the value at the end of a chain of reshapes from `v`. All of them have the same layout in memory.
pub(crate) fn through_reshapes(
    flow: &Flow,
    mut v: Nid,
    flat: Affine,
    is_stop: &dyn Fn(Nid) -> bool,
) -> (Nid, Affine) {
    while matches!(flow.nodes[v].op, Op::Reshape) && !is_stop(v) {
        v = flow.nodes[v].inputs[0];
    }
    (v, flat)
}

impl<'a> Fuser<'a> {
    /// Adds demands on the operands of `v`, computed by group `g` at `map`.
    pub(super) fn propagate(&mut self, v: Nid, g: usize, map: &[Affine], inner: Option<&Map>) {
        let node = self.node(v);
        match &node.op {
            Op::Input(_) | Op::Data(_) | Op::Scalar(_) | Op::Iota | Op::Size(_) => {}
            Op::MatMul | Op::Conv(_) | Op::Attention(_) => {}
            Op::Library(..) | Op::Control(_) | Op::Part | Op::After => {}
            Op::Pw(_) | Op::Cast(_) | Op::Copy => {
                for &i in &node.inputs {
                    self.demand(i, g, Some(map.into()));
                }
            }
            Op::View(view) => self.demand(node.inputs[0], g, Some(through_view(view, map))),
            Op::Reshape => {
                let operand = node.inputs[0];
                let from = &self.node(operand).shape;
                let space = &mut self.groups[g].space;
                match space.through_reshape(map, from, &node.shape, true) {
                    Some(m) => self.demand(operand, g, Some(m)),
                    None => {
                        let is_stop = self.stop_condition();
                        let (stored, _) =
                            through_reshapes(self.flow, operand, Affine::zero(), &*is_stop);
                        self.demand(stored, g, None);
                    }
                }
            }
            Op::Concat(axis) => {
                let mut offset = Dim::ZERO;
                for &i in &node.inputs {
                    let mut m: Map = map.into();
                    m[*axis] = m[*axis].clone().plus(&(&Dim::ZERO - &offset));
                    offset = &offset + &self.node(i).shape[*axis];
                    self.demand(i, g, Some(m));
                }
            }
            Op::Gather(axis) => {
                self.demand(node.inputs[1], g, Some(map.into()));
                let x = node.inputs[0];
                let is_stop = self.stop_condition();
                let space = &mut self.groups[g].space;
                let mut m = space.resolve_map(map);
                m[*axis] = Affine::axis(space.add(self.flow.nodes[x].shape[*axis].clone()));
                let (stored, _) = find_storage(self.flow, space, x, &m, &*is_stop);
                self.demand(stored, g, None);
            }
            Op::Random(_) => {
                for word in 0..2 {
                    let m = Affine::constant(Dim::Const(word));
                    self.demand(node.inputs[0], g, Some(Map::from_iter([m])));
                }
            }
            Op::Reduce(..) | Op::ArgReduce(..) => {
                let rank = self.node(node.inputs[0]).shape.len();
                let inner = inner.expect("reductions join with their inner map");
                let m = through_reduction(&node.op, rank, map, inner);
                self.demand(node.inputs[0], g, Some(m));
            }
        }
    }

    /// Returns the condition at which searches through views stop: without fusion, at every node of the graph.
    fn stop_condition(&self) -> Box<dyn Fn(Nid) -> bool + 'a> {
        let fuse = self.options.fuse;
        let flow = self.flow;
        Box::new(move |n: Nid| !fuse && !flow.nodes[n].helper)
    }

    /// Sets the library kernel of group `g`, which reads its result under `map`.
    pub(super) fn set_anchor(&mut self, v: Nid, g: usize, map: &[Affine]) {
        let node = self.node(v);
        let operands = match &node.op {
            Op::MatMul => self.strided_matrices(v),
            Op::Attention(_) => node.inputs.iter().map(|n| self.strided(*n)).collect(),
            Op::Library(_, op) => {
                let operand = |(i, n): (usize, &Nid)| match op.is_strided(i) {
                    true => self.strided(*n),
                    false => self.contiguous(*n),
                };
                node.inputs.iter().enumerate().map(operand).collect()
            }
            _ => node.inputs.iter().map(|n| self.contiguous(*n)).collect(),
        };
        for o in &operands {
            self.demand(o.held, g, None);
        }
        self.groups[g].anchor = Some(Anchor {
            node: v,
            operands,
            map: map.into(),
        });
    }

    /// Returns a contiguous operand.
    pub(super) fn contiguous(&self, n: Nid) -> LibraryOperand {
        let is_stop = self.stop_condition();
        let (stored, _) = through_reshapes(self.flow, n, Affine::zero(), &*is_stop);
        LibraryOperand {
            held: stored,
            offset: Dim::ZERO,
            strides: Vec::new(),
        }
    }

    /// Returns an operand that is read through strides.
    fn strided(&self, n: Nid) -> LibraryOperand {
        let (mut space, map) = Space::over(&self.node(n).shape);
        self.through_views(&mut space, n, &map)
    }

    /// Returns the memory that `n` is a view of, with a stride for each entry of `map`, which are axes.
    fn through_views(&self, space: &mut Space, n: Nid, map: &[Affine]) -> LibraryOperand {
        let is_stop = self.stop_condition();
        let (stored, flat) = find_storage(self.flow, space, n, map, &*is_stop);
        let stride = |axis: &Affine| match axis.terms.first() {
            Some((a, _)) => flat.coefficient(*a),
            None => Dim::ZERO, // an extent of 1
        };
        LibraryOperand {
            held: stored,
            strides: map.iter().map(stride).collect(),
            offset: flat.offset,
        }
    }

    /// Returns the operands of a matrix product as strided matrices in memory.
    fn strided_matrices(&self, v: Nid) -> Vec<LibraryOperand> {
        let node = self.node(v);
        let mut space = Space::default();
        let batch: Vec<_> = node.shape[..node.shape.len() - 2]
            .iter()
            .map(|d| space.add(d.clone()))
            .collect();
        let rank = node.shape.len();
        let left = &self.node(node.inputs[0]).shape;
        let m = space.add(node.shape[rank - 2].clone());
        let n = space.add(node.shape[rank - 1].clone());
        let k = space.add(left[rank - 1].clone());
        let mut operand = |i: usize, row, col| {
            let axes = batch.iter().copied().chain([row, col]);
            let map: Map = axes.map(Affine::axis).collect();
            self.through_views(&mut space, node.inputs[i], &map)
        };
        vec![operand(0, m, k), operand(1, k, n)]
    }
}
