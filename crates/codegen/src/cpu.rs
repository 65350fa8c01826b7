//! Lowering of work to kernels of the CPU engine: tile programs, and descriptions with prologues and epilogues.

use crate::affine::{estimate, typical};
use crate::approximation::Approximation;
use crate::kir;
use crate::limits::{Few, HeldRows, Limits, TwoSteps};
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

/// A size that represents every large one.
const LARGE_SIZE: i64 = 1 << 20;

impl Engine for Cpu {
    fn limits(&self) -> Limits {
        Limits {
            two_steps: TwoSteps {
                few: 64,
                long: 1 << 15,
                few_columns: 1 << 13,
                large: 1 << 17,
            },
            longest_row: 1 << 20,
            fewest_rows: 8,
            few_points: 1 << 16,
            // One thread's accumulators hold the columns.
            most_columns: 1 << 16,
            held_rows: HeldRows {
                longest: None,
                least: 64,
                // A single thread computes these.
                few: Few::InAll(1 << 18),
            },
        }
    }

    fn candidates(&self, work: &Work, options: &Options) -> Result<Vec<Candidate>, String> {
        let exact = match &work.body {
            Body::Conv(c) => only_sums(options.exact, c, &options.machine),
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
                let all = algorithms(&kernel);
                let alternatives = all.iter().map(|by| schedule::Cpu::from(*by));
                let alternatives = alternatives.filter(|by| default != Some(*by));
                candidates.extend(alternatives.map(|by| candidate(kernel.clone().by(by), work)));
                if let Machine::Cpu(cpu) = &options.machine {
                    let values = typical(&*kernel);
                    let sized = |by: &Algorithm| kernel.schedules(*by, cpu.level, &values);
                    let sized = all.iter().flat_map(sized);
                    candidates.extend(sized.map(|(by, cost)| {
                        let mut candidate = candidate(kernel.clone().by(by), work);
                        candidate.predicted = candidate.predicted.map(|usual| usual * cost);
                        candidate
                    }));
                }
            }
        }
        Ok(candidates)
    }
}

/// True if a convolution must be computed as sums of products by default. Either it is to be exact, or AMX multiplies
/// its operands many times faster than f32, the dtype that filters and images would be transformed in.
pub(crate) fn only_sums(exact: bool, conv: &Conv, machine: &Machine) -> bool {
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
fn algorithms(kernel: &Kernel) -> Vec<Algorithm> {
    let values = typical(&**kernel);
    let mut legal = kernel.algorithms(&values);
    if !kernel.all_dims(&mut |d| d.as_const().is_some()) {
        for extreme in [2, LARGE_SIZE] {
            let legal_too = kernel.algorithms(&vec![extreme; values.len()]);
            legal.retain(|a| legal_too.contains(a));
        }
    }
    legal.retain(|a| kernel.clone().by(*a).computed_by(&values) == Some(*a));
    legal
}

/// Returns a kernel of the CPU engine as a candidate for some work.
fn candidate(kernel: Kernel, work: &Work) -> Candidate {
    let decision = kernel.decision();
    let by = decision.and_then(Decision::one);
    let cost = |by: schedule::Cpu| kernel.cost(by.algorithm, &typical(&*kernel), work.packs());
    Candidate {
        schedule: decision
            .cloned()
            .map_or(Schedule::Default, Schedule::Algorithm),
        approximation: by
            .map(|by| by.algorithm)
            .filter(|by| !by.only_sums())
            .map(Approximation::Algorithm),
        predicted: by.and_then(cost),
        calls: KernelCalls::one(kernel, work),
    }
}

/// Returns the kernel of the CPU engine that computes some work by default, exactly or not (see [`Options::exact`]). A
/// loop or branch comes without its bodies.
pub fn kernel(work: &Work, exact: bool) -> Kernel {
    let mut kernel = undecided(work);
    kernel.decide(kernel.by_default(work.packs(), exact));
    kernel
}

fn undecided(work: &Work) -> Kernel {
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
