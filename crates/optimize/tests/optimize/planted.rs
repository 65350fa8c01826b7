//! Steps of the generator that plant patterns which one rule matches, or nearly matches.

use crate::generate::{Generator, Step};
use crate::rng::shape_of;
use crate::{around_products, unread};
use kiln_base::Scalar;
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_ir::ops::{self, SliceAxis};
use kiln_ir::{Builder, DType, Dim, Pw, Value};

/// The steps.
pub const STEPS: &[Step] = &[
    signs,
    repeated,
    choice,
    power,
    stretched,
    part,
    part,
    part,
    part,
    joined,
    joined,
    joined,
    scattered,
    padded_conv,
    cropped,
    window,
    casts,
    scattered,
    chosen,
    chosen,
    extreme,
    nothing,
    around_products::transposed,
    around_products::biased,
    around_products::cast,
    unread::branch,
    unread::barrier,
    unread::repeated,
];

fn signs(g: &mut Generator) -> Option<Value> {
    let mut a = g.any();
    if g.rng.coin(30) {
        a = g.b().cast(&a, DType::U8).ok()?;
        g.values.push(a);
    }
    let b = g.partner(a);
    let minus_one = g.b().scalar_like(-1.0, &a).ok()?;
    let at = g.rng.below(10);
    let mut builder = g.b();
    let mut op = |pw: Pw, operands: &[Value]| builder.pointwise(pw, operands).ok();
    let (na, nb) = (op(Pw::Neg, &[a])?, op(Pw::Neg, &[b])?);
    match at {
        0 => op(Pw::Neg, &[na]),
        1 => op(Pw::Add, &[a, nb]),
        2 => op(Pw::Add, &[na, b]),
        3 => op(Pw::Sub, &[a, nb]),
        4 => op(Pw::Mul, &[na, nb]),
        5 => op(Pw::Div, &[na, nb]),
        6 => op(Pw::Abs, &[na]),
        7 => op(Pw::Square, &[na]),
        8 => op(Pw::Mul, &[minus_one, a]),
        _ => {
            let size = op(Pw::Abs, &[a])?;
            op(Pw::Square, &[size])
        }
    }
}

/// The same operation twice, and operations on a value and itself.
fn repeated(g: &mut Generator) -> Option<Value> {
    let x = g.any();
    let twice = [
        Pw::Abs,
        Pw::Sign,
        Pw::Relu,
        Pw::Relu6,
        Pw::Floor,
        Pw::Round,
        Pw::Not,
        Pw::Exp,
    ];
    let with_itself = [
        Pw::Maximum,
        Pw::Minimum,
        Pw::Fmax,
        Pw::And,
        Pw::Or,
        Pw::Xor,
        Pw::Sub,
    ];
    if g.rng.coin(40) {
        let pw = g.rng.pick(&with_itself);
        return g.b().pointwise(pw, &[x, x]).ok();
    }
    let pw = g.rng.pick(&twice);
    let other = if g.rng.coin(80) { pw } else { Pw::Trunc };
    let once = g.b().pointwise(pw, &[x]).ok()?;
    g.b().pointwise(other, &[once]).ok()
}

fn choice(g: &mut Generator) -> Option<Value> {
    let a = g.any_of(DType::F32);
    let b = g.partner(a);
    let mask = g.b().pointwise(Pw::Lt, &[a, b]).ok()?;
    let not = g.b().pointwise(Pw::Not, &[mask]).ok()?;
    let at = g.rng.below(5);
    let mut builder = g.b();
    let mut select = |c: Value, a: Value, b: Value| builder.pointwise(Pw::Select, &[c, a, b]).ok();
    match at {
        0 => select(mask, a, a),
        1 => select(not, a, b),
        2 => {
            let inner = select(mask, b, a)?;
            select(mask, inner, a)
        }
        3 => {
            let inner = select(mask, b, a)?;
            select(mask, b, inner)
        }
        _ => {
            let inner = select(mask, b, a)?;
            select(not, inner, b)
        }
    }
}

fn power(g: &mut Generator) -> Option<Value> {
    let x = g.any_of(DType::F32);
    if g.rng.coin(20) {
        // Zeros of both signs, and 0 more.
        let zeros = g.b().with(Pw::Mul, &x, 0.0).ok()?;
        return g.b().with(Pw::Add, &zeros, 0.0).ok();
    }
    let number = g.rng.pick(&[
        2.0,
        -4.0,
        0.5,
        3.0,
        2f64.powi(126),
        2f64.powi(-126),
        2f64.powi(127),
    ]);
    let number = g.b().scalar_like(number, &x).ok()?;
    let pw = g.rng.pick(&[Pw::Div, Pw::Div, Pw::Pow]);
    g.b().pointwise(pw, &[x, number]).ok()
}

/// Pointwise work on stretched values.
fn stretched(g: &mut Generator) -> Option<Value> {
    let x = g.any();
    let y = g.partner(x);
    let joint = {
        let facts = [&g.graph.fact(x).shape[..], &g.graph.fact(y).shape[..]];
        kiln_ir::broadcast_shapes(facts)?
    };
    let mut shape = joint;
    for d in shape.iter_mut().filter(|d| d.is(1)) {
        *d = Dim::from(1 + g.rng.below(2));
    }
    shape.insert(0, Dim::from(1 + g.rng.below(3)));
    let pw = g.rng.pick(&[Pw::Add, Pw::Mul, Pw::Maximum, Pw::Lt]);
    let (a, b) = (
        g.b().broadcast_to(&x, &shape).ok()?,
        g.b().broadcast_to(&y, &shape).ok()?,
    );
    let v = g.b().pointwise(pw, &[a, b]).ok()?;
    g.values.push(v);
    let kind = g
        .rng
        .pick(&[Reduction::Max, Reduction::Min, Reduction::Sum]);
    let axes = if g.rng.coin(70) {
        vec![0]
    } else {
        vec![0, shape.len() - 1]
    };
    let axes: ops::Axes = axes.into_iter().collect();
    g.emit(ops::Reduce { kind, axes }, &[a])
}

/// A random part of every axis.
fn random_slice(g: &mut Generator, x: Value) -> Option<Value> {
    let extents = shape_of(&g.graph, x);
    let mut axes = Vec::new();
    for e in extents {
        if e == 0 || g.rng.coin(30) {
            axes.push(SliceAxis::all(&Dim::from(e)));
            continue;
        }
        let (a, b) = (g.rng.below(e), g.rng.below(e));
        let (low, high) = (a.min(b), a.max(b));
        let step = g.rng.pick(&[1i64, 1, 1, 2, -1, -2]);
        let len = (high - low) as i64 / step.abs() + 1;
        let start = if step > 0 { low } else { high };
        axes.push(SliceAxis {
            start: Dim::from(start),
            len: Dim::Const(len),
            step,
        });
    }
    g.emit(ops::Slice { axes }, &[x])
}

/// A part of an assembled value.
fn part(g: &mut Generator) -> Option<Value> {
    let x = g.any();
    let rank = g.graph.fact(x).rank();
    let whole = match g.rng.below(5) {
        0 => random_slice(g, x)?,
        1 => border(g, x, 2)?,
        2 if rank > 0 => {
            let axis = g.rng.below(rank);
            let y = random_slice(g, x).filter(|y| {
                let (a, b) = (shape_of(&g.graph, x), shape_of(&g.graph, *y));
                (0..rank).all(|i| i == axis || a[i] == b[i])
            });
            g.emit(ops::Concat { axis }, &[x, y.unwrap_or(x), x])?
        }
        3 => {
            let mut shape = g.graph.fact(x).shape.clone();
            for d in shape.iter_mut().filter(|d| d.is(1)) {
                *d = Dim::from(1 + g.rng.below(3));
            }
            shape.insert(0, Dim::from(3i64));
            g.emit(ops::Broadcast { shape }, &[x])?
        }
        _ => {
            let n = shape_of(&g.graph, x).iter().product::<usize>();
            let x = g.b().cast(&x, DType::F32).ok()?;
            let a = g.b().reshape(&x, &[Dim::from(n), Dim::ONE]).ok()?;
            let b = g.b().reshape(&x, &[Dim::ONE, Dim::from(n)]).ok()?;
            g.emit(ops::MatMul {}, &[a, b])?
        }
    };
    random_slice(g, whole)
}

/// A pad of up to `most` along every axis.
fn border(g: &mut Generator, x: Value, most: usize) -> Option<Value> {
    let fact = g.graph.fact(x).clone();
    let mut sizes = || {
        (0..fact.rank())
            .map(|_| Dim::from(g.rng.below(most + 1)))
            .collect()
    };
    let (low, high) = (sizes(), sizes());
    let value = Scalar::Int(g.rng.below(2) as i64).cast(fact.dtype);
    g.emit(ops::Pad { low, high, value }, &[x])
}

fn joined(g: &mut Generator) -> Option<Value> {
    let x = g.any();
    if g.rng.coin(30) {
        let once = border(g, x, 1)?;
        return border(g, once, 1);
    }
    let extents = shape_of(&g.graph, x);
    let axis = g.rng.below(extents.len().max(1));
    let extent = *extents.get(axis)?;
    if extent < 2 || g.rng.coin(30) {
        let inner = g.emit(ops::Concat { axis }, &[x, x])?;
        return g.emit(ops::Concat { axis }, &[x, inner, x]);
    }
    let cut = 1 + g.rng.below(extent - 1);
    let first = g.b().narrow(&x, axis, 0i64, cut).ok()?;
    let second = g.b().narrow(&x, axis, cut, extent - cut).ok()?;
    g.values.push(second);
    let order = if g.rng.coin(80) {
        [first, second]
    } else {
        [second, first]
    };
    g.emit(ops::Concat { axis }, &order)
}

/// An f32 value as `[1, 1, n]`, n from 1 to 12.
fn line(g: &mut Generator) -> Option<(Value, usize)> {
    let x = g.any_of(DType::F32);
    let n = shape_of(&g.graph, x).iter().product::<usize>();
    if !(1..=12).contains(&n) {
        return None;
    }
    let shape = [Dim::ONE, Dim::ONE, Dim::from(n)];
    Some((g.b().reshape(&x, &shape).ok()?, n))
}

/// A pad along the last axis of a line.
fn framed(g: &mut Generator, x: Value, value: f64) -> Option<Value> {
    let mut border = || {
        [Dim::ZERO, Dim::ZERO, Dim::from(g.rng.below(3))]
            .into_iter()
            .collect()
    };
    let (low, high) = (border(), border());
    let value = Scalar::Float(value);
    g.emit(ops::Pad { low, high, value }, &[x])
}

fn kernel(g: &mut Generator) -> Option<Value> {
    let bytes: Vec<u8> = [0.5f32, -2.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let op = ops::Constant {
        dtype: DType::F32,
        shape: vec![1, 1, 2],
        bytes: bytes.into(),
    };
    g.emit(op, &[])
}

fn conv(g: &mut Generator) -> ops::Conv {
    ops::Conv {
        stride: [1 + g.rng.below(2)].into_iter().collect(),
        padding: vec![(g.rng.below(2), g.rng.below(2))],
        dilation: [1 + g.rng.below(2)].into_iter().collect(),
        groups: 1,
    }
}

fn padded_conv(g: &mut Generator) -> Option<Value> {
    let (x, _) = line(g)?;
    let value = g.rng.pick(&[0.0, 0.0, 0.0, 1.0]);
    let x = framed(g, x, value)?;
    let (w, op) = (kernel(g)?, conv(g));
    let y = g.emit(op.clone(), &[x, w])?;
    g.values.push(y);
    let kernel = [2].into_iter().collect();
    g.emit(ops::ConvWeight { conv: op, kernel }, &[x, y])
}

fn cropped(g: &mut Generator) -> Option<Value> {
    let (y, n) = line(g)?;
    let (w, op) = (kernel(g)?, conv(g));
    let span = (n - 1) * op.stride[0] + op.dilation[0] + 1;
    let extent = span
        .checked_sub(op.padding[0].0 + op.padding[0].1)
        .filter(|e| *e > 0)?;
    let input = [Dim::from(extent)].into_iter().collect();
    let x = g.emit(ops::ConvTranspose { conv: op, input }, &[y, w])?;
    let len = 1 + g.rng.below(extent);
    let start = g.rng.below(extent - len + 1);
    g.b().narrow(&x, 2, start, len).ok()
}

fn window(g: &mut Generator) -> Option<Value> {
    let (x, _) = line(g)?;
    let kind = g.rng.pick(&[Reduction::Max, Reduction::Sum]);
    let value = g.rng.pick(&[0.0, f64::NEG_INFINITY]);
    let x = framed(g, x, value)?;
    let window = ops::WindowReduce {
        kind,
        kernel: [2].into_iter().collect(),
        stride: [1 + g.rng.below(2)].into_iter().collect(),
        padding: vec![(g.rng.below(2), 0)],
        dilation: [1].into_iter().collect(),
    };
    g.emit(window, &[x])
}

/// A cast of a cast.
fn casts(g: &mut Generator) -> Option<Value> {
    const DTYPES: [DType; 9] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    let x = g.any();
    let [first, over, to] = [0; 3].map(|_| g.rng.pick(&DTYPES));
    let narrow = g.b().cast(&x, first).ok()?;
    let wide = g.b().cast(&narrow, over).ok()?;
    g.b().cast(&wide, to).ok()
}

/// A scatter to one element of each row, and a gather; sometimes out of range, or of more than one element.
fn scattered(g: &mut Generator) -> Option<Value> {
    let x = g.any_of(DType::F32);
    let n = shape_of(&g.graph, x).iter().product::<usize>();
    if n == 0 || n % 2 == 1 {
        return None;
    }
    let lanes = g.rng.pick(&[[1, 2], [2, 1], [2, 1], [2, 1]]);
    let x = g
        .b()
        .reshape(&x, &[Dim::from(2usize), Dim::from(n / 2)])
        .ok()?;
    let index: Vec<i64> = (0..2)
        .map(|_| {
            let bound = n / 2 + g.rng.below(2);
            g.rng.below(bound) as i64
        })
        .collect();
    let bytes: Vec<u8> = index.iter().flat_map(|i| i.to_le_bytes()).collect();
    let index = ops::Constant {
        dtype: DType::I64,
        shape: lanes.to_vec(),
        bytes: bytes.into(),
    };
    let index = g.emit(index, &[])?;
    let read = g.emit(ops::Gather { axis: 1 }, &[x, index])?;
    if g.rng.coin(80) {
        g.values.push(read);
    }
    let base = match g.rng.coin(80) {
        true => {
            let shape = g.graph.fact(x).shape.clone();
            g.b().full(0.0, DType::F32, &shape).ok()?
        }
        false => x,
    };
    let kinds = [ScatterKind::Sum, ScatterKind::Sum, ScatterKind::Prod];
    let kind = g.rng.pick(&kinds);
    g.emit(ops::Scatter { axis: 1, kind }, &[base, index, read])
}

/// Sums of rows without elements, whose operands have no data error to report.
fn nothing(g: &mut Generator) -> Option<Value> {
    let x = g.any();
    let shape = shape_of(&g.graph, x);
    let empty: Vec<Dim> = shape
        .iter()
        .map(|n| Dim::from(*n))
        .chain([Dim::ZERO])
        .collect();
    let none = g.b().full(1.0, DType::F32, &empty).ok()?;
    let root = g.b().pointwise(Pw::Sqrt, &[none]).ok()?;
    g.b().sum(&root, &[shape.len()]).ok()
}

/// The element at the index of a first extreme.
fn extreme(g: &mut Generator) -> Option<Value> {
    let x = g.any_of(DType::F32);
    let extents = shape_of(&g.graph, x);
    if extents.is_empty() || extents.contains(&0) {
        return None;
    }
    let axis = g.rng.below(extents.len());
    let kind = g.rng.pick(&[Reduction::Max, Reduction::Min]);
    let index = g.emit(ops::ArgReduce { kind, axis }, &[x])?;
    let mut shape = g.b().fact(&x).shape;
    shape[axis] = Dim::ONE;
    let index = g.b().reshape(&index, &shape).ok()?;
    g.emit(ops::Gather { axis }, &[x, index])
}

/// One element or more of each row of pointwise work, sometimes out of range.
fn chosen(g: &mut Generator) -> Option<Value> {
    let x = g.any_of(DType::F32);
    let n = shape_of(&g.graph, x).iter().product::<usize>();
    if n < 4 || n % 2 == 1 {
        return None;
    }
    let rows = [Dim::from(2usize), Dim::from(n / 2)];
    let x = g.b().reshape(&x, &rows).ok()?;
    let kind = g.rng.pick(&[Reduction::Max, Reduction::Sum]);
    let axis = usize::from(g.rng.coin(80));
    let row = g.b().reduce_keepdim(kind, &x, &[axis]).ok()?;
    let mut y = g.b().pointwise(Pw::Sub, &[x, row]).ok()?;
    g.values.push(y);
    if g.rng.coin(50) {
        let pw = g.rng.pick(&[Pw::Mul, Pw::Maximum, Pw::Sub]);
        y = g.b().pointwise(pw, &[x, y]).ok()?;
    }
    if g.rng.coin(30) {
        let dtype = g.rng.pick(&[DType::F16, DType::Bool, DType::I32]);
        y = g.b().cast(&y, dtype).ok()?;
    }
    let each = 1 + g.rng.below(n / 4);
    let bound = n / 2 + usize::from(g.rng.coin(10));
    let index: Vec<u8> = (0..2 * each)
        .flat_map(|_| (g.rng.below(bound) as i64).to_le_bytes())
        .collect();
    let index = ops::Constant {
        dtype: DType::I64,
        shape: vec![2, each],
        bytes: index.into(),
    };
    let index = g.emit(index, &[])?;
    g.emit(ops::Gather { axis: 1 }, &[y, index])
}
