//! The places of operands that code reads and writes, supplied by its caller.

use super::ir::Key;
use kiln_x86::{Asm, Gpr, Mask, Mem, Vreg};

/// The place of the elements of a group of lanes.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum LaneLocation {
    /// Contiguous in memory, in the order of lanes.
    Vector(Mem),
    /// The same, for non-temporal stores: 32 or 64 bits per element, aligned to a group's vector.
    Stream(Mem),
    /// One element for all lanes.
    Splat(Mem),
    /// Already in registers (one; two for 64 bits per lane), in the compute type: f32 for f16. With EVEX, values that
    /// are read must not be masks. With `last`, the registers are free once they are read.
    Register { at: [Vreg; 2], last: bool },
    /// Numbers of 64 bits that count lanes: the first is `first + plus`.
    Lanes { first: Gpr, plus: i32 },
}

/// The arguments of functions that report data errors, which describe the call.
#[derive(Copy, Clone, Debug)]
pub struct ReportArguments {
    /// The current lane is `lane + group + [first]`.
    pub lane: Gpr,
    pub group: i32,
    pub first: Mem,
    /// The place of the context's address.
    pub context: Mem,
}

/// Supplies the places of operands. It is called where code is emitted that reads or writes them. It may emit code too.
/// That must not change any vector register, or any general register that the caller does not know of.
pub trait Locations {
    /// Returns the place of an operand. [`Key::Access`] is in memory as the access' dtype, the others have their
    /// register's type ([`Key::Slot`] the slot's). Masks are bytes of 0 and 1.
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

    /// Selects the group that the next operands are for, of several that are emitted together.
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
