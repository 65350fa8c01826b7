//! Collating samples into batches.

use half::{bf16, f16};
use kiln_base::Loc;
use kiln_tensor::{Error, ErrorKind, Result, Tensor};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Samples that can be collated into a batch: PyTorch's `default_collate`.
///
/// | samples | batch |
/// |---|---|
/// | tensors of one shape and dtype | a tensor with one dim more, in front |
/// | numbers and bools | a vector of their dtype (`usize`: i64) |
/// | strings | a `Vec` of them |
/// | tuples, arrays, `Vec`s of one length | the same, with a batch in place of each part |
/// | `BTreeMap`s with the same keys | a map of batches |
///
/// Batches hold values without autograd history. Implement this trait to make a struct a sample, by taking its fields
/// apart; for one loader, use [`crate::LoaderBuilder::collate`].
pub trait Collate: Sized {
    /// The type of a batch of these samples.
    type Batch: Send + 'static;

    /// Collates these samples, of which there is at least one.
    ///
    /// # Errors
    /// If the samples don't fit together; the message says which and how.
    #[track_caller]
    fn collate(samples: Vec<Self>) -> Result<Self::Batch>;
}

fn collate_error(message: String) -> Error {
    // The loader adds the user's line.
    Error::new(ErrorKind::Value, "collate", message, Loc::UNKNOWN)
}

impl Collate for Tensor {
    type Batch = Tensor;
    fn collate(samples: Vec<Tensor>) -> Result<Tensor> {
        let Some(example) = samples.first() else {
            return Err(collate_error("there is no sample to stack".into()));
        };
        let (dtype, shape) = (example.dtype(), example.shape()?);
        for (n, t) in samples.iter().enumerate() {
            let actual = (t.dtype(), t.shape()?);
            if actual != (dtype, shape.clone()) {
                return Err(collate_error(format!(
                    "sample 0 is {dtype}{shape:?}, sample {n} is {}{:?}; samples of a batch must agree",
                    actual.0, actual.1
                )));
            }
        }
        let mut batch = vec![samples.len()];
        batch.extend(shape);
        Tensor::filled(dtype, batch, |out| {
            let mut remaining = out;
            for t in &samples {
                remaining = t.with_bytes(|bytes| {
                    let (chunk, tail) = std::mem::take(&mut remaining).split_at_mut(bytes.len());
                    chunk.copy_from_slice(bytes);
                    tail
                })?;
            }
            Ok(())
        })
    }
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl Collate for $t {
            type Batch = Tensor;
            fn collate(samples: Vec<$t>) -> Result<Tensor> {
                Ok(Tensor::from(samples).check()?.clone())
            }
        }
    )*};
}
numbers!(bool u8 i8 i16 i32 i64 u16 u32 u64 f16 bf16 f32 f64);

impl Collate for usize {
    type Batch = Tensor;
    fn collate(samples: Vec<usize>) -> Result<Tensor> {
        let index = |i: usize| {
            i64::try_from(i).map_err(|_| collate_error(format!("{i} does not fit into an i64")))
        };
        let indices: Result<Vec<i64>> = samples.into_iter().map(index).collect();
        Ok(Tensor::from(indices?))
    }
}

macro_rules! listed {
    ($($t:ty),*) => {$(
        impl Collate for $t {
            type Batch = Vec<$t>;
            fn collate(samples: Vec<$t>) -> Result<Vec<$t>> {
                Ok(samples)
            }
        }
    )*};
}
listed!(String, &'static str);

macro_rules! tuples {
    ($(($($name:ident $at:tt)*))*) => {$(
        impl<$($name: Collate),*> Collate for ($($name,)*) {
            type Batch = ($($name::Batch,)*);
            #[allow(non_snake_case)]
            fn collate(samples: Vec<Self>) -> Result<Self::Batch> {
                $(let mut $name = Vec::with_capacity(samples.len());)*
                for sample in samples {
                    $($name.push(sample.$at);)*
                }
                Ok(($(name_part($name::collate($name), $at)?,)*))
            }
        }
    )*};
}
tuples!((A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5));

impl<T: Collate> Collate for Vec<T> {
    type Batch = Vec<T::Batch>;
    fn collate(samples: Vec<Vec<T>>) -> Result<Vec<T::Batch>> {
        let mut columns: Vec<Vec<T>> = Vec::new();
        for (n, sample) in samples.into_iter().enumerate() {
            if n == 0 {
                columns.resize_with(sample.len(), Vec::new);
            } else if sample.len() != columns.len() {
                return Err(collate_error(format!(
                    "sample 0 has {} parts, sample {n} has {}; samples of a batch must agree",
                    columns.len(),
                    sample.len()
                )));
            }
            for (column, item) in columns.iter_mut().zip(sample) {
                column.push(item);
            }
        }
        let columns = columns.into_iter().enumerate();
        columns
            .map(|(n, column)| name_part(T::collate(column), n))
            .collect()
    }
}

impl<T: Collate, const N: usize> Collate for [T; N] {
    type Batch = [T::Batch; N];
    fn collate(samples: Vec<[T; N]>) -> Result<[T::Batch; N]> {
        let batches = Vec::collate(samples.into_iter().map(Vec::from).collect())?;
        // Every sample has N parts.
        batches
            .try_into()
            .map_err(|_| collate_error("there is no sample to stack".into()))
    }
}

impl<K: Ord + Debug + Send + 'static, T: Collate> Collate for BTreeMap<K, T> {
    type Batch = BTreeMap<K, T::Batch>;
    fn collate(samples: Vec<BTreeMap<K, T>>) -> Result<Self::Batch> {
        let mut columns: BTreeMap<K, Vec<T>> = BTreeMap::new();
        for (n, sample) in samples.into_iter().enumerate() {
            if n > 0 && !sample.keys().eq(columns.keys()) {
                return Err(collate_error(format!(
                    "sample 0 has the keys {:?}, sample {n} has {:?}; samples of a batch must agree",
                    Vec::from_iter(columns.keys()),
                    Vec::from_iter(sample.keys())
                )));
            }
            for (key, item) in sample {
                columns.entry(key).or_default().push(item);
            }
        }
        let collate = |(key, column)| {
            let batch = name_part(T::collate(column), format_args!("{key:?}"));
            Ok((key, batch?))
        };
        columns.into_iter().map(collate).collect()
    }
}

/// Adds the part of the samples to the error of its batch.
fn name_part<B>(batch: Result<B>, name: impl std::fmt::Display) -> Result<B> {
    batch.map_err(|e| e.with_note(format!("in part {name} of the samples")))
}
