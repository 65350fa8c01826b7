//! Decoded instructions, which a block executes.

use crate::lanes::{Operands, Predicate, Run, Slot};
use crate::ptx::{SourceLine, Space, Type};

/// An instruction with its guard and the index of its [`Origin`].
#[derive(Debug)]
pub(crate) struct Inst {
    pub guard: Predicate,
    pub negated: bool,
    pub origin: u32,
    pub op: Op,
}

/// The place that an instruction comes from.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Origin {
    pub line: u32,
    pub source: SourceLine,
}

/// `[base + offset]`
#[derive(Copy, Clone, Debug)]
pub(crate) struct Address {
    pub base: Slot,
    pub wide: bool,
    pub offset: i64,
}

/// A load or store: each lane accesses `count` values of `size` bytes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Access {
    pub space: Space,
    pub address: Address,
    pub size: u8,
    pub count: u8,
    /// True if narrow values are sign-extended.
    pub signed: bool,
    pub registers: [Slot; 4],
}

/// The operation of an atomic.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

/// `atom` or `red`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Atomic {
    pub op: AtomicOp,
    pub ty: Type,
    pub space: Space,
    pub address: Address,
    pub d: Slot,
    pub a: Slot,
    pub b: Slot,
}

/// The pattern of a shuffle.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleKind {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `shfl.sync`
#[derive(Copy, Clone, Debug)]
pub(crate) struct Shuffle {
    pub kind: ShuffleKind,
    pub d: Slot,
    pub in_range: Predicate,
    pub a: Slot,
    pub b: Slot,
    pub c: Slot,
    pub members: Slot,
}

/// The question of a vote.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum VoteKind {
    All,
    Any,
    Uniform,
    Ballot,
}

/// `vote.sync`; `d` is a register for ballots and a predicate otherwise.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Vote {
    pub kind: VoteKind,
    pub d: u32,
    pub source: Predicate,
    pub negated: bool,
    pub members: Slot,
}

/// `match.sync`
#[derive(Copy, Clone, Debug)]
pub(crate) struct Match {
    pub all: bool,
    pub wide: bool,
    pub d: Slot,
    pub equal: Predicate,
    pub a: Slot,
    pub members: Slot,
}

/// `redux.sync`
#[derive(Copy, Clone, Debug)]
pub(crate) struct Redux {
    pub op: AtomicOp,
    pub ty: Type,
    pub d: Slot,
    pub a: Slot,
    pub members: Slot,
}

/// The reduction that a barrier computes over a predicate of every thread.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    Count,
    And,
    Or,
}

/// `bar.sync`, `bar.red` and `bar.arrive`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Barrier {
    pub id: Slot,
    /// The number of threads; `None`: the whole block.
    pub threads: Option<Slot>,
    /// True if the warp waits.
    pub waits: bool,
    /// The operation, its destination (register or predicate), its source, and true if the source is negated.
    pub reduction: Option<(BarrierReduction, u32, Predicate, bool)>,
}

/// `cp.async`
#[derive(Copy, Clone, Debug)]
pub(crate) struct AsyncCopy {
    pub to: Address,
    pub from: Address,
    pub size: u8,
    /// The number of bytes to read; the rest is filled with zeros.
    pub read: Option<Slot>,
}

/// `mma.sync.m16n8k…`
#[derive(Clone, Debug)]
pub(crate) struct Mma {
    pub k: u8,
    /// The types of A and B, which only differ if they are integers.
    pub types: [Type; 2],
    /// True if the accumulator has 32 bits; it is f16 otherwise.
    pub wide_sum: bool,
    pub d: Vec<Slot>,
    pub a: Vec<Slot>,
    pub b: Vec<Slot>,
    pub c: Vec<Slot>,
}

/// `ldmatrix` and `stmatrix` of 8×8 tiles of 16 bits.
#[derive(Clone, Debug)]
pub(crate) struct MatrixAccess {
    pub registers: Vec<Slot>,
    pub address: Address,
    pub transposed: bool,
}

/// Operations on an mbarrier in shared memory.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Mbarrier {
    Init {
        at: Address,
        count: Slot,
    },
    Invalidate {
        at: Address,
    },
    /// Adds to the number of expected bytes.
    Expect {
        at: Address,
        bytes: Slot,
    },
    /// `count` threads arrive; `bytes` more bytes are expected.
    Arrive {
        at: Address,
        state: Slot,
        count: Option<Slot>,
        bytes: Option<Slot>,
    },
    /// Tests, by parity or by state, if the phase given by `phase` is over.
    Test {
        at: Address,
        done: Predicate,
        phase: Slot,
        parity: bool,
    },
}

/// A bulk copy between global and shared memory.
#[derive(Clone, Debug)]
pub(crate) enum Bulk {
    /// Copies `bytes` bytes to shared memory and signals `barrier`.
    Load {
        to: Address,
        from: Address,
        bytes: Slot,
        barrier: Address,
    },
    /// Copies a box of a tensor to shared memory: the block's own, or that of the blocks of its cluster whose bits are
    /// set.
    LoadTensor {
        to: Address,
        map: Address,
        at: Vec<Slot>,
        /// Of im2col, what is added to the coordinates of each pixel.
        offsets: Option<Vec<Slot>>,
        barrier: Address,
        blocks: Option<Slot>,
    },
    /// Copies a box of a tensor from shared memory.
    StoreTensor {
        from: Address,
        map: Address,
        at: Vec<Slot>,
    },
    /// Closes the open group of stores.
    Commit,
    /// Waits until the sources of all but the `keep` newest groups of stores have been read.
    Wait { keep: u32 },
}

/// `wgmma.mma_async`
#[derive(Clone, Debug)]
pub(crate) struct WarpgroupMma {
    pub n: u16,
    /// As in [`Mma::types`].
    pub types: [Type; 2],
    pub d: Vec<Slot>,
    /// Registers of A, or the descriptor of A in shared memory.
    pub a: Vec<Slot>,
    pub a_descriptor: Slot,
    pub b_descriptor: Slot,
    /// True if the product is added to the accumulator.
    pub accumulate: Predicate,
    pub negate_a: bool,
    pub negate_b: bool,
    pub transpose_a: bool,
    pub transpose_b: bool,
}

/// The operation of an instruction.
#[derive(Debug)]
pub(crate) enum Op {
    /// A loop over the lanes.
    Lanes {
        run: Run,
        operands: Operands,
    },
    Load(Access),
    Store(Access),
    Atomic(Box<Atomic>),
    Branch(u32),
    BranchTable {
        index: Slot,
        targets: Box<[u32]>,
    },
    Exit,
    Trap,
    Clock {
        d: Slot,
        wide: bool,
    },
    Barrier(Box<Barrier>),
    /// Arrives at the barrier of the cluster.
    ClusterArrive,
    /// Waits until all warps of the cluster have arrived.
    ClusterWait,
    WarpBarrier {
        members: Slot,
    },
    Shuffle(Box<Shuffle>),
    Vote(Box<Vote>),
    Match(Box<Match>),
    Redux(Box<Redux>),
    ActiveMask {
        d: Slot,
    },
    Elect {
        d: Slot,
        elected: Predicate,
        members: Slot,
    },
    AsyncCopy(Box<AsyncCopy>),
    AsyncCommit,
    /// Waits until at most `pending` of the newest groups are pending; `None`: waits for every copy.
    AsyncWait {
        pending: Option<Slot>,
    },
    LoadMatrix(Box<MatrixAccess>),
    StoreMatrix(Box<MatrixAccess>),
    Mma(Box<Mma>),
    Mbarrier(Box<Mbarrier>),
    /// Makes initialised mbarriers visible to bulk copies, and of a proxy fence also what was written.
    AsyncFence {
        is_proxy: bool,
    },
    Bulk(Box<Bulk>),
    WarpgroupMma(Box<WarpgroupMma>),
    WarpgroupFence,
    WarpgroupCommit,
    WarpgroupWait {
        pending: u32,
    },
}

/// A value that every instruction may read: constant over a launch, a block or a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Value(u64),
    /// Bytes of the kernel's parameters.
    Parameter {
        offset: u32,
        size: u8,
        signed: bool,
    },
    /// The offset of a parameter.
    ParameterAddress(u32),
    /// An offset in static shared memory.
    Shared(u32),
    /// The start of dynamic shared memory.
    SharedDynamic,
    /// An offset in local memory.
    Local(u32),
    Special(Special),
}

/// Special registers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Cluster(u8),
    Clusters(u8),
    BlockOfCluster(u8),
    BlocksOfCluster(u8),
    /// The number of a block in its cluster.
    Rank,
    Ranks,
    Lane,
    Warp,
    Warps,
    MaskEqual,
    MaskLess,
    MaskLessEqual,
    MaskGreater,
    MaskGreaterEqual,
    DynamicShared,
    TotalShared,
    Zero,
    One,
}

impl Special {
    /// The special register called `name`, without its `%`.
    pub fn parse(name: &str) -> Option<Special> {
        if let Some((register, axis)) = name.split_once('.') {
            let axis = ["x", "y", "z"].iter().position(|&a| a == axis)? as u8;
            return Some(match register {
                "tid" => Special::Thread(axis),
                "ntid" => Special::Threads(axis),
                "ctaid" => Special::Block(axis),
                "nctaid" => Special::Blocks(axis),
                "clusterid" => Special::Cluster(axis),
                "nclusterid" => Special::Clusters(axis),
                "cluster_ctaid" => Special::BlockOfCluster(axis),
                "cluster_nctaid" => Special::BlocksOfCluster(axis),
                _ => return None,
            });
        }
        Some(match name {
            "laneid" => Special::Lane,
            "warpid" => Special::Warp,
            "nwarpid" => Special::Warps,
            "lanemask_eq" => Special::MaskEqual,
            "lanemask_lt" => Special::MaskLess,
            "lanemask_le" => Special::MaskLessEqual,
            "lanemask_gt" => Special::MaskGreater,
            "lanemask_ge" => Special::MaskGreaterEqual,
            "dynamic_smem_size" => Special::DynamicShared,
            "total_smem_size" => Special::TotalShared,
            "cluster_ctarank" => Special::Rank,
            "cluster_nctarank" => Special::Ranks,
            "smid" => Special::Zero,
            "nsmid" => Special::One,
            _ => return None,
        })
    }

    /// True if the value is the same for every block of a launch.
    pub fn is_of_launch(self) -> bool {
        !matches!(self, Special::Block(_) | Special::Cluster(_))
    }
}
