//! Bank conflicts, and the bytes that tiles read, as the emulator counts them.

use super::contractions::lower_with_schedule;
use super::families::{Case, finite};
use super::{Expected, large_product, layouts, lowered_for};
use crate::device;
use crate::run::run_compiled;
use kiln_base::{DType, Gpu};
use kiln_codegen::{Layout, Schedule};
use kiln_gpu_emulator::Traffic;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Pw, ops};
use kiln_plan::schedule;

/// Returns the traffic of a product by a schedule, whose operands may be transposed.
fn traffic(
    dtype: DType,
    schedule: schedule::Gpu,
    [m, n, k]: [usize; 3],
    [a, b]: [bool; 2],
) -> Traffic {
    let mut rng = Rng::new(41);
    let mut case = Case::default();
    let mut operand = |[rows, columns]: [usize; 2], transposed: bool| {
        let shape = if transposed {
            [columns, rows]
        } else {
            [rows, columns]
        };
        let x = case.input(finite(dtype, &shape, &mut rng));
        let perm = if transposed { [1, 0] } else { [0, 1] };
        case.builder().permute(&x, &perm).unwrap()
    };
    let operands = [operand([m, k], a), operand([k, n], b)];
    let y = case.op(ops::MatMul {}, &operands);
    let y = case.builder().pointwise(Pw::Relu, &[y]).unwrap();
    case.graph.add_output(y);
    let expected = Expected::of(&case.graph, &case.inputs).unwrap();
    let (sequence, followed) = lower_with_schedule(&expected, schedule);
    assert!(followed, "{schedule} is not legal");
    let mut compiled = device::compile(&sequence);
    compiled.counts_traffic = true;
    let got = run_compiled(&sequence, &case.inputs, &[], &compiled).unwrap();
    assert_eq!(expected.compare(&got), Ok(()), "{schedule}");
    compiled.statistics.lock().unwrap().traffic
}

/// The default kernels of large products, in every order of the operands: no bank conflicts in their main loops and
/// hardly any in their epilogues, and at least as many operations for each byte of L2 as tensor cores take it at.
#[test]
fn large_products() {
    for (capability, gpu) in device::architectures() {
        let least = if capability == 90 { 85.0 } else { 64.0 };
        check_large_products(DType::BF16, (capability, gpu), least);
    }
}

/// The same for f32, whose multiply-adds take far longer than what they multiply.
#[test]
fn large_products_of_f32() {
    for architecture in device::architectures() {
        check_large_products(DType::F32, architecture, 32.0);
    }
}

fn check_large_products(dtype: DType, (capability, gpu): (u32, Gpu), least: f64) {
    if device::nvrtc().is_some() {
        for order in 0..4 {
            let order = [order & 1 != 0, order & 2 != 0];
            let graph = large_product(dtype, order);
            let program = lowered_for(gpu, &graph, true).unwrap();
            let Schedule::Gpu(schedule) = program.tasks.last().unwrap().candidate().schedule else {
                panic!("a product has a schedule")
            };
            // One tile of each block of a cluster; the difference of both is that of stages alone.
            let [rows, columns, depth] = schedule.tile.map(usize::from);
            let m = rows * usize::from(schedule.cluster);
            let stages = [4, 10];
            let [few, many] =
                stages.map(|n| traffic(dtype, schedule, [m, columns, n * depth], order));
            let each = |of: fn(&Traffic) -> u64| of(&many) - of(&few);
            let what = format!("sm_{capability} {schedule}, order {order:?}: {few:?} {many:?}");
            let [wavefronts, ideal] = [each(|t| t.wavefronts), each(|t| t.ideal_wavefronts)];
            assert_eq!(wavefronts, ideal, "{what}");
            let loops = ideal * stages[0] as u64 / (stages[1] - stages[0]) as u64;
            let [all, ideal] = [few.wavefronts, few.ideal_wavefronts].map(|n| n - loops);
            assert!(
                all as f64 <= 1.1 * ideal as f64,
                "{all} for {ideal}: {what}"
            );
            let sectors = each(|t| t.load_sectors + t.copy_sectors);
            let bytes = (32 * sectors + each(|t| t.bulk_bytes)) as f64;
            let operations = (2 * m * columns * (stages[1] - stages[0]) * depth) as f64;
            assert!(
                operations >= least * bytes,
                "{operations} for {bytes}: {what}"
            );
        }
    }
}

/// Two convolutions, whose result has channels first: images of either layout are written as whole sectors, and
/// operands are copied asynchronously. Only copies load elements.
#[test]
fn images_of_either_layout() {
    if device::nvrtc().is_none() {
        return;
    }
    // Rows of 21 positions are not aligned.
    for (shape, most) in [([2, 64, 28, 28], 1.0), ([3, 64, 21, 21], 1.2)] {
        let mut rng = Rng::new(43);
        let mut case = Case::default();
        let mut y = case.input(finite(DType::F16, &shape, &mut rng));
        for _ in 0..2 {
            let w = case.parameter(finite(DType::F16, &[64, 64, 3, 3], &mut rng));
            let conv = ops::Conv {
                stride: [1, 1].into_iter().collect(),
                padding: vec![(1, 1), (1, 1)],
                dilation: [1, 1].into_iter().collect(),
                groups: 1,
            };
            y = case.op(conv, &[y, w]);
            y = case.builder().pointwise(Pw::Relu, &[y]).unwrap();
        }
        case.graph.add_output(y);
        let expected = Expected::of(&case.graph, &case.inputs).unwrap();
        let traffic = |layout: Layout| {
            let sequence = layouts::lowered(&expected.lowered, layout, false).sequence();
            let mut compiled = device::compile(&sequence);
            compiled.counts_traffic = true;
            let got = run_compiled(&sequence, &case.inputs, &[], &compiled).unwrap();
            assert_eq!(expected.compare(&got), Ok(()), "{layout:?}");
            let counted = compiled.statistics.lock().unwrap().traffic;
            println!("{shape:?} {layout:?}: {counted:?}");
            counted
        };
        let [first, now] = [Layout::ChannelsFirst, Layout::Auto].map(traffic);
        assert!(
            5 * now.load_sectors < first.load_sectors,
            "{first:?} {now:?}"
        );
        // The image is copied, and so are both filters.
        let image: usize = shape.iter().product();
        let least = ((3 * image + 2 * 64 * 64 * 9) * 2).div_ceil(32) as f64;
        let stored = now.store_sectors as f64;
        assert!((least..=most * least).contains(&stored), "{least}: {now:?}");
    }
}
