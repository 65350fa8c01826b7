//! Deliberately broken kernels and plans are caught: the runtime refuses them, or their results differ from the
//! reference on random programs.

use crate::oracle::{Engine, Oracle, run};
use kiln_base::prim::{Binary, Reduction, ScatterKind, Unary};
use kiln_base::{Dim, Scalar};
use kiln_compiler::{Layout, Options};
use kiln_ir::fuzz::{Config, random_inputs};
use kiln_plan::tile::{Inst, Stage, TileProgram};
use kiln_plan::{Allocation, Conv, ConvRole, Images, Kernel, Loop, Plan};
use kiln_runtime::Executable;
use kiln_testkit::programs::differentiated;
use std::sync::Arc;

/// A bug: changes a plan, or does nothing where it does not apply.
type Bug = fn(&mut Plan) -> bool;

const BUGS: &[(&str, Bug)] = &[
    ("add became sub", |p| {
        change_inst(p, |i| replace_binary(i, Binary::Add, Binary::Sub))
    }),
    ("max became min", |p| {
        change_inst(p, |i| replace_binary(i, Binary::Max, Binary::Min))
    }),
    ("less became less or equal, swapped", |p| {
        change_inst(p, |i| replace_binary(i, Binary::Lt, Binary::Ge))
    }),
    ("exp became expm1", |p| {
        change_inst(p, |i| replace_unary(i, Unary::Exp, Unary::Expm1))
    }),
    ("negation lost", |p| {
        change_inst(p, |i| replace_unary(i, Unary::Neg, Unary::Abs))
    }),
    ("select with swapped arms", |p| change_inst(p, swap_select)),
    ("sum became max", |p| {
        change_inst(p, |i| replace_reduction(i, Reduction::Sum, Reduction::Max))
    }),
    ("product became sum", |p| {
        change_inst(p, |i| replace_reduction(i, Reduction::Prod, Reduction::Sum))
    }),
    ("a stride is 0", |p| {
        change_access(p, |a| {
            let stride = a.strides.iter_mut().find(|s| !s.is(0));
            stride.map(|s| *s = Dim::ZERO).is_some()
        })
    }),
    ("an offset is one too far", |p| {
        change_access(p, |a| {
            a.offset = &a.offset + &Dim::ONE;
            true
        })
    }),
    ("padding is not checked", |p| {
        change_access(p, |a| !std::mem::take(&mut a.bounds).is_empty())
    }),
    ("padding holds another number", |p| {
        change_access(p, |a| {
            a.fill = Scalar::Float(a.fill.as_f64() + 3.0);
            !a.bounds.is_empty()
        })
    }),
    ("a constant is off by one", |p| {
        change_program(p, |t| {
            t.constants
                .first_mut()
                .map(|(_, c)| {
                    *c = match c {
                        Scalar::Bool(b) => Scalar::Bool(!*b),
                        Scalar::Int(i) => Scalar::Int(i.wrapping_add(1)),
                        Scalar::Float(f) => Scalar::Float(*f + 1.0),
                    }
                })
                .is_some()
        })
    }),
    ("images have the other layout", |p| {
        change_conv(p, ConvRole::Result, |c| {
            c.images = match c.images {
                Images::ChannelsFirst => Images::ChannelsLast,
                _ => Images::ChannelsFirst,
            };
            true
        })
    }),
    (
        "a transposed image is taken for one with channels last",
        |p| {
            change_conv(p, ConvRole::Result, |c| {
                let transposed = c.images == Images::ToChannelsLast;
                c.images = if transposed {
                    Images::ChannelsLast
                } else {
                    c.images
                };
                transposed
            })
        },
    ),
    ("a stage is missing", |p| {
        change_program(p, |t| {
            let many = t.stages.len() > 1;
            if many {
                t.stages.remove(0);
            }
            many
        })
    }),
    ("a reduction misses the last element", |p| {
        change_program(p, |t| {
            let last = t
                .inner
                .last_mut()
                .filter(|d| d.as_const().is_some_and(|n| n > 1));
            last.map(|d| *d = &*d - &Dim::ONE).is_some()
        })
    }),
    ("steps in reverse order", |p| {
        p.run.reverse();
        p.commit = p.run.len() as u32;
        p.run.len() > 1
    }),
    ("a step starts before what it reads is written", |p| {
        let reads = |p: &Plan, i: usize| {
            let written = |a: &&kiln_plan::BufferId| p.run[i].args.contains(a);
            p.run[i - 1].args.last().iter().any(written)
        };
        let dependent = (1..p.run.len()).find(|i| !p.run[*i].concurrent && reads(p, *i));
        dependent.map(|i| p.run[i].concurrent = true).is_some()
    }),
    ("a step is missing", |p| p.run.pop().is_some()),
    ("two buffers share memory while both live", |p| {
        let temporary = |p: &Plan, i: usize| p.buffers[i].allocation == Allocation::Temporary;
        let all: Vec<usize> = (0..p.buffers.len()).filter(|i| temporary(p, *i)).collect();
        let [a, b, ..] = all.as_slice() else {
            return false;
        };
        p.buffers[*b].allocation = Allocation::InPlace(kiln_plan::BufferId(*a as u32));
        true
    }),
    ("a kernel reads another buffer", |p| {
        let ids: Vec<_> = p.run.iter().flat_map(|s| s.args.clone()).collect();
        let Some(step) = p.run.first_mut() else {
            return false;
        };
        let Some(other) = ids.iter().find(|b| !step.args.contains(b)) else {
            return false;
        };
        step.args[0] = *other;
        true
    }),
    ("matrix operands are transposed", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::MatMul(m) => {
                std::mem::swap(&mut m.lhs.row, &mut m.lhs.col);
                true
            }
            _ => false,
        })
    }),
    ("a convolution forgets its padding", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::Conv(c) => c
                .padding
                .iter_mut()
                .any(|p| !std::mem::replace(p, Dim::ZERO).is(0)),
            _ => false,
        })
    }),
    (
        "the gradient of a convolution's input is a pixel off",
        |p| {
            change_conv(p, ConvRole::Input, |c| {
                let first = c.padding.first_mut();
                first.map(|p| *p = &*p + &Dim::ONE).is_some()
            })
        },
    ),
    (
        "the gradient of a convolution's filter takes stride for dilation",
        |p| {
            change_conv(p, ConvRole::Weight, |c| {
                std::mem::swap(&mut c.stride, &mut c.dilation);
                c.stride != c.dilation
            })
        },
    ),
    ("a scan carries nothing into its second half", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            // Each lane is cut in two, and the second half starts anew.
            Kernel::Scan(s) if s.outer.is(1) && s.inner.is(1) => match s.len.as_const() {
                Some(n) if n > 2 && n % 2 == 0 => {
                    (s.outer, s.len) = (Dim::Const(2), Dim::Const(n / 2));
                    true
                }
                _ => false,
            },
            _ => false,
        })
    }),
    ("a scan runs in reverse", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::Scan(s) => {
                s.reverse = !s.reverse;
                true
            }
            _ => false,
        })
    }),
    ("a sort has the other order", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::ArgSort(s) => {
                s.descending = !s.descending;
                true
            }
            _ => false,
        })
    }),
    ("a scatter keeps the first element", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::Scatter(s) if s.kind == ScatterKind::Set => {
                // The source is read from its end.
                let a = s.axis as usize;
                let last = &s.index_shape[a] - &Dim::ONE;
                for operand in [&mut s.index, &mut s.src] {
                    operand.offset = &operand.offset + &(&last * &operand.strides[a]);
                    operand.strides[a] = &Dim::ZERO - &operand.strides[a];
                }
                true
            }
            _ => false,
        })
    }),
    ("a scatter keeps another element", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::Scatter(s) if s.dtype.computes() => {
                s.kind = match s.kind {
                    ScatterKind::Min => ScatterKind::Max,
                    _ => ScatterKind::Min,
                };
                true
            }
            _ => false,
        })
    }),
    ("a loop runs in reverse", |p| {
        change_loop(p, |l| {
            l.reverse = !l.reverse;
            !l.scanned.is_empty()
        })
    }),
    ("a loop misses a step", |p| {
        change_loop(p, |l| {
            l.trips = &l.trips - &Dim::ONE;
            true
        })
    }),
    ("two carried values change places", |p| {
        change_loop(p, |l| {
            let two = l.last.len() > 1;
            if two {
                l.last.swap(0, 1);
            }
            two
        })
    }),
    ("a step is missing in a loop", |p| {
        change_loop(p, |l| l.body.run.pop().is_some())
    }),
    ("the branches change places", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::If(i) => {
                i.branches.reverse();
                true
            }
            _ => false,
        })
    }),
    ("a branch gets its inputs in another order", |p| {
        p.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
            Kernel::If(i) => {
                i.inputs.reverse();
                i.inputs.len() > 1
            }
            _ => false,
        })
    }),
    ("prepared values are never computed", |p| {
        !std::mem::take(&mut p.prepare).is_empty()
    }),
];

fn programs(plan: &mut Plan) -> impl Iterator<Item = &mut TileProgram> {
    plan.kernels
        .iter_mut()
        .map(Arc::make_mut)
        .filter_map(|k| match k {
            Kernel::Tile(t) => Some(t),
            Kernel::MatMul(m) => m.epilogue.as_mut().map(|e| &mut e.program),
            Kernel::Conv(c) => c.epilogue.as_mut().map(|e| &mut e.program),
            _ => None,
        })
}

fn change_conv(plan: &mut Plan, role: ConvRole, mut f: impl FnMut(&mut Conv) -> bool) -> bool {
    plan.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
        Kernel::Conv(c) if c.role == role => f(c),
        _ => false,
    })
}

fn change_loop(plan: &mut Plan, mut f: impl FnMut(&mut Loop) -> bool) -> bool {
    plan.kernels.iter_mut().map(Arc::make_mut).any(|k| match k {
        Kernel::Loop(l) => f(l),
        _ => false,
    })
}

fn change_program(plan: &mut Plan, f: impl FnMut(&mut TileProgram) -> bool) -> bool {
    programs(plan).any(f)
}

fn change_access(plan: &mut Plan, mut f: impl FnMut(&mut kiln_plan::tile::Access) -> bool) -> bool {
    change_program(plan, |t| t.accesses.iter_mut().any(&mut f))
}

fn change_inst(plan: &mut Plan, mut f: impl FnMut(&mut Inst) -> bool) -> bool {
    let mut in_stage = |s: &mut Stage| s.code.iter_mut().any(&mut f);
    change_program(plan, |t| t.stages.iter_mut().any(&mut in_stage))
}

fn replace_binary(inst: &mut Inst, from: Binary, to: Binary) -> bool {
    match inst {
        Inst::Binary { op, .. } if *op == from => {
            *op = to;
            true
        }
        _ => false,
    }
}

fn replace_unary(inst: &mut Inst, from: Unary, to: Unary) -> bool {
    match inst {
        Inst::Unary { op, .. } if *op == from => {
            *op = to;
            true
        }
        _ => false,
    }
}

fn replace_reduction(inst: &mut Inst, from: Reduction, to: Reduction) -> bool {
    match inst {
        Inst::Reduce { op, .. } if *op == from => {
            *op = to;
            true
        }
        _ => false,
    }
}

fn swap_select(inst: &mut Inst) -> bool {
    match inst {
        Inst::Select { a, b, .. } => {
            std::mem::swap(a, b);
            true
        }
        _ => false,
    }
}

#[test]
fn every_bug_is_caught() {
    let config = Config {
        control_flow: true,
        ..Config::default()
    };
    let mut caught = vec![0; BUGS.len()];
    let mut planted = vec![0; BUGS.len()];
    let forward = (0..250).map(|seed| (seed, config.graph(seed)));
    // Gradients add the roles of convolutions that forward graphs lack.
    let backward = (0..80).map(|seed| Some((seed, differentiated(config.graph(seed))?)));
    for (seed, graph) in forward.chain(backward.flatten()) {
        let oracle = Oracle::new(&graph, random_inputs(&graph, seed));
        let options = Options {
            layout: [Layout::Auto, Layout::ChannelsLast][seed as usize % 2],
            ..Options::default()
        };
        let engine = Engine::new(&graph, &options).unwrap();
        for (i, (_, bug)) in BUGS.iter().enumerate() {
            let mut plan = engine.executable.plan().clone();
            if !bug(&mut plan) {
                continue;
            }
            planted[i] += 1;
            let outputs = Executable::new(plan).and_then(|e| run(&e, &oracle.inputs));
            caught[i] += match outputs {
                Err(_) => 1,
                Ok(values) => {
                    let outputs: Vec<_> = engine
                        .outputs
                        .iter()
                        .map(|o| o.map(|at| values[at].clone()))
                        .collect();
                    oracle.check(&outputs).is_err() as u64
                }
            };
        }
    }
    let missed: Vec<String> = BUGS
        .iter()
        .zip(planted.iter().zip(&caught))
        .filter(|(_, (_, caught))| **caught == 0)
        .map(|((name, _), (planted, _))| format!("{name} (planted {planted} times)"))
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
