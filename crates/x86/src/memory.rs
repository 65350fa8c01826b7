//! Executable memory, which is never writable at the same time.

use std::io::{self, Write};

/// The error of making code executable.
#[derive(Debug, thiserror::Error)]
#[error("no executable memory of {bytes} bytes: {source}")]
pub struct CodeError {
    bytes: usize,
    source: io::Error,
}

/// Executable code. It is unmapped when dropped.
#[derive(Debug)]
pub struct Code {
    start: *mut libc::c_void,
    /// The size of the mapping in bytes.
    bytes: usize,
    /// The size of code and constants in bytes.
    len: usize,
}

// SAFETY: nobody writes to the memory once it is executable.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Makes the output of [`Asm::finish`](crate::Asm::finish) executable.
    ///
    /// # Errors
    /// If the system gives no executable memory.
    pub fn new(code: &[u8]) -> Result<Code, CodeError> {
        Code::named(code, "generated")
    }

    /// As [`Code::new`], with a name for profilers. With `KILN_PERF_MAP=1` in the environment, the code is listed in
    /// `/tmp/perf-<process>.map`, which Linux's `perf` reads.
    ///
    /// # Errors
    /// If the system gives no executable memory.
    pub fn named(code: &[u8], name: &str) -> Result<Code, CodeError> {
        let mapped = Code::map(code)?;
        if std::env::var_os("KILN_PERF_MAP").is_some_and(|v| v == "1") {
            // Code also runs without its name, so a failure to write the list is ignored.
            let _ = mapped.append_to_perf_map(name);
        }
        Ok(mapped)
    }

    /// Appends a line to the map of `perf`: address and size in hexadecimal, and the name.
    fn append_to_perf_map(&self, name: &str) -> io::Result<()> {
        let path = format!("/tmp/perf-{}.map", std::process::id());
        let name = name.replace('\n', " ");
        let line = format!("{:x} {:x} {name}\n", self.start as usize, self.len);
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())
    }

    fn map(code: &[u8]) -> Result<Code, CodeError> {
        const PAGE: usize = 4096;
        let bytes = code.len().max(1).div_ceil(PAGE) * PAGE;
        let failed = || CodeError {
            bytes,
            source: io::Error::last_os_error(),
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this requests new pages at any address.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, writable, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(failed());
        }
        let len = code.len();
        let mapped = Code { start, bytes, len };
        // SAFETY: the pages are new, at least as long as the code, and nobody else knows of them yet.
        let protected = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), start.cast(), len);
            libc::mprotect(start, bytes, libc::PROT_READ | libc::PROT_EXEC)
        };
        match protected {
            0 => Ok(mapped),
            _ => Err(failed()),
        }
    }

    /// Returns the address of the first instruction.
    pub fn entry(&self) -> *const u8 {
        self.start.cast_const().cast()
    }

    /// Returns the code and constants.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: this many bytes were copied there, and they stay as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the pages belong to this value, and whoever runs code holds the value.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}
