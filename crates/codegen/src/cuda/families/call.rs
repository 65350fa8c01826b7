//! The calls of kernels of all families: their arguments, and the stores of their results.

use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source, memory};
use crate::cuda::values::Values;
use crate::cuda::vector::Vector;
use crate::cuda::walk;
use crate::kir;
use crate::work::{KernelCall, Slot};
use kiln_base::{DType, Dim};
use kiln_plan::Kernel;
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::{Blocks, CudaCpp, CudaKernel};
use kiln_plan::tile::Arg;

/// The arguments of a kernel's call.
pub(super) struct Call<'a> {
    pub work: Job<'a>,
    pub args: Vec<(Slot, Arg)>,
    pub sites: Vec<usize>,
}

impl<'a> Call<'a> {
    /// Returns a call without arguments.
    pub fn new(work: Job<'a>) -> Call<'a> {
        let (args, sites) = (Vec::new(), Vec::new());
        Call { work, args, sites }
    }

    pub fn push(&mut self, slot: Slot, dtype: DType, written: bool) {
        if !self.args.iter().any(|a| a.0 == slot) {
            self.args.push((slot, Arg { dtype, written }));
        }
    }

    /// Returns the name of a pointer in the kernel.
    ///
    /// # Panics
    /// If it was not pushed.
    pub fn pointer(&self, slot: Slot) -> String {
        format!("arg{}", self.position(slot))
    }

    /// Returns the position of a slot among the arguments of the kernel.
    ///
    /// # Panics
    /// If it was not pushed.
    pub fn position(&self, slot: Slot) -> usize {
        let position = self.args.iter().position(|a| a.0 == slot);
        position.expect("kernels name only slots that were pushed")
    }

    /// Returns an empty kernel.
    pub fn source(&self, name: &str, index: Index) -> Source {
        let args: Vec<Arg> = self.args.iter().map(|a| a.1).collect();
        let mut source = Source::new(self.work.gpu, name, &args, self.sites.len() as u32, index);
        let position = |arg: usize| self.args.iter().position(|a| a.0 == Slot::Arg(arg));
        for (r, w) in &self.work.in_place {
            if let (Some(r), Some(w)) = (position(*r), position(*w)) {
                source.may_alias(r, w);
            }
        }
        source
    }

    pub fn step(self, kernel: CudaKernel) -> KernelCall {
        KernelCall {
            kernel: Kernel::Cuda(kernel).into(),
            args: self.args.iter().map(|a| a.0).collect(),
            sites: self.sites,
        }
    }
}

/// The destination of a kernel's elements.
#[derive(Copy, Clone)]
pub(super) enum Store<'a> {
    /// The result, or scratch memory.
    Plain(Slot, DType),
    /// An epilogue, whose arguments are the work's.
    Epilogue(&'a kir::Kernel),
}

impl<'a> Store<'a> {
    pub fn of(work: Job<'a>, out: u16, dtype: DType) -> Store<'a> {
        match &work.epilogue {
            Some(kir) => Store::Epilogue(kir),
            None => Store::Plain(Slot::Arg(out as usize), dtype),
        }
    }

    /// Adds the arguments of the store, in the order that an epilogue's text expects.
    pub fn push(&self, call: &mut Call) {
        match self {
            Store::Plain(out, dtype) => call.push(*out, *dtype, true),
            Store::Epilogue(kir) => {
                call.sites = (0..kir.sites as usize).collect();
                for (i, a) in kir.args[..kir.args.len() - 1].iter().enumerate() {
                    call.push(Slot::Arg(i), a.dtype, a.written);
                }
            }
        }
    }

    /// Returns the number of elements that a thread stores as one vector, in contiguous runs of `run` elements.
    pub fn width(&self, run: &Dim) -> u32 {
        let (widest, kir) = match self {
            Store::Plain(_, dtype) => (16 / dtype.size() as u32, None),
            Store::Epilogue(kir) => match kir.axes.len().checked_sub(1) {
                None => (1, None),
                Some(last) => (Vector::along(kir, last).width, Some((*kir, last))),
            },
        };
        let is_legal = |w: &u32| {
            let divides = run.div_exact(&Dim::from(i64::from(*w))).is_ok();
            let is_vector = |(kir, last)| Vector::of_width(kir, last, *w).is_some();
            *w == 1 || divides && kir.is_none_or(is_vector)
        };
        let mut widths = std::iter::successors(Some(widest), |w| Some(w / 2));
        widths.find(is_legal).unwrap_or(1)
    }

    /// Emits the store of `raw`, an element or a vector of `width` elements, at offset `at` of the result.
    pub fn emit(&self, source: &mut Source, call: &Call, width: u32) {
        match self {
            Store::Plain(out, dtype) if width > 1 => {
                let (out, ty) = (call.pointer(*out), memory(*dtype));
                let value = CudaCpp::stored("raw.v[k]", *dtype);
                let text = format!(
                    "\
kiln_vec<{ty}, {width}> vector;
#pragma unroll
for (int k = 0; k < {width}; ++k) vector.v[k] = {value};
kiln_store({out} + at, vector);"
                );
                lines(source, &text);
            }
            Store::Plain(out, dtype) => {
                let (out, raw) = (call.pointer(*out), CudaCpp::stored("raw", *dtype));
                source.line(format!("{out}[at] = {raw};"));
            }
            Store::Epilogue(kir) => {
                let raw_arg = kir.args.len() - 1;
                let mut values = Values::new(kir);
                values.replace(raw_arg, if width > 1 { "raw.v[k]" } else { "raw" });
                values.decompose(source, "at");
                let vector = match width {
                    1 => Some(Vector::scalar(kir)),
                    _ => Vector::of_width(kir, kir.axes.len() - 1, width),
                };
                let mut vector = vector.expect("Store::width returned this width");
                // The raw element is in shared memory.
                for (whole, access) in vector.whole.iter_mut().zip(&kir.accesses) {
                    *whole &= usize::from(access.arg) != raw_arg;
                }
                walk::emit(source, &mut values, kir, &vector);
            }
        }
    }
}

/// Adds each line of a text.
pub(super) fn lines(source: &mut Source, text: &str) {
    text.lines().for_each(|l| source.line(l));
}

/// Returns a one-dimensional grid with a block for each `each` points.
pub(super) fn line_of_blocks(points: Dim, each: u32) -> [Blocks; 3] {
    [Blocks { points, each }, Blocks::one(), Blocks::one()]
}

/// True if indices below `elements` fit into 32 bits, with room for sums of two.
pub(super) fn fits_i32(elements: &Dim) -> bool {
    elements.as_const().is_some_and(|n| n < 1 << 30)
}

/// Returns the C++ of the types of stored elements, accumulators and indices, and of the functions `load` and `store`
/// between them.
pub(super) fn elements(dtype: DType, index: Index) -> String {
    format!(
        "typedef {} Elem;\ntypedef {} Acc;\ntypedef {} Index;\ntypedef unsigned {} UIndex;\n\
         __device__ __forceinline__ Acc load(Elem x) {{ return {}; }}\n\
         __device__ __forceinline__ Elem store(Acc x) {{ return {}; }}\n",
        memory(dtype),
        CudaCpp::ctype(dtype.compute()),
        index.name(),
        index.name(),
        CudaCpp::loaded("x", dtype),
        CudaCpp::stored("x", dtype)
    )
}
