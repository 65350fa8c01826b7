//! What a step runs.

use crate::Plan;
use crate::cuda::CudaKernel;
use crate::tile::{Schedule, TileProgram};
use crate::{ArgSort, Attention, Conv, Custom, If, Loop, MatMul, Scan, Scatter};
use serde::{Deserialize, Serialize};

/// What a step runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Kernel {
    /// A fused group.
    Tile(TileProgram),
    /// A batched matrix product.
    MatMul(MatMul),
    /// A convolution.
    Conv(Conv),
    /// Running results along an axis.
    Scan(Scan),
    /// The order of the elements of lanes.
    ArgSort(ArgSort),
    /// Elements placed by index.
    Scatter(Scatter),
    /// A program run a number of times.
    Loop(Loop),
    /// One of two programs.
    If(If),
    /// A user's kernel.
    Custom(Custom),
    /// Any of these, for a GPU. A plan has either these alone or none.
    Cuda(CudaKernel),
    /// Attention. The CPU engine has no kernel for it and takes it apart.
    Attention(Box<Attention>),
}

impl Kernel {
    /// A readable name.
    pub fn name(&self) -> &str {
        match self {
            Kernel::Tile(p) => &p.name,
            Kernel::MatMul(_) | Kernel::Conv(_) => match (self.program(), self.programs().next()) {
                (Some(p), _) | (None, Some(p)) => &p.name,
                (None, None) => match self {
                    Kernel::Conv(c) => c.role.name(),
                    _ => "matmul",
                },
            },
            Kernel::Scan(_) => "scan",
            Kernel::ArgSort(_) => "arg_sort",
            Kernel::Scatter(_) => "scatter",
            Kernel::Loop(_) => "loop",
            Kernel::If(_) => "if",
            Kernel::Custom(c) => &c.name,
            Kernel::Cuda(k) => &k.name,
            Kernel::Attention(a) => a.epilogue.as_ref().map_or("attention", |e| &e.program.name),
        }
    }

    /// Its tile program, if it has one: a fused group's own, or an epilogue.
    pub fn program(&self) -> Option<&TileProgram> {
        match self {
            Kernel::Tile(p) => Some(p),
            Kernel::MatMul(MatMul { epilogue, .. }) | Kernel::Conv(Conv { epilogue, .. }) => {
                epilogue.as_ref().map(|e| &e.program)
            }
            Kernel::Attention(a) => a.epilogue.as_ref().map(|e| &e.program),
            _ => None,
        }
    }

    /// What makes its operands, one for each that it may be made for.
    pub fn prologues(&self) -> &[Option<Box<Prologue>>] {
        match self {
            Kernel::MatMul(m) => &m.prologues,
            Kernel::Conv(c) => std::slice::from_ref(&c.prologue),
            _ => &[],
        }
    }

    /// Its tile programs, in the order in which they run: those that make operands, then [`Kernel::program`].
    pub fn programs(&self) -> impl Iterator<Item = &TileProgram> {
        let made = self.prologues().iter().flatten().map(|p| &p.program);
        made.chain(self.program())
    }

    /// The programs that it runs.
    pub fn bodies(&self) -> &[Plan] {
        match self {
            Kernel::Loop(l) => std::slice::from_ref(&l.body),
            Kernel::If(i) => &i.branches[..],
            _ => &[],
        }
    }

    /// The programs that it runs, to change.
    pub fn bodies_mut(&mut self) -> &mut [Plan] {
        match self {
            Kernel::Loop(l) => std::slice::from_mut(&mut l.body),
            Kernel::If(i) => &mut i.branches[..],
            _ => &mut [],
        }
    }

    /// Whether steps of it can start together with others: it runs on the CPU, in parts, and can't report
    /// a data error.
    pub fn can_join(&self) -> bool {
        let parts = matches!(
            self,
            Kernel::Tile(_) | Kernel::MatMul(_) | Kernel::Conv(_) | Kernel::Attention(_)
        );
        parts && self.sites() == 0
    }

    /// How many places in it can report a data error.
    pub fn sites(&self) -> u32 {
        match self {
            Kernel::Scatter(_) | Kernel::Custom(_) => 1,
            Kernel::Cuda(k) => k.sites,
            Kernel::Loop(_) | Kernel::If(_) => {
                self.bodies().iter().map(|b| b.sites.len() as u32).sum()
            }
            other => other.program().map_or(0, |p| p.sites),
        }
    }
}

/// Work on the result of a matrix product or convolution while it is hot in the cache.
///
/// Its program is a [`Schedule::Lanes`] program without `inner` whose
/// linear iteration space is that of the product's row-major result (`[batch.., m, n]`, or
/// `[n, c, spatial..]`); or, of a matrix product, a [`Schedule::Rows`] program
/// whose axes are its rows and whose `inner` are the n elements of one. Its arguments are the step's, followed
/// by one more: the raw result, an array over that whole space of which only the part being worked on exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// The program; the raw result is its last argument.
    pub program: TileProgram,
}

impl Epilogue {
    /// Whether it works on whole rows of the result.
    pub fn over_rows(&self) -> bool {
        self.program.schedule == Schedule::Rows
    }
}

/// Pointwise work that makes an operand of a matrix product or convolution, a part at a time, so that it need not be in memory.
///
/// Its program is a [`Schedule::Lanes`] program without `inner` and data errors over the operand's row-major
/// linear space. Its arguments are the step's, followed by one more, which it writes: the operand, an array over
/// that whole space of which only the part being worked on exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prologue {
    /// The program; the operand is its last argument.
    pub program: TileProgram,
}

/// The argument that an operand is, or those that it is made of.
pub(crate) fn read(prologue: &Option<Box<Prologue>>, arg: u16) -> Vec<u16> {
    let Some(Prologue { program }) = prologue.as_deref() else {
        return vec![arg];
    };
    let made = program.args.len() as u16 - 1;
    let read = program.accesses.iter().map(|a| a.arg);
    read.filter(|arg| *arg != made).collect()
}
