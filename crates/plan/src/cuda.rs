//! Kernels in CUDA C++.
//!
//! A [`CudaKernel`] is source text without headers: what it may lean on is [`PRELUDE`], in front of
//! which it is compiled. Several kernels share a translation unit, so everything at file scope is
//! named after the kernel's own `entry`.
//!
//! # How a kernel is called
//! The parameters of `extern "C" __global__ void entry(..)` are, in order:
//!
//! 1. one pointer an argument (`const T* __restrict__` unless it is written or may share memory with one
//!    that is), in the order of `args`; bool is `unsigned char` and f16 and bf16 are `unsigned short`;
//! 2. one `long long` for each of `scalars`, the value of that [`Dim`] under the run's binding;
//! 3. one `unsigned` a site: the plan's number of the site;
//! 4. `kiln_errors* errors`, the run's [`ErrorRecord`];
//! 5. `int guarded`: whether this step writes memory that an error must leave untouched. Such a kernel
//!    begins with `if (guarded && errors->state) return;`.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::tile::Arg;
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// What every kernel's source may use.
pub const PRELUDE: &str = concat!(
    include_str!("cuda/prelude.cu"),
    include_str!("cuda/special.cu")
);

/// A kernel in CUDA C++; see the [module](self) for how it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaKernel {
    /// A readable name, such as `mul_add_relu`.
    pub name: String,
    /// The name of the function: `name` and a hash of the source, so that equal names mean equal code.
    pub entry: String,
    /// The text behind the prelude.
    pub source: String,
    /// The pointers it is called with.
    pub args: Vec<Arg>,
    /// The numbers it is called with.
    pub scalars: Vec<Dim>,
    /// Blocks along x, y and z. A grid without blocks is not launched.
    pub grid: [Blocks; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// How many data-error sites the source names.
    pub sites: u32,
}

impl Described for CudaKernel {
    fn name(&self) -> &str {
        &self.name
    }

    /// What its text does is the compiler's word.
    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        for (at, arg) in self.args.iter().enumerate() {
            match arg.written {
                true => draft.writes(at as u16, arg.dtype)?,
                false => draft.reads(at as u16, arg.dtype, Reads::First)?,
            }
        }
        draft.finish(self.sites)
    }

    fn own_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        let CudaKernel {
            name: _,
            entry: _,
            source: _,
            args: _,
            scalars,
            grid,
            block: _,
            shared: _,
            sites: _,
        } = self;
        scalars.iter().all(&mut *holds) && grid.iter().all(|b| holds(&b.points))
    }
}

/// The C type of a dtype in memory.
pub fn memory(dtype: DType) -> &'static str {
    match (dtype, dtype.size()) {
        (DType::F32, _) => "float",
        (DType::F64, _) => "double",
        (DType::I8, _) => "signed char",
        (DType::I16, _) => "short",
        (DType::I32, _) => "int",
        (DType::I64, _) => "long long",
        // Bool, unsigned integers, and the bits of narrow floats.
        (_, 1) => "unsigned char",
        (_, 2) => "unsigned short",
        (_, 4) => "unsigned",
        (_, _) => "unsigned long long",
    }
}

/// A number of blocks: ⌈points / each⌉.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// What is shared out.
    pub points: Dim,
    /// How much of it a block takes; at least 1.
    pub each: u32,
}

impl Blocks {
    /// One block.
    pub fn one() -> Blocks {
        Blocks {
            points: Dim::Const(1),
            each: 1,
        }
    }

    /// The number of blocks under a binding.
    pub fn count(&self, values: &[i64]) -> i64 {
        let each = i64::from(self.each.max(1));
        (self.points.eval(values) + each - 1) / each
    }
}

/// The first data error of a run, in device memory; `kiln_errors` in CUDA C++. The thread that changes
/// `state` from 0 writes the rest.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ErrorRecord {
    /// 0, or the plan's number of the site plus one.
    pub state: u32,
    /// Unused.
    pub padding: u32,
    /// The offending index (the dividend for a division by zero).
    pub index: i64,
    /// The exclusive upper bound of the index (0 for a division by zero).
    pub bound: i64,
}
