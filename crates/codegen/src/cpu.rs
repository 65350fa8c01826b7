//! Work as kernels of the CPU engine: tile programs, and descriptions with tile programs before and behind them.

use crate::affine::{estimate, typical};
use crate::approximation::Approximation;
use crate::kir;
use crate::schedule::Schedule;
use crate::tile;
use crate::work::{Body, Engine, Printed, Way, Work};
use kiln_plan::{Conv, Custom, Decision, Epilogue, Kernel, MatMul, Prologue};

/// The CPU engine.
pub(crate) struct Cpu;

impl Engine for Cpu {
    fn ways(&self, work: &Work, all: bool) -> Result<Vec<Way>, String> {
        let kernel = kernel(work);
        let mut ways = vec![way(kernel.clone(), work)];
        if let (true, Body::Fused(kir), Kernel::Tile(program)) = (all, &work.body, kernel) {
            let bytes = |written: bool| {
                let args = work.args.iter().filter(move |a| a.written || !written);
                args.map(|a| estimate(&a.len).saturating_mul(a.dtype.size() as i64))
            };
            let (touched, result) = (bytes(false).sum(), bytes(true).max().unwrap_or(0));
            let variants = tile::variants(kir, &program, &work.in_place, touched, result);
            ways.extend(variants.into_iter().map(|(schedule, program)| Way {
                schedule,
                approximation: None,
                predicted: None,
                printed: Printed::one(Kernel::Tile(program), work),
            }));
        }
        Ok(ways)
    }
}

/// A kernel of the CPU engine, or of a custom operator, as a way to compute some work.
pub fn way(kernel: Kernel, work: &Work) -> Way {
    let decision = kernel.decision();
    let by = decision.and_then(Decision::one);
    let cost = |by| kernel.cost(by, &typical(&*kernel), work.packs());
    Way {
        schedule: match (&kernel, decision) {
            (
                Kernel::Custom(Custom {
                    kernel: Some(k), ..
                }),
                _,
            ) => Schedule::Custom(k.clone()),
            (_, Some(decision)) => Schedule::Algorithm(decision.clone()),
            _ => Schedule::Default,
        },
        approximation: (by.filter(|by| !by.only_sums())).map(Approximation::Algorithm),
        predicted: by.and_then(cost),
        printed: Printed::one(kernel, work),
    }
}

/// The kernel of the CPU engine that computes some work by default; of a loop or branch without its bodies.
pub fn kernel(work: &Work) -> Kernel {
    let mut kernel = undecided(work);
    kernel.decide(kernel.by_default(work.packs()));
    kernel
}

fn undecided(work: &Work) -> Kernel {
    let epilogue = work.behind.as_ref().map(|kernel| Epilogue {
        program: tile::print_epilogue(kernel),
    });
    let [left, right] = work.made().map(|kernel| kernel.map(prologue));
    match &work.body {
        Body::Fused(kernel) => Kernel::Tile(tile::print(kernel)),
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
        Body::Scan(s) => Kernel::Scan(s.clone()),
        Body::ArgSort(s) => Kernel::ArgSort(s.clone()),
        Body::Scatter(s) => Kernel::Scatter(s.clone()),
        Body::Custom(c) => Kernel::Custom(c.clone()),
        Body::Loop(l, _) => Kernel::Loop(l.clone()),
        Body::If(i, _) => Kernel::If(i.clone()),
    }
}

fn prologue(kernel: &kir::Kernel) -> Box<Prologue> {
    let mut program = tile::print(kernel);
    program.cut.stream = Some(false);
    Box::new(Prologue { program })
}
