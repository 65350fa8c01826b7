//! Products by `wgmma` whose left operand a prologue makes in registers, of what bulk copies bring.

use super::families::{Case, epilogue, finite};
use super::parsed;
use super::warpgroups::check;
use crate::device;
use crate::fuzz::env_number;
use kiln_base::{DType, Dim};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Pw, Value, ops};

/// A prologue of an operand of some rows and columns.
#[derive(Copy, Clone, Debug)]
enum Made {
    /// Rounded from f32.
    Rounded,
    /// Scaled by a number, and without negative elements.
    Scaled,
    /// Normalised: a factor and a term for each column as it lies in memory, then without negative elements.
    ByColumns,
    /// Magnitudes with a factor for each row.
    ByRows,
    /// Negated differences to a term for each column as it lies in memory, between two constants.
    Shifted,
    /// An exponential, which makes ones of what lies outside.
    Costly,
}

/// Returns an operand as a prologue makes it.
fn made(case: &mut Case, made: Made, dtype: DType, shape: &[usize], rng: &mut Rng) -> Value {
    let [rows, columns] = [shape.len() - 2, shape.len() - 1].map(|axis| shape[axis]);
    let own = if let Made::Rounded = made {
        DType::F32
    } else {
        dtype
    };
    let x = case.input(finite(own, shape, rng));
    let mut vector = |case: &mut Case, dtype, sizes: &[usize]| {
        let x = case.input(finite(dtype, sizes, rng));
        let shape: Vec<Dim> = shape.iter().map(|n| (*n).into()).collect();
        case.builder().broadcast_to(&x, &shape).unwrap()
    };
    match made {
        Made::Rounded => case.builder().cast(&x, dtype).unwrap(),
        Made::Scaled => {
            let scale = vector(case, dtype, &[1]);
            let y = case.builder().pointwise(Pw::Mul, &[x, scale]).unwrap();
            case.builder().pointwise(Pw::Relu, &[y]).unwrap()
        }
        Made::ByColumns => {
            let [scale, shift] = [0; 2].map(|_| vector(case, dtype, &[columns]));
            let y = case.builder().pointwise(Pw::Mul, &[x, scale]).unwrap();
            let y = case.builder().pointwise(Pw::Add, &[y, shift]).unwrap();
            case.builder().pointwise(Pw::Relu, &[y]).unwrap()
        }
        Made::ByRows => {
            let scale = vector(case, dtype, &[rows, 1]);
            let y = case.builder().pointwise(Pw::Mul, &[x, scale]).unwrap();
            case.builder().pointwise(Pw::Abs, &[y]).unwrap()
        }
        Made::Shifted => {
            let shift = vector(case, dtype, &[columns]);
            let y = case.builder().pointwise(Pw::Sub, &[x, shift]).unwrap();
            let y = case.builder().pointwise(Pw::Neg, &[y]).unwrap();
            case.builder().pointwise(Pw::Relu6, &[y]).unwrap()
        }
        Made::Costly => case.builder().pointwise(Pw::Tanh, &[x]).unwrap(),
    }
}

/// Returns a product of `[m, n, k]` whose operand of a side is made.
fn product(
    (kind, side, dtype): (Made, usize, DType),
    [m, n, k]: [usize; 3],
    transposed: [bool; 2],
    rng: &mut Rng,
) -> Case {
    let mut case = Case::default();
    let mut operand = |of: usize, rows: usize, columns: usize| {
        let shape = match transposed[of] {
            true => [columns, rows],
            false => [rows, columns],
        };
        let x = match of == side {
            true => made(&mut case, kind, dtype, &shape, rng),
            false => case.input(finite(dtype, &shape, rng)),
        };
        match transposed[of] {
            true => case.builder().permute(&x, &[1, 0]).unwrap(),
            false => x,
        }
    };
    let operands = [operand(0, m, k), operand(1, k, n)];
    let y = case.op(ops::MatMul {}, &operands);
    let results = epilogue(&mut case, y, rng);
    results.iter().for_each(|r| case.graph.add_output(*r));
    case
}

const KINDS: [Made; 6] = [
    Made::Rounded,
    Made::Scaled,
    Made::ByColumns,
    Made::ByRows,
    Made::Shifted,
    Made::Costly,
];

/// Every prologue on either side, operands in every order, tails and parts of sums.
#[test]
fn prologues_of_either_operand() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(51 + env_number("KILN_SEED", 0));
    for (i, kind) in KINDS.into_iter().enumerate() {
        for order in 0..4 {
            let order = [order & 1 != 0, order & 2 != 0];
            let dtype = [DType::BF16, DType::F16][(i + usize::from(order[0])) % 2];
            let left = [
                (
                    "128x256x64 part=64x256 stages=3 raster=1 parts=1",
                    [136, 264, 200],
                ),
                (
                    "256x128x64 part=128x128 stages=2 raster=2 parts=2",
                    [264, 72, 328],
                ),
                (
                    "128x128x64 part=64x128 stages=3 raster=1 parts=1 cluster=2",
                    [136, 264, 72],
                ),
            ];
            let right = [
                (
                    "64x128x64 part=64x64 stages=4 raster=1 parts=2",
                    [40, 264, 328],
                ),
                (
                    "128x128x64 part=128x64 stages=2 raster=1 parts=1",
                    [136, 136, 200],
                ),
                (
                    "256x128x64 part=256x64 stages=2 raster=1 parts=1 cluster=2",
                    [136, 264, 136],
                ),
            ];
            let all = left
                .map(|l| (0, l))
                .into_iter()
                .chain(right.map(|r| (1, r)));
            // Each with some orders.
            for (j, (side, (tile, sizes))) in all.enumerate() {
                if (i + j) % 2 == usize::from(order[0] ^ order[1]) {
                    continue;
                }
                let case = product((kind, side, dtype), sizes, order, &mut rng);
                check(&case.graph, &case.inputs, &format!("wgmma tile={tile}"));
            }
        }
    }
}

/// Few rows, odd ones too, by columns that a prologue makes.
#[test]
fn few_rows() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(52);
    for rows in [1, 7, 16, 33] {
        let case = product(
            (Made::Scaled, 1, DType::BF16),
            [rows, 136, 264],
            [false, true],
            &mut rng,
        );
        let tile = "wgmma tile=16x128x64 part=16x64 stages=6 raster=1 parts=2";
        check(&case.graph, &case.inputs, tile);
    }
}

/// Operands of f32 are rounded to TF32 after their prologue.
#[test]
fn tf32() {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(
        "%0: f32[136, 200] = input(index: 0, role: Data)
         %1: f32[136, 200] = input(index: 1, role: Data)
         %2: f32[136, 200] = relu %0
         %3: f32[200, 136] = permute(perm: [1, 0]) %1
         %4: f32[136, 136] = matmul %2, %3
         return %4",
    );
    // Numbers of 11 bits are exact, and so are their sums.
    let mut rng = Rng::new(53);
    let mut whole = |shape: &[usize]| {
        let numbers = (0..shape.iter().product()).map(|_| rng.below(100) as f64 - 50.0);
        Array::from_f64(DType::F32, shape, &numbers.collect::<Vec<_>>()).unwrap()
    };
    let inputs = [whole(&[136, 200]), whole(&[136, 200])];
    let tile = "wgmma_tf32 tile=128x128x32 part=64x128 stages=4 raster=1 parts=1";
    check(&graph, &inputs, tile);
}

/// Odd numbers of terms, which pairs of them don't fill, of lines that are contiguous.
#[test]
fn odd_terms_by_pairs() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(54);
    for (kind, dtype, terms) in [
        (Made::Shifted, DType::F16, 75),
        (Made::ByRows, DType::BF16, 75),
        (Made::ByRows, DType::F16, 33),
    ] {
        let case = product((kind, 0, dtype), [136, 72, terms], [true, false], &mut rng);
        let tile = "wgmma tile=128x64x64 part=64x64 stages=2 raster=1 parts=1";
        check(&case.graph, &case.inputs, tile);
    }
}

/// A prologue's results for the zeros outside of an operand, here infinities, are not multiplied. Infinities and NaN
/// inside are, one by one and by pairs.
#[test]
fn infinities_outside_and_inside() {
    if device::nvrtc().is_none() {
        return;
    }
    for op in ["reciprocal", "relu"] {
        let graph = parsed(&format!(
            "%0: f16[136, 72] = input(index: 0, role: Data)
             %1: f16[72, 72] = input(index: 1, role: Data)
             %2: f16[136, 72] = {op} %0
             %3: f16[136, 72] = matmul %2, %1
             return %3"
        ));
        let number = |i: usize| (i % 7) as f64 + 1.0;
        let mut a: Vec<f64> = (0..136 * 72).map(number).collect();
        (a[72 * 5 + 71], a[72 * 130]) = (f64::NAN, 0.0);
        (a[72 * 9 + 3], a[72 * 11 + 8]) = (f64::INFINITY, f64::NEG_INFINITY);
        let b: Vec<f64> = (0..72 * 72).map(|i| number(i + 3)).collect();
        let array = |shape: &[usize], x: Vec<f64>| Array::from_f64(DType::F16, shape, &x).unwrap();
        let inputs = [array(&[136, 72], a), array(&[72, 72], b)];
        let tile = "wgmma tile=128x64x64 part=64x64 stages=2 raster=1 parts=1";
        check(&graph, &inputs, tile);
    }
}
