//! Products of few rows by `wgmma` as transposed products, whose columns take the rows of instructions.

use super::choice::chosen;
use super::parsed;
use super::warpgroups::{bytes, check, product};
use crate::device;
use crate::fuzz::env_number;
use kiln_base::{DType, Gpu};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;

/// Tiles with some rows, and with sums in some parts.
const TILES: [(&str, [usize; 3]); 10] = [
    (
        "8x128x64 part=8x64 stages=6 raster=1 parts=1",
        [7, 136, 200],
    ),
    (
        "16x128x64 part=16x64 stages=4 raster=8 parts=3",
        [16, 264, 584],
    ),
    (
        "32x128x64 part=32x64 stages=2 raster=2 parts=1",
        [33, 128, 320],
    ),
    (
        "64x128x64 part=64x64 stages=6 raster=1 parts=1",
        [64, 72, 8],
    ),
    (
        "64x128x64 part=64x64 stages=3 raster=4 parts=2",
        [72, 136, 328],
    ),
    (
        "64x256x64 part=64x128 stages=3 raster=1 parts=1",
        [40, 264, 136],
    ),
    (
        "128x128x64 part=128x64 stages=3 raster=2 parts=1",
        [136, 264, 200],
    ),
    (
        "256x128x64 part=256x64 stages=4 raster=1 parts=2",
        [264, 136, 328],
    ),
    // Clusters: a tile without columns, and more tiles than clusters.
    (
        "16x128x64 part=16x64 stages=4 raster=4 parts=2 cluster=2",
        [15, 264, 584],
    ),
    (
        "128x128x64 part=128x64 stages=3 raster=2 parts=1 cluster=2",
        [136, 1032, 200],
    ),
];

#[test]
fn every_order_of_operands_and_every_tile() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(41 + env_number("KILN_SEED", 0));
    for (i, (tile, sizes)) in TILES.into_iter().enumerate() {
        for order in 0..4 {
            let order = [order & 1 != 0, order & 2 != 0];
            // Boxes of contiguous rows have 64, and memory has them at multiples of 16 bytes.
            let rows: usize = tile[..tile.find('x').unwrap()].parse().unwrap();
            if order[0] && (rows < 64 || sizes[0] % 8 > 0) {
                continue;
            }
            let dtype = [DType::BF16, DType::F16][(i + usize::from(order[0])) % 2];
            let batch: &[usize] = if i == 3 { &[2, 3] } else { &[] };
            let case = product((dtype, batch), sizes, order, &mut rng);
            check(&case.graph, &case.inputs, &format!("wgmma tile={tile}"));
        }
    }
}

#[test]
fn few_rows() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(42 + env_number("KILN_SEED", 0));
    for rows in [0, 1, 2, 3, 9, 17] {
        for parts in [1, 2] {
            let case = product(
                (DType::BF16, &[]),
                [rows, 131, 264],
                [false, true],
                &mut rng,
            );
            let tile = format!("wgmma tile=8x128x64 part=8x64 stages=6 raster=1 parts={parts}");
            check(&case.graph, &case.inputs, &tile);
        }
    }
}

#[test]
fn products_of_bytes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(43);
    for (tile, [a, b], [m, n, k]) in [
        (
            "16x128x128 part=16x64 stages=6 raster=1 parts=3",
            ["u8", "i8"],
            [13, 264, 1168],
        ),
        (
            "64x128x128 part=64x64 stages=3 raster=1 parts=1",
            ["i8", "u8"],
            [64, 130, 144],
        ),
    ] {
        let graph = parsed(&format!(
            "%0: {a}[{m}, {k}] = input(index: 0, role: Data)
             %1: {b}[{n}, {k}] = input(index: 1, role: Data)
             %2: i32[{m}, {k}] = cast %0
             %3: i32[{n}, {k}] = cast %1
             %4: i32[{k}, {n}] = permute(perm: [1, 0]) %3
             %5: i32[{m}, {n}] = matmul %2, %4
             return %5"
        ));
        let dtype = |name| DType::from_name(name).unwrap();
        let inputs = [
            bytes(dtype(a), [m, k], &mut rng),
            bytes(dtype(b), [n, k], &mut rng),
        ];
        check(&graph, &inputs, &format!("wgmma tile={tile}"));
    }
}

/// Infinities and NaN stay in their rows and columns.
#[test]
fn infinities_and_nan() {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(
        "%0: f16[9, 72] = input(index: 0, role: Data)
         %1: f16[72, 136] = input(index: 1, role: Data)
         %2: f16[9, 136] = matmul %0, %1
         return %2",
    );
    let number = |i: usize| (i % 7) as f64 - 3.0;
    let mut a: Vec<f64> = (0..9 * 72).map(number).collect();
    (a[72 * 5 + 71], a[72 * 8]) = (f64::NAN, f64::INFINITY);
    let mut b: Vec<f64> = (0..72 * 136).map(|i| number(i + 3)).collect();
    b[71 * 136 + 71] = f64::NEG_INFINITY;
    let array = |shape: &[usize], x: Vec<f64>| Array::from_f64(DType::F16, shape, &x).unwrap();
    let inputs = [array(&[9, 72], a), array(&[72, 136], b)];
    let tile = "wgmma tile=16x128x64 part=16x64 stages=2 raster=1 parts=1";
    check(&graph, &inputs, tile);
}

/// Products of f32 rounded to TF32 differ from the reference by that rounding.
#[test]
fn tf32() {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(
        "%0: f32[16, 200] = input(index: 0, role: Data)
         %1: f32[136, 200] = input(index: 1, role: Data)
         %2: f32[200, 136] = permute(perm: [1, 0]) %1
         %3: f32[16, 136] = matmul %0, %2
         return %3",
    );
    // Numbers of 11 bits are exact, and so are their sums.
    let mut rng = Rng::new(44);
    let mut whole = |shape: &[usize]| {
        let numbers = (0..shape.iter().product()).map(|_| rng.below(100) as f64 - 50.0);
        Array::from_f64(DType::F32, shape, &numbers.collect::<Vec<_>>()).unwrap()
    };
    let inputs = [whole(&[16, 200]), whole(&[136, 200])];
    let tile = "wgmma_tf32 tile=16x128x32 part=16x64 stages=6 raster=1 parts=1";
    check(&graph, &inputs, tile);
}

/// The model prefers them for few rows, in parts that fill the machine, and not for many.
#[test]
fn few_rows_are_transposed() {
    for rows in [1, 2, 8, 16, 32, 64, 512] {
        let halves = format!(
            "%0: bf16[{rows}, 4096] = input(index: 0, role: Data)
             %1: bf16[4096, 4096] = input(index: 1, role: Data)
             %2: bf16[4096, 4096] = permute(perm: [1, 0]) %1
             %3: bf16[{rows}, 4096] = matmul %0, %2
             return %3"
        );
        let bytes = format!(
            "%0: i8[{rows}, 8192] = input(index: 0, role: Data)
             %1: i8[4096, 8192] = input(index: 1, role: Data)
             %2: i32[{rows}, 8192] = cast %0
             %3: i32[4096, 8192] = cast %1
             %4: i32[8192, 4096] = permute(perm: [1, 0]) %3
             %5: i32[{rows}, 4096] = matmul %2, %4
             return %5"
        );
        for graph in [halves, bytes] {
            let (schedule, cycles) = chosen(Gpu::H100, &parsed(&graph));
            println!("{rows} rows: {schedule}, {cycles:.0} cycles predicted");
            let few = rows <= 64;
            assert_eq!(schedule.is_transposed(), few, "{rows}: {schedule}");
            assert!(!few || schedule.parts > 1, "{rows}: {schedule}");
        }
    }
}
