//! Schedules of contractions: for any sizes, an element is the same sum.

use crate::algorithms::{lens, random};
use crate::build::{Random, plan_of, product, run};
use kiln_base::{DType, Dim};
use kiln_plan::schedule::Cpu;
use kiln_plan::{Conv, ConvRole, Images, Kernel, Plan};
use kiln_runtime::{Buffer, Error};

/// A product of odd sizes, in which either matrix may be column-major.
pub fn matmul(dtype: DType, r: &mut Random) -> (Kernel, [i64; 3], i64) {
    let mut size = |most: u64| 1 + r.below(most) as i64;
    let (m, k, n) = match size(4) {
        1 => (size(3), size(900), size(200)),
        2 => (size(20), 4096 + size(500), size(9)),
        _ => (size(150), size(300), size(150)),
    };
    let mut p = product(m, k, n);
    p.dtypes = [dtype; 2];
    if r.below(2) == 0 {
        (p.lhs.row, p.lhs.col) = (Dim::ONE, Dim::from(m));
    }
    if r.below(2) == 0 {
        (p.rhs.row, p.rhs.col) = (Dim::ONE, Dim::from(k));
    }
    (Kernel::MatMul(p), [m * k, k * n, m * n], k)
}

/// A convolution or a gradient of one.
pub fn conv(dtype: DType, r: &mut Random) -> (Kernel, [i64; 3], i64) {
    let mut size = |most: u64| 1 + r.below(most) as i64;
    let batch = size(3);
    let [groups, cin, cout] = match size(3) {
        1 => [size(70), 1, 1],
        2 => [2, size(5), size(40)],
        _ => [1, size(24), size(70)],
    };
    let kernel = [size(3), size(3)];
    let (stride, dilation) = ([size(3), size(2)], [size(2), size(3)]);
    let padding = [size(3) - 1, size(3) - 1];
    let span = [0, 1].map(|i| dilation[i] * (kernel[i] - 1) + 1);
    let input = span.map(|span| span + size(18));
    let output = [0, 1].map(|i| (input[i] + 2 * padding[i] - span[i]) / stride[i] + 1);
    let role = match dtype.is_float() {
        true => [ConvRole::Result, ConvRole::Input, ConvRole::Weight][r.below(3) as usize],
        false => ConvRole::Result,
    };
    let layouts = [Images::ChannelsFirst, Images::ChannelsLast];
    let dims = |sizes: [i64; 2]| sizes.map(Dim::from).to_vec();
    let conv = Conv {
        dtypes: [dtype; 2],
        reduce_range: false,
        role,
        batch: batch.into(),
        groups: groups.into(),
        in_channels: cin.into(),
        out_channels: cout.into(),
        input: dims(input),
        output: dims(output),
        kernel: dims(kernel),
        stride: dims(stride),
        padding: dims(padding),
        dilation: dims(dilation),
        operands: [0, 1],
        out: 2,
        prologue: None,
        epilogue: None,
        algorithm: Default::default(),
        images: layouts[r.below(2) as usize],
    };
    let [x, w, y] = lens(&conv);
    let (args, terms) = match role {
        ConvRole::Result => ([x, w, y], cin * kernel[0] * kernel[1]),
        ConvRole::Input => ([y, w, x], cout * kernel[0] * kernel[1]),
        ConvRole::Weight => ([x, y, w], batch * output[0] * output[1]),
    };
    (Kernel::Conv(conv), args, terms)
}

/// Random sizes for a schedule, some of which it can't use.
pub fn draw(plain: Cpu, r: &mut Random) -> Cpu {
    let mut some = |most: u64| (r.below(3) == 0).then(|| 1 + r.below(most));
    let (tile, block, terms, parts) = (some(3), some(4), some(300), some(9));
    Cpu {
        tile: tile.map(|vectors| [1 + r.below(14) as u8, vectors as u8]),
        block: block.map(|_| [200, 90].map(|most| 1 + r.below(most) as u32)),
        terms: terms.map(|terms| terms as u32),
        parts: parts.map(|parts| parts as u16),
        ..plain
    }
}

fn plan(kernel: &Kernel, schedule: Cpu, dtypes: [DType; 3], lens: [i64; 3]) -> Plan {
    let args = [0, 1, 2].map(|i| (dtypes[i], lens[i], i == 2));
    plan_of(kernel.clone().by(schedule), &args)
}

#[test]
fn schedules_of_any_size_keep_the_bits() {
    let seed: Option<u64> = std::env::var("KILN_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = match seed {
        Some(seed) => seed..seed + 1,
        None => 0..std::env::var("KILN_SEEDS").map_or(120, |n| n.parse().expect("a number")),
    };
    let (mut followed, mut refused) = (0, 0);
    for seed in seeds {
        let mut r = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let dtypes = [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I8];
        let dtype = dtypes[r.below(5) as usize];
        let (kernel, lens, terms) = match r.below(2) {
            0 => matmul(dtype, &mut r),
            _ => conv(dtype, &mut r),
        };
        let sums = match &kernel {
            Kernel::MatMul(m) => m.sums(),
            Kernel::Conv(c) => c.sums(),
            _ => unreachable!(),
        };
        let dtypes = [dtype, dtype, sums];
        let inputs = [0, 1].map(|i| random(dtype, lens[i], &mut r));
        for algorithm in kernel.algorithms(&[]) {
            let plain = Cpu::from(algorithm);
            let want = run(&plan(&kernel, plain, dtypes, lens), &inputs);
            for _ in 0..4 {
                let schedule = draw(plain, &mut r);
                let got = run(&plan(&kernel, schedule, dtypes, lens), &inputs);
                for (got, want) in got.into_iter().zip(&want) {
                    let want = &want.as_ref().unwrap()[0];
                    match got {
                        Ok(got) => check(&got[0], want, schedule, terms, seed, &kernel),
                        Err(Error::Plan(text)) => {
                            assert!(text.contains(&schedule.to_string()), "{seed}: {text}");
                            refused += 1;
                            continue;
                        }
                        Err(e) => panic!("{seed}: {schedule}: {e}"),
                    }
                    followed += 1;
                }
            }
        }
    }
    assert!(followed > 0 && (seed.is_some() || refused > 0));
    eprintln!("{followed} runs by schedules that are followed, {refused} refused");
}

/// Asserts that results equal those of the default schedule: bit for bit, unless sums are cut elsewhere.
fn check(got: &Buffer, want: &Buffer, by: Cpu, terms: i64, seed: u64, kernel: &Kernel) {
    if (by.terms, by.parts) == (None, None) {
        assert!(got.bytes() == want.bytes(), "{seed}: {by} of {kernel:?}");
        return;
    }
    let values = |b: &Buffer| -> Vec<f64> {
        match b.dtype() {
            DType::F64 => b.to_vec::<f64>().unwrap(),
            _ => b
                .to_vec::<f32>()
                .unwrap()
                .into_iter()
                .map(f64::from)
                .collect(),
        }
    };
    let unit = match got.dtype() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    // Two sums of `terms` products of numbers up to 2, in different orders.
    let bound = unit * 4.0 * terms as f64 * terms as f64;
    for (g, w) in values(got).into_iter().zip(values(want)) {
        assert!(
            (g - w).abs() <= bound,
            "{seed}: {g}, not {w}: {by} of {kernel:?}"
        );
    }
}
