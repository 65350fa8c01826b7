//! Loads and stores.

use super::core::Core;
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

/// How the addresses of a warp lie.
#[derive(Copy, Clone, PartialEq)]
enum Shape {
    /// One behind the other, all lanes.
    Row,
    /// All the same, all lanes.
    Point,
    Scattered,
}

#[inline(always)]
fn shape(at: &[u64; LANES], mask: u32, len: usize) -> Shape {
    if mask != !0 {
        return Shape::Scattered;
    }
    let (mut row, mut point) = (0, 0);
    for l in 0..LANES {
        row |= at[l] ^ at[0].wrapping_add((l * len) as u64);
        point |= at[l] ^ at[0];
    }
    match (row, point) {
        (0, _) => Shape::Row,
        (_, 0) => Shape::Point,
        _ => Shape::Scattered,
    }
}

type Pointers = [*mut u8; LANES];

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
        match access.space {
            Space::Global => self.global::<STORE>(at, len, mask),
            Space::Shared => self.shared::<STORE>(warp.id, at, len, mask),
            _ => self.one_by_one::<STORE>(warp, access.space, at, len, mask),
        }
    }

    #[inline(always)]
    fn global<const STORE: bool>(
        &mut self,
        at: &[u64; LANES],
        len: usize,
        mask: u32,
    ) -> Outcome<Pointers> {
        let shape = shape(at, mask, len);
        if shape != Shape::Scattered && at[0] & (len as u64 - 1) == 0 {
            let (span, step) = if shape == Shape::Row {
                (LANES * len, len)
            } else {
                (len, 0)
            };
            if let Ok(base) = self.global_pointer::<STORE>(at[0], span) {
                // SAFETY: inside the range that was checked.
                return Ok(std::array::from_fn(|l| unsafe { base.add(l * step) }));
            }
            // Some lane is at fault: find out which.
        }
        let mut pointers = [std::ptr::null_mut(); LANES];
        for l in lanes_of(mask) {
            pointers[l] = self
                .global_one::<STORE>(at[l], len)
                .map_err(|e| e.of_lane(l))?;
        }
        Ok(pointers)
    }

    #[inline(always)]
    fn global_pointer<const STORE: bool>(&mut self, at: u64, len: usize) -> Outcome<*mut u8> {
        match STORE {
            true => self.global_write(at, len, "write"),
            false => self.global_read(at, len, "read"),
        }
    }

    #[inline(always)]
    fn global_one<const STORE: bool>(&mut self, at: u64, len: usize) -> Outcome<*mut u8> {
        Self::aligned(at, len, if STORE { "global write" } else { "global read" })?;
        self.global_pointer::<STORE>(at, len)
    }

    #[inline(always)]
    fn shared<const STORE: bool>(
        &mut self,
        warp: usize,
        at: &[u64; LANES],
        len: usize,
        mask: u32,
    ) -> Outcome<Pointers> {
        let shape = shape(at, mask, len);
        if shape != Shape::Scattered && at[0] & (len as u64 - 1) == 0 {
            let (span, step) = if shape == Shape::Row {
                (LANES * len, len)
            } else {
                (len, 0)
            };
            if let Ok(base) = self.shared_range::<STORE>(warp, at[0], span) {
                // SAFETY: inside the range that was checked.
                return Ok(std::array::from_fn(|l| unsafe { base.add(l * step) }));
            }
        }
        let mut pointers = [std::ptr::null_mut(); LANES];
        for l in lanes_of(mask) {
            pointers[l] = self
                .shared_one::<STORE>(warp, at[l], len)
                .map_err(|e| e.of_lane(l))?;
        }
        Ok(pointers)
    }

    #[inline(always)]
    fn shared_range<const STORE: bool>(
        &mut self,
        warp: usize,
        at: u64,
        len: usize,
    ) -> Outcome<*mut u8> {
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

    #[inline(always)]
    fn shared_one<const STORE: bool>(
        &mut self,
        warp: usize,
        at: u64,
        len: usize,
    ) -> Outcome<*mut u8> {
        Self::aligned(at, len, if STORE { "shared write" } else { "shared read" })?;
        self.shared_range::<STORE>(warp, at, len)
    }

    /// Local, parameter and generic addresses.
    fn one_by_one<const STORE: bool>(
        &mut self,
        warp: &mut Warp,
        space: Space,
        at: &[u64; LANES],
        len: usize,
        mask: u32,
    ) -> Outcome<Pointers> {
        if space == Space::Generic && lanes_of(mask).all(|l| Self::narrow(at[l]).0 == Space::Global)
        {
            return self.global::<STORE>(at, len, mask);
        }
        let mut pointers = [std::ptr::null_mut(); LANES];
        for l in lanes_of(mask) {
            let (space, address) = if space == Space::Generic {
                Self::narrow(at[l])
            } else {
                (space, at[l])
            };
            let pointer = match space {
                Space::Shared => self.shared_one::<STORE>(warp.id, address, len),
                Space::Local => self.local(warp, l, address, len),
                Space::Param => self.parameter::<STORE>(address, len),
                _ => self.global_one::<STORE>(address, len),
            };
            pointers[l] = pointer.map_err(|e| e.of_lane(l))?;
        }
        Ok(pointers)
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
/// On the lanes of `mask`, `pointers` are valid for the access.
#[inline(always)]
unsafe fn read(registers: &mut Registers, access: &Access, pointers: &Pointers, mask: u32) {
    /// Reads one value per lane and widens it.
    macro_rules! read {
        ($from:ty, $extended:ty, $to:ty, $lanes:ident) => {
            for (i, &slot) in access.registers[..access.count as usize].iter().enumerate() {
                let out = registers.$lanes(slot);
                for l in lanes_of(mask) {
                    // SAFETY: as the caller promises; parameters are less aligned.
                    let value = unsafe { (pointers[l] as *const $from).add(i).read_unaligned() };
                    out[l] = value as $extended as $to;
                }
            }
        };
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
                        (pointers[l] as *mut $to)
                            .add(i)
                            .write_unaligned(values[l] as $to)
                    };
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
