//! Launches.

use crate::abi::{Arguments, In, KernelNodeParams, Out};
use crate::driver::driver;
use crate::status::{Failure, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_RESOURCES, failure};
use crate::work::{KernelNode, Node};
use kiln_gpu_emulator::{Pixels, TensorMap};
use std::ffi::{c_int, c_uint, c_void};

/// Shared memory that needs no request.
const SHARED_WITHOUT_REQUEST: u64 = 48 << 10;

/// The node of a launch, if hardware would accept it.
pub(super) fn kernel_node(params: &KernelNodeParams) -> Result<KernelNode, Failure> {
    let function = driver().function(params.func)?;
    let kernel = &function.kernel;
    let name = kernel.name();
    if !params.extra.is_null() {
        return Err(failure(
            NOT_SUPPORTED,
            format!("{name}: arguments by `extra`"),
        ));
    }
    let [x, y, z] = params.block;
    let threads = x as u64 * y as u64 * z as u64;
    if threads == 0 || threads > 1024 || z > 64 {
        return Err(failure(
            INVALID_VALUE,
            format!("{name}: a block of {:?}", params.block),
        ));
    }
    if kernel
        .max_threads()
        .is_some_and(|limit| threads > limit as u64)
    {
        return Err(failure(
            OUT_OF_RESOURCES,
            format!("{name}: {threads} threads a block"),
        ));
    }
    let [gx, gy, gz] = params.grid;
    if gx == 0 || gy == 0 || gz == 0 || gx > i32::MAX as u32 || gy > 65535 || gz > 65535 {
        return Err(failure(
            INVALID_VALUE,
            format!("{name}: a grid of {:?}", params.grid),
        ));
    }
    let shared = kernel.static_shared() as u64 + params.shared as u64;
    if shared > SHARED_WITHOUT_REQUEST && params.shared > function.max_dynamic {
        let why = format!(
            "{name}: {shared} bytes of shared memory without \
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        );
        return Err(failure(INVALID_VALUE, why));
    }
    let mut parameters = vec![0; kernel.parameter_bytes()];
    for (i, p) in kernel.parameters().iter().enumerate() {
        params
            .params
            .copy(i, &mut parameters[p.offset..p.offset + p.size])?;
    }
    Ok(KernelNode {
        kernel: function.kernel.clone(),
        _program: function.program.clone(),
        grid: params.grid,
        block: params.block,
        shared: params.shared,
        parameters,
    })
}

/// `CU_TENSOR_MAP_DATA_TYPE_TFLOAT32`.
const TFLOAT32: c_int = 11;

/// The bytes of an element of a `CUtensorMapDataType`, in a map with these options.
fn element_of(kind: c_int, [interleave, swizzle, fill]: [c_int; 3]) -> Result<usize, Failure> {
    if interleave != 0 || fill != 0 || !(0..=3).contains(&swizzle) {
        let why = "tensor maps with interleaving or a fill of NaN";
        return Err(failure(NOT_SUPPORTED, why));
    }
    match kind {
        0 => Ok(1),
        1 | 6 | 9 => Ok(2),
        2 | 3 | 7 | 10 | 11 | 12 => Ok(4),
        4 | 5 | 8 => Ok(8),
        _ => Err(INVALID_VALUE.into()),
    }
}

/// Writes a map that the emulator made.
fn set_map(
    map: Out<TensorMap>,
    kind: c_int,
    made: Result<TensorMap, String>,
) -> Result<(), Failure> {
    let made = made.map_err(|why| failure(INVALID_VALUE, why))?;
    map.set(match kind {
        TFLOAT32 => made.rounding_to_tf32(),
        _ => made,
    })
}

exports! {
    fn cuLaunchKernel(
        func: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        params: Arguments,
        extra: *mut *mut c_void,
    ) {
        let driver = driver();
        driver.state().check_healthy()?;
        let grid = [grid_x, grid_y, grid_z];
        let block = [block_x, block_y, block_z];
        let node = kernel_node(&KernelNodeParams { func, grid, block, shared, params, extra, kern: 0, ctx: 0 })?;
        driver.submit(driver.stream(stream)?, Node::Kernel(node))
    }

    fn cuTensorMapEncodeTiled(
        map: Out<TensorMap>,
        kind: c_int,
        rank: c_uint,
        base: u64,
        sizes: In<u64>,
        strides: In<u64>,
        boxes: In<u32>,
        element_strides: In<u32>,
        interleave: c_int,
        swizzle: c_int,
        _promotion: c_int,
        fill: c_int,
    ) {
        let element = element_of(kind, [interleave, swizzle, fill])?;
        let rank = rank as usize;
        if rank == 0 || rank > 5 {
            return Err(INVALID_VALUE.into());
        }
        if element_strides.get_array(rank)?.iter().any(|&s| s != 1) {
            return Err(failure(NOT_SUPPORTED, "tensor maps with element strides"));
        }
        let (sizes, strides) = (sizes.get_array(rank)?, strides.get_array(rank - 1)?);
        let boxes = boxes.get_array(rank)?;
        set_map(map, kind, TensorMap::new(base, element, &sizes, &strides, &boxes, swizzle as u8))
    }

    fn cuTensorMapEncodeIm2col(
        map: Out<TensorMap>,
        kind: c_int,
        rank: c_uint,
        base: u64,
        sizes: In<u64>,
        strides: In<u64>,
        lower: In<c_int>,
        upper: In<c_int>,
        channels: c_uint,
        pixels: c_uint,
        steps: In<u32>,
        interleave: c_int,
        swizzle: c_int,
        _promotion: c_int,
        fill: c_int,
    ) {
        let element = element_of(kind, [interleave, swizzle, fill])?;
        let rank = rank as usize;
        if !(3..=5).contains(&rank) {
            return Err(failure(INVALID_VALUE, format!("im2col of a tensor of rank {rank}")));
        }
        let (sizes, strides) = (sizes.get_array(rank)?, strides.get_array(rank - 1)?);
        let (lower, upper) = (lower.get_array(rank - 2)?, upper.get_array(rank - 2)?);
        let steps = steps.get_array(rank)?;
        if steps[rank - 1] != 1 {
            return Err(failure(NOT_SUPPORTED, "steps from image to image"));
        }
        let pixels = Pixels {
            lower: &lower,
            upper: &upper,
            counts: [channels, pixels],
            steps: &steps[1..rank - 1],
        };
        set_map(map, kind, TensorMap::im2col(base, element, &sizes, &strides, pixels, swizzle as u8))
    }
}
