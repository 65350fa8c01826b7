//! Convolutions and their gradients, of any layout and number of axes, compared with the reference.

use crate::cc::{self, Library};
use crate::random::Case;
use kiln_base::{DType, Dim};
use kiln_c99::{Program, Weights, emit};
use kiln_compiler::Options;
use kiln_ir::fuzz::{Rng, random_inputs};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, Pw, Role, ops};
use kiln_plan::{ConvRole, Kernel};
use kiln_testkit::programs::plain;

/// Returns a convolution, or a gradient of one, with work on its result.
fn graph(rng: &mut Rng) -> Graph {
    let axes = 1 + rng.below(3);
    let (batch, groups) = (rng.one([1, 2, 3]), rng.one([1, 1, 1, 2, 5]));
    let (ins, outs) = (rng.one([1, 1, 3, 4, 17]), rng.one([1, 1, 2, 7, 16]));
    let mut conv = ops::Conv {
        stride: Default::default(),
        padding: Vec::new(),
        dilation: Default::default(),
        groups,
    };
    let (mut input, mut output, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..axes {
        let [taps, stride, dilation] = [
            rng.one([1, 2, 3]),
            rng.one([1, 1, 2, 3]),
            rng.one([1, 1, 2]),
        ];
        let (positions, rest) = (1 + rng.below(7), rng.below(stride));
        let reached = (positions - 1) * stride + (taps - 1) * dilation + 1 + rest;
        let before = rng.below(3).min(reached - 1);
        let after = rng.below(3).min(reached - 1 - before);
        input.push(reached - before - after);
        output.push(positions);
        kernel.push(taps);
        conv.stride.push(stride);
        conv.padding.push((before, after));
        conv.dilation.push(dilation);
    }
    let role = rng.below(3);
    let dtype = match role {
        0 => rng.one([DType::F32, DType::F64, DType::I32, DType::I8]),
        _ => rng.one([DType::F32, DType::F64]),
    };
    let x = [&[batch, groups * ins][..], &input].concat();
    let w = [&[groups * outs, ins][..], &kernel].concat();
    let y = [&[batch, groups * outs][..], &output].concat();
    let dims = input.iter().map(|n| Dim::from(*n)).collect();
    let (first, second, op): (_, _, Op) = match role {
        0 => (x, w, conv.into()),
        1 => (y, w, ops::ConvTranspose { conv, input: dims }.into()),
        _ => (
            x,
            y,
            ops::ConvWeight {
                conv,
                kernel: kernel.into_iter().collect(),
            }
            .into(),
        ),
    };
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let a = b.input(Fact::new(dtype, first), Role::Data);
    let b_role = rng.one([Role::Data, Role::Parameter]);
    let c = b.input(Fact::new(dtype, second), b_role);
    let mut result = b.op(op, &[a, c]).unwrap();
    if rng.chance(0.5) {
        result = b.pointwise(Pw::Abs, &[result]).unwrap();
    }
    graph.add_output(result);
    graph
}

#[test]
fn convolutions_of_all_kinds() {
    if !cc::is_there() {
        return;
    }
    let count: u64 = std::env::var("KILN_C99_SEEDS").map_or(120, |n| n.parse().unwrap());
    let mut cases = Vec::new();
    for seed in 0..count {
        let graph = graph(&mut Rng::new(seed));
        let options = match seed % 3 {
            0 => plain(),
            _ => Options::default(),
        };
        let inputs = random_inputs(&graph, seed);
        let case = Case::new(format!("conv{seed}"), &graph, inputs, &options);
        cases.push(case);
    }
    let programs: Vec<Program<'_>> = cases.iter().map(Case::program).collect();
    for role in [ConvRole::Result, ConvRole::Input, ConvRole::Weight] {
        let computes = |kernel: &Kernel| matches!(kernel, Kernel::Conv(c) if c.role == role);
        let has_kernel = |p: &&Program<'_>| p.plan.kernels.iter().any(|kernel| computes(kernel));
        let have = programs.iter().filter(has_kernel).count() as u64;
        assert!(have * 8 > count, "{role:?}: {have} of {count}");
    }
    let sources = emit("conv", &programs, Weights::Arrays).unwrap();
    let shims = cc::shims("conv", &programs, false);
    let library = Library::new(&sources, "conv", "-O1", &shims);
    let checked = cases.iter().map(|c| (c, c.check(&library)));
    let wrong: Vec<String> = checked
        .filter_map(|(c, r)| Some(format!("{}: {}", c.name, r.err()?)))
        .collect();
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}
