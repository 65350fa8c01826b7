//! Kernel IR: one kernel as SSA values over an iteration space.
//!
//! A kernel runs over `axes` (parallel) times `inner` (the axes of its reductions; often empty). A value is evaluated
//! at every point that it depends on. One that depends on an inner axis *varies inside* and has a value for each inner
//! point. Every other value, and every reduction, has one for each point of `axes`. Kernel IR does not describe tiling,
//! nor which values are kept or rematerialised: emission decides that.
//!
//! Every value has a logical dtype, and is computed in that dtype's [`Compute`](kiln_base::Compute) type. Narrow
//! integers are wrapped by explicit [`Expr::Convert`]s. f16 and bf16 values are f32 and unrounded until they are
//! stored.

use kiln_base::prim::{Binary, RandomKind, Reduction, Unary};
use kiln_base::{DType, Dim, Scalar};

mod build;
mod simplify;
mod text;
mod verify;

pub(crate) use build::{KernelBuilder, PointwiseBuilder, wide};
use kiln_plan::Footprint;
pub use kiln_plan::tile::{Access, Arg, Bound};
pub(crate) use text::{access_text, affine_text};

/// A value: an index into [`Kernel::body`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Val(pub u32);

impl Val {
    /// Returns the position in the body.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kernel {
    /// A readable name.
    pub name: String,
    /// Extents of the parallel axes, outermost first.
    pub axes: Vec<Dim>,
    /// The number of trailing parallel axes that are walked in order, because stores combine over them. Their extents
    /// are positive numbers.
    pub serial: usize,
    /// Extents of the axes that reductions run over, outermost first.
    pub inner: Vec<Dim>,
    /// The buffers that it is called with.
    pub args: Vec<Arg>,
    /// The accesses to memory; values and stores name these by position.
    pub accesses: Vec<Access>,
    /// The values; operands come before their users.
    pub body: Vec<Def>,
    /// The stores.
    pub stores: Vec<Store>,
    /// The number of data-error sites that the values name.
    pub sites: u32,
}

/// The definition of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Def {
    /// The expression.
    pub expr: Expr,
    /// The logical dtype.
    pub dtype: DType,
}

/// A write of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The access to write.
    pub access: u16,
    /// The value to write.
    pub value: Val,
    /// The reduction that combines the values of all points of the serial axes, if they are combined.
    pub combine: Option<Reduction>,
}

/// A data-dependent part of an address; see [`kiln_plan::tile::Dynamic`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dynamic {
    /// An i64 value.
    pub index: Val,
    /// In elements.
    pub stride: Dim,
    /// The exclusive upper bound.
    pub extent: Dim,
    /// The site at which an index out of range is reported.
    pub site: u32,
}

/// The expression of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A load from memory.
    Load {
        /// The access to read.
        access: u16,
    },
    /// A load from memory at a data-dependent address.
    LoadAt {
        /// The static part of the address.
        access: u16,
        /// The data-dependent parts.
        dynamic: Vec<Dynamic>,
    },
    /// The i64 number `offset + Σ stride · index`.
    Index {
        /// The value at index zero.
        offset: Dim,
        /// One stride for each of `axes`, then one for each of `inner`.
        strides: Vec<Dim>,
    },
    /// A number.
    Const(Scalar),
    /// A primitive on one value.
    Unary(Unary, Val),
    /// A primitive on two values of one dtype.
    Binary {
        /// The primitive.
        op: Binary,
        /// Left operand.
        a: Val,
        /// Right operand.
        b: Val,
        /// The site at which an integer division by zero is reported; unused otherwise.
        site: u32,
    },
    /// `mask ? a : b`.
    Select {
        /// The condition, a bool.
        mask: Val,
        /// The value where the condition is true.
        a: Val,
        /// The value where it is false.
        b: Val,
    },
    /// A cast of a value of dtype `from` to the definition's dtype. A cast of f16 or bf16 to the same dtype marks an
    /// f32 that represents such a number, and is not rounded yet.
    Convert {
        /// Operand.
        a: Val,
        /// The dtype that the operand represents.
        from: DType,
    },
    /// The random number at position `offset + index`.
    Random {
        /// The kind of number made from its random words.
        kind: RandomKind,
        /// An i64.
        seed: Val,
        /// An i64.
        offset: Val,
        /// An i64: the logical index of the element.
        index: Val,
    },
    /// A reduction of a value over all inner points.
    Reduce {
        /// The reduction.
        op: Reduction,
        /// Operand.
        a: Val,
    },
    /// The linear inner index of the first extreme element.
    ArgReduce {
        /// `Max` or `Min`.
        op: Reduction,
        /// Operand.
        a: Val,
    },
}

impl Expr {
    /// Calls `f` with each operand, in order.
    pub fn operands(&self, mut f: impl FnMut(Val)) {
        match self {
            Expr::Load { .. } | Expr::Index { .. } | Expr::Const(_) => {}
            Expr::LoadAt { dynamic, .. } => dynamic.iter().for_each(|d| f(d.index)),
            Expr::Unary(_, a)
            | Expr::Convert { a, .. }
            | Expr::Reduce { a, .. }
            | Expr::ArgReduce { a, .. } => f(*a),
            Expr::Binary { a, b, .. } => [a, b].into_iter().for_each(|v| f(*v)),
            Expr::Select { mask, a, b } => [mask, a, b].into_iter().for_each(|v| f(*v)),
            Expr::Random {
                seed,
                offset,
                index,
                ..
            } => [seed, offset, index].into_iter().for_each(|v| f(*v)),
        }
    }

    /// Replaces each operand `v` by `f(v)`.
    pub fn map_operands(&mut self, mut f: impl FnMut(Val) -> Val) {
        match self {
            Expr::Load { .. } | Expr::Index { .. } | Expr::Const(_) => {}
            Expr::LoadAt { dynamic, .. } => {
                dynamic.iter_mut().for_each(|d| d.index = f(d.index));
            }
            Expr::Unary(_, a)
            | Expr::Convert { a, .. }
            | Expr::Reduce { a, .. }
            | Expr::ArgReduce { a, .. } => *a = f(*a),
            Expr::Binary { a, b, .. } => [a, b].into_iter().for_each(|v| *v = f(*v)),
            Expr::Select { mask, a, b } => [mask, a, b].into_iter().for_each(|v| *v = f(*v)),
            Expr::Random {
                seed,
                offset,
                index,
                ..
            } => [seed, offset, index].into_iter().for_each(|v| *v = f(*v)),
        }
    }

    /// True if this reduces over all inner points.
    pub fn is_reduction(&self) -> bool {
        matches!(self, Expr::Reduce { .. } | Expr::ArgReduce { .. })
    }

    /// True if evaluation costs much more than a load or an addition.
    pub fn is_expensive(&self) -> bool {
        match self {
            Expr::Unary(op, _) => op.is_expensive(),
            Expr::Binary { op, .. } => op.is_expensive(),
            Expr::Random { .. } | Expr::LoadAt { .. } => true,
            _ => false,
        }
    }
}

impl Kernel {
    /// Returns the argument that a value is loaded from, if it is a load.
    pub(crate) fn loaded_arg(&self, v: Val) -> Option<usize> {
        match self.body[v.index()].expr {
            Expr::Load { access } | Expr::LoadAt { access, .. } => {
                Some(usize::from(self.accesses[access as usize].arg))
            }
            _ => None,
        }
    }

    /// For each value, true if it varies inside.
    pub fn varies_inside(&self) -> Vec<bool> {
        let num_axes = self.axes.len();
        let moves = |strides: &[Dim]| strides[num_axes..].iter().any(|s| !s.is(0));
        let access_varies = |a: u16| {
            let a = &self.accesses[a as usize];
            moves(&a.strides) || a.bounds.iter().any(|b| moves(&b.strides))
        };
        let mut varies: Vec<bool> = Vec::with_capacity(self.body.len());
        for def in &self.body {
            let mut v = match &def.expr {
                Expr::Load { access: a } | Expr::LoadAt { access: a, .. } => access_varies(*a),
                Expr::Index { strides, .. } => moves(strides),
                _ => false,
            };
            if !def.expr.is_reduction() {
                def.expr.operands(|o| v |= varies[o.index()]);
            }
            varies.push(v);
        }
        varies
    }
}

/// Returns the number of arithmetic operations of a run.
pub(crate) fn flops(kernel: &Kernel) -> Dim {
    let rows = kiln_base::numel(&kernel.axes);
    let points = &rows * &kiln_base::numel(&kernel.inner);
    let varies = kernel.varies_inside();
    let (mut per_row, mut per_point) = (0i64, 0i64);
    for (def, varies) in kernel.body.iter().zip(varies) {
        match def.expr {
            Expr::Load { .. } | Expr::Index { .. } | Expr::Const(_) => {}
            Expr::Reduce { .. } | Expr::ArgReduce { .. } => per_point += 1,
            _ if varies => per_point += 1,
            _ => per_row += 1,
        }
    }
    &(&rows * &Dim::Const(per_row)) + &(&points * &Dim::Const(per_point))
}

/// Returns the footprints of a kernel in its arguments: the elements of each load and store, and for a load at a
/// data-dependent address all elements that it may read.
pub(crate) fn footprints(kernel: &Kernel) -> Vec<Footprint> {
    let (axes, inner) = (&kernel.axes, &kernel.inner);
    let footprint = |access: u16, dynamic: &[Dynamic]| {
        let Access {
            arg,
            offset,
            strides,
            bounds,
            fill: _,
        } = &kernel.accesses[access as usize];
        let moves = |s: &[Dim]| s[axes.len()..].iter().any(|s| !s.is(0));
        let varies = moves(strides) || bounds.iter().any(|b| moves(&b.strides));
        // A value with one element per row exists for rows without points too.
        let inner = inner.iter().map(|n| if varies { n } else { &Dim::ONE });
        let extents = axes.iter().chain(inner).cloned();
        let extend = |b: &Bound| Bound {
            strides: (b.strides.iter().cloned())
                .chain(dynamic.iter().map(|_| Dim::ZERO))
                .collect(),
            ..b.clone()
        };
        Footprint {
            arg: *arg,
            extents: extents
                .chain(dynamic.iter().map(|d| d.extent.clone()))
                .collect(),
            offset: offset.clone(),
            strides: (strides.iter().cloned())
                .chain(dynamic.iter().map(|d| d.stride.clone()))
                .collect(),
            bounds: bounds.iter().map(extend).collect(),
        }
    };
    let loads = kernel.body.iter().filter_map(|def| match &def.expr {
        Expr::Load { access } => Some(footprint(*access, &[])),
        Expr::LoadAt { access, dynamic } => Some(footprint(*access, dynamic)),
        _ => None,
    });
    let stores = kernel.stores.iter().map(|s| footprint(s.access, &[]));
    let mut footprints: Vec<Footprint> = Vec::new();
    for footprint in loads.chain(stores) {
        if !footprints.contains(&footprint) {
            footprints.push(footprint);
        }
    }
    footprints
}
