//! Running entries.

use crate::package::KilnPackage;
use crate::status::{Failure, KilnStatus, call, deref, free, give, hand_over, invalid, list, text};
use crate::tensor::{KilnTensor, KilnView, copy_in, copy_out};
use kiln_package::{Buffer, Entry, Outputs};
use std::ffi::c_char;

/// An entry that is ready to run.
pub struct KilnEntry(Entry);

/// Prepares an entry for runs.
///
/// # Safety
/// `package` is one of the library's, `name` a C string; `to` points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_entry(
    package: *const KilnPackage,
    name: *const c_char,
    to: *mut *mut KilnEntry,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let (package, name) = unsafe { (deref(package, "the package")?, text(name, "the name")?) };
        // SAFETY: the caller guarantees it.
        unsafe { hand_over(to, || Ok(KilnEntry(package.package.entry(name)?))) }
    })
}

/// Frees an entry.
///
/// # Safety
/// It is null, or one of the library's that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_entry_free(entry: *mut KilnEntry) {
    // SAFETY: the caller guarantees it; the library makes handles by `Box::into_raw`.
    unsafe { free(entry) };
}

/// Returns the number of inputs and of outputs of an entry.
///
/// # Safety
/// `entry` is one of the library's; `inputs` and `outputs` point to memory for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_entry_counts(
    entry: *const KilnEntry,
    inputs: *mut usize,
    outputs: *mut usize,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let KilnEntry(entry) = unsafe { deref(entry, "the entry")? };
        // SAFETY: the caller guarantees it.
        unsafe {
            give(inputs, entry.interface().inputs.len(), "inputs")?;
            give(outputs, entry.interface().outputs.len(), "outputs")
        }
    })
}

/// Returns the bytes that a run takes besides the weights, for these values of its symbolic sizes, in the order of
/// the package's description.
///
/// # Safety
/// `entry` is one of the library's, `sizes` points to `count` numbers; `to` points to memory for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_entry_memory(
    entry: *const KilnEntry,
    sizes: *const i64,
    count: usize,
    to: *mut usize,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let KilnEntry(entry) = unsafe { deref(entry, "the entry")? };
        // SAFETY: the caller guarantees it.
        let sizes = unsafe { list(sizes, count, "the sizes")? };
        let symbols = &entry.interface().symbols;
        if symbols.len() != count {
            return Err(invalid(format!(
                "there are {} sizes, not {count}",
                symbols.len()
            )));
        }
        let named = symbols
            .iter()
            .map(|s| &s.name[..])
            .zip(sizes.iter().copied());
        let run = entry.memory(&named.collect::<Vec<_>>())?.run;
        let bytes = run.peak + run.prepared + run.outputs + run.constants;
        // SAFETY: the caller guarantees it.
        unsafe { give(to, bytes, "the result") }
    })
}

/// Runs an entry on tensors of the caller, in the order of its inputs. The results are tensors of the library, which
/// the caller frees. `outputs` is filled only if the run succeeds.
///
/// # Safety
/// `entry` is one of the library's. `inputs` points to `input_count` views, whose pointers are valid for the sizes
/// that they state, and `outputs` to memory for `output_count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_run(
    entry: *const KilnEntry,
    inputs: *const KilnView,
    input_count: usize,
    outputs: *mut *mut KilnTensor,
    output_count: usize,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let KilnEntry(entry) = unsafe { deref(entry, "the entry")? };
        if outputs.is_null() && output_count > 0 {
            return Err(invalid("outputs is null"));
        }
        // SAFETY: the caller guarantees it.
        let results = unsafe { run(entry, (inputs, input_count), output_count)? };
        for (i, value) in results.into_vec().into_iter().enumerate() {
            // SAFETY: there is memory for one pointer per result.
            unsafe {
                outputs
                    .add(i)
                    .write(Box::into_raw(Box::new(KilnTensor(value))))
            };
        }
        Ok(())
    })
}

/// Runs an entry on tensors of the caller and copies the results into tensors of the caller, which must have the
/// dtypes, shapes and bytes of the results. The state of the package changes even if results do not fit.
///
/// # Safety
/// `entry` is one of the library's. `inputs` and `outputs` point to `input_count` and `output_count` views, whose
/// pointers are valid for the sizes that they state. The memory of the outputs is not used by anyone else meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_run_into(
    entry: *const KilnEntry,
    inputs: *const KilnView,
    input_count: usize,
    outputs: *const KilnView,
    output_count: usize,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let KilnEntry(entry) = unsafe { deref(entry, "the entry")? };
        // SAFETY: the caller guarantees it.
        let outputs = unsafe { list(outputs, output_count, "the outputs")? };
        // SAFETY: the caller guarantees it.
        let results = unsafe { run(entry, (inputs, input_count), output_count)? };
        for ((name, value), view) in results.iter().zip(outputs) {
            // SAFETY: the caller guarantees it.
            unsafe { copy_out(&value.to_host()?, view, name)? };
        }
        Ok(())
    })
}

/// Runs an entry, which must have `outputs` outputs.
///
/// # Safety
/// `inputs` points to `count` views, whose pointers are valid for the sizes that they state.
unsafe fn run(
    entry: &Entry,
    (inputs, count): (*const KilnView, usize),
    outputs: usize,
) -> Result<Outputs, Failure> {
    let gives = entry.interface().outputs.len();
    if gives != outputs {
        return Err(invalid(format!(
            "`{}` has {gives} outputs, not {outputs}",
            entry.name()
        )));
    }
    // SAFETY: the caller guarantees it.
    let views = unsafe { list(inputs, count, "the inputs")? };
    // SAFETY: the caller guarantees it.
    let values = views.iter().map(|view| unsafe { copy_in(view) });
    let values: Vec<Buffer> = values.collect::<Result<_, _>>()?;
    Ok(entry.run(values)?)
}
