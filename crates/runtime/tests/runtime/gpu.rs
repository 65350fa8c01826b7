//! The GPU of tests of both engines, and a kernel of it.

use kiln_base::{DType, Dim};
use kiln_plan::Kernel;
use kiln_plan::cuda::{Blocks, CudaKernel, Pointer, Text};
use kiln_runtime::cuda::{Device, Nvrtc};
use std::sync::Arc;

/// The first device of the emulated driver (or of `KILN_CUDA_DRIVER`'s). If there is none, prints that the test is
/// skipped.
pub fn device() -> Option<Arc<Device>> {
    #[cfg(not(portable))]
    kiln_runtime::cuda::set_driver(kiln_fake_cuda::library());
    let found = Nvrtc::get().and_then(|_| Device::get(0));
    if let Err(e) = &found {
        let message = e.to_string();
        eprintln!("skipped: {}", message.lines().next().unwrap_or_default());
    }
    found.ok()
}

/// A kernel over the `n` elements of arrays: `body` computes the element `i`. The last argument is written.
pub fn kernel(name: &str, body: &str, dtypes: &[DType], n: &Dim, sites: u32) -> Arc<Kernel> {
    let arg = |(i, dtype): (usize, &DType)| Pointer {
        dtype: *dtype,
        written: i + 1 == dtypes.len(),
        alone: false,
    };
    let names = (0..dtypes.len()).map(|i| format!("auto x{i} = arg{i}; "));
    let names: String = names.collect();
    let text = Text {
        body: format!(
            "{names}const long long n = s0, i = blockIdx.x * 64ll + threadIdx.x;\n\
             if (i < n) {{ {body} }}\n"
        ),
        ..Text::default()
    };
    Arc::new(Kernel::Cuda(CudaKernel {
        name: name.into(),
        entry: name.into(),
        text,
        args: dtypes.iter().enumerate().map(arg).collect(),
        scalars: vec![n.clone()],
        grid: [
            Blocks {
                points: n.clone(),
                each: 64,
            },
            Blocks::one(),
            Blocks::one(),
        ],
        block: [64, 1, 1],
        cluster: 1,
        resident: 1,
        shared: 0,
        maps: Vec::new(),
        sites,
        footprints: Vec::new(),
    }))
}
