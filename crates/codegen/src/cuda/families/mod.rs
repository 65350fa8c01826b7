//! Library kernels in CUDA C++: one file a family. What a family does the same way for every shape and
//! dtype stands in `.cu` files, behind the types and numbers that a kernel is printed with.

use super::source::{Index, Source, memory};
use super::values::Values;
use super::{Job, Printed, Slot, Step, Way, scalar};
use crate::kir;
use crate::work::Body;
use kiln_base::{DType, Dim, custom};
use kiln_plan::Kernel;
use kiln_plan::cuda::{Blocks, CudaKernel};
use kiln_plan::tile::Arg;

mod attention;
mod conv;
mod conv_each;
mod conv_last;
mod conv_phases;
mod gemm;
mod gemm_tile;
mod made;
mod matmul;
mod scan;
mod scatter;
mod sort;
mod winograd;

pub(super) use gemm::multiplies;

/// The ways of work that is not fused alone: the default, and with `all` every other.
///
/// # Errors
/// What is not supported.
pub(super) fn print(work: Job, all: bool) -> Result<Vec<Way>, String> {
    match &work.body {
        Body::MatMul(m) => Ok(matmul::print(work, m, work.made(), all)),
        Body::Conv(c) => Ok(conv::print(work, c, all)),
        Body::Attention(a) => Ok(Way::only(attention::print(work, a))),
        Body::Scan(s) => Ok(Way::only(scan::print(work, s))),
        Body::ArgSort(s) => Ok(Way::only(sort::print(work, s))),
        Body::Scatter(s) => Ok(Way::only(scatter::print(work, s))),
        // What it brings along is looked for by name when sizes are known.
        Body::Custom(c) => {
            custom::find(&c.name)?.cuda(c.kernel.as_deref())?;
            Ok(Way::only(Printed::one(Kernel::Custom(c.clone()), &work)))
        }
        Body::Fused(_) | Body::Loop(..) | Body::If(..) => Err("it is no library kernel".into()),
    }
}

/// What a kernel is called with.
struct Call<'a> {
    work: Job<'a>,
    args: Vec<(Slot, Arg)>,
    sites: Vec<usize>,
}

impl<'a> Call<'a> {
    /// Nothing yet.
    fn new(work: Job<'a>) -> Call<'a> {
        let (args, sites) = (Vec::new(), Vec::new());
        Call { work, args, sites }
    }

    fn push(&mut self, slot: Slot, dtype: DType, written: bool) {
        if !self.args.iter().any(|a| a.0 == slot) {
            self.args.push((slot, Arg { dtype, written }));
        }
    }

    /// The name of a pointer in the kernel.
    ///
    /// # Panics
    /// If it was not pushed.
    fn pointer(&self, slot: Slot) -> String {
        format!("arg{}", self.place(slot))
    }

    /// Which argument of the kernel it is.
    ///
    /// # Panics
    /// If it was not pushed.
    fn place(&self, slot: Slot) -> usize {
        let at = self.args.iter().position(|a| a.0 == slot);
        at.expect("kernels are called with what they name")
    }

    /// An empty kernel.
    fn source(&self, name: &str, index: Index) -> Source {
        let args: Vec<Arg> = self.args.iter().map(|a| a.1).collect();
        let mut source = Source::new(self.work.gpu, name, &args, self.sites.len() as u32, index);
        let place = |arg: usize| self.args.iter().position(|a| a.0 == Slot::Arg(arg));
        for (r, w) in &self.work.in_place {
            if let (Some(r), Some(w)) = (place(*r), place(*w)) {
                source.share(r, w);
            }
        }
        source
    }

    fn step(self, kernel: CudaKernel) -> Step {
        Step {
            kernel: Kernel::Cuda(kernel),
            args: self.args.iter().map(|a| a.0).collect(),
            sites: self.sites,
        }
    }
}

/// What happens to the elements of a product.
enum Store<'a> {
    /// They are the result, or an intermediate one.
    Plain(Slot, DType),
    /// They pass through an epilogue, whose arguments are the work's.
    Epilogue(&'a kir::Kernel),
}

impl<'a> Store<'a> {
    fn of(work: Job<'a>, out: u16, dtype: DType) -> Store<'a> {
        match &work.behind {
            Some(kir) => Store::Epilogue(kir),
            None => Store::Plain(Slot::Arg(out as usize), dtype),
        }
    }

    /// Adds what it is called with, in an order that its text relies on.
    fn push(&self, call: &mut Call) {
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

    /// Stores the element `raw` at place `at` of the result.
    fn print(&self, source: &mut Source, call: &Call) {
        match self {
            Store::Plain(out, dtype) => {
                let (out, raw) = (call.pointer(*out), scalar::stored("raw", *dtype));
                source.line(format!("{out}[at] = {raw};"));
            }
            Store::Epilogue(kir) => {
                let mut values = Values::new(kir);
                values.replace(kir.args.len() - 1, "raw");
                values.decompose(source, "at");
                values.point(source);
            }
        }
    }
}

/// Adds lines.
fn lines(source: &mut Source, text: &str) {
    text.lines().for_each(|l| source.line(l));
}

/// A block for `each` points.
fn line_of_blocks(points: Dim, each: u32) -> [Blocks; 3] {
    [Blocks { points, each }, Blocks::one(), Blocks::one()]
}

/// Whether so many elements can be numbered in 32 bits.
fn few(elements: &Dim) -> bool {
    elements.as_const().is_some_and(|n| n < 1 << 30)
}

/// The types of elements in memory, in registers and of their indices, and how elements get from one to
/// the other.
fn elements(dtype: DType, index: Index) -> String {
    format!(
        "typedef {} Elem;\ntypedef {} Acc;\ntypedef {} Index;\n\
         __device__ __forceinline__ Acc load(Elem x) {{ return {}; }}\n\
         __device__ __forceinline__ Elem store(Acc x) {{ return {}; }}\n",
        memory(dtype),
        scalar::ctype(dtype.compute()),
        index.name(),
        scalar::loaded("x", dtype),
        scalar::stored("x", dtype)
    )
}
