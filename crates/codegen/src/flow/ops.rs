//! The lowering of each op. Ops with a kernel of their own, which reads operands in memory, define it here: scans,
//! sorts, scatters, users' operators.

use super::build::{FlowBuilder, broadcast, permute};
use super::{DimIndex, Nid, Op, Result, Rounding, View, WIDE};
use crate::LowerError;
use kiln_base::{DType, Dim, Scalar, numel};
use kiln_ir::{Graph, NodeId, Op as IrOp, OpDef, Role, ops};
use kiln_plan::{self as plan, Array, ConvRole, Kernel, SiteKind, Strided};
use smallvec::SmallVec;
use std::fmt::Debug;

impl FlowBuilder {
    pub(super) fn node(&mut self, graph: &Graph, id: NodeId, inputs: &[Nid]) -> Result<Nid> {
        let node = graph.node(id);
        let fact = node.facts.first().cloned();
        let n = match &node.op {
            IrOp::MatMul(_) => self.matmul(inputs),
            IrOp::Conv(c) => self.conv(c, inputs, &node.fact().shape),
            IrOp::WindowReduce(w) => self.window_reduce(w, inputs[0], &node.fact().shape),
            IrOp::Reduce(r) => self.reduce(r.kind, &r.axes, inputs[0]),
            IrOp::ConvTranspose(c) => {
                let result = &node.fact().shape;
                self.conv_gradient(id, &c.conv, ConvRole::Input, inputs, result)?
            }
            IrOp::ConvWeight(c) => {
                let result = &node.fact().shape;
                self.conv_gradient(id, &c.conv, ConvRole::Weight, inputs, result)?
            }
            IrOp::Attention(a) if self.on_gpu() || node.fact().dtype != DType::F64 => {
                let shape = node.fact().shape.iter().cloned();
                self.helper(Op::Attention(*a), inputs, node.fact().dtype, shape)
            }
            IrOp::AttentionGrad(a) if self.on_gpu() || node.fact().dtype != DType::F64 => {
                let shape = node.fact().shape.iter().cloned();
                self.own_kernel(a, inputs, node.fact().dtype, shape)
            }
            IrOp::Softmax(_) | IrOp::BatchNorm(_) | IrOp::Attention(_) | IrOp::AttentionGrad(_) => {
                let text = format!("{} is a composite; decompose it first", node.op.name());
                return Err(LowerError::new(id, text));
            }
            IrOp::Scan(s) => self.scan(s, inputs[0]),
            IrOp::ArgSort(s) => self.arg_sort(s, inputs[0], &node.fact().shape),
            IrOp::Scatter(s) => self.scatter(s, inputs),
            IrOp::Custom(c) => {
                let shape = node.fact().shape.iter().cloned();
                self.own_kernel(c, inputs, node.fact().dtype, shape)
            }
            IrOp::Concat(c) if inputs.len() > WIDE => {
                self.wide_concat(c.axis, inputs, &node.fact().shape)
            }
            op => {
                let fact = fact.expect("all other ops have one output");
                let op = self.plain(op, inputs, &fact.shape);
                let inputs = if matches!(op, Op::Scalar(_)) {
                    &[]
                } else {
                    inputs
                };
                self.helper(op, inputs, fact.dtype, fact.shape)
            }
        };
        let last = &mut self.flow.nodes[n];
        last.helper = false;
        if let IrOp::Input(i) = &node.op {
            last.parameter_only = i.role == Role::Parameter;
        }
        Ok(n)
    }

    /// Returns the op of a node that lowers to exactly one.
    fn plain(&self, op: &IrOp, inputs: &[Nid], shape: &[Dim]) -> Op {
        let operand = |i: usize| &self.flow.nodes[inputs[i]];
        match op {
            IrOp::Input(i) => Op::Input(i.index),
            IrOp::Full(f) => Op::Scalar(f.value),
            IrOp::Constant(c) => match Scalar::from_bytes(c.dtype, &c.bytes) {
                Some(s) => Op::Scalar(s),
                None => Op::Data(c.bytes.clone()),
            },
            IrOp::Iota(_) => Op::Iota,
            IrOp::Numel(n) => Op::Size(kiln_base::numel(&n.shape)),
            IrOp::Random(r) => Op::Random(r.kind),
            IrOp::Pointwise(p) => Op::Pw(p.0),
            IrOp::Cast(cast) => Op::Cast(match cast.is_step {
                true => Rounding::Stored,
                false => Rounding::Here,
            }),
            IrOp::Broadcast(_) => Op::View(broadcast(&operand(0).shape, shape)),
            IrOp::Reshape(_) => Op::Reshape,
            IrOp::Permute(p) => Op::View(permute(&p.perm)),
            IrOp::Slice(s) => Op::View(View {
                index: s
                    .axes
                    .iter()
                    .enumerate()
                    .map(|(a, s)| DimIndex {
                        offset: s.start.clone(),
                        terms: SmallVec::from_iter([(a, Dim::Const(s.step))]),
                    })
                    .collect(),
                fill: None,
            }),
            IrOp::Pad(p) => {
                let bordered = (0..p.low.len()).filter(|a| !p.low[*a].is(0) || !p.high[*a].is(0));
                let bordered: SmallVec<[usize; 4]> = bordered.collect();
                let index = p.low.iter().enumerate().map(|(a, low)| DimIndex {
                    offset: &Dim::ZERO - low,
                    terms: SmallVec::from_iter([(a, Dim::ONE)]),
                });
                Op::View(View {
                    index: index.collect(),
                    fill: (!bordered.is_empty()).then_some((bordered, p.value)),
                })
            }
            IrOp::Concat(c) => Op::Concat(c.axis),
            IrOp::Gather(g) => Op::Gather(g.axis),
            IrOp::ArgReduce(r) if operand(0).shape[r.axis].is(1) => Op::Scalar(Scalar::Int(0)),
            IrOp::ArgReduce(r) => Op::ArgReduce(r.kind, r.axis),
            IrOp::MatMul(_)
            | IrOp::Conv(_)
            | IrOp::WindowReduce(_)
            | IrOp::Reduce(_)
            | IrOp::Softmax(_)
            | IrOp::BatchNorm(_)
            | IrOp::Attention(_)
            | IrOp::AttentionGrad(_)
            | IrOp::ConvTranspose(_)
            | IrOp::ConvWeight(_)
            | IrOp::Scan(_)
            | IrOp::ArgSort(_)
            | IrOp::Scatter(_)
            | IrOp::Custom(_)
            | IrOp::Collective(_)
            | IrOp::If(_)
            | IrOp::Loop(_)
            | IrOp::Barrier(_) => unreachable!("handled by `build` and `node`"),
        }
    }
}

/// The interface of an op with a kernel of its own to the later stages.
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

/// The arguments of such a kernel's call.
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
        let others: Vec<usize> = (4..call.operands.len()).collect();
        let matrix = |i: usize| call.strided[i].clone().into();
        let last = call.operands[2].shape.last();
        Kernel::AttentionGrad(Box::new(plan::AttentionGrad {
            scores: scores(&self.of, call, &others),
            columns: last.cloned().unwrap_or(Dim::ONE),
            value: matrix(2),
            gradient: matrix(3),
            out: call.out.arg,
        }))
    }
}

/// Returns the scores of attention, whose mask and random key are among these operands.
pub(crate) fn scores(of: &ops::Attention, call: &LibraryCall, others: &[usize]) -> plan::Scores {
    let (query, key) = (&call.operands[0].shape, &call.operands[1].shape);
    let batch = query.len() - 2;
    let matrix = |i: usize| call.strided[i].clone().into();
    let mask = of.mask(others).copied();
    let random = of.dropout.zip(of.random_key(others).copied());
    plan::Scores {
        dtype: call.operands[0].dtype,
        scale: of.scale.as_f64(),
        causal: of.causal,
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
