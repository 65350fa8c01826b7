//! Modules and functions.

use crate::abi::{Out, Text};
use crate::driver::{Function, driver};
use crate::elf;
use crate::status::{
    FILE_NOT_FOUND, Failure, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NO_BINARY,
    NOT_FOUND, failure,
};
use kiln_gpu_emulator::{MAX_SHARED, Program};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// The PTX of an image: the image itself, or the PTX in its machine code.
fn text(image: *const c_void) -> Result<String, Failure> {
    if image.is_null() {
        return Err(INVALID_VALUE.into());
    }
    // SAFETY: an image has at least four bytes.
    let magic = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    if magic == *b"\x7fELF" {
        let read = |offset: usize, len: usize| {
            let start = image.addr().checked_add(offset)?;
            start
                .checked_add(len)
                .filter(|end| *end <= isize::MAX as usize)?;
            // SAFETY: the image declares these bytes as its own, and the caller vouches for the image.
            Some(unsafe { std::slice::from_raw_parts(image.cast::<u8>().add(offset), len) })
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

exports! {
    fn cuModuleLoadData(module: Out<usize>, image: *const c_void) {
        load(module, &text(image)?)
    }

    fn cuModuleLoad(module: Out<usize>, path: Text) {
        let image = std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?;
        let source = match image.starts_with(b"\x7fELF") {
            true => elf::ptx(|offset, len| image.get(offset..offset.checked_add(len)?), capability())?,
            false => String::from_utf8(image).map_err(|_| INVALID_IMAGE)?,
        };
        load(module, &source)
    }

    fn cuModuleUnload(module: usize) {
        let driver = driver();
        let device = driver.current_device()?;
        if !driver.streams_of(device, |s| !s.queue.is_empty()).is_empty() {
            driver.state().counters.waiting_unloads += 1;
            driver.drain_device(device)?;
        }
        let mut state = driver.state();
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
}
