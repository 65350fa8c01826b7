//! Typed memory with known bounds, which the threads of a kernel share.
//!
//! A [`View`] is an address and the range of indices around it that may be accessed. Index 0 may lie anywhere, also
//! outside, so that a copy of a part of an array has the indices of the array. Every access is checked against the
//! range; code that takes bare addresses gets them from [`View::address`], which checks all that the code touches.
//!
//! Whoever makes the first view of some memory, [`ViewMut::of`] and [`ViewMut::room`] included, promises what bounds
//! can't show: that threads write different elements, that no other reads them meanwhile, and that no two slices of the
//! same elements that may be written are alive. All views that are derived from it rely on this promise.

use crate::error::Result;
use crate::memory::{Category, Holder, Storage};
use std::marker::PhantomData;
use std::ops::Deref;

/// A number of which all bits are values.
///
/// # Safety
/// All of its bit patterns are values, and it has no padding.
pub unsafe trait Plain: Copy + Default + Send + Sync + 'static {}
macro_rules! plain {
    ($($t:ty)*) => {
        // SAFETY: they are numbers.
        $(unsafe impl Plain for $t {})*
    };
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 u128 usize f32 f64 half::bf16 half::f16);

/// Elements that may be read.
pub struct View<'a, T> {
    at: *const T,
    /// The indices that may be accessed.
    from: i64,
    to: i64,
    memory: PhantomData<&'a T>,
}
// SAFETY: the maker of the first view promised that threads may share it.
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

/// Returns the lowest and the end of the offsets that indices of these extents and strides reach; both are 0 if there
/// are none.
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
fn outside([low, high]: [i64; 2], [from, to]: [i64; 2]) -> ! {
    panic!("{low} to {high} of {from} to {to}");
}

impl<'a, T: Plain> View<'a, T> {
    /// Returns a view of a slice.
    pub fn of(slice: &'a [T]) -> View<'a, T> {
        View {
            at: slice.as_ptr(),
            from: 0,
            to: slice.len() as i64,
            memory: PhantomData,
        }
    }

    /// Returns the same elements with another origin of indices.
    #[inline(always)]
    #[must_use]
    pub fn shift(self, by: i64) -> View<'a, T> {
        View {
            at: self.at.wrapping_offset(by as isize),
            from: self.from.saturating_sub(by),
            to: self.to.saturating_sub(by),
            memory: PhantomData,
        }
    }

    /// Returns the address of index 0. All indices from `low` up to `high` may be accessed there.
    ///
    /// # Panics
    /// If some of them are not in the view.
    #[inline(always)]
    #[track_caller]
    pub fn address(&self, [low, high]: [i64; 2]) -> *const T {
        if (low < self.from || high > self.to) && low < high {
            outside([low, high], [self.from, self.to]);
        }
        self.at
    }

    /// Checks that `len` elements from `i` on, at least one, are in the view.
    #[inline(always)]
    #[track_caller]
    fn check(&self, i: i64, len: i64) {
        if i < self.from || i >= self.to || len > self.to - i {
            outside([i, i.saturating_add(len)], [self.from, self.to]);
        }
    }

    /// Returns an element.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self, i: i64) -> T {
        self.check(i, 1);
        // SAFETY: the element is in the view.
        unsafe { *self.at.offset(i as isize) }
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
        unsafe { std::slice::from_raw_parts(self.at.offset(i as isize), len as usize) }
    }

    /// Returns the same memory as elements of another type.
    ///
    /// # Panics
    /// If index 0 is not aligned for it.
    #[inline(always)]
    pub fn cast<U: Plain>(self) -> View<'a, U> {
        let at = self.at.cast::<U>();
        assert!(
            at.addr().is_multiple_of(align_of::<U>()),
            "unaligned elements"
        );
        let (size, of) = (size_of::<T>() as i64, size_of::<U>() as i64);
        View {
            at,
            from: -(-self.from.saturating_mul(size)).div_euclid(of),
            to: self.to.saturating_mul(size).div_euclid(of),
            memory: PhantomData,
        }
    }

    /// Returns the same memory as bytes.
    #[inline(always)]
    pub fn bytes(self) -> View<'a, u8> {
        self.cast()
    }

    /// Returns the address of index 0, by which views of the same elements are known.
    pub fn id(&self) -> usize {
        self.at.addr()
    }
}

/// Elements that may be read and written.
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
    pub unsafe fn new(at: *mut T, len: usize) -> ViewMut<'a, T> {
        ViewMut(View {
            at,
            from: 0,
            to: len as i64,
            memory: PhantomData,
        })
    }

    /// Returns a view of nothing.
    pub fn none() -> ViewMut<'a, T> {
        ViewMut::of(&mut [])
    }

    /// Returns memory for `len` elements, kept in `storage` between calls.
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
        unsafe { *self.at.cast_mut().offset(i as isize) = value }
    }

    /// Returns `len` elements from `i` on, for this thread alone.
    #[inline(always)]
    #[track_caller]
    pub fn slice_mut(&mut self, i: i64, len: i64) -> &mut [T] {
        if len <= 0 {
            return &mut [];
        }
        self.check(i, len);
        // SAFETY: the elements are in the view, and no other thread uses them.
        unsafe {
            std::slice::from_raw_parts_mut(self.at.cast_mut().offset(i as isize), len as usize)
        }
    }

    /// Fills `len` elements from `i` on.
    #[inline(always)]
    #[track_caller]
    pub fn fill(mut self, i: i64, len: i64, value: T) {
        self.slice_mut(i, len).fill(value);
    }

    /// Copies elements to index `i` and on.
    #[inline(always)]
    #[track_caller]
    pub fn copy(mut self, i: i64, from: &[T]) {
        self.slice_mut(i, from.len() as i64).copy_from_slice(from);
    }
}

/// The arguments of a kernel.
#[derive(Copy, Clone)]
pub struct Arguments<'a> {
    at: &'a [*mut u8],
    /// The bytes of each.
    sizes: &'a [usize],
}
// SAFETY: the maker promised that the threads of the kernel may share them.
unsafe impl Sync for Arguments<'_> {}
// SAFETY: as above.
unsafe impl Send for Arguments<'_> {}

impl<'a> Arguments<'a> {
    /// Returns arguments at these addresses.
    ///
    /// # Safety
    /// Each has its bytes, aligned, for as long as the result is used. The kernel that gets them writes different
    /// elements by different threads, and nobody else writes what it reads, or uses what it writes.
    pub unsafe fn new(at: &'a [*mut u8], sizes: &'a [usize]) -> Arguments<'a> {
        assert_eq!(at.len(), sizes.len(), "arguments without sizes");
        Arguments { at, sizes }
    }

    /// Returns their addresses.
    pub fn addresses(&self) -> &'a [*mut u8] {
        self.at
    }

    /// Returns their bytes.
    pub fn sizes(&self) -> &'a [usize] {
        self.sizes
    }

    /// Returns an argument that is read.
    #[inline(always)]
    pub fn view<T: Plain>(&self, i: usize) -> View<'a, T> {
        self.view_mut::<T>(i).0
    }

    /// Returns an argument that is written.
    #[inline(always)]
    pub fn view_mut<T: Plain>(&self, i: usize) -> ViewMut<'a, T> {
        // SAFETY: the argument has its bytes.
        unsafe { ViewMut::new(self.at[i], self.sizes[i]) }.cast()
    }
}
