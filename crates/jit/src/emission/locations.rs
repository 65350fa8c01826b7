//! The interface by which callers supply the locations of operands.

use super::ir::Key;
use kiln_x86::{Asm, Gpr, Mask, Mem, Vreg};

/// The location of an operand's elements for a group of lanes.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum LaneLocation {
    /// Contiguous in memory, in the order of lanes.
    Vector(Mem),
    /// Contiguous in memory, for non-temporal stores: 32 or 64 bits per element, aligned to a vector.
    Stream(Mem),
    /// One element for all lanes.
    Splat(Mem),
    /// In registers (one; two for 64 bits per lane), in the compute type: f32 for f16. With EVEX, masks can't be read
    /// from here. With `last`, the registers are free after the read.
    Register { registers: [Vreg; 2], last: bool },
    /// The 64-bit indices of the lanes, from `first + plus` on.
    Lanes { first: Gpr, plus: i32 },
}

/// The arguments of functions that report data errors.
#[derive(Copy, Clone, Debug)]
pub struct ReportArguments {
    /// The index of the group's first lane is `lane + group + [first]`.
    pub lane: Gpr,
    pub group: i32,
    pub first: Mem,
    /// The location of the context's address.
    pub context: Mem,
}

/// A supplier of operand locations, called before each read or write is emitted. It may emit code that computes
/// addresses. This code must not change vector registers, or general registers other than those that the caller
/// reserved.
pub trait Locations {
    /// Returns the location of an operand. The elements of [`Key::Access`] have the access's dtype, others their
    /// register's or slot's type. Masks are bytes of 0 and 1.
    fn location(&mut self, asm: &mut Asm, key: Key) -> LaneLocation;

    /// Returns the address of an access, advanced by the byte count stored at `by`.
    fn address_at(&mut self, asm: &mut Asm, key: Key, by: Mem) -> Mem {
        let _ = (asm, by);
        panic!("{key:?} is not read at an offset")
    }

    /// Returns the arguments for functions that report data errors.
    fn report_arguments(&mut self) -> Option<ReportArguments> {
        None
    }

    /// Selects the group of the next operands, if several groups are interleaved.
    fn select_group(&mut self, group: usize) {
        let _ = group;
    }
}

/// The lanes of the last group, if it is partial.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Tail {
    /// With EVEX: a bit per lane, and the bits of the upper half shifted down.
    Bits { low: Mask, high: Mask },
    /// With VEX: eight numbers of 32 bits in memory, all bits set for a lane that exists, and the number of lanes.
    Memory { mask: Mem, lanes: Gpr },
}

impl Tail {
    /// Returns a tail of VEX code with a constant number of lanes, which it loads into a register.
    pub fn in_memory(asm: &mut Asm, count: u32, lanes: Gpr) -> Tail {
        asm.mov_number(lanes, i64::from(count));
        let mask: Vec<u8> = (0..8)
            .flat_map(|i| (if i < count { u32::MAX } else { 0 }).to_le_bytes())
            .collect();
        let mask = asm.constant(&mask);
        Tail::Memory { mask, lanes }
    }
}
