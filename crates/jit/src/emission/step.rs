//! What straight-line vector code is made of.

use kiln_base::prim::Reduction;
use kiln_kernel::failures::Position;
use kiln_plan::tile::Reg;
use kiln_x86::{MaskOp, Op, Width};

/// What one register holds: a vector, or, of masks with EVEX, a mask. Each is written once.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Virt(pub u32);

/// What an instruction reads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Src {
    Virt(Virt),
    /// By position among the constants.
    Const(u32),
}

impl From<Virt> for Src {
    fn from(v: Virt) -> Src {
        Src::Virt(v)
    }
}

/// A constant: in each lane the same number, or a whole vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Lanes32(u32),
    Lanes64(u64),
    Vector([u8; 64]),
}

/// Where a value comes from or goes to, as the caller of [`Lines`](super::lines::Lines) knows it.
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
    /// What a reduction adds to.
    Accumulator(Reg),
    /// What is fetched for later.
    Ahead(u16),
    /// A number of the first lane of a call, as 64 bits.
    Number(u16),
    /// The number of each lane of a call; as an operand, that of the first lane in its tile.
    Lane,
    /// The context of a run.
    Context,
}

/// How elements lie in memory, beside how they lie in a register; of those that take two registers, which of them.
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

/// What an instruction does; sources are in the order of the processor's manuals.
#[derive(Copy, Clone, Debug)]
pub(super) enum Do {
    Op {
        op: Op,
        width: Width,
        immediate: Option<u8>,
        /// Whether the last source may be memory.
        memory: bool,
        /// Whether the result takes the place of the first source.
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
    /// If there is a source, so many bytes further on as its first lane says.
    Load {
        from: Key,
        form: Form,
    },
    Store {
        to: Key,
        form: Form,
    },
    /// Elements at addresses, counted in elements, where a mask is set: the sources are what the other lanes get, the
    /// addresses and the mask. Of 64 bits or 32.
    Gather {
        from: Key,
        wide: bool,
    },
    /// A function of Rust's on the sources; one with a condition is called where any lane of the last source is set.
    Call(Native),
    /// At the tail, lanes that are none become what changes nothing.
    Neutral {
        op: Reduction,
        wide: u8,
        float: bool,
    },
}

/// Slots of the result and the operands, how many lanes there are, what the function is told, where data errors are
/// reported and which lane the first one is.
pub(super) type Function =
    unsafe extern "sysv64" fn(*mut u8, u64, u64, *const Position, u64, u64) -> u64;

/// A call of a function.
#[derive(Copy, Clone, Debug)]
pub(super) struct Native {
    pub f: Function,
    /// The number that it is told.
    pub told: u64,
    /// Whether it reports data errors.
    pub reports: bool,
    /// Whether it is called only where any lane of the last source, a mask, is set.
    pub asks: bool,
}

#[derive(Copy, Clone, Debug)]
pub(super) struct Step {
    pub what: Do,
    pub to: Option<Virt>,
    pub from: [Option<Src>; 3],
    /// Which group of lanes it is for, of several whose code is interleaved.
    pub group: u8,
}
