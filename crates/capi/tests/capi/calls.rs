//! Calls with arguments of every wrong kind.

use crate::{numbers, package};
use kiln_c::*;
use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

fn last() -> String {
    // SAFETY: it is the library's text, which stays valid until the next failure.
    let text = unsafe { CStr::from_ptr(kiln_last_error()) };
    text.to_str().unwrap().to_string()
}

fn opened() -> *mut KilnPackage {
    let (bytes, mut package) = (package(), null_mut());
    // SAFETY: the pointers are valid for values of this function.
    let status = unsafe { kiln_open_bytes(bytes.as_ptr().cast(), bytes.len(), 0, &mut package) };
    assert_eq!(status, KilnStatus::KILN_OK);
    package
}

#[test]
fn null_and_nonsense_are_arguments_that_are_wrong() {
    let package = opened();
    let (mut entry, mut tensor, mut other) = (null_mut(), null_mut(), null_mut());
    let (shape, mut data) = ([2i64], [1.0f32, 2.0]);
    let view = KilnView {
        data: data.as_mut_ptr().cast(),
        bytes: 8,
        dtype: KilnDType::KILN_F32 as i32,
        rank: 1,
        shape: shape.as_ptr(),
    };
    let text = |t: &'static CStr| t.as_ptr();
    let not_utf8: &[c_char] = &[-1, 0];
    let refused = |status, wanted: &str| {
        assert_eq!(status, KilnStatus::KILN_ARGUMENT, "{wanted}");
        assert!(last().contains(wanted), "{}, not {wanted}", last());
    };
    // SAFETY: every pointer is null or valid for values of this test.
    unsafe {
        refused(kiln_open(null(), 0, &mut other), "the path is null");
        refused(
            kiln_open(not_utf8.as_ptr(), 0, &mut other),
            "the path is no UTF-8",
        );
        refused(kiln_open(text(c"x"), 7, &mut other), "there are no flags 7");
        refused(
            kiln_open_bytes(null(), 5, 0, &mut other),
            "the data is null",
        );
        refused(
            kiln_entry(null(), text(c"forward"), &mut entry),
            "the package is null",
        );
        refused(kiln_entry(package, null(), &mut entry), "the name is null");
        refused(
            kiln_entry(package, text(c"forward"), null_mut()),
            "the result is null",
        );
        refused(kiln_tensor_new(null(), &mut tensor), "the view is null");
        refused(
            kiln_tensor_new(&KilnView { dtype: 99, ..view }, &mut tensor),
            "no dtype 99",
        );
        refused(
            kiln_tensor_new(
                &KilnView {
                    data: null_mut(),
                    ..view
                },
                &mut tensor,
            ),
            "the data is null",
        );
        refused(
            kiln_tensor_new(
                &KilnView {
                    shape: null(),
                    ..view
                },
                &mut tensor,
            ),
            "the shape is null",
        );
        refused(
            kiln_tensor_new(
                &KilnView {
                    bytes: usize::MAX,
                    ..view
                },
                &mut tensor,
            ),
            "can't have",
        );
        refused(
            kiln_state_set(package, text(c"fc.weight"), null()),
            "the value is null",
        );
        let missing = kiln_open(text(c"/none/there.kiln"), 0, &mut other);
        assert_eq!(missing, KilnStatus::KILN_IO);
        assert!(last().contains("/none/there.kiln"));
        let short = kiln_tensor_new(&KilnView { bytes: 7, ..view }, &mut tensor);
        assert_eq!(short, KilnStatus::KILN_VALUE);
        assert_eq!(
            kiln_open_bytes(b"zip".as_ptr().cast(), 3, 0, &mut other),
            KilnStatus::KILN_DAMAGED
        );
        assert_eq!(
            kiln_entry(package, text(c"x"), &mut entry),
            KilnStatus::KILN_MISSING
        );
        assert!(entry.is_null() && tensor.is_null() && other.is_null());
        kiln_entry_free(null_mut());
        kiln_tensor_free(null_mut());
        kiln_package_free(null_mut());
        assert!(kiln_describe(null()).is_null());
        assert!(
            CStr::from_ptr(kiln_describe(package))
                .to_str()
                .unwrap()
                .contains("conv.weight")
        );
        let (mut asset, mut bytes) = (null(), 0);
        assert_eq!(
            kiln_asset(package, text(c"classes.txt"), &mut asset, &mut bytes),
            KilnStatus::KILN_OK
        );
        assert_eq!(
            std::slice::from_raw_parts(asset.cast::<u8>(), bytes),
            b"a\nb\n"
        );
        kiln_package_free(package);
    }
}

struct FailsAtEnd;

impl Drop for FailsAtEnd {
    fn drop(&mut self) {
        let mut package = null_mut();
        // SAFETY: the pointers are valid.
        let status = unsafe { kiln_open(c"/none".as_ptr(), 0, &mut package) };
        assert_eq!(status, KilnStatus::KILN_IO);
        // The text may be gone by now, but there is one.
        assert!(last().is_empty() || last().contains("none"));
    }
}

/// Destructors of a thread run in any order, so one of the two calls comes when the text of errors is gone.
#[test]
fn calls_fail_while_a_thread_ends() {
    thread_local! {
        static FIRST: FailsAtEnd = const { FailsAtEnd };
        static LAST: FailsAtEnd = const { FailsAtEnd };
    }
    let thread = std::thread::spawn(|| {
        FIRST.with(|_| ());
        assert_eq!(last(), "");
        // SAFETY: a null path is refused.
        unsafe { kiln_open(null(), 0, null_mut()) };
        LAST.with(|_| ());
    });
    thread.join().unwrap();
}

#[test]
fn entries_run_on_many_threads_and_outlive_their_package() {
    let package = opened();
    let mut entry = null_mut();
    // SAFETY: the pointers are valid for values of this test.
    unsafe {
        assert_eq!(
            kiln_entry(package, c"forward".as_ptr(), &mut entry),
            KilnStatus::KILN_OK
        );
        kiln_package_free(package);
    }
    let images = numbers(0, 3 * 36);
    let run = |entry: *const KilnEntry, rows: i64| {
        let (shape, out_shape) = ([rows, 1, 6, 6], [rows, 5]);
        let mut found = vec![0f32; 5 * rows as usize];
        let view = |data: *const f32, count: usize, shape: &[i64]| KilnView {
            data: data.cast_mut().cast(),
            bytes: 4 * count,
            dtype: KilnDType::KILN_F32 as i32,
            rank: shape.len() as u32,
            shape: shape.as_ptr(),
        };
        let given = view(images.as_ptr(), 36 * rows as usize, &shape);
        let to = view(found.as_mut_ptr(), found.len(), &out_shape);
        // SAFETY: the views are valid for values of this test.
        let status = unsafe { kiln_run_into(entry, &given, 1, &to, 1) };
        (status, found)
    };
    let (status, wanted) = run(entry, 3);
    assert_eq!(status, KilnStatus::KILN_OK);
    let shared = entry as usize;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(
                        run(shared as *const KilnEntry, 3),
                        (KilnStatus::KILN_OK, wanted.clone())
                    );
                    let (status, _) = run(shared as *const KilnEntry, 1);
                    assert_eq!(status, KilnStatus::KILN_VALUE);
                    assert!(last().contains("no program for batch = 1"));
                }
            });
        }
    });
    // SAFETY: the entry is not used any more; the pointers are valid for values of this test.
    unsafe {
        let (mut inputs, mut outputs, mut bytes) = (0, 0, 0);
        assert_eq!(
            kiln_entry_counts(entry, &mut inputs, &mut outputs),
            KilnStatus::KILN_OK
        );
        assert_eq!((inputs, outputs), (1, 1));
        assert_eq!(
            kiln_entry_memory(entry, [8i64].as_ptr(), 1, &mut bytes),
            KilnStatus::KILN_OK
        );
        assert!(bytes >= 8 * 5 * 4);
        assert_eq!(
            kiln_entry_memory(entry, null(), 0, &mut bytes),
            KilnStatus::KILN_ARGUMENT
        );
        kiln_entry_free(entry);
    }
}
