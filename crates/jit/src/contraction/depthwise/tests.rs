//! Tests of depthwise tiles against sums in f64, on the processor and in an interpreter of emitted code.

use super::{Depthwise, max_depthwise_rows};
use crate::contraction::tests::{By, Rng, Whole, arguments, levels, stored, work};
use crate::contraction::tile::Call;
use crate::contraction::{Accesses, Kernel, RegisterEpilogue, RightSide, Rows, Tile};
use kiln_base::{DType, Features, Instruction};
use kiln_kernel::bind::bind;
use kiln_plan::schedule::lanes;
use std::sync::Arc;

/// Tests a tile of random sizes, with or without an epilogue.
fn a_tile<T: Whole>(level: Features, rng: &mut Rng, (worked, by): (bool, By)) {
    let (size, lanes) = (T::DTYPE.size(), usize::from(lanes(level, T::DTYPE)));
    let (taps, stride, dilation) = (1 + rng.below(11), 1 + rng.below(3), 1 + rng.below(3));
    let rows = 1 + rng.below(max_depthwise_rows(level, T::DTYPE, taps as u32).into());
    let columns = 1 + rng.below(3 * lanes + 1);
    // The positions of a line. The taps of the first and the last rows may be outside.
    let reach = (rows - 1) * stride + (taps - 1) * dilation + 1;
    let (before, behind) = (rng.below(reach), rng.below(reach));
    let edges = rng.below(2) == 0;
    let inside = |row: usize, tap: usize| {
        let at = row * stride + tap * dilation;
        !edges || at >= before && at + behind < reach
    };
    let ranges = (0..rows).map(|row| {
        let from = (0..taps).find(|t| inside(row, *t)).unwrap_or(taps);
        let to = (from..taps).find(|t| !inside(row, *t)).unwrap_or(taps);
        [from as u32, to as u32]
    });
    let inside_taps: Vec<[u32; 2]> = if edges { ranges.collect() } else { vec![] };
    let apart = columns + rng.below(3);
    let (padded, adds) = (rng.below(2) == 0, !worked && rng.below(2) == 0);
    // If weights are not padded, only the columns may be read.
    let (panel, padding) = match padded {
        true => (columns.next_multiple_of(lanes), rng.below(3)),
        false => (columns, 0),
    };
    let lines = rng.below(4);
    // Elements outside do not exist: lines start after them, and end before them.
    let (first, last) = match edges {
        true => (before, (reach - behind).max(before)),
        false => (0, reach),
    };
    let line = (last - first) * apart;
    // With VEX, 16-bit elements are read only in whole vectors.
    let by_vectors = level != Features::AVX2 || columns.is_multiple_of(lanes);
    let reads = match T::DTYPE {
        DType::F32 if by_vectors => [DType::F32, DType::F16, DType::BF16][rng.below(3)],
        dtype => dtype,
    };
    let a: Vec<T> = rng.numbers(lines * line);
    let (first_of_all, stored) = stored(&a, reads);
    let b: Vec<T> = rng.numbers((lines + padding) * (taps + 1) * panel);
    let weights = |l: usize| (b.as_ptr() as usize + l * (taps + 1) * panel * size) as u64;
    let mut list = vec![];
    for l in 0..lines {
        let at = first_of_all as usize + l * line * reads.size();
        list.extend([
            at.wrapping_sub(first * apart * reads.size()) as u64,
            weights(l),
        ]);
    }
    list.push(0);
    list.extend((lines..lines + padding).map(weights));
    list.push(0);
    let out_pitch = columns + rng.below(5);
    let mut out: Vec<T> = rng.numbers(rows * out_pitch);
    let mut wide = vec![77.0; rows * out_pitch];
    let unwritten = out.clone();
    // An epilogue over a whole matrix as wide as the result.
    let all = (rows * out_pitch) as i64;
    let program = work(rows as i64, out_pitch as i64, rng.below(2) == 0);
    let lens = [out_pitch as i64, all, rows as i64, all, all, all];
    let bound = bind(&program, &[], &lens).unwrap();
    let epilogue =
        worked.then(|| Arc::new(RegisterEpilogue::of(&bound, out_pitch as i64, level).unwrap()));
    let bias: Vec<T> = rng.numbers(out_pitch);
    let residual: Vec<T> = rng.numbers(rows * out_pitch);
    let of_row: Vec<T> = rng.numbers(rows);
    let args = [
        bias.as_ptr(),
        residual.as_ptr(),
        of_row.as_ptr(),
        out.as_mut_ptr(),
    ];
    let mut args: Vec<*mut u8> = args.map(|p| p.cast_mut().cast()).to_vec();
    args.extend([wide.as_mut_ptr().cast(), std::ptr::null_mut()]);
    let sizes = lens.map(|len| len as usize * 8);
    let args = arguments(&args, &sizes);
    let mut accesses = Accesses::of(epilogue.as_deref(), &args);
    let both = list.len();
    list.extend(accesses.at((0, 0)).iter().map(|p| *p as u64));
    let right = RightSide {
        padded,
        ..RightSide::of_matrix((panel * size) as i64)
    };
    let (instruction, of) = (
        Instruction::of_numbers(T::DTYPE),
        Rows::of_matrix(rows as i64, 0),
    );
    let each = Depthwise {
        tile: Tile {
            taps: taps as u32,
            out: (out_pitch * size) as i64,
            adds,
            epilogue,
            ..Tile::new((level, instruction), of, columns as i64, right)
        },
        stride: stride as u32,
        dilation: dilation as u32,
        reads,
        position: (apart * reads.size()) as i64,
        inside: inside_taps,
    };
    let call = Call {
        left: list.as_ptr().cast(),
        right: std::ptr::null(),
        out: out.as_mut_ptr().cast(),
        accesses: list[both..].as_ptr().cast(),
        taps: std::ptr::null(),
        tiles: 1,
    };
    let read: [&[T]; 5] = [&stored, &b, &bias, &residual, &of_row];
    by.run(each.clone(), &call, (&read, &list), (&mut out, &mut wide));
    for (i, found) in out.iter().enumerate() {
        let (r, j) = (i / out_pitch, i % out_pitch);
        if j >= columns {
            assert_eq!((found.value(), wide[i]), (unwritten[i].value(), 77.0));
            continue;
        }
        let mut sum = if adds { unwritten[i].value() } else { 0.0 };
        for l in 0..lines {
            for t in (0..taps).filter(|t| inside(r, *t)) {
                let at = l * line + (r * stride + t * dilation - first) * apart + j;
                sum += a[at].value() * b[(l * (taps + 1) + t) * panel + j].value();
            }
        }
        for l in lines..lines + padding {
            sum += b[(l * (taps + 1) + taps) * panel + j].value();
        }
        if worked {
            let (x, bias) = (residual[i].value(), bias[j].value());
            sum = (sum * x + bias).max(sum) - of_row[r].value();
            assert_eq!(wide[i], sum, "row {r}, column {j} of {each:?}");
        }
        assert_eq!(found.value(), sum, "row {r}, column {j} of {each:?}");
    }
}

#[test]
fn tiles_with_a_filter_a_channel_are_sums_of_products() {
    for level in levels() {
        let mut rng = Rng(u64::from(level.bits()) + 21);
        for _ in 0..500 {
            a_tile::<f32>(level, &mut rng, (false, By::Processor));
            a_tile::<f64>(level, &mut rng, (false, By::Processor));
            if level != Features::BASELINE {
                a_tile::<f32>(level, &mut rng, (true, By::Processor));
            }
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn they_touch_nothing_but_their_operands() {
    for level in [Features::AVX2, Features::AVX512] {
        let mut rng = Rng(u64::from(level.bits()) + 22);
        for _ in 0..60 {
            a_tile::<f32>(level, &mut rng, (false, By::Interpreter));
            a_tile::<f64>(level, &mut rng, (false, By::Interpreter));
            a_tile::<f32>(level, &mut rng, (true, By::Interpreter));
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn distances_that_no_instruction_holds_are_walked_in_portable_code() {
    let mut rng = Rng(5);
    for (stride, taps) in [(1 << 30, 1), (1, 65)] {
        let x: Vec<f32> = rng.numbers(taps as usize * 8);
        let mut out = [0.0f32; 8];
        let list = [x.as_ptr() as u64, x.as_ptr() as u64, 0, 0];
        let by = (Features::AVX2, Instruction::Vfmadd231ps);
        let tile = Tile {
            taps,
            out: 32,
            ..Tile::new(by, Rows::of_matrix(1, 0), 8, RightSide::of_panel(32))
        };
        let each = Depthwise {
            tile,
            stride,
            dilation: 1,
            reads: DType::F32,
            position: 32,
            inside: vec![],
        };
        assert!(!Kernel::of(each.clone()).unwrap().is_emitted());
        let call = Call {
            left: list.as_ptr().cast(),
            right: std::ptr::null(),
            out: out.as_mut_ptr().cast(),
            accesses: std::ptr::null(),
            taps: std::ptr::null(),
            tiles: 1,
        };
        let read: [&[f32]; 1] = [&x];
        By::Processor.run(each, &call, (&read, &list), (&mut out, &mut []));
        for (j, found) in out.iter().enumerate() {
            let squares = (0..taps as usize).map(|t| x[t * 8 + j] * x[t * 8 + j]);
            assert_eq!(*found, squares.sum::<f32>());
        }
    }
}
