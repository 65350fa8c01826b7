//! Tensors of a package's file, on its device.

use crate::error::{Result, failed, unfit};
use crate::interface::StateInfo;
use crate::map::Map;
use crate::state::RNG_STATE;
use crate::tensors::TensorRange;
use kiln_runtime::memory::{ALIGN, Lender, Storage};
use kiln_runtime::{Buffer, cuda};
use std::ops::Range;
use std::sync::Arc;

/// A tensor of the file: mapped if it is aligned, else a copy.
pub(crate) fn tensor(map: &Arc<Map>, name: &str, range: &TensorRange) -> Result<Buffer> {
    let tensor = storage(map, range.bytes.clone())
        .and_then(|s| Buffer::from_storage(range.dtype, &range.shape, s));
    tensor.map_err(|e| unfit(name, e))
}

/// Bytes of the file: mapped if they are aligned, else a copy.
pub(crate) fn storage(map: &Arc<Map>, range: Range<usize>) -> kiln_runtime::Result<Storage> {
    let bytes = &map.bytes()[range.clone()];
    match bytes.as_ptr().addr().is_multiple_of(ALIGN) && !bytes.is_empty() {
        true => Storage::lent(map, range),
        false => Storage::from_bytes(bytes),
    }
}

/// The values of states on the package's device.
pub(crate) fn all_on_device(
    values: &[Buffer],
    infos: &[StateInfo],
    gpu: Option<&Arc<cuda::Device>>,
) -> Result<Vec<Buffer>> {
    let states = values.iter().zip(infos);
    let moved = states.map(|(value, info)| on_device(value, &info.name, gpu));
    moved.collect()
}

/// A value on the package's device; the state of the generator stays on the host.
pub(crate) fn on_device(
    value: &Buffer,
    name: &str,
    gpu: Option<&Arc<cuda::Device>>,
) -> Result<Buffer> {
    match gpu {
        Some(device) if name != RNG_STATE => value.to_gpu(device).map_err(failed(name)),
        _ => Ok(value.clone()),
    }
}
