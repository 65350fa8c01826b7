//! Modules and functions.

use crate::abi::{Out, Text};
use crate::driver::{Function, driver};
use crate::elf;
use crate::status::{
    FILE_NOT_FOUND, Failure, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NO_BINARY,
    NOT_FOUND, failure,
};
use kiln_gpu_emulator::{MAX_SHARED, Program};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// The PTX of an image: the image itself, or the PTX in its machine code.
fn text(image: *const c_void) -> Result<String, Failure> {
    if image.is_null() {
        return Err(INVALID_VALUE.into());
    }
    // SAFETY: an image has at least four bytes.
    let magic = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    if magic == *b"\x7fELF" {
        let read = |at: usize, len: usize| {
            let start = image.addr().checked_add(at)?;
            start
                .checked_add(len)
                .filter(|end| *end <= isize::MAX as usize)?;
            // SAFETY: the image declares these bytes as its own, and the caller vouches for the image.
            Some(unsafe { std::slice::from_raw_parts(image.cast::<u8>().add(at), len) })
        };
        return elf::ptx(read, capability());
    }
    if u32::from_le_bytes(magic) == 0xba55_ed50 {
        return Err(failure(NO_BINARY, "fat binaries aren't read: load PTX"));
    }
    // SAFETY: an image that is not machine code is a text that ends with 0.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
    Ok(text.to_str().map_err(|_| INVALID_IMAGE)?.to_string())
}

/// The compute capability of the devices, without the dot.
fn capability() -> u64 {
    let (major, minor) = driver().config.capability;
    (10 * major + minor) as u64
}

fn load(module: Out<usize>, source: &str) -> Result<(), Failure> {
    let driver = driver();
    driver.current_device()?;
    let program = Program::load(source, &driver.memory)
        .map_err(|error| failure(INVALID_PTX, error.to_string()))?;
    let mut state = driver.state();
    let handle = state.new_handle();
    state.modules.insert(handle, Arc::new(program));
    module.set(handle)
}

/// Bytes of the options `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: c_int = 5;
const ERROR_LOG_SIZE: c_int = 6;

/// Writes `message` to the error log given by the options.
fn write_log(options: &[c_int], values: &[usize], message: &str) {
    let value = |wanted| options.iter().position(|&o| o == wanted).map(|i| values[i]);
    if let (Some(buffer), Some(size)) = (value(ERROR_LOG), value(ERROR_LOG_SIZE))
        && buffer != 0
        && size > 0
    {
        let count = message.len().min(size - 1);
        // SAFETY: the caller passes a buffer of `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), buffer as *mut u8, count);
            (buffer as *mut u8).add(count).write(0);
        }
    }
}

exports! {
    fn cuModuleLoadData(module: Out<usize>, image: *const c_void) {
        load(module, &text(image)?)
    }

    fn cuModuleLoadDataEx(
        module: Out<usize>,
        image: *const c_void,
        count: c_uint,
        options: *const c_int,
        values: *const usize,
    ) {
        let result = text(image).and_then(|source| load(module, &source));
        if let Err(failure) = &result
            && count > 0
        {
            // SAFETY: the caller passes `count` options and `count` values.
            let (options, values) = unsafe {
                (
                    std::slice::from_raw_parts(options, count as usize),
                    std::slice::from_raw_parts(values, count as usize),
                )
            };
            write_log(options, values, failure.why.as_deref().unwrap_or(""));
        }
        result
    }

    fn cuModuleLoad(module: Out<usize>, path: Text) {
        let image = std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?;
        let source = match image.starts_with(b"\x7fELF") {
            true => elf::ptx(|at, len| image.get(at..at.checked_add(len)?), capability())?,
            false => String::from_utf8(image).map_err(|_| INVALID_IMAGE)?,
        };
        load(module, &source)
    }

    fn cuModuleUnload(module: usize) {
        let mut state = driver().state();
        state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        state.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<usize>, module: usize, name: Text) {
        let name = name.get()?;
        let mut state = driver().state();
        let program = state.modules.get(&module).ok_or(INVALID_HANDLE)?.clone();
        let kernel = program.kernel(&name).ok_or(NOT_FOUND)?.clone();
        let mut known = state.functions.iter();
        let known = known.find(|(_, f)| f.module == module && f.kernel.name() == name);
        if let Some((&handle, _)) = known {
            return function.set(handle);
        }
        let handle = state.new_handle();
        state.functions.insert(handle, Function { kernel, program, module, max_dynamic: 0 });
        function.set(handle)
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: usize) {
        let state = driver().state();
        let program = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        count.set(program.kernels().count() as c_uint)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, size: Out<usize>, module: usize, name: Text) {
        let state = driver().state();
        let program = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let global = program.global(&name.get()?).ok_or(NOT_FOUND)?;
        address.set_if_wanted(global.address);
        size.set_if_wanted(global.size);
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: usize) {
        let function = driver().function(function)?;
        let kernel = &function.kernel;
        let (major, minor) = driver().config.capability;
        value.set(match attribute {
            0 => kernel.max_threads().unwrap_or(1024) as c_int,
            1 => kernel.static_shared() as c_int,
            3 => kernel.local_bytes() as c_int,
            4 => 32, // registers: not known before machine code is made
            5 | 6 => 10 * major + minor,
            8 => function.max_dynamic as c_int,
            _ => 0,
        })
    }

    fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
        let mut state = driver().state();
        let function = state.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
        if attribute == 8 {
            let bytes = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
            if function.kernel.static_shared() as u64 + bytes as u64 > MAX_SHARED {
                return Err(INVALID_VALUE.into());
            }
            function.max_dynamic = bytes;
        }
        Ok(())
    }

    fn cuFuncSetCacheConfig(function: usize, _config: c_int) {
        driver().function(function).map(drop)
    }

    fn cuFuncGetParamInfo(
        function: usize,
        index: usize,
        offset: Out<usize>,
        size: Out<usize>,
    ) {
        let function = driver().function(function)?;
        let parameter = function.kernel.parameters().get(index).ok_or(INVALID_VALUE)?;
        offset.set(parameter.offset)?;
        size.set_if_wanted(parameter.size);
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>,
        function: usize,
        threads: c_int,
        shared: usize,
    ) {
        let function = driver().function(function)?;
        blocks.set(occupancy(&function, threads, shared))
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>,
        function: usize,
        threads: c_int,
        shared: usize,
        _flags: c_uint,
    ) {
        let function = driver().function(function)?;
        blocks.set(occupancy(&function, threads, shared))
    }

    fn cuOccupancyMaxPotentialBlockSize(
        blocks: Out<c_int>,
        threads: Out<c_int>,
        function: usize,
        _shared_of: *const c_void,
        shared: usize,
        limit: c_int,
    ) {
        let function = driver().function(function)?;
        let most = function.kernel.max_threads().unwrap_or(1024) as c_int;
        let size = if limit > 0 { most.min(limit) } else { most };
        blocks.set(132 * occupancy(&function, size, shared))?;
        threads.set(size)
    }
}

/// The number of blocks that fit a multiprocessor by threads and shared memory.
fn occupancy(function: &Function, threads: c_int, shared: usize) -> c_int {
    let by_threads = 2048 / threads.max(1);
    let bytes = function.kernel.static_shared() + shared + 1024;
    by_threads.min(((228 << 10) / bytes) as c_int).min(32)
}
