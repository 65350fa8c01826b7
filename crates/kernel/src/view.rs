//! Typed memory with known bounds, which the threads of a kernel share.
//!
//! A [`View`] is an address and the range of indices around it that may be accessed. Index 0 may be outside the range:
//! a copy of a part of an array then keeps the indices of the array. Every access is checked against the range. Code
//! that needs bare addresses gets them from [`View::address`], which checks the range that the code accesses.
//!
//! Bounds do not prevent data races. Whoever creates the first view of some memory, also by [`ViewMut::of`] and
//! [`ViewMut::room`], guarantees that threads write different elements, that no thread reads them meanwhile, and that
//! mutable slices do not overlap. All views that are derived from it rely on this.

use crate::error::Result;
use crate::memory::{Category, Holder, Storage};
use std::marker::PhantomData;
use std::ops::Deref;

/// A number type of which every bit pattern is a value.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding.
pub unsafe trait Plain: Copy + Default + Send + Sync + 'static {}
macro_rules! plain {
    ($($t:ty)*) => {
        // SAFETY: they are numbers.
        $(unsafe impl Plain for $t {})*
    };
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 u128 usize f32 f64 half::bf16 half::f16);

/// A read-only view of elements.
pub struct View<'a, T> {
    /// The address of index 0.
    base: *const T,
    /// The range of indices that may be accessed.
    from: i64,
    to: i64,
    memory: PhantomData<&'a T>,
}
// SAFETY: the creator of the first view guarantees that threads may share it.
unsafe impl<T: Plain> Sync for View<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Send for View<'_, T> {}
impl<T> Clone for View<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for View<'_, T> {}

/// Returns the range of offsets that indices of these extents and strides reach, its end excluded. The range is empty
/// if an extent is 0.
#[inline(always)]
pub fn span<const N: usize>(dims: [(i64, i64); N]) -> [i64; 2] {
    let (mut low, mut high) = (0i64, 1i64);
    for (extent, stride) in dims {
        if extent <= 0 {
            return [0; 2];
        }
        let extent_end = (extent - 1).saturating_mul(stride);
        (low, high) = (
            low.saturating_add(extent_end.min(0)),
            high.saturating_add(extent_end.max(0)),
        );
    }
    [low, high]
}

#[cold]
#[inline(never)]
#[track_caller]
fn out_of_bounds([low, high]: [i64; 2], [from, to]: [i64; 2]) -> ! {
    panic!("{low} to {high} of {from} to {to}");
}

impl<'a, T: Plain> View<'a, T> {
    /// Returns a view of a slice.
    pub fn of(slice: &'a [T]) -> View<'a, T> {
        View {
            base: slice.as_ptr(),
            from: 0,
            to: slice.len() as i64,
            memory: PhantomData,
        }
    }

    /// Returns the same elements with index 0 moved by `by`.
    #[inline(always)]
    #[must_use]
    pub fn shift(self, by: i64) -> View<'a, T> {
        View {
            base: self.base.wrapping_offset(by as isize),
            from: self.from.saturating_sub(by),
            to: self.to.saturating_sub(by),
            memory: PhantomData,
        }
    }

    /// Returns the address of index 0, relative to which the indices `low..high` may be accessed.
    ///
    /// # Panics
    /// If the range is not in the view.
    #[inline(always)]
    #[track_caller]
    pub fn address(&self, [low, high]: [i64; 2]) -> *const T {
        if (low < self.from || high > self.to) && low < high {
            out_of_bounds([low, high], [self.from, self.to]);
        }
        self.base
    }

    /// Checks that `len` elements from `i` on are in the view; `len` is at least 1.
    #[inline(always)]
    #[track_caller]
    fn check(&self, i: i64, len: i64) {
        if i < self.from || i >= self.to || len > self.to - i {
            out_of_bounds([i, i.saturating_add(len)], [self.from, self.to]);
        }
    }

    /// Returns an element.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, i: i64) -> T {
        self.check(i, 1);
        // SAFETY: the element is in the view.
        unsafe { *self.base.offset(i as isize) }
    }

    /// Returns `len` elements from `i` on.
    #[inline(always)]
    #[track_caller]
    pub fn slice(&self, i: i64, len: i64) -> &'a [T] {
        if len <= 0 {
            return &[];
        }
        self.check(i, len);
        // SAFETY: the elements are in the view, and nobody writes them meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.offset(i as isize), len as usize) }
    }

    /// Returns the same memory as elements of another type.
    ///
    /// # Panics
    /// If index 0 is not aligned for it.
    #[inline(always)]
    pub fn cast<U: Plain>(self) -> View<'a, U> {
        let base = self.base.cast::<U>();
        assert!(
            base.addr().is_multiple_of(align_of::<U>()),
            "unaligned elements"
        );
        let (old_size, new_size) = (size_of::<T>() as i64, size_of::<U>() as i64);
        View {
            base,
            from: -(-self.from.saturating_mul(old_size)).div_euclid(new_size),
            to: self.to.saturating_mul(old_size).div_euclid(new_size),
            memory: PhantomData,
        }
    }

    /// Returns the same memory as bytes.
    #[inline(always)]
    pub fn bytes(self) -> View<'a, u8> {
        self.cast()
    }

    /// Returns a number that identifies views with the same index 0.
    pub fn id(&self) -> usize {
        self.base.addr()
    }
}

/// A mutable view of elements.
pub struct ViewMut<'a, T>(View<'a, T>);
impl<T> Clone for ViewMut<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ViewMut<'_, T> {}
impl<'a, T> Deref for ViewMut<'a, T> {
    type Target = View<'a, T>;

    #[inline(always)]
    fn deref(&self) -> &View<'a, T> {
        &self.0
    }
}

impl<'a, T: Plain> ViewMut<'a, T> {
    /// Returns a view of a slice.
    pub fn of(slice: &'a mut [T]) -> ViewMut<'a, T> {
        // SAFETY: the slice is borrowed.
        unsafe { ViewMut::new(slice.as_mut_ptr(), slice.len()) }
    }

    /// Returns a view of elements at an address.
    ///
    /// # Safety
    /// As [`Arguments::new`].
    pub unsafe fn new(base: *mut T, len: usize) -> ViewMut<'a, T> {
        ViewMut(View {
            base,
            from: 0,
            to: len as i64,
            memory: PhantomData,
        })
    }

    /// Returns an empty view.
    pub fn none() -> ViewMut<'a, T> {
        ViewMut::of(&mut [])
    }

    /// Returns a view of `len` elements in `storage`, which grows if necessary and is reused between calls.
    ///
    /// # Errors
    /// If memory is short.
    pub fn room(storage: &'a mut Option<Storage>, len: i64) -> Result<ViewMut<'a, T>> {
        let bytes = len as usize * size_of::<T>();
        if storage.as_ref().is_none_or(|s| s.len() < bytes) {
            let holder = Holder::unknown(Category::Workspaces);
            *storage = Some(Storage::held_by(bytes, holder)?);
        }
        let start = storage.as_ref().map_or(std::ptr::null_mut(), Storage::ptr);
        #[cfg(feature = "testing")]
        crate::interpreted::declare_memory(start, bytes, true);
        // SAFETY: the storage is borrowed, and has room.
        Ok(unsafe { ViewMut::new(start.cast(), len as usize) })
    }

    /// As [`View::shift`].
    #[inline(always)]
    #[must_use]
    pub fn shift(self, by: i64) -> ViewMut<'a, T> {
        ViewMut(self.0.shift(by))
    }

    /// As [`View::cast`].
    #[inline(always)]
    pub fn cast<U: Plain>(self) -> ViewMut<'a, U> {
        ViewMut(self.0.cast())
    }

    /// As [`View::bytes`].
    #[inline(always)]
    pub fn bytes(self) -> ViewMut<'a, u8> {
        self.cast()
    }

    /// As [`View::address`].
    #[inline(always)]
    #[track_caller]
    pub fn address_mut(&self, range: [i64; 2]) -> *mut T {
        self.0.address(range).cast_mut()
    }

    /// Writes an element.
    #[inline(always)]
    #[track_caller]
    pub fn set(&self, i: i64, value: T) {
        self.check(i, 1);
        // SAFETY: the element is in the view.
        unsafe { *self.base.cast_mut().offset(i as isize) = value }
    }

    /// Returns `len` elements from `i` on, which only this thread may use.
    #[inline(always)]
    #[track_caller]
    pub fn slice_mut(&mut self, i: i64, len: i64) -> &mut [T] {
        if len <= 0 {
            return &mut [];
        }
        self.check(i, len);
        // SAFETY: the elements are in the view, and no other thread uses them.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.cast_mut().offset(i as isize), len as usize)
        }
    }

    /// Fills `len` elements from `i` on.
    #[inline(always)]
    #[track_caller]
    pub fn fill(mut self, i: i64, len: i64, value: T) {
        self.slice_mut(i, len).fill(value);
    }

    /// Copies a slice to the elements from `i` on.
    #[inline(always)]
    #[track_caller]
    pub fn copy(mut self, i: i64, from: &[T]) {
        self.slice_mut(i, from.len() as i64).copy_from_slice(from);
    }
}

/// The arguments of a kernel.
#[derive(Copy, Clone)]
pub struct Arguments<'a> {
    addresses: &'a [*mut u8],
    /// The sizes of the arguments in bytes.
    sizes: &'a [usize],
}
// SAFETY: the creator guarantees that the threads of the kernel may share them.
unsafe impl Sync for Arguments<'_> {}
// SAFETY: as above.
unsafe impl Send for Arguments<'_> {}

impl<'a> Arguments<'a> {
    /// Returns arguments at these addresses.
    ///
    /// # Safety
    /// Each address is aligned, and valid for its size while the result is used. The threads of the kernel write
    /// different elements, and nobody else writes what the kernel reads, or uses what it writes.
    pub unsafe fn new(addresses: &'a [*mut u8], sizes: &'a [usize]) -> Arguments<'a> {
        assert_eq!(addresses.len(), sizes.len(), "arguments without sizes");
        Arguments { addresses, sizes }
    }

    /// Returns the addresses.
    pub fn addresses(&self) -> &'a [*mut u8] {
        self.addresses
    }

    /// Returns the sizes in bytes.
    pub fn sizes(&self) -> &'a [usize] {
        self.sizes
    }

    /// Returns a view of an argument.
    #[inline(always)]
    pub fn view<T: Plain>(&self, i: usize) -> View<'a, T> {
        self.view_mut::<T>(i).0
    }

    /// Returns a mutable view of an argument.
    #[inline(always)]
    pub fn view_mut<T: Plain>(&self, i: usize) -> ViewMut<'a, T> {
        // SAFETY: the argument has its bytes.
        unsafe { ViewMut::new(self.addresses[i], self.sizes[i]) }.cast()
    }
}
