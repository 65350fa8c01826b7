//! The elements of straight-line vector code.

use kiln_base::prim::Reduction;
use kiln_plan::tile::Reg;
use kiln_x86::{MaskOp, Op, Width};

/// The contents of one register: a vector, or a mask with EVEX. Each is written once.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Virt(pub u32);

/// A source of an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Src {
    Virt(Virt),
    /// A constant, by its index.
    Const(u32),
}

impl From<Virt> for Src {
    fn from(v: Virt) -> Src {
        Src::Virt(v)
    }
}

/// A constant: the same number in each lane, or a whole vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Lanes32(u32),
    Lanes64(u64),
    Vector([u8; 64]),
}

/// The source or destination of a value, in terms of the caller of [`Lines`](super::lines::Lines).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An access of the program.
    Access(u16),
    /// A row slot.
    Slot(u16),
    /// A register that is read before it is written here.
    Input(Reg),
    /// A register that is read elsewhere.
    Output(Reg),
    /// The accumulator of a reduction.
    Accumulator(Reg),
    /// An access that is prefetched.
    Prefetch(u16),
    /// A number of the first lane of a call, as 64 bits.
    Number(u16),
    /// The number of each lane of a call; as an operand, the number of the first lane in its tile.
    Lane,
    /// The context of a run.
    Context,
}

/// The form of elements in memory and in a register; for forms with two registers, the number of the register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// 32 bits in both.
    Word,
    /// 64 bits in both.
    Double(u8),
    /// Bytes, as 32 bits.
    Byte { signed: bool },
    /// 16 bits, as 32.
    Short { signed: bool },
    /// f16, as f32.
    Half,
    /// u32, as 64 bits.
    Unsigned(u8),
    /// With EVEX, a mask as bytes of 0 and 1.
    Bits,
    /// With VEX, eight elements of 16 bits.
    Shorts,
    /// With VEX, eight bytes.
    Bytes,
}

/// The operation of a step; sources are in the order of the processor's manuals.
#[derive(Copy, Clone, Debug)]
pub(super) enum Do {
    Op {
        op: Op,
        width: Width,
        immediate: Option<u8>,
        /// True if the last source may be memory.
        memory: bool,
        /// True if the result overwrites the first source.
        tied: bool,
    },
    /// `mask ? second : first`; the mask is the last source.
    Blend {
        wide: bool,
    },
    /// `a · b + c`, or `c - a · b`, rounded once.
    Fma {
        negated: bool,
        wide: bool,
    },
    Masks(MaskOp),
    /// The upper eight bits of a mask.
    UpperBits,
    /// A mask of two of eight bits, the lower first.
    JoinBits,
    /// A load. If there is a source, the address is advanced by the bytes in its first lane.
    Load {
        from: Key,
        form: Form,
    },
    Store {
        to: Key,
        form: Form,
    },
    /// Loads elements at addresses, counted in elements, where a mask is set. The sources are the values of the other
    /// lanes, the addresses and the mask. Elements have 64 bits or 32.
    Gather {
        from: Key,
        wide: bool,
    },
    /// Calls a Rust function on the sources; with a condition, only if any lane of the last source is set.
    Call(Native),
    /// At the tail, replaces lanes that do not exist by the identity element of the reduction.
    Neutral {
        op: Reduction,
        wide: u8,
        float: bool,
    },
}

impl Do {
    /// Returns an instruction that overwrites none of its sources.
    pub(super) fn op(op: Op, width: Width, immediate: Option<u8>, memory: bool) -> Do {
        Do::Op {
            op,
            width,
            immediate,
            memory,
            tied: false,
        }
    }
}

/// A call of a function.
#[derive(Copy, Clone, Debug)]
pub(super) struct Native {
    /// The address of the function.
    pub f: usize,
    /// The parameters of the function.
    pub parameters: u64,
    /// True if it reports data errors.
    pub reports: bool,
    /// True if it is called only if any lane of the last source, a mask, is set.
    pub asks: bool,
}

#[derive(Copy, Clone, Debug)]
pub(super) struct Step {
    pub what: Do,
    pub to: Option<Virt>,
    pub from: [Option<Src>; 3],
    /// The group of lanes that it belongs to, of several whose code is interleaved.
    pub group: u8,
}
