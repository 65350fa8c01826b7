//! The lowering of each op, and the kernels of ops that no other op fuses with: scans, sorts, scatters, users'
//! operators.

use super::build::{FlowBuilder, broadcast, permute};
use super::{Nid, Op, Result, Rounding, WIDE};
use crate::LowerError;
use crate::affine::Affine;
use kiln_base::{DType, Dim, Scalar, numel};
use kiln_ir::{Fact, Graph, NodeId, Op as IrOp, OpDef, Role, ops};
use kiln_plan::{self as plan, Array, ConvRole, Kernel, SiteKind, Strided};
use std::fmt::Debug;

impl FlowBuilder {
    pub(super) fn append_node(&mut self, graph: &Graph, id: NodeId, inputs: &[Nid]) -> Result<Nid> {
        let node = graph.node(id);
        let n = self.lower(&node.op, id, node.fact(), inputs)?;
        let lowered = &mut self.flow.nodes[n];
        lowered.helper = false;
        if let IrOp::Input(i) = &node.op {
            lowered.parameter_only = i.role == Role::Parameter;
        }
        Ok(n)
    }

    /// Appends the nodes of an op with one output; returns the output.
    fn lower(&mut self, op: &IrOp, id: NodeId, fact: &Fact, inputs: &[Nid]) -> Result<Nid> {
        let (dtype, shape) = (fact.dtype, &fact.shape);
        let dims = || shape.iter().cloned();
        let operand = |b: &Self, i: usize| b.shape(inputs[i]);
        let op = match op {
            IrOp::MatMul(_) => return Ok(self.matmul(inputs)),
            IrOp::Conv(c) => return Ok(self.conv(c, inputs, shape)),
            IrOp::WindowReduce(w) => return Ok(self.window_reduce(w, inputs[0], shape)),
            IrOp::Reduce(r) => return Ok(self.reduce(r.kind, &r.axes, inputs[0])),
            IrOp::ConvTranspose(c) => {
                return self.conv_gradient(id, &c.conv, ConvRole::Input, inputs, shape);
            }
            IrOp::ConvWeight(c) => {
                return self.conv_gradient(id, &c.conv, ConvRole::Weight, inputs, shape);
            }
            IrOp::Attention(a) if self.on_gpu() || dtype != DType::F64 => Op::Attention(*a),
            IrOp::AttentionGrad(a) if self.on_gpu() || dtype != DType::F64 => {
                return Ok(self.own_kernel(a, inputs, dtype, dims()));
            }
            IrOp::Softmax(_) | IrOp::BatchNorm(_) | IrOp::Attention(_) | IrOp::AttentionGrad(_) => {
                let text = format!("{} is a composite; decompose it first", op.name());
                return Err(LowerError::new(id, text));
            }
            IrOp::Scan(s) => return Ok(self.scan(s, inputs[0])),
            IrOp::ArgSort(s) => return Ok(self.arg_sort(s, inputs[0], shape)),
            IrOp::Scatter(s) => return Ok(self.scatter(s, inputs)),
            IrOp::Custom(c) => return Ok(self.own_kernel(c, inputs, dtype, dims())),
            IrOp::Concat(c) if inputs.len() > WIDE => {
                return Ok(self.wide_concat(c.axis, inputs, shape));
            }
            IrOp::Input(i) => Op::Input(i.index),
            IrOp::Full(f) => Op::Scalar(f.value),
            IrOp::Constant(c) => match Scalar::from_bytes(c.dtype, &c.bytes) {
                Some(s) => Op::Scalar(s),
                None => Op::Data(c.bytes.clone()),
            },
            IrOp::Iota(_) => Op::Iota,
            IrOp::Numel(n) => Op::Size(numel(&n.shape)),
            IrOp::Random(r) => Op::Random(r.kind),
            IrOp::Pointwise(p) => Op::Pw(p.0),
            IrOp::Cast(cast) => Op::Cast(match cast.is_step {
                true => Rounding::Stored,
                false => Rounding::Here,
            }),
            IrOp::Broadcast(_) => broadcast(&operand(self, 0), shape),
            IrOp::Reshape(_) => Op::Reshape,
            IrOp::Permute(p) => permute(&p.perm),
            IrOp::Slice(s) => {
                let axes = (0..).zip(&s.axes);
                let index =
                    axes.map(|(a, s)| Affine::new(s.start.clone(), &[(a, &Dim::Const(s.step))]));
                Op::view(index.collect())
            }
            IrOp::Pad(p) => {
                let padded = (0..p.low.len()).filter(|a| !p.low[*a].is(0) || !p.high[*a].is(0));
                let index = (0..).zip(&p.low);
                let index = index.map(|(a, low)| Affine::axis(a).plus(&(&Dim::ZERO - low)));
                Op::padded_view(index.collect(), padded.collect(), p.value)
            }
            IrOp::Concat(c) => Op::Concat(c.axis),
            IrOp::Gather(g) => Op::Gather(g.axis),
            IrOp::ArgReduce(r) if operand(self, 0)[r.axis].is(1) => Op::Scalar(Scalar::Int(0)),
            IrOp::ArgReduce(r) => Op::ArgReduce(r.kind, r.axis),
            IrOp::Collective(_) | IrOp::If(_) | IrOp::Loop(_) | IrOp::Barrier(_) => {
                unreachable!("`build` lowers ops with several outputs")
            }
        };
        let inputs = match op {
            Op::Scalar(_) => &[],
            _ => inputs,
        };
        Ok(self.helper(op, inputs, dtype, dims()))
    }
}

/// An op with a kernel of its own, for the later stages.
pub(crate) trait Library: Debug + Send + Sync {
    /// True if the kernel reads an operand through strides; false if it needs it contiguous.
    fn is_strided(&self, operand: usize) -> bool {
        let _ = operand;
        false
    }

    /// Returns its kernel.
    fn kernel(&self, call: &LibraryCall) -> Kernel;

    /// Returns the value in which a data error can occur, and its kind.
    fn site(&self) -> Option<(&str, SiteKind)> {
        None
    }
}

/// The arguments of a [`Library`] kernel.
pub(crate) struct LibraryCall {
    /// The operands.
    pub operands: Vec<Array>,
    /// The layouts of the operands that are strided.
    pub strided: Vec<Strided>,
    /// The contiguous result.
    pub out: Array,
}

impl Library for ops::Scan {
    fn kernel(&self, call: &LibraryCall) -> Kernel {
        let Array { dtype, shape, arg } = &call.out;
        Kernel::Scan(plan::Scan {
            dtype: *dtype,
            kind: self.kind,
            reverse: self.reverse,
            outer: numel(&shape[..self.axis]),
            len: shape[self.axis].clone(),
            inner: numel(&shape[self.axis + 1..]),
            x: call.operands[0].arg,
            out: *arg,
        })
    }
}

/// Along the last axis.
impl Library for ops::ArgSort {
    fn kernel(&self, call: &LibraryCall) -> Kernel {
        let (x, last) = (&call.operands[0], self.axis);
        Kernel::ArgSort(plan::ArgSort {
            dtype: x.dtype,
            descending: self.descending,
            lanes: numel(&x.shape[..last]),
            len: x.shape[last].clone(),
            kept: call.out.shape[last].clone(),
            x: x.arg,
            out: call.out.arg,
        })
    }
}

impl Library for ops::Scatter {
    fn is_strided(&self, operand: usize) -> bool {
        operand > 0
    }

    fn kernel(&self, call: &LibraryCall) -> Kernel {
        Kernel::Scatter(plan::Scatter {
            dtype: call.out.dtype,
            kind: self.kind,
            axis: self.axis as u16,
            shape: call.out.shape.clone(),
            index_shape: call.operands[1].shape.clone(),
            x: call.operands[0].arg,
            index: call.strided[1].clone(),
            src: call.strided[2].clone(),
            out: call.out.arg,
        })
    }

    fn site(&self) -> Option<(&str, SiteKind)> {
        Some((self.name(), SiteKind::IndexOutOfRange))
    }
}

/// Reads matrices through any strides.
impl Library for ops::AttentionGrad {
    fn is_strided(&self, _operand: usize) -> bool {
        true
    }

    fn kernel(&self, call: &LibraryCall) -> Kernel {
        let extra: Vec<usize> = (4..call.operands.len()).collect();
        let matrix = |i: usize| call.strided[i].clone().into();
        let last = call.operands[2].shape.last();
        Kernel::AttentionGrad(Box::new(plan::AttentionGrad {
            scores: scores(&self.of, call, &extra),
            columns: last.cloned().unwrap_or(Dim::ONE),
            value: matrix(2),
            gradient: matrix(3),
            out: call.out.arg,
        }))
    }
}

/// Returns the scores of attention. Its mask and random key are among operands `extra`.
pub(crate) fn scores(spec: &ops::Attention, call: &LibraryCall, extra: &[usize]) -> plan::Scores {
    let (query, key) = (&call.operands[0].shape, &call.operands[1].shape);
    let batch = query.len() - 2;
    let matrix = |i: usize| call.strided[i].clone().into();
    let mask = spec.mask(extra).copied();
    let random = spec.dropout.zip(spec.random_key(extra).copied());
    plan::Scores {
        dtype: call.operands[0].dtype,
        scale: spec.scale.as_f64(),
        causal: spec.causal,
        batch: query[..batch].to_vec(),
        length: query[batch].clone(),
        keys: key[batch].clone(),
        width: key[batch + 1].clone(),
        query: matrix(0),
        key: matrix(1),
        mask: mask.map(|i| (matrix(i), call.operands[i].dtype)),
        dropout: random.map(|(p, i)| plan::Dropout {
            p: p.as_f64(),
            key: matrix(i),
        }),
    }
}

impl Library for ops::Custom {
    fn kernel(&self, call: &LibraryCall) -> Kernel {
        Kernel::Custom(plan::Custom {
            name: self.name.to_string(),
            kernel: None,
            operands: call.operands.clone(),
            out: call.out.clone(),
        })
    }

    fn site(&self) -> Option<(&str, SiteKind)> {
        Some((&self.name, SiteKind::Custom))
    }
}
