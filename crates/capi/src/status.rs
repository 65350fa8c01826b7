//! What calls give, and the text of what went wrong.

use kiln_package::{Error, RuntimeError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a call gives. Numbers stay what they are.
#[repr(C)]
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum KilnStatus {
    /// All is well.
    KILN_OK = 0,
    /// An argument is null, no UTF-8, or out of range.
    KILN_ARGUMENT = 1,
    /// A file can't be read or written.
    KILN_IO = 2,
    /// The file is no package, or is damaged.
    KILN_DAMAGED = 3,
    /// The package, or its programs, are of a format that this library does not read.
    KILN_FORMAT = 4,
    /// There is nothing of this name.
    KILN_MISSING = 5,
    /// Inputs, or the value of a state, do not fit.
    KILN_VALUE = 6,
    /// Memory is short, or would be more than the limit.
    KILN_MEMORY = 7,
    /// A run failed, by its data or by its device.
    KILN_RUN = 8,
    /// A bug in the library.
    KILN_INTERNAL = 9,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of the last call on this thread that failed; empty if none did. It stays until the next call fails.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_last_error() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

/// The version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Why a call failed.
pub(crate) struct Failure(pub KilnStatus, pub String);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(status(&error), error.to_string())
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        Failure(runtime_status(&error), error.to_string())
    }
}

fn status(error: &Error) -> KilnStatus {
    match error {
        Error::Io(_) => KilnStatus::KILN_IO,
        Error::Damaged(_) | Error::SomethingElse(_) => KilnStatus::KILN_DAMAGED,
        Error::Format { .. } | Error::PlanFormat { .. } => KilnStatus::KILN_FORMAT,
        Error::Missing { .. } => KilnStatus::KILN_MISSING,
        Error::Run { error, .. } => runtime_status(error),
        Error::File { error, .. } => status(error),
        _ => KilnStatus::KILN_VALUE,
    }
}

fn runtime_status(error: &RuntimeError) -> KilnStatus {
    match error {
        RuntimeError::OutOfMemory { .. } => KilnStatus::KILN_MEMORY,
        RuntimeError::Buffer(_) | RuntimeError::Symbol { .. } | RuntimeError::Size { .. } => {
            KilnStatus::KILN_VALUE
        }
        RuntimeError::Plan(_) => KilnStatus::KILN_DAMAGED,
        RuntimeError::Internal(_) => KilnStatus::KILN_INTERNAL,
        _ => KilnStatus::KILN_RUN,
    }
}

/// Runs what a function does; what goes wrong is kept for [`kiln_last_error`].
pub(crate) fn call(f: impl FnOnce() -> Result<(), Failure>) -> KilnStatus {
    let result = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = format!("internal error: {}", text.unwrap_or("a panic"));
        Err(Failure(KilnStatus::KILN_INTERNAL, text))
    });
    let Err(Failure(status, text)) = result else {
        return KilnStatus::KILN_OK;
    };
    LAST.set(CString::new(text.replace('\0', " ")).unwrap_or_default());
    status
}

/// An argument that is wrong.
pub(crate) fn wrong(text: impl Into<String>) -> Failure {
    Failure(KilnStatus::KILN_ARGUMENT, text.into())
}

/// What a pointer leads to.
///
/// # Safety
/// It is null, or leads to a `T` that lives as long as the call and that nobody changes meanwhile.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's.
    unsafe { pointer.as_ref() }.ok_or_else(|| wrong(format!("{what} is null")))
}

/// A list.
///
/// # Safety
/// It is null, or leads to so many values that live as long as the call and that nobody changes meanwhile.
pub(crate) unsafe fn list<'a, T>(
    pointer: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    match (count, pointer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(wrong(format!("{what} is null"))),
        (n, _) if n > isize::MAX as usize / size_of::<T>().max(1) => {
            Err(wrong(format!("{what} can't have {n} elements")))
        }
        // SAFETY: the caller's; the length is one that a slice can have.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// A text.
///
/// # Safety
/// It is null, or leads to bytes that end with a zero and live as long as the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(wrong(format!("{what} is null")));
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| wrong(format!("{what} is no UTF-8")))
}

/// Writes a result to where the caller asks for it.
///
/// # Safety
/// The pointer is null, or leads to memory for a `T`.
pub(crate) unsafe fn give<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if to.is_null() {
        return Err(wrong(format!("{what} is null")));
    }
    // SAFETY: the caller's.
    unsafe { to.write(value) };
    Ok(())
}

/// Frees a handle, unless it is null.
///
/// # Safety
/// It was made by `Box::into_raw`, and nobody uses it any more.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        call(|| {
            // SAFETY: the caller's.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
