//! Batches of sequences of different lengths (`torch.nn.utils.rnn`).

use crate::Output;
use crate::SOURCE;
use crate::layer::fact;
use kiln_tensor::{
    AsTensor, DType, Error, ErrorKind, Nest, PadSequence, Result, Tensor, on_behalf_of_caller,
    options, pad_sequence, with_error_note,
};

/// A batch of sequences of different lengths (`torch.nn.utils.rnn.PackedSequence`). [`LSTM`](crate::LSTM),
/// [`GRU`](crate::GRU) and [`RNN`](crate::RNN) take one in place of a tensor, and give one: each sequence ends at its
/// length, and so do its states. Sequences need no order, and their lengths may differ from run to run of a compiled
/// function.
///
/// ```
/// use kiln_nn::{Forward, LSTM, pack_padded_sequence, pad_packed_sequence};
/// use kiln_tensor::{DType, Tensor};
/// let lstm = LSTM::new(4, 6)?;
/// let (x, lengths) = (Tensor::rand([5, 3, 4], DType::F32), Tensor::from([2i64, 5, 3]));
/// let packed = pack_padded_sequence(&x, &lengths);
/// let (packed, (h, _)) = lstm.call(packed);
/// let (y, lengths) = pad_packed_sequence(&packed);
/// assert_eq!((y.shape()?, h.shape()?), (vec![5, 3, 6], vec![1, 3, 6]));
/// assert_eq!(y.i((2.., 0)).to_vec::<f32>()?, [0.0; 18]);
/// assert_eq!(lengths.to_vec::<i64>()?, [2, 5, 3]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Nest)]
pub struct PackedSequence<T = Tensor> {
    /// The steps of all sequences, 0 behind the end of each: `[l, n, ..]`.
    pub data: T,
    /// The lengths, i64 `[n]`, from 1 to l.
    pub lengths: T,
}

impl Output for PackedSequence {
    fn of_error(e: &Error) -> PackedSequence {
        PackedSequence {
            data: Tensor::of_error(e),
            lengths: Tensor::of_error(e),
        }
    }
}

options! {
    /// The options of [`pack_padded_sequence_with`].
    PackPaddedSequence () {
        /// True if the batch is in dim 0 (default no: in dim 1).
        batch_first: bool = false,
    }
}

/// Packs a batch `[l, n, ..]` of padded sequences with these lengths, integers `[n]`
/// (`torch.nn.utils.rnn.pack_padded_sequence`). What stands behind the end of a sequence is never read. A length
/// outside 1..=l is a data error.
#[track_caller]
pub fn pack_padded_sequence(input: impl AsTensor, lengths: impl AsTensor) -> PackedSequence {
    pack_padded_sequence_with(input, lengths, PackPaddedSequence::new())
}

/// [`pack_padded_sequence`] of a batch in dim 0.
#[track_caller]
pub fn pack_padded_sequence_with(
    input: impl AsTensor,
    lengths: impl AsTensor,
    options: PackPaddedSequence,
) -> PackedSequence {
    let (input, lengths) = (&input.as_tensor(), &lengths.as_tensor());
    let packed = on_behalf_of_caller(SOURCE, || pack(input, lengths, options.batch_first));
    packed.unwrap_or_else(|e| PackedSequence::of_error(&e))
}

/// Packs sequences `[l, ..]` (`torch.nn.utils.rnn.pack_sequence`).
///
/// ```
/// use kiln_nn::{pack_sequence, unpack_sequence};
/// use kiln_tensor::Tensor;
/// let packed = pack_sequence([Tensor::from([1.0f32, 2.0]), Tensor::from([3.0f32])]);
/// assert_eq!(unpack_sequence(&packed)?[1].to_vec::<f32>()?, [3.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn pack_sequence(sequences: impl IntoIterator<Item: AsTensor>) -> PackedSequence {
    let sequences = sequences.into_iter().map(|t| t.as_tensor().into_owned());
    let sequences: Vec<Tensor> = sequences.collect();
    let data = pad_sequence(&sequences);
    // A sequence without a known length is an error of `data`.
    let length = |t: &Tensor| t.dims().first().and_then(|d| d.as_const()).unwrap_or(0);
    let lengths: Vec<i64> = sequences.iter().map(length).collect();
    pack_padded_sequence(data, Tensor::from(lengths))
}

/// The padded sequences `[l, n, ..]` of a batch, and their lengths (`torch.nn.utils.rnn.pad_packed_sequence`). `l` is
/// that of the batch that was packed, even if no sequence is as long.
#[track_caller]
pub fn pad_packed_sequence(sequence: &PackedSequence) -> (Tensor, Tensor) {
    pad_packed_sequence_with(sequence, PadSequence::new())
}

/// [`pad_packed_sequence`] with all options.
#[track_caller]
pub fn pad_packed_sequence_with(
    sequence: &PackedSequence,
    options: PadSequence,
) -> (Tensor, Tensor) {
    let padded = on_behalf_of_caller(SOURCE, || {
        let padded = sequence.fill_padding(options.padding_value);
        if options.batch_first {
            padded.transpose(0, 1)
        } else {
            padded
        }
    });
    (padded, sequence.lengths.clone())
}

/// The sequences of a padded batch `[l, n, ..]` (`torch.nn.utils.rnn.unpad_sequence`). Reads the lengths.
///
/// # Errors
/// If the lengths can't be read or do not fit, or inside `compile`.
#[track_caller]
pub fn unpad_sequence(padded: impl AsTensor, lengths: impl AsTensor) -> Result<Vec<Tensor>> {
    unpack_sequence(&pack_padded_sequence(padded, lengths))
}

/// The sequences of a batch (`torch.nn.utils.rnn.unpack_sequence`). Reads the lengths.
///
/// # Errors
/// If the lengths can't be read, or inside `compile`.
#[track_caller]
pub fn unpack_sequence(sequence: &PackedSequence) -> Result<Vec<Tensor>> {
    let lengths = sequence.lengths.to_vec::<i64>()?;
    let numbered = lengths.into_iter().enumerate();
    Ok(numbered
        .map(|(i, length)| sequence.data.select(1, i as i64).narrow(0, 0, length))
        .collect())
}

fn pack(input: &Tensor, lengths: &Tensor, batch_first: bool) -> Result<PackedSequence> {
    input.check()?;
    lengths.check()?;
    let fits = input.ndim() >= 2
        && lengths.ndim() == 1
        && lengths.dtype().is_int()
        && lengths.dims()[0] == input.dims()[1 - batch_first as usize];
    if !fits {
        let batch = if batch_first {
            "[n, l, ..]"
        } else {
            "[l, n, ..]"
        };
        let (input, lengths) = (fact(input), fact(lengths));
        let message =
            format!("takes sequences {batch} and integers [n], not {input} and {lengths}");
        return Err(Error::at_caller(
            ErrorKind::Op,
            "pack_padded_sequence",
            message,
        ));
    }
    let data = if batch_first {
        input.transpose(0, 1)
    } else {
        input.clone()
    };
    let lengths = lengths.to_dtype(DType::I64).to(data.device());
    // Looked up in their range, so that others are errors in data.
    let lengths = with_error_note(
        "in pack_padded_sequence: lengths are 1 to that of the batch",
        || step_numbers(&data).flatten(0).index_select(0, lengths - 1),
    );
    let packed = PackedSequence { data, lengths };
    let data = packed.fill_padding(0.0);
    Ok(PackedSequence { data, ..packed })
}

/// The number of each step, from 1: i64 `[l, 1]`.
fn step_numbers(data: &Tensor) -> Tensor {
    // From the data, since l may be symbolic.
    let row = data.detach().flatten(1).narrow(1, 0, 1);
    row.zeros_like().to_dtype(DType::I64).add(1).cumsum(0)
}

impl PackedSequence {
    /// True where a sequence has a step: `[l, n]`.
    pub(super) fn mask(&self) -> Tensor {
        step_numbers(&self.data).le(self.lengths.unsqueeze(0))
    }

    /// The data with a number behind the end of each sequence.
    fn fill_padding(&self, number: f64) -> Tensor {
        let mut mask = self.mask();
        for _ in 2..self.data.ndim() {
            mask = mask.unsqueeze(-1);
        }
        self.data.masked_fill(mask.logical_not(), number)
    }
}
