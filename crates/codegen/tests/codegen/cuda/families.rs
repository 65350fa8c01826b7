//! Library kernels in CUDA C++, executed on an emulated device, equal the reference.

use super::elements::values;
use super::{Expected, check, lowered, sources};
use crate::device;
use crate::fuzz::env_number;
use crate::run::{Engine, run, run_compiled};
use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_base::{DType, Dim, Sym};
use kiln_ir::eval::{Array, symbol_values};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, Pw, Role, SymbolInfo, Value, ops};

pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Returns the number of random cases of a family.
pub fn case_count() -> usize {
    env_number("KILN_FUZZ", 16) as usize
}

/// A graph under construction, and the values of its inputs.
#[derive(Default)]
pub struct Case {
    pub graph: Graph,
    pub inputs: Vec<Array>,
}

impl Case {
    pub fn input(&mut self, x: Array) -> Value {
        let shape: Vec<Dim> = x.shape().iter().map(|d| Dim::from(*d)).collect();
        self.shaped(x, shape)
    }

    /// Adds an input whose shape may be symbolic.
    pub fn shaped(&mut self, x: Array, shape: Vec<Dim>) -> Value {
        let fact = Fact::new(x.dtype(), shape);
        self.inputs.push(x);
        self.builder().input(fact, Role::Data)
    }

    pub fn builder(&mut self) -> GraphBuilder<'_> {
        GraphBuilder::new(&mut self.graph, Loc::UNKNOWN)
    }

    pub fn symbol(&mut self) -> Dim {
        let (name, min) = ("size".into(), 2);
        self.graph.symbols.push(SymbolInfo { name, min });
        Dim::symbol(Sym(self.graph.symbols.len() as u32 - 1))
    }

    pub fn op(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Value {
        self.builder().op(op, inputs).unwrap()
    }

    /// Returns true if the computation of `y` reports a data error.
    fn fails(mut self, y: Value) -> bool {
        self.graph.add_output(y);
        let program = lowered(&self.graph, true).unwrap();
        let symbols = symbol_values(&self.graph, &self.inputs).unwrap();
        run(&program, &self.inputs, &symbols, Engine::Device).is_none()
    }

    /// Compares the results with the reference.
    pub fn check(mut self, results: &[Value], label: &str) {
        results.iter().for_each(|r| self.graph.add_output(*r));
        match check(&self.graph, &self.inputs, false) {
            Ok(ran) => assert!(ran, "{label} has no kernel"),
            Err(e) => panic!("{label}: {e}\n{}", self.graph),
        }
    }
}

/// Returns finite numbers around 0, whose sums don't cancel badly.
pub fn finite(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    let count: usize = shape.iter().product();
    let data: Vec<f64> = (0..count).map(|_| rng.unit() * 2.0 - 1.0).collect();
    let array = Array::from_f64(dtype, shape, &data).unwrap();
    Array::from_bytes(dtype, shape, &array.to_bytes()).unwrap()
}

/// Appends an epilogue to a product: nothing, a bias and an activation, or several results.
pub fn epilogue(case: &mut Case, y: Value, rng: &mut Rng) -> Vec<Value> {
    let shape = case.graph.fact(y).shape.to_vec();
    let dtype = case.graph.fact(y).dtype;
    let sizes: Option<Vec<usize>> = shape
        .iter()
        .map(|d| d.as_const().map(|n| n as usize))
        .collect();
    let (Some(sizes), Some(last)) = (sizes, shape.last()) else {
        return vec![case.builder().pointwise(Pw::Relu, &[y]).unwrap()];
    };
    match rng.below(3) {
        0 => vec![y],
        1 => {
            let bias = case.input(finite(dtype, &[last.as_const().unwrap() as usize], rng));
            let mut b = case.builder();
            let bias = b.broadcast_to(&bias, &shape).unwrap();
            let sum = b.pointwise(Pw::Add, &[y, bias]).unwrap();
            vec![b.pointwise(Pw::Relu, &[sum]).unwrap()]
        }
        _ => {
            let residual = case.input(finite(dtype, &sizes, rng));
            let mut b = case.builder();
            let sum = b.pointwise(Pw::Add, &[y, residual]).unwrap();
            vec![b.pointwise(Pw::Tanh, &[sum]).unwrap(), y]
        }
    }
}

/// Checks a product of operands that may be transposed. All batches may share the left one.
fn product(dtype: DType, batch: &[usize], size: [usize; 3], rng: &mut Rng) {
    let [m, k, n] = size;
    let mut case = Case::default();
    let mut operand = |rows: usize, columns: usize, shared: bool, rng: &mut Rng| {
        let transposed = rng.chance(0.5);
        let batch_dims = if shared { &[] } else { batch };
        let matrix = if transposed {
            [columns, rows]
        } else {
            [rows, columns]
        };
        let x = case.input(finite(dtype, &[batch_dims, &matrix].concat(), rng));
        let mut b = case.builder();
        let rank = batch_dims.len() + 2;
        let mut perm: Vec<usize> = (0..rank).collect();
        if transposed {
            perm.swap(rank - 2, rank - 1);
        }
        let x = b.permute(&x, &perm).unwrap();
        let dims: Vec<Dim> = [batch, &[rows, columns]]
            .concat()
            .into_iter()
            .map(Dim::from)
            .collect();
        b.broadcast_to(&x, &dims).unwrap()
    };
    let a = operand(m, k, rng.chance(0.3), rng);
    let b = operand(k, n, false, rng);
    let y = case.op(ops::MatMul {}, &[a, b]);
    let results = epilogue(&mut case, y, rng);
    case.check(&results, &format!("{dtype} {batch:?} {size:?}"));
}

#[test]
fn matrix_products() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(1);
    for i in 0..case_count() {
        let mut size = || rng.one([0, 1, 2, 7, 16, 31, 33, 64, 65]);
        let size = [size(), size(), size()];
        let batch: Vec<usize> = (0..rng.below(3)).map(|_| rng.one([1, 2, 3])).collect();
        product(FLOATS[i % 4], &batch, size, &mut rng);
    }
    for dtype in FLOATS {
        product(dtype, &[], [5, 2050, 9], &mut rng); // K is split
        product(dtype, &[2], [520, 9, 520], &mut rng); // a larger tile
    }
    product(DType::F16, &[], [40, 64, 48], &mut rng); // copied by 8 elements
}

/// Returns integers whose products and sums wrap around.
fn integers(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    let size = shape.iter().product::<usize>() * dtype.size();
    let bytes: Vec<u8> = (0..size).map(|_| rng.below(256) as u8).collect();
    Array::from_bytes(dtype, shape, &bytes).unwrap()
}

#[test]
fn products_of_integers() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(21);
    let dtypes = [DType::I32, DType::I64, DType::I8, DType::U8, DType::I16];
    for dtype in dtypes {
        for [m, k, n] in [[33, 65, 17], [5, 2050, 9], [1, 3, 2]] {
            let mut case = Case::default();
            let shapes: [&[usize]; 2] = [&[2, m, k], &[2, k, n]];
            let operands = shapes.map(|s| case.input(integers(dtype, s, &mut rng)));
            let y = case.op(ops::MatMul {}, &operands);
            case.check(&[y], &format!("{dtype} {m} {k} {n}"));
        }
        for _ in 0..6 {
            convolution(dtype, 0, integers, &mut rng);
        }
    }
}

#[test]
fn matrix_products_of_symbolic_sizes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(2);
    for (dtype, [m, k, n]) in [(DType::F32, [37, 20, 9]), (DType::BF16, [33, 70, 41])] {
        let mut case = Case::default();
        let (rows, inner) = (case.symbol(), case.symbol());
        let a = finite(dtype, &[m, k], &mut rng);
        let a = case.shaped(a, vec![rows, inner.clone()]);
        let b = finite(dtype, &[k, n], &mut rng);
        let b = case.shaped(b, vec![inner, Dim::from(n)]);
        let y = case.op(ops::MatMul {}, &[a, b]);
        let results = epilogue(&mut case, y, &mut rng);
        case.check(&results, &format!("{dtype} {m} {k} {n}"));
    }
}

/// Returns numbers like those of [`finite`], with a few infinities and NaN.
pub fn with_infinities(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    let mut data = finite(dtype, shape, rng).to_f64();
    for x in &mut data {
        if rng.chance(0.03) {
            *x = rng.one([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
        }
    }
    Array::from_f64(dtype, shape, &data).unwrap()
}

/// Checks a convolution, or one of its gradients, of random shapes. `numbers` returns the operands.
fn convolution(
    dtype: DType,
    role: usize,
    numbers: fn(DType, &[usize], &mut Rng) -> Array,
    rng: &mut Rng,
) {
    let axes = 1 + rng.below(3);
    let groups = rng.one([1, 1, 2, 3]);
    let batch = rng.one([0, 1, 2, 3]);
    let (ins, outs) = (rng.one([1, 2, 3, 8, 17]), rng.one([1, 2, 5, 8, 33]));
    let mut draw =
        |choices: [usize; 3]| -> Vec<usize> { (0..axes).map(|_| rng.one(choices)).collect() };
    let (kernel, stride, dilation) = (draw([1, 2, 3]), draw([1, 2, 3]), draw([1, 1, 2]));
    let (front, back) = (draw([0, 1, 2]), draw([0, 1, 2]));
    let size = draw([1, 5, if axes == 1 { 65 } else { 9 }]);
    let reach = |a: usize| dilation[a] * (kernel[a] - 1) + 1;
    let input: Vec<usize> = (0..axes)
        .map(|a| size[a].max(reach(a).saturating_sub(front[a] + back[a])))
        .collect();
    let output: Vec<usize> = (0..axes)
        .map(|a| (input[a] + front[a] + back[a] - reach(a)) / stride[a] + 1)
        .collect();
    let x = [&[batch, groups * ins], &input[..]].concat();
    let w = [&[groups * outs, ins], &kernel[..]].concat();
    let y = [&[batch, groups * outs], &output[..]].concat();
    let label = format!("{role} of {dtype} x {x:?} w {w:?} y {y:?}");
    let conv = ops::Conv {
        stride: stride.into_iter().collect(),
        padding: front.into_iter().zip(back).collect(),
        dilation: dilation.into_iter().collect(),
        groups,
    };
    let (op, shapes): (Op, _) = match role {
        0 => (conv.into(), [&x, &w]),
        1 => {
            let input = input.into_iter().map(Dim::from).collect();
            (ops::ConvTranspose { conv, input }.into(), [&y, &w])
        }
        _ => {
            let kernel = kernel.into_iter().collect();
            (ops::ConvWeight { conv, kernel }.into(), [&x, &y])
        }
    };
    let mut case = Case::default();
    let operands = shapes.map(|s| case.input(numbers(dtype, s, rng)));
    let result = case.op(op, &operands);
    let results = match dtype.is_float() {
        true => epilogue(&mut case, result, rng),
        false => vec![result],
    };
    case.check(&results, &label);
}

#[test]
fn convolutions_and_their_gradients() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(8);
    for i in 0..case_count() {
        convolution(FLOATS[i % 4], i % 3, finite, &mut rng);
    }
}

/// Infinities meet the zeros of the padding, and no other zeros.
#[test]
fn convolutions_of_infinities() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(10);
    for i in 0..case_count() {
        convolution(
            FLOATS[i % 4],
            [1, 0, 1, 2, 1][i % 5],
            with_infinities,
            &mut rng,
        );
    }
}

/// In a gradient of images, a warp recomputes each NaN result without the zeros of the padding, up to the first NaN.
#[test]
fn recomputation_of_nan_is_cheap() {
    if device::nvrtc().is_none() {
        return;
    }
    let (shape, filters) = ([1, 64, 6, 6], [64, 32, 3, 3]);
    let conv = ops::Conv {
        stride: [1, 1].into_iter().collect(),
        padding: [(1, 1); 2].into_iter().collect(),
        dilation: [1, 1].into_iter().collect(),
        groups: 1,
    };
    for dtype in FLOATS {
        let mut rng = Rng::new(12);
        let (mut case, input) = (Case::default(), [6, 6].map(Dim::from).into_iter().collect());
        let operands = [&shape, &filters].map(|s| case.input(finite(dtype, s, &mut rng)));
        let op = ops::ConvTranspose {
            conv: conv.clone(),
            input,
        };
        let dx = case.op(op, &operands);
        case.graph.add_output(dx);
        let sequence = lowered(&case.graph, true).unwrap().sequence();
        let compiled = device::compile(&sequence);
        let instructions = |operand: usize, offsets: &[usize], number: f64| {
            let mut inputs = case.inputs.clone();
            let mut data = inputs[operand].to_f64();
            offsets.iter().for_each(|i| data[*i] = number);
            inputs[operand] = Array::from_f64(dtype, inputs[operand].shape(), &data).unwrap();
            let before = compiled.statistics.lock().unwrap().instructions;
            let got = run_compiled(&sequence, &inputs, &[], &compiled).unwrap();
            let expected = Expected::of(&case.graph, &inputs).unwrap();
            assert_eq!(expected.compare(&got), Ok(()), "{dtype} {operand} {number}");
            compiled.statistics.lock().unwrap().instructions - before
        };
        let baseline = instructions(0, &[], 0.0);
        let last = 64 * 36 - 1;
        let offsets: Vec<usize> = (0..=last).collect();
        let [one_nan, only_nan] =
            [&[last], &offsets[..]].map(|offsets| instructions(0, offsets, f64::NAN));
        let infinite = instructions(1, &[64 * 32 * 9 - 1], f64::INFINITY);
        let limit = 2 * baseline;
        assert!(one_nan < limit && only_nan < limit && infinite < limit);
    }
}

/// Few positions, for which K is split, and symbolic sizes.
#[test]
fn gradients_of_strided_convolutions() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(11);
    for (i, dtype) in FLOATS.into_iter().enumerate() {
        let symbolic = i % 2 == 1;
        let (batch, ins, outs) = (2, 3, [700, 5][i % 2]);
        let (height, width) = ([3, 8][i % 2], 5);
        let mut case = Case::default();
        let w = case.input(with_infinities(dtype, &[outs, ins, 2, 3], &mut rng));
        let y = with_infinities(dtype, &[batch, outs, height / 2, 3], &mut rng);
        // Twice as many rows as y has.
        let rows = if symbolic {
            case.symbol()
        } else {
            Dim::from(height / 2)
        };
        let sizes = [batch, outs, height / 2, 3].map(Dim::from);
        let [n, c, _, columns] = sizes;
        let y = case.shaped(y, vec![n, c, rows.clone(), columns]);
        let conv = ops::Conv {
            stride: [2, 2].into_iter().collect(),
            padding: [(0, 0), (1, 1)].into_iter().collect(),
            dilation: [1, 1].into_iter().collect(),
            groups: 1,
        };
        let rows = match symbolic {
            true => &rows * &Dim::Const(2),
            false => Dim::from(height),
        };
        let input = [rows, Dim::from(width)].into_iter().collect();
        let x = case.op(ops::ConvTranspose { conv, input }, &[y, w]);
        case.check(&[x], &format!("{dtype} of {outs} channels"));
    }
}

#[test]
fn convolutions_of_one_tap() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(9);
    for (i, dtype) in FLOATS.into_iter().cycle().take(8).enumerate() {
        let (groups, ins, outs) = (1 + i % 3, rng.one([3, 8, 17]), rng.one([1, 8, 33]));
        let (batch, plane) = (1 + i % 2, [rng.one([2, 5, 8]), 8]);
        let shape = |batch: usize, channels: usize, spatial: [usize; 2]| {
            [batch, channels, spatial[0], spatial[1]]
        };
        let conv = ops::Conv {
            stride: [1, 1].into_iter().collect(),
            padding: [(0, 0), (0, 0)].into_iter().collect(),
            dilation: [1, 1].into_iter().collect(),
            groups,
        };
        let w = shape(groups * outs, ins, [1, 1]);
        let (op, x): (Op, _) = match i / 4 {
            0 => (conv.into(), shape(batch, groups * ins, plane)),
            _ => {
                let input = plane.into_iter().map(Dim::from).collect();
                let op = ops::ConvTranspose { conv, input };
                (op.into(), shape(batch, groups * outs, plane))
            }
        };
        let mut case = Case::default();
        let operands = [x, w].map(|s| case.input(finite(dtype, &s, &mut rng)));
        let y = case.op(op, &operands);
        let results = epilogue(&mut case, y, &mut rng);
        case.check(&results, &format!("{dtype} x {x:?} w {w:?}"));
    }
}

#[test]
fn scans() {
    if device::nvrtc().is_none() {
        return;
    }
    use ScanKind::*;
    let mut rng = Rng::new(3);
    let numbers: Vec<DType> = DType::ALL.into_iter().filter(|d| d.computes()).collect();
    for i in 0..case_count() {
        let kind = rng.one([Sum, Prod, Max, Min, LogSumExp]);
        let dtype = match kind {
            LogSumExp => rng.one(FLOATS),
            _ => numbers[rng.below(numbers.len())],
        };
        if dtype == DType::Bool {
            continue; // scans of booleans don't exist
        }
        let shape = match i % 4 {
            0 => vec![2, rng.one([513, 4100, 9000])],
            1 => vec![rng.one([40, 600]), 3],
            _ => (0..1 + rng.below(3))
                .map(|_| rng.one([0, 1, 2, 5, 33, 70]))
                .collect(),
        };
        let axis = if i % 4 < 2 {
            1 - i % 4
        } else {
            rng.below(shape.len())
        };
        let x = match kind {
            Max | Min | LogSumExp => values(dtype, &shape, &mut rng),
            Sum if !dtype.is_float() => values(dtype, &shape, &mut rng),
            _ if dtype.is_float() => {
                let steps = finite(DType::F64, &shape, &mut rng).to_f64();
                let near_one: Vec<f64> = steps.iter().map(|x| 1.0 + x / 64.0).collect();
                Array::from_f64(dtype, &shape, &near_one).unwrap()
            }
            _ => values(dtype, &shape, &mut rng),
        };
        let mut case = Case::default();
        let x = case.input(x);
        let reverse = rng.chance(0.5);
        let y = case.op(
            ops::Scan {
                kind,
                axis,
                reverse,
            },
            &[x],
        );
        case.check(&[y], &format!("{kind:?} of {dtype}{shape:?} along {axis}"));
    }
}

#[test]
fn sorts() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(4);
    let dtypes: Vec<DType> = DType::ALL.into_iter().filter(|d| d.computes()).collect();
    for i in 0..case_count() {
        let dtype = dtypes[i % dtypes.len()];
        let len = match i % 4 {
            0 => rng.one([1025, 2500]),
            _ => rng.one([0, 1, 2, 3, 17, 64, 100, 513, 1024]),
        };
        let shape = [rng.one([0, 1, 2, 5]), len];
        let first = rng.chance(0.5).then(|| rng.below(len + 1));
        let mut case = Case::default();
        let x = case.input(values(dtype, &shape, &mut rng));
        let (axis, descending) = (1, rng.chance(0.5));
        let op = ops::ArgSort {
            axis,
            descending,
            first: first.map(Dim::from),
        };
        let y = case.op(op, &[x]);
        case.check(&[y], &format!("{dtype}{shape:?} {first:?}"));
    }
    for (dtype, len) in [(DType::F32, 17_000), (DType::I64, 17_000)] {
        let mut case = Case::default();
        let x = case.input(values(dtype, &[1, len], &mut rng));
        let (axis, descending, first) = (1, false, None);
        let y = case.op(
            ops::ArgSort {
                axis,
                descending,
                first,
            },
            &[x],
        );
        case.check(&[y], &format!("{dtype} {len}"));
    }
}

#[test]
fn long_lanes_need_64_bit_records() {
    for (dtype, len, is_wide) in [
        (DType::F32, Some(u32::MAX.into()), false),
        (DType::F32, Some(1i64 << 32), true),
        (DType::F32, None, true),
        (DType::BF16, Some(1 << 32), false),
        (DType::BF16, None, false),
        (DType::I64, Some(40), true),
    ] {
        let mut graph = Graph::default();
        let (name, min) = ("size".into(), 2);
        graph.symbols.push(SymbolInfo { name, min });
        let dim = len.map_or(Dim::symbol(Sym(0)), Dim::from);
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let x = b.input(Fact::new(dtype, [dim]), Role::Data);
        let (axis, descending, first) = (0, false, None);
        let sort = ops::ArgSort {
            axis,
            descending,
            first,
        };
        let order = b.op(sort, &[x]).unwrap();
        graph.add_output(order);
        let text = sources(&lowered(&graph, true).unwrap().sequence());
        let wide = "struct Record { unsigned long long key, index; };";
        assert_eq!(text.contains(wide), is_wide, "{dtype} {len:?}");
    }
}

#[test]
fn scans_and_sorts_of_symbolic_sizes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(5);
    for (dtype, lanes, len) in [
        (DType::F64, 3, 40),
        (DType::F32, 2, 3000),
        (DType::F16, 2, 3000),
    ] {
        let mut case = Case::default();
        let shape = vec![case.symbol(), case.symbol()];
        let x = values(dtype, &[lanes, len], &mut rng);
        let x = case.shaped(x, shape);
        let (axis, descending, first) = (1, true, None);
        let order = case.op(
            ops::ArgSort {
                axis,
                descending,
                first,
            },
            &[x],
        );
        let (kind, reverse) = (ScanKind::Max, false);
        let highest = case.op(
            ops::Scan {
                kind,
                axis,
                reverse,
            },
            &[x],
        );
        case.check(&[order, highest], &format!("{dtype} {lanes} {len}"));
    }
}

/// Returns a scatter of random shapes, whose indices are in bounds.
fn random_scatter(
    kind: ScatterKind,
    dtype: DType,
    rng: &mut Rng,
) -> (Case, ops::Scatter, Vec<usize>) {
    let rank = 1 + rng.below(3);
    let axis = rng.below(rank);
    let shape: Vec<usize> = (0..rank).map(|_| rng.one([1, 2, 3, 5, 33])).collect();
    let mut source_shape: Vec<usize> = (shape.iter())
        .map(|n| n - rng.below(2).min(n - 1))
        .collect();
    source_shape[axis] = rng.one([0, 1, 7, 40, 200]);
    let count: usize = source_shape.iter().product();
    let index: Vec<i64> = (0..count).map(|_| rng.below(shape[axis]) as i64).collect();
    let mut case = Case::default();
    case.input(values(dtype, &shape, rng));
    case.input(Array::from_i64(DType::I64, &source_shape, &index).unwrap());
    let source = match dtype.is_float() {
        true => finite(dtype, &source_shape, rng),
        false => values(dtype, &source_shape, rng),
    };
    case.input(source);
    (case, ops::Scatter { axis, kind }, shape)
}

fn input_values(case: &Case) -> Vec<Value> {
    case.graph.inputs().iter().map(|id| id.value()).collect()
}

#[test]
fn scatters() {
    if device::nvrtc().is_none() {
        return;
    }
    use ScatterKind::*;
    let mut rng = Rng::new(6);
    for i in 0..case_count() {
        let kind = [Set, Sum, Prod, Max, Min][i % 5];
        let dtype = match kind {
            Set => rng.one(DType::ALL),
            _ => rng.one([DType::F32, DType::F64, DType::F16, DType::I64, DType::U8]),
        };
        let (mut case, op, shape) = random_scatter(kind, dtype, &mut rng);
        let label = format!("{kind:?} of {dtype}{shape:?} along {}", op.axis);
        let y = case.op(op, &input_values(&case));
        case.check(&[y], &label);
    }
}

/// A long index that all columns share is sorted first.
#[test]
fn scatters_of_rows() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(9);
    for outside in [None, Some(-1)] {
        let (count, rows, columns) = (2500, 300, 5);
        let mut index: Vec<i64> = (0..count).map(|_| rng.below(rows) as i64).collect();
        if let Some(outside) = outside {
            index[rng.below(count)] = outside;
        }
        let mut case = Case::default();
        let x = case.input(finite(DType::F32, &[rows, columns], &mut rng));
        let index = case.input(Array::from_i64(DType::I64, &[count, 1], &index).unwrap());
        let source = case.input(finite(DType::F32, &[count, columns], &mut rng));
        let shape = [Dim::from(count), Dim::from(columns)];
        let index = case.builder().broadcast_to(&index, &shape).unwrap();
        let (axis, kind) = (0, ScatterKind::Sum);
        let y = case.op(ops::Scatter { axis, kind }, &[x, index, source]);
        match outside {
            None => case.check(&[y], "rows"),
            Some(_) => assert!(case.fails(y)),
        }
    }
}

/// An index out of range is reported, and nothing is written outside the result.
#[test]
fn scatters_report_indices_out_of_range() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(7);
    for outside in [-1, 33, i64::MIN, i64::MAX] {
        let (mut case, op, shape) = random_scatter(ScatterKind::Sum, DType::F32, &mut rng);
        let bound = shape[op.axis] as i64;
        let mut index = case.inputs[1].ints().unwrap().to_vec();
        let count = index.len();
        let Some(entry) = index.get_mut(rng.below(count)) else {
            continue;
        };
        *entry = if outside == 33 { bound } else { outside };
        case.inputs[1] = Array::from_i64(DType::I64, case.inputs[1].shape(), &index).unwrap();
        let y = case.op(op, &input_values(&case));
        assert!(case.fails(y));
    }
}
