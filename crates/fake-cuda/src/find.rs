//! For tests: finds the shared library, and queries it for state that no driver function returns.

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
    let found = folders
        .iter()
        .map(|folder| folder.join(FILE))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
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

/// The text of the last fault that the emulator found.
pub fn last_fault() -> Option<String> {
    type LastFault = extern "C" fn(*mut c_char, usize, *mut usize) -> i32;
    // SAFETY: the function has this type in `api::extra`.
    let last_fault: LastFault =
        unsafe { std::mem::transmute(symbol(c"kiln_fake_cuda_last_fault")) };
    let mut length = 0;
    last_fault(std::ptr::null_mut(), 0, &mut length);
    let mut text = vec![0u8; length];
    last_fault(text.as_mut_ptr().cast(), text.len(), &mut length);
    (length > 0).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Lets calls succeed again after a fault; on hardware this takes a new process.
pub fn reset() {
    // SAFETY: the function has this type in `api::extra`.
    let reset: extern "C" fn() -> i32 =
        unsafe { std::mem::transmute(symbol(c"kiln_fake_cuda_reset")) };
    reset();
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
