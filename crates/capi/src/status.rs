//! The status codes of calls, and the texts of errors.

use kiln_package::{Error, RuntimeError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The status of a call. The numbers never change.
#[repr(C)]
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum KilnStatus {
    /// Success.
    KILN_OK = 0,
    /// An argument is null, not UTF-8, or out of range.
    KILN_ARGUMENT = 1,
    /// A file can't be read or written.
    KILN_IO = 2,
    /// The file is not a package, or is damaged.
    KILN_DAMAGED = 3,
    /// The package, or its programs, are of a format that this library does not read.
    KILN_FORMAT = 4,
    /// No such name exists.
    KILN_MISSING = 5,
    /// Inputs, or the value of a state, do not fit.
    KILN_VALUE = 6,
    /// Memory is short, or would be more than the limit.
    KILN_MEMORY = 7,
    /// A run failed, because of its data or its device.
    KILN_RUN = 8,
    /// A bug in the library.
    KILN_INTERNAL = 9,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of the last call on this thread that failed; empty if none did, and while the thread ends. It stays valid
/// until the next call fails.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_last_error() -> *const c_char {
    // The text is gone where a destructor of the thread calls.
    LAST.try_with(|text| text.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
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

/// The status and the text of a failed call.
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
        Error::Io(error) if error.kind() == ErrorKind::OutOfMemory => KilnStatus::KILN_MEMORY,
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

/// Runs the body of a function, and keeps the text of a failure for [`kiln_last_error`].
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
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(text));
    status
}

/// The failure of a call with a wrong argument.
pub(crate) fn invalid(text: impl Into<String>) -> Failure {
    Failure(KilnStatus::KILN_ARGUMENT, text.into())
}

/// The value that a pointer points to.
///
/// # Safety
/// It is null, or points to a `T` that lives as long as the call and does not change meanwhile.
pub(crate) unsafe fn deref<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller guarantees it.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(format!("{what} is null")))
}

/// The list that a pointer points to.
///
/// # Safety
/// It is null, or points to `count` values that live as long as the call and do not change meanwhile.
pub(crate) unsafe fn list<'a, T>(
    pointer: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    match (count, pointer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(invalid(format!("{what} is null"))),
        (n, _) if n > isize::MAX as usize / size_of::<T>().max(1) => {
            Err(invalid(format!("{what} can't have {n} elements")))
        }
        // SAFETY: the caller guarantees it; the length is one that a slice can have.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// The text of a C string.
///
/// # Safety
/// It is null, or points to bytes that end with a zero and live as long as the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(invalid(format!("{what} is null")));
    }
    // SAFETY: the caller guarantees it.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| invalid(format!("{what} is no UTF-8")))
}

/// Writes a result through the caller's pointer.
///
/// # Safety
/// The pointer is null, or points to memory for a `T`.
pub(crate) unsafe fn give<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if to.is_null() {
        return Err(invalid(format!("{what} is null")));
    }
    // SAFETY: the caller guarantees it.
    unsafe { to.write(value) };
    Ok(())
}

/// Makes a handle, which the caller frees, and writes it through the caller's pointer.
///
/// # Safety
/// The pointer is null, or points to memory for a pointer.
pub(crate) unsafe fn hand_over<T>(
    to: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    if to.is_null() {
        return Err(invalid("the result is null"));
    }
    let handle = Box::into_raw(Box::new(make()?));
    // SAFETY: the caller guarantees it.
    unsafe { to.write(handle) };
    Ok(())
}

/// Frees a handle, unless it is null.
///
/// # Safety
/// It was made by `Box::into_raw`, and is not used any more.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        call(|| {
            // SAFETY: the caller guarantees it.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
