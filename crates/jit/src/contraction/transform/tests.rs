//! Tests of transforms against matrix products in f64, at every level, on the processor and interpreted.

use super::super::tests::{By, Rng, arguments, levels, stored, work};
use super::super::tile::Call;
use super::super::{Accesses, RegisterEpilogue};
use super::Transform;
use kiln_base::{DType, Features};
use kiln_kernel::bind::bind;
use kiln_plan::{Algorithm, Rows, Winograd};
use std::sync::Arc;

/// Returns all matrices of the transforms.
fn matrices() -> impl Iterator<Item = &'static Rows> {
    let all = [Algorithm::Winograd2, Algorithm::Winograd4].map(Winograd::of);
    let all = all.into_iter().flatten();
    all.flat_map(|w| [w.inputs, w.weights, w.results])
}

/// Returns `L · x · Lᵀ`, for a square of one channel.
fn transformed(matrix: &Rows, x: impl Fn(usize, usize) -> f32) -> Vec<Vec<f64>> {
    let side = matrix[0].len();
    let sum = |f: &dyn Fn(usize) -> f64| (0..side).map(f).sum::<f64>();
    let element = |a: &[f64], b: &[f64]| sum(&|i| a[i] * sum(&|j| b[j] * f64::from(x(i, j))));
    let row = |a: &&[f64]| matrix.iter().map(|b| element(a, b)).collect();
    matrix.iter().map(row).collect()
}

/// Tests a transform of random sizes; the memory around its result must not change.
fn a_transform(matrix: &'static Rows, level: Features, rng: &mut Rng, by: By) {
    let (side, rows) = (matrix[0].len(), matrix.len());
    let channels = 1 + rng.below(70);
    let kept = [0; 2].map(|_| 1 + rng.below(rows));
    // The strides of rows and columns of the square, and of the result, in elements.
    let across = channels + rng.below(3);
    let from = [side * across + rng.below(5), across];
    let across = channels + rng.below(3);
    let to = [kept[1] * across + rng.below(5), across];
    let x: Vec<f32> = rng.numbers((side - 1) * (from[0] + from[1]) + channels);
    let reads = [DType::F32, DType::F16, DType::BF16][rng.below(3)];
    let (first, stored) = stored(&x, reads);
    let before: Vec<f32> = rng.numbers(kept[0] * to[0] + 7);
    let mut out = before.clone();
    let bytes = |n: [usize; 2], size: usize| n.map(|n| (size * n) as i64);
    let transform = Transform {
        level,
        matrix,
        reads,
        from: bytes(from, reads.size()),
        to: bytes(to, 4),
        channels: channels as u32,
        kept: kept.map(|n| n as u8),
        epilogue: None,
    };
    let call = Call {
        left: first,
        right: std::ptr::null(),
        out: out.as_mut_ptr().cast(),
        accesses: std::ptr::null(),
        taps: std::ptr::null(),
        tiles: 1,
    };
    let read: [&[f32]; 1] = [&stored];
    by.run(transform.clone(), &call, (&read, &[]), (&mut out, &mut []));
    for channel in 0..channels {
        let want = transformed(matrix, |i, j| x[i * from[0] + j * from[1] + channel]);
        for (i, j) in (0..kept[0]).flat_map(|i| (0..kept[1]).map(move |j| (i, j))) {
            let found = &mut out[i * to[0] + j * to[1] + channel];
            let close = (f64::from(*found) - want[i][j]).abs() < 1e-3;
            assert!(close, "{found} at {i}, {j} of {channel} of {transform:?}");
            *found = before[i * to[0] + j * to[1] + channel];
        }
    }
    assert_eq!(out, before, "{transform:?}");
}

#[test]
fn transforms_are_products_with_a_matrix_from_both_sides() {
    for level in levels() {
        let mut rng = Rng(u64::from(level.bits()) + 17);
        for matrix in matrices() {
            (0..40).for_each(|_| a_transform(matrix, level, &mut rng, By::Processor));
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn emitted_transforms_touch_nothing_but_their_squares() {
    for level in [Features::AVX2, Features::AVX512] {
        let mut rng = Rng(u64::from(level.bits()) + 19);
        for matrix in matrices() {
            for _ in 0..6 {
                a_transform(matrix, level, &mut rng, By::Interpreter);
                a_finished_transform(matrix, level, &mut rng, By::Interpreter);
            }
            (0..20)
                .filter(|_| level.is_supported())
                .for_each(|_| a_finished_transform(matrix, level, &mut rng, By::Processor));
        }
    }
}

/// Tests a transform of random sizes at a random place in an image, with an epilogue.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn a_finished_transform(matrix: &'static Rows, level: Features, rng: &mut Rng, by: By) {
    let (side, rows) = (matrix[0].len(), matrix.len());
    let kept = [0; 2].map(|_| 1 + rng.below(rows));
    let channels = 1 + rng.below(40);
    // The size of the image and its channels; results start at row `above` and column `left`.
    let (above, left, before) = (rng.below(3), rng.below(3), rng.below(4));
    let (wide, high) = (
        left + kept[1] + rng.below(2),
        above + kept[0] + rng.below(2),
    );
    let (width, height) = (before + channels + rng.below(3), wide * high);
    let program = work(height as i64, width as i64, rng.below(2) == 0);
    let all = (height * width) as i64;
    let lens = [width as i64, all, height as i64, all, all, all];
    let bound = bind(&program, &[], &lens).unwrap();
    let epilogue = Arc::new(RegisterEpilogue::of(&bound, width as i64, level).unwrap());
    let x: Vec<f32> = rng.numbers(side * side * channels);
    let bias: Vec<f32> = rng.numbers(width);
    let residual: Vec<f32> = rng.numbers(height * width);
    let row: Vec<f32> = rng.numbers(height);
    let mut out = vec![77.0f32; height * width];
    let mut doubles = vec![77.0f64; height * width];
    let transform = Transform {
        level,
        matrix,
        reads: DType::F32,
        from: [side * channels, channels].map(|n| 4 * n as i64),
        to: [wide as i64, 1],
        channels: channels as u32,
        kept: kept.map(|n| n as u8),
        epilogue: Some(epilogue.clone()),
    };
    let args = [
        bias.as_ptr(),
        residual.as_ptr(),
        row.as_ptr(),
        out.as_ptr(),
        doubles.as_mut_ptr().cast(),
        std::ptr::null(),
    ];
    let args = args.map(|p| p.cast_mut().cast::<u8>());
    let first = ((above * wide + left) as i64, before as i64);
    let sizes = lens.map(|len| len as usize * 8);
    let args = arguments(&args, &sizes);
    let mut accesses = Accesses::of(Some(&epilogue), &args);
    let accesses = accesses.at(first);
    let numbers: Vec<u64> = accesses.iter().map(|p| *p as u64).collect();
    let call = Call {
        left: x.as_ptr().cast(),
        right: std::ptr::null(),
        out: std::ptr::null_mut(),
        accesses: numbers.as_ptr().cast(),
        taps: std::ptr::null(),
        tiles: 1,
    };
    let read: [&[f32]; 4] = [&x, &bias, &residual, &row];
    let written = (&mut out[..], &mut doubles[..]);
    by.run(transform.clone(), &call, (&read, &numbers), written);
    for (n, (found, double)) in out.iter().zip(&doubles).enumerate() {
        let (position, channel) = (n / width, n % width);
        let inside = |n: usize, from: usize, len: usize| (from..from + len).contains(&n);
        let (i, j) = (position / wide, position % wide);
        let is_written = inside(i, above, kept[0])
            && inside(j, left, kept[1])
            && inside(channel, before, channels);
        let expected = match is_written {
            true => {
                let c = channel - before;
                let sums = transformed(matrix, |i, j| x[(i * side + j) * channels + c]);
                let sum = sums[i - above][j - left];
                let [x, b, r] = [residual[n], bias[channel], row[position]].map(f64::from);
                (sum * x + b).max(sum) - r
            }
            false => 77.0,
        };
        let close = |x: f64| (x - expected).abs() < 1e-2;
        assert!(
            close((*found).into()) && close(*double),
            "{found} at {n} of {transform:?}"
        );
    }
}
