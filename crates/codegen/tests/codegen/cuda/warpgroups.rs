//! Products by warpgroups: `wgmma`, whose operands bulk copies load.

use super::contractions::lower_with_schedule;
use super::families::{Case, epilogue, finite};
use super::{Expected, lowered, parsed, with_bug};
use crate::device;
use crate::run::run_compiled;
use kiln_base::{DType, Dim};
use kiln_codegen::Sequence;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Graph, Value, ops};
use kiln_plan::Kernel;
use kiln_plan::schedule;

/// Checks a graph with a schedule of its only product.
#[track_caller]
pub fn check(graph: &Graph, inputs: &[Array], schedule: &str) {
    let schedule: schedule::Gpu = schedule.parse().unwrap();
    let expected = Expected::of(graph, inputs).unwrap();
    let (sequence, followed) = lower_with_schedule(&expected, schedule);
    assert!(followed, "{schedule} is not legal\n{graph}");
    let maps = |k: &Kernel| matches!(k, Kernel::Cuda(k) if k.maps.len() >= 2);
    assert!(sequence.launches.iter().any(|l| maps(&l.kernel)));
    let compiled = device::compile(&sequence);
    let got = run_compiled(&sequence, inputs, &expected.symbols, &compiled);
    let got = got.unwrap_or_else(|| panic!("{schedule}: a false data error"));
    if let Err(e) = expected.compare(&got) {
        panic!("{schedule}: {e}\n{graph}");
    }
}

/// Returns an operand, which may be a transposed view.
fn operand(case: &mut Case, x: Array, transposed: bool) -> Value {
    let x = case.input(x);
    if !transposed {
        return x;
    }
    let rank = case.graph.fact(x).shape.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 1, rank - 2);
    case.builder().permute(&x, &perm).unwrap()
}

/// Returns a product of `[m, n, k]`, whose operands may be transposed, with an epilogue.
pub fn product(
    (dtype, batch): (DType, &[usize]),
    [m, n, k]: [usize; 3],
    [a, b]: [bool; 2],
    rng: &mut Rng,
) -> Case {
    let mut case = Case::default();
    let mut side = |rows: usize, columns: usize, transposed: bool| {
        let sizes = if transposed {
            [columns, rows]
        } else {
            [rows, columns]
        };
        let shape: Vec<usize> = batch.iter().copied().chain(sizes).collect();
        operand(&mut case, finite(dtype, &shape, rng), transposed)
    };
    let operands = [side(m, k, a), side(k, n, b)];
    let y = case.op(ops::MatMul {}, &operands);
    let results = epilogue(&mut case, y, rng);
    results.iter().for_each(|r| case.graph.add_output(*r));
    case
}

#[test]
fn every_order_of_operands_and_every_tile() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(31);
    for (i, (tile, sizes)) in [
        // Tails in all directions, and whole tiles.
        (
            "128x256x64 part=64x256 stages=4 raster=8 parts=1",
            [136, 264, 200],
        ),
        (
            "256x128x64 part=128x128 stages=3 raster=1 parts=1",
            [264, 136, 72],
        ),
        (
            "128x128x64 part=64x128 stages=2 raster=2 parts=1",
            [128, 128, 320],
        ),
        ("128x64x64 part=64x64 stages=5 raster=1 parts=1", [8, 72, 8]),
        // The last of three parts has fewer terms.
        (
            "128x128x64 part=64x128 stages=4 raster=1 parts=3",
            [56, 136, 584],
        ),
        // A cluster whose second tile is empty, and more tiles than clusters.
        (
            "128x256x64 part=64x256 stages=4 raster=8 parts=1 cluster=2",
            [264, 1032, 200],
        ),
        (
            "256x128x64 part=128x128 stages=2 raster=1 parts=2 cluster=2",
            [264, 136, 328],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        for order in 0..4 {
            let dtype = [DType::BF16, DType::F16][(i + order) % 2];
            let batch: &[usize] = if i == 3 { &[2, 3] } else { &[] };
            let order = [order & 1 != 0, order & 2 != 0];
            let Case { graph, inputs } = product((dtype, batch), sizes, order, &mut rng);
            check(&graph, &inputs, &format!("wgmma tile={tile}"));
        }
    }
}

/// Signed and unsigned bytes with contiguous terms, and sums that f32 can't represent.
#[test]
fn products_of_bytes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(33);
    for (tile, types, sizes) in [
        (
            "128x256x128 part=64x256 stages=4 raster=8 parts=1",
            ["i8", "i8"],
            [136, 264, 400],
        ),
        (
            "256x128x128 part=128x128 stages=3 raster=1 parts=1",
            ["u8", "i8"],
            [264, 130, 144],
        ),
        (
            "128x128x128 part=64x128 stages=2 raster=2 parts=3",
            ["i8", "u8"],
            [56, 136, 1168],
        ),
        (
            "128x64x128 part=64x64 stages=5 raster=1 parts=1",
            ["u8", "u8"],
            [9, 72, 16],
        ),
        (
            "128x256x128 part=64x256 stages=3 raster=2 parts=1 cluster=2",
            ["i8", "u8"],
            [300, 264, 400],
        ),
    ] {
        let ([a, b], [m, n, k]) = (types, sizes);
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

/// *prepare* copies a parameter whose columns are not contiguous. Other such operands are read byte by byte.
#[test]
fn columns_of_parameters_are_made_contiguous() {
    let graph = |role: &str, [m, n, k]: [usize; 3]| {
        parsed(&format!(
            "%0: u8[{m}, {k}] = input(index: 0, role: Data)
             %1: i8[{k}, {n}] = input(index: 1, role: {role})
             %2: i32[{m}, {k}] = cast %0
             %3: i32[{k}, {n}] = cast %1
             %4: i32[{m}, {n}] = matmul %2, %3
             return %4"
        ))
    };
    let name = |role| {
        let program = lowered(&graph(role, [2048, 512, 1024]), true).unwrap();
        program.tasks.last().unwrap().candidate().name()
    };
    let (parameter, data) = (name("Parameter"), name("Data"));
    assert!(parameter.starts_with("wgmma "), "{parameter}");
    assert!(data.starts_with("mma "), "{data}");
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(34);
    let inputs = [
        bytes(DType::U8, [136, 144], &mut rng),
        bytes(DType::I8, [144, 72], &mut rng),
    ];
    super::check(&graph("Parameter", [136, 72, 144]), &inputs, false).unwrap();
}

/// Returns random bytes, half of which are 127.
pub fn bytes(dtype: DType, shape: [usize; 2], rng: &mut Rng) -> Array {
    let mut draw = || match rng.below(2) {
        0 => 0x7f,
        _ => rng.bits() as u8,
    };
    let bytes: Vec<u8> = (0..shape[0] * shape[1]).map(|_| draw()).collect();
    Array::from_bytes(dtype, &shape, &bytes).unwrap()
}

/// Bugs of products of bytes, by `wgmma` and by `mma.sync`.
const BUGS: [[&str; 4]; 7] = [
    ["wgmma", "signs are exchanged", ".s32.u8.s8 ", ".s32.s8.u8 "],
    [
        "wgmma",
        "terms count twice",
        "k += TERMS)",
        "k += TERMS / 2)",
    ],
    [
        "wgmma",
        "a stage is read before it arrives",
        "wait(shared.barriers.full[ring.stage], ring.parity);",
        "",
    ],
    [
        "wgmma",
        "a stage is filled before it is empty",
        "wait(barriers.empty[ring.stage], ring.parity ^ 1);",
        "",
    ],
    [
        "wgmma",
        "sums are read before they are finished",
        "finish_products<0>(sums);",
        "finish_products<1>(sums);",
    ],
    ["wgmma", "sums are not fenced", "begin_products(sums);", ""],
    [
        "mma",
        "half of the terms are others",
        "* (INSTRUCTION_K / 2);",
        "* (INSTRUCTION_K / 4);",
    ],
];

#[test]
fn seeded_bugs_of_bytes_are_found() {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(
        "%0: u8[128, 640] = input(index: 0, role: Data)
         %1: i8[64, 640] = input(index: 1, role: Data)
         %2: i32[128, 640] = cast %0
         %3: i32[64, 640] = cast %1
         %4: i32[640, 64] = permute(perm: [1, 0]) %3
         %5: i32[128, 64] = matmul %2, %4
         return %5",
    );
    let mut rng = Rng::new(35);
    let inputs = [
        bytes(DType::U8, [128, 640], &mut rng),
        bytes(DType::I8, [64, 640], &mut rng),
    ];
    let expected = Expected::of(&graph, &inputs).unwrap();
    let run = |sequence: &Sequence, compiled: &device::Compiled| {
        let got = run_compiled(sequence, &inputs, &expected.symbols, compiled);
        expected.compare(&got.ok_or("a false data error")?)
    };
    let correct = [
        "wgmma tile=128x64x128 part=64x64 stages=2 raster=1 parts=1",
        "mma tile=128x64x64 part=64x32 stages=3 raster=1 parts=1",
    ];
    for schedule in correct {
        let (correct, followed) = lower_with_schedule(&expected, schedule.parse().unwrap());
        assert!(followed, "{schedule}");
        assert_eq!(run(&correct, &device::compile(&correct)), Ok(()));
        let instruction = schedule.split(' ').next();
        for [_, label, right, wrong] in BUGS.iter().filter(|b| Some(b[0]) == instruction) {
            let sequence = with_bug(&correct, label, [right, wrong]);
            let compiled = device::compile(&sequence);
            let run = || run(&sequence, &compiled);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(!matches!(result, Ok(Ok(_))), "not found: {label}");
        }
    }
}

/// Results whose rows are no multiples of 16 bytes, and a symbolic number of rows.
#[test]
fn odd_rows_and_symbols() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(32);
    let tile = "wgmma tile=128x64x64 part=64x64 stages=3 raster=4 parts=1";
    let cluster = "wgmma tile=128x128x64 part=64x128 stages=3 raster=4 parts=1 cluster=2";
    let Case { graph, inputs } =
        product((DType::BF16, &[3]), [77, 131, 64], [false, true], &mut rng);
    check(&graph, &inputs, tile);
    check(&graph, &inputs, cluster);
    let mut case = Case::default();
    let rows = case.symbol();
    let a = finite(DType::F16, &[150, 96], &mut rng);
    let a = case.shaped(a, vec![rows, Dim::from(96)]);
    let b = case.input(finite(DType::F16, &[96, 80], &mut rng));
    let y = case.op(ops::MatMul {}, &[a, b]);
    let results = epilogue(&mut case, y, &mut rng);
    results.iter().for_each(|r| case.graph.add_output(*r));
    check(&case.graph, &case.inputs, tile);
    check(&case.graph, &case.inputs, cluster);
}

/// Infinities and NaN stay in their rows and columns: elements outside of operands are 0.
#[test]
fn infinities_and_nan() {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(
        "%0: f16[136, 72] = input(index: 0, role: Data)
         %1: f16[72, 72] = input(index: 1, role: Data)
         %2: f16[136, 72] = matmul %0, %1
         return %2",
    );
    let number = |i: usize| (i % 7) as f64 - 3.0;
    let mut a: Vec<f64> = (0..136 * 72).map(number).collect();
    (a[72 * 5 + 71], a[72 * 130]) = (f64::NAN, f64::INFINITY);
    let mut b: Vec<f64> = (0..72 * 72).map(|i| number(i + 3)).collect();
    b[71 * 72 + 71] = f64::NEG_INFINITY;
    let array = |shape: &[usize], x: Vec<f64>| Array::from_f64(DType::F16, shape, &x).unwrap();
    let inputs = [array(&[136, 72], a), array(&[72, 72], b)];
    for tile in [
        "wgmma tile=128x64x64 part=64x64 stages=2 raster=1 parts=1",
        "wgmma tile=128x128x64 part=64x128 stages=2 raster=1 parts=1 cluster=2",
    ] {
        check(&graph, &inputs, tile);
    }
}
