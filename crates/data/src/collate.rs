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

fn unequal(message: String) -> Error {
    // The loader adds the user's line.
    Error::new(ErrorKind::Value, "collate", message, Loc::UNKNOWN)
}

impl Collate for Tensor {
    type Batch = Tensor;
    fn collate(samples: Vec<Tensor>) -> Result<Tensor> {
        let Some(first) = samples.first() else {
            return Err(unequal("there is no sample to stack".into()));
        };
        let (dtype, shape) = (first.dtype(), first.shape()?);
        for (n, t) in samples.iter().enumerate() {
            let found = (t.dtype(), t.shape()?);
            if found != (dtype, shape.clone()) {
                return Err(unequal(format!(
                    "sample 0 is {dtype}{shape:?}, sample {n} is {}{:?}; samples of a batch must agree",
                    found.0, found.1
                )));
            }
        }
        let mut batch = vec![samples.len()];
        batch.extend(shape);
        Tensor::filled(dtype, batch, |out| {
            let mut rest = out;
            for t in &samples {
                rest = t.with_bytes(|bytes| {
                    let (part, behind) = std::mem::take(&mut rest).split_at_mut(bytes.len());
                    part.copy_from_slice(bytes);
                    behind
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
            i64::try_from(i).map_err(|_| unequal(format!("{i} does not fit into an i64")))
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
                Ok(($(within($name::collate($name), $at)?,)*))
            }
        }
    )*};
}
tuples!((A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5));

impl<T: Collate> Collate for Vec<T> {
    type Batch = Vec<T::Batch>;
    fn collate(samples: Vec<Vec<T>>) -> Result<Vec<T::Batch>> {
        let mut parts: Vec<Vec<T>> = Vec::new();
        for (n, sample) in samples.into_iter().enumerate() {
            if n == 0 {
                parts.resize_with(sample.len(), Vec::new);
            } else if sample.len() != parts.len() {
                return Err(unequal(format!(
                    "sample 0 has {} parts, sample {n} has {}; samples of a batch must agree",
                    parts.len(),
                    sample.len()
                )));
            }
            for (part, item) in parts.iter_mut().zip(sample) {
                part.push(item);
            }
        }
        let parts = parts.into_iter().enumerate();
        parts.map(|(n, part)| within(T::collate(part), n)).collect()
    }
}

impl<T: Collate, const N: usize> Collate for [T; N] {
    type Batch = [T::Batch; N];
    fn collate(samples: Vec<[T; N]>) -> Result<[T::Batch; N]> {
        let parts = Vec::collate(samples.into_iter().map(Vec::from).collect())?;
        // Every sample has N parts.
        parts
            .try_into()
            .map_err(|_| unequal("there is no sample to stack".into()))
    }
}

impl<K: Ord + Debug + Send + 'static, T: Collate> Collate for BTreeMap<K, T> {
    type Batch = BTreeMap<K, T::Batch>;
    fn collate(samples: Vec<BTreeMap<K, T>>) -> Result<Self::Batch> {
        let mut parts: BTreeMap<K, Vec<T>> = BTreeMap::new();
        for (n, sample) in samples.into_iter().enumerate() {
            if n > 0 && !sample.keys().eq(parts.keys()) {
                return Err(unequal(format!(
                    "sample 0 has the keys {:?}, sample {n} has {:?}; samples of a batch must agree",
                    Vec::from_iter(parts.keys()),
                    Vec::from_iter(sample.keys())
                )));
            }
            for (key, item) in sample {
                parts.entry(key).or_default().push(item);
            }
        }
        let collate = |(key, part)| {
            let batch = within(T::collate(part), format_args!("{key:?}"));
            Ok((key, batch?))
        };
        parts.into_iter().map(collate).collect()
    }
}

/// Adds the part of the samples to the error of its batch.
fn within<B>(batch: Result<B>, part: impl std::fmt::Display) -> Result<B> {
    batch.map_err(|e| e.with_note(format!("in part {part} of the samples")))
}
