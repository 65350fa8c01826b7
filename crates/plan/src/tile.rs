//! Tile programs: the portable CPU dialect of Kernel IR.
//!
//! A tile program is a list of vector instructions that run over tiles of up to [`TILE`] elements, so
//! that intermediate values stay in the first-level cache. Every register holds one tile of a
//! [`Compute`] type.
//!
//! The iteration space is `axes` (parallel) times `inner` (the axes of reductions; often empty), both linearised
//! row-major. [`Schedule`] selects which of the two is divided into tiles:
//!
//! * [`Schedule::Lanes`]: a tile is a range of the linear `axes` space. Stages with `over_inner` run
//!   once for each point of `inner`, in order, and their reductions accumulate lane by lane.
//! * [`Schedule::Rows`]: for each point of `axes`, stages with `over_inner` run over the tiles of the
//!   linear `inner` space and their reductions combine across lanes; the other stages run with one
//!   element. The result of a stage outside `inner`, or of a reduction, is broadcast to the whole
//!   register, so later stages read it like any other tile.
//!
//! Constants are broadcast to their registers before the first tile.
//!
//! The points of the last `serial` parallel axes of rows run in order on one thread, and its slots live as long. A
//! stage for the first of them can clear a slot, one for each can add to it, and one for the last can write it. So a
//! kernel of rows can also have sums over columns.

use crate::Dims;
use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::dims::dims;
use kiln_base::prim::{Binary, RandomKind, Reduction, Unary};
use kiln_base::{Compute, DType, Dim, Scalar};
use serde::{Deserialize, Serialize};

/// The number of elements of a tile register.
pub const TILE: usize = 512;

/// A register of a tile program.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reg(pub u16);

/// A kernel as a list of vector instructions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TileProgram {
    /// A readable name, such as `mul_add_relu`.
    pub name: String,
    /// The extents of the parallel axes, outermost first.
    pub axes: Vec<Dim>,
    /// The extents of the axes that reductions run over, outermost first.
    pub inner: Vec<Dim>,
    /// The number of trailing parallel axes that run in order on one thread; only with [`Schedule::Rows`].
    pub serial: u16,
    /// The axes that are divided into tiles.
    pub schedule: Schedule,
    /// The division of the work.
    pub sizes: TileSizes,
    /// The buffers that the kernel is called with.
    pub args: Vec<Arg>,
    /// The accesses to memory; instructions name these by position.
    pub accesses: Vec<Access>,
    /// The type of each register.
    pub registers: Vec<Compute>,
    /// The registers that hold the same value in every lane for the whole run.
    pub constants: Vec<(Reg, Scalar)>,
    /// The types of the row slots: scratch memory that keeps a value of every `inner` point between the stages of one
    /// row (or one tile of rows).
    pub slots: Vec<Compute>,
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// The number of data-error sites that the instructions name; the step maps them to the plan's.
    pub sites: u32,
}

dims!(
    TileProgram: axes, inner, accesses, stages;
    name, serial, schedule, sizes, args, registers, constants, slots, sites
);

/// The division of a program's work; fields that are not set follow from the sizes. None of it changes results, except
/// for the order in which a row is summed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileSizes {
    /// The number of elements of a tile, up to [`TILE`].
    pub tile: Option<u16>,
    /// True if results that are written in order bypass the cache.
    pub stream: Option<bool>,
    /// The number of parts of the parallel axes per thread; with 0 one thread does everything.
    pub parts: Option<u8>,
}

/// The part of the iteration space that is divided into tiles; see the [module](self).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schedule {
    /// Tiles of the parallel axes.
    #[default]
    Lanes,
    /// Tiles of the inner axes.
    Rows,
}

/// A kernel argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arg {
    /// The element type in memory.
    pub dtype: DType,
    /// True if the kernel writes it.
    pub written: bool,
}

/// An affine index map into one argument: the element at `offset + Σ stride · index`, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    /// The argument's index.
    pub arg: u16,
    /// The element offset at index zero. May be negative if `bounds` exclude that index.
    pub offset: Dim,
    /// The strides: one for each of `axes`, then one for each of `inner`.
    pub strides: Vec<Dim>,
    /// The conditions that must all hold, or else a load returns `fill` and a store does nothing.
    pub bounds: Vec<Bound>,
    /// The result of an excluded load.
    pub fill: Scalar,
}

dims!(Access: offset, strides, bounds; arg, fill);

/// The condition `0 <= offset + Σ stride · index < extent`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bound {
    /// The value at index zero.
    pub offset: Dim,
    /// The strides: one for each of `axes`, then one for each of `inner`.
    pub strides: Vec<Dim>,
    /// The exclusive upper bound.
    pub extent: Dim,
}

dims!(Bound: offset, strides, extent;);

/// A selection of points of the serial axes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SerialPoints {
    /// All of them.
    #[default]
    Every,
    /// The first.
    First,
    /// The last.
    Last,
}

/// A stage: a sequence of instructions with one loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// True if it runs for every point of `inner`.
    pub over_inner: bool,
    /// The points of the serial axes for which it runs.
    pub serial_points: SerialPoints,
    /// The instructions, in order.
    pub code: Vec<Inst>,
}

dims!(Stage: code; over_inner, serial_points);

/// A data-dependent part of an address, `index · stride`, which is added. If `0 <= index < extent` does not hold, the
/// site reports an error (and the load reads index 0).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dynamic {
    /// An i64 register.
    pub index: Reg,
    /// The stride in elements.
    pub stride: Dim,
    /// The exclusive upper bound.
    pub extent: Dim,
    /// The kernel-local site to report.
    pub site: u32,
}

dims!(Dynamic: stride, extent; index, site);

/// A vector instruction. Operands have the compute type of their registers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Inst {
    /// Reads memory, converting from the argument's dtype to the register's type.
    Load {
        /// The result, in a register of the argument dtype's [`Compute`] type.
        dst: Reg,
        /// The access to read.
        access: u16,
    },
    /// Reads memory at a data-dependent address.
    LoadAt {
        /// The result, in a register of the argument dtype's [`Compute`] type.
        dst: Reg,
        /// The static part of the address.
        access: u16,
        /// The data-dependent parts.
        dynamic: Vec<Dynamic>,
    },
    /// Computes the number `offset + Σ stride · index`, as i64.
    Index {
        /// The result, an i64 register.
        dst: Reg,
        /// The value at index zero.
        offset: Dim,
        /// The strides: one for each of `axes`, then one for each of `inner`.
        strides: Vec<Dim>,
    },
    /// Applies a primitive to one operand.
    Unary {
        /// The primitive.
        op: Unary,
        /// The result.
        dst: Reg,
        /// The operand.
        a: Reg,
    },
    /// Applies a primitive to two operands.
    Binary {
        /// The primitive.
        op: Binary,
        /// The result.
        dst: Reg,
        /// The left operand.
        a: Reg,
        /// The right operand.
        b: Reg,
        /// The kernel-local site at which an integer division by zero is reported; unused otherwise.
        site: u32,
    },
    /// `mask ? a : b`.
    Select {
        /// The result.
        dst: Reg,
        /// A mask register.
        mask: Reg,
        /// The value where the mask is 1.
        a: Reg,
        /// The value where the mask is 0.
        b: Reg,
    },
    /// Converts between compute types by the rules of casts, as a value of dtype `from` to dtype `to` (whose compute
    /// types are those of the registers): floats round to `to`, integers wrap into it, float to integer truncates and
    /// saturates. With one compute type on both sides it rounds or wraps in place.
    Convert {
        /// The result, of `to`'s compute type.
        dst: Reg,
        /// The operand, of `from`'s compute type.
        a: Reg,
        /// The dtype that the operand represents.
        from: DType,
        /// The dtype of the result.
        to: DType,
    },
    /// Computes random numbers: those at position `offset + index` of the stream of `seed`.
    Random {
        /// The result: i64 for bits, f32 or f64 otherwise.
        dst: Reg,
        /// The kind of number made from the random words.
        kind: RandomKind,
        /// The seed, an i64 register.
        seed: Reg,
        /// The offset, an i64 register.
        offset: Reg,
        /// The logical index of the element, an i64 register.
        index: Reg,
    },
    /// Accumulates `a` into `acc` over the inner points of this stage; `acc` is readable from the next stage on. The
    /// reduction of no elements is the identity (for integers `Max` and `Min`, that of the register's type).
    Reduce {
        /// The reduction.
        op: Reduction,
        /// The accumulator and result.
        acc: Reg,
        /// The operand.
        a: Reg,
    },
    /// Finds the linear `inner` index of the first largest (`Max`) or smallest (`Min`) element of `a`; NaN counts as
    /// larger and smaller than everything.
    ArgReduce {
        /// `Max` or `Min`.
        op: Reduction,
        /// The result, an i64 register.
        acc: Reg,
        /// The operand.
        a: Reg,
    },
    /// Keeps a value for later stages.
    Keep {
        /// The index of the row slot.
        slot: u16,
        /// The value.
        src: Reg,
    },
    /// Reads a kept value.
    Kept {
        /// The result.
        dst: Reg,
        /// The index of the row slot.
        slot: u16,
    },
    /// Writes memory, converting from the register's type to the argument's dtype.
    Store {
        /// The access to write.
        access: u16,
        /// The value.
        src: Reg,
    },
}

impl Described for TileProgram {
    fn name(&self) -> &str {
        &self.name
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(&self.name);
        draft.program(self, None, Reads::First)?;
        draft.finish_reading_back(self.sites)
    }

    fn in_parts(&self) -> bool {
        true
    }

    fn program(&self) -> Option<&TileProgram> {
        Some(self)
    }
}

impl Inst {
    /// Returns the registers that it reads, and the one that it writes.
    pub fn operands(&self) -> (Vec<Reg>, Option<Reg>) {
        match self {
            Inst::Load { dst, .. } | Inst::Index { dst, .. } | Inst::Kept { dst, .. } => {
                (vec![], Some(*dst))
            }
            Inst::LoadAt { dst, dynamic, .. } => {
                (dynamic.iter().map(|d| d.index).collect(), Some(*dst))
            }
            Inst::Unary { dst, a, .. } | Inst::Convert { dst, a, .. } => (vec![*a], Some(*dst)),
            Inst::Binary { dst, a, b, .. } => (vec![*a, *b], Some(*dst)),
            Inst::Select { dst, mask, a, b } => (vec![*mask, *a, *b], Some(*dst)),
            Inst::Random {
                dst,
                seed,
                offset,
                index,
                ..
            } => (vec![*seed, *offset, *index], Some(*dst)),
            Inst::Reduce { acc, a, .. } | Inst::ArgReduce { acc, a, .. } => (vec![*a], Some(*acc)),
            Inst::Keep { src, .. } | Inst::Store { src, .. } => (vec![*src], None),
        }
    }
}

impl Dims for Inst {
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        match self {
            Inst::LoadAt { dynamic, .. } => dynamic.all_dims(holds),
            Inst::Index {
                offset, strides, ..
            } => offset.all_dims(holds) && strides.all_dims(holds),
            Inst::Load { .. }
            | Inst::Unary { .. }
            | Inst::Binary { .. }
            | Inst::Select { .. }
            | Inst::Convert { .. }
            | Inst::Random { .. }
            | Inst::Reduce { .. }
            | Inst::ArgReduce { .. }
            | Inst::Keep { .. }
            | Inst::Kept { .. }
            | Inst::Store { .. } => true,
        }
    }
}
