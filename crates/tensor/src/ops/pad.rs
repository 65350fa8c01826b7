//! Padding.

use super::args::{IntList, check_addressable, known, named_values};
use crate::record::{Recorded, Recorder, compose};
use crate::{Scalar, Tensor, autocast};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Shape, ensure};

/// The values of the padding.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum PadMode {
    /// One number.
    Constant(Scalar),
    /// The elements reflected at the edge, without the edge itself.
    Reflect,
    /// The element at the edge.
    Replicate,
    /// The elements of the opposite end.
    Circular,
}

impl PadMode {
    /// Padding with zeros.
    pub const ZEROS: PadMode = PadMode::Constant(Scalar::Int(0));
}

#[on_cells]
impl Tensor {
    /// Pads the last dims: `pad` holds the sizes before and after the last dim, then those of the dim before it, and
    /// so on. Negative sizes crop. All modes but a constant pad `[n, c, ..]` or `[c, ..]` with 1 to 3 spatial dims.
    pub fn pad(&self, pad: impl Into<IntList>, mode: PadMode) -> Tensor {
        let pad = pad.0;
        let cast = autocast::begin(border_name(mode, pad.len() / 2), &[self]);
        let cast = cast.map(|cast| cast.apply(self));
        let x = cast.as_ref().unwrap_or(self);
        pad_border(x, &pad, mode)
    }
}

/// Returns PyTorch's name for padding `dims` dims in a mode.
fn border_name(mode: PadMode, dims: usize) -> &'static str {
    let names = match mode {
        PadMode::Reflect => ["reflection_pad1d", "reflection_pad2d", "reflection_pad3d"],
        PadMode::Replicate => [
            "replication_pad1d",
            "replication_pad2d",
            "replication_pad3d",
        ],
        _ => return "pad",
    };
    names.get(dims.wrapping_sub(1)).copied().unwrap_or("pad")
}

#[track_caller]
fn pad_border(t: &Tensor, pad: &[i64], mode: PadMode) -> Tensor {
    compose("pad", &[t], |b| {
        let n = t.ndim();
        ensure!(
            pad.len().is_multiple_of(2) && pad.len() / 2 <= n,
            "{pad:?} must hold two sizes per dim for at most the {n} dims of {}",
            t.fact()
        );
        let sides: Vec<(usize, i64, i64)> = pad
            .chunks(2)
            .enumerate()
            .map(|(i, p)| (n - 1 - i, p[0], p[1]))
            .collect();
        if let PadMode::Constant(value) = mode {
            return pad_constant(b, t, &sides, value);
        }
        let spatial = sides.len();
        ensure!(
            (1..=3).contains(&spatial) && (n == spatial + 1 || n == spatial + 2),
            "{pad:?} pads {spatial} dims, which needs a tensor of {} or {} dims, not {}",
            spatial + 1,
            spatial + 2,
            t.fact()
        );
        let mut x = t.clone();
        for (axis, low, high) in sides {
            x = pad_border_axis(b, &x, axis, low, high, mode)?;
        }
        Ok(x)
    })
}

fn pad_constant(
    b: &mut Recorder,
    x: &Tensor,
    sides: &[(usize, i64, i64)],
    value: Scalar,
) -> Recorded {
    let mut cropped = x.clone();
    let mut low = Shape::from_elem(Dim::ZERO, x.ndim());
    let mut high = low.clone();
    for &(axis, l, h) in sides {
        cropped = crop(b, &cropped, axis, l, h)?;
        low[axis] = l.max(0).into();
        high[axis] = h.max(0).into();
    }
    for &(axis, l, h) in sides {
        check_padded_size(&cropped, axis, l, h)?;
    }
    let padded = b.pad_all(&cropped, low, high, value)?;
    check_addressable(padded.dims(), x.dtype())?;
    Ok(padded)
}

/// Returns an error if a padded axis is longer than an i64 counts.
fn check_padded_size(x: &Tensor, axis: usize, low: i64, high: i64) -> Result<(), OpError> {
    let len = x.dims()[axis].as_const().unwrap_or(0);
    let padded = len
        .checked_add(low.max(0))
        .and_then(|n| n.checked_add(high.max(0)));
    ensure!(
        padded.is_some(),
        "padding of {low} and {high} makes dim {axis} of {} too long",
        x.fact()
    );
    Ok(())
}

/// Crops an axis by its negative padding.
fn crop(b: &mut Recorder, x: &Tensor, axis: usize, low: i64, high: i64) -> Recorded {
    let (leading, trailing) = (low.saturating_neg().max(0), high.saturating_neg().max(0));
    if leading == 0 && trailing == 0 {
        return Ok(x.clone());
    }
    let len = &x.dims()[axis] - &Dim::Const(leading.saturating_add(trailing));
    ensure!(
        len.as_const().is_none_or(|n| n >= 0),
        "cutting {leading} and {trailing} off leaves nothing of dim {axis} of {}",
        x.fact()
    );
    b.narrow(x, axis, leading, len)
}

fn pad_border_axis(
    b: &mut Recorder,
    x: &Tensor,
    axis: usize,
    low: i64,
    high: i64,
    mode: PadMode,
) -> Recorded {
    let x = crop(b, x, axis, low, high)?;
    let (low, high) = (low.max(0), high.max(0));
    if low == 0 && high == 0 {
        return Ok(x);
    }
    let n = known(&x, axis)?;
    check_padded_size(&x, axis, low, high)?;
    let room = match mode {
        PadMode::Reflect => n - 1,
        PadMode::Circular => n,
        _ => i64::MAX * (n > 0) as i64,
    };
    ensure!(
        low <= room && high <= room,
        "padding of {low} and {high} is larger than the {room} elements that dim {axis} of {} has for it",
        x.fact()
    );
    let piece = |b: &mut Recorder, start: i64, len: i64| -> Recorded {
        match mode {
            PadMode::Reflect => {
                let segment = b.narrow(&x, axis, start, len)?;
                b.reversed(&segment, axis)
            }
            PadMode::Replicate => {
                let edge = b.narrow(&x, axis, start, 1i64)?;
                let mut shape = Shape::from(x.dims());
                shape[axis] = len.into();
                b.broadcast_to(&edge, &shape)
            }
            _ => b.narrow(&x, axis, start, len),
        }
    };
    let (leading, trailing) = match mode {
        PadMode::Reflect => (1, n - 1 - high),
        PadMode::Replicate => (0, n - 1),
        _ => (n - low, 0),
    };
    let mut parts = Vec::new();
    if low > 0 {
        parts.push(piece(b, leading, low)?);
    }
    parts.push(x.clone());
    if high > 0 {
        parts.push(piece(b, trailing, high)?);
    }
    let y = b.concat(&parts, axis)?;
    check_addressable(y.dims(), y.dtype())?;
    Ok(y)
}

named_values! {
    PadMode, "padding mode":
    "constant" => ZEROS,
    "reflect" => Reflect,
    "replicate" => Replicate,
    "circular" => Circular,
}
