//! cuBLASLt, in the same library: a test names it by `KILN_CUBLASLT`.

use crate::abi::{In, Out};
use crate::cublaslt::{
    Algorithm, INVALID, Layout, NOT_SUPPORTED, Object, Operation, Preference, Problem, Product,
    device, objects, operation, preference,
};
use crate::driver::driver;
use crate::status::{Failure, failure};
use crate::work::Node;
use std::ffi::{c_int, c_void};

/// `cublasLtMatmulHeuristicResult_t`
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Found {
    algorithm: Algorithm,
    workspace: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

impl Found {
    fn new(algorithm: Algorithm) -> Found {
        Found {
            algorithm,
            workspace: algorithm.workspace as usize,
            status: 0,
            waves: 1.0,
            reserved: [0; 4],
        }
    }
}

/// The value of an attribute of a type.
fn value<T: Copy>(source: *const c_void, size: usize) -> Result<T, Failure> {
    if source.is_null() || size != size_of::<T>() {
        return Err(failure(INVALID, format!("an attribute of {size} bytes")));
    }
    // SAFETY: the caller passes a value of this size.
    Ok(unsafe { source.cast::<T>().read_unaligned() })
}

fn unknown(attribute: c_int) -> Failure {
    failure(NOT_SUPPORTED, format!("attribute {attribute}"))
}

/// Replaces an object.
fn replace(handle: usize, object: Object) -> Result<(), Failure> {
    objects().insert(handle, object);
    Ok(())
}

fn remove(handle: usize) -> Result<(), Failure> {
    let removed = objects().remove(&handle);
    removed
        .map(drop)
        .ok_or_else(|| failure(INVALID, "no such object"))
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_002
}

exports! {
    fn cublasLtCreate(handle: Out<usize>) {
        handle.set(Object::Handle(driver().current_device()?).add())
    }

    fn cublasLtMatmulDescCreate(made: Out<usize>, compute: c_int, scale: c_int) {
        made.set(Object::Operation(Operation { compute, scale, transposed: [false; 2] }).add())
    }

    fn cublasLtMatmulDescDestroy(handle: usize) {
        operation(handle)?;
        remove(handle)
    }

    fn cublasLtMatmulDescSetAttribute(handle: usize, attribute: c_int, at: *const c_void, size: usize) {
        let mut changed = operation(handle)?;
        let number: i32 = value(at, size)?;
        match (attribute, number) {
            (3 | 4, 0 | 1) => changed.transposed[attribute as usize - 3] = number == 1,
            _ => return Err(unknown(attribute)),
        }
        replace(handle, Object::Operation(changed))
    }

    fn cublasLtMatrixLayoutCreate(made: Out<usize>, kind: c_int, rows: u64, columns: u64, leading: i64) {
        made.set(Object::Layout(Layout { kind, rows, columns, leading, count: 1, stride: 0 }).add())
    }

    fn cublasLtMatrixLayoutDestroy(handle: usize) {
        crate::cublaslt::layout(handle)?;
        remove(handle)
    }

    fn cublasLtMatrixLayoutSetAttribute(handle: usize, attribute: c_int, at: *const c_void, size: usize) {
        let mut changed = crate::cublaslt::layout(handle)?;
        match attribute {
            5 => changed.count = value(at, size)?,
            6 => changed.stride = value(at, size)?,
            _ => return Err(unknown(attribute)),
        }
        replace(handle, Object::Layout(changed))
    }

    fn cublasLtMatmulPreferenceCreate(made: Out<usize>) {
        made.set(Object::Preference(Preference::default()).add())
    }

    fn cublasLtMatmulPreferenceDestroy(handle: usize) {
        preference(handle)?;
        remove(handle)
    }

    fn cublasLtMatmulPreferenceSetAttribute(handle: usize, attribute: c_int, at: *const c_void, size: usize) {
        let mut changed = preference(handle)?;
        match attribute {
            1 => changed.workspace = value(at, size)?,
            3 => changed.reductions = value(at, size)?,
            5..=8 => changed.aligned[attribute as usize - 5] = value(at, size)?,
            _ => return Err(unknown(attribute)),
        }
        replace(handle, Object::Preference(changed))
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        handle: usize,
        operation: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        preference_of: usize,
        max_count: c_int,
        results: Out<Found>,
        count: Out<c_int>,
    ) {
        device(handle)?;
        let algorithms = Problem::new(operation, [a, b, c, d])?.algorithms(&preference(preference_of)?);
        let algorithms = algorithms.into_iter().take(max_count.max(0) as usize);
        let mut written = 0;
        for algorithm in algorithms {
            // SAFETY: the caller passes room for `max_count` results.
            unsafe { results.pointer().add(written).write(Found::new(algorithm)) };
            written += 1;
        }
        count.set(written as c_int)
    }

    fn cublasLtMatmulAlgoCheck(
        handle: usize,
        operation: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        algorithm: In<Algorithm>,
        result: Out<Found>,
    ) {
        device(handle)?;
        let algorithm = algorithm.get()?;
        Problem::new(operation, [a, b, c, d])?.takes(&algorithm)?;
        result.set(Found::new(algorithm))
    }

    fn cublasLtMatmul(
        handle: usize,
        operation_of: usize,
        alpha: *const c_void,
        a: u64,
        a_layout: usize,
        b: u64,
        b_layout: usize,
        beta: *const c_void,
        c: u64,
        c_layout: usize,
        d: u64,
        d_layout: usize,
        algorithm: In<Algorithm>,
        workspace: u64,
        bytes: usize,
        stream: usize,
    ) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let (own, of_stream) = (device(handle)?, driver.state().stream(stream)?.device);
        if own != of_stream {
            return Err(failure(INVALID, format!("a stream of device {of_stream}, not {own}")));
        }
        let problem = Problem::new(operation_of, [a_layout, b_layout, c_layout, d_layout])?;
        let factor = |source: *const c_void| match problem.operation.scale {
            0 => value::<f32>(source, 4).map(f64::from),
            _ => value::<i32>(source, 4).map(f64::from),
        };
        let product = Product {
            problem,
            algorithm: algorithm.get()?,
            memory: [a, b, c, d],
            workspace,
        };
        product.check(bytes as u64, [factor(alpha)?, factor(beta)?])?;
        driver.submit(stream, Node::Product(Box::new(product)))
    }
}
