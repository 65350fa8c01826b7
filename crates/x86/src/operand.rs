//! Registers, addresses and operands.

use iced_x86::Register;

/// A general register of 64 bits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gpr(pub(crate) u8);

macro_rules! gprs {
    ($($name:ident $number:literal)*) => {
        #[allow(missing_docs)] // the processor's names
        impl Gpr {
            $(pub const $name: Gpr = Gpr($number);)*
        }
    };
}
gprs! { RAX 0 RCX 1 RDX 2 RBX 3 RSP 4 RBP 5 RSI 6 RDI 7 R8 8 R9 9 R10 10 R11 11 R12 12 R13 13 R14 14 R15 15 }

impl Gpr {
    /// The registers of the first six arguments of a call (System V), in their order.
    pub const ARGUMENTS: [Gpr; 6] = [Gpr::RDI, Gpr::RSI, Gpr::RDX, Gpr::RCX, Gpr::R8, Gpr::R9];

    /// The registers that a function must preserve, except the stack pointer.
    pub const SAVED: [Gpr; 6] = [Gpr::RBX, Gpr::RBP, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];

    pub(crate) fn wide(self) -> Register {
        Register::RAX + u32::from(self.0)
    }

    pub(crate) fn narrow(self) -> Register {
        Register::EAX + u32::from(self.0)
    }
}

/// A vector register, of the width that an instruction uses: 16 with VEX, 32 with EVEX.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vreg(pub u8);

/// A mask register; number 0 can't be used as a write mask.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mask(pub u8);

impl Mask {
    pub(crate) fn register(self) -> Register {
        Register::K0 + u32::from(self.0)
    }
}

/// The width of vectors.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// 128 bits.
    X,
    /// 256 bits.
    Y,
    /// 512 bits.
    Z,
}

impl Width {
    /// Returns the size of a vector in bytes.
    pub const fn bytes(self) -> usize {
        16 << self as usize
    }

    /// Returns half the width.
    ///
    /// # Panics
    /// For the smallest width.
    pub const fn half(self) -> Width {
        match self {
            Width::Z => Width::Y,
            Width::Y => Width::X,
            Width::X => panic!("no half of a vector of 128 bits"),
        }
    }
}

/// An address: `base + index · scale + offset`, or that of a constant after the code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mem {
    pub(crate) base: Base,
    pub(crate) index: Option<Index>,
    pub(crate) scale: u8,
    pub(crate) offset: i32,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Gpr(Gpr),
    /// The offset from the first constant, in bytes.
    Constant(u32),
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    Gpr(Gpr),
    Vector(Vreg, Width),
}

impl Mem {
    /// Returns the address in a register.
    pub fn at(base: Gpr) -> Mem {
        Mem {
            base: Base::Gpr(base),
            index: None,
            scale: 1,
            offset: 0,
        }
    }

    /// Returns the address plus an offset in bytes.
    pub fn plus(mut self, bytes: i32) -> Mem {
        self.offset += bytes;
        self
    }

    /// Returns the address plus a register times 1, 2, 4 or 8.
    pub fn index(mut self, index: Gpr, scale: u8) -> Mem {
        (self.index, self.scale) = (Some(Index::Gpr(index)), scale);
        self
    }

    /// Returns the addresses of a gather: this address plus each lane of a vector times 1, 2, 4 or 8.
    pub fn gather(mut self, index: Vreg, width: Width, scale: u8) -> Mem {
        (self.index, self.scale) = (Some(Index::Vector(index, width)), scale);
        self
    }

    /// Returns an operand that broadcasts one element to all lanes, for EVEX instructions that allow it.
    pub fn broadcast(self) -> Operand {
        Operand::Memory(self, true)
    }
}

/// An operand of an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operand {
    Vector(Vreg),
    Mask(Mask),
    Gpr(Gpr),
    /// Memory; true if one element is broadcast to all lanes.
    Memory(Mem, bool),
    Immediate(u8),
}

macro_rules! from {
    ($($from:ty => $variant:expr;)*) => {
        $(impl From<$from> for Operand {
            fn from(x: $from) -> Operand {
                $variant(x)
            }
        })*
    };
}
from! {
    Vreg => Operand::Vector;
    Mask => Operand::Mask;
    Gpr => Operand::Gpr;
    Mem => |m| Operand::Memory(m, false);
    u8 => Operand::Immediate;
}

/// Up to four operands, the result first.
pub trait Operands {
    /// Returns the operands as a list, and their number.
    fn list(self) -> ([Operand; 4], usize);
}

macro_rules! operands {
    ($n:literal $($t:ident $rest:expr),*) => {
        impl<$($t: Into<Operand>),*> Operands for ($($t,)*) {
            #[allow(non_snake_case)]
            fn list(self) -> ([Operand; 4], usize) {
                let ($($t,)*) = self;
                let mut list = [Operand::Immediate(0); 4];
                $(list[$rest] = $t.into();)*
                (list, $n)
            }
        }
    };
}
operands!(2 A 0, B 1);
operands!(3 A 0, B 1, C 2);
operands!(4 A 0, B 1, C 2, D 3);
