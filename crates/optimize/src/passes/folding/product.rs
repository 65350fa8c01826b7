//! Products with a weight that is known before the program runs, and the scales and shifts of their channels.

use crate::pass::keeps_range;
use crate::{PatchBuilder, View};
use kiln_ir::{Builder, DType, Dim, Fact, Node, Op, OpError, Pw, Shape, Value};

/// A convolution, a transposed one or a matrix product of which one operand, the weight, depends on
/// parameters and constants only and the other does not.
pub(super) struct Product<'a> {
    value: Value,
    node: &'a Node,
    kind: Kind,
}

#[derive(Copy, Clone, PartialEq)]
enum Kind {
    /// With a weight `[groups · o, c, kernel..]`.
    Conv { groups: usize },
    /// With a weight `[groups · o, c, kernel..]`, where c are a group's channels of the result.
    Transposed { groups: usize },
    /// x · w.
    Right,
    /// w · x.
    Left,
}

impl<'a> Product<'a> {
    /// Returns the product of f32 or f64 that computes a value.
    pub fn of(view: &View<'a>, v: Value) -> Option<Product<'a>> {
        let product = Product::of_any_dtype(view, v)?;
        matches!(product.fact().dtype, DType::F32 | DType::F64).then_some(product)
    }

    /// Returns the product that computes a value.
    pub fn of_any_dtype(view: &View<'a>, v: Value) -> Option<Product<'a>> {
        let node = view.producer(v);
        let data = match &node.op {
            Op::Conv(_) | Op::ConvTranspose(_) | Op::MatMul(_) => node.inputs[0],
            _ => return None,
        };
        let is_prepared = [data, node.inputs[1]].map(|v| view.is_prepared(v));
        let kind = match (&node.op, is_prepared) {
            (Op::Conv(c), [false, true]) => Kind::Conv { groups: c.groups },
            (Op::ConvTranspose(c), [false, true]) => Kind::Transposed {
                groups: c.conv.groups,
            },
            (Op::MatMul(_), [false, true]) => Kind::Right,
            (Op::MatMul(_), [true, false]) => Kind::Left,
            _ => return None,
        };
        Some(Product {
            value: v,
            node,
            kind,
        })
    }

    /// The product that computes a value, if nothing else reads it. Its dtype must be one in which a new weight loses
    /// no precision: f32 or f64, or f16 or bf16 that the machine computes in f32. The latter only for a convolution,
    /// which reads a weight often. A matrix product would read twice as many bytes.
    pub fn of_sole_reader(view: &View<'a>, v: Value) -> Option<Product<'a>> {
        let product = Product::of_any_dtype(view, v)?;
        let dtype = product.fact().dtype;
        let is_precise = matches!(dtype, DType::F32 | DType::F64)
            || product.is_conv() && view.multiplies_as_f32(dtype);
        (is_precise && view.use_count(v.node) == 1).then_some(product)
    }

    /// The dtype that it is computed in, with a new weight too.
    pub fn wide(&self) -> DType {
        match self.fact().dtype {
            half if half.is_half() => DType::F32,
            dtype => dtype,
        }
    }

    /// The result.
    pub fn value(&self) -> Value {
        self.value
    }

    /// Dtype and shape of the result.
    pub fn fact(&self) -> &'a Fact {
        self.node.fact()
    }

    /// True for a convolution, transposed or not.
    pub fn is_conv(&self) -> bool {
        matches!(self.kind, Kind::Conv { .. } | Kind::Transposed { .. })
    }

    /// The axis of the result along which the weight's results lie, and that of the data along which its terms lie.
    pub fn channels(&self) -> usize {
        match self.kind {
            Kind::Right => self.node.fact().rank() - 1,
            Kind::Left => self.node.fact().rank() - 2,
            _ => 1,
        }
    }

    /// The operand that is not the weight.
    pub fn data(&self) -> Value {
        self.node.inputs[(self.kind == Kind::Left) as usize]
    }

    /// True if no term is padding: a shift of the data then shifts all results of a channel equally.
    pub fn is_whole(&self) -> bool {
        match &self.node.op {
            Op::Conv(c) => c.padding.iter().all(|p| *p == (0, 0)),
            Op::ConvTranspose(_) => false,
            _ => true,
        }
    }

    /// The operand that is prepared.
    pub fn weight(&self) -> Value {
        self.node.inputs[(self.kind != Kind::Left) as usize]
    }

    /// The [wide](Product::wide) product with another weight, and other data.
    pub fn with(
        &self,
        patch: &mut PatchBuilder<'_>,
        data: Value,
        weight: Value,
    ) -> Result<Value, OpError> {
        let [data, weight] = [
            patch.cast(&data, self.wide())?,
            patch.cast(&weight, self.wide())?,
        ];
        let operands = match self.kind {
            Kind::Left => [weight, data],
            _ => [data, weight],
        };
        patch.op(self.node.op.clone(), &operands)
    }

    /// Applies `op` to the weight and a `[c]` with a number for each of the product's channels.
    pub fn weight_by_result(
        &self,
        patch: &mut PatchBuilder<'_>,
        op: Pw,
        factor: &Value,
    ) -> Result<Value, OpError> {
        let rank = patch.fact(&self.weight()).rank();
        match self.kind {
            Kind::Conv { .. } => self.apply_along(patch, op, factor, 0, 1),
            Kind::Transposed { groups } => self.apply_along(patch, op, factor, 1, groups),
            Kind::Right => self.apply_along(patch, op, factor, rank - 1, 1),
            Kind::Left => self.apply_along(patch, op, factor, rank - 2, 1),
        }
    }

    /// Applies `op` to the weight and a `[c]` with a number for each channel of its terms.
    pub fn weight_by_term(
        &self,
        patch: &mut PatchBuilder<'_>,
        op: Pw,
        factor: &Value,
    ) -> Result<Value, OpError> {
        let rank = patch.fact(&self.weight()).rank();
        match self.kind {
            Kind::Conv { groups } => self.apply_along(patch, op, factor, 1, groups),
            Kind::Transposed { .. } => self.apply_along(patch, op, factor, 0, 1),
            Kind::Right => self.apply_along(patch, op, factor, rank - 2, 1),
            Kind::Left => self.apply_along(patch, op, factor, rank - 1, 1),
        }
    }

    /// The effect on each channel of the result, as `[c]`, of a `[c]` added to the data; only for a product for which
    /// [`is_whole`](Product::is_whole) holds.
    pub fn sum_of_terms(
        &self,
        patch: &mut PatchBuilder<'_>,
        added: &Value,
    ) -> Result<Value, OpError> {
        let terms = self.weight_by_term(patch, Pw::Mul, added)?;
        let rank = patch.fact(&terms).rank();
        let axes: Vec<usize> = match self.kind {
            Kind::Right => vec![rank - 2],
            Kind::Left => vec![rank - 1],
            _ => (1..rank).collect(),
        };
        patch.sum(&terms, &axes)
    }

    /// Applies `op` to the weight and a vector along `axis`. With several groups, that axis holds the channels of one
    /// group, and axis 0 the groups in order, each with its slice of the vector.
    fn apply_along(
        &self,
        patch: &mut PatchBuilder<'_>,
        op: Pw,
        vector: &Value,
        axis: usize,
        groups: usize,
    ) -> Result<Value, OpError> {
        let [vector, weight] = [vector, &self.weight()].map(|v| patch.cast(v, self.wide()));
        let (vector, weight) = (vector?, weight?);
        let shape = patch.fact(&weight).shape;
        let mut column = Shape::from_elem(Dim::ONE, shape.len());
        column[axis] = shape[axis].clone();
        if groups == 1 {
            let vector = patch.reshape(&vector, &column)?;
            return patch.pointwise(op, &[weight, vector]);
        }
        let groups = Dim::from(groups);
        let group_len = shape[0]
            .div_exact(&groups)
            .map_err(|e| OpError(e.to_string()))?;
        let mut split = shape.clone();
        split[0] = group_len;
        split.insert(0, groups.clone());
        column.insert(0, groups);
        let vector = patch.reshape(&vector, &column)?;
        let weight = patch.reshape(&weight, &split)?;
        let new = patch.pointwise(op, &[weight, vector])?;
        patch.reshape(&new, &shape)
    }
}

/// One number for each index of an axis, from which a `[c]` can be computed.
#[derive(Copy, Clone)]
pub(super) struct Channel {
    source: Value,
    /// The broadcast value, whose shape gives the number of elements.
    broadcast: Value,
    axis: usize,
}

impl Channel {
    /// Returns the per-index numbers along `axis` from which `stretched` is broadcast, if they depend on parameters and
    /// constants only.
    pub fn of(view: &View<'_>, stretched: Value, axis: usize) -> Option<Channel> {
        let full_shape = &view.fact(stretched).shape;
        let source = match &view.producer(stretched).op {
            Op::Broadcast(_) => view.producer(stretched).inputs[0],
            _ => stretched,
        };
        let shape = &view.fact(source).shape;
        let new_axes = full_shape.len() - shape.len();
        let is_along_axis = (shape.iter().enumerate())
            .all(|(i, d)| d.is(1) || (i + new_axes == axis && *d == full_shape[axis]));
        let is_channel =
            view.is_prepared(source) && (is_along_axis || view.as_full(source).is_some());
        is_channel.then_some(Channel {
            source,
            broadcast: stretched,
            axis,
        })
    }

    /// [`Channel::broadcast`] for one number in all, by which numbers may be scaled before or after a product.
    pub fn factor(view: &View<'_>, stretched: Value, axis: usize) -> Option<Channel> {
        let channel = Channel::of(view, stretched, axis)?;
        let number = view.as_full(channel.source)?;
        keeps_range(number.value.as_f64()).then_some(channel)
    }

    /// As `[c]`.
    pub fn vector(self, patch: &mut PatchBuilder<'_>, view: &View<'_>) -> Result<Value, OpError> {
        let count = &view.fact(self.broadcast).shape[self.axis..=self.axis];
        if let Some(f) = view.as_full(self.source) {
            return patch.full(f.value, f.dtype, count);
        }
        let n = view.fact(self.source).numel();
        let vector = patch.reshape(&self.source, &[n])?;
        patch.broadcast_to(&vector, count)
    }
}

/// A `[c]` in a shape that stretches along `axis` of a value of this rank.
pub(super) fn column(
    patch: &mut PatchBuilder<'_>,
    vector: &Value,
    axis: usize,
    rank: usize,
) -> Result<Value, OpError> {
    let mut shape = Shape::from_elem(Dim::ONE, rank - axis);
    shape[0] = patch.fact(vector).shape[0].clone();
    patch.reshape(vector, &shape)
}

/// True if a value was cast from a dtype that satisfies `from`.
pub(super) fn was_cast(view: &View<'_>, x: Value, from: impl Fn(DType) -> bool) -> bool {
    let node = view.producer(x);
    matches!(node.op, Op::Cast(_)) && node.inputs.iter().all(|v| from(view.fact(*v).dtype))
}
