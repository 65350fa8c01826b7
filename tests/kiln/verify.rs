//! Comparison of every kernel of a plan with the reference, and the rewrite that caused a wrong result.

use crate::{matrix, vector};
use kiln::nn::optim::{Adam, Optimizer};
use kiln::nn::{
    BatchNorm2d, Conv2d, Dropout, Forward, Linear, Module, ReLU, Sequential, sequential,
};
use kiln::{
    Bisection, CompileOptions, Compiled, Conv, DType, ErrorKind, RunningStats, Spec, Tensor, Var,
    compile,
};
use kiln_base::prim::Unary;
use kiln_compiler::{Compilation, Options, Verification};
use kiln_ir::fuzz::{Config, random_inputs};
use kiln_ir::{Builder, Graph, GraphBuilder, Loc, NodeId, Op, Pw, Role};
use kiln_optimize::{Pass, Patch, Run, View, rules};
use kiln_plan::tile::{Inst, TileProgram};
use kiln_plan::{Allocation, Kernel, Plan};
use kiln_runtime::{Buffer, Executable};
use std::sync::Arc;

fn buffers(graph: &Graph, seed: u64, executable: &Executable) -> Vec<Buffer> {
    let arrays = random_inputs(graph, seed).into_iter();
    arrays
        .map(|a| {
            let shape: Vec<i64> = a.shape().iter().map(|d| *d as i64).collect();
            let buffer = Buffer::from_bytes(a.dtype(), &shape, &a.to_bytes()).unwrap();
            match executable.gpu() {
                None => buffer,
                Some(gpu) => buffer.to_gpu(gpu).unwrap(),
            }
        })
        .collect()
}

fn verified(c: &Compilation, inputs: &[Buffer]) -> Option<Verification> {
    kiln_compiler::verify(&c.stages, &c.executable, inputs).ok()
}

#[test]
fn kernels_of_random_programs_are_right() {
    let mut checked = 0;
    for seed in 0..150 {
        let graph = Config::default().graph(seed);
        let c = kiln_compiler::compile(&graph, &[], &Options::default()).unwrap();
        let Some(found) = verified(&c, &buffers(&graph, seed, &c.executable)) else {
            continue; // an index out of range
        };
        assert!(found.is_right(), "seed {seed}:\n{found}\n{graph}");
        checked += found.checks.len();
    }
    assert!(checked > 400, "{checked}");
}

/// A training step with every kind of state: parameters, running statistics, moments, random numbers.
fn step(device: kiln::Device) -> (Compiled<Tensor, Tensor>, Tensor, Sequential) {
    let net = sequential![
        Conv2d::new(3, 4, [3, 3]),
        BatchNorm2d::new(4),
        ReLU::new(),
        Dropout::new(0.25)
    ];
    let net = net.unwrap();
    net.to(device).unwrap();
    let mut optimizer = Optimizer::new(net.parameters(), Adam::new()).unwrap();
    let x = Tensor::randn([2, 3, 7, 5], DType::F32).to(device);
    let step = compile(&x, |x| {
        let loss = net.call(&x).square().mean(());
        loss.backward()?;
        optimizer.step()?;
        kiln::Result::Ok(loss)
    });
    (step.unwrap(), x, net)
}

fn verify_commits_nothing(device: kiln::Device) {
    let (step, x, net) = step(device);
    let state = || {
        let vars = net
            .named_parameters()
            .into_iter()
            .chain(net.named_buffers());
        let values = vars.map(|(_, v)| v.get().to_dtype(DType::F32).to_vec::<f32>().unwrap());
        (values.collect::<Vec<_>>(), kiln::get_rng_state())
    };
    let before = kiln::with_seed(3, || {
        let before = state();
        let found = step.verify(&x).unwrap();
        assert!(found.is_right(), "{found}");
        let kernels = step.explain().kernels.len();
        assert!(
            found.checks.len() >= kernels / 2,
            "{} of {kernels}",
            found.checks.len()
        );
        assert_eq!(state(), before);
        before
    });
    step.run(&x).unwrap();
    assert_ne!(state().0, before.0, "a run does commit");
}

#[test]
fn kernels_of_a_training_step_are_right_and_nothing_is_committed() {
    verify_commits_nothing(kiln::Device::Cpu);
}

#[test]
fn kernels_on_a_gpu_are_right_and_nothing_is_committed() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    verify_commits_nothing(gpu);
}

/// Floats that are rounded to integers, compared or sorted may fall on either side of an edge: that is not an error.
#[test]
fn discrete_results_are_right() {
    let devices = [Some(kiln::Device::Cpu), crate::cuda::device()];
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let specs = [vec![300, 70], vec![70, 300], vec![300], vec![300, 300]];
        let tensors: Vec<Tensor> = specs.iter().map(|s| Tensor::randn(s, dtype)).collect();
        for device in devices.iter().flatten() {
            let on = |t: &Tensor| t.to(*device);
            let tensors: Vec<Tensor> = tensors.iter().map(on).collect();
            let f = compile(&tensors, |x| {
                let y = (x[0].matmul(&x[1]) + &x[2] + &x[3]).gelu();
                let quantised = (&y * 12.7).round().clamp(-128, 127);
                let again = quantised.matmul(&x[3]);
                [
                    quantised.to_dtype(DType::I8),
                    y.gt(&x[3]),
                    y.argmax(1),
                    (again * 0.01).floor(),
                ]
            });
            let f = f.unwrap();
            let found = f.verify(&tensors).unwrap();
            assert!(found.is_right(), "{dtype} {device}:\n{found}");
            let bisected = f.bisect(&tensors).unwrap();
            assert!(
                matches!(bisected, Bisection::Right),
                "{dtype} {device}: {bisected:?}"
            );
        }
    }
}

#[test]
fn parts_of_long_reductions_are_checked_as_one() {
    let f = compile(Spec::new(DType::F32, [3, 100_003]), |x| {
        [x.square().sum([1]), x.argmax(1)]
    });
    let found = f.unwrap().verify(Tensor::randn([3, 100_003], DType::F32));
    let found = found.unwrap();
    assert!(found.is_right(), "{found}");
}

/// Two chains of two kernels each; only one has an exponential.
fn two_chains() -> Graph {
    let mut graph = Graph::default();
    let line = |line| Loc::new("user.rs", line, 1);
    let mut b = GraphBuilder::new(&mut graph, line(1));
    let fact = kiln_ir::Fact::new(DType::F32, [33, 7]);
    let (x, w) = (
        b.input(fact, Role::Data),
        kiln_ir::Fact::new(DType::F32, [7, 7]),
    );
    let w = b.input(w, Role::Data);
    for (at, row) in [(10, Pw::Sin), (20, Pw::Exp)] {
        let mut b = GraphBuilder::new(&mut graph, line(at));
        let y = b.pointwise(row, &[x]).unwrap();
        let s = b
            .reduce_keepdim(kiln_base::prim::Reduction::Max, &y, &[0])
            .unwrap();
        let mut b = GraphBuilder::new(&mut graph, line(at + 1));
        let z = b.op(kiln_ir::ops::MatMul {}, &[y, w]).unwrap();
        let s = b.broadcast_to(&s, &[33.into(), 7.into()]).unwrap();
        let z = b.pointwise(Pw::Add, &[z, s]).unwrap();
        graph.add_output(z);
    }
    graph
}

fn tile_programs(plan: &mut Plan) -> impl Iterator<Item = &mut TileProgram> {
    plan.kernels
        .iter_mut()
        .map(Arc::make_mut)
        .filter_map(|k| match k {
            Kernel::Tile(t) => Some(t),
            _ => None,
        })
}

#[test]
fn a_broken_kernel_is_named_with_its_line() {
    let graph = two_chains();
    let options = Options {
        fuse: false,
        ..Options::default()
    };
    let c = kiln_compiler::compile(&graph, &[], &options).unwrap();
    let inputs = buffers(&graph, 5, &c.executable);
    let clean = verified(&c, &inputs).unwrap();
    assert!(clean.is_right(), "{clean}");

    let mut plan = c.executable.plan().clone();
    let mut broken = 0;
    let stages = tile_programs(&mut plan).flat_map(|t| &mut t.stages);
    for inst in stages.flat_map(|s| &mut s.code) {
        if let Inst::Unary { op, .. } = inst
            && *op == Unary::Exp
        {
            *op = Unary::Expm1;
            broken += 1;
        }
    }
    assert_eq!(broken, 1);
    let executable = Executable::new(plan).unwrap();
    let found = kiln_compiler::verify(&c.stages, &executable, &inputs).unwrap();
    // A kernel that reads wrong values is right itself.
    let wrong: Vec<_> = found.checks.iter().filter(|c| !c.is_right()).collect();
    assert_eq!(wrong.len(), 1, "{found}");
    assert_eq!((wrong[0].loc.line(), wrong[0].loc.file()), (20, "user.rs"));
    assert!(wrong[0].value.starts_with("exp"), "{found}");
    assert!(wrong[0].error.max_abs > 0.9, "{found}");
    assert!(found.to_string().contains("1 outside their tolerance"));
    assert!(found.to_string().contains("at user.rs:20"));
}

#[test]
fn memory_that_is_given_away_too_early_is_refused_or_found() {
    let graph = two_chains();
    let c = kiln_compiler::compile(&graph, &[], &Options::default()).unwrap();
    let inputs = buffers(&graph, 6, &c.executable);
    let bytes = |exe: &Executable| -> Vec<Vec<u8>> {
        let values = exe.run_shared(&inputs).unwrap();
        values.iter().map(|v| v.bytes().unwrap().to_vec()).collect()
    };
    let (plan, right) = (c.executable.plan(), bytes(&c.executable));
    let is_temporary = |i: &usize| plan.buffers[*i].allocation == Allocation::Temporary;
    let temporary: Vec<usize> = (0..plan.buffers.len()).filter(is_temporary).collect();
    let mut caught = 0;
    let pairs = temporary
        .iter()
        .flat_map(|a| temporary.iter().map(move |b| (a, b)));
    for (a, b) in pairs.filter(|(a, b)| a != b) {
        let mut plan = plan.clone();
        plan.buffers[*b].allocation = Allocation::InPlace(kiln_plan::BufferId(*a as u32));
        let Ok(executable) = Executable::new(plan) else {
            caught += 1;
            continue;
        };
        let found = kiln_compiler::verify(&c.stages, &executable, &inputs).unwrap();
        assert_eq!(found.is_right(), bytes(&executable) == right, "{found}");
        caught += !found.is_right() as usize;
    }
    assert!(caught > 0, "{} temporaries", temporary.len());
}

#[test]
fn a_fold_that_overflows_is_the_rewrite_that_bisect_names() {
    // With values this small, the unfolded product is finite; the folded weight is not.
    let weight = Var::new(&(Tensor::ones([2, 1, 1, 1], DType::F32) * 1e20)).unwrap();
    let (mean, variance) = (vector(&[0.0; 2]), vector(&[1.0; 2]));
    let (mean, variance) = (Var::new(&mean).unwrap(), Var::new(&variance).unwrap());
    let scale = Var::new(vector(&[1e20, 1.0])).unwrap();
    let shift = Var::new(vector(&[0.0; 2])).unwrap();
    let program = |x: Tensor| {
        let y = (&x + &x).conv2d_with(
            weight.get(),
            Conv::new().stride([1, 1]).padding([0, 0]).dilation([1, 1]),
        );
        let (scale, shift) = (scale.get(), shift.get());
        y.batch_norm_with(
            RunningStats::new()
                .running_mean(&mean)
                .running_var(&variance)
                .weight(&scale)
                .bias(&shift),
        )
    };
    let spec = Spec::new(DType::F32, [1, 1, 2, 3]);
    let x = matrix(2, 3).reshape([1, 1, 2, 3]);
    let f = compile(&spec, program).unwrap();
    assert_eq!(f.explain().folded(), 1, "{}", f.explain());
    let small = &x * 1e-30;
    let Bisection::Rewrite { fired, .. } = f.bisect(&small).unwrap() else {
        panic!("{}", f.bisect(&small).unwrap());
    };
    assert_eq!(fired.rule, "conv_batch_norm");
    assert!(fired.loc.file().ends_with("verify.rs"), "{fired}");
    let options = CompileOptions {
        exact: true,
        ..CompileOptions::default()
    };
    let exact = kiln::compile_with(&spec, &options, program).unwrap();
    assert_eq!(exact.bisect(&small).unwrap(), Bisection::Right);
}

#[test]
fn right_programs_have_nothing_to_bisect() {
    let (step, x, _net) = step(kiln::Device::Cpu);
    assert_eq!(step.bisect(&x).unwrap(), Bisection::Right);
    assert_eq!(
        Bisection::Right.to_string(),
        "the optimised program is right"
    );
}

/// Replaces `sin` by `tanh`.
fn broken(view: &View<'_>, node: NodeId) -> Option<Patch> {
    let old = view.node(node);
    let Op::Pointwise(p) = &old.op else {
        return None;
    };
    if p.0 != Pw::Sin {
        return None;
    }
    let mut patch = view.patch(node);
    let tanh = patch.pointwise(Pw::Tanh, &[old.inputs[0]]).ok()?;
    Some(patch.replacing(node.value(), tanh))
}

static BROKEN: Pass = Pass {
    name: "broken",
    about: "a wrong rule",
    exact: true,
    run: Run::Rules(rules![broken]),
};

#[test]
fn a_broken_rule_is_the_one_that_bisect_names() {
    let graph = two_chains();
    let mut passes = kiln_optimize::passes().to_vec();
    passes.push(BROKEN);
    let right = kiln_compiler::compile(&graph, &[], &Options::default()).unwrap();
    let inputs = buffers(&graph, 9, &right.executable);
    let bits = |c: &Compilation| -> Vec<Vec<u8>> {
        let values = c.executable.run_shared(&inputs).unwrap();
        values.iter().map(|v| v.bytes().unwrap().to_vec()).collect()
    };
    let expected = bits(&right);
    let found = kiln_compiler::bisect_with(&graph, &Options::default(), &passes, |c| {
        bits(c) == expected
    });
    let Bisection::Rewrite { fired, at } = found.unwrap() else {
        panic!("nothing found");
    };
    assert_eq!((fired.rule, fired.loc.line()), ("broken", 10));
    assert_eq!(fired.pass, "broken");
    assert!(at < 8);
    let never = kiln_compiler::bisect(&graph, &Options::default(), |_| false);
    assert_eq!(never.unwrap(), Bisection::WrongBefore);
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    let f = compile(Spec::new(DType::F32, [3]), |x| x.exp()).unwrap();
    for wrong in [vector(&[1.0, 2.0]), Tensor::zeros([3], DType::I64)] {
        assert_eq!(f.verify(&wrong).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(f.bisect(&wrong).unwrap_err().kind(), ErrorKind::Value);
    }
    // A data error is reported as in a run.
    let table = Linear::new(2, 2).unwrap();
    let f = compile(Spec::new(DType::I64, [1]), |x| {
        table.weight.get().index_select(0, &x)
    });
    let e = f.unwrap().verify(Tensor::from_slice(&[7i64], [1]));
    let e = e.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    assert!(e.loc().file().ends_with("verify.rs"), "{e}");
}
