//! Packages and their state.

use crate::status::{Failure, KilnStatus, call, deref, free, give, hand_over, invalid, list, text};
use crate::tensor::KilnTensor;
use kiln_package::{Options, Package, memory};
use std::ffi::{CString, c_char, c_void};

/// An open package.
pub struct KilnPackage {
    pub(crate) package: Package,
    about: CString,
}

/// The flag to skip the verification of checksums; see `kiln_open`.
pub const KILN_TRUSTED: u32 = 1;

fn options(flags: u32) -> Result<Options, Failure> {
    match flags {
        0 => Ok(Options::new()),
        KILN_TRUSTED => Ok(Options::new().trusted(true)),
        other => Err(invalid(format!("there are no flags {other}"))),
    }
}

fn with_description(package: Package) -> KilnPackage {
    let about = CString::new(package.manifest()).unwrap_or_default();
    KilnPackage { package, about }
}

/// Opens a file. `flags` is 0, or `KILN_TRUSTED` to skip the verification of checksums. The file must not be written
/// into while the package is open; replacing it by a new one is safe.
///
/// # Safety
/// `path` is a C string; `to` points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_open(
    path: *const c_char,
    flags: u32,
    to: *mut *mut KilnPackage,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let path = unsafe { text(path, "the path")? };
        // SAFETY: the caller guarantees it.
        unsafe { hand_over(to, || Ok(with_description(options(flags)?.open(path)?))) }
    })
}

/// Opens a package in memory, by copying it.
///
/// # Safety
/// `data` points to `bytes` bytes; `to` points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_open_bytes(
    data: *const c_void,
    bytes: usize,
    flags: u32,
    to: *mut *mut KilnPackage,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let bytes = unsafe { list(data.cast::<u8>(), bytes, "the data")? };
        // SAFETY: the caller guarantees it.
        unsafe {
            hand_over(to, || {
                Ok(with_description(options(flags)?.open_bytes(bytes)?))
            })
        }
    })
}

/// The description of a package as JSON: entries with their inputs and outputs, states, files. It stays valid until
/// the package is freed. Null for a null package.
///
/// # Safety
/// `package` is null or one of the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_describe(package: *const KilnPackage) -> *const c_char {
    // SAFETY: the caller guarantees it.
    match unsafe { package.as_ref() } {
        Some(package) => package.about.as_ptr(),
        None => std::ptr::null(),
    }
}

/// Frees a package. Its entries and tensors stay valid.
///
/// # Safety
/// It is null, or one of the library's that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_package_free(package: *mut KilnPackage) {
    // SAFETY: the caller guarantees it; the library makes handles by `Box::into_raw`.
    unsafe { free(package) };
}

/// Finds an asset. The bytes stay valid until the package is freed.
///
/// # Safety
/// `package` is one of the library's, `name` a C string; `data` and `bytes` point to memory for a pointer and a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_asset(
    package: *const KilnPackage,
    name: *const c_char,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, name) = unsafe { (deref(package, "the package")?, text(name, "the name")?) };
        let asset = package.package.asset(name)?;
        // SAFETY: the caller guarantees it.
        unsafe {
            give(data, asset.as_ptr().cast(), "the data")?;
            give(bytes, asset.len(), "the size")
        }
    })
}

/// Returns the current value of a state. Later runs do not change the tensor.
///
/// # Safety
/// `package` is one of the library's, `name` a C string; `to` points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_get(
    package: *const KilnPackage,
    name: *const c_char,
    to: *mut *mut KilnTensor,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, name) = unsafe { (deref(package, "the package")?, text(name, "the name")?) };
        // SAFETY: the caller guarantees it.
        unsafe { hand_over(to, || Ok(KilnTensor(package.package.get(name)?))) }
    })
}

/// Sets the value of a state.
///
/// # Safety
/// `package` and `value` are the library's, `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_set(
    package: *const KilnPackage,
    name: *const c_char,
    value: *const KilnTensor,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, name) = unsafe { (deref(package, "the package")?, text(name, "the name")?) };
        // SAFETY: the caller guarantees it.
        let KilnTensor(value) = unsafe { deref(value, "the value")? };
        Ok(package.package.set(name, value.clone())?)
    })
}

/// Reads a named element of a state, such as `lr` of `optimizer.numbers`.
///
/// # Safety
/// `package` is one of the library's, `state` and `element` are C strings; `to` points to memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_number_get(
    package: *const KilnPackage,
    state: *const c_char,
    element: *const c_char,
    to: *mut f64,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, state) =
            unsafe { (deref(package, "the package")?, text(state, "the state")?) };
        // SAFETY: the caller guarantees it.
        let element = unsafe { text(element, "the element")? };
        let value = package.package.number(state, element)?;
        // SAFETY: the caller guarantees it.
        unsafe { give(to, value, "the result") }
    })
}

/// Changes a named element of a state.
///
/// # Safety
/// `package` is one of the library's, `state` and `element` are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_number_set(
    package: *const KilnPackage,
    state: *const c_char,
    element: *const c_char,
    value: f64,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, state) =
            unsafe { (deref(package, "the package")?, text(state, "the state")?) };
        // SAFETY: the caller guarantees it.
        let element = unsafe { text(element, "the element")? };
        Ok(package.package.set_number(state, element, value)?)
    })
}

/// Resets all states to their values in the file.
///
/// # Safety
/// `package` is one of the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_reset(package: *const KilnPackage) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let package = unsafe { deref(package, "the package")? };
        Ok(package.package.reset()?)
    })
}

/// Writes the states as a safetensors file, which atomically replaces an older one.
///
/// # Safety
/// `package` is one of the library's, `path` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_save(
    package: *const KilnPackage,
    path: *const c_char,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, path) = unsafe { (deref(package, "the package")?, text(path, "the path")?) };
        Ok(package.package.save_state(path)?)
    })
}

/// Sets all states from a safetensors file.
///
/// # Safety
/// `package` is one of the library's, `path` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_load(
    package: *const KilnPackage,
    path: *const c_char,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, path) = unsafe { (deref(package, "the package")?, text(path, "the path")?) };
        Ok(package.package.load_state(path)?)
    })
}

/// Writes the package with its current states, atomically replacing an older file.
///
/// # Safety
/// `package` is one of the library's, `path` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_save(package: *const KilnPackage, path: *const c_char) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, path) = unsafe { (deref(package, "the package")?, text(path, "the path")?) };
        Ok(package.package.save(path)?)
    })
}

/// Sets the number of threads that run kernels, for the whole process. Results never depend on it.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_set_threads(threads: usize) -> KilnStatus {
    call(|| {
        kiln_package::set_threads(threads);
        Ok(())
    })
}

/// Limits the bytes that the library may hold, without mapped files; 0 for no limit.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_set_memory_limit(bytes: usize) -> KilnStatus {
    call(|| {
        memory::set_limit(Some(bytes).filter(|n| *n > 0));
        Ok(())
    })
}
