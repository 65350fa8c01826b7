//! The steps of straight-line vector code, and their operands.

use kiln_base::prim::Reduction;
use kiln_plan::tile::Reg;
use kiln_x86::{MaskOp, Op, Width};

/// A virtual register: a vector, or a mask with EVEX. It is written once.
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

/// An operand of [`Lines`](super::lines::Lines), whose location the caller supplies.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An access of the program.
    Access(u16),
    /// A row slot.
    Slot(u16),
    /// A register that is live into the code.
    Input(Reg),
    /// A register that is live out of the code.
    Output(Reg),
    /// The accumulator of a reduction.
    Accumulator(Reg),
    /// An access that is prefetched.
    Prefetch(u16),
    /// A 64-bit number at the first lane of a call.
    Number(u16),
    /// The index of each lane in a call; as an operand, the index of the call's first lane in its tile.
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

/// The operation of a step, with sources in the order of the processor's manuals.
#[derive(Copy, Clone, Debug)]
pub(super) enum Action {
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
    /// The concatenation of two masks of eight bits, the lower first.
    JoinBits,
    /// A load. The first lane of a source, if there is one, is added to the address in bytes.
    Load {
        from: Key,
        form: Form,
    },
    Store {
        to: Key,
        form: Form,
    },
    /// A masked gather of elements of 32 or 64 bits. The sources are the values of inactive lanes, the indices of
    /// elements, and the mask.
    Gather {
        from: Key,
        wide: bool,
    },
    /// A call of a Rust function on the sources.
    Call(Native),
    /// Replaces the lanes beyond the tail with the identity element of the reduction.
    Fill {
        op: Reduction,
        wide: u8,
        float: bool,
    },
}

impl Action {
    /// Returns a machine instruction that overwrites none of its sources.
    pub(super) fn op(op: Op, width: Width, immediate: Option<u8>, memory: bool) -> Action {
        Action::Op {
            op,
            width,
            immediate,
            memory,
            tied: false,
        }
    }
}

/// A call of a Rust function.
#[derive(Copy, Clone, Debug)]
pub(super) struct Native {
    /// The address of the function.
    pub f: usize,
    /// The parameters of the function.
    pub parameters: u64,
    /// True if it reports data errors.
    pub reports: bool,
    /// True if the call is skipped unless a lane of the last source, a mask, is set.
    pub masked: bool,
}

/// An operation, its result and its sources.
#[derive(Copy, Clone, Debug)]
pub(super) struct Step {
    pub action: Action,
    pub to: Option<Virt>,
    pub from: [Option<Src>; 3],
    /// The group of lanes, if the code of several groups is interleaved.
    pub group: u8,
}
