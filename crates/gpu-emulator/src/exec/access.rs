//! Loads and stores.

use super::core::Core;
use super::footprint::Touch;
use super::lanes_of;
use super::races::Kind;
use super::warp::Warp;
use crate::code::{Access, Address};
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::{LANES, Registers};
use crate::ptx::Space;

/// The address of every lane.
#[inline(always)]
pub(super) fn addresses(registers: &Registers, address: Address) -> [u64; LANES] {
    let mut out = [0; LANES];
    if address.wide {
        let base = registers.wide(address.base);
        for l in 0..LANES {
            out[l] = base[l].wrapping_add(address.offset as u64);
        }
    } else {
        let base = registers.word(address.base);
        for l in 0..LANES {
            out[l] = base[l].wrapping_add(address.offset as u32) as u64;
        }
    }
    out
}

/// The addresses of a warp as offsets from the lowest.
struct Span {
    lowest: u64,
    /// From the lowest address to the end of the highest access.
    len: usize,
    /// 0 for lanes that are off.
    offsets: [u32; LANES],
    /// Whether all lanes are on and lie one behind the other.
    is_row: bool,
}

/// The span of `mask`'s lanes; `None` if they are too far apart or an address is misaligned.
#[inline(always)]
fn span(at: &[u64; LANES], mask: u32, len: usize) -> Option<Span> {
    let first = at[mask.trailing_zeros() as usize & 31];
    let (mut lowest, mut highest, mut bits) = (first, first, first);
    for l in 0..LANES {
        let address = if mask >> l & 1 != 0 { at[l] } else { first };
        lowest = lowest.min(address);
        highest = highest.max(address);
        bits |= address;
    }
    if highest - lowest > u32::MAX as u64 / 2 || bits & (len as u64 - 1) != 0 {
        return None;
    }
    let mut offsets = [0; LANES];
    let mut differs = !mask;
    for l in 0..LANES {
        offsets[l] = if mask >> l & 1 != 0 {
            (at[l] - lowest) as u32
        } else {
            0
        };
        differs |= offsets[l] ^ (l * len) as u32;
    }
    Some(Span {
        lowest,
        len: (highest - lowest) as usize + len,
        offsets,
        is_row: differs == 0,
    })
}

/// Where the lanes of an access find their values: a base and offsets from it.
struct Pointers {
    base: *mut u8,
    offsets: [i64; LANES],
    is_row: bool,
}

impl Pointers {
    #[inline(always)]
    fn of_span(base: *mut u8, span: &Span) -> Pointers {
        Pointers {
            base,
            offsets: span.offsets.map(i64::from),
            is_row: span.is_row,
        }
    }

    /// Pointers that have nothing to do with each other.
    fn of_lanes(pointers: [*mut u8; LANES], mask: u32) -> Pointers {
        let base = pointers[mask.trailing_zeros() as usize & 31];
        let offset = |l: usize| match mask >> l & 1 {
            0 => 0,
            _ => (pointers[l] as i64).wrapping_sub(base as i64),
        };
        Pointers {
            base,
            offsets: std::array::from_fn(offset),
            is_row: false,
        }
    }
}

impl Core<'_> {
    /// Executes a load.
    pub fn load(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Outcome<()> {
        let at = addresses(&warp.registers, access.address);
        let pointers = self.pointers::<false>(warp, access, &at, mask)?;
        // SAFETY: `pointers` are valid for the access on the lanes of the mask.
        unsafe { read(&mut warp.registers, access, &pointers, mask) };
        Ok(())
    }

    /// Executes a store.
    pub fn store(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Outcome<()> {
        let at = addresses(&warp.registers, access.address);
        let pointers = self.pointers::<true>(warp, access, &at, mask)?;
        // SAFETY: as for `load`.
        unsafe { write(&warp.registers, access, &pointers, mask) };
        Ok(())
    }

    /// The host's pointers for the lanes of `mask`, after all checks.
    #[inline(always)]
    fn pointers<const STORE: bool>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        at: &[u64; LANES],
        mask: u32,
    ) -> Outcome<Pointers> {
        let len = (access.size * access.count) as usize;
        let mut space = access.space;
        if space == Space::Generic && lanes_of(mask).all(|l| Self::narrow(at[l]).0 == Space::Global)
        {
            space = Space::Global;
        }
        let together = match (space, span(at, mask, len)) {
            (Space::Global, Some(span)) => self.global_span::<STORE>(&span, len, mask),
            (Space::Shared, Some(span)) => self.shared_span::<STORE>(warp.id, &span, len, mask),
            _ => None,
        };
        match together {
            Some(pointers) => Ok(pointers),
            None => self.one_by_one::<STORE>(warp, space, at, len, mask),
        }
    }

    /// Global memory, if all lanes are in one allocation and nothing is wrong.
    #[inline(always)]
    fn global_span<const STORE: bool>(
        &mut self,
        span: &Span,
        len: usize,
        mask: u32,
    ) -> Option<Pointers> {
        let allocation = self
            .allocation(span.lowest, span.len as u64, "access")
            .ok()?;
        if STORE {
            if span.is_row {
                allocation.mark_written(span.lowest, span.len);
            } else {
                for l in lanes_of(mask) {
                    allocation.mark_written(span.lowest + span.offsets[l] as u64, len);
                }
            }
        } else {
            // Lanes rarely leave gaps; where they do, what lies between may be unwritten.
            let is_dense = span.len <= 4 * LANES * len;
            let is_written = |at, len| allocation.first_unwritten(at, len).is_none();
            let all = is_dense && is_written(span.lowest, span.len);
            if !all
                && !lanes_of(mask).all(|l| is_written(span.lowest + span.offsets[l] as u64, len))
            {
                return None;
            }
        }
        if self.touched.is_some() {
            let how = if STORE { Touch::Write } else { Touch::Read };
            self.touch_span(span, len, mask, how);
        }
        Some(Pointers::of_span(allocation.pointer(span.lowest), span))
    }

    /// Notes what the lanes touch.
    #[inline(always)]
    fn touch_span(&mut self, span: &Span, len: usize, mask: u32, how: Touch) {
        if span.is_row || span.len == len {
            return self.touch(span.lowest, span.len, how);
        }
        let mut before = u32::MAX;
        for l in lanes_of(mask) {
            if span.offsets[l] != before {
                self.touch(span.lowest + span.offsets[l] as u64, len, how);
            }
            before = span.offsets[l];
        }
    }

    /// Shared memory, if nothing is wrong.
    #[inline(always)]
    fn shared_span<const STORE: bool>(
        &mut self,
        warp: usize,
        span: &Span,
        len: usize,
        mask: u32,
    ) -> Option<Pointers> {
        let start = self.shared_bounds(span.lowest, span.len, "access").ok()?;
        if let Some(races) = &mut self.races {
            let kind = if STORE { Kind::Write } else { Kind::Read };
            if span.is_row {
                races.access(warp, start, span.len, kind).ok()?;
            } else {
                let mut before = u32::MAX;
                for l in lanes_of(mask) {
                    let offset = span.offsets[l];
                    if offset != before {
                        races
                            .access(warp, start + offset as usize, len, kind)
                            .ok()?;
                    }
                    before = offset;
                }
            }
        }
        Some(Pointers::of_span(self.shared_pointer(start), span))
    }

    #[inline(always)]
    fn global_one<const STORE: bool>(&mut self, at: u64, len: usize) -> Outcome<*mut u8> {
        Self::aligned(at, len, if STORE { "global write" } else { "global read" })?;
        match STORE {
            true => self.global_write(at, len, "write"),
            false => self.global_read(at, len, "read"),
        }
    }

    fn shared_one<const STORE: bool>(
        &mut self,
        warp: usize,
        at: u64,
        len: usize,
    ) -> Outcome<*mut u8> {
        Self::aligned(at, len, if STORE { "shared write" } else { "shared read" })?;
        let start = self.shared_bounds(at, len, if STORE { "write" } else { "read" })?;
        if let Some(races) = &mut self.races {
            races.access(
                warp,
                start,
                len,
                if STORE { Kind::Write } else { Kind::Read },
            )?;
        }
        Ok(self.shared_pointer(start))
    }

    /// Lane after lane: for local, parameter and mixed addresses, and to find the lane that is at fault.
    fn one_by_one<const STORE: bool>(
        &mut self,
        warp: &mut Warp,
        space: Space,
        at: &[u64; LANES],
        len: usize,
        mask: u32,
    ) -> Outcome<Pointers> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        for l in lanes_of(mask) {
            let (space, address) = match space {
                Space::Generic => Self::narrow(at[l]),
                _ => (space, at[l]),
            };
            let pointer = match space {
                Space::Shared => self.shared_one::<STORE>(warp.id, address, len),
                Space::Local => self.local(warp, l, address, len),
                Space::Param => self.parameter::<STORE>(address, len),
                _ => self.global_one::<STORE>(address, len),
            };
            pointers[l] = pointer.map_err(|e| e.of_lane(l))?;
        }
        Ok(Pointers::of_lanes(pointers, mask))
    }

    fn local(&mut self, warp: &mut Warp, lane: usize, at: u64, len: usize) -> Outcome<*mut u8> {
        Self::aligned(at, len, "local access")?;
        let size = self.kernel.local_bytes;
        if at > size as u64 || at as usize + len > size {
            let why = format!(
                "local access of {len} bytes at offset {}, but a thread has {size} bytes",
                at as i64
            );
            return Err(Raised::new(FaultKind::OutOfBounds, why));
        }
        Ok(&mut warp.local[lane * size + at as usize])
    }

    fn parameter<const STORE: bool>(&mut self, at: u64, len: usize) -> Outcome<*mut u8> {
        if STORE || at as usize + len > self.parameters.len() {
            let why = format!("access of {len} bytes at offset {at} of the parameters");
            return Err(Raised::new(FaultKind::OutOfBounds, why));
        }
        Ok(self.parameters[at as usize..].as_ptr() as *mut u8)
    }
}

/// Moves values from memory to registers.
///
/// # Safety
/// On the lanes of `mask`, `pointers` are valid for the access; on others, their offset is 0.
#[inline(always)]
unsafe fn read(registers: &mut Registers, access: &Access, pointers: &Pointers, mask: u32) {
    /// Reads one value per lane and widens it.
    macro_rules! read {
        ($from:ty, $extended:ty, $to:ty, $lanes:ident) => {
            for (i, &slot) in access.registers[..access.count as usize].iter().enumerate() {
                let mut values: [$to; LANES] = [0; LANES];
                for l in 0..LANES {
                    // SAFETY: as the caller promises; lanes that are off read what another reads.
                    let value = unsafe {
                        let from = pointers.base.wrapping_offset(pointers.offsets[l] as isize);
                        (from as *const $from).add(i).read_unaligned()
                    };
                    values[l] = value as $extended as $to;
                }
                let out = registers.$lanes(slot);
                for l in 0..LANES {
                    out[l] = if mask >> l & 1 != 0 {
                        values[l]
                    } else {
                        out[l]
                    };
                }
            }
        };
    }
    if pointers.is_row && access.size == 4 && access.count == 1 {
        // SAFETY: a row is 32 values one behind the other.
        let row = unsafe { (pointers.base as *const [u32; LANES]).read_unaligned() };
        *registers.word_mut(access.registers[0]) = row;
        return;
    }
    match (access.size, access.signed) {
        (4, _) => read!(u32, u32, u32, word_mut),
        (8, _) => read!(u64, u64, u64, wide_mut),
        (2, false) => read!(u16, u16, u32, word_mut),
        (2, true) => read!(i16, i32, u32, word_mut),
        (_, false) => read!(u8, u8, u32, word_mut),
        (_, true) => read!(i8, i32, u32, word_mut),
    }
}

/// Moves values from registers to memory.
///
/// # Safety
/// On the lanes of `mask`, `pointers` are valid for the access.
#[inline(always)]
unsafe fn write(registers: &Registers, access: &Access, pointers: &Pointers, mask: u32) {
    /// Narrows and writes one value per lane.
    macro_rules! write {
        ($to:ty, $lanes:ident) => {
            for (i, &slot) in access.registers[..access.count as usize].iter().enumerate() {
                let values = registers.$lanes(slot);
                for l in lanes_of(mask) {
                    // SAFETY: as the caller promises.
                    unsafe {
                        let to = pointers.base.wrapping_offset(pointers.offsets[l] as isize);
                        (to as *mut $to).add(i).write_unaligned(values[l] as $to);
                    }
                }
            }
        };
    }
    if pointers.is_row && access.size == 4 && access.count == 1 {
        let row = *registers.word(access.registers[0]);
        // SAFETY: a row is room for 32 values one behind the other.
        unsafe { (pointers.base as *mut [u32; LANES]).write_unaligned(row) };
        return;
    }
    match access.size {
        4 => write!(u32, word),
        8 => write!(u64, wide),
        2 => write!(u16, word),
        _ => write!(u8, word),
    }
}
