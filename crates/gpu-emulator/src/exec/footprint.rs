//! Races between blocks in global memory.
//!
//! The blocks of a launch run in no order, so no other block may touch the bytes that one writes. Each block records
//! its accesses, one bit per byte. When it ends, its bits are compared with those of the blocks before it. The result
//! depends neither on the order of the blocks nor on the threads of the host.
//!
//! An order that blocks establish among themselves, by atomics and fences, is not followed.
//!
//! Launches without an order between them must not conflict either: the bits of all blocks of a launch are its
//! [`Trail`].

use super::AccessKind;
use crate::fault::{FaultKind, Raised};
use crate::memory::{Allocation, Memory, View};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of bytes of a page.
const PAGE: usize = 4096;
const WORDS: usize = PAGE / 64;

/// One bit per byte of a page, for each of: read, written, changed by atomics.
#[derive(Clone, Debug)]
struct Page([[u64; WORDS]; 3]);

/// Pages by allocation and by position in it.
type Pages = Vec<Vec<Option<Box<Page>>>>;

fn page_slot(pages: &mut Pages, allocation: usize, page: usize) -> &mut Option<Box<Page>> {
    if pages.len() <= allocation {
        pages.resize(allocation + 1, Vec::new());
    }
    let pages = &mut pages[allocation];
    if pages.len() <= page {
        pages.resize(page + 1, None);
    }
    &mut pages[page]
}

/// The accesses of one block.
#[derive(Default)]
pub(crate) struct Touched {
    pages: Pages,
    used: Vec<(usize, usize)>,
    // Boxes, so that a page is handed over without a copy.
    #[allow(clippy::vec_box)]
    empty: Vec<Box<Page>>,
}

impl Touched {
    /// Records an access to `len` bytes at `offset` of an allocation.
    #[inline(always)]
    pub fn touch(&mut self, allocation: usize, offset: usize, len: usize, access: AccessKind) {
        let (word, bit) = (offset / 64, offset % 64);
        let known = self.pages.get_mut(allocation);
        let known = known.and_then(|pages| pages.get_mut(offset / PAGE)?.as_mut());
        match known {
            Some(page) if bit + len <= 64 => {
                page.0[access as usize][word % WORDS] |= (!0 >> (64 - len)) << bit;
            }
            _ => self.touch_words(allocation, offset, offset + len, access),
        }
    }

    fn touch_words(
        &mut self,
        allocation: usize,
        mut offset: usize,
        end: usize,
        access: AccessKind,
    ) {
        while offset < end {
            let page = offset / PAGE;
            let stop = end.min((page + 1) * PAGE);
            let bits = &mut self.page(allocation, page).0[access as usize];
            while offset < stop {
                let len = (64 - offset % 64).min(stop - offset);
                bits[offset / 64 % WORDS] |= (!0 >> (64 - len)) << (offset % 64);
                offset += len;
            }
        }
    }

    fn page(&mut self, allocation: usize, page: usize) -> &mut Page {
        let slot = page_slot(&mut self.pages, allocation, page);
        if slot.is_none() {
            self.used.push((allocation, page));
        }
        let empty = &mut self.empty;
        slot.get_or_insert_with(|| {
            let page = empty.pop();
            page.unwrap_or_else(|| Box::new(Page([[0; WORDS]; 3])))
        })
    }
}

/// The accesses of all blocks of a launch that have ended.
#[derive(Default)]
pub(crate) struct Footprint(Mutex<Pages>);

impl Footprint {
    /// Adds a block's accesses and empties `touched`. A fault if another block wrote bytes that it touched, or
    /// touched bytes that it wrote.
    pub fn add(&self, touched: &mut Touched, view: &View) -> Result<(), Raised> {
        let mut footprints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut race = None;
        for (allocation, page) in std::mem::take(&mut touched.used) {
            let Some(mut mine) = page_slot(&mut touched.pages, allocation, page).take() else {
                continue;
            };
            let theirs = page_slot(&mut footprints, allocation, page);
            let Some(theirs) = theirs else {
                *theirs = Some(mine);
                continue;
            };
            let conflict = (0..WORDS).find_map(|w| meeting(&mine, theirs, w));
            if let (None, Some((offset, ours, other))) = (&race, conflict) {
                let allocation = &view[allocation];
                let offset = page * PAGE + offset;
                race = Some(format!(
                    "the block {ours} {:#x}, {offset} bytes into an allocation of {}, which another block {other}; \
                     blocks run in no order",
                    allocation.base + offset as u64,
                    allocation.len
                ));
            }
            for (mine, theirs) in mine.0.iter_mut().zip(&mut theirs.0) {
                for (mine, theirs) in mine.iter_mut().zip(theirs) {
                    *theirs |= std::mem::take(mine);
                }
            }
            touched.empty.push(mine);
        }
        race.map_or(Ok(()), |why| Err(Raised::new(FaultKind::GlobalRace, why)))
    }
}

/// The accesses of a launch to global memory.
#[derive(Debug, Default)]
pub struct Trail(Vec<(u64, Box<Page>)>);

impl Footprint {
    /// The accesses of all blocks.
    pub fn trail(self, view: &View) -> Trail {
        let pages = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let pages_of = |(base, pages): (u64, Vec<Option<Box<Page>>>)| {
            let page_address = move |i: usize| base + (i * PAGE) as u64;
            let pages = pages.into_iter().enumerate();
            pages.filter_map(move |(i, page)| Some((page_address(i), page?)))
        };
        let bases = view.iter().map(|a| a.base);
        Trail(bases.zip(pages).flat_map(pages_of).collect())
    }
}

impl Trail {
    /// The accesses of work other than kernels, given the ranges that it reads and writes: addresses and lengths.
    pub fn of(memory: &Memory, read: &[(u64, usize)], written: &[(u64, usize)]) -> Trail {
        let (view, mut touched) = (memory.view(), Touched::default());
        for (ranges, how) in [(read, AccessKind::Read), (written, AccessKind::Write)] {
            for &(address, len) in ranges {
                let holds = |a: &Arc<Allocation>| a.base <= address && address < a.base + a.len;
                if let Some(allocation) = view.iter().position(holds) {
                    let offset = (address - view[allocation].base) as usize;
                    touched.touch_words(allocation, offset, offset + len, how);
                }
            }
        }
        let footprint = Footprint::default();
        // A single block has no race.
        let _ = footprint.add(&mut touched, &view);
        footprint.trail(&view)
    }

    /// The first conflict with another launch, one of them writing: the address and what each does there.
    pub fn meets(&self, other: &Trail) -> Option<String> {
        let mut theirs = other.0.iter().peekable();
        self.0.iter().find_map(|(start, mine)| {
            while theirs.next_if(|(address, _)| address < start).is_some() {}
            let (_, their) = theirs.next_if(|(address, _)| address == start)?;
            let (offset, ours, other) = (0..WORDS).find_map(|w| meeting(mine, their, w))?;
            let address = start + offset as u64;
            Some(format!("{ours} {address:#x}, which the other {other}"))
        })
    }
}

/// The first byte of a word on which both conflict, one of them writing, and the kind of each access.
fn meeting(mine: &Page, theirs: &Page, word: usize) -> Option<(usize, &'static str, &'static str)> {
    const HOW: [&str; 3] = ["reads", "writes", "changes by atomics"];
    for ours in [1, 0, 2] {
        for other in [1, 0, 2] {
            let both = mine.0[ours][word] & theirs.0[other][word];
            // Two reads do not conflict, and neither do two atomics.
            let may_meet = ours == other && ours != AccessKind::Write as usize;
            if both != 0 && !may_meet {
                let offset = 64 * word + both.trailing_zeros() as usize;
                return Some((offset, HOW[ours], HOW[other]));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    /// The fault of two blocks that touch these bytes of an allocation.
    fn race(
        first: (usize, usize, AccessKind),
        second: (usize, usize, AccessKind),
    ) -> Option<String> {
        let memory = Memory::default();
        memory.allocate(3 * PAGE);
        let view = memory.view();
        let (footprint, mut touched) = (Footprint::default(), Touched::default());
        for (i, (offset, len, access)) in [first, second].into_iter().enumerate() {
            touched.touch(0, offset, len, access);
            // A block may touch its own bytes in any way.
            touched.touch(0, 3 * PAGE - 8 + 4 * i, 4, AccessKind::Write);
            touched.touch(0, 3 * PAGE - 8 + 4 * i, 4, AccessKind::Read);
            if let Err(raised) = footprint.add(&mut touched, &view) {
                assert_eq!((i, raised.kind), (1, FaultKind::GlobalRace));
                return Some(raised.message);
            }
        }
        None
    }

    #[test]
    fn bytes_that_one_block_writes_are_its_own() {
        use AccessKind::{Atomic, Read, Write};
        for (a, b, wrong) in [
            (Read, Read, false),
            (Atomic, Atomic, false),
            (Write, Write, true),
            (Read, Write, true),
            (Write, Read, true),
            (Atomic, Read, true),
            (Write, Atomic, true),
        ] {
            // Inside a word, over words and over pages; the last byte alone is shared.
            for (offset, len) in [(0, 1), (62, 4), (100, 300), (PAGE - 70, 2 * PAGE - 100)] {
                let last = offset + len - 1;
                let found = race((offset, len, a), (last, 9, b));
                assert_eq!(
                    found.is_some(),
                    wrong,
                    "{a:?} {b:?} {offset} {len}: {found:?}"
                );
                if let Some(message) = found {
                    assert!(
                        message.contains(&format!(", {last} bytes into")),
                        "{message}"
                    );
                }
                assert_eq!(race((offset, len, a), (last + 1, 9, b)), None);
            }
        }
    }
}
