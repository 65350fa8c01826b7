//! Concatenation and repetition of tensors.

use super::args::{DimArg, DimArgs, Int, IntList, axis, known};
use super::pad::PadMode;
use crate::operand::{AsTensor, listed};
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Device, Tensor, is_recording, promote};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Role, Shape, ensure};
use kiln_lazy::body;
use kiln_runtime::Buffer;

/// Concatenates tensors along a dim, in the dtype they promote to. Empty vectors are ignored, as in PyTorch.
#[track_caller]
pub fn cat(tensors: impl IntoIterator<Item: AsTensor>, dim: impl Into<DimArg>) -> Tensor {
    cat_listed(&listed(tensors), dim.into())
}

#[track_caller]
fn cat_listed(tensors: &[Tensor], dim: DimArg) -> Tensor {
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("cat", tensors, |b| {
        let parts = promote_all(b, tensors)?;
        let real = |t: &&Tensor| !(t.ndim() == 1 && t.dims()[0].is(0));
        let Some(example) = parts.iter().find(real) else {
            axis(&parts[0], dim)?;
            return Ok(parts[0].clone());
        };
        let a = axis(example, &dim)?;
        let kept: Vec<Tensor> = match example.ndim() {
            1 => parts.clone(),
            _ => parts.iter().filter(real).cloned().collect(),
        };
        // Tensors of other ranks are refused below.
        let size = |t: &Tensor| t.dims().get(a).or(t.dims().last()).cloned();
        let sizes = kept.iter().filter_map(size);
        let len = sizes.fold(Dim::ZERO, |n, d| &n + &d);
        let mut shape = Shape::from(example.dims());
        shape[a] = len;
        match copy_known_values(b, &kept, a, &shape) {
            Some(joined) => Ok(joined),
            None => b.concat(&kept, a),
        }
    })
}

/// The maximum number of tensors that are always concatenated by the program.
const MAX_RECORDED: usize = 8;

/// Copies more tensors than that into one along an axis, if their values are known. So a growing list needs no new
/// program for each length.
fn copy_known_values(b: &Recorder, parts: &[Tensor], axis: usize, shape: &[Dim]) -> Option<Tensor> {
    if parts.len() <= MAX_RECORDED || is_recording() || body::is_tracing() {
        return None;
    }
    let matches_shape = |t: &Tensor| {
        let mut shape = Shape::from(t.dims());
        (axis < shape.len()).then(|| shape.remove(axis));
        shape
    };
    let mut values = Vec::new();
    for t in parts {
        let is_data = t.names.is_none() && !t.handle.edge.is_some();
        let alike = t.ndim() == parts[0].ndim() && matches_shape(t) == matches_shape(&parts[0]);
        let value = t.handle.node.ready(t.handle.output)?;
        if !is_data || !alike || t.device() != Device::Cpu || value.gpu().is_some() {
            return None;
        }
        values.push(value);
    }
    let size = |d: &Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
    let outer = shape[..axis].iter().map(size).product::<Option<usize>>()?;
    let mut bytes = Vec::new();
    for o in 0..outer {
        for value in &values {
            let source = value.bytes().ok()?;
            let row_bytes = source.len() / outer;
            bytes.extend_from_slice(&source[o * row_bytes..(o + 1) * row_bytes]);
        }
    }
    let shape: Vec<i64> = shape.iter().map(Dim::as_const).collect::<Option<_>>()?;
    let joined = Buffer::from_bytes(parts[0].dtype(), &shape, &bytes).ok()?;
    let (called, loc) = b.call_site();
    let device = Some(Device::Cpu);
    Some(Tensor::leaf(joined, Role::Data, device, loc, called))
}

/// Stacks tensors of one shape along a new dim, in the dtype they promote to.
#[track_caller]
pub fn stack(tensors: impl IntoIterator<Item: AsTensor>, dim: impl Into<Int>) -> Tensor {
    stack_listed(&listed(tensors), dim.into().0)
}

#[track_caller]
fn stack_listed(tensors: &[Tensor], dim: i64) -> Tensor {
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("stack", tensors, |b| {
        let parts = promote_all(b, tensors)?;
        let position = super::args::new_axis(&parts[0], dim)?;
        for t in &parts[1..] {
            ensure!(
                t.dims() == parts[0].dims(),
                "stacks tensors of one shape, not {} and {}",
                parts[0].fact(),
                t.fact()
            );
        }
        let mut shape = Shape::from(parts[0].dims());
        shape.insert(position, parts.len().into());
        if let Some(stacked) = copy_known_values(b, &parts, position, &shape) {
            return Ok(stacked);
        }
        let parts: Vec<Tensor> = parts
            .iter()
            .map(|t| b.unsqueeze(t, position))
            .collect::<Result<_, _>>()?;
        b.concat(&parts, position)
    })
}

fn promote_all(b: &mut Recorder, tensors: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
    ensure!(!tensors.is_empty(), "needs at least one tensor");
    let dtype = promote::common_dtype(tensors)?;
    tensors.iter().map(|t| b.cast(t, dtype)).collect()
}

/// Concatenates along dim 0, with vectors as rows.
#[track_caller]
pub fn vstack(tensors: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let tensors = listed(tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("vstack", tensors, |b| {
        let rows = promote_all(b, tensors)?;
        let rows: Vec<Tensor> = rows
            .iter()
            .map(|t| b.expand_rank(t, 2))
            .collect::<Result<_, _>>()?;
        b.concat(&rows, 0)
    })
}

/// Concatenates along dim 1, or dim 0 for vectors.
#[track_caller]
pub fn hstack(tensors: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let tensors = listed(tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("hstack", tensors, |b| {
        let parts = promote_all(b, tensors)?;
        let parts: Vec<Tensor> = parts
            .iter()
            .map(|t| b.expand_rank(t, 1))
            .collect::<Result<_, _>>()?;
        let along = (parts[0].ndim() > 1) as usize;
        b.concat(&parts, along)
    })
}

impl Recorder {
    /// Prepends dims of size 1 until there are `rank`.
    fn expand_rank(&mut self, t: &Tensor, rank: usize) -> Recorded {
        let missing = rank.saturating_sub(t.ndim());
        let mut shape = Shape::from_elem(Dim::ONE, missing);
        shape.extend(t.dims().iter().cloned());
        self.reshape(t, &shape)
    }

    /// Repeats along each axis a number of times: the whole tensor, or (`within`) each element.
    fn repeat_axes(&mut self, t: &Tensor, times: &[i64], within: bool) -> Recorded {
        let mut split = Shape::new();
        let mut stretched = Shape::new();
        let mut joined = Shape::new();
        for (d, &r) in t.dims().iter().zip(times) {
            ensure!(r >= 0, "can't repeat {r} times");
            let r = Dim::Const(r);
            let (outer, inner) = if within { (d, &r) } else { (&r, d) };
            stretched.extend([outer.clone(), inner.clone()]);
            let (outer, inner) = if within {
                (d, &Dim::ONE)
            } else {
                (&Dim::ONE, d)
            };
            split.extend([outer.clone(), inner.clone()]);
            joined.push(d * &r);
        }
        let x = self.reshape(t, &split)?;
        let x = self.broadcast_to(&x, &stretched)?;
        self.reshape(&x, &joined)
    }
}

#[on_cells]
impl Tensor {
    /// The tensor repeated `sizes[i]` times along each dim. More sizes than dims prepend dims.
    pub fn repeat(&self, sizes: impl Into<IntList>) -> Tensor {
        let sizes = sizes.0;
        compose("repeat", &[self], |b| {
            ensure!(
                sizes.len() >= self.ndim(),
                "{sizes:?} has fewer numbers than {} has dims",
                self.fact()
            );
            let x = b.expand_rank(self, sizes.len())?;
            b.repeat_axes(&x, &sizes, false)
        })
    }

    /// Like [`Tensor::repeat`]; missing leading numbers are 1.
    pub fn tile(&self, dims: impl Into<IntList>) -> Tensor {
        let mut times = dims.0;
        compose("tile", &[self], |b| {
            while times.len() < self.ndim() {
                times.insert(0, 1);
            }
            let x = b.expand_rank(self, times.len())?;
            b.repeat_axes(&x, &times, false)
        })
    }

    /// Each element repeated along a dim, or in the flattened tensor without a dim.
    pub fn repeat_interleave(&self, repeats: impl Into<Int>, dim: impl Into<DimArgs>) -> Tensor {
        compose("repeat_interleave", &[self], |b| {
            let (x, a) = match dim.one_or_all()? {
                Some(_) if self.ndim() == 0 => (b.reshape(self, &[Dim::ONE])?, 0),
                Some(d) => (self.clone(), axis(self, d)?),
                None => (b.reshape(self, &[self.fact().numel()])?, 0),
            };
            let mut times = vec![1; x.ndim()];
            times[a] = repeats;
            b.repeat_axes(&x, &times, true)
        })
    }

    /// Element i repeated `repeats[i]` times along a dim, or in the flattened tensor without a dim.
    pub fn repeat_interleave_each(
        &self,
        repeats: impl Into<IntList>,
        dim: impl Into<DimArgs>,
    ) -> Tensor {
        let repeats = repeats.0;
        compose("repeat_interleave", &[self], |b| {
            let (x, a) = match dim.one_or_all()? {
                Some(_) if self.ndim() == 0 => (b.reshape(self, &[Dim::ONE])?, 0),
                Some(d) => (self.clone(), axis(self, d)?),
                None => (b.reshape(self, &[self.fact().numel()])?, 0),
            };
            let n = super::args::known(&x, a)?;
            ensure!(
                repeats.len() as i64 == n || repeats.len() == 1,
                "{} repeats do not fit {n} elements",
                repeats.len()
            );
            ensure!(
                repeats.iter().all(|r| *r >= 0),
                "can't repeat {repeats:?} times"
            );
            let times = |i: i64| repeats[i as usize % repeats.len()] as usize;
            let room = super::args::check_listable(Some(n), "the repeats");
            let total = room.map(|()| (0..n).map(|i| times(i) as i128).sum::<i128>())?;
            super::args::check_listable(i64::try_from(total).ok(), "the repeats")?;
            let index: Vec<i64> = (0..n)
                .flat_map(|i| std::iter::repeat_n(i, times(i)))
                .collect();
            let index = b.list(&index, &[index.len()], DType::I64)?;
            b.index_select(&x, a, &index)
        })
    }

    /// The elements shifted by `shifts[i]` places along `dims[i]`, with wrap-around. Without dims, the flattened
    /// tensor is shifted.
    pub fn roll(&self, shifts: impl Into<IntList>, dims: impl Into<DimArgs>) -> Tensor {
        compose("roll", &[self], |b| {
            ensure!(!shifts.0.is_empty(), "needs at least one shift");
            if dims.0.is_empty() {
                ensure!(
                    shifts.0.len() == 1,
                    "shifts {:?} need as many dims",
                    shifts.0
                );
                let flat = b.reshape(self, &[self.fact().numel()])?;
                let rolled = roll(b, &flat, 0, shifts.0[0])?;
                return b.reshape(&rolled, self.dims());
            }
            ensure!(
                shifts.0.len() == dims.0.len(),
                "shifts {:?} and dims {:?} differ in number",
                shifts.0,
                dims.0
            );
            let mut x = self.clone();
            for (&shift, dim) in shifts.0.iter().zip(&dims.0) {
                let a = axis(self, dim)?;
                x = roll(b, &x, a, shift)?;
            }
            Ok(x)
        })
    }
}

fn roll(b: &mut Recorder, x: &Tensor, axis: usize, shift: i64) -> Recorded {
    let n = super::args::known(x, axis)?;
    if n == 0 || shift % n == 0 {
        return Ok(x.clone());
    }
    // So that the shift only appears in an offset.
    let twice = b.concat(&[x.clone(), x.clone()], axis)?;
    b.narrow(&twice, axis, n - shift.rem_euclid(n), n)
}

options! {
    /// The options of [`pad_sequence_with`].
    PadSequence () {
        /// True if samples are along dim 0, false if along dim 1 (the default).
        batch_first: bool = false,
        /// The value after the end of a shorter sequence (default 0).
        padding_value: f64 = 0.0,
    }
}

/// Stacks sequences `[l, ..]` of different lengths as `[longest, n, ..]`, padding shorter ones with zeros at the end
/// (`torch.nn.utils.rnn.pad_sequence`).
#[track_caller]
pub fn pad_sequence(sequences: impl IntoIterator<Item: AsTensor>) -> Tensor {
    pad_sequence_with(sequences, PadSequence::new())
}

/// [`pad_sequence`] with all options.
///
/// ```
/// use kiln_tensor::{PadSequence, Tensor, pad_sequence_with};
/// let rows = [Tensor::from([1i64, 2, 3]), Tensor::from([4i64])];
/// let padded = pad_sequence_with(rows, PadSequence::new().batch_first(true).padding_value(-1.0));
/// assert_eq!(padded.to_vec::<i64>()?, [1, 2, 3, 4, -1, -1]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn pad_sequence_with(
    sequences: impl IntoIterator<Item: AsTensor>,
    options: PadSequence,
) -> Tensor {
    let sequences = listed(sequences);
    let sequence_refs: Vec<&Tensor> = sequences.iter().collect();
    let checked = compose("pad_sequence", &sequence_refs, |_| {
        ensure!(!sequences.is_empty(), "there are no sequences");
        for t in &sequences {
            ensure!(
                t.ndim() > 0,
                "a sequence has at least one dim, but one is {}",
                t.fact()
            );
            ensure!(
                t.dims()[1..] == sequences[0].dims()[1..],
                "sequences may differ only in their length, not as {} and {} do",
                sequences[0].fact(),
                t.fact()
            );
            known(t, 0)?;
        }
        Ok(sequences[0].clone())
    });
    if checked.error().is_some() {
        return checked;
    }
    let length = |t: &Tensor| t.dims()[0].as_const().unwrap_or(0);
    let longest = sequences.iter().map(length).max().unwrap_or(0);
    let mode = PadMode::Constant(options.padding_value.into());
    let padded = sequences.iter().map(|t| {
        let mut pad = vec![0; 2 * t.ndim()];
        pad[2 * t.ndim() - 1] = longest - length(t);
        t.pad(pad, mode)
    });
    let padded: Vec<Tensor> = padded.collect();
    stack(&padded, if options.batch_first { 0 } else { 1 })
}
