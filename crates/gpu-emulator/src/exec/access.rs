//! Loads and stores.

use super::core::Core;
use super::traffic::sectors;
use super::warp::Warp;
use super::{AccessKind, addresses, lanes_of};
use crate::code::Access;
use crate::fault::{FaultKind, Outcome, Raised};
#[cfg(target_arch = "x86_64")]
use crate::lanes::Level;
use crate::lanes::{LANES, Registers};
use crate::ptx::Space;

/// The kind of a load or store.
const fn access_kind<const STORE: bool>() -> AccessKind {
    match STORE {
        true => AccessKind::Write,
        false => AccessKind::Read,
    }
}

/// The span of a warp's access: the addresses of its lanes as offsets from the lowest.
struct Span {
    lowest: u64,
    /// The bytes from the lowest address to the end of the highest access; 0 if the lanes' pointers are unrelated.
    len: usize,
    /// Each lane's offset; 0 for lanes that are off.
    offsets: [i64; LANES],
    /// True if all lanes are on and their accesses are contiguous, in the order of the lanes.
    is_row: bool,
}

impl Span {
    /// The span of `mask`'s lanes; `None` if they are too far apart or an address is misaligned.
    #[inline(always)]
    fn new(addresses: &[u64; LANES], mask: u32, len: usize) -> Option<Span> {
        let first_address = addresses[mask.trailing_zeros() as usize & 31];
        let (mut lowest, mut highest, mut bits) = (0, 0, first_address);
        let mut offsets = [0; LANES];
        for l in 0..LANES {
            let is_active = mask >> l & 1 != 0;
            offsets[l] = if is_active {
                addresses[l].wrapping_sub(first_address) as i64
            } else {
                0
            };
            lowest = lowest.min(offsets[l]);
            highest = highest.max(offsets[l]);
            bits |= first_address.wrapping_add(offsets[l] as u64);
        }
        let limit = u32::MAX as i64 / 2;
        if lowest < -limit || highest > limit || bits & (len as u64 - 1) != 0 {
            return None;
        }
        let mut differs = !mask as i64;
        for l in 0..LANES {
            let is_active = mask >> l & 1 != 0;
            offsets[l] = if is_active { offsets[l] - lowest } else { 0 };
            differs |= offsets[l] ^ (l * len) as i64;
        }
        Some(Span {
            lowest: first_address.wrapping_add(lowest as u64),
            len: (highest - lowest) as usize + len,
            offsets,
            is_row: differs == 0,
        })
    }

    /// The base and the span of unrelated pointers.
    fn of_lanes(pointers: [*mut u8; LANES], mask: u32) -> (*mut u8, Span) {
        let base = pointers[mask.trailing_zeros() as usize & 31];
        let offset = |l: usize| match mask >> l & 1 {
            0 => 0,
            _ => (pointers[l] as i64).wrapping_sub(base as i64),
        };
        let span = Span {
            lowest: 0,
            len: 0,
            offsets: std::array::from_fn(offset),
            is_row: false,
        };
        (base, span)
    }

    /// Calls `f` with the offset and length of every contiguous range that lanes of `mask` touch, in accesses of
    /// `len` bytes. Stops at the first `false`; true if there was none.
    #[inline(always)]
    fn all(&self, mask: u32, len: usize, mut f: impl FnMut(usize, usize) -> bool) -> bool {
        if self.is_row || self.len == len {
            return f(0, self.len);
        }
        const WORDS: usize = 4;
        let shift = len.trailing_zeros();
        let words = (self.len >> shift).div_ceil(64);
        if words > WORDS {
            return lanes_of(mask).all(|l| f(self.offsets[l] as usize, len));
        }
        for w in 0..words {
            // A bit for each access that some lane makes.
            let mut touched = 0u64;
            for l in 0..LANES {
                let bit_position = (self.offsets[l] as u64 >> shift).wrapping_sub(64 * w as u64);
                let bit = if bit_position < 64 {
                    1u64 << (bit_position & 63)
                } else {
                    0
                };
                touched |= if mask >> l & 1 != 0 { bit } else { 0 };
            }
            while touched != 0 {
                let first_bit = touched.trailing_zeros();
                let count = (!(touched >> first_bit)).trailing_zeros();
                let from = 64 * w + first_bit as usize;
                if !f(from << shift, (count as usize) << shift) {
                    return false;
                }
                touched &= !(((1u128 << count) - 1) << first_bit) as u64;
            }
        }
        true
    }
}

/// Functions of a core, compiled for each instruction set.
macro_rules! compiled {
    ($name:ident, $avx512:ident, $avx2:ident, $body:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(
            enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl"
        )]
        fn $avx512(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Outcome<()> {
            self.$body(warp, access, mask)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        fn $avx2(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Outcome<()> {
            self.$body(warp, access, mask)
        }

        pub fn $name(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Outcome<()> {
            #[cfg(target_arch = "x86_64")]
            match crate::lanes::level() {
                // SAFETY: the machine has these instructions.
                Level::Avx512 => return unsafe { self.$avx512(warp, access, mask) },
                // SAFETY: as above.
                Level::Avx2 => return unsafe { self.$avx2(warp, access, mask) },
                Level::Baseline => {}
            }
            self.$body(warp, access, mask)
        }
    };
}

impl Core<'_> {
    compiled!(load, load_avx512, load_avx2, load_lanes);
    compiled!(store, store_avx512, store_avx2, store_lanes);

    /// Executes a load.
    #[inline(always)]
    fn load_lanes(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Outcome<()> {
        let addresses = addresses(&warp.registers, access.address);
        let (base, span) = self.pointers::<false>(warp, access, &addresses, mask)?;
        // SAFETY: the pointers are valid for the access on the lanes of the mask.
        unsafe { read(&mut warp.registers, access, base, &span, mask) };
        Ok(())
    }

    /// Executes a store.
    #[inline(always)]
    fn store_lanes(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Outcome<()> {
        let addresses = addresses(&warp.registers, access.address);
        let (base, span) = self.pointers::<true>(warp, access, &addresses, mask)?;
        // SAFETY: as for `load_lanes`.
        unsafe { write(&warp.registers, access, base, &span, mask) };
        Ok(())
    }

    /// The host's pointers for the lanes of `mask`, after all checks: a base, and offsets from it.
    #[inline(always)]
    fn pointers<const STORE: bool>(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        addresses: &[u64; LANES],
        mask: u32,
    ) -> Outcome<(*mut u8, Span)> {
        let len = (access.size * access.count) as usize;
        let mut space = access.space;
        if space == Space::Generic
            && lanes_of(mask).all(|l| Self::narrow(addresses[l]).0 == Space::Global)
        {
            space = Space::Global;
        }
        if let Some(traffic) = &mut self.traffic {
            match space {
                Space::Shared => traffic.shared(addresses, mask, len),
                Space::Global if STORE => traffic.store_sectors += sectors(addresses, mask, len),
                Space::Global => traffic.load_sectors += sectors(addresses, mask, len),
                _ => {}
            }
        }
        if let Some(span) = Span::new(addresses, mask, len) {
            let together = match space {
                Space::Global => self.global_span::<STORE>(&span, len, mask),
                Space::Shared => self.shared_span::<STORE>(warp.id, &span, len, mask),
                _ => None,
            };
            if let Some(base) = together {
                return Ok((base, span));
            }
        }
        self.check_each_lane::<STORE>(warp, space, addresses, len, mask)
    }

    /// The pointer and span in global memory, if all lanes are in one allocation and no check fails.
    #[inline(always)]
    fn global_span<const STORE: bool>(
        &mut self,
        span: &Span,
        len: usize,
        mask: u32,
    ) -> Option<*mut u8> {
        let allocation = self
            .allocation(span.lowest, span.len as u64, "access")
            .ok()?;
        let address = |offset: usize| span.lowest + offset as u64;
        if STORE {
            span.all(mask, len, |start, len| {
                allocation.mark_written(address(start), len);
                true
            });
        } else {
            let is_written =
                |offset, len| allocation.first_unwritten(address(offset), len).is_none();
            if !span.all(mask, len, is_written) {
                return None;
            }
        }
        if !self.touched.is_empty() {
            span.all(mask, len, |start, len| {
                self.touch(address(start), len, access_kind::<STORE>());
                true
            });
        }
        Some(allocation.pointer(span.lowest))
    }

    /// The pointer and span in shared memory, if no check fails.
    #[inline(always)]
    fn shared_span<const STORE: bool>(
        &mut self,
        warp: usize,
        span: &Span,
        len: usize,
        mask: u32,
    ) -> Option<*mut u8> {
        let start = self.shared_bounds(span.lowest, span.len, "access").ok()?;
        self.note_remote(warp, start);
        if let Some(races) = &mut self.races {
            let is_right = |offset, len| {
                races
                    .access(warp, start + offset, len, access_kind::<STORE>())
                    .is_ok()
            };
            if !span.all(mask, len, is_right) {
                return None;
            }
        }
        Some(self.shared_pointer(start))
    }

    #[inline(always)]
    fn global_one<const STORE: bool>(&mut self, address: u64, len: usize) -> Outcome<*mut u8> {
        Self::aligned(
            address,
            len,
            if STORE { "global write" } else { "global read" },
        )?;
        let verb = if STORE { "write" } else { "read" };
        self.global_access(address, len, verb, access_kind::<STORE>())
    }

    fn shared_one<const STORE: bool>(
        &mut self,
        warp: usize,
        address: u64,
        len: usize,
    ) -> Outcome<*mut u8> {
        Self::aligned(
            address,
            len,
            if STORE { "shared write" } else { "shared read" },
        )?;
        let verb = if STORE { "write" } else { "read" };
        self.shared_access(warp, address, len, verb, access_kind::<STORE>())
    }

    /// Takes lane after lane: for local, parameter and mixed addresses, and to find the lane at fault.
    #[cold]
    fn check_each_lane<const STORE: bool>(
        &mut self,
        warp: &mut Warp,
        space: Space,
        addresses: &[u64; LANES],
        len: usize,
        mask: u32,
    ) -> Outcome<(*mut u8, Span)> {
        let mut pointers = [std::ptr::null_mut(); LANES];
        for l in lanes_of(mask) {
            let (space, address) = match space {
                Space::Generic => Self::narrow(addresses[l]),
                _ => (space, addresses[l]),
            };
            let pointer = match space {
                Space::Shared => self.shared_one::<STORE>(warp.id, address, len),
                Space::Local => self.local(warp, l, address, len),
                Space::Param => self.parameter::<STORE>(address, len),
                _ => self.global_one::<STORE>(address, len),
            };
            pointers[l] = pointer.map_err(|e| e.of_lane(l))?;
        }
        Ok(Span::of_lanes(pointers, mask))
    }

    fn local(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        address: u64,
        len: usize,
    ) -> Outcome<*mut u8> {
        Self::aligned(address, len, "local access")?;
        let size = self.kernel.local_bytes;
        if address > size as u64 || address as usize + len > size {
            let why = format!(
                "local access of {len} bytes at offset {}, but a thread has {size} bytes",
                address as i64
            );
            return Err(Raised::new(FaultKind::OutOfBounds, why));
        }
        Ok(&mut warp.local[lane * size + address as usize])
    }

    fn parameter<const STORE: bool>(&mut self, address: u64, len: usize) -> Outcome<*mut u8> {
        if STORE || address as usize + len > self.parameters.len() {
            let why = format!("access of {len} bytes at offset {address} of the parameters");
            return Err(Raised::new(FaultKind::OutOfBounds, why));
        }
        Ok(self.parameters[address as usize..].as_ptr() as *mut u8)
    }
}

/// Moves values from memory to registers.
///
/// # Safety
/// On the lanes of `mask`, `base` and the span's offsets give pointers that are valid for the access; on others,
/// offsets are 0.
#[inline(always)]
unsafe fn read(registers: &mut Registers, access: &Access, base: *mut u8, span: &Span, mask: u32) {
    /// Reads one value per lane and widens it.
    macro_rules! read {
        ($from:ty, $extended:ty, $to:ty, $lanes:ident) => {{
            let row = span.is_row && access.count == 1;
            for (i, &slot) in access.registers[..access.count as usize].iter().enumerate() {
                let mut values: [$from; LANES] = [0; LANES];
                if row {
                    // SAFETY: a row is 32 contiguous values.
                    values = unsafe { (base as *const [$from; LANES]).read_unaligned() };
                } else {
                    for l in 0..LANES {
                        // SAFETY: as the caller promises; lanes that are off read what another reads.
                        values[l] = unsafe {
                            let from = base.wrapping_offset(span.offsets[l] as isize);
                            (from as *const $from).add(i).read_unaligned()
                        };
                    }
                }
                let out = registers.$lanes(slot);
                for l in 0..LANES {
                    out[l] = if mask >> l & 1 != 0 {
                        values[l] as $extended as $to
                    } else {
                        out[l]
                    };
                }
            }
        }};
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
/// As for [`read`].
#[inline(always)]
unsafe fn write(registers: &Registers, access: &Access, base: *mut u8, span: &Span, mask: u32) {
    /// Narrows and writes one value per lane.
    macro_rules! write {
        ($to:ty, $lanes:ident) => {
            for (i, &slot) in access.registers[..access.count as usize].iter().enumerate() {
                let values = registers.$lanes(slot);
                if span.is_row && access.count == 1 {
                    let row: [$to; LANES] = std::array::from_fn(|l| values[l] as $to);
                    // SAFETY: a row is room for 32 contiguous values.
                    unsafe { (base as *mut [$to; LANES]).write_unaligned(row) };
                    continue;
                }
                for l in lanes_of(mask) {
                    // SAFETY: as the caller promises.
                    unsafe {
                        let to = base.wrapping_offset(span.offsets[l] as isize);
                        (to as *mut $to).add(i).write_unaligned(values[l] as $to);
                    }
                }
            }
        };
    }
    match access.size {
        4 => write!(u32, word),
        8 => write!(u64, wide),
        2 => write!(u16, word),
        _ => write!(u8, word),
    }
}
