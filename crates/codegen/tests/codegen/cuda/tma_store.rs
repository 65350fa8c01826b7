//! Results of warpgroups that TMA stores, after epilogues on accumulators in registers.

use super::contractions::lower_with_schedule;
use super::families::{Case, finite};
use super::{Expected, lowered, parsed, with_bug};
use crate::device;
use crate::run::run_compiled;
use kiln_base::{DType, Dim};
use kiln_codegen::Sequence;
use kiln_gpu_emulator::Traffic;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Pw, Value, ops};
use kiln_plan::Kernel;

/// An epilogue of a product.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Epilogue {
    Nothing,
    Relu,
    Gelu,
    /// Adds a vector with an element per column.
    Bias,
    /// Multiplies rows by the elements of a vector and by a scalar.
    Scaled,
    /// Converts to f32, or f32 to f16.
    Cast,
    /// Adds a matrix.
    Residual,
    /// Adds a vector for each product of a batch.
    Biases,
}
use Epilogue::*;

impl Epilogue {
    /// Appends the epilogue.
    fn append(self, case: &mut Case, y: Value, rng: &mut Rng) -> Value {
        let fact = case.graph.fact(y);
        let (dtype, shape) = (fact.dtype, fact.shape.to_vec());
        let sizes: Vec<usize> = shape
            .iter()
            .map(|d| d.as_const().unwrap() as usize)
            .collect();
        let rank = sizes.len();
        let mut operand = |case: &mut Case, has_axis: &dyn Fn(usize) -> bool| {
            let sizes: Vec<usize> = (0..rank)
                .map(|d| if has_axis(d) { sizes[d] } else { 1 })
                .collect();
            let x = case.input(finite(dtype, &sizes, rng));
            case.builder().broadcast_to(&x, &shape).unwrap()
        };
        let (op, x) = match self {
            Nothing => return y,
            Relu => return case.builder().pointwise(Pw::Relu, &[y]).unwrap(),
            Gelu => return case.builder().pointwise(Pw::Gelu, &[y]).unwrap(),
            Cast => {
                let to = match dtype {
                    DType::F32 => DType::F16,
                    _ => DType::F32,
                };
                return case.builder().cast(&y, to).unwrap();
            }
            Bias => (Pw::Add, operand(case, &|d| d == rank - 1)),
            Residual => (Pw::Add, operand(case, &|_| true)),
            Biases => (Pw::Add, operand(case, &|d| d != rank - 2)),
            Scaled => {
                let rows = operand(case, &|d| d == rank - 2);
                let scalar = operand(case, &|_| false);
                let scale = case.builder().pointwise(Pw::Mul, &[rows, scalar]).unwrap();
                (Pw::Mul, scale)
            }
        };
        case.builder().pointwise(op, &[y, x]).unwrap()
    }
}

/// Returns a product whose operands may be transposed.
fn product(
    (dtype, batch): (DType, &[usize]),
    [m, n, k]: [usize; 3],
    order: usize,
    epilogue: Epilogue,
    rng: &mut Rng,
) -> Case {
    let mut case = Case::default();
    let mut operand = |rows: usize, columns: usize, is_transposed: bool| {
        let sizes = match is_transposed {
            true => [columns, rows],
            false => [rows, columns],
        };
        let shape: Vec<usize> = batch.iter().copied().chain(sizes).collect();
        // TF32 represents numbers of bf16 exactly.
        let narrow = finite(
            if dtype == DType::F32 {
                DType::BF16
            } else {
                dtype
            },
            &shape,
            rng,
        );
        let x = case.input(Array::from_f64(dtype, &shape, &narrow.to_f64()).unwrap());
        let mut perm: Vec<usize> = (0..shape.len()).collect();
        if is_transposed {
            perm.swap(shape.len() - 1, shape.len() - 2);
        }
        case.builder().permute(&x, &perm).unwrap()
    };
    let operands = [operand(m, k, order & 1 != 0), operand(k, n, order & 2 != 0)];
    let y = case.op(ops::MatMul {}, &operands);
    let y = epilogue.append(&mut case, y, rng);
    case.graph.add_output(y);
    case
}

/// Counts the results that TMA stores.
fn count_tma_results(sequence: &Sequence) -> usize {
    let written = |l: &kiln_codegen::Launch| match &*l.kernel {
        Kernel::Cuda(k) => {
            let is_written = |m: &&kiln_plan::cuda::TensorMap| k.args[usize::from(m.arg)].written;
            k.maps.iter().filter(is_written).count()
        }
        _ => 0,
    };
    sequence.launches.iter().map(written).sum()
}

/// Checks a product with a schedule, and whether TMA stores the result. Returns its traffic.
#[track_caller]
fn check(case: &Case, schedule: &str, by_tma: bool, label: &str) -> Traffic {
    let label = format!("{label}, {schedule}");
    let expected = Expected::of(&case.graph, &case.inputs).unwrap();
    let (sequence, followed) = lower_with_schedule(&expected, schedule.parse().unwrap());
    assert!(followed, "{label} is not legal");
    assert_eq!(count_tma_results(&sequence), usize::from(by_tma), "{label}");
    let mut compiled = device::compile(&sequence);
    compiled.counts_traffic = true;
    let got = run_compiled(&sequence, &case.inputs, &expected.symbols, &compiled);
    let got = got.unwrap_or_else(|| panic!("{label}: a false data error"));
    assert_eq!(expected.compare(&got), Ok(()), "{label}\n{}", case.graph);
    compiled.statistics.lock().unwrap().traffic
}

const WIDE: &str = "wgmma tile=128x256x64 part=64x256 stages=2 raster=2 parts=1";
const TALL: &str = "wgmma tile=256x128x64 part=128x128 stages=2 raster=1 parts=1";
const SMALL: &str = "wgmma tile=128x64x64 part=64x64 stages=2 raster=1 parts=1";
const CLUSTER: &str = "wgmma tile=128x128x64 part=64x128 stages=2 raster=4 parts=1 cluster=2";
const TF32: &str = "wgmma_tf32 tile=128x128x32 part=64x128 stages=2 raster=1 parts=1";

/// Results of 16 and 32 bits, with tails of rows and columns, batches and split K. Only TMA stores results, each once,
/// and boxes are filled without bank conflicts.
#[test]
fn epilogues_on_accumulators() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(61);
    let [bf16, f16, f32] = [DType::BF16, DType::F16, DType::F32];
    let split = CLUSTER.replace("parts=1", "parts=2");
    for (at, (dtype, schedule, batch, sizes, epilogue)) in [
        (bf16, WIDE, &[][..], [137, 264, 72], Bias),
        (f16, WIDE, &[], [8, 8, 8], Relu),
        (f16, TALL, &[3], [131, 136, 72], Scaled),
        (bf16, TALL, &[], [264, 40, 64], Gelu),
        (f16, SMALL, &[2, 3], [70, 72, 8], Nothing),
        (bf16, SMALL, &[], [24, 200, 72], Cast),
        (bf16, CLUSTER, &[2], [300, 136, 72], Bias),
        (f16, split.as_str(), &[2], [152, 136, 264], Bias),
        (f32, TF32, &[], [77, 132, 40], Bias),
        (f32, TF32, &[2], [130, 264, 40], Cast),
    ]
    .into_iter()
    .enumerate()
    {
        let order = if dtype == f32 { 2 } else { at % 4 };
        let label = format!("{dtype} {batch:?} {sizes:?} order {order}, {epilogue:?}");
        // The terms of operands of f32 are contiguous.
        let case = product((dtype, batch), sizes, order, epilogue, &mut rng);
        let traffic = check(&case, schedule, true, &label);
        let [m, n, _] = sizes;
        let elements = batch.iter().product::<usize>() * m * n;
        let (parts, size) = match (schedule.contains("parts=2"), dtype, epilogue) {
            (true, ..) => (2, 4),
            (_, DType::F32, Cast) => (1, 2),
            (_, DType::F32, _) | (_, _, Cast) => (1, 4),
            _ => (1, 2),
        };
        assert_eq!(traffic.bulk_stored_bytes, (parts * elements * size) as u64);
        assert!(parts == 2 || traffic.store_sectors == 0, "{label}");
        assert!(traffic.ideal_wavefronts > 0, "{label}");
        assert_eq!(traffic.wavefronts, traffic.ideal_wavefronts, "{label}");
    }
}

/// Threads store results whose rows are no multiples of 16 bytes, and results of epilogues that read matrices.
#[test]
fn results_that_threads_store() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(62);
    for (batch, sizes, epilogue) in [
        (&[][..], [70, 67, 64], Bias),
        (&[], [70, 72, 64], Residual),
        (&[2], [70, 72, 64], Biases),
    ] {
        let case = product((DType::BF16, batch), sizes, 2, epilogue, &mut rng);
        let traffic = check(&case, SMALL, false, &format!("{sizes:?} {epilogue:?}"));
        assert_eq!(traffic.bulk_stored_bytes, 0);
    }
}

/// A symbolic number of rows, and NaN and infinities in operands and in a bias.
#[test]
fn symbols_and_nan() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(63);
    let mut case = Case::default();
    let rows = case.symbol();
    let mut with_special = |shape: &[usize], special: f64| {
        let x = finite(DType::BF16, shape, &mut rng);
        let mut data = x.to_f64();
        let last = data.len() - 1;
        (data[last], data[last / 2]) = (f64::NAN, special);
        Array::from_f64(DType::BF16, shape, &data).unwrap()
    };
    let a = with_special(&[150, 64], f64::INFINITY);
    let [b, bias] = [
        with_special(&[64, 80], -1.0),
        with_special(&[80], f64::NEG_INFINITY),
    ];
    let a = case.shaped(a, vec![rows.clone(), Dim::from(64)]);
    let [b, bias] = [b, bias].map(|x| case.input(x));
    let y = case.op(ops::MatMul {}, &[a, b]);
    let shape = [rows, Dim::from(80)];
    let bias = case.builder().broadcast_to(&bias, &shape).unwrap();
    let y = case.builder().pointwise(Pw::Add, &[y, bias]).unwrap();
    let y = case.builder().pointwise(Pw::Relu, &[y]).unwrap();
    case.graph.add_output(y);
    for schedule in [SMALL, TALL, CLUSTER] {
        check(&case, schedule, true, "a symbol");
    }
}

/// Bugs in the store of accumulators.
const BUGS: [[&str; 3]; 6] = [
    [
        "the copy does not see the box",
        "asm volatile(\"fence.proxy.async.shared::cta;\");",
        "",
    ],
    [
        "a box is filled while it is copied",
        "wait_group.read 1;",
        "wait_group.read 2;",
    ],
    [
        "the last box is not waited for",
        "wait_group.read 0;",
        "wait_group.read 1;",
    ],
    [
        "copies have no group",
        "asm volatile(\"cp.async.bulk.commit_group;\");",
        "",
    ],
    [
        "chunks are not permuted",
        "(lane / 16 ^ lane % 8) * 16",
        "lane / 16 * 16",
    ],
    [
        "halves of boxes are exchanged",
        "(half * 4 + x * 2)",
        "(half * 4 + x * 2 ^ 4)",
    ],
];

#[test]
fn seeded_bugs_are_found() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(64);
    let case = product((DType::F16, &[]), [128, 256, 64], 0, Relu, &mut rng);
    let expected = Expected::of(&case.graph, &case.inputs).unwrap();
    let (correct, _) = lower_with_schedule(&expected, WIDE.parse().unwrap());
    for [label, right, wrong] in BUGS {
        let sequence = with_bug(&correct, label, [right, wrong]);
        let compiled = device::compile(&sequence);
        let run = || {
            let got = run_compiled(&sequence, &case.inputs, &expected.symbols, &compiled);
            expected.compare(&got.ok_or("a false data error")?)
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        assert!(!matches!(result, Ok(Ok(()))), "not found: {label}");
    }
}

/// A permutation after attention, which interleaves heads in the result.
#[test]
fn interleaved_heads() {
    if device::nvrtc().is_none() {
        return;
    }
    let sizes = [2, 200, 3, 72];
    let inputs = |i| format!("%{i}: bf16{sizes:?} = input(index: {i}, role: Data)\n");
    let inputs: String = (0..3).map(inputs).collect();
    let graph = parsed(&format!(
        "{inputs}
         %3: bf16[2, 3, 200, 72] = permute(perm: [0, 2, 1, 3]) %0
         %4: bf16[2, 3, 200, 72] = permute(perm: [0, 2, 1, 3]) %1
         %5: bf16[2, 3, 200, 72] = permute(perm: [0, 2, 1, 3]) %2
         %6: bf16[2, 3, 200, 72] = attention(scale: Float(0.125), causal: true) %3, %4, %5
         %7: bf16{sizes:?} = permute(perm: [0, 2, 1, 3]) %6
         %8: bf16[2, 200, 216] = reshape %7
         return %8"
    ));
    let mut rng = Rng::new(65);
    let inputs = [0; 3].map(|_| finite(DType::BF16, &sizes, &mut rng));
    let expected = Expected::of(&graph, &inputs).unwrap();
    let sequence = lowered(&expected.lowered, true).unwrap().sequence();
    assert_eq!(
        (sequence.launches.len(), count_tma_results(&sequence)),
        (1, 1)
    );
    let mut compiled = device::compile(&sequence);
    compiled.counts_traffic = true;
    let got = run_compiled(&sequence, &inputs, &[], &compiled).unwrap();
    assert_eq!(expected.compare(&got), Ok(()));
    let traffic = compiled.statistics.lock().unwrap().traffic;
    let elements = sizes.iter().product::<usize>() as u64;
    assert_eq!(
        (traffic.bulk_stored_bytes, traffic.store_sectors),
        (2 * elements, 0)
    );
    assert_eq!(traffic.wavefronts, traffic.ideal_wavefronts);
}
