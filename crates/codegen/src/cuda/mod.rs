//! Emission of work as CUDA C++: often as one kernel, or as several with memory between them (partial results of a
//! split reduction, passes of a sort).

use crate::Approximation;
use crate::kir;
use crate::limits::{HeldRows, Limits, MultiplyAdds, TwoSteps};
use crate::program::Options;
use crate::schedule::Schedule;
use crate::work::{Body, Candidate, Engine, KernelCall, KernelCalls, Slot, Work};
use job::Job;
use kiln_base::Gpu;
use kiln_plan::cuda::CudaKernel;
use kiln_plan::{Footprint, Kernel, schedule};
use std::sync::Arc;
use transposed::Transposition;
use vector::Vector;

mod families;
mod fast;
mod job;
mod library;
mod parts;
mod points;
mod rows;
mod rows_shape;
mod shared_launch;
mod source;
mod transposed;
mod values;
mod vector;
mod walk;

pub use library::{library_candidate, library_product};
pub use shared_launch::{fit_in_a_launch, merge_launches, shares_a_launch};

/// The emitter of CUDA C++ for a GPU.
pub(crate) struct Cuda<'a>(pub &'a Gpu);

impl Engine for Cuda<'_> {
    fn limits(&self) -> Limits {
        let (busy, filled) = (self.0.busy(), self.0.filled());
        Limits {
            two_steps: TwoSteps {
                few_rows: 4 * busy,
                min_long: 1 << 16,
                few_columns: filled,
                min_large: 2 * filled,
            },
            max_row: 1 << 16,
            min_rows: busy / 2,
            max_serial_points: 2 * filled,
            // The threads of a block keep them in registers.
            max_columns: 1 << 13,
            held_rows: HeldRows {
                max_row: Some(128),
                // Enough blocks of 16 rows to keep the GPU busy, since their sums are not split.
                min_rows: 16 * busy,
                max_small: MultiplyAdds::PerRow(1 << 14),
            },
        }
    }

    fn preferred(&self, work: &Work) -> Option<(schedule::Gpu, f64)> {
        families::preferred(Job {
            work,
            gpu: self.0,
            schedule: None,
        })
    }

    fn candidates(&self, work: &Work, options: &Options) -> Result<Vec<Candidate>, String> {
        let job = Job {
            work,
            gpu: self.0,
            schedule: options.schedule,
        };
        let all = options.candidates;
        let mut candidates = match &work.body {
            Body::Fused(kernel) => fused_candidates(job, kernel, all),
            _ => families::emit(job, all)?,
        };
        let footprints = work.footprints();
        for candidate in &mut candidates {
            set_footprints(&mut candidate.calls, &footprints);
        }
        Ok(candidates)
    }
}

/// Sets the footprints of kernels: for the work's arguments those of the work, for scratch memory all of it.
fn set_footprints(calls: &mut KernelCalls, work: &[Footprint]) {
    let KernelCalls { steps, scratch, .. } = calls;
    for KernelCall { kernel, args, .. } in steps {
        let Kernel::Cuda(kernel) = Arc::make_mut(kernel) else {
            continue;
        };
        let footprints_of = |(arg, slot): (u16, &Slot)| match *slot {
            Slot::Arg(a) => {
                let of_arg = work.iter().filter(|r| usize::from(r.arg) == a);
                of_arg.map(|r| Footprint { arg, ..r.clone() }).collect()
            }
            Slot::Scratch(s) => vec![Footprint::whole(arg, &scratch[s].1)],
        };
        kernel.footprints = (0..).zip(&*args).flat_map(footprints_of).collect();
    }
}

/// Returns the candidates of a kernel in Kernel IR.
fn fused_candidates(job: Job, kernel: &kir::Kernel, all: bool) -> Vec<Candidate> {
    let fast = fast::approximation(kernel).filter(|_| all);
    let approximated = |approximation| candidates_with(job, kernel, all, approximation);
    let mut candidates = approximated(None);
    candidates.extend(fast.into_iter().flat_map(|a| approximated(Some(a))));
    candidates
}

/// Returns the candidates without fast math, or with it if it is the approximation.
fn candidates_with(
    job: Job,
    kernel: &kir::Kernel,
    all: bool,
    approximation: Option<Approximation>,
) -> Vec<Candidate> {
    let (in_place, fast) = (&job.in_place, approximation.is_some());
    let candidate = |schedule, kernel, in_place| Candidate {
        schedule,
        approximation,
        predicted: None,
        calls: KernelCalls {
            steps: vec![call_with_args(kernel)],
            scratch: Vec::new(),
            in_place,
        },
    };
    match kernel.inner.is_empty() {
        true => {
            let emit = |vector: Vector| {
                let kernel = points::emit(job, kernel, &vector, fast);
                candidate(Schedule::Elements(vector.width), kernel, in_place.clone())
            };
            let by_tiles = Transposition::of(kernel).map(|transposition| {
                let kernel = transposed::emit(job, kernel, &transposition, fast);
                candidate(Schedule::Transposed, kernel, in_place.clone())
            });
            let mut candidates: Vec<Candidate> = by_tiles.into_iter().collect();
            if all || candidates.is_empty() {
                candidates.extend(points::shapes(kernel, all).into_iter().map(emit));
            }
            candidates
        }
        false => {
            let emit = |(schedule, shape)| {
                let (kernel, in_place) = rows::emit(job, kernel, &shape, fast);
                candidate(schedule, kernel, in_place)
            };
            let shapes = rows_shape::shapes(kernel, job.gpu, all);
            shapes.into_iter().map(emit).collect()
        }
    }
}

/// Returns the call of a kernel with all arguments of the work.
fn call_with_args(kernel: CudaKernel) -> KernelCall {
    KernelCall {
        args: (0..kernel.args.len()).map(Slot::Arg).collect(),
        sites: (0..kernel.sites as usize).collect(),
        kernel: Kernel::Cuda(kernel).into(),
    }
}
