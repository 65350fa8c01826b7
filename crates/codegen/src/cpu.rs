//! Lowering of work to kernels of the CPU engine: tile programs, and descriptions with prologues and epilogues.

use crate::affine::{estimate, typical_values};
use crate::approximation::Approximation;
use crate::kir;
use crate::limits::{HeldRows, Limits, MultiplyAdds, TwoSteps};
use crate::program::Options;
use crate::schedule::Schedule;
use crate::tile;
use crate::work::{Body, Candidate, Engine, KernelCalls, Work};
use kiln_base::{Instruction, Machine};
use kiln_plan::schedule;
use kiln_plan::tile::TileProgram;
use kiln_plan::{Algorithm, Conv, Decision, Dims, Epilogue, Kernel, MatMul, Prologue};

/// The CPU engine.
pub(crate) struct Cpu;

/// The value of symbols that represents large sizes.
const LARGE_SIZE: i64 = 1 << 20;

impl Engine for Cpu {
    fn limits(&self) -> Limits {
        Limits {
            two_steps: TwoSteps {
                few_rows: 64,
                min_long: 1 << 15,
                few_columns: 1 << 13,
                min_large: 1 << 17,
            },
            max_row: 1 << 20,
            min_rows: 8,
            max_serial_points: 1 << 16,
            // One thread's accumulators hold the columns.
            max_columns: 1 << 16,
            held_rows: HeldRows {
                max_row: None,
                min_rows: 64,
                // A single thread computes a small product.
                max_small: MultiplyAdds::Total(1 << 18),
            },
        }
    }

    fn candidates(&self, work: &Work, options: &Options) -> Result<Vec<Candidate>, String> {
        let exact = match &work.body {
            Body::Conv(c) => must_be_direct(options.exact, c, &options.machine),
            _ => options.exact,
        };
        let kernel = kernel(work, exact);
        if !options.candidates {
            return Ok(vec![candidate(kernel, work)]);
        }
        let mut candidates = vec![candidate(kernel.clone(), work)];
        match (&work.body, &kernel) {
            (Body::Fused(kir), Kernel::Tile(program)) => {
                candidates.extend(tile_variants(kir, program, work))
            }
            _ => {
                let default = kernel.decision().and_then(Decision::one);
                let algorithms = legal_algorithms(&kernel);
                let schedules = algorithms.iter().map(|a| schedule::Cpu::from(*a));
                let schedules = schedules.filter(|s| default != Some(*s));
                candidates.extend(schedules.map(|s| candidate(kernel.clone().by(s), work)));
                if let Machine::Cpu(cpu) = &options.machine {
                    let values = typical_values(&*kernel);
                    let schedules = |a: &Algorithm| kernel.schedules(*a, cpu.level, &values);
                    let schedules = algorithms.iter().flat_map(schedules);
                    candidates.extend(schedules.map(|(schedule, cost)| {
                        let mut candidate = candidate(kernel.clone().by(schedule), work);
                        candidate.predicted = candidate.predicted.map(|usual| usual * cost);
                        candidate
                    }));
                }
            }
        }
        Ok(candidates)
    }
}

/// True if a convolution must not be transformed by default: because it must be exact, or because AMX multiplies its
/// operands many times faster than the f32 of transformed ones.
pub(crate) fn must_be_direct(exact: bool, conv: &Conv, machine: &Machine) -> bool {
    let has_tiles = |level| Instruction::of(conv.dtypes, false, level, true).has_tiles();
    exact || conv.is_half() && matches!(machine, Machine::Cpu(cpu) if has_tiles(cpu.level))
}

/// Returns other schedules of the program of a kernel.
fn tile_variants(kir: &kir::Kernel, program: &TileProgram, work: &Work) -> Vec<Candidate> {
    let bytes = |written: bool| {
        let args = work.args.iter().filter(move |a| a.written || !written);
        args.map(|a| estimate(&a.len).saturating_mul(a.dtype.size() as i64))
    };
    let (touched, result) = (bytes(false).sum(), bytes(true).max().unwrap_or(0));
    let variants = tile::variants(kir, program, &work.in_place, touched, result);
    let candidate = |(schedule, program)| {
        Candidate::new(schedule, KernelCalls::one(Kernel::Tile(program), work))
    };
    variants.into_iter().map(candidate).collect()
}

/// Returns the distinct algorithms that are legal for all values of the symbols.
fn legal_algorithms(kernel: &Kernel) -> Vec<Algorithm> {
    let values = typical_values(&**kernel);
    let mut legal = kernel.algorithms(&values);
    if !kernel.all_dims(&mut |d| d.as_const().is_some()) {
        for extreme in [2, LARGE_SIZE] {
            let also_legal = kernel.algorithms(&vec![extreme; values.len()]);
            legal.retain(|a| also_legal.contains(a));
        }
    }
    legal.retain(|a| kernel.clone().by(*a).computed_by(&values) == Some(*a));
    legal
}

/// Returns a kernel of the CPU engine as a candidate for some work.
fn candidate(kernel: Kernel, work: &Work) -> Candidate {
    let decision = kernel.decision();
    let schedule = decision.and_then(Decision::one);
    let cost = |s: schedule::Cpu| kernel.cost(s.algorithm, &typical_values(&*kernel), work.packs());
    Candidate {
        schedule: decision
            .cloned()
            .map_or(Schedule::Default, Schedule::Algorithm),
        approximation: schedule
            .map(|s| s.algorithm)
            .filter(|a| !a.only_sums())
            .map(Approximation::Algorithm),
        predicted: schedule.and_then(cost),
        calls: KernelCalls::one(kernel, work),
    }
}

/// Returns the default kernel of the CPU engine for some work, exact or not (see [`Options::exact`]). The kernel of a
/// loop or branch has no bodies.
pub fn kernel(work: &Work, exact: bool) -> Kernel {
    let mut kernel = kernel_without_algorithm(work);
    kernel.decide(kernel.by_default(work.packs(), exact));
    kernel
}

fn kernel_without_algorithm(work: &Work) -> Kernel {
    let epilogue = work.epilogue.as_ref().map(|kernel| Epilogue {
        program: tile::emit_epilogue(kernel),
    });
    let [left, right] = work.prologues().map(|kernel| kernel.map(prologue));
    match &work.body {
        Body::Fused(kernel) => Kernel::Tile(tile::emit(kernel)),
        Body::MatMul(m) => Kernel::MatMul(MatMul {
            prologues: [left, right],
            epilogue,
            ..m.clone()
        }),
        Body::Conv(c) => Kernel::Conv(Conv {
            prologue: left,
            epilogue,
            ..c.clone()
        }),
        Body::Attention(a) => {
            let mut attention = a.clone();
            attention.epilogue = epilogue;
            Kernel::Attention(attention)
        }
        Body::Library(kernel) => kernel.clone(),
        Body::Loop(l, _) => Kernel::Loop(l.clone()),
        Body::If(i, _) => Kernel::If(i.clone()),
    }
}

fn prologue(kernel: &kir::Kernel) -> Box<Prologue> {
    let mut program = tile::emit(kernel);
    program.sizes.stream = Some(false);
    Box::new(Prologue { program })
}

#[cfg(test)]
mod tests;
