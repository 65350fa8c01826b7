//! The program of each rule.

use super::maker::{Made, Maker};
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_base::{DType, Dim};
use kiln_ir::{Builder, Fact, Pw, Role, ops};

/// A rule, and the function that makes its program.
type Case = (&'static str, fn(&mut Maker<'_>) -> Made);

pub(super) const CASES: &[Case] = &[
    ("neutral_number", |m| {
        let (x, ..) = m.matrix();
        let x = m.b.with(Pw::Mul, &x, 1.0)?;
        m.b.with(Pw::Sub, &x, 0.0)
    }),
    ("signs", |m| {
        let (x, ..) = m.matrix();
        let minus = m.pw(Pw::Neg, &[x])?;
        let y = m.pw(Pw::Exp, &[x])?;
        m.pw(Pw::Sub, &[y, minus])
    }),
    ("idempotent", |m| {
        let (x, ..) = m.matrix();
        let y = m.pw(Pw::Relu, &[x])?;
        m.pw(Pw::Relu, &[y])
    }),
    ("choice", |m| {
        let (x, ..) = m.matrix();
        let mask = m.pw(Pw::IsNan, &[x])?;
        let not = m.pw(Pw::Not, &[mask])?;
        let y = m.pw(Pw::Exp, &[x])?;
        m.pw(Pw::Select, &[not, x, y])
    }),
    ("power", |m| {
        let (x, ..) = m.matrix();
        let x = m.b.with(Pw::Pow, &x, 2.0)?;
        m.b.with(Pw::Div, &x, -8.0)
    }),
    ("exact_cast", |m| {
        let (x, ..) = m.matrix();
        let half = m.b.cast(&x, DType::BF16)?;
        let wide = m.b.cast(&half, DType::F32)?;
        m.b.cast(&wide, DType::F64)
    }),
    ("slice_of_slice", |m| {
        let n = 6 + m.size();
        let x = m.data(&[n, 2]);
        let back = m.b.reversed(&x, 0)?;
        m.part(back, 0, 2, n - 3)
    }),
    ("slice_of_pad", |m| {
        let (x, _, c) = m.matrix();
        let y = m.pad(x, [2, 3], 1.5)?;
        m.part(y, 1, 1, c + 2)
    }),
    ("slice_of_concat", |m| {
        let (x, _, c) = m.matrix();
        let y = m.pw(Pw::Neg, &[x])?;
        let all = m.b.op(ops::Concat { axis: 1 }, &[x, y, x])?;
        m.part(all, 1, 1, 2 * c - 1)
    }),
    ("slice_of_broadcast", |m| {
        let (n, c) = (m.size(), 2 + m.size());
        let x = m.data(&[c]);
        let shape = [Dim::from(n + 1), Dim::from(c)];
        let wide = m.b.broadcast_to(&x, &shape)?;
        let part = m.part(wide, 0, 1, n)?;
        m.part(part, 1, 1, c - 1)
    }),
    ("slice_of_product", |m| {
        let (n, k, c) = (2 + m.size(), m.size(), m.size());
        let (a, b) = (m.data(&[n, k]), m.data(&[k, c]));
        let y = m.b.op(ops::MatMul {}, &[a, b])?;
        m.part(y, 0, n - 1, 1)
    }),
    ("concat_of_concat", |m| {
        let (x, ..) = m.matrix();
        let y = m.b.op(ops::Concat { axis: 0 }, &[x, x])?;
        m.b.op(ops::Concat { axis: 0 }, &[x, y])
    }),
    ("concat_of_slices", |m| {
        let n = 3 + m.size();
        let x = m.data(&[2, n]);
        let (a, b) = (m.part(x, 1, 0, 2)?, m.part(x, 1, 2, n - 2)?);
        let y = m.b.op(ops::Concat { axis: 1 }, &[a, b])?;
        m.pw(Pw::Exp, &[y])
    }),
    ("pad_of_pad", |m| {
        let (x, ..) = m.matrix();
        let y = m.pad(x, [1, 2], -0.5)?;
        m.pad(y, [2, 0], -0.5)
    }),
    ("pad_in_conv", |m| {
        let (x, w, conv, _) = m.conv();
        let x = m.pad(x, [2, 1], 0.0)?;
        m.b.op(conv, &[x, w])
    }),
    ("pad_in_window", |m| {
        let (x, ..) = m.matrix();
        let x = m.pad(x, [1, 2], f64::NEG_INFINITY)?;
        let window = ops::WindowReduce {
            kind: Reduction::Max,
            kernel: [3].into_iter().collect(),
            stride: [2].into_iter().collect(),
            padding: vec![(0, 0)],
            dilation: [1].into_iter().collect(),
        };
        m.b.op(window, &[x])
    }),
    ("crop_in_conv", |m| {
        let n = m.size();
        let (y, w) = (m.data(&[2, 3, n]), m.parameter(&[3, 2, 3]));
        let conv = ops::Conv {
            stride: [2].into_iter().collect(),
            padding: vec![(0, 0)],
            dilation: [1].into_iter().collect(),
            groups: 1,
        };
        let input = [Dim::from(2 * n + 1)].into_iter().collect();
        let x = m.b.op(ops::ConvTranspose { conv, input }, &[y, w])?;
        m.part(x, 2, 1, 2 * n - 1)
    }),
    ("pointwise_of_broadcast", |m| {
        let (n, c) = (1 + m.size(), m.size());
        let (x, y) = (m.data(&[c]), m.data(&[c]));
        let shape = [Dim::from(n), Dim::from(c)];
        let (x, y) = (m.b.broadcast_to(&x, &shape)?, m.b.broadcast_to(&y, &shape)?);
        m.pw(Pw::Mul, &[x, y])
    }),
    ("extreme_of_broadcast", |m| {
        let c = m.size();
        let x = m.data(&[c]);
        let wide = m.b.broadcast_to(&x, &[Dim::from(3usize), Dim::from(c)])?;
        let y = m.b.reduce_keepdim(Reduction::Max, &wide, &[0])?;
        m.pw(Pw::Exp, &[y])
    }),
    ("scatter_of_one", |m| {
        let (n, c) = (m.size(), m.size());
        let x = m.data(&[n, c]);
        let index =
            m.b.full(c as i64 - 1, DType::I64, &[Dim::from(n), Dim::ONE])?;
        let read = m.b.op(ops::Gather { axis: 1 }, &[x, index])?;
        let kind = ScatterKind::Sum;
        let zeros = m.b.full(0.0, DType::F32, &[Dim::from(n), Dim::from(c)])?;
        let y =
            m.b.op(ops::Scatter { axis: 1, kind }, &[zeros, index, read])?;
        m.pw(Pw::Mul, &[y, read])
    }),
    ("gather_of_extreme", |m| {
        let (x, ..) = m.matrix();
        let axis = m.rng.below(2);
        let kind = [Reduction::Max, Reduction::Min][m.rng.below(2)];
        let index = m.b.op(ops::ArgReduce { kind, axis }, &[x])?;
        let mut kept = m.b.fact(&x).shape;
        kept[axis] = Dim::ONE;
        let index = m.b.reshape(&index, &kept)?;
        m.b.op(ops::Gather { axis }, &[x, index])
    }),
    ("gather_of_pointwise", |m| {
        let (n, c) = (m.size(), 2 + m.size());
        let x = m.data(&[n, c]);
        let max = m.b.reduce_keepdim(Reduction::Max, &x, &[1])?;
        let y = m.pw(Pw::Sub, &[x, max])?;
        let label =
            m.b.full(c as i64 - 1, DType::I64, &[Dim::from(n), Dim::ONE])?;
        m.b.op(ops::Gather { axis: 1 }, &[y, label])
    }),
    ("scaled_product", |m| {
        let (x, w, conv, o) = m.conv();
        let (c, d) = (m.rng.one([0.3, -3.0]), m.parameter(&[o, 1]));
        let y = m.b.op(conv, &[x, w])?;
        let mut y = m.pw(Pw::Sub, &[d, y])?;
        if m.rng.chance(0.5) {
            y = m.b.permute(&y, &[2, 0, 1])?;
        }
        m.b.with(Pw::Mul, &y, c)
    }),
    ("shifted_product", |m| {
        let (n, k, c) = (m.size(), m.size(), m.size());
        let (x, w) = (m.data(&[n, k]), m.parameter(&[k, c]));
        let (a, b) = (m.parameter(&[c]), m.parameter(&[c]));
        let y = m.b.op(ops::MatMul {}, &[x, w])?;
        let y = m.pw(Pw::Add, &[a, y])?;
        m.pw(Pw::Sub, &[y, b])
    }),
    ("scaled_data", |m| {
        let (n, k, c) = (m.size(), m.size(), m.size());
        let (x, w) = (m.data(&[n, k]), m.parameter(&[k, c]));
        let x = m.b.with(Pw::Div, &x, 255.0)?;
        m.b.op(ops::MatMul {}, &[x, w])
    }),
    ("shifted_data", |m| {
        let y = m.product_of_bytes()?;
        m.b.cast(&y, DType::F32)
    }),
    ("shared_operand", |m| {
        let (n, k) = (m.size(), m.size());
        let x = m.data(&[n, k]);
        let mut results = Vec::new();
        for _ in 0..3 {
            let w = m.parameter(&[k, 5]);
            let y = m.b.op(ops::MatMul {}, &[x, w])?;
            results.push(match m.rng.chance(0.7) {
                true => {
                    let bias = m.parameter(&[5]);
                    m.pw(Pw::Add, &[y, bias])?
                }
                false => y,
            });
        }
        let q = m.b.with(Pw::Mul, &results[0], 0.3)?;
        let k = m.b.permute(&results[1], &[1, 0])?;
        let scores = m.b.op(ops::MatMul {}, &[q, k])?;
        let scores = m.pw(Pw::Tanh, &[scores])?;
        m.b.op(ops::MatMul {}, &[scores, results[2]])
    }),
    ("pads_side_by_side", |m| {
        let (n, k) = (m.size(), m.size());
        let parts = [m.data(&[3, n]), m.data(&[3, k])];
        let first = m.pad(parts[0], [0, k], 0.0)?;
        let second = m.pad(parts[1], [n, 0], 0.0)?;
        let whole = m.pw(Pw::Add, &[second, first])?;
        m.pw(Pw::Exp, &[whole])
    }),
    ("stacked_products", |m| {
        let (n, k) = (m.size(), m.size());
        let x = m.data(&[k, 13]);
        let parts = [m.data(&[k, n]), m.data(&[k, 2])];
        let mut results = Vec::new();
        for g in parts {
            let g = m.b.permute(&g, &[1, 0])?;
            results.push(m.b.op(ops::MatMul {}, &[g, x])?);
        }
        let whole = m.b.op(ops::Concat { axis: 0 }, &results)?;
        m.pw(Pw::Tanh, &[whole])
    }),
    ("stacked_sums", |m| {
        let (n, k) = (m.size(), m.size());
        let parts = [m.data(&[2, k, n]), m.data(&[2, k, 3])];
        let mut sums = Vec::new();
        for x in parts {
            sums.push(m.b.sum(&x, &[0, 1])?);
        }
        let whole = m.b.op(ops::Concat { axis: 0 }, &sums)?;
        m.pw(Pw::Tanh, &[whole])
    }),
    ("reduce_of_reduce", |m| {
        let sizes = [m.size(), m.size(), m.size()];
        let x = m.data(&sizes);
        let kind = m.rng.one([Reduction::Max, Reduction::Min]);
        let y = m.b.reduce_keepdim(kind, &x, &[2])?;
        m.b.op(
            ops::Reduce {
                kind,
                axes: [0, 1].into_iter().collect(),
            },
            &[y],
        )
    }),
    ("dead_code", |m| {
        let (x, ..) = m.matrix();
        m.pw(Pw::Exp, &[x])?;
        m.pw(Pw::Tanh, &[x])
    }),
    ("empty", |m| {
        // The tensors are empty: nothing is divided by the zeros, nor looked up.
        let (a, c) = (m.size(), m.size());
        let x = m.b.input(Fact::new(DType::I64, [a, 0]), Role::Data);
        let zeros = m.b.full(0, DType::I64, &[Dim::from(a), Dim::ONE])?;
        let none = m.pw(Pw::FloorDivide, &[x, zeros])?;
        let lost = m.b.full(1000, DType::I64, &[Dim::from(a), Dim::ZERO])?;
        let table = m.data(&[a, c]);
        let found = m.b.op(ops::Gather { axis: 1 }, &[table, lost])?;
        let found = m.b.sum(&found, &[1])?;
        let sum = m.b.sum(&none, &[1])?;
        let sum = m.b.cast(&sum, DType::F32)?;
        m.pw(Pw::Add, &[sum, found])
    }),
    ("identity_view", |m| {
        let (x, ..) = m.matrix();
        let x = m.b.op(
            ops::Permute {
                perm: [0, 1].into_iter().collect(),
            },
            &[x],
        )?;
        m.pw(Pw::Tanh, &[x])
    }),
    ("reshape_of_reshape", |m| {
        let (x, n, c) = m.matrix();
        let x = m.b.reshape(&x, &[Dim::from(n * c), Dim::ONE, Dim::ONE])?;
        let x =
            m.b.reshape(&x, &[Dim::ONE, Dim::ONE, Dim::ONE, Dim::from(n * c)])?;
        m.pw(Pw::Tanh, &[x])
    }),
    ("broadcast_of_broadcast", |m| {
        let c = m.size();
        let x = m.data(&[c]);
        let x = m.b.op(
            ops::Broadcast {
                shape: [3, c].map(Dim::from).into_iter().collect(),
            },
            &[x],
        )?;
        m.b.op(
            ops::Broadcast {
                shape: [2, 3, c].map(Dim::from).into_iter().collect(),
            },
            &[x],
        )
    }),
    ("permute_of_permute", |m| {
        let sizes = [m.size(), m.size(), 1 + m.size()];
        let x = m.data(&sizes);
        let x = m.b.permute(&x, &[1, 2, 0])?;
        let x = m.b.permute(&x, &[0, 2, 1])?;
        m.pw(Pw::Tanh, &[x])
    }),
    ("full_fold", |m| {
        let (x, n, c) = m.matrix();
        let shape = [Dim::from(n), Dim::from(c)];
        let half = m.b.full(0.5, DType::F32, &shape)?;
        let wave = m.pw(Pw::Sin, &[half])?;
        m.pw(Pw::Mul, &[x, wave])
    }),
    ("constant_fold", |m| {
        let (x, _, c) = m.matrix();
        let numbers = m.b.op(ops::Iota { len: Dim::from(c) }, &[])?;
        let numbers = m.b.cast(&numbers, DType::F32)?;
        m.pw(Pw::Add, &[x, numbers])
    }),
    ("common_subexpression", |m| {
        let (x, ..) = m.matrix();
        let twice = [m.pw(Pw::Sin, &[x])?, m.pw(Pw::Sin, &[x])?];
        m.pw(Pw::Mul, &twice)
    }),
    ("conv_batch_norm", |m| {
        let (x, w, conv, _) = m.conv();
        let y = m.b.op(conv, &[x, w])?;
        m.norm(y)
    }),
    ("linear_batch_norm", |m| {
        let (mut y, c) = m.product()?;
        if m.rng.chance(0.5) {
            let (n, bias) = (m.b.fact(&y).shape[0].clone(), m.parameter(&[c]));
            y = m.pw(Pw::Add, &[y, bias])?;
            y = m.b.reshape(&y, &[Dim::ONE, n, Dim::from(c)])?;
            y = m.b.permute(&y, &[0, 2, 1])?;
        }
        m.norm(y)
    }),
    ("norm_of_scaled", |m| {
        let y = m.product_of_bytes()?;
        let c = m.b.fact(&y).shape[1].as_const().unwrap_or(1) as usize;
        let (y, s) = (m.b.cast(&y, DType::F32)?, m.parameter(&[c]));
        let y = m.pw(Pw::Mul, &[y, s])?;
        m.norm(y)
    }),
    ("transposed_product", |m| {
        let (y, _) = m.product()?;
        let y = m.b.permute(&y, &[1, 0])?;
        m.pw(Pw::Tanh, &[y])
    }),
    ("bias_under_reshape", |m| {
        let (y, c) = m.product()?;
        let n = m.b.fact(&y).shape[0].clone();
        let (factor, bias) = (m.data(&[c]), m.parameter(&[c]));
        let y = m.b.reshape(&y, &[Dim::ONE, n, Dim::from(c)])?;
        let y = m.pw(Pw::Mul, &[factor, y])?;
        m.pw(Pw::Sub, &[bias, y])
    }),
    ("cast_under_reshape", |m| {
        let (y, c) = m.product()?;
        let n = m.b.fact(&y).shape[0].clone();
        let bias = m.data(&[c]);
        let y = m.pw(Pw::Add, &[y, bias])?;
        let y = m.b.reshape(&y, &[n, Dim::ONE, Dim::from(c)])?;
        let y = m.b.cast(&y, DType::F16)?;
        m.pw(Pw::Sin, &[y])
    }),
    ("widened_parts", |m| {
        let (n, k, c) = (m.size(), m.size(), m.size());
        let (x, w) = (m.data(&[n, k]), m.parameter(&[k, 2 * c]));
        let [x, w] = [m.b.cast(&x, DType::BF16)?, m.b.cast(&w, DType::BF16)?];
        let y = m.b.op(ops::MatMul {}, &[x, w])?;
        let part = |m: &mut Maker<'_>, at: usize| {
            let part = m.b.narrow(&y, 1, Dim::from(at), Dim::from(c))?;
            m.b.cast(&part, DType::F32)
        };
        let (q, k) = (part(m, 0)?, part(m, c)?);
        let k = m.b.permute(&k, &[1, 0])?;
        m.b.op(ops::MatMul {}, &[q, k])
    }),
    ("factor_behind_product", |m| {
        let (y, c) = m.product()?;
        let n = m.b.fact(&y).shape[0].as_const().unwrap_or(1) as usize;
        // Data on both sides, so that the factor does not become part of a weight.
        let x = m.data(&[c, n]);
        let wide = m.b.op(ops::MatMul {}, &[x, y])?;
        let wide = m.b.with(Pw::Mul, &wide, 0.3)?;
        let z = m.data(&[c, 3]);
        m.b.op(ops::MatMul {}, &[wide, z])
    }),
    ("bias_before_norm", |m| {
        let [_, centred] = m.centred()?;
        m.pw(Pw::Square, &[centred])
    }),
    ("bias_behind_view", |m| {
        let (l, k, c) = (1 + m.size(), m.size(), m.size());
        let (x, w) = (m.finite(&[2 * l, k])?, m.finite(&[k, c])?);
        let bias = m.parameter(&[c]);
        let y = m.b.op(ops::MatMul {}, &[x, w])?;
        let shape = [2, l, c].map(Dim::from);
        let (y, axes) = if m.rng.chance(0.5) {
            let y = m.b.reshape(&y, &shape)?;
            let y = m.pw(Pw::Add, &[bias, y])?;
            (m.b.permute(&y, &[0, 2, 1])?, [0, 2])
        } else {
            let y = m.pw(Pw::Add, &[bias, y])?;
            (m.b.reshape(&y, &shape)?, [0, 1])
        };
        let sum = m.b.reduce_keepdim(Reduction::Sum, &y, &axes)?;
        let mean = m.b.with(Pw::Div, &sum, (2 * l) as f64)?;
        m.pw(Pw::Sub, &[y, mean])
    }),
    ("sum_of_shift", |m| {
        let (n, k, c) = (1 + m.size(), m.size(), m.size());
        let (x, w) = (m.finite(&[n, k])?, m.finite(&[k, c])?);
        let (y, bias) = (m.b.op(ops::MatMul {}, &[x, w])?, m.parameter(&[1, c]));
        let x = m.pw(Pw::Add, &[bias, y])?;
        m.b.sum(&x, &[0])
    }),
    ("zero_sum", |m| {
        let [mean, centred] = m.centred()?;
        let zero = m.b.reduce_keepdim(Reduction::Sum, &centred, &[0])?;
        m.pw(Pw::Add, &[mean, zero])
    }),
    ("unread_loop_value", |m| {
        let n = m.size();
        let x = [m.data(&[n]), m.data(&[n])];
        let body = m.body(n, [Pw::Tanh, Pw::Sin], true)?;
        let outputs =
            m.b.emit(ops::Loop::repeat(Dim::from(3usize), body).into(), &x)?;
        m.pw(Pw::Exp, &outputs[1..])
    }),
    ("twin_loop_value", |m| {
        let n = m.size();
        let x = [m.data(&[n]), m.data(&[n])];
        let mut body = m.body(n, [Pw::Tanh, Pw::Sin], true)?;
        let stacked = body.outputs[0].value;
        (0..2).for_each(|_| body.add_output(stacked));
        let steps = ops::Loop {
            carried: 2,
            ..ops::Loop::repeat(Dim::from(3usize), body)
        };
        let outputs = m.b.emit(steps.into(), &x)?;
        m.pw(Pw::Mul, &outputs[2..])
    }),
    ("unread_branch_value", |m| {
        let n = m.size();
        let x = [m.data(&[n]), m.data(&[n])];
        let sides = [
            m.body(n, [Pw::Tanh, Pw::Sin], false)?.into(),
            m.body(n, [Pw::Neg, Pw::Cos], false)?.into(),
        ];
        let sum = m.b.sum(&x[0], &[0])?;
        let condition = m.b.with(Pw::Lt, &sum, 0.5)?;
        let branch = ops::If { branches: sides };
        let outputs = m.b.emit(branch.into(), &[condition, x[0], x[1]])?;
        m.pw(Pw::Exp, &outputs[1..])
    }),
    ("unread_barrier_value", |m| {
        let (x, ..) = m.matrix();
        let y = m.pw(Pw::Exp, &[x])?;
        let barrier = ops::Barrier { detach: false };
        let outputs = m.b.emit(barrier.into(), &[y, x])?;
        m.pw(Pw::Sin, &outputs[..1])
    }),
];
