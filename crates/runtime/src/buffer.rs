//! Tensors as the caller sees them.

use kiln_base::custom::ArrayViewMut;
use kiln_base::{DType, Element, elements};
use kiln_cuda::{Device, Memory, Outcome};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::memory;
use kiln_kernel::memory::Storage;
use smallvec::SmallVec;
use std::sync::Arc;

/// A contiguous row-major tensor in the memory of the host or of a GPU. Cloning shares the memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    dtype: DType,
    shape: SmallVec<[i64; 4]>,
    storage: Arc<Storage>,
    /// The run that computes the values: they are wrong if it has a data error.
    outcome: Option<Arc<Outcome>>,
}

/// The number of elements of a shape, or an error if a dim is negative or the bytes overflow.
fn checked_len(dtype: DType, shape: &[i64]) -> Result<usize> {
    let bytes = shape.iter().try_fold(dtype.size() as i64, |n, &d| {
        (d >= 0).then(|| n.checked_mul(d)).flatten()
    });
    bytes
        .map(|b| b as usize / dtype.size())
        .ok_or_else(|| Error::Buffer(format!("not a shape: {shape:?}")))
}

impl Buffer {
    /// Returns a copy of `data` as a tensor of `shape`.
    ///
    /// # Errors
    /// If the shape has another number of elements, or memory is short.
    pub fn from_slice<T: Element>(data: &[T], shape: &[i64]) -> Result<Buffer> {
        check_bytes(T::DTYPE, shape, size_of_val(data))?;
        let mut storage = Storage::new(size_of_val(data))?;
        let (shape_of_data, bytes) = ([data.len()], storage.bytes_mut());
        let written = ArrayViewMut::new(T::DTYPE, &shape_of_data, bytes).write(data);
        written.map_err(|e| Error::Buffer(e.to_string()))?;
        Ok(Buffer::new(T::DTYPE, shape, Arc::new(storage)))
    }

    /// Returns a tensor from its native-endian bytes.
    ///
    /// # Errors
    /// If the shape has another number of bytes, a bool is neither 0 nor 1, or memory is short.
    pub fn from_bytes(dtype: DType, shape: &[i64], bytes: &[u8]) -> Result<Buffer> {
        holds(dtype, shape, bytes)?;
        let storage = Arc::new(Storage::from_bytes(bytes)?);
        Ok(Buffer::new(dtype, shape, storage))
    }

    /// Returns a tensor of native-endian bytes in host memory.
    ///
    /// # Errors
    /// If the shape has another number of bytes, or a bool is neither 0 nor 1.
    pub fn from_storage(dtype: DType, shape: &[i64], storage: Storage) -> Result<Buffer> {
        holds(dtype, shape, storage.bytes())?;
        Ok(Buffer::new(dtype, shape, Arc::new(storage)))
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// If a dim is negative or memory is short.
    pub fn zeros(dtype: DType, shape: &[i64]) -> Result<Buffer> {
        let bytes = checked_len(dtype, shape)? * dtype.size();
        let mut storage = Storage::new(bytes)?;
        storage.bytes_mut().fill(0);
        Ok(Buffer::new(dtype, shape, Arc::new(storage)))
    }

    /// `storage` holds exactly the elements of `shape`.
    pub(crate) fn new(dtype: DType, shape: &[i64], storage: Arc<Storage>) -> Buffer {
        Buffer {
            dtype,
            shape: SmallVec::from_slice(shape),
            storage,
            outcome: None,
        }
    }

    /// The run that computes the values, while it may still report a data error. Reading the values, or running a
    /// program on them, waits for it.
    pub fn outcome(&self) -> Option<&Arc<Outcome>> {
        self.outcome.as_ref()
    }

    /// Makes the values valid only if this run has no data error, for callers that discard all outputs of a failed run.
    pub fn depending_on(self, outcome: &Arc<Outcome>) -> Buffer {
        self.with_outcome(Some(outcome.clone()))
    }

    pub(crate) fn with_outcome(mut self, outcome: Option<Arc<Outcome>>) -> Buffer {
        self.outcome = outcome;
        self
    }

    /// The contents of the memory if its [`outcome`](Buffer::outcome) is a data error: the values from before the run
    /// if the memory was donated to it, otherwise undefined values.
    pub fn after_failure(mut self) -> Buffer {
        self.outcome = None;
        self
    }

    /// Waits until it is known that no data error has made the values invalid.
    ///
    /// # Errors
    /// The data error of the run that computed them.
    pub fn settled(&self) -> Result<()> {
        self.outcome.as_ref().map_or(Ok(()), |o| o.wait())
    }

    /// The replacement for a donated buffer after the run: no elements, no memory.
    pub(crate) fn vacant(dtype: DType) -> Result<Buffer> {
        Ok(Buffer::new(dtype, &[0], Arc::new(Storage::new(0)?)))
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, outermost dim first.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.storage.len() / self.dtype.size()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory, shared by clones.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    pub(crate) fn storage_mut(&mut self) -> &mut Arc<Storage> {
        &mut self.storage
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// If the shape has another number of elements.
    pub fn reshape(mut self, shape: &[i64]) -> Result<Buffer> {
        if checked_len(self.dtype, shape)? != self.len() {
            return Err(Error::Buffer(format!(
                "{:?} has no view of shape {shape:?}",
                self.shape
            )));
        }
        self.shape = SmallVec::from_slice(shape);
        Ok(self)
    }

    /// The GPU that it is on; `None` for the host.
    pub fn gpu(&self) -> Option<&Arc<Device>> {
        Memory::of(&self.storage).map(Memory::device)
    }

    /// Returns the tensor on a GPU: itself if it is there, else a copy.
    ///
    /// # Errors
    /// If memory is short, the device fails, or a data error has made the values invalid.
    pub fn to_gpu(&self, device: &Arc<Device>) -> Result<Buffer> {
        self.settled()?;
        let memory = match Memory::of(&self.storage) {
            Some(memory) if Arc::ptr_eq(memory.device(), device) => return Ok(self.clone()),
            Some(memory) => memory.copy_to(device)?,
            None => device.upload(self.storage.bytes())?,
        };
        let storage = Storage::on_gpu(Arc::new(memory), self.storage.len());
        Ok(Buffer::new(self.dtype, &self.shape, Arc::new(storage)))
    }

    /// Returns the tensor on the host: itself if it is there, else a copy.
    ///
    /// # Errors
    /// If memory is short, the device fails, or a data error has made the values invalid.
    pub fn to_host(&self) -> Result<Buffer> {
        self.settled()?;
        let Some(memory) = Memory::of(&self.storage) else {
            return Ok(self.clone());
        };
        let mut storage = Storage::new(self.storage.len())?;
        memory.device().download(memory, 0, storage.bytes_mut())?;
        Ok(Buffer::new(self.dtype, &self.shape, Arc::new(storage)))
    }

    /// Returns the tensor in memory that no other process changes: itself, or a copy.
    ///
    /// # Errors
    /// If memory is short.
    pub fn unshared(&self) -> Result<Buffer> {
        match self.storage.shared() {
            None => Ok(self.clone()),
            Some(_) => Buffer::from_bytes(self.dtype, &self.shape, self.storage.bytes()),
        }
    }

    /// The native-endian bytes.
    ///
    /// # Errors
    /// If the tensor is on a GPU.
    pub fn bytes(&self) -> Result<&[u8]> {
        match self.gpu() {
            None => Ok(self.storage.bytes()),
            Some(device) => Err(Error::Buffer(format!(
                "the values are on {device}; copy them with to_host()"
            ))),
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// If `T` is another dtype's type, or the tensor is on a GPU.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        elements(self.dtype, self.bytes()?).map_err(Error::Buffer)
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// If `T` is another dtype's type, memory is short, or the device that the tensor is on fails.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        try_to_vec(self.to_host()?.as_slice()?)
    }

    /// A copy of the native-endian bytes.
    ///
    /// # Errors
    /// If memory is short, or the device that the tensor is on fails.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        try_to_vec(self.to_host()?.bytes()?)
    }
}

/// Returns an error unless a tensor of this dtype and shape has this number of bytes.
fn check_bytes(dtype: DType, shape: &[i64], bytes: usize) -> Result<()> {
    let want = checked_len(dtype, shape)? * dtype.size();
    match bytes == want {
        true => Ok(()),
        false => Err(Error::Buffer(format!(
            "{dtype} of shape {shape:?} takes {want} bytes, found {bytes}"
        ))),
    }
}

/// Errs unless the bytes are the elements of a tensor of this dtype and shape.
fn holds(dtype: DType, shape: &[i64], bytes: &[u8]) -> Result<()> {
    check_bytes(dtype, shape, bytes.len())?;
    if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
        return Err(Error::Buffer("a bool is neither 0 nor 1".into()));
    }
    Ok(())
}

fn try_to_vec<T: Copy>(from: &[T]) -> Result<Vec<T>> {
    let mut copy = Vec::new();
    if copy.try_reserve_exact(from.len()).is_err() {
        return Err(memory::out_of_memory(size_of_val(from)));
    }
    copy.extend_from_slice(from);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_check_the_dtype_and_constructors_the_size() {
        let b = Buffer::from_slice(&[1.0f32, 2.0, 3.0], &[3, 1]).unwrap();
        assert_eq!(b.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        assert!(b.as_slice::<i32>().is_err());
        assert!(b.clone().reshape(&[2]).is_err());
        assert_eq!(b.reshape(&[3]).unwrap().shape(), [3]);
        assert!(Buffer::from_slice(&[1i64], &[2]).is_err());
        assert!(Buffer::from_slice(&[1i64], &[-1]).is_err());
        assert!(Buffer::from_slice(&[1i64], &[i64::MAX, i64::MAX]).is_err());
        assert!(Buffer::from_bytes(DType::Bool, &[1], &[2]).is_err());
        let empty = Buffer::zeros(DType::F64, &[0, 4]).unwrap();
        assert!(empty.is_empty() && empty.to_vec::<f64>().unwrap().is_empty());
    }
}
