//! Recording ops one after the other, into a graph or lazily.

use crate::ops::SliceAxis;
use crate::{Fact, Facts, Graph, Op, OpError, Pw, Role, Shape, Value, ops};
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Loc, Scalar};
use smallvec::SmallVec;

/// A recorder of ops, to which composites and derivatives are written. The graph and the lazy recorder both implement
/// it, so each composite is written once.
pub trait Builder {
    /// A handle to one output of a recorded op.
    type Value: Clone;

    /// Records an op and gives its outputs.
    ///
    /// # Errors
    /// If the op does not apply to the operands.
    fn emit(
        &mut self,
        op: Op,
        inputs: &[Self::Value],
    ) -> Result<SmallVec<[Self::Value; 1]>, OpError>;

    /// Dtype and shape of a value.
    fn fact(&self, value: &Self::Value) -> Fact;

    /// Applies `f` to the dtype and shape of a value. A builder that stores them need not copy them.
    fn with_fact<R>(&self, value: &Self::Value, f: impl FnOnce(&Fact) -> R) -> R {
        f(&self.fact(value))
    }

    /// Records an op with one output.
    ///
    /// # Errors
    /// If the op does not apply to the operands.
    fn op(&mut self, op: impl Into<Op>, inputs: &[Self::Value]) -> Result<Self::Value, OpError> {
        Ok(self.emit(op.into(), inputs)?.swap_remove(0))
    }

    /// Records a pointwise op; operands of different shapes are broadcast.
    ///
    /// # Errors
    /// If shapes do not broadcast or dtypes differ.
    fn pointwise(&mut self, op: Pw, inputs: &[Self::Value]) -> Result<Self::Value, OpError> {
        let has_first_shape =
            |v| self.with_fact(&inputs[0], |a| self.with_fact(v, |b| a.shape == b.shape));
        if inputs.iter().skip(1).all(has_first_shape) {
            return self.op(ops::Pointwise(op), inputs);
        }
        let facts: SmallVec<[Fact; 3]> = inputs.iter().map(|v| self.fact(v)).collect();
        let moved = self.on_one_device(inputs)?;
        let inputs = moved.as_deref().unwrap_or(inputs);
        let shape =
            crate::broadcast_shapes(facts.iter().map(|f| &f.shape[..])).ok_or_else(|| {
                let shapes: Vec<String> = facts.iter().map(|f| f.to_string()).collect();
                OpError(format!(
                    "the shapes of {} do not broadcast together",
                    shapes.join(" and ")
                ))
            })?;
        let operands: SmallVec<[Self::Value; 3]> = inputs
            .iter()
            .map(|v| self.broadcast_to(v, &shape))
            .collect::<Result<_, _>>()?;
        self.op(ops::Pointwise(op), &operands)
    }

    /// The operands on one device; `None` if none of them has to move. Called before they are stretched.
    ///
    /// # Errors
    /// If they can't be combined.
    fn on_one_device(
        &mut self,
        _inputs: &[Self::Value],
    ) -> Result<Option<Vec<Self::Value>>, OpError> {
        Ok(None)
    }

    /// Returns the value broadcast to `shape`; the value itself if it has that shape.
    ///
    /// # Errors
    /// If it does not broadcast to `shape`.
    fn broadcast_to(&mut self, v: &Self::Value, shape: &[Dim]) -> Result<Self::Value, OpError> {
        if self.with_fact(v, |f| f.shape[..] == *shape) {
            return Ok(v.clone());
        }
        let shape = Shape::from(shape);
        self.op(ops::Broadcast { shape }, std::slice::from_ref(v))
    }

    /// Returns the value with another shape of the same number of elements; the value itself if it has that shape.
    ///
    /// # Errors
    /// If the numbers of elements differ.
    fn reshape(&mut self, v: &Self::Value, shape: &[Dim]) -> Result<Self::Value, OpError> {
        if self.with_fact(v, |f| f.shape[..] == *shape) {
            return Ok(v.clone());
        }
        let shape = Shape::from(shape);
        self.op(ops::Reshape { shape }, std::slice::from_ref(v))
    }

    /// Returns the value as another dtype; the value itself if it has that dtype.
    ///
    /// # Errors
    /// Never for an existing value.
    fn cast(&mut self, v: &Self::Value, dtype: DType) -> Result<Self::Value, OpError> {
        if self.with_fact(v, |f| f.dtype) == dtype {
            return Ok(v.clone());
        }
        self.op(ops::Cast::to(dtype), std::slice::from_ref(v))
    }

    /// Casts a result that was computed in more bits to the dtype of its op; see [`ops::Cast::is_step`].
    ///
    /// # Errors
    /// Never for an existing value.
    fn narrowed(&mut self, v: &Self::Value, dtype: DType) -> Result<Self::Value, OpError> {
        if self.with_fact(v, |f| f.dtype) == dtype {
            return Ok(v.clone());
        }
        let is_step = true;
        self.op(ops::Cast { dtype, is_step }, std::slice::from_ref(v))
    }

    /// A tensor that holds `value` everywhere.
    ///
    /// # Errors
    /// Never for legal dims.
    fn full(
        &mut self,
        value: impl Into<Scalar>,
        dtype: DType,
        shape: &[Dim],
    ) -> Result<Self::Value, OpError> {
        let value = value.into().cast(dtype);
        let shape = Shape::from(shape);
        self.op(
            ops::Full {
                value,
                dtype,
                shape,
            },
            &[],
        )
    }

    /// A rank-0 number of the dtype of `like`.
    ///
    /// # Errors
    /// Never.
    fn scalar_like(
        &mut self,
        value: impl Into<Scalar>,
        like: &Self::Value,
    ) -> Result<Self::Value, OpError> {
        let dtype = self.with_fact(like, |f| f.dtype);
        self.full(value, dtype, &[])
    }

    /// A reduction that keeps the reduced dims with size 1.
    ///
    /// # Errors
    /// If an axis is out of range or the dtype has no such reduction.
    fn reduce_keepdim(
        &mut self,
        kind: Reduction,
        v: &Self::Value,
        axes: &[usize],
    ) -> Result<Self::Value, OpError> {
        let mut shape = self.fact(v).shape;
        let reduced = self.op(
            ops::Reduce {
                kind,
                axes: axes.into(),
            },
            std::slice::from_ref(v),
        )?;
        for &a in axes {
            shape[a] = Dim::ONE;
        }
        self.reshape(&reduced, &shape)
    }

    /// The sum along axes (ascending), which disappear.
    ///
    /// # Errors
    /// If an axis is out of range or the dtype has no sum.
    fn sum(&mut self, v: &Self::Value, axes: &[usize]) -> Result<Self::Value, OpError> {
        if axes.is_empty() {
            return Ok(v.clone());
        }
        let (kind, axes) = (Reduction::Sum, axes.into());
        self.op(ops::Reduce { kind, axes }, std::slice::from_ref(v))
    }

    /// A pointwise op on a value and a number of its dtype.
    ///
    /// # Errors
    /// If the op does not take the dtype.
    fn with(
        &mut self,
        op: Pw,
        v: &Self::Value,
        number: impl Into<Scalar>,
    ) -> Result<Self::Value, OpError> {
        let number = self.scalar_like(number, v)?;
        self.pointwise(op, &[v.clone(), number])
    }

    /// A pointwise op on i64 and a size.
    ///
    /// # Errors
    /// If the value is not of i64.
    fn with_size(&mut self, op: Pw, v: &Self::Value, size: &Dim) -> Result<Self::Value, OpError> {
        if let Some(n) = size.as_const() {
            return self.with(op, v, n);
        }
        let shape = Shape::from_iter([size.clone()]);
        let size = self.op(ops::Numel { shape }, &[])?;
        self.pointwise(op, &[v.clone(), size])
    }

    /// Permutes the axes; returns the value itself for the identity permutation.
    ///
    /// # Errors
    /// If `perm` is not a permutation of the axes.
    fn permute(&mut self, v: &Self::Value, perm: &[usize]) -> Result<Self::Value, OpError> {
        let rank = self.with_fact(v, Fact::rank);
        if perm.len() == rank && perm.iter().enumerate().all(|(i, p)| i == *p) {
            return Ok(v.clone());
        }
        let perm = perm.into();
        self.op(ops::Permute { perm }, std::slice::from_ref(v))
    }

    /// Slices one axis.
    ///
    /// # Errors
    /// If the axis has no such part.
    fn slice_axis(
        &mut self,
        v: &Self::Value,
        axis: usize,
        slice: SliceAxis,
    ) -> Result<Self::Value, OpError> {
        let mut axes: Vec<SliceAxis> = self.fact(v).shape.iter().map(SliceAxis::all).collect();
        if axes[axis] == slice {
            return Ok(v.clone());
        }
        axes[axis] = slice;
        self.op(ops::Slice { axes }, std::slice::from_ref(v))
    }

    /// `len` elements of an axis from `start` on.
    ///
    /// # Errors
    /// If the axis has no such part.
    fn narrow(
        &mut self,
        v: &Self::Value,
        axis: usize,
        start: impl Into<Dim>,
        len: impl Into<Dim>,
    ) -> Result<Self::Value, OpError> {
        let (start, len, step) = (start.into(), len.into(), 1);
        self.slice_axis(v, axis, SliceAxis { start, len, step })
    }

    /// The elements of an axis in reverse.
    ///
    /// # Errors
    /// If the axis is out of range.
    fn reversed(&mut self, v: &Self::Value, axis: usize) -> Result<Self::Value, OpError> {
        let len = self.fact(v).shape[axis].clone();
        if len.is(0) {
            return Ok(v.clone());
        }
        let (start, step) = (&len - &Dim::ONE, -1);
        self.slice_axis(v, axis, SliceAxis { start, len, step })
    }

    /// Pads one axis with zeros (false) before and after; returns the value itself if there are none.
    ///
    /// # Errors
    /// If a pad is negative.
    fn pad_axis_zero(
        &mut self,
        v: &Self::Value,
        axis: usize,
        before: impl Into<Dim>,
        after: impl Into<Dim>,
    ) -> Result<Self::Value, OpError> {
        let fact = self.fact(v);
        let mut low = Shape::from_elem(Dim::ZERO, fact.rank());
        let mut high = low.clone();
        (low[axis], high[axis]) = (before.into(), after.into());
        if low[axis].is(0) && high[axis].is(0) {
            return Ok(v.clone());
        }
        let value = Scalar::Int(0).cast(fact.dtype);
        self.op(ops::Pad { low, high, value }, std::slice::from_ref(v))
    }

    /// `step − 1` zeros between the elements of an axis: extent `(n − 1) · step + 1`.
    ///
    /// # Errors
    /// If the axis is out of range.
    fn spaced(
        &mut self,
        v: &Self::Value,
        axis: usize,
        step: usize,
    ) -> Result<Self::Value, OpError> {
        let shape = self.fact(v).shape;
        let n = shape[axis].clone();
        if step == 1 || n.is(0) || n.is(1) {
            return Ok(v.clone());
        }
        let step = Dim::from(step);
        let mut column = shape.clone();
        column.insert(axis + 1, Dim::ONE);
        let column = self.reshape(v, &column)?;
        let column = self.pad_axis_zero(&column, axis + 1, 0i64, &step - &Dim::ONE)?;
        let mut flat = shape;
        flat[axis] = &n * &step;
        let flat = self.reshape(&column, &flat)?;
        self.narrow(&flat, axis, 0i64, &(&(&n - &Dim::ONE) * &step) + &Dim::ONE)
    }
}

/// A [`Builder`] that appends to a graph.
pub struct GraphBuilder<'g> {
    graph: &'g mut Graph,
    loc: Loc,
}

impl<'g> GraphBuilder<'g> {
    /// Appends to `graph`; new nodes carry `loc`.
    pub fn new(graph: &'g mut Graph, loc: Loc) -> GraphBuilder<'g> {
        GraphBuilder { graph, loc }
    }

    /// Sets the location of new nodes.
    pub fn at(&mut self, loc: Loc) {
        self.loc = loc;
    }

    /// The graph being built.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// Appends the next input.
    pub fn input(&mut self, fact: Fact, role: Role) -> Value {
        let index = self.graph.inputs().len() as u32;
        let op = ops::Input {
            index,
            fact: fact.clone(),
            role,
        };
        let node = crate::Node {
            op: op.into(),
            inputs: SmallVec::new(),
            facts: Facts::from_buf([fact]),
            loc: self.loc.clone(),
        };
        self.graph.push(node).value()
    }
}

impl Builder for GraphBuilder<'_> {
    type Value = Value;

    fn emit(&mut self, op: Op, inputs: &[Value]) -> Result<SmallVec<[Value; 1]>, OpError> {
        let node = self.graph.add(op, inputs, self.loc.clone())?;
        let count = self.graph.node(node).facts.len() as u32;
        Ok((0..count).map(|output| Value { node, output }).collect())
    }

    fn fact(&self, value: &Value) -> Fact {
        self.graph.fact(*value).clone()
    }

    fn with_fact<R>(&self, value: &Value, f: impl FnOnce(&Fact) -> R) -> R {
        f(self.graph.fact(*value))
    }
}
