//! Construction of a flow from the op graph.

use super::{Flow, FlowOutput, Nid, Node, Op, Result, Rounding, WIDE};
use crate::affine::{Affine, Ax};
use crate::limits::TwoSteps;
use crate::{Hint, Hints, Options, engine};
use hashbrown::HashMap;
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Features, Machine};
use kiln_ir::{Graph, NodeId, Op as IrOp, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// The first of the two steps of a reduction.
#[derive(Copy, Clone)]
enum FirstStep {
    /// Rows along the last axis, in a reduction of all axes. A kernel that reduces the rows of the same value can also
    /// compute these.
    Rows,
    /// A number of chunks of some adjacent axes.
    Chunks(AxisRun, i64),
}

/// Adjacent reduced axes: the first, their number, and their elements.
#[derive(Copy, Clone)]
struct AxisRun {
    first: usize,
    axes: usize,
    extent: i64,
}

/// The minimum number of elements of a row, and the upper bound of the number of rows, for [`FirstStep::Rows`].
const MIN_ROW: i64 = 256;
const MAX_ROWS: i64 = 1 << 13;

/// Lowers the graph to a flow.
///
/// # Errors
/// On composites and ops without a kernel.
pub(crate) fn build(graph: &Graph, options: &Options, hints: &Hints) -> Result<Flow> {
    let mut b = FlowBuilder {
        flow: Flow::default(),
        source_value: Value {
            node: NodeId(0),
            output: 0,
        },
        two_steps: options.fuse.then(|| engine::limits(options).two_steps),
        hint: None,
        level: match &options.machine {
            Machine::Cpu(cpu) => Some(cpu.level),
            Machine::Gpu(_) => None,
        },
        casts: HashMap::new(),
    };
    let mut of_node: Vec<SmallVec<[Nid; 1]>> = Vec::with_capacity(graph.len());
    for (id, node) in graph.iter() {
        b.source_value = id.value();
        b.hint = hints.get(&id).copied();
        let inputs: SmallVec<[Nid; 3]> = node
            .inputs
            .iter()
            .map(|v| of_node[v.node.index()][v.output as usize])
            .collect();
        of_node.push(match &node.op {
            IrOp::If(_) | IrOp::Loop(_) | IrOp::Collective(_) => b.control(node, &inputs),
            IrOp::Barrier(_) => b.barrier(&inputs),
            _ => SmallVec::from_iter([b.append_node(graph, id, &inputs)?]),
        });
        if let (Some(hint), Some([n])) = (b.hint, of_node.last().map(|n| &n[..])) {
            // A convolution may come before the cast of its result.
            let node = &b.flow.nodes[*n];
            let is_cast = matches!((hint, &node.op), (Hint::Images(..), Op::Cast(_)));
            let target = if is_cast { node.inputs[0] } else { *n };
            b.flow.nodes[target].apply_hint(hint);
        }
    }
    b.outputs(graph, &of_node);
    Ok(b.flow)
}

/// A builder that appends nodes.
pub(super) struct FlowBuilder {
    pub(super) flow: Flow,
    source_value: Value,
    two_steps: Option<TwoSteps>,
    /// The hint that overrides the rules for lowering the current node.
    hint: Option<Hint>,
    /// The feature level of the CPU; none on a GPU.
    pub(super) level: Option<Features>,
    /// Values cast to another dtype for library kernels.
    pub(super) casts: HashMap<(Nid, DType), Nid>,
}

impl FlowBuilder {
    pub(super) fn on_gpu(&self) -> bool {
        self.level.is_none()
    }

    /// Appends a helper node, a step towards the current value.
    pub(super) fn helper(
        &mut self,
        op: Op,
        inputs: &[Nid],
        dtype: DType,
        shape: impl IntoIterator<Item = Dim>,
    ) -> Nid {
        let parameter_only = match op {
            Op::Input(_) => false,
            _ => inputs.iter().all(|i| self.flow.nodes[*i].parameter_only),
        };
        self.flow.nodes.push(Node {
            op,
            inputs: inputs.into(),
            dtype,
            shape: shape.into_iter().collect(),
            source: self.source_value,
            helper: true,
            parameter_only,
            channels_last: false,
            apart: false,
            measured: None,
        });
        self.flow.nodes.len() - 1
    }

    /// Appends a concatenation of many values in steps. A kernel selects among all of its operands for every element,
    /// so each step has few.
    pub(super) fn wide_concat(&mut self, axis: usize, parts: &[Nid], shape: &[Dim]) -> Nid {
        let dtype = self.dtype(parts[0]);
        let mut parts = parts.to_vec();
        while parts.len() > 1 {
            let step = |chunk: &[Nid]| {
                let lens = chunk.iter().map(|n| &self.flow.nodes[*n].shape[axis]);
                let len = lens.fold(Dim::ZERO, |sum, d| &sum + d);
                let mut chunk_shape = shape.to_vec();
                chunk_shape[axis] = len;
                match chunk {
                    [single] => *single,
                    _ => self.helper(Op::Concat(axis), chunk, dtype, chunk_shape),
                }
            };
            parts = parts.chunks(WIDE).map(step).collect();
        }
        parts[0]
    }

    /// Appends a loop, branch or collective operation, and its outputs.
    fn control(&mut self, node: &kiln_ir::Node, inputs: &[Nid]) -> SmallVec<[Nid; 1]> {
        let call = self.helper(
            Op::Control(Arc::new(node.op.clone())),
            inputs,
            DType::Bool,
            [],
        );
        let facts = node.facts.iter().enumerate();
        facts
            .map(|(i, f)| {
                self.source_value.output = i as u32;
                let part = self.helper(Op::Part, &[call], f.dtype, f.shape.iter().cloned());
                self.flow.nodes[part].helper = false;
                part
            })
            .collect()
    }

    /// Appends the results of a barrier. A barrier of a single operand orders nothing.
    fn barrier(&mut self, inputs: &[Nid]) -> SmallVec<[Nid; 1]> {
        if let [single] = inputs {
            return SmallVec::from_iter([*single]);
        }
        let mut outputs = SmallVec::new();
        for i in 0..inputs.len() {
            self.source_value.output = i as u32;
            let mut operands: SmallVec<[Nid; 3]> = inputs.into();
            operands.swap(0, i);
            let (dtype, shape) = (self.dtype(inputs[i]), self.shape(inputs[i]));
            let after = self.helper(Op::After, &operands, dtype, shape);
            self.flow.nodes[after].helper = false;
            outputs.push(after);
        }
        outputs
    }

    /// Appends a reduction. One with few results and many elements runs in two steps, for threads to share the work.
    /// The steps depend only on the shape.
    pub(super) fn reduce(&mut self, kind: Reduction, axes: &[usize], x: Nid) -> Nid {
        let (dtype, shape) = {
            let x = &self.flow.nodes[x];
            (x.dtype, x.shape.clone())
        };
        let kept: SmallVec<[Dim; 4]> = (0..shape.len())
            .filter(|a| !axes.contains(a))
            .map(|a| shape[a].clone())
            .collect();
        // A reduction of one element is the element.
        if axes.iter().all(|a| shape[*a].is(1)) {
            return self.helper(Op::Reshape, &[x], dtype, kept);
        }
        let one_step =
            |b: &mut Self| b.helper(Op::Reduce(kind, axes.into()), &[x], dtype, kept.clone());
        let first_step = match self.hint {
            Some(Hint::Parts(parts)) => split_into_chunks(parts, &shape, axes),
            _ => (self.two_steps).and_then(|limits| limits.first_step(&shape, axes, &kept)),
        };
        let Some(first_step) = first_step else {
            return one_step(self);
        };
        let wide = match dtype {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        };
        let mut x = x;
        if wide != dtype {
            x = self.helper(Op::Cast(Rounding::Here), &[x], wide, shape.clone());
        }
        let last = shape.len() - 1;
        let (x, split, reduced) = match first_step {
            FirstStep::Rows => (x, shape, SmallVec::from_iter([last])),
            FirstStep::Chunks(run, chunks) => {
                let (before, after) = (&shape[..run.first], &shape[run.first + run.axes..]);
                let parts = [chunks, run.extent / chunks].map(Dim::Const);
                let split: SmallVec<[Dim; 4]> =
                    before.iter().chain(&parts).chain(after).cloned().collect();
                let x = self.helper(Op::Reshape, &[x], wide, split.clone());
                // The axis of chunks remains for the second step.
                let end = run.first + run.axes;
                let before = axes.iter().copied().filter(|a| *a < run.first);
                let after = axes.iter().filter(|a| **a >= end).map(|a| a + 2 - run.axes);
                let reduced = before.chain([run.first + 1]).chain(after);
                (x, split, reduced.collect::<SmallVec<[usize; 4]>>())
            }
        };
        let kept_axes = (0..split.len()).filter(|a| !reduced.contains(a));
        let partial_shape = kept_axes.clone().map(|a| split[a].clone());
        let partial_shape: SmallVec<[Dim; 4]> = partial_shape.collect();
        let second = match first_step {
            FirstStep::Rows => (0..last).collect(),
            FirstStep::Chunks(run, _) => {
                SmallVec::from_iter([kept_axes.filter(|a| *a < run.first).count()])
            }
        };
        let partial = self.helper(Op::Reduce(kind, reduced), &[x], wide, partial_shape);
        let result = self.helper(Op::Reduce(kind, second), &[partial], wide, kept.clone());
        if wide != dtype {
            return self.helper(Op::Cast(Rounding::Stored), &[result], dtype, kept);
        }
        result
    }

    /// Adds the outputs, each with a separate buffer. Inputs, constants and duplicate outputs are copied.
    fn outputs(&mut self, graph: &Graph, of_node: &[SmallVec<[Nid; 1]>]) {
        let mut is_output = vec![false; self.flow.nodes.len()];
        for o in &graph.outputs {
            let n = of_node[o.value.node.index()][o.value.output as usize];
            if o.target == kiln_ir::Target::Kept {
                let output = FlowOutput {
                    node: n,
                    required: false,
                };
                self.flow.outputs.push(output);
                continue;
            }
            let is_leaf = self.flow.nodes[n].is_leaf();
            let node = if is_output[n] || is_leaf {
                self.source_value = o.value;
                let (dtype, shape) = {
                    let x = &self.flow.nodes[n];
                    (x.dtype, x.shape.clone())
                };
                self.helper(Op::Copy, &[n], dtype, shape)
            } else {
                is_output[n] = true;
                n
            };
            self.flow.outputs.push(FlowOutput {
                node,
                required: true,
            });
        }
    }
}

/// Returns the view whose dim d is the operand's dim `perm[d]`.
pub(super) fn permute(perm: &[usize]) -> Op {
    let mut index = vec![Affine::zero(); perm.len()];
    for (to, from) in (0..).zip(perm) {
        index[*from] = Affine::axis(to);
    }
    Op::view(index)
}

/// Returns the view that stretches dims of size 1 and adds leading dims.
pub(super) fn broadcast(from: &[Dim], to: &[Dim]) -> Op {
    let added = (to.len() - from.len()) as Ax;
    let index = (added..).zip(from).map(|(a, d)| match d.is(1) {
        true => Affine::zero(),
        false => Affine::axis(a),
    });
    Op::view(index.collect())
}

impl TwoSteps {
    /// Returns the first of the two steps of a long reduction; `None` if one step is enough.
    fn first_step(self, shape: &[Dim], axes: &[usize], kept: &[Dim]) -> Option<FirstStep> {
        let results = kiln_base::numel(kept).as_const()?;
        let elements = axes
            .iter()
            .try_fold(1i64, |n, a| n.checked_mul(shape[*a].as_const()?))?;
        let row = shape.last()?.as_const()?;
        let rows = elements / row.max(1);
        if kept.is_empty()
            && elements >= self.min_long
            && row >= MIN_ROW
            && (self.few_rows..MAX_ROWS).contains(&rows)
        {
            return Some(FirstStep::Rows);
        }
        let reduces_columns = shape.len() > 1 && !axes.contains(&(shape.len() - 1)) && results > 1;
        let (few, is_long) = match reduces_columns {
            true => (
                self.few_columns,
                results.saturating_mul(elements) >= self.min_large,
            ),
            false => (self.few_rows, elements >= self.min_long),
        };
        if results >= few || !is_long || results == 0 {
            return None;
        }
        runs(shape, axes).find_map(|run| {
            let extent = run.extent;
            let min = (few / results).max(2);
            let max = (4 * min).min(extent / 8).min(4 * self.few_rows);
            let chunks = (min.min(max).max(2)..=max).find(|c| extent % c == 0)?;
            Some(FirstStep::Chunks(run, chunks))
        })
    }
}

/// Returns the runs of adjacent `axes` whose extents are known.
fn runs<'a>(shape: &'a [Dim], axes: &'a [usize]) -> impl Iterator<Item = AxisRun> + 'a {
    let is_start = |i: usize| i == 0 || axes[i - 1] + 1 != axes[i];
    let is_start = (0..axes.len()).filter(move |i| is_start(*i));
    is_start.filter_map(|i| {
        let next = (i + 1..axes.len()).take_while(|j| axes[*j] == axes[i] + j - i);
        let run = &axes[i..=i + next.count()];
        let extent = run
            .iter()
            .try_fold(1i64, |n, a| n.checked_mul(shape[*a].as_const()?))?;
        Some(AxisRun {
            first: run[0],
            axes: run.len(),
            extent,
        })
    })
}

/// Returns the division of some axes into about `parts` equal chunks. `None` if `parts` is below 2, or nothing divides
/// near that number.
fn split_into_chunks(parts: i64, shape: &[Dim], axes: &[usize]) -> Option<FirstStep> {
    if parts < 2 {
        return None;
    }
    runs(shape, axes).find_map(|run| {
        let extent = run.extent;
        let divides = |c: &i64| extent % c == 0 && extent / c > 1;
        let mut counts = (0..parts / 2).flat_map(|d| [parts + d, parts - d]);
        Some(FirstStep::Chunks(run, counts.find(divides)?))
    })
}
