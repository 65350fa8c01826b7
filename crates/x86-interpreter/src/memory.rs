//! The memory that code was given.

use crate::fault::{FaultKind, Outcome, raise};
use std::marker::PhantomData;

/// Elements that are their bytes: any bytes are a value, and all bytes of a value are set.
///
/// # Safety
/// As said.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($t:ty)*) => {
        $(
            // SAFETY: numbers have no padding, and all their bit patterns are values.
            unsafe impl Plain for $t {}
        )*
    };
}
plain! { u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 }

// SAFETY: an array is its elements, one after the other.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A region of the process's memory.
struct Region {
    at: *mut u8,
    bytes: usize,
    writable: bool,
}

/// All memory that code may use.
#[derive(Default)]
pub(crate) struct Memory<'a> {
    regions: Vec<Region>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    pub fn readable<T: Plain>(&mut self, x: &'a [T]) {
        // SAFETY: a slice can be read as long as it is borrowed.
        unsafe { self.add(x.as_ptr() as *mut u8, size_of_val(x), false) }
    }

    pub fn writable<T: Plain>(&mut self, x: &'a mut [T]) {
        // SAFETY: nobody else uses a slice as long as it is borrowed so.
        unsafe { self.add(x.as_mut_ptr().cast(), size_of_val(x), true) }
    }

    /// Adds memory for which the caller answers.
    ///
    /// # Safety
    /// The bytes can be read, and written if `writable`, as long as this is used, and nobody else writes to them.
    pub unsafe fn add(&mut self, at: *mut u8, bytes: usize, writable: bool) {
        self.regions.push(Region {
            at,
            bytes,
            writable,
        });
    }

    /// Removes all but the first `regions` regions.
    pub fn truncate(&mut self, regions: usize) {
        self.regions.truncate(regions);
    }

    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Outcome<()> {
        let from = self.find(address, bytes.len(), false)?;
        // SAFETY: `find` returns a pointer to `bytes.len()` readable bytes of a region; nobody else uses `bytes`.
        unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Outcome<()> {
        let to = self.find(address, bytes.len(), true)?;
        // SAFETY: `find` returns a pointer to `bytes.len()` writable bytes of a region.
        unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    pub fn check_writable(&self, address: u64, bytes: usize) -> Outcome<()> {
        self.find(address, bytes, true).map(|_| ())
    }

    /// The pointer to bytes that all lie within one region.
    fn find(&self, address: u64, bytes: usize, writes: bool) -> Outcome<*mut u8> {
        let mut read_only = false;
        for region in &self.regions {
            let offset = address.wrapping_sub(region.at as u64);
            let inside =
                (offset.checked_add(bytes as u64)).is_some_and(|e| e <= region.bytes as u64);
            if inside && (region.writable || !writes) {
                return Ok(region.at.wrapping_add(offset as usize));
            }
            read_only |= inside;
        }
        let does = if writes { "writes" } else { "reads" };
        if read_only {
            let message = format!("{does} {bytes} bytes at {address:#x}, which may only be read");
            return raise(FaultKind::ReadOnly, message);
        }
        let nearest = self.nearest(address);
        let message = format!("{does} {bytes} bytes at {address:#x}{nearest}");
        raise(FaultKind::OutOfBounds, message)
    }

    /// Describes the position of an address relative to the nearest region.
    fn nearest(&self, address: u64) -> String {
        let distance = |r: &&Region| {
            let end = r.at as u64 + r.bytes as u64;
            (address.saturating_sub(end)).max((r.at as u64).saturating_sub(address))
        };
        let Some(region) = self.regions.iter().min_by_key(distance) else {
            return String::new();
        };
        let offset = address.wrapping_sub(region.at as u64) as i64;
        let bytes = region.bytes;
        format!(", byte {offset} of the nearest region, which has {bytes} bytes")
    }
}
