//! Initialisation, errors, and functions that only this driver has.

use crate::abi::Out;
use crate::driver::{Counters, driver};
use crate::status::{Failure, INVALID_VALUE, NO_DEVICE, describe};
use std::ffi::{c_char, c_int, c_uint};

/// Writes a text's length, and the text as far as there is room.
fn text(text: &str, out: Out<c_char>, room: usize, length: Out<usize>) -> Result<(), Failure> {
    length.set(text.len())?;
    if !out.pointer().is_null() {
        let count = text.len().min(room);
        // SAFETY: the caller passes room for `room` bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out.pointer().cast(), count) };
    }
    Ok(())
}

exports! {
    fn cuInit(_flags: c_uint) {
        let driver = driver();
        if driver.config.devices == 0 {
            return Err(NO_DEVICE.into());
        }
        driver.state().initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(13000)
    }

    fn cuGetErrorName(status: c_int, name: Out<*const c_char>) {
        let (text, _) = describe(status).ok_or(INVALID_VALUE)?;
        name.set(text.as_ptr())
    }

    fn cuGetErrorString(status: c_int, description: Out<*const c_char>) {
        let (_, text) = describe(status).ok_or(INVALID_VALUE)?;
        description.set(text.as_ptr())
    }

    fn kiln_fake_cuda_last_fault(out: Out<c_char>, room: usize, length: Out<usize>) {
        let state = driver().state();
        text(state.fault.as_deref().unwrap_or(""), out, room, length)
    }

    // Of each span a line: device, start, end and name, with tabs between. Those that were written are removed.
    fn kiln_fake_cuda_timeline(out: Out<c_char>, room: usize, length: Out<usize>) {
        let spans = &mut driver().state().spans;
        let lines = spans.iter().map(|s| format!("{}\t{}\t{}\t{}\n", s.device, s.start, s.end, s.name));
        let written = !out.pointer().is_null();
        text(&lines.collect::<String>(), out, room, length)?;
        if written {
            spans.clear();
        }
        Ok(())
    }

    fn kiln_fake_cuda_reset() {
        let mut state = driver().state();
        state.sticky = 0;
        state.fault = None;
        Ok(())
    }

    fn kiln_fake_cuda_counters(counters: Out<Counters>) {
        let state = driver().state();
        let modules = state.modules.len() as u64;
        counters.set(Counters { modules, ..state.counters })
    }
}
