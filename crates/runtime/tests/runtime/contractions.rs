//! Random contractions by random schedules against sums in f64.
//!
//! `KILN_SEEDS=20000 cargo test -p kiln-runtime-tests --test runtime -- random_contractions` runs many, `KILN_SEED=7` one.

use crate::build::{Random, plan_of, run};
use crate::products::{bias_relu, data, floats};
use crate::schedules::{conv, draw, matmul};
use kiln_base::{DType, Dim};
use kiln_plan::contraction::{Contraction, Filters};
use kiln_plan::schedule::Cpu;
use kiln_plan::{Algorithm, ConvRole, Epilogue, Kernel};
use kiln_runtime::Error;

/// The extents of a contraction's result in memory order, and the axis of its columns.
fn extents(kernel: &Kernel) -> (Vec<i64>, usize) {
    let of = |d: &Dim| d.as_const().unwrap();
    match kernel {
        Kernel::MatMul(p) => (vec![of(&p.m), of(&p.n)], 1),
        Kernel::Conv(p) => {
            let (cin, cout) = (of(&p.in_channels), of(&p.out_channels));
            let all = |dims: &[Dim]| dims.iter().map(of).collect::<Vec<_>>();
            let (rows, channels, inner) = match p.role {
                ConvRole::Result => (of(&p.batch), of(&p.groups) * cout, all(&p.output)),
                ConvRole::Input => (of(&p.batch), of(&p.groups) * cin, all(&p.input)),
                ConvRole::Weight => (of(&p.groups) * cout, cin, all(&p.kernel)),
            };
            let is_last = p.role != ConvRole::Weight && p.images.last() == [true; 2];
            match is_last {
                true => ([&[rows], &inner[..], &[channels]].concat(), 1 + inner.len()),
                false => ([&[rows, channels], &inner[..]].concat(), 1),
            }
        }
        _ => unreachable!(),
    }
}

/// Sets an epilogue that adds an argument before the result.
fn finish(kernel: &mut Kernel, epilogue: Epilogue) {
    let (out, own) = match kernel {
        Kernel::MatMul(p) => (&mut p.out, &mut p.epilogue),
        Kernel::Conv(p) => (&mut p.out, &mut p.epilogue),
        _ => unreachable!(),
    };
    (*out, *own) = (3, Some(epilogue));
}

#[test]
fn random_contractions_by_random_schedules_are_sums_in_f64() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let seeds: Vec<u64> = match number("KILN_SEED") {
        Some(seed) => vec![seed],
        // In the last one, parts of lines are shorter than a pair of positions.
        None => (0..number("KILN_SEEDS").unwrap_or(100))
            .chain([5666])
            .collect(),
    };
    let (mut checked, mut refused) = (0, 0);
    for seed in seeds {
        let mut r = Random((seed + 77).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let dtypes = [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I8];
        let dtype = dtypes[r.below(5) as usize];
        let (mut kernel, lens, _) = match r.below(2) {
            0 => matmul(dtype, &mut r),
            _ => conv(dtype, &mut r),
        };
        let (sums, contraction) = match &kernel {
            Kernel::MatMul(p) => (p.sums(), Contraction::from(p)),
            Kernel::Conv(p) => (p.sums(), p.contraction(Filters::ChannelsFirst)),
            _ => unreachable!(),
        };
        let mut inputs = vec![
            data(dtype, lens[0], r.next()),
            data(dtype, lens[1], r.next()),
        ];
        let arrays = [floats(&inputs[0]), floats(&inputs[1])];
        let operands = (contraction.operands.each_ref()).map(|x| &arrays[usize::from(x.arg)][..]);
        let mut want = contraction.interpret(operands, &[]);
        let mut args = vec![(dtype, lens[0], false), (dtype, lens[1], false)];
        if r.below(2) == 0 {
            let (extents, axis) = extents(&kernel);
            let (columns, inner) = (extents[axis], extents[axis + 1..].iter().product::<i64>());
            let bias = data(sums, columns, r.next());
            let more = floats(&bias);
            for (i, x) in want.iter_mut().enumerate() {
                *x = (*x + more[(i as i64 / inner % columns) as usize]).max(0.0);
            }
            finish(&mut kernel, bias_relu(sums, [dtype; 2], &extents, axis));
            args.push((sums, columns, false));
            inputs.push(bias);
        }
        args.push((sums, lens[2], true));
        let most = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        for algorithm in kernel.algorithms(&[]) {
            // Sums of small integers are exact in any order, but for some algorithms' weights.
            let slack = match algorithm {
                Algorithm::Winograd4 | Algorithm::Fft => 1e-4 * most,
                _ => 0.0,
            };
            let plain = Cpu::from(algorithm);
            for schedule in [plain, draw(plain, &mut r), draw(plain, &mut r)] {
                for got in run(&plan_of(kernel.clone().by(schedule), &args), &inputs) {
                    let got = match got {
                        Ok(got) => floats(&got[0]),
                        Err(Error::Plan(text)) if text.contains(&schedule.to_string()) => {
                            refused += 1;
                            continue;
                        }
                        Err(e) => panic!("{seed}: {schedule}: {e}"),
                    };
                    assert_eq!(got.len(), want.len(), "{seed}");
                    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                        let near = (g - w).abs() <= slack;
                        assert!(
                            near,
                            "{seed}: {g}, not {w}, at {i}: {schedule} of {kernel:?}"
                        );
                    }
                    checked += 1;
                }
            }
        }
    }
    eprintln!("{checked} contractions are right, {refused} schedules refused");
    assert!(checked > 0);
}
