//! The GPU of the tests.

use kiln_runtime::cuda;
use kiln_tensor::Device;

/// The emulated device, or that of the driver which `KILN_CUDA_DRIVER` names; else a line that says what is
/// skipped.
pub(crate) fn device() -> Option<Device> {
    cuda::set_driver(kiln_fake_cuda::library());
    if let Err(e) = cuda::Nvrtc::get() {
        let message = e.to_string();
        eprintln!("skipped: {}", message.lines().next().unwrap_or_default());
        return None;
    }
    Some(Device::cuda(0).expect("the driver has a device"))
}
