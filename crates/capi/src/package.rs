//! Packages and their state.

use crate::status::{Failure, KilnStatus, call, free, give, given, list, text, wrong};
use crate::tensor::KilnTensor;
use kiln_package::{Options, Package, memory};
use std::ffi::{CString, c_char, c_void};

/// An open package.
pub struct KilnPackage {
    pub(crate) package: Package,
    about: CString,
}

/// Checksums are taken on trust; see `kiln_open`.
pub const KILN_TRUSTED: u32 = 1;

fn options(flags: u32) -> Result<Options, Failure> {
    match flags {
        0 => Ok(Options::new()),
        KILN_TRUSTED => Ok(Options::new().trusted(true)),
        other => Err(wrong(format!("there are no flags {other}"))),
    }
}

fn boxed(package: Package) -> *mut KilnPackage {
    let about = CString::new(package.manifest()).unwrap_or_default();
    Box::into_raw(Box::new(KilnPackage { package, about }))
}

/// Opens a file. `flags` is 0, or `KILN_TRUSTED`, with which the file is not compared with its checksums. The file
/// must not be written into while the package is open; replacing it by a new one is safe.
///
/// # Safety
/// `path` is a text; `to` leads to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_open(
    path: *const c_char,
    flags: u32,
    to: *mut *mut KilnPackage,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let path = unsafe { text(path, "the path")? };
        let package = options(flags)?.open(path)?;
        // SAFETY: the caller's.
        unsafe { give(to, boxed(package), "the result") }
    })
}

/// Opens a package that is in memory, of which it makes a copy.
///
/// # Safety
/// `data` leads to so many bytes; `to` leads to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_open_bytes(
    data: *const c_void,
    bytes: usize,
    flags: u32,
    to: *mut *mut KilnPackage,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let bytes = unsafe { list(data.cast::<u8>(), bytes, "the data")? };
        let package = options(flags)?.open_bytes(bytes)?;
        // SAFETY: the caller's.
        unsafe { give(to, boxed(package), "the result") }
    })
}

/// What the package says of itself, as JSON: entries with their inputs and outputs, states, files. It stays until the
/// package is freed. Null for a package that is null.
///
/// # Safety
/// `package` is null or one of the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_describe(package: *const KilnPackage) -> *const c_char {
    // SAFETY: the caller's.
    match unsafe { package.as_ref() } {
        Some(package) => package.about.as_ptr(),
        None => std::ptr::null(),
    }
}

/// Frees a package. Entries and tensors of it stay.
///
/// # Safety
/// It is null, or one of the library's that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_package_free(package: *mut KilnPackage) {
    // SAFETY: the caller's; the library makes handles by `Box::into_raw`.
    unsafe { free(package) };
}

/// An asset. The bytes stay until the package is freed.
///
/// # Safety
/// `package` is one of the library's, `name` a text; `data` and `bytes` lead to memory for a pointer and a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_asset(
    package: *const KilnPackage,
    name: *const c_char,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, name) = unsafe { (given(package, "the package")?, text(name, "the name")?) };
        let asset = package.package.asset(name)?;
        // SAFETY: the caller's.
        unsafe {
            give(data, asset.as_ptr().cast(), "the data")?;
            give(bytes, asset.len(), "the size")
        }
    })
}

/// What a state holds now. Later runs do not change the tensor.
///
/// # Safety
/// `package` is one of the library's, `name` a text; `to` leads to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_get(
    package: *const KilnPackage,
    name: *const c_char,
    to: *mut *mut KilnTensor,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, name) = unsafe { (given(package, "the package")?, text(name, "the name")?) };
        let value = package.package.get(name)?;
        // SAFETY: the caller's.
        unsafe { give(to, Box::into_raw(Box::new(KilnTensor(value))), "the result") }
    })
}

/// Makes a state hold a tensor.
///
/// # Safety
/// `package` and `value` are the library's, `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_set(
    package: *const KilnPackage,
    name: *const c_char,
    value: *const KilnTensor,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, name) = unsafe { (given(package, "the package")?, text(name, "the name")?) };
        // SAFETY: the caller's.
        let KilnTensor(value) = unsafe { given(value, "the value")? };
        Ok(package.package.set(name, value.clone())?)
    })
}

/// A number that is an element of a state, such as `lr` of `optimizer.numbers`.
///
/// # Safety
/// `package` is one of the library's, `state` and `element` are texts; `to` leads to memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_number_get(
    package: *const KilnPackage,
    state: *const c_char,
    element: *const c_char,
    to: *mut f64,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, state) =
            unsafe { (given(package, "the package")?, text(state, "the state")?) };
        // SAFETY: the caller's.
        let element = unsafe { text(element, "the element")? };
        let value = package.package.number(state, element)?;
        // SAFETY: the caller's.
        unsafe { give(to, value, "the result") }
    })
}

/// Changes a number that is an element of a state.
///
/// # Safety
/// `package` is one of the library's, `state` and `element` are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_number_set(
    package: *const KilnPackage,
    state: *const c_char,
    element: *const c_char,
    value: f64,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, state) =
            unsafe { (given(package, "the package")?, text(state, "the state")?) };
        // SAFETY: the caller's.
        let element = unsafe { text(element, "the element")? };
        Ok(package.package.set_number(state, element, value)?)
    })
}

/// Makes all states hold what the file holds.
///
/// # Safety
/// `package` is one of the library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_reset(package: *const KilnPackage) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let package = unsafe { given(package, "the package")? };
        Ok(package.package.reset()?)
    })
}

/// Writes the states as a safetensors file, which replaces an older one whole.
///
/// # Safety
/// `package` is one of the library's, `path` a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_save(
    package: *const KilnPackage,
    path: *const c_char,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, path) = unsafe { (given(package, "the package")?, text(path, "the path")?) };
        Ok(package.package.save_state(path)?)
    })
}

/// Makes all states hold what a safetensors file holds.
///
/// # Safety
/// `package` is one of the library's, `path` a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_state_load(
    package: *const KilnPackage,
    path: *const c_char,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, path) = unsafe { (given(package, "the package")?, text(path, "the path")?) };
        Ok(package.package.load_state(path)?)
    })
}

/// Writes the package with its states as they are now, which replaces an older one whole.
///
/// # Safety
/// `package` is one of the library's, `path` a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_save(package: *const KilnPackage, path: *const c_char) -> KilnStatus {
    call(|| {
        // SAFETY: the caller's.
        let (package, path) = unsafe { (given(package, "the package")?, text(path, "the path")?) };
        Ok(package.package.save(path)?)
    })
}

/// Sets how many threads run kernels, for the whole process. Results never depend on it.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_set_threads(threads: usize) -> KilnStatus {
    call(|| {
        kiln_package::set_threads(threads);
        Ok(())
    })
}

/// Limits the bytes that the library may hold, mapped files not among them; 0 for no limit.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_set_memory_limit(bytes: usize) -> KilnStatus {
    call(|| {
        memory::set_limit(Some(bytes).filter(|n| *n > 0));
        Ok(())
    })
}
