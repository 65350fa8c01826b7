//! Random contractions with random schedules equal the reference. `KILN_FUZZ` sets their number.

use super::Expected;
use super::candidates::together;
use super::families::{Case, FLOATS, case_count, epilogue, finite};
use crate::device;
use crate::fuzz::env_number;
use crate::run::run_compiled;
use kiln_base::{DType, Gpu, Machine};
use kiln_codegen::{Options, Schedule, Sequence, lower};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Op, Pw, Value, ops};
use kiln_plan::schedule::{self, Multiply};

/// The number of cases that are compiled as one unit.
const CASES_PER_UNIT: usize = 12;

/// Returns a random power of two from `min` to `max`.
fn power(rng: &mut Rng, min: u16, max: u16) -> u16 {
    min << rng.below((max / min).ilog2() as usize + 1)
}

/// Returns a random schedule that is legal for operands of a dtype, often one of warpgroups.
fn random_schedule(dtype: DType, rng: &mut Rng) -> schedule::Gpu {
    let multiply = Multiply::exact(dtype);
    if multiply == Multiply::Mma && rng.below(2) == 0 {
        let rows = power(rng, 64, 128);
        let columns = power(rng, 64, if rows == 64 { 256 } else { 128 });
        let terms = 128 / dtype.size() as u16;
        let may_share = columns / 2 >= terms;
        let schedule = schedule::Gpu {
            multiply: Multiply::Wgmma,
            tile: [2 * rows, columns, terms],
            warp: [rows, columns],
            stages: 2 + rng.below(3) as u8,
            cluster: if may_share { 1 + rng.below(2) as u8 } else { 1 },
            raster: 1 + rng.below(5) as u8,
            parts: 1 + rng.below(4) as u16,
        };
        if rng.below(2) == 0 {
            return schedule;
        }
        let few = power(rng, 8, columns);
        return schedule::Gpu {
            tile: [few, 2 * rows, terms],
            warp: [few, rows],
            cluster: if few / 2 >= terms {
                schedule.cluster
            } else {
                1
            },
            ..schedule
        };
    }
    let by_tensor_cores = multiply.is_by_tensor_cores();
    loop {
        let min_part = if by_tensor_cores { 16 } else { 1 };
        let max_part = if by_tensor_cores { 64 } else { 8 };
        let schedule = schedule::Gpu {
            multiply,
            tile: [power(rng, 8, 256), power(rng, 8, 256), power(rng, 4, 64)],
            warp: [
                power(rng, min_part, max_part),
                power(rng, min_part, max_part),
            ],
            stages: 2 + rng.below(4) as u8,
            cluster: 1,
            raster: 1 + rng.below(5) as u8,
            parts: 1 + rng.below(4) as u16,
        };
        if schedule.check(&Gpu::H100, dtype).is_ok() {
            return schedule;
        }
    }
}

/// Returns a small number, often 1 or odd.
fn small(rng: &mut Rng, max: usize) -> usize {
    match rng.below(4) {
        0 => 1,
        _ => 1 + rng.below(max),
    }
}

/// Returns random bytes, or finite floats.
fn random_array(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    if !dtype.is_byte() {
        return finite(dtype, shape, rng);
    }
    let bytes: Vec<u8> = (0..shape.iter().product())
        .map(|_| rng.bits() as u8)
        .collect();
    Array::from_bytes(dtype, shape, &bytes).unwrap()
}

/// Returns an operand, plain or computed by a prologue. Bytes are cast to i32, and are signed or unsigned.
fn operand(case: &mut Case, shape: &[usize], dtype: DType, rng: &mut Rng) -> Value {
    let dtype = match dtype.is_byte() {
        true => rng.one([DType::I8, DType::U8]),
        false => dtype,
    };
    let x = case.input(random_array(dtype, shape, rng));
    if dtype.is_byte() {
        let mut b = case.builder();
        let x = match rng.below(6) {
            0 => b.pointwise(Pw::Relu, &[x]).unwrap(),
            _ => x,
        };
        return b.cast(&x, DType::I32).unwrap();
    }
    match rng.below(4) {
        0 => case.builder().pointwise(Pw::Relu, &[x]).unwrap(),
        1 => {
            let scale = case.input(finite(dtype, shape, rng));
            case.builder().pointwise(Pw::Mul, &[x, scale]).unwrap()
        }
        _ => x,
    }
}

/// Returns a matrix product or convolution of random sizes, with its prologues and epilogue.
fn contraction(dtype: DType, rng: &mut Rng) -> Case {
    let mut case = Case::default();
    let y = match rng.below(5) {
        0 | 1 => product(&mut case, dtype, rng),
        role => convolution(&mut case, dtype, role - 2, rng),
    };
    let results = match dtype.is_byte() {
        true => requantize(&mut case, y, rng),
        false => epilogue(&mut case, y, rng),
    };
    results.iter().for_each(|r| case.graph.add_output(*r));
    case
}

/// Appends an epilogue to sums of integers: nothing, or a scale and rounding to bytes.
fn requantize(case: &mut Case, y: Value, rng: &mut Rng) -> Vec<Value> {
    if rng.below(2) == 0 {
        return vec![y];
    }
    let shape = case.graph.fact(y).shape.to_vec();
    let scale = case.input(Array::from_f64(DType::F32, &[1], &[0.001]).unwrap());
    let mut b = case.builder();
    let scale = b.broadcast_to(&scale, &shape).unwrap();
    let y = b.cast(&y, DType::F32).unwrap();
    let y = b.pointwise(Pw::Mul, &[y, scale]).unwrap();
    let y = b.pointwise(Pw::Round, &[y]).unwrap();
    vec![b.cast(&y, DType::I8).unwrap()]
}

fn product(case: &mut Case, dtype: DType, rng: &mut Rng) -> Value {
    let batch: Vec<usize> = (0..rng.below(3)).map(|_| small(rng, 3)).collect();
    // Sizes are often multiples of 16 bytes, which are copied at a time.
    let vector = 16 / dtype.size().min(2);
    let mut size = |max: usize| match rng.below(3) {
        0 => vector * (1 + rng.below(max / vector)),
        _ => small(rng, max),
    };
    let [m, n, k] = [size(150), size(150), size(200)];
    let mut matrix = |shared: bool, rows: usize, columns: usize| {
        let batch = if shared { &[][..] } else { &batch[..] };
        let transposed = rng.below(2) == 0;
        let sizes = if transposed {
            [columns, rows]
        } else {
            [rows, columns]
        };
        let shape: Vec<usize> = batch.iter().copied().chain(sizes).collect();
        let x = operand(case, &shape, dtype, rng);
        match transposed {
            false => x,
            true => {
                let rank = shape.len();
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.swap(rank - 1, rank - 2);
                case.builder().permute(&x, &perm).unwrap()
            }
        }
    };
    let a = matrix(false, m, k);
    let b = matrix(false, k, n);
    case.op(ops::MatMul {}, &[a, b])
}

fn convolution(case: &mut Case, dtype: DType, role: usize, rng: &mut Rng) -> Value {
    let axes = 1 + rng.below(2);
    let groups = 1 + rng.below(3);
    let mut channels = || match rng.below(3) {
        0 => (16 / dtype.size().min(2)) * (1 + rng.below(3)),
        _ => 1 + rng.below(9),
    };
    let (ins, outs, batch) = (channels(), channels(), small(rng, 3));
    let mut sizes: Vec<[usize; 2]> = Vec::new();
    let mut conv = ops::Conv {
        stride: [].into_iter().collect(),
        padding: [].into_iter().collect(),
        dilation: [].into_iter().collect(),
        groups,
    };
    let mut kernel: Vec<usize> = Vec::new();
    for _ in 0..axes {
        let [k, stride, dilation] = [1 + rng.below(3), 1 + rng.below(3), 1 + rng.below(3)];
        let padding = rng.below(3);
        let span = (k - 1) * dilation + 1;
        let input = span.saturating_sub(2 * padding).max(1) + rng.below(12);
        sizes.push([input, (input + 2 * padding - span) / stride + 1]);
        conv.stride.push(stride);
        conv.padding.push((padding, padding));
        conv.dilation.push(dilation);
        kernel.push(k);
    }
    let shape = |a: usize, b: usize, i: usize| -> Vec<usize> {
        [a, b]
            .into_iter()
            .chain(sizes.iter().map(|s| s[i]))
            .collect()
    };
    let x = shape(batch, groups * ins, 0);
    let y = shape(batch, groups * outs, 1);
    let w: Vec<usize> = [groups * outs, ins]
        .into_iter()
        .chain(kernel.iter().copied())
        .collect();
    let (op, shapes): (Op, _) = match role {
        0 => (conv.into(), [x, w]),
        1 => {
            let input = sizes.iter().map(|s| s[0].into()).collect();
            (ops::ConvTranspose { conv, input }.into(), [y, w])
        }
        _ => {
            let kernel = kernel.into_iter().collect();
            (ops::ConvWeight { conv, kernel }.into(), [x, y])
        }
    };
    let [left, right] = shapes;
    let left = operand(case, &left, dtype, rng);
    let right = match dtype.is_byte() {
        true => operand(case, &right, dtype, rng),
        false => case.input(finite(dtype, &right, rng)),
    };
    case.op(op, &[left, right])
}

/// Returns the program with a schedule, and false with the default program if the schedule is not legal for its
/// operands.
pub fn lower_with_schedule(expected: &Expected, schedule: schedule::Gpu) -> (Sequence, bool) {
    let options = Options {
        machine: Machine::Gpu(Gpu::H100),
        candidates: true,
        schedule: Some(schedule),
        ..Options::default()
    };
    let mut program = lower(&expected.lowered, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut followed = false;
    for task in &mut program.tasks {
        let candidate = task
            .candidates
            .iter()
            .position(|w| w.schedule == Schedule::Gpu(schedule));
        followed |= candidate.is_some();
        task.chosen = candidate.unwrap_or(task.chosen);
    }
    (program.sequence(), followed)
}

#[test]
fn random_contractions_by_random_schedules() {
    if device::nvrtc().is_none() {
        return;
    }
    let first_seed = env_number("KILN_SEED", 0) as usize;
    let mut followed = 0;
    for start in (first_seed..first_seed + case_count()).step_by(CASES_PER_UNIT) {
        let mut cases = Vec::new();
        for seed in start..(start + CASES_PER_UNIT).min(first_seed + case_count()) {
            let mut rng = Rng::new(1_000_000 + seed as u64);
            let dtype = match rng.below(3) {
                0 => DType::I8,
                _ => rng.one(FLOATS),
            };
            let Case { graph, inputs } = contraction(dtype, &mut rng);
            let expected = Expected::of(&graph, &inputs).unwrap();
            let schedule = random_schedule(dtype, &mut rng);
            let (sequence, is_followed) = lower_with_schedule(&expected, schedule);
            followed += usize::from(is_followed);
            cases.push((seed, graph, inputs, expected, schedule, sequence));
        }
        let compiled = device::compile(&together(cases.iter().map(|(.., s)| s)));
        for (seed, graph, inputs, expected, schedule, sequence) in &cases {
            let got = run_compiled(sequence, inputs, &expected.symbols, &compiled);
            let got = got.unwrap_or_else(|| panic!("seed {seed}: a false data error"));
            if let Err(e) = expected.compare(&got) {
                panic!("seed {seed} with {schedule}: {e}\n{graph}");
            }
        }
    }
    println!("{followed} of {} with the random schedule", case_count());
    assert!(followed > 0);
}
