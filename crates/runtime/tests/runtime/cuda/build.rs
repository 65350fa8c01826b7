//! Kernels and plans written by hand.

pub use crate::gpu::{device, kernel};
use kiln_base::{DType, Dim};
use kiln_plan::cuda::{
    Blocks, Boxes, CudaKernel, Im2col, Path, Pointer, SharedLaunch, TensorMap, Text,
};
use kiln_plan::*;
use kiln_runtime::cuda::Device;
use kiln_runtime::{Buffer, Result};
use std::sync::Arc;

pub fn buffer(dtype: DType, len: &Dim, allocation: Allocation) -> kiln_plan::Buffer {
    kiln_plan::Buffer {
        dtype,
        len: len.clone(),
        allocation,
    }
}

pub fn step(kernel: u32, args: &[u32], sites: &[u32]) -> Step {
    Step {
        kernel,
        args: args.iter().map(|a| BufferId(*a)).collect(),
        sites: sites.to_vec(),
        concurrent: false,
        guard: None,
    }
}

pub fn input(dtype: DType, shape: &[Dim], role: Role, buffer: u32) -> Input {
    Input {
        dtype,
        shape: shape.to_vec(),
        role,
        buffer: BufferId(buffer),
    }
}

pub fn output(dtype: DType, shape: &[Dim], buffer: u32, donor: Option<u32>) -> Output {
    Output {
        dtype,
        shape: shape.to_vec(),
        buffer: BufferId(buffer),
        donor,
    }
}

/// `(x · scale + 1)²` of n numbers, where `scale` is prepared as twice the parameter; through two
/// temporaries.
pub fn chain() -> Plan {
    let n = Plan::symbol(0);
    let one = Dim::Const(1);
    let f = DType::F32;
    Plan {
        symbols: vec![Symbol {
            name: "n".into(),
            min: 2,
            input: 0,
            axis: 0,
        }],
        inputs: vec![
            input(f, std::slice::from_ref(&n), Role::Data, 0),
            input(f, &[], Role::Parameter, 1),
        ],
        outputs: vec![output(f, std::slice::from_ref(&n), 5, None)],
        constants: vec![],
        buffers: vec![
            buffer(f, &n, Allocation::Input),
            buffer(f, &one, Allocation::Input),
            buffer(f, &one, Allocation::Prepared),
            buffer(f, &n, Allocation::Temporary),
            buffer(f, &n, Allocation::Temporary),
            buffer(f, &n, Allocation::Output),
        ],
        kernels: vec![
            kernel("twice", "x1[i] = 2.0f * x0[i];", &[f, f], &one, 0),
            kernel("scaled", "x2[i] = x0[i] * x1[0];", &[f, f, f], &n, 0),
            kernel("plus_one", "x1[i] = x0[i] + 1.0f;", &[f, f], &n, 0),
            kernel("square", "x1[i] = x0[i] * x0[i];", &[f, f], &n, 0),
        ],
        prepare: vec![step(0, &[1, 2], &[])],
        run: vec![
            step(1, &[0, 2, 3], &[]),
            step(2, &[3, 4], &[]),
            step(3, &[4, 5], &[]),
        ],
        commit: 3,
        sites: vec![],
        needs: vec![],
    }
}

/// Takes `x[index]` for 3 indices, and adds 1 to x in its own memory unless an index is wrong.
pub fn take_and_update() -> Plan {
    let (four, three) = (Dim::Const(4), Dim::Const(3));
    let (f, i) = (DType::F32, DType::I64);
    let take = "long long at = x1[i];\n\
                if (at < 0 || at >= 4) { kiln_report(errors, site0, at, 4); at = 0; }\n\
                x2[i] = x0[at];";
    Plan {
        symbols: vec![],
        inputs: vec![
            input(f, std::slice::from_ref(&four), Role::Data, 0),
            input(i, std::slice::from_ref(&three), Role::Data, 1),
        ],
        outputs: vec![
            output(f, std::slice::from_ref(&three), 2, None),
            output(f, std::slice::from_ref(&four), 3, Some(0)),
        ],
        constants: vec![],
        buffers: vec![
            buffer(f, &four, Allocation::Input),
            buffer(i, &three, Allocation::Input),
            buffer(f, &three, Allocation::Output),
            buffer(f, &four, Allocation::Output),
        ],
        kernels: vec![
            kernel("take", take, &[f, i, f], &three, 1),
            kernel("update", "x1[i] = x0[i] + 1.0f;", &[f, f], &four, 0),
        ],
        prepare: vec![],
        run: vec![step(0, &[0, 1, 2], &[0]), step(1, &[0, 3], &[])],
        commit: 1,
        sites: vec![Site {
            op: "gather".into(),
            kind: SiteKind::IndexOutOfRange,
            node: 42,
        }],
        needs: vec![],
    }
}

/// Numbers on the device.
pub fn numbers(device: &Arc<Device>, values: &[f32]) -> Result<Buffer> {
    Buffer::from_slice(values, &[values.len() as i64])?.to_gpu(device)
}

/// Twice a matrix of n rows of 32, which boxes of 8 rows bring to shared memory; with im2col the rows are pixels of images.
pub fn twice_by_boxes(im2col: bool) -> Plan {
    const COPY: &str = r#"
    const auto address = [](const void* p) { return (unsigned)__cvta_generic_to_shared(p); };
    const unsigned full = address(&shared.full);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(full) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(full) : "memory");
        asm volatile("cp.async.bulk.tensor.COPY"
                     ::"r"(address(shared.at)), "l"(&map0), "r"(0), "r"(blockIdx.x * 8), "r"(full), "h"((unsigned short)0) : "memory");
    }
    unsigned done;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                    : "=r"(done) : "r"(full) : "memory");
    while (!done);
    for (int e = threadIdx.x; e < 256; e += 64) {
        const int row = e / 32, column = e % 32;
        const long long at = blockIdx.x * 256ll + e;
        if (at < 32 * s0) arg1[at] = 2 * shared.at[row * 32 + (column / 4 ^ row) * 4 + column % 4];
    }
"#;
    let (n, f, columns) = (Plan::symbol(0), DType::F32, Dim::Const(32));
    let shape = [n.clone(), columns.clone()];
    let (copy, extents, boxes) = match im2col {
        true => (
            "3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %3}], [%4], {%5};",
            vec![columns.clone(), Dim::ONE, n.clone()],
            Boxes::Im2col(Im2col {
                channels: 32,
                pixels: 8,
                paths: vec![Path {
                    lower: 0,
                    upper: 0,
                    step: 1,
                }],
            }),
        ),
        false => (
            "2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];",
            vec![columns.clone(), n.clone()],
            Boxes::Tiled(vec![32, 8]),
        ),
    };
    let pointer = |written| Pointer {
        dtype: f,
        written,
        alone: true,
    };
    let kernel = CudaKernel {
        name: "twice_by_boxes".into(),
        entry: String::new(),
        text: Text {
            scope: "struct alignas(1024) Box { float at[256]; unsigned long long full; };".into(),
            shared: Some("Box".into()),
            body: COPY.replace("COPY", copy),
            shared_launch: SharedLaunch::Nothing,
        },
        args: [false, true].map(pointer).into(),
        scalars: vec![n.clone()],
        grid: [
            Blocks {
                points: n.clone(),
                each: 8,
            },
            Blocks::one(),
            Blocks::one(),
        ],
        block: [64, 1, 1],
        cluster: 1,
        resident: 1,
        shared: 2048,
        maps: vec![TensorMap {
            arg: 0,
            offset: Dim::ZERO,
            strides: vec![columns.clone(); extents.len() - 1],
            extents,
            boxes,
            rounds_to_tf32: false,
        }],
        sites: 0,
        footprints: Vec::new(),
    };
    let len = &n * &columns;
    Plan {
        symbols: vec![Symbol {
            name: "n".into(),
            min: 2,
            input: 0,
            axis: 0,
        }],
        inputs: vec![input(f, &shape, Role::Data, 0)],
        outputs: vec![output(f, &shape, 1, None)],
        constants: vec![],
        buffers: vec![
            buffer(f, &len, Allocation::Input),
            buffer(f, &len, Allocation::Output),
        ],
        kernels: vec![Arc::new(Kernel::Cuda(kernel.named()))],
        prepare: vec![],
        run: vec![step(0, &[0, 1], &[])],
        commit: 1,
        sites: vec![],
        needs: vec![],
    }
}
