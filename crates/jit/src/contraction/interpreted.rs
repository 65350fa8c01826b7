//! Interpretation of a tile's code, which may also read the call's lists of addresses.

use super::tile::Call;
use kiln_kernel::interpreted::{call, is_on};
use std::cell::RefCell;
use std::collections::HashMap;

thread_local! {
    /// The lists, by the address of the code.
    static LISTS: RefCell<HashMap<*const u8, Lists>> = RefCell::default();
}

/// The lists that a tile's code is called with.
#[derive(Copy, Clone, Default)]
pub struct Lists {
    /// The number of taps, and of accesses of the epilogue.
    pub taps: usize,
    pub locations: usize,
    /// True if A is a list of lines and a list of padding, each up to a zero.
    pub lines: bool,
}

/// Registers emitted code that takes these lists.
pub fn takes(code: &[u8], lists: Lists) {
    LISTS.with_borrow_mut(|all| all.insert(code.as_ptr(), lists));
}

/// Interprets a call of a tile's code, if this thread does so; returns false otherwise.
pub fn tile(code: &[u8], tile: &Call) -> bool {
    if !is_on() {
        return false;
    }
    let lists = LISTS.with_borrow(|all| all[&code.as_ptr()]);
    let list = |at: *const u8, n: usize| (at, 8 * n, false);
    let mut extra_registers = vec![
        (std::ptr::from_ref(tile).cast(), size_of::<Call>(), false),
        list(tile.taps.cast(), lists.taps),
        list(tile.accesses.cast(), lists.locations),
    ];
    if lists.lines {
        let all = tile.left.cast::<usize>();
        let mut n = 0;
        for step in [2, 1] {
            // SAFETY: either list ends with a zero.
            while unsafe { *all.add(n) } != 0 {
                n += step;
            }
            n += 1;
        }
        extra_registers.push(list(tile.left, n));
    }
    call(code, &[std::ptr::from_ref(tile) as u64], &extra_registers)
}
