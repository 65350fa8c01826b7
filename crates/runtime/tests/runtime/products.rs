//! Matrix products and convolutions against plain loops.

use super::build::*;
use kiln_base::prim::{Binary, Reduction};
use kiln_base::{DType, Dim};
use kiln_plan::tile::Schedule;
use kiln_plan::{
    Algorithm, Conv, ConvRole, Epilogue, Images, Kernel, MatMul, Matrix, Plan, Prologue,
};
use kiln_runtime::{Buffer, Error};

pub fn floats(b: &Buffer) -> Vec<f64> {
    super::oracle::read(b).into_iter().map(|v| v.f()).collect()
}

pub fn data(dtype: DType, n: i64, seed: u64) -> Buffer {
    let mut r = Random(seed);
    let whole = |x: f64| {
        if dtype == DType::U8 { x.abs() } else { x }
    };
    let numbers = (0..n).map(|_| whole((r.float() * 4.0).round()));
    buffer(dtype, &numbers.collect::<Vec<_>>())
}

fn dims(d: &[i64]) -> Vec<Dim> {
    d.iter().map(|d| Dim::Const(*d)).collect()
}

fn matrix(arg: u16, offset: i64, batch: &[i64], row: i64, col: i64) -> Matrix {
    Matrix {
        arg,
        offset: offset.into(),
        batch_strides: dims(batch),
        row: row.into(),
        col: col.into(),
    }
}

/// The accesses of an epilogue: the raw result, the bias along an axis, and the output.
fn arguments(
    p: &mut Program,
    (dtype, operands): (DType, [DType; 2]),
    rank: usize,
    bias_axis: usize,
) -> [u16; 3] {
    for dtype in operands {
        p.arg(dtype, false);
    }
    let [bias, out, raw] = [false, true, false].map(|written| p.arg(dtype, written));
    let mut strides = vec![0; rank];
    strides[bias_axis] = 1;
    let dense = p.dense();
    [
        p.access(raw, 0, &dense),
        p.access(bias, 0, &strides),
        p.access(out, 0, &dense),
    ]
}

/// `max(raw + bias[last axis], 0) · scale[row-major]`, over a result of these extents.
pub fn bias_relu(
    dtype: DType,
    operands: [DType; 2],
    extents: &[i64],
    bias_axis: usize,
) -> Epilogue {
    let mut p = Program::lanes(extents);
    let [raw, bias, out] = arguments(&mut p, (dtype, operands), extents.len(), bias_axis);
    let (raw, bias) = (p.load(raw), p.load(bias));
    let y = p.binary(Binary::Add, raw, bias);
    let zero = p.constant(dtype.compute(), 0.0);
    let y = p.binary(Binary::Max, y, zero);
    p.store(out, y);
    Epilogue { program: p.0 }
}

/// `raw + bias[last axis]` minus the largest element of its row, over a result of these extents.
fn below_largest(dtype: DType, operands: [DType; 2], extents: &[i64]) -> Epilogue {
    let (rows, row) = extents.split_at(extents.len() - 1);
    let mut p = Program::new(Schedule::Rows, rows, row);
    let [raw, bias, out] = arguments(&mut p, (dtype, operands), extents.len(), rows.len());
    let sum = |p: &mut Program| {
        p.stage(true);
        let (raw, bias) = (p.load(raw), p.load(bias));
        p.binary(Binary::Add, raw, bias)
    };
    let y = sum(&mut p);
    let largest = p.reduce(Reduction::Max, y);
    let y = sum(&mut p);
    let y = p.binary(Binary::Sub, y, largest);
    p.store(out, y);
    Epilogue { program: p.0 }
}

/// `2 · x + 1` of argument `arg` of three or more, in the memory order of the matrix.
fn twice_and_one(dtype: DType, arg: u16, args: &[(DType, i64, bool)]) -> Box<Prologue> {
    scaled(dtype, arg, args, [2.0, 1.0])
}

/// `factor · x + shift` of argument `arg` of three or more, in memory order.
pub fn scaled(dtype: DType, arg: u16, args: &[(DType, i64, bool)], by: [f64; 2]) -> Box<Prologue> {
    let len = args[usize::from(arg)].1;
    let mut p = Program::lanes(&[len]);
    for (dtype, ..) in args {
        p.arg(*dtype, false);
    }
    let made = p.arg(dtype, true);
    let (from, to) = (p.access(arg, 0, &[1]), p.access(made, 0, &[1]));
    let x = p.load(from);
    let [factor, shift] = by.map(|c| p.constant(dtype.compute(), c));
    let x = p.binary(Binary::Mul, x, factor);
    let x = p.binary(Binary::Add, x, shift);
    p.store(to, x);
    Box::new(Prologue { program: p.0 })
}

/// A product of operands that prologues compute, with an epilogue over rows.
pub fn made_product() -> Plan {
    let (m, k, n) = (6, 5, 7);
    let f32 = |len, written| (DType::F32, len, written);
    let args = [
        f32(m * k, false),
        f32(k * n, false),
        f32(n, false),
        f32(m * n, true),
    ];
    let made = |side| Some(twice_and_one(DType::F32, side, &args));
    let product = MatMul {
        prologues: [made(0), made(1)],
        epilogue: Some(below_largest(DType::F32, [DType::F32; 2], &[m, n])),
        ..product(m, k, n)
    };
    plan_of(Kernel::MatMul(product), &args)
}

/// The epilogue of a product.
#[derive(Copy, Clone, PartialEq)]
enum RowEpilogue {
    Nothing,
    BiasRelu,
    BelowLargest,
}

impl RowEpilogue {
    /// Applies the epilogue to a row of sums.
    fn apply(self, row: &mut [f64], bias: &[f64]) {
        if self == RowEpilogue::Nothing {
            return;
        }
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        let largest = row.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
        for x in row {
            *x = match self {
                RowEpilogue::BiasRelu => x.max(0.0),
                _ => *x - largest,
            };
        }
    }
}

fn check_matmul(p: MatMul, behind: RowEpilogue) {
    check_made(&p, behind, [false, false]);
    let lines = |x: &Matrix| [&x.row, &x.col].iter().any(|s| s.is(1));
    let can = [&p.lhs, &p.rhs].map(lines);
    for made in [[true, false], [false, true], [true, true]] {
        if (0..2).all(|side| can[side] || !made[side]) {
            check_made(&p, behind, made);
        }
    }
}

/// Checks a product; its operands are computed by prologues where `made` is true.
fn check_made(p: &MatMul, behind: RowEpilogue, made: [bool; 2]) {
    let mut p = p.clone();
    let c = |d: &Dim| d.as_const().unwrap();
    let batch: Vec<i64> = p.batch.iter().map(c).collect();
    let (m, k, n) = (c(&p.m), c(&p.k), c(&p.n));
    let total = batch.iter().product::<i64>() * m * n;
    let len = |x: &Matrix, rows: i64, cols: i64| {
        let reach = |s: &Dim, e: i64| (c(s) * (e - 1)).max(0);
        let b: i64 = x
            .batch_strides
            .iter()
            .zip(&batch)
            .map(|(s, e)| reach(s, *e))
            .sum();
        c(&x.offset) + b + reach(&x.row, rows) + reach(&x.col, cols) + 1
    };
    let (a, b) = (
        data(p.dtypes[0], len(&p.lhs, m, k), 5),
        data(p.dtypes[1], len(&p.rhs, k, n), 6),
    );
    let (mut av, mut bv) = (floats(&a), floats(&b));
    for (made, values) in made.into_iter().zip([&mut av, &mut bv]) {
        if made {
            values.iter_mut().for_each(|x| *x = 2.0 * *x + 1.0);
        }
    }
    let sums = p.sums();
    let bias = data(sums, n, 7);
    let biases = floats(&bias);
    let [lhs, rhs] = [&p.lhs, &p.rhs].map(|x| [c(&x.row), c(&x.col)]);
    let mut want = vec![];
    for point in super::oracle::points(&p.batch) {
        let base = |x: &Matrix| {
            c(&x.offset)
                + x.batch_strides
                    .iter()
                    .zip(&point)
                    .map(|(s, i)| c(s) * i)
                    .sum::<i64>()
        };
        let [left, right] = [base(&p.lhs), base(&p.rhs)];
        for i in 0..m {
            for j in 0..n {
                let (row, column) = (left + i * lhs[0], right + j * rhs[1]);
                let product =
                    |l| av[(row + l * lhs[1]) as usize] * bv[(column + l * rhs[0]) as usize];
                want.push((0..k).fold(0.0, |sum, l| sum + product(l)));
            }
            let row = want.len() - n as usize;
            behind.apply(&mut want[row..], &biases);
        }
    }
    let (mut args, mut inputs) = (
        vec![
            (p.dtypes[0], a.len() as i64, false),
            (p.dtypes[1], b.len() as i64, false),
        ],
        vec![a, b],
    );
    if behind != RowEpilogue::Nothing {
        let extents: Vec<i64> = batch.iter().copied().chain([m, n]).collect();
        p.epilogue = Some(match behind {
            RowEpilogue::BelowLargest => below_largest(sums, p.dtypes, &extents),
            _ => bias_relu(sums, p.dtypes, &extents, extents.len() - 1),
        });
        args.push((sums, n, false));
        inputs.push(bias);
    }
    p.out = args.len() as u16;
    args.push((sums, total, true));
    for side in (0..2).filter(|side| made[*side]) {
        p.prologues[side] = Some(twice_and_one(p.dtypes[side], side as u16, &args));
        [&mut p.lhs, &mut p.rhs][side].arg = u16::MAX;
    }
    for algorithm in p.algorithms(&[]) {
        p.algorithm = algorithm.into();
        let plan = plan_of(Kernel::MatMul(p.clone()), &args);
        for result in run(&plan, &inputs) {
            // Small integers: every order of summation is exact.
            let got = floats(&result.unwrap()[0]);
            assert!(got == want, "{algorithm} {m} {k} {n} {batch:?} {made:?}");
        }
    }
}

#[test]
fn matrix_products_of_odd_sizes_strides_and_batches() {
    let alike = [DType::F32, DType::F64, DType::BF16, DType::F16];
    let whole = [DType::I8, DType::I16, DType::I32, DType::I64];
    let alike = alike.into_iter().chain(whole).map(|d| [d; 2]);
    let bytes = [
        [DType::U8; 2],
        [DType::U8, DType::I8],
        [DType::I8, DType::U8],
    ];
    for dtypes in alike.chain(bytes) {
        for behind in [
            RowEpilogue::Nothing,
            RowEpilogue::BiasRelu,
            RowEpilogue::BelowLargest,
        ] {
            for (m, k, n) in [
                (1, 1, 1),
                (3, 5, 7),
                (17, 33, 65),
                (40, 66, 70),
                (9, 512, 300),
                (3, 2048, 257),
                (1, 70, 40),
                (40, 70, 1),
                (4, 0, 3),
                (0, 3, 4),
                (3, 4, 0),
                (500, 300, 430),
                (1000, 200, 3),
                (3, 200, 1500),
                (5, 4099, 3),
                (60, 5003, 70),
            ] {
                // Large products of integers have the same schedule as those of floats.
                if !dtypes[0].is_float() && m * n * k > 1_400_000 {
                    continue;
                }
                let product = |batch: &[i64], lhs: Matrix, rhs: Matrix| MatMul {
                    dtypes,
                    // The data has seven bits.
                    reduce_range: dtypes == [DType::U8, DType::I8] && k % 2 == 0,
                    batch: dims(batch),
                    m: m.into(),
                    k: k.into(),
                    n: n.into(),
                    lhs,
                    rhs,
                    out: 2,
                    prologues: [None, None],
                    epilogue: None,
                    algorithm: Default::default(),
                };
                check_matmul(
                    product(&[], matrix(0, 0, &[], k, 1), matrix(1, 0, &[], n, 1)),
                    behind,
                );
                if m * n * k > 100_000 {
                    continue;
                }
                let transposed = product(
                    &[2, 3],
                    matrix(0, 3, &[0, m * k], 1, m),
                    matrix(1, 1, &[n * k, 0], 1, k + 1),
                );
                check_matmul(transposed, behind);
                let flipped = product(
                    &[2],
                    matrix(0, k.max(1) - 1, &[m * k], k, -1),
                    matrix(1, 0, &[k * n * 2], 2 * n, 2),
                );
                check_matmul(flipped, behind);
                check_matmul(
                    product(&[0], matrix(0, 0, &[1], k, 1), matrix(1, 0, &[1], n, 1)),
                    behind,
                );
            }
        }
    }
}

#[test]
fn products_propagate_nan_and_infinity() {
    for (m, k, n) in [(1i64, 8i64, 9i64), (30, 40, 50), (9, 8, 1), (3, 4096, 2)] {
        let mut a = vec![0.0f32; (m * k) as usize];
        a[(k - 1) as usize] = f32::NAN;
        let mut b = vec![0.0f32; (k * n) as usize];
        b[0] = f32::INFINITY;
        let p = MatMul {
            dtypes: [DType::F32; 2],
            reduce_range: false,
            batch: vec![],
            m: m.into(),
            k: k.into(),
            n: n.into(),
            lhs: matrix(0, 0, &[], k, 1),
            rhs: matrix(1, 0, &[], n, 1),
            out: 2,
            prologues: [None, None],
            epilogue: None,
            algorithm: Default::default(),
        };
        let plan = plan_of(
            Kernel::MatMul(p),
            &[
                (DType::F32, m * k, false),
                (DType::F32, k * n, false),
                (DType::F32, m * n, true),
            ],
        );
        let inputs = [
            Buffer::from_slice(&a, &[m * k]).unwrap(),
            Buffer::from_slice(&b, &[k * n]).unwrap(),
        ];
        for result in run(&plan, &inputs) {
            let c = result.unwrap()[0].to_vec::<f32>().unwrap();
            assert!(c[..n as usize].iter().all(|c| c.is_nan()), "{m} {k} {n}");
            assert!(
                (0..m).all(|i| c[(i * n) as usize].is_nan()),
                "0 times infinity"
            );
            assert!(n == 1 || (1..m).all(|i| c[(i * n + 1) as usize] == 0.0));
        }
    }
}

#[test]
fn matrices_outside_their_buffer_are_refused() {
    for (offset, row, col) in [
        (1, 4, 1),
        (0, 5, 1),
        (0, 4, 2),
        (0, -4, 1),
        (0, i64::MAX / 4, 1),
    ] {
        let p = MatMul {
            dtypes: [DType::F32; 2],
            reduce_range: false,
            batch: vec![],
            m: 3i64.into(),
            k: 4i64.into(),
            n: 5i64.into(),
            lhs: matrix(0, offset, &[], row, col),
            rhs: matrix(1, 0, &[], 5, 1),
            out: 2,
            prologues: [None, None],
            epilogue: None,
            algorithm: Default::default(),
        };
        let plan = plan_of(
            Kernel::MatMul(p),
            &[
                (DType::F32, 12, false),
                (DType::F32, 20, false),
                (DType::F32, 15, true),
            ],
        );
        for result in run(&plan, &[data(DType::F32, 12, 1), data(DType::F32, 20, 1)]) {
            assert!(matches!(result, Err(Error::Plan(_))), "{result:?}");
        }
    }
}

#[derive(Debug)]
struct Case {
    batch: i64,
    groups: i64,
    cin: i64,
    cout: i64,
    input: Vec<i64>,
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    /// The number of outputs beyond those that padding in front gives, as from padding at the end.
    more: i64,
}

/// With `wild`, some elements of the operands are infinite or NaN.
fn check_conv(dtypes: [DType; 2], role: ConvRole, c: &Case, with_epilogue: bool, wild: bool) {
    let rank = c.input.len();
    let output: Vec<i64> = (0..rank)
        .map(|i| {
            ((c.input[i] + 2 * c.padding[i] - c.dilation[i] * (c.kernel[i] - 1) - 1) / c.stride[i]
                + 1
                + c.more)
                .max(0)
        })
        .collect();
    let shape = |a: i64, b: i64, rest: &[i64]| -> Vec<i64> {
        [a, b].into_iter().chain(rest.iter().copied()).collect()
    };
    let x = shape(c.batch, c.groups * c.cin, &c.input);
    let w = shape(c.groups * c.cout, c.cin, &c.kernel);
    let y = shape(c.batch, c.groups * c.cout, &output);
    let (a, b, result) = match role {
        ConvRole::Result => (&x, &w, &y),
        ConvRole::Input => (&y, &w, &x),
        ConvRole::Weight => (&x, &y, &w),
    };
    let operand = |dtype: DType, shape: &[i64], seed: u64| {
        let mut v = floats(&data(dtype, shape.iter().product(), seed));
        for i in (seed as usize..v.len()).step_by(7).filter(|_| wild) {
            v[i] = [f64::INFINITY, f64::NAN, f64::NEG_INFINITY, 0.0][i % 4];
        }
        buffer(dtype, &v)
    };
    let (a, b) = (operand(dtypes[0], a, 3), operand(dtypes[1], b, 4));
    let mut want = all_sums(role, c, &output, &floats(&a), &floats(&b));
    assert_eq!(want.len() as i64, result.iter().product::<i64>());
    let sums = match dtypes[0] {
        DType::BF16 | DType::F16 => DType::F32,
        DType::U8 | DType::I8 | DType::I16 => DType::I32,
        other => other,
    };
    let bias = data(sums, result[1], 9);
    let biases = floats(&bias);
    if with_epilogue {
        let inner: i64 = result[2..].iter().product();
        for (i, v) in want.iter_mut().enumerate().filter(|(_, v)| !v.is_nan()) {
            *v = (*v + biases[(i as i64 / inner % result[1]) as usize]).max(0.0);
        }
    }
    let mut args = vec![
        (dtypes[0], a.len() as i64, false),
        (dtypes[1], b.len() as i64, false),
    ];
    let mut inputs = vec![a, b];
    if with_epilogue {
        args.push((sums, result[1], false));
        inputs.push(bias);
    }
    let out = args.len() as u16;
    args.push((sums, result.iter().product(), true));
    let conv = Conv {
        dtypes,
        // The data has seven bits.
        reduce_range: dtypes == [DType::U8, DType::I8] && with_epilogue,
        role,
        batch: c.batch.into(),
        groups: c.groups.into(),
        in_channels: c.cin.into(),
        out_channels: c.cout.into(),
        input: dims(&c.input),
        output: dims(&output),
        kernel: dims(&c.kernel),
        stride: dims(&c.stride),
        padding: dims(&c.padding),
        dilation: dims(&c.dilation),
        operands: [0, 1],
        out,
        prologue: None,
        epilogue: None,
        algorithm: Default::default(),
        images: Images::default(),
    };
    let all = [false, true].map(|x| [false, true].map(|y| [x, y]));
    for [x_last, y_last] in all.as_flattened() {
        // For each operand and the result, whether it has channels last, and its shape.
        let (lasts, shapes) = match role {
            ConvRole::Result => ([*x_last, false, *y_last], [&x, &w, &y]),
            ConvRole::Input => ([*y_last, false, *x_last], [&y, &w, &x]),
            ConvRole::Weight => ([*x_last, *y_last, false], [&x, &y, &w]),
        };
        let lay = |i: usize, v: &[f64]| match lasts[i] {
            true => turned(v, shapes[i][0], shapes[i][1]),
            false => v.to_vec(),
        };
        let mut inputs = inputs.clone();
        for (i, input) in inputs.iter_mut().take(2).enumerate() {
            *input = buffer(dtypes[i], &lay(i, &floats(input)));
        }
        let last: Vec<i64> = [&result[..1], &result[2..], &result[1..2]].concat();
        let epilogue = match lasts[2] {
            true => bias_relu(sums, dtypes, &last, last.len() - 1),
            false => bias_relu(sums, dtypes, result, 1),
        };
        let conv = Conv {
            images: Images::of([*x_last, *y_last]),
            epilogue: with_epilogue.then_some(epilogue),
            ..conv.clone()
        };
        by_all(&conv, &args, &inputs, &lay(2, &want), wild);
    }
}

/// A convolution of small integers by all algorithms.
fn by_all(conv: &Conv, args: &[(DType, i64, bool)], inputs: &[Buffer], want: &[f64], wild: bool) {
    for algorithm in conv.algorithms(&[]) {
        if wild && !algorithm.only_sums() {
            continue; // what is not a number reaches the other results of a tile
        }
        let conv = Conv {
            algorithm: algorithm.into(),
            ..conv.clone()
        };
        for result in run(&plan_of(Kernel::Conv(conv.clone()), args), inputs) {
            let got = floats(&result.unwrap()[0]);
            // Every order of summation is exact, except for some weights of Winograd's algorithms and for transforms.
            let most = want.iter().fold(1.0, |most: f64, v| most.max(v.abs()));
            let slack = match algorithm {
                Algorithm::Winograd4 | Algorithm::Fft => 1e-4 * most,
                _ => 0.0,
            };
            let same =
                |(g, w): (&f64, &f64)| g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= slack;
            assert!(
                got.len() == want.len() && got.iter().zip(want).all(same),
                "{conv:?} wild {wild}"
            );
        }
    }
}

/// Transposes `[batch, channels, positions]` to `[batch, positions, channels]`.
pub fn turned<T: Copy>(x: &[T], batch: i64, channels: i64) -> Vec<T> {
    let positions = x.len() / ((batch * channels) as usize).max(1);
    let element = |i: usize| {
        let (image, at) = (i / positions.max(1), i % positions.max(1));
        (0..channels as usize).map(move |c| (image * channels as usize + c) * positions + at)
    };
    let elements = (0..batch as usize * positions).flat_map(element);
    elements.map(|i| x[i]).collect()
}

/// Every product of the convolution, added to the element that the role gives. Padding counts, as zeros.
fn all_sums(role: ConvRole, c: &Case, output: &[i64], a: &[f64], b: &[f64]) -> Vec<f64> {
    let [ni, no, nk] = [&c.input[..], output, &c.kernel].map(|v| v.iter().product::<i64>());
    let n = match role {
        ConvRole::Result => c.batch * c.groups * c.cout * no,
        ConvRole::Input => c.batch * c.groups * c.cin * ni,
        ConvRole::Weight => c.groups * c.cout * c.cin * nk,
    };
    let mut sums = vec![0.0; n as usize];
    let [positions, taps] = [output, &c.kernel].map(|v| super::oracle::points(&dims(v)));
    // The element of an image that a tap reads at a position.
    let source = |at: &[i64], tap: &[i64]| {
        (0..c.input.len()).try_fold(0, |source, d| {
            let i = at[d] * c.stride[d] + tap[d] * c.dilation[d] - c.padding[d];
            let is_inside = (0..c.input[d]).contains(&i);
            is_inside.then_some(source * c.input[d] + i)
        })
    };
    let of_taps = |at: &Vec<i64>| taps.iter().map(|tap| source(at, tap)).collect::<Vec<_>>();
    let sources: Vec<Option<i64>> = positions.iter().flat_map(of_taps).collect();
    let read = |x: Option<usize>| x.map_or(0.0, |x| a[x]);
    for image in 0..c.batch * c.groups * c.cout * c.cin {
        let (o, ci) = (image / c.cin, image % c.cin);
        let x = (o / c.cout * c.cin + ci) * ni;
        let w = ((o % (c.groups * c.cout) * c.cin + ci) * nk) as usize;
        for (p, sources) in sources.chunks(taps.len()).enumerate() {
            let y = (o * no) as usize + p;
            for (t, source) in sources.iter().enumerate() {
                let x = source.map(|source| (x + source) as usize);
                match (role, x) {
                    (ConvRole::Result, _) => sums[y] += read(x) * b[w + t],
                    (ConvRole::Weight, _) => sums[w + t] += read(x) * b[y],
                    (ConvRole::Input, Some(x)) => sums[x] += a[y] * b[w + t],
                    (ConvRole::Input, None) => {}
                }
            }
        }
    }
    sums
}

#[test]
fn convolutions_and_their_gradients_match_a_plain_loop() {
    let case = |batch,
                groups,
                cin,
                cout,
                input: &[i64],
                kernel: &[i64],
                stride: i64,
                padding: i64,
                dilation: i64,
                more: i64| Case {
        batch,
        groups,
        cin,
        cout,
        input: input.to_vec(),
        kernel: kernel.to_vec(),
        stride: vec![stride; input.len()],
        padding: vec![padding; input.len()],
        dilation: vec![dilation; input.len()],
        more,
    };
    let cases = [
        case(2, 1, 3, 8, &[9, 11], &[3, 3], 1, 1, 1, 0),
        case(1, 1, 3, 5, &[9, 11], &[3, 2], 2, 0, 1, 0),
        case(2, 2, 2, 3, &[10, 7], &[3, 3], 1, 2, 2, 0),
        case(2, 1, 6, 4, &[5, 6], &[1, 1], 1, 0, 1, 0),
        case(2, 1, 6, 4, &[5, 6], &[1, 1], 2, 0, 1, 0),
        case(2, 1, 6, 4, &[5, 6], &[1, 1], 1, 1, 1, 0),
        case(1, 7, 1, 1, &[13, 40], &[3, 5], 1, 1, 1, 0),
        case(2, 5, 1, 2, &[13, 9], &[3, 3], 2, 1, 1, 0),
        // Depthwise with one tap; one channel to one.
        case(2, 9, 1, 1, &[6, 5], &[1, 1], 1, 0, 1, 0),
        case(1, 1, 1, 1, &[6, 9], &[3, 3], 1, 1, 1, 0),
        case(2, 3, 2, 2, &[30], &[5], 3, 2, 2, 0),
        case(2, 1, 4, 3, &[1500], &[3], 1, 1, 1, 1),
        case(1, 1, 3, 2, &[5, 6, 7], &[2, 3, 2], 1, 1, 1, 1),
        case(1, 4, 1, 1, &[5, 6, 7], &[3, 3, 3], 2, 1, 1, 1),
        case(0, 1, 2, 2, &[5], &[3], 1, 1, 1, 0),
        case(1, 1, 0, 2, &[5], &[3], 1, 1, 1, 0),
        case(1, 1, 2, 0, &[5], &[3], 1, 1, 1, 0),
        case(1, 1, 30, 130, &[11, 40], &[3, 3], 1, 1, 1, 0),
        case(1, 1, 3, 2, &[], &[], 1, 0, 1, 0),
        // Rows of the copy have the stride of the result's rows, with other planes between.
        Case {
            kernel: vec![3, 2, 1],
            stride: vec![1, 1, 3],
            dilation: vec![1, 1, 2],
            ..case(3, 1, 4, 2, &[3, 3, 4], &[], 1, 1, 1, 0)
        },
        // Small images share blocks.
        case(37, 1, 3, 5, &[4, 5], &[3, 3], 1, 1, 1, 0),
        case(101, 2, 4, 3, &[3, 3], &[1, 1], 1, 0, 1, 0),
        case(50, 3, 2, 4, &[7], &[3], 2, 1, 2, 0),
        case(64, 1, 2, 20, &[6, 6], &[5, 6], 1, 1, 1, 0),
        case(9, 1, 150, 70, &[2, 3], &[3, 3], 2, 1, 1, 0),
        // One image in parts.
        case(1, 1, 3, 6, &[70, 71], &[7, 7], 2, 3, 1, 0),
        case(2, 1, 12, 2, &[130, 129], &[5, 3], 1, 0, 2, 0),
        // Padding or dilation far larger than the images.
        case(2, 1, 3, 4, &[5, 3], &[3, 2], 1, 900, 901, 0),
        case(1, 2, 2, 2, &[4], &[3], 1, 1000, 1000, 0),
        case(1, 3, 1, 1, &[4, 5], &[2, 2], 1, 300, 600, 0),
        case(2, 1, 2, 3, &[3, 4], &[2, 2], 700, 40, 30, 1),
        case(1, 5, 1, 1, &[3, 4], &[2, 2], 700, 40, 30, 1),
        case(1, 2, 3, 2, &[40, 60], &[1, 2], 50, 5, 1, 0),
        // Lines of several parts, and enough depthwise channels to fill several vectors.
        case(2, 37, 1, 1, &[9, 75], &[3, 3], 1, 1, 1, 0),
        case(1, 19, 1, 1, &[17, 70], &[5, 5], 2, 2, 1, 0),
        case(3, 21, 1, 1, &[40], &[21], 1, 10, 1, 0),
        case(1, 1, 20, 33, &[2, 600], &[3, 3], 1, 1, 1, 0),
        case(2, 1, 70, 40, &[14, 14], &[1, 1], 1, 0, 1, 0),
        case(2, 1, 40, 300, &[4, 5], &[3, 3], 1, 1, 1, 0),
        // Many taps.
        case(3, 2, 2, 3, &[40, 19], &[9, 11], 1, 3, 1, 0),
        case(1, 1, 2, 5, &[700], &[129], 1, 64, 1, 2),
    ];
    for c in &cases {
        for with_epilogue in [false, true] {
            for wild in [false, true] {
                for role in [ConvRole::Result, ConvRole::Input, ConvRole::Weight] {
                    check_conv([DType::F32; 2], role, c, with_epilogue, wild);
                    check_conv([DType::F64; 2], role, c, with_epilogue, wild);
                    let half = match (with_epilogue, wild) {
                        (true, false) => DType::F16,
                        (false, true) => continue,
                        _ => DType::BF16,
                    };
                    check_conv([half; 2], role, c, with_epilogue, wild);
                    if role != ConvRole::Weight {
                        check_conv([half, DType::F32], role, c, with_epilogue, wild);
                    }
                }
            }
            let whole = [DType::I8, DType::I16, DType::I32, DType::I64].map(|d| [d; 2]);
            for dtypes in whole
                .into_iter()
                .chain([[DType::U8, DType::I8], [DType::I8, DType::U8]])
            {
                check_conv(dtypes, ConvRole::Result, c, with_epilogue, false);
            }
        }
    }
}

#[test]
fn an_epilogue_must_read_the_raw_result_in_place() {
    let mut e = bias_relu(DType::F32, [DType::F32; 2], &[4, 6], 1);
    e.program.accesses[0].strides = dims(&[1, 4]);
    let p = MatMul {
        dtypes: [DType::F32; 2],
        reduce_range: false,
        batch: vec![],
        m: 4i64.into(),
        k: 5i64.into(),
        n: 6i64.into(),
        lhs: matrix(0, 0, &[], 5, 1),
        rhs: matrix(1, 0, &[], 6, 1),
        out: 3,
        prologues: [None, None],
        epilogue: Some(e),
        algorithm: Default::default(),
    };
    let args = [
        (DType::F32, 20, false),
        (DType::F32, 30, false),
        (DType::F32, 6, false),
        (DType::F32, 24, true),
    ];
    let inputs = [
        data(DType::F32, 20, 1),
        data(DType::F32, 30, 1),
        data(DType::F32, 6, 1),
    ];
    for result in run(&plan_of(Kernel::MatMul(p), &args), &inputs) {
        assert!(matches!(result, Err(Error::Plan(_))), "{result:?}");
    }
}
