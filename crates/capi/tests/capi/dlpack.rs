//! Tensors from and to other libraries.

use kiln_c::*;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tensor of another library, which counts the calls of its deleter.
struct Foreign {
    /// The numbers, with room to begin at a multiple of 64 bytes.
    memory: Vec<f32>,
    begin: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    freed: AtomicUsize,
}

impl Foreign {
    /// The numbers 0, 1, 2, …, beginning `off` floats behind an aligned address.
    fn new(shape: &[i64], strides: &[i64], off: usize) -> Box<Foreign> {
        let mut memory = vec![0f32; 256];
        let begin = (64 - memory.as_ptr().addr() % 64) % 64 / 4 + off;
        (0..128).for_each(|i| memory[begin + i] = i as f32);
        Box::new(Foreign {
            memory,
            begin,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            freed: AtomicUsize::new(0),
        })
    }

    fn tensor(&mut self) -> DLTensor {
        DLTensor {
            data: self.memory.as_mut_ptr().cast(),
            device: DLDevice {
                device_type: 1,
                device_id: 0,
            },
            ndim: self.shape.len() as i32,
            dtype: DLDataType {
                code: 2,
                bits: 32,
                lanes: 1,
            },
            shape: self.shape.as_mut_ptr(),
            strides: match self.strides.is_empty() {
                true => null_mut(),
                false => self.strides.as_mut_ptr(),
            },
            byte_offset: 4 * self.begin as u64,
        }
    }

    fn managed(&mut self) -> DLManagedTensor {
        DLManagedTensor {
            dl_tensor: self.tensor(),
            manager_ctx: (&raw const self.freed).cast_mut().cast(),
            deleter: Some(count),
        }
    }

    fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn count(this: *mut DLManagedTensor) {
    // SAFETY: the context is the counter of a tensor that still exists.
    unsafe { (*(*this).manager_ctx.cast::<AtomicUsize>()).fetch_add(1, Ordering::Relaxed) };
}

fn last() -> String {
    // SAFETY: it is the library's text, which stays valid until the next failure.
    let text = unsafe { CStr::from_ptr(kiln_last_error()) };
    text.to_str().unwrap().to_string()
}

/// The shape, the values and the address of a tensor of the library.
fn held(tensor: *mut KilnTensor) -> (Vec<i64>, Vec<f32>, *const f32) {
    let mut view = std::mem::MaybeUninit::uninit();
    // SAFETY: the tensor is the library's, and its view is valid.
    unsafe {
        let status = kiln_tensor_view(tensor, view.as_mut_ptr());
        assert_eq!(status, KilnStatus::KILN_OK);
        let view: KilnView = view.assume_init();
        assert_eq!(view.dtype, KilnDType::KILN_F32 as i32);
        let shape = std::slice::from_raw_parts(view.shape, view.rank as usize);
        let data = std::slice::from_raw_parts(view.data.cast::<f32>(), view.bytes / 4);
        (shape.to_vec(), data.to_vec(), data.as_ptr())
    }
}

#[test]
fn tensors_of_other_libraries_are_read_where_they_lie_or_copied() {
    let dense: Vec<f32> = (0..6).map(|i| i as f32).collect();
    for (shape, strides, off, wanted, in_place) in [
        (&[2, 3][..], &[][..], 0, dense.clone(), true),
        (&[2, 3], &[3, 1], 0, dense.clone(), true),
        (&[1, 6], &[77, 1], 0, dense.clone(), true),
        (&[2, 3], &[3, 1], 1, dense.clone(), false),
        (
            &[2, 3],
            &[1, 2],
            0,
            vec![0.0, 2.0, 4.0, 1.0, 3.0, 5.0],
            false,
        ),
        (&[2, 2], &[0, 5], 0, vec![0.0, 5.0, 0.0, 5.0], false),
        (&[], &[], 0, vec![0.0], true),
        (&[3, 0], &[], 0, vec![], false),
    ] {
        let mut foreign = Foreign::new(shape, strides, off);
        let mut managed = foreign.managed();
        let place = foreign.memory[foreign.begin..].as_ptr();
        let mut tensor = null_mut();
        // SAFETY: the pointers are valid for values of this test, which outlive the tensor.
        unsafe {
            let status = kiln_tensor_from_dlpack(&mut managed, &mut tensor);
            assert_eq!(status, KilnStatus::KILN_OK, "{}", last());
            let (found, values, data) = held(tensor);
            assert_eq!((&found[..], values), (shape, wanted));
            assert_eq!(data == place, in_place, "{shape:?} {strides:?}");
            assert_eq!(foreign.freed(), usize::from(!in_place));
            kiln_tensor_free(tensor);
        }
        assert_eq!(foreign.freed(), 1, "{shape:?} {strides:?}");
    }
}

#[test]
fn tensors_are_given_to_other_libraries() {
    let mut foreign = Foreign::new(&[2, 3], &[], 0);
    let mut managed = foreign.managed();
    let (mut tensor, mut copy, mut shared) = (null_mut(), null_mut(), null_mut());
    let mut back = null_mut();
    // SAFETY: the pointers are valid for values of this test; every tensor is freed once.
    unsafe {
        kiln_tensor_from_dlpack(&mut managed, &mut tensor);
        let (.., data) = held(tensor);
        let status = kiln_tensor_to_dlpack(tensor, &mut copy);
        assert_eq!(status, KilnStatus::KILN_OK);
        let status = kiln_tensor_to_dlpack_versioned(tensor, &mut shared);
        assert_eq!(status, KilnStatus::KILN_OK);
        kiln_tensor_free(tensor);
        // The tensor for the other library keeps the memory alive.
        assert_eq!(foreign.freed(), 0);
        assert_eq!(((*shared).version.major, (*shared).flags), (1, 1));
        assert_eq!((*shared).dl_tensor.data.cast_const().cast(), data);
        assert_ne!((*copy).dl_tensor.data.cast_const().cast(), data);
        let t = &(*copy).dl_tensor;
        assert_eq!((t.ndim, *t.shape.add(1), *t.strides), (2, 3, 3));
        assert_eq!((t.dtype.code, t.dtype.bits, t.dtype.lanes), (2, 32, 1));
        *t.data.cast::<f32>() = 9.0;
        assert_eq!(*data, 0.0);
        // And back again.
        let status = kiln_tensor_from_dlpack_versioned(shared, &mut back);
        assert_eq!(status, KilnStatus::KILN_OK, "{}", last());
        assert_eq!(held(back).1, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        kiln_tensor_free(back);
        assert_eq!(foreign.freed(), 1);
        ((*copy).deleter.unwrap())(copy);
    }
}

#[test]
fn tensors_without_elements_are_not_walked() {
    let mut foreign = Foreign::new(&[1 << 50, 0], &[], 0);
    let mut managed = foreign.managed();
    let mut tensor = null_mut();
    // SAFETY: the pointers are valid for values of this test.
    unsafe {
        let status = kiln_tensor_from_dlpack(&mut managed, &mut tensor);
        assert_eq!(status, KilnStatus::KILN_OK, "{}", last());
        assert_eq!(held(tensor).0, [1 << 50, 0]);
        kiln_tensor_free(tensor);
    }
}

fn negative(t: &mut DLTensor) {
    // SAFETY: the shape has two elements.
    unsafe { *t.shape = -3 };
}

#[test]
fn tensors_that_can_not_be_read_stay_their_owners() {
    type Change = fn(&mut DLTensor);
    let wrong: [(Change, KilnStatus, &str); 8] = [
        (
            |t| t.device.device_type = 2,
            KilnStatus::KILN_VALUE,
            "a device of type 2",
        ),
        (
            |t| t.dtype.lanes = 4,
            KilnStatus::KILN_VALUE,
            "32 bits in 4 lanes",
        ),
        (
            |t| t.dtype.code = 5,
            KilnStatus::KILN_VALUE,
            "no dtype of kind 5",
        ),
        (|t| t.ndim = -1, KilnStatus::KILN_ARGUMENT, "-1 dims"),
        (|t| t.ndim = 65, KilnStatus::KILN_ARGUMENT, "65 dims"),
        (
            |t| t.shape = null_mut(),
            KilnStatus::KILN_ARGUMENT,
            "the shape is null",
        ),
        (
            |t| t.data = null_mut(),
            KilnStatus::KILN_ARGUMENT,
            "the data is null",
        ),
        (
            negative,
            KilnStatus::KILN_VALUE,
            "no tensor of shape [-3, 3]",
        ),
    ];
    for (change, wanted, text) in wrong {
        let mut foreign = Foreign::new(&[2, 3], &[], 0);
        let mut managed = foreign.managed();
        change(&mut managed.dl_tensor);
        let mut tensor = null_mut();
        // SAFETY: the pointers are valid for values of this test, or null.
        let status = unsafe { kiln_tensor_from_dlpack(&mut managed, &mut tensor) };
        assert_eq!(status, wanted, "{text}");
        assert!(last().contains(text), "{}, not {text}", last());
        assert!(tensor.is_null() && foreign.freed() == 0);
    }
    let mut foreign = Foreign::new(&[2, 3], &[], 0);
    let mut later = DLManagedTensorVersioned {
        version: DLPackVersion { major: 2, minor: 0 },
        manager_ctx: null_mut(),
        deleter: None,
        flags: 0,
        dl_tensor: foreign.tensor(),
    };
    let mut tensor = null_mut();
    // SAFETY: the pointers are valid for values of this test, or null.
    unsafe {
        let status = kiln_tensor_from_dlpack_versioned(&mut later, &mut tensor);
        assert_eq!(status, KilnStatus::KILN_VALUE);
        assert!(last().contains("DLPack 2.0"), "{}", last());
        let status = kiln_tensor_from_dlpack(null_mut(), &mut tensor);
        assert_eq!(status, KilnStatus::KILN_ARGUMENT);
        let status = kiln_tensor_to_dlpack(null_mut(), &mut null_mut());
        assert_eq!(status, KilnStatus::KILN_ARGUMENT);
        let mut managed = foreign.managed();
        let status = kiln_tensor_from_dlpack(&mut managed, null_mut());
        assert_eq!(status, KilnStatus::KILN_ARGUMENT);
        assert_eq!(foreign.freed(), 0);
    }
}
