//! Reductions of elements.

use half::{bf16, f16};

/// Returns the reduction of equally long operands. Extremes leave NaN out, as NCCL's do.
pub(super) fn reduce(dtype: usize, op: usize, operands: &[&[u8]]) -> Vec<u8> {
    match dtype {
        0 => integers::<1>(op, operands, true),
        1 => integers::<1>(op, operands, false),
        2 => integers::<4>(op, operands, true),
        3 => integers::<4>(op, operands, false),
        4 => integers::<8>(op, operands, true),
        5 => integers::<8>(op, operands, false),
        6 => floats(
            op,
            operands,
            |b| f16::from_le_bytes(b).to_f64(),
            |x| f16::from_f64(x).to_le_bytes(),
        ),
        7 => floats(
            op,
            operands,
            |b| f32::from_le_bytes(b).into(),
            |x| (x as f32).to_le_bytes(),
        ),
        8 => floats(op, operands, f64::from_le_bytes, f64::to_le_bytes),
        _ => floats(
            op,
            operands,
            |b| bf16::from_le_bytes(b).to_f64(),
            |x| bf16::from_f64(x).to_le_bytes(),
        ),
    }
}

fn columns<const N: usize>(operands: &[&[u8]], f: impl Fn(&[[u8; N]]) -> [u8; N]) -> Vec<u8> {
    let elements: Vec<&[[u8; N]]> = operands.iter().map(|x| x.as_chunks().0).collect();
    let column = |i: usize| elements.iter().map(|x| x[i]).collect::<Vec<_>>();
    (0..elements[0].len()).flat_map(|i| f(&column(i))).collect()
}

fn integers<const N: usize>(op: usize, operands: &[&[u8]], signed: bool) -> Vec<u8> {
    let wide = |bytes: &[u8; N]| {
        let is_negative = signed && bytes[N - 1] >= 0x80;
        let mut wide = [if is_negative { 0xff } else { 0 }; 16];
        wide[..N].copy_from_slice(bytes);
        i128::from_le_bytes(wide)
    };
    columns(operands, |column| {
        let numbers = column.iter().map(wide);
        let n = column.len() as i128;
        let result = match op {
            0 => numbers.sum(),
            1 => numbers.fold(1, i128::wrapping_mul),
            2 => numbers.max().unwrap_or_default(),
            3 => numbers.min().unwrap_or_default(),
            _ => numbers.sum::<i128>() / n,
        };
        let mut bytes = [0; N];
        bytes.copy_from_slice(&result.to_le_bytes()[..N]);
        bytes
    })
}

fn floats<const N: usize>(
    op: usize,
    operands: &[&[u8]],
    read: impl Fn([u8; N]) -> f64,
    write: impl Fn(f64) -> [u8; N],
) -> Vec<u8> {
    columns(operands, |column| {
        let numbers = column.iter().map(|b| read(*b));
        let n = column.len() as f64;
        write(match op {
            0 => numbers.sum(),
            1 => numbers.product(),
            2 => numbers.fold(f64::NAN, f64::max),
            3 => numbers.fold(f64::NAN, f64::min),
            _ => numbers.sum::<f64>() / n,
        })
    })
}
