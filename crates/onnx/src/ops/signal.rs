//! Transforms of signals, as products with matrices of cosines and sines.

use super::Record;
use super::shape::pad_constant;
use crate::call::{Call, Results, axis, known_size, single};
use crate::fault::invalid;
use kiln_base::Dim;
use kiln_tensor::{DType, Result, Scalar, Tensor, stack};
use std::f64::consts::PI;

/// The longest transform: its matrices have the square of its length.
const MAX_LENGTH: i64 = 1 << 13;

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "DFT" => dft,
        "MelWeightMatrix" => mel,
        "STFT" => stft,
        _ => return None,
    })
}

/// Returns cosines and sines of 2π · i · k / n, `[rows, columns]`.
fn cosines_and_sines(rows: i64, columns: i64, n: i64, dtype: DType) -> (Tensor, Tensor) {
    let angle = |i: i64, k: i64| 2.0 * PI * ((i * k) % n) as f64 / n as f64;
    let table = |f: fn(f64) -> f64| {
        let values: Vec<f64> = (0..rows * columns)
            .map(|flat| f(angle(flat / columns, flat % columns)))
            .collect();
        Tensor::from_slice(&values, [rows, columns]).to_dtype(dtype)
    };
    (table(f64::cos), table(f64::sin))
}

/// The real and imaginary parts of the transform of the last dim, of which `kept` frequencies are kept.
fn transform(
    real: &Tensor,
    imaginary: Option<&Tensor>,
    kept: i64,
    inverse: bool,
) -> Result<(Tensor, Tensor)> {
    let n = real.dims().last().and_then(Dim::as_const);
    let n = n.filter(|n| (1..=MAX_LENGTH).contains(n));
    let n = n.ok_or_else(|| {
        invalid(format!(
            "transforms are at most {MAX_LENGTH} long, and not empty"
        ))
    })?;
    let (cos, sin) = cosines_and_sines(n, kept, n, real.dtype());
    let sin = if inverse { sin } else { -sin };
    let (re, im) = (real.matmul(&cos), real.matmul(&sin));
    let (re, im) = match imaginary {
        Some(i) => (re - i.matmul(&sin), im + i.matmul(&cos)),
        None => (re, im),
    };
    Ok(match inverse {
        true => (re / n as f64, im / n as f64),
        false => (re, im),
    })
}

fn dft(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let rank = x.ndim();
    let (inverse, onesided) = (c.flag("inverse", false)?, c.flag("onesided", false)?);
    let dim = match (c.version >= 20, c.integers(2)?) {
        (true, Some(list)) => axis(list.first().copied().unwrap_or(-2), rank)?,
        (true, None) => axis(-2, rank)?,
        (false, _) => c.axis("axis", 1, rank)?,
    };
    let component_count = x.dims()[rank - 1].as_const();
    let size = known_size(&x, dim)?;
    if dim + 1 == rank || !matches!(component_count, Some(1 | 2)) {
        return Err(invalid("the last dim holds the parts of numbers, 1 or 2"));
    }
    let default = if inverse && onesided {
        2 * (size - 1)
    } else {
        size
    };
    let length = c.first_integer(1)?.unwrap_or(default);
    if !(1..=MAX_LENGTH).contains(&length) {
        return Err(invalid(format!(
            "transforms are at most {MAX_LENGTH} long, and not empty"
        )));
    }
    let moved = |t: Tensor| t.movedim(dim as i64, -1);
    let real = moved(x.select(-1, 0));
    let imaginary = (component_count == Some(2)).then(|| moved(x.select(-1, 1)));
    let fitted =
        |t: &Tensor, n: i64| pad_constant(t, &[t.ndim() - 1], &[0], &[n - size], Scalar::Int(0));
    let restore = |t: Tensor| t.movedim(-1, dim as i64).unsqueeze(-1);
    if inverse && onesided {
        // The other half mirrors the given one.
        let half = length / 2 + 1;
        let (re, im) = (fitted(&real, half), imaginary.map(|t| fitted(&t, half)));
        let (cos, sin) = cosines_and_sines(half, length, length, x.dtype());
        let weight = |k: i64| if k == 0 || 2 * k == length { 1.0 } else { 2.0 };
        let weights: Vec<f64> = (0..half).map(|k| weight(k) / length as f64).collect();
        let weights = Tensor::from(weights).to_dtype(x.dtype());
        let y = (re * &weights).matmul(cos);
        let y = match im {
            Some(im) => y - (im * weights).matmul(sin),
            None => y,
        };
        return single(restore(y));
    }
    let kept = if onesided { length / 2 + 1 } else { length };
    let (re, im) = transform(
        &fitted(&real, length),
        imaginary.map(|t| fitted(&t, length)).as_ref(),
        kept,
        inverse,
    )?;
    single(stack([re, im].map(|t| t.movedim(-1, dim as i64)), -1))
}

fn stft(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let hop = c
        .first_integer(1)?
        .filter(|h| *h > 0)
        .ok_or_else(|| invalid("the step must be positive"))?;
    let window = c.optional(2)?;
    let component_count = match x.dims() {
        [_, _] => 1,
        [_, _, component_count] => component_count.as_const().unwrap_or(0),
        _ => return Err(invalid(format!("needs 2 or 3 dims, not {}", x.ndim()))),
    };
    let signal = known_size(&x, 1)?;
    let own = window
        .as_ref()
        .and_then(|w| w.dims().first().and_then(Dim::as_const));
    let length = c.first_integer(3)?.or(own).unwrap_or(signal);
    if length < 1 || length > signal || own.is_some_and(|n| n != length) {
        return Err(invalid(format!(
            "frames of {length} don't fit a signal of {signal}"
        )));
    }
    let frames = |t: Tensor| {
        let frames = t.unfold(1, kiln_tensor::Window::new(length).step(hop));
        match &window {
            Some(w) => frames * w,
            None => frames,
        }
    };
    let component = |i: i64| match x.ndim() {
        3 => x.select(2, i),
        _ => x.clone(),
    };
    let imaginary = (component_count == 2).then(|| frames(component(1)));
    let onesided = c.flag("onesided", true)?;
    let kept = if onesided { length / 2 + 1 } else { length };
    let (re, im) = transform(&frames(component(0)), imaginary.as_ref(), kept, false)?;
    single(stack([re, im], -1))
}

/// The weights of triangular filters that are equally spaced on the mel scale.
fn mel(c: &Call) -> Results {
    let number = |i: usize| {
        let n = c.first_number(i)?;
        n.ok_or_else(|| invalid(format!("input {i} is missing")))
    };
    let (bins, length, rate) = (number(0)? as i64, number(1)? as i64, number(2)?);
    let (low, high) = (number(3)?, number(4)?);
    if !(1..=1 << 16).contains(&bins) || !(1..=1 << 20).contains(&length) || rate <= 0.0 {
        return Err(invalid("the numbers of bins and the rate must be positive"));
    }
    let spectrum = length / 2 + 1;
    let to_mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (to_mel(high) - to_mel(low)) / (bins + 2) as f64;
    let edge = |i: i64| {
        let hertz = 700.0 * (10f64.powf((to_mel(low) + step * i as f64) / 2595.0) - 1.0);
        (((length + 1) as f64 * hertz) / rate).floor() as i64
    };
    let mut weights = vec![0f64; (spectrum * bins) as usize];
    for b in 0..bins {
        let (start, centre, end) = (edge(b), edge(b + 1), edge(b + 2));
        let mut set = |k: i64, w: f64| {
            if (0..spectrum).contains(&k) {
                weights[(k * bins + b) as usize] = w;
            }
        };
        if start == centre {
            set(centre, 1.0);
        }
        (start..=centre)
            .filter(|_| centre > start)
            .for_each(|k| set(k, (k - start) as f64 / (centre - start) as f64));
        (centre..end)
            .filter(|_| end > centre)
            .for_each(|k| set(k, (end - k) as f64 / (end - centre) as f64));
    }
    let dtype = c.dtype("output_datatype", DType::F32)?;
    single(Tensor::from_slice(&weights, [spectrum, bins]).to_dtype(dtype))
}
