//! Emission of work as CUDA C++: often as one kernel, or as several with memory between them (partial results of a
//! split reduction, passes of a sort).

use crate::Approximation;
use crate::kir;
use crate::limits::{Few, HeldRows, Limits, TwoSteps};
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
                few: 4 * busy,
                long: 1 << 16,
                few_columns: filled,
                large: 2 * filled,
            },
            longest_row: 1 << 16,
            fewest_rows: busy / 2,
            few_points: 2 * filled,
            // The threads of a block keep them in registers.
            most_columns: 1 << 13,
            held_rows: HeldRows {
                longest: Some(128),
                // Blocks of 16 rows that keep it busy, since their sums are not split.
                least: 16 * busy,
                few: Few::ARow(1 << 14),
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
            Body::Fused(kernel) => fused(job, kernel, all),
            _ => families::emit(job, all)?,
        };
        let footprints = work.footprints();
        for candidate in &mut candidates {
            set_footprints(&mut candidate.calls, &footprints);
        }
        Ok(candidates)
    }
}

/// Sets the footprints of kernels: for the work's arguments those of the work, for memory between kernels all of it.
fn set_footprints(calls: &mut KernelCalls, work: &[Footprint]) {
    let KernelCalls { steps, scratch, .. } = calls;
    for KernelCall { kernel, args, .. } in steps {
        let Kernel::Cuda(kernel) = Arc::make_mut(kernel) else {
            continue;
        };
        let of = |(arg, slot): (u16, &Slot)| match *slot {
            Slot::Arg(a) => {
                let own = work.iter().filter(|r| usize::from(r.arg) == a);
                own.map(|r| Footprint { arg, ..r.clone() }).collect()
            }
            Slot::Scratch(s) => vec![Footprint::whole(arg, &scratch[s].1)],
        };
        kernel.footprints = (0..).zip(&*args).flat_map(of).collect();
    }
}

/// Returns the candidates of a kernel that Kernel IR describes fully.
fn fused(job: Job, kernel: &kir::Kernel, all: bool) -> Vec<Candidate> {
    let fast = fast::approximation(kernel).filter(|_| all);
    let by = |approximation| fused_by(job, kernel, all, approximation);
    let mut candidates = by(None);
    candidates.extend(fast.into_iter().flat_map(|a| by(Some(a))));
    candidates
}

/// Returns the candidates that give up nothing, or those with fast math.
fn fused_by(
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
            steps: vec![whole(kernel)],
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
            let by_tiles = Transposition::of(kernel).map(|by| {
                let kernel = transposed::emit(job, kernel, &by, fast);
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

/// Makes a step with the arguments of the work.
fn whole(kernel: CudaKernel) -> KernelCall {
    KernelCall {
        args: (0..kernel.args.len()).map(Slot::Arg).collect(),
        sites: (0..kernel.sites as usize).collect(),
        kernel: Kernel::Cuda(kernel).into(),
    }
}
