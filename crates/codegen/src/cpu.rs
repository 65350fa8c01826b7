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
mod tests {
    use crate::{Launch, Layout, Options, lower};
    use kiln_base::{Cpu, DType, Features, Machine, Scalar};
    use kiln_ir::{
        Builder, Dim, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Shape, Value, ops,
    };
    use kiln_plan::{Algorithm, Kernel};

    /// True if any of several chained convolutions with filters of 3×3 is transformed.
    fn transforms(dtype: DType, level: Features) -> bool {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let mut y = b.input(Fact::new(dtype, [1, 64, 56, 56]), Role::Data);
        let w = b.input(Fact::new(dtype, [64, 64, 3, 3]), Role::Parameter);
        let conv = ops::Conv {
            stride: [1; 2].into_iter().collect(),
            padding: vec![(1, 1); 2],
            dilation: [1; 2].into_iter().collect(),
            groups: 1,
        };
        for _ in 0..3 {
            y = b.op(conv.clone(), &[y, w]).expect("fits");
        }
        graph.add_output(y);
        let options = Options {
            machine: Machine::Cpu(Cpu {
                level,
                ..Cpu::default()
            }),
            layout: Layout::ChannelsLast,
            ..Options::default()
        };
        let program = lower(&graph, &options).expect("is lowered").sequence();
        let by = |l: &Launch| l.kernel.computed_by(&[]);
        (program.launches.iter()).any(|l| by(l) == Some(Algorithm::Winograd2))
    }

    /// True if a convolution of bytes, which `make` computes from an input, knows that none is above 127.
    fn has_seven_bits(
        of: DType,
        make: impl FnOnce(&mut GraphBuilder<'_>, Value) -> Result<Value, OpError>,
    ) -> bool {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let x = b.input(Fact::new(of, [1, 8, 9, 9]), Role::Data);
        let w = b.input(Fact::new(DType::I8, [8, 8, 3, 3]), Role::Parameter);
        let bytes = make(&mut b, x).expect("fits");
        let [x, w] = [bytes, w].map(|v| b.cast(&v, DType::I32).expect("fits"));
        let conv = ops::Conv {
            stride: [1; 2].into_iter().collect(),
            padding: vec![(0, 0); 2],
            dilation: [1; 2].into_iter().collect(),
            groups: 1,
        };
        let y = b.op(conv, &[x, w]).expect("fits");
        graph.add_output(y);
        let program = lower(&graph, &Options::default())
            .expect("is lowered")
            .sequence();
        let mut convs = program.launches.iter().filter_map(|l| match &*l.kernel {
            Kernel::Conv(c) => Some(c.reduce_range),
            _ => None,
        });
        convs.next().expect("a convolution")
    }

    #[test]
    fn bytes_of_seven_bits_are_known() {
        let quantized = |most: f64| {
            move |b: &mut GraphBuilder<'_>, x: Value| {
                let x = b.with(Pw::Maximum, &x, 0.0)?;
                let x = b.with(Pw::Minimum, &x, most)?;
                b.cast(&x, DType::U8)
            }
        };
        let clipped = |most: f64| {
            move |b: &mut GraphBuilder<'_>, x: Value| {
                let [least, most] = [0.0, most].map(|n| b.scalar_like(n, &x).expect("a number"));
                let x = b.pointwise(Pw::Clip, &[x, least, most])?;
                b.cast(&x, DType::U8)
            }
        };
        let padded = |byte: i64| {
            move |b: &mut GraphBuilder<'_>, x: Value| {
                let x = quantized(127.0)(b, x)?;
                let one: Shape = [0, 0, 1, 1].map(Dim::from).into_iter().collect();
                let (low, high, value) = (one.clone(), one, Scalar::Int(byte));
                b.op(ops::Pad { low, high, value }, &[x])
            }
        };
        assert!(has_seven_bits(DType::F32, quantized(127.0)));
        assert!(has_seven_bits(DType::F32, clipped(127.0)));
        assert!(!has_seven_bits(DType::F32, clipped(127.5)));
        assert!(has_seven_bits(DType::BF16, quantized(100.0)));
        assert!(has_seven_bits(DType::U8, |b, x| b.with(
            Pw::Minimum,
            &x,
            127i64
        )));
        assert!(has_seven_bits(DType::F32, padded(127)));
        assert!(!has_seven_bits(DType::F32, padded(128)));
        assert!(!has_seven_bits(DType::F32, quantized(128.0)));
        assert!(!has_seven_bits(DType::I32, quantized(127.0)));
        assert!(!has_seven_bits(DType::U8, |_, x| Ok(x)));
        assert!(!has_seven_bits(DType::U8, |b, x| b.with(
            Pw::Maximum,
            &x,
            9i64
        )));
    }

    #[test]
    fn bf16_is_not_transformed_where_there_are_tiles_for_it() {
        for level in [Features::AVX2, Features::AVX512_FP16] {
            assert!(transforms(DType::BF16, level), "{level:?}");
        }
        assert!(!transforms(DType::BF16, Features::AMX));
        assert!(transforms(DType::F32, Features::AMX));
    }
}
