//! For tests: finds the shared library, and queries it for state that no driver function returns.

use crate::clock::Span;
use crate::driver::Counters;
use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The file name that Cargo gives to the library.
const FILE: &str = "libkiln_fake_cuda.so";

/// The path of the shared library, which Cargo builds as part of this crate: next to the running test, or in the
/// folder above. If `KILN_CUDA_DRIVER` names another driver, tests run on that one, and this is its path.
///
/// # Panics
/// If it is not there.
pub fn library() -> PathBuf {
    if let Some(driver) = std::env::var_os("KILN_CUDA_DRIVER").filter(|v| !v.is_empty()) {
        return driver.into();
    }
    let program = std::env::current_exe().expect("a running program has a path");
    let mut folders = Vec::new();
    for folder in program.ancestors().skip(1).take(3) {
        folders.extend([folder.to_path_buf(), folder.join("deps")]);
    }
    let library = folders
        .iter()
        .map(|folder| folder.join(FILE))
        .find(|path| path.is_file());
    library.unwrap_or_else(|| {
        panic!(
            "no {FILE} beside {}. Cargo builds it when a crate depends on kiln-fake-cuda; looked in {folders:?}",
            program.display()
        )
    })
}

/// Loads the library, so that opening `libcuda.so` finds it from now on. Calling it again is fine.
///
/// # Panics
/// If the library is not there or can't be loaded.
pub fn install() {
    handle();
}

/// The loaded library.
fn handle() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let path = library();
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero byte");
        // SAFETY: loading the library runs nothing but its initialisers.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{} can't be loaded", path.display());
        handle as usize
    });
    *handle as *mut c_void
}

/// The address of an exported function.
fn symbol(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: the handle is that of a loaded library.
    let address = unsafe { libc::dlsym(handle(), name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is not exported");
    address
}

/// The text that an exported function writes.
fn text(name: &std::ffi::CStr) -> String {
    type Write = extern "C" fn(*mut c_char, usize, *mut usize) -> i32;
    // SAFETY: the functions that are asked for have this type in `api::extra`.
    let write: Write = unsafe { std::mem::transmute(symbol(name)) };
    let mut length = 0;
    write(std::ptr::null_mut(), 0, &mut length);
    let mut text = vec![0u8; length];
    write(text.as_mut_ptr().cast(), text.len(), &mut length);
    String::from_utf8_lossy(&text).into_owned()
}

/// The text of the last fault that the emulator found.
pub fn last_fault() -> Option<String> {
    Some(text(c"kiln_fake_cuda_last_fault")).filter(|fault| !fault.is_empty())
}

/// The work of all devices on the virtual clock since the last call. None of them is to have work that goes on.
pub fn timeline() -> Vec<Span> {
    let span = |line: &str| {
        let mut fields = line.splitn(4, '\t');
        let mut number = || fields.next()?.parse::<f64>().ok();
        let (device, start, end) = (number()? as usize, number()?, number()?);
        let name = fields.next()?.to_string();
        Some(Span {
            device,
            start,
            end,
            name,
        })
    };
    text(c"kiln_fake_cuda_timeline")
        .lines()
        .filter_map(span)
        .collect()
}

/// Lets calls succeed again after a fault; on hardware this takes a new process.
pub fn reset() {
    // SAFETY: the function has this type in `api::extra`.
    let reset: extern "C" fn() -> i32 =
        unsafe { std::mem::transmute(symbol(c"kiln_fake_cuda_reset")) };
    reset();
}

/// The current context of this thread.
pub fn current_context() -> usize {
    type Get = extern "C" fn(*mut usize) -> i32;
    // SAFETY: the function has this type in every driver.
    let get: Get = unsafe { std::mem::transmute(symbol(c"cuCtxGetCurrent")) };
    let mut context = 0;
    get(&mut context);
    context
}

/// The counts of work executed so far.
pub fn counters() -> Counters {
    type Get = extern "C" fn(*mut Counters) -> i32;
    // SAFETY: the function has this type in `api::extra`.
    let get: Get = unsafe { std::mem::transmute(symbol(c"kiln_fake_cuda_counters")) };
    let mut counters = Counters::default();
    get(&mut counters);
    counters
}
