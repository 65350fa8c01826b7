//! Where things are that code reads and writes, as whoever prints it says.

use super::ir::Key;
use kiln_x86::{Asm, Gpr, Mask, Mem, Vreg};

/// Where elements of a group of lanes are.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Place {
    /// Side by side in memory, in the order of lanes.
    Vector(Mem),
    /// The same, to be written past the cache: 32 or 64 bits an element, aligned to a group's vector.
    Stream(Mem),
    /// One element for all lanes.
    Splat(Mem),
    /// In registers already (one; two for 64 bits a lane), as the compute type has them: f32 for f16. Values that
    /// are read must not be masks with EVEX. With `last`, the registers are for other use once they are read.
    Register { at: [Vreg; 2], last: bool },
    /// Numbers of 64 bits that count lanes: the first is `first + plus`.
    Lanes { first: Gpr, plus: i32 },
}

/// What a function that reports data errors is told of the call that it happens in.
#[derive(Copy, Clone, Debug)]
pub struct Run {
    /// The lane at hand is what the register has and `group` more, counted from a number in memory.
    pub lane: Gpr,
    pub group: i32,
    pub first: Mem,
    /// Where the address of the context is.
    pub context: Mem,
}

/// Says where things are. It is asked where code is printed that reads or writes them, and may print code of its own
/// that changes no vector register, and no general one that the caller doesn't know of.
pub trait Places {
    /// Where what is named lies: [`Key::Access`] in memory as the access' dtype, the others as their register's type
    /// ([`Key::Slot`] as the slot's); masks as bytes of 0 and 1.
    fn place(&mut self, asm: &mut Asm, key: Key) -> Place;

    /// An access so many bytes further on as a number in memory says.
    fn moved(&mut self, asm: &mut Asm, key: Key, by: Mem) -> Mem {
        let _ = (asm, by);
        panic!("{key:?} is not moved")
    }

    /// The call at hand, where data errors are reported.
    fn run(&mut self) -> Option<Run> {
        None
    }

    /// What follows is about this group, of several that are printed together.
    fn turn(&mut self, group: usize) {
        let _ = group;
    }
}

/// The lanes of the last group, where it is not whole.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Tail {
    /// With EVEX: a bit a lane, and those of the upper half shifted down.
    Bits { low: Mask, high: Mask },
    /// With VEX: eight numbers of 32 bits in memory, all bits set for a lane, and how many lanes there are.
    Memory { mask: Mem, lanes: Gpr },
}
