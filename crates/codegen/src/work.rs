//! Work: a computation independent of its engine, and the candidates for it.

use crate::approximation::Approximation;
use crate::kir;
use crate::limits::Limits;
use crate::program::{Cost, Options, Program};
use crate::schedule::Schedule;
use kiln_base::{DType, Dim, Machine, numel};
use kiln_plan::contraction::Contraction;
use kiln_plan::{
    Attention, Conv, ConvRole, Described, Footprint, If, Kernel, Loop, MatMul, Reads, schedule,
};
use std::sync::Arc;

/// A computation on some arguments: a body, whose operands pointwise prologues may compute, and whose result may pass
/// through an epilogue before it is stored.
///
/// The arguments of the prologues and the epilogue are those of the work, and one more: the operand that is computed,
/// or the body's result. Neither is in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The body of the computation.
    pub body: Body,
    /// The prologues of the operands of a product or a convolution, one for each.
    pub prologues: [Option<Box<kir::Kernel>>; 2],
    /// The epilogue.
    pub epilogue: Option<kir::Kernel>,
    /// The arguments that it reads and writes.
    pub args: Vec<Arg>,
    /// Pairs (read argument, written argument) that may alias: every element is read before it is written, at the same
    /// address, with the same dtype and size.
    pub in_place: Vec<(usize, usize)>,
}

/// The main part of some work. Products and convolutions have no algorithm yet, and their prologues and epilogues are
/// in the [`Work`].
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A kernel of Kernel IR.
    Fused(kir::Kernel),
    /// A batched matrix product.
    MatMul(MatMul),
    /// A convolution, or a gradient of one.
    Conv(Conv),
    /// Attention.
    Attention(Box<Attention>),
    /// A kernel from memory to memory, without prologue or epilogue: a scan, a sort, a scatter, a user's operator.
    Library(Kernel),
    /// A program run a number of times.
    Loop(Loop, Box<Program>),
    /// One of two programs.
    If(If, Box<[Program; 2]>),
}

/// An argument of some work.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: Dim,
    /// True if it is written, false if it is read.
    pub written: bool,
    /// True if it is read and depends on parameters and constants only, so that panels packed from it are kept.
    pub fixed: bool,
}

/// A candidate: kernels that compute some work, by one schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The division among threads.
    pub schedule: Schedule,
    /// The precision that it gives up; `None` for the default.
    pub approximation: Option<Approximation>,
    /// Its cost by a model, in a unit that the candidates for some work share.
    pub predicted: Option<f64>,
    /// Its kernels.
    pub calls: KernelCalls,
}

/// An engine that computes work.
pub(crate) trait Engine {
    /// Returns the limits of dividing work on its machine.
    fn limits(&self) -> Limits;

    /// Returns the default schedule of a product or convolution, and its cycles by the machine's model, if that has one.
    fn preferred(&self, _work: &Work) -> Option<(schedule::Gpu, f64)> {
        None
    }

    /// Returns the candidates for some work: the default, and every other if the options request them.
    ///
    /// # Errors
    /// If the machine does not support the work.
    fn candidates(&self, work: &Work, options: &Options) -> Result<Vec<Candidate>, String>;
}

/// Kernels that compute some work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelCalls {
    /// The kernel calls, in order.
    pub steps: Vec<KernelCall>,
    /// Memory that only these steps use: dtype and shape.
    pub scratch: Vec<(DType, Vec<Dim>)>,
    /// Pairs (read argument, written argument) of the work that may alias.
    pub in_place: Vec<(usize, usize)>,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCall {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// One for each of the kernel's arguments.
    pub args: Vec<Slot>,
    /// For each of the kernel's sites, its position among the work's.
    pub sites: Vec<usize>,
}

/// The origin of a kernel argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// An argument of the work.
    Arg(usize),
    /// One of [`KernelCalls::scratch`].
    Scratch(usize),
}

impl Work {
    /// Returns its Kernel IR in execution order: prologues, then the body or the epilogue.
    pub fn kernels(&self) -> impl Iterator<Item = &kir::Kernel> {
        let body = match &self.body {
            Body::Fused(kernel) => Some(kernel),
            _ => self.epilogue.as_ref(),
        };
        self.prologues.iter().flatten().map(|k| &**k).chain(body)
    }

    /// Returns its Kernel IR on a machine as text, if it has any: its contraction, and the fused kernels.
    pub fn kir_text(&self, machine: &Machine) -> Option<String> {
        let contraction = self.body.contraction(machine).map(|c| c.to_string());
        let kernels = self.kernels().map(|k| k.to_string());
        let texts: Vec<String> = contraction.into_iter().chain(kernels).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// Returns the prologues, one for each operand that may have one.
    pub fn prologues(&self) -> [Option<&kir::Kernel>; 2] {
        self.prologues.each_ref().map(Option::as_deref)
    }

    /// Returns a readable name.
    pub fn name(&self) -> &str {
        let body_name = match &self.body {
            Body::Fused(kernel) => Some(&kernel.name[..]),
            body => body.described().map(|d| d.name()),
        };
        self.fused_name().or(body_name).unwrap_or_default()
    }

    /// Returns the name of its epilogue, or else of a prologue, if it has one.
    pub(crate) fn fused_name(&self) -> Option<&str> {
        let prologues = self.prologues.iter().flatten().map(|k| &**k);
        let kernel = self.epilogue.iter().chain(prologues).next();
        kernel.map(|k| &k.name[..])
    }

    /// True if the weights of a convolution, or B of a product, can be packed once for all runs.
    pub fn packs(&self) -> bool {
        let weights = match &self.body {
            Body::MatMul(m) => m.rhs.arg,
            Body::Conv(c) => c.operands[1],
            _ => return false,
        };
        self.args.get(usize::from(weights)).is_some_and(|a| a.fixed)
    }

    /// Returns the number of its data-error sites, without those in the programs that it runs.
    pub fn sites(&self) -> usize {
        match &self.body {
            Body::Fused(kernel) => kernel.sites as usize,
            Body::Library(kernel) => kernel.contract().map_or(0, |c| c.sites as usize),
            _ => self.epilogue.as_ref().map_or(0, |k| k.sites as usize),
        }
    }

    /// Returns its cost.
    pub fn cost(&self) -> Cost {
        let kernels = self.kernels().map(kir::flops);
        let arg = |a: &Arg| &a.len * &Dim::from(a.dtype.size());
        Cost {
            flops: kernels.fold(self.body.flops(), |n, k| &n + &k),
            bytes: self.args.iter().fold(Dim::ZERO, |n, a| &n + &arg(a)),
        }
    }

    /// Returns its footprints in its arguments.
    pub fn footprints(&self) -> Vec<Footprint> {
        let is_argument = |r: &Footprint| usize::from(r.arg) < self.args.len();
        let kernels = self.kernels().flat_map(kir::footprints);
        let described = self.body.described().into_iter();
        let footprints = described.flat_map(|d| d.footprints()).chain(kernels);
        footprints.filter(is_argument).collect()
    }

    /// Returns the programs that it runs.
    pub fn bodies(&self) -> &[Program] {
        match &self.body {
            Body::Loop(_, body) => std::slice::from_ref(body),
            Body::If(_, branches) => &branches[..],
            _ => &[],
        }
    }

    /// Returns the programs that it runs, mutably.
    pub fn bodies_mut(&mut self) -> &mut [Program] {
        match &mut self.body {
            Body::Loop(_, body) => std::slice::from_mut(body),
            Body::If(_, branches) => &mut branches[..],
            _ => &mut [],
        }
    }
}

impl Body {
    /// Returns the body as a contraction, if it is one.
    fn contraction(&self, machine: &Machine) -> Option<Contraction> {
        match self {
            Body::MatMul(m) => Some(m.into()),
            Body::Conv(c) => Some(c.contraction(c.filters(machine.gpu().is_some()))),
            _ => None,
        }
    }

    /// Returns the description of the body, unless it is Kernel IR.
    fn described(&self) -> Option<&dyn Described> {
        Some(match self {
            Body::Fused(_) => return None,
            Body::MatMul(m) => m,
            Body::Conv(c) => c,
            Body::Attention(a) => &**a,
            Body::Library(kernel) => &**kernel,
            Body::Loop(l, _) => l,
            Body::If(i, _) => i,
        })
    }

    /// Returns the arithmetic operations of a run, without those of Kernel IR.
    fn flops(&self) -> Dim {
        let product = |dims: &[&Dim]| dims.iter().fold(Dim::ONE, |n, d| &n * *d);
        let multiply_adds = |dims: &[&Dim]| &product(dims) * &Dim::Const(2);
        let program_flops = |program: &Program| {
            let tasks = program.tasks.iter();
            tasks.fold(Dim::ZERO, |n, t| &n + &t.work.cost().flops)
        };
        match self {
            Body::Fused(_) => Dim::ZERO,
            Body::MatMul(m) => multiply_adds(&[&numel(&m.batch), &m.m, &m.n, &m.k]),
            Body::Conv(c) => multiply_adds(&[
                &c.batch,
                &c.groups,
                &c.in_channels,
                &c.out_channels,
                &numel(&c.output),
                &numel(&c.kernel),
            ]),
            Body::Attention(a) => {
                let s = &a.scores;
                let scores = product(&[&numel(&s.batch), &s.length, &s.keys]);
                multiply_adds(&[&scores, &(&s.width + &a.columns)])
            }
            Body::Library(kernel) => kernel.operations(),
            Body::Loop(l, body) => &program_flops(body) * &l.trips,
            Body::If(_, branches) => &program_flops(&branches[0]) + &program_flops(&branches[1]),
        }
    }

    /// True if it is a separate kernel that reads each element of its first operand before it writes there.
    pub(crate) fn reads_first(&self) -> bool {
        let Body::Library(kernel) = self else {
            return false;
        };
        let contract = kernel.contract();
        contract.is_ok_and(|c| c.args.first().is_some_and(|x| x.reads == Reads::First))
    }

    /// True if it is the result of a convolution, and not a gradient.
    pub fn is_conv(&self) -> bool {
        matches!(self, Body::Conv(c) if c.role == ConvRole::Result)
    }
}

impl Candidate {
    /// Returns the name that distinguishes it from the other candidates, such as `fast: 4 elements a thread`.
    pub fn name(&self) -> String {
        match (self.approximation, &self.schedule) {
            // Their text contains the approximation.
            (None | Some(Approximation::Algorithm(_)), _) | (_, Schedule::Gpu(_)) => {
                self.schedule.to_string()
            }
            (Some(approximation), _) => format!("{approximation}: {}", self.schedule),
        }
    }

    /// Returns kernels as the only candidate.
    pub(crate) fn only(calls: KernelCalls) -> Vec<Candidate> {
        vec![Candidate::new(Schedule::Default, calls)]
    }

    /// Returns an exact candidate without a prediction.
    pub(crate) fn new(schedule: Schedule, calls: KernelCalls) -> Candidate {
        Candidate {
            schedule,
            approximation: None,
            predicted: None,
            calls,
        }
    }
}

impl KernelCalls {
    /// Returns the call of one kernel with all arguments of the work.
    pub fn one(kernel: Kernel, work: &Work) -> KernelCalls {
        KernelCalls {
            steps: vec![KernelCall {
                kernel: Arc::new(kernel),
                args: (0..work.args.len()).map(Slot::Arg).collect(),
                sites: (0..work.sites()).collect(),
            }],
            scratch: Vec::new(),
            in_place: work.in_place.clone(),
        }
    }
}
