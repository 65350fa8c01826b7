//! Matrix products, convolutions and pooling.
//!
//! Products and convolutions of floats, of signed integers, or of bytes keep a node for the library kernel. A GPU
//! multiplies f16, bf16 and bytes. The CPU multiplies f16 and bf16 in convolutions, in products of one matrix with
//! many, and in batches of matrices if it multiplies pairs. Operands that were cast to f32, for example for a bias, are
//! read without the cast, as accumulators are f32. Likewise, the CPU multiplies u8, i8 and i16 with i32 accumulators.
//! Other products of these dtypes become a product of f32 or i32 between casts. Other integers, and pooling, become a
//! reduction over a window view or a product of two views. With f16 or bf16 images, the weights of a convolution may be
//! f32.

use super::build::{FlowBuilder, permute};
use super::{Nid, Op, Result, Rounding};
use crate::LowerError;
use crate::affine::{Affine, Ax};
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Instruction};
use kiln_ir::{NodeId, Pw, ops};
use kiln_plan::{Conv, ConvRole, Images};
use smallvec::SmallVec;

/// The minimum rows and columns for which packing the Bs of a batch saves time, as measured on a Zen 5.
const MIN_PACKED_ROWS: i64 = 32;
const MIN_PACKED_COLUMNS: i64 = 8;

/// Returns the dtype in which library kernels compute products of a dtype; `None` if there are no such kernels.
fn library_dtype(dtype: DType, on_gpu: bool) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 if !on_gpu => Some(DType::F32),
        DType::U8 | DType::I8 | DType::I16 | DType::I32 => Some(DType::I32),
        DType::I64 => Some(DType::I64),
        float => float.is_float().then_some(float),
    }
}

impl FlowBuilder {
    pub(super) fn dtype(&self, n: Nid) -> DType {
        self.flow.nodes[n].dtype
    }

    pub(super) fn shape(&self, n: Nid) -> SmallVec<[Dim; 4]> {
        self.flow.nodes[n].shape.clone()
    }

    /// Appends the node of a library kernel, between casts if it computes in another dtype.
    fn library(&mut self, mut op: Op, operands: &[Nid], wide: DType, shape: &[Dim]) -> Nid {
        let dtype = self.dtype(operands[0]);
        let operands: SmallVec<[Nid; 3]> = match self.narrow_pair(&op, operands, wide) {
            Some(narrow) => {
                if let Op::Conv(spec) = &mut op {
                    spec.dtypes = narrow.map(|n| self.dtype(n));
                }
                let [a, b] = narrow;
                SmallVec::from_iter([a, self.with_contiguous_terms(&op, b)])
            }
            None => operands.iter().map(|n| self.read_as(*n, wide)).collect(),
        };
        let product = self.helper(op, &operands, wide, shape.iter().cloned());
        match wide == dtype {
            true => product,
            false => {
                let cast = Op::Cast(Rounding::Stored);
                self.helper(cast, &[product], dtype, shape.iter().cloned())
            }
        }
    }

    /// Returns a value cast to another dtype, shared by all of its readers.
    fn read_as(&mut self, n: Nid, dtype: DType) -> Nid {
        if self.dtype(n) == dtype {
            return n;
        }
        if let Some(known) = self.casts.get(&(n, dtype)) {
            return *known;
        }
        let cast = Op::Cast(Rounding::Here);
        let cast = self.helper(cast, &[n], dtype, self.shape(n));
        self.casts.insert((n, dtype), cast);
        cast
    }

    /// Returns the operands in a dtype narrower than accumulators, without casts to `acc`, if the engine multiplies
    /// that dtype.
    fn narrow_pair(&mut self, op: &Op, operands: &[Nid], acc: DType) -> Option<[Nid; 2]> {
        let [a, b] = [operands[0], operands[1]].map(|n| self.narrow_dtype(n, acc));
        let has_weights = matches!(op, Op::Conv(c) if c.role != ConvRole::Weight);
        if let (Some(half), None) = (a, b)
            && (has_weights && acc == DType::F32 && !self.on_gpu())
        {
            return Some([self.read_as_narrow(operands[0], half), operands[1]]);
        }
        let (a, b) = (a?, b?);
        let match_up = a == b || (a.size(), b.size()) == (1, 1);
        let is_batch = matches!(op, Op::MatMul) && self.shape(operands[1]).len() > 2;
        let fits = match_up && (!is_batch || self.multiplies_batches(operands, a));
        fits.then(|| [(operands[0], a), (operands[1], b)].map(|(n, d)| self.read_as_narrow(n, d)))
    }

    /// Returns B, or for bytes of parameters a view of a copy with contiguous columns, as tensor cores require.
    /// *Prepare* makes the copy.
    fn with_contiguous_terms(&mut self, op: &Op, b: Nid) -> Nid {
        let node = &self.flow.nodes[b];
        let (dtype, shape, last) = (node.dtype, node.shape.clone(), node.shape.len() - 1);
        let needs_columns = matches!(op, Op::MatMul) && dtype.is_byte() && self.on_gpu();
        let is_transposed = match &node.op {
            Op::View(view) => view
                .index
                .last()
                .is_some_and(|index| match &index.terms[..] {
                    [(axis, step)] => *axis as usize + 1 == last && step.is(1),
                    _ => false,
                }),
            _ => false,
        };
        if !needs_columns || is_transposed || !node.parameter_only {
            return b;
        }
        let mut perm: Vec<usize> = (0..=last).collect();
        perm.swap(last - 1, last);
        let mut columns = shape.clone();
        columns.swap(last - 1, last);
        let view = self.helper(permute(&perm), &[b], dtype, columns.clone());
        let copy = self.helper(Op::Copy, &[view], dtype, columns);
        self.helper(permute(&perm), &[copy], dtype, shape)
    }

    /// True if the engine multiplies a batch of matrices of a dtype narrower than accumulators. A CPU must pack B for
    /// that, with several numbers in a word, which does not pay for few rows or columns.
    fn multiplies_batches(&self, operands: &[Nid], dtype: DType) -> bool {
        let Some(level) = self.level else {
            return true;
        };
        let share_words = Instruction::of([dtype; 2], false, level, true).count() > 1;
        let [left, right] = [operands[0], operands[1]].map(|n| self.shape(n));
        let rank = right.len();
        let is_below = |d: &Dim, limit: i64| d.as_const().is_some_and(|n| n < limit);
        share_words
            && !is_below(&left[rank - 2], MIN_PACKED_ROWS)
            && !is_below(&right[rank - 1], MIN_PACKED_COLUMNS)
    }

    /// Returns the narrow dtype of a value, or that which it was widened from, looking through views.
    fn narrow_dtype(&self, n: Nid, accumulator: DType) -> Option<DType> {
        use DType::{BF16, F16, F32, I16, I32};
        let node = &self.flow.nodes[n];
        let is_narrow = |d: DType| match accumulator {
            F32 => d.is_half(),
            // On a GPU, products of f16 and bf16 have their operands' dtype.
            F16 | BF16 => d == accumulator,
            I32 => d.is_byte() || d == I16 && !self.on_gpu(),
            _ => false,
        };
        match &node.op {
            _ if is_narrow(node.dtype) => Some(node.dtype),
            Op::Cast(_) if node.dtype == accumulator => {
                let from = self.dtype(node.inputs[0]);
                is_narrow(from).then_some(from)
            }
            Op::Reshape => self.narrow_dtype(node.inputs[0], accumulator),
            Op::View(view) if view.fill.is_none() => self.narrow_dtype(node.inputs[0], accumulator),
            _ => None,
        }
    }

    /// Returns the value that [`FlowBuilder::narrow_dtype`] finds, without the cast.
    fn read_as_narrow(&mut self, n: Nid, narrow: DType) -> Nid {
        if self.dtype(n) == narrow {
            return n;
        }
        let node = &self.flow.nodes[n];
        let (op, operand) = (node.op.clone(), node.inputs[0]);
        if let Op::Cast(_) = op {
            return operand;
        }
        if let Some(cast) = self.casts.get(&(n, narrow)) {
            return *cast;
        }
        let operand = self.read_as_narrow(operand, narrow);
        let view = self.helper(op, &[operand], narrow, self.shape(n));
        self.casts.insert((n, narrow), view);
        view
    }

    /// Appends `Σ a · b` over the last `reduced` dims of two views of one shape.
    fn sum_of_products(&mut self, a: Nid, b: Nid, shape: &[Dim], reduced: usize) -> Nid {
        let dtype = self.dtype(a);
        let product = self.helper(Op::Pw(Pw::Mul), &[a, b], dtype, shape.iter().cloned());
        let kept = shape.len() - reduced;
        let is_single = shape[kept..].iter().all(|d| d.is(1));
        let axes = (kept..shape.len()).collect();
        let kept = shape[..kept].iter().cloned();
        if is_single {
            return self.helper(Op::Reshape, &[product], dtype, kept);
        }
        self.helper(Op::Reduce(Reduction::Sum, axes), &[product], dtype, kept)
    }

    pub(super) fn matmul(&mut self, inputs: &[Nid]) -> Nid {
        let (a, b) = (inputs[0], inputs[1]);
        let dtype = self.dtype(a);
        let (sa, sb) = (self.shape(a), self.shape(b));
        let r = sa.len();
        let (k, n) = (sa[r - 1].clone(), sb[r - 1].clone());
        let mut shape = sa.clone();
        shape[r - 1] = n;
        if let Some(wide) = library_dtype(dtype, self.on_gpu()) {
            return self.library(Op::MatMul, inputs, wide, &shape);
        }
        shape.push(k); // [batch.., m, n, k]
        let axes = |dims: &mut dyn Iterator<Item = usize>| {
            Op::view(dims.map(|a| Affine::axis(a as Ax)).collect())
        };
        let left = axes(&mut (0..r - 1).chain([r]));
        let right = axes(&mut (0..r - 2).chain([r, r - 1]));
        let a = self.helper(left, &[a], dtype, shape.clone());
        let b = self.helper(right, &[b], dtype, shape.clone());
        self.sum_of_products(a, b, &shape, 1)
    }

    /// Appends a library convolution or gradient of one. Its operands are two of x, w and y, in this order; its result
    /// is the third.
    pub(super) fn library_conv(
        &mut self,
        conv: &ops::Conv,
        role: ConvRole,
        operands: [Nid; 2],
        wide: DType,
        result: &[Dim],
    ) -> Nid {
        let [a, b] = operands.map(|o| self.shape(o));
        let (x, w, y) = match role {
            ConvRole::Result => (&a[..], &b[..], result),
            ConvRole::Input => (result, &b[..], &a[..]),
            ConvRole::Weight => (&a[..], result, &b[..]),
        };
        let dims = |list: &[usize]| list.iter().map(|n| Dim::from(*n)).collect();
        let spec = Conv {
            dtypes: [wide; 2],
            reduce_range: false,
            role,
            batch: x[0].clone(),
            groups: conv.groups.into(),
            in_channels: w[1].clone(),
            out_channels: channels_per_group(&w[0], conv),
            input: x[2..].to_vec(),
            output: y[2..].to_vec(),
            kernel: w[2..].to_vec(),
            stride: dims(&conv.stride),
            padding: conv.padding.iter().map(|p| p.0.into()).collect(),
            dilation: dims(&conv.dilation),
            operands: [0, 1],
            out: 2,
            prologue: None,
            epilogue: None,
            algorithm: Default::default(),
            images: Images::ChannelsFirst,
        };
        self.library(Op::Conv(Box::new(spec)), &operands, wide, result)
    }

    /// Appends a gradient of a convolution, which only a library kernel computes; other dtypes are decomposed before.
    pub(super) fn conv_gradient(
        &mut self,
        id: NodeId,
        conv: &ops::Conv,
        role: ConvRole,
        inputs: &[Nid],
        result: &[Dim],
    ) -> Result<Nid> {
        let dtype = self.dtype(inputs[0]);
        match library_dtype(dtype, self.on_gpu()) {
            Some(wide) => Ok(self.library_conv(conv, role, [inputs[0], inputs[1]], wide, result)),
            None => {
                let text = format!(
                    "{} of {dtype} is a composite; decompose it first",
                    role.name()
                );
                Err(LowerError::new(id, text))
            }
        }
    }

    pub(super) fn conv(&mut self, conv: &ops::Conv, inputs: &[Nid], result: &[Dim]) -> Nid {
        let (x, w) = (inputs[0], inputs[1]);
        let dtype = self.dtype(x);
        let sw = self.shape(w);
        let groups = Dim::from(conv.groups);
        let out = channels_per_group(&sw[0], conv);
        // Vectors run over the channels of a group, so a single channel leaves them nearly empty. The CPU has depthwise
        // tiles for i32.
        let is_depthwise = dtype.is_int() && out.is(1) && (self.on_gpu() || dtype == DType::I64);
        if let Some(wide) = library_dtype(dtype, self.on_gpu()).filter(|_| !is_depthwise) {
            return self.library_conv(conv, ConvRole::Result, [x, w], wide, result);
        }
        let kernel: Vec<Dim> = sw[2..].to_vec();
        // [n, groups, out, spatial.., in, kernel..]
        let spatial = kernel.len();
        let mut shape: SmallVec<[Dim; 4]> =
            SmallVec::from_iter([result[0].clone(), groups, out.clone()]);
        shape.extend(result[2..].iter().cloned());
        shape.push(sw[1].clone());
        shape.extend(kernel.iter().cloned());
        let (channel, tap) = (3 + spatial, 4 + spatial);
        let pair = |a: usize, factor: &Dim, b: usize| {
            Affine::new(Dim::ZERO, &[(a as Ax, factor), (b as Ax, &Dim::ONE)])
        };
        let mut index = vec![Affine::axis(0), pair(1, &sw[1], channel)];
        for a in 0..spatial {
            index.push(window_index(
                [3 + a, tap + a],
                [conv.stride[a], conv.dilation[a]],
                conv.padding[a].0,
            ));
        }
        let padded = padded_dims(&conv.padding, 2);
        let windows = Op::padded_view(index, padded, Reduction::Sum.identity(dtype));
        let x = self.helper(windows, &[x], dtype, shape.clone());
        let mut index = vec![pair(1, &out, 2), Affine::axis(channel as Ax)];
        index.extend((tap..tap + spatial).map(|a| Affine::axis(a as Ax)));
        let w = self.helper(Op::view(index), &[w], dtype, shape.clone());
        let sum = self.sum_of_products(x, w, &shape, 1 + spatial);
        self.helper(Op::Reshape, &[sum], dtype, result.iter().cloned())
    }

    pub(super) fn window_reduce(&mut self, w: &ops::WindowReduce, x: Nid, result: &[Dim]) -> Nid {
        let dtype = self.dtype(x);
        let rank = result.len();
        let start = rank - w.kernel.len();
        let mut index: Vec<Affine> = (0..start as Ax).map(Affine::axis).collect();
        for a in 0..w.kernel.len() {
            let steps = [w.stride[a], w.dilation[a]];
            index.push(window_index([start + a, rank + a], steps, w.padding[a].0));
        }
        let mut shape: SmallVec<[Dim; 4]> = result.iter().cloned().collect();
        shape.extend(w.kernel.iter().map(|k| Dim::from(*k)));
        let padded = padded_dims(&w.padding, start);
        let windows = Op::padded_view(index, padded, w.kind.identity(dtype));
        let windows = self.helper(windows, &[x], dtype, shape);
        if w.kernel.iter().all(|k| *k == 1) {
            return self.helper(Op::Reshape, &[windows], dtype, result.iter().cloned());
        }
        let axes = (rank..rank + w.kernel.len()).collect();
        self.helper(
            Op::Reduce(w.kind, axes),
            &[windows],
            dtype,
            result.iter().cloned(),
        )
    }
}

/// Returns the number of channels in one group.
fn channels_per_group(channels: &Dim, conv: &ops::Conv) -> Dim {
    channels
        .div_exact(&Dim::from(conv.groups))
        .expect("inference checked that groups divide the output channels")
}

/// Returns `stride · position + dilation · tap − padding`, of axes `[position, tap]`.
fn window_index(axes: [usize; 2], steps: [usize; 2], padding: usize) -> Affine {
    let [position, tap] = axes.map(|a| a as Ax);
    let [stride, dilation] = steps.map(Dim::from);
    let terms = [(position, &stride), (tap, &dilation)];
    Affine::new(Dim::Const(-(padding as i64)), &terms)
}

fn padded_dims(padding: &[(usize, usize)], first: usize) -> SmallVec<[usize; 4]> {
    let padded = (0..padding.len()).filter(|a| padding[*a] != (0, 0));
    padded.map(|a| first + a).collect()
}
