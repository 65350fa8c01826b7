//! Interpretation of a tile's code, whose lists of addresses it may read beside what is declared.

use super::Call;
use kiln_kernel::interpreted::{call, is_on};
use std::cell::RefCell;
use std::collections::HashMap;

thread_local! {
    /// By where the code is.
    static LISTS: RefCell<HashMap<*const u8, Lists>> = RefCell::default();
}

/// The lists that a tile's code is called with.
#[derive(Copy, Clone, Default)]
pub struct Lists {
    /// Taps, and accesses of the work on sums.
    pub taps: usize,
    pub places: usize,
    /// Whether the left operand is a list of lines and one of padding, each up to a zero.
    pub lines: bool,
}

/// Code was printed that takes these lists.
pub fn takes(code: &[u8], lists: Lists) {
    LISTS.with_borrow_mut(|all| all.insert(code.as_ptr(), lists));
}

/// Interprets a call of a tile's code.
pub fn tile(code: &[u8], tile: &Call) -> bool {
    if !is_on() {
        return false;
    }
    let lists = LISTS.with_borrow(|all| all[&code.as_ptr()]);
    let list = |at: *const u8, n: usize| (at, 8 * n, false);
    let mut beside = vec![
        (std::ptr::from_ref(tile).cast(), size_of::<Call>(), false),
        list(tile.taps.cast(), lists.taps),
        list(tile.finish.cast(), lists.places),
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
        beside.push(list(tile.left, n));
    }
    call(code, &[std::ptr::from_ref(tile) as u64], &beside)
}
