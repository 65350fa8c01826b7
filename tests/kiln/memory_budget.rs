//! A memory budget is met by rematerialising values, and changes no result.

use crate::cuda;
use crate::oracle::{Engine, Oracle};
use kiln::nn::optim::{Optimizer, SGD};
use kiln::nn::{
    BatchNorm2d, Conv2d, Forward, Kernel, Linear, Module, ModuleList, TransformerActivation,
    TransformerEncoderLayer, TransformerOptions,
};
use kiln::{
    CompileOptions, Compiled, DType, Device, ErrorKind, Program, Spec, Tensor, Var, compile_with,
    memory, with_seed,
};
use kiln_compiler::Options;
use kiln_ir::fuzz::{Config, random_inputs};
use kiln_ir::ops::MatMul;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, NodeId, Op, Pw, Role, Value};
use kiln_testkit::programs::{check, differentiated};

/// The number of random programs.
const SEEDS: u64 = 300;

/// Builds a program that returns a loss and gradients, or commits a step, and its input.
type Make = fn(&CompileOptions, Device) -> kiln::Result<(Compiled<Tensor, Vec<Tensor>>, Tensor)>;

const PROGRAMS: [(&str, Make); 3] = [
    ("deep stack", stack),
    ("residual network", residual),
    ("transformer", transformer),
];

fn layers<M>(n: usize, make: fn(usize) -> kiln::Result<M>) -> kiln::Result<ModuleList<M>> {
    let made: kiln::Result<Vec<M>> = (0..n).map(make).collect();
    Ok(ModuleList(made?))
}

fn budget(bytes: usize) -> CompileOptions {
    CompileOptions {
        memory_budget: Some(bytes),
        ..CompileOptions::default()
    }
}

/// Compiles `loss` of an input with the gradients of all parameters.
fn gradients<M: Module>(
    model: &M,
    shape: &[usize],
    options: &CompileOptions,
    device: Device,
    loss: impl FnOnce(&M, &Tensor) -> Tensor,
) -> kiln::Result<(Compiled<Tensor, Vec<Tensor>>, Tensor)> {
    model.to(device)?;
    let spec = Spec::new(DType::F32, shape).on(device);
    let program = compile_with(spec, options, |x| {
        let loss = loss(model, &x);
        loss.backward()?;
        let grads = model.named_parameters().into_iter();
        let mut results: Vec<Tensor> = grads.filter_map(|(_, p)| p.grad()).collect();
        results.push(loss);
        kiln::Result::Ok(results)
    })?;
    let x = with_seed(8, || Tensor::randn(shape, DType::F32)).to(device);
    Ok((program, x))
}

/// Sixteen layers with dropout, whose masks must be the same when they are recomputed.
fn stack(
    options: &CompileOptions,
    device: Device,
) -> kiln::Result<(Compiled<Tensor, Vec<Tensor>>, Tensor)> {
    let layer = |_| Linear::new(32, 32);
    let layers = with_seed(7, || layers(16, layer))?;
    gradients(&layers, &[64, 32], options, device, |layers, x| {
        let run = |y: Tensor, l: &Linear| l.call(&y).tanh().dropout(0.1);
        layers.iter().fold(x.clone(), run).square().mean(())
    })
}

#[derive(Module)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm2d,
}

/// Blocks of convolution, batch norm and a shortcut.
fn residual(
    options: &CompileOptions,
    device: Device,
) -> kiln::Result<(Compiled<Tensor, Vec<Tensor>>, Tensor)> {
    let block = |_| {
        Ok(Block {
            conv: Conv2d::new(8, 8, Kernel::new(3).padding(1))?,
            norm: BatchNorm2d::new(8)?,
        })
    };
    let blocks = with_seed(7, || layers(8, block))?;
    gradients(&blocks, &[2, 8, 13, 13], options, device, |blocks, x| {
        let run = |y: Tensor, b: &Block| (b.norm.call(b.conv.call(&y)) + &y).relu();
        blocks.iter().fold(x.clone(), run).square().mean(())
    })
}

/// Encoder blocks with dropout.
fn transformer(
    options: &CompileOptions,
    device: Device,
) -> kiln::Result<(Compiled<Tensor, Vec<Tensor>>, Tensor)> {
    let layer = |_| {
        let layer_options = TransformerOptions::new()
            .dim_feedforward(48)
            .batch_first(true);
        TransformerEncoderLayer::with(16, 2, layer_options.activation(TransformerActivation::Gelu))
    };
    let layers = with_seed(7, || layers(3, layer))?;
    gradients(&layers, &[2, 24, 16], options, device, |layers, x| {
        layers
            .iter()
            .fold(x.clone(), |y, l| l.call(&y))
            .square()
            .mean(())
    })
}

fn peak(program: &Program) -> usize {
    program.explain().memory.unwrap().peak
}

/// The results of a run, with the same random numbers every time.
fn results(program: &Compiled<Tensor, Vec<Tensor>>, x: &Tensor) -> Vec<Vec<f32>> {
    let results = with_seed(5, || program.run(x)).unwrap();
    results.iter().map(|t| t.to_vec().unwrap()).collect()
}

/// The minimum number of bytes that an error reports.
fn needed(message: &str) -> usize {
    let behind = message.split("found is ").nth(1).unwrap();
    behind.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn plans_stay_within_the_budget_and_compute_the_same() {
    for (name, make) in PROGRAMS {
        let (program, x) = make(&CompileOptions::default(), Device::Cpu).unwrap();
        let (most, wanted) = (peak(&program), results(&program, &x));
        assert!(program.explain().recomputed.is_empty());
        let mut last = most;
        for sixteenths in (1..16).rev() {
            let bytes = most / 16 * sixteenths;
            let (program, x) = match make(&budget(bytes), Device::Cpu) {
                Ok(made) => made,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Memory, "{name}: {e}");
                    let least = needed(&e.to_string());
                    assert!(bytes < least && least <= most, "{name}: {e}");
                    assert!(e.to_string().contains("memory_budget.rs:"), "{name}: {e}");
                    let (program, _) = make(&budget(least), Device::Cpu).unwrap();
                    assert!(peak(&program) <= least, "{name}");
                    println!("{name}: {most} bytes, at least {least}");
                    break;
                }
            };
            let found = peak(&program);
            println!(
                "{name}: {found} of {bytes}, {} again, the same bits: {}",
                program.explain().recomputed.len(),
                results(&program, &x) == wanted
            );
            assert!(
                found <= bytes && found <= last,
                "{name}: {found} of {bytes}"
            );
            last = found;
            assert!(!program.explain().recomputed.is_empty());
            for (a, b) in results(&program, &x).iter().zip(&wanted) {
                let size = b.iter().fold(1e-30f32, |m, x| m.max(x.abs()));
                for (a, b) in a.iter().zip(b) {
                    assert!((a - b).abs() <= 1e-5 * size, "{name}: {a} {b}");
                }
            }
        }
        assert!(last <= most * 3 / 4, "{name}: {last} of {most}");
    }
}

#[test]
fn the_explanation_says_what_it_saves_and_costs() {
    let (program, _) = stack(&CompileOptions::default(), Device::Cpu).unwrap();
    let (program, _) = stack(&budget(peak(&program) / 4 * 3), Device::Cpu).unwrap();
    let recomputed = &program.explain().recomputed;
    assert!(
        recomputed
            .iter()
            .all(|r| r.bytes == 64 * 32 * 4 && r.steps > 0)
    );
    let text = program.explain().to_string();
    let line = text
        .lines()
        .find(|l| l.contains("is computed again"))
        .unwrap();
    assert!(
        line.contains("f32[64, 32]") && line.contains("memory_budget.rs:"),
        "{line}"
    );
}

#[test]
fn weights_change_as_without_a_budget() {
    let train = |options: &CompileOptions| -> kiln::Result<(usize, Vec<f32>)> {
        let layer = |_| Linear::new(24, 24);
        let layers = with_seed(3, || layers(12, layer))?;
        let mut optimizer = Optimizer::new(layers.parameters(), SGD::new())?;
        let shapes = [[32, 24], [32, 24]];
        let specs = shapes.map(|s| Spec::new(DType::F32, s));
        let step = compile_with(&specs, options, |[x, wanted]| {
            optimizer.zero_grad();
            let y = layers.iter().fold(x, |y, l| l.call(&y).gelu());
            let loss = y.mse_loss(&wanted);
            loss.backward()?;
            optimizer.step()?;
            kiln::Result::Ok(loss)
        })?;
        let batch = with_seed(4, || shapes.map(|s| Tensor::randn(s, DType::F32)));
        let mut losses = Vec::new();
        for _ in 0..5 {
            losses.push(step.run(&batch)?.item()?);
        }
        Ok((peak(&step), losses))
    };
    let (most, wanted) = train(&CompileOptions::default()).unwrap();
    let (found, losses) = train(&budget(most / 3 * 2)).unwrap();
    assert!(found <= most / 3 * 2 && wanted[4] < wanted[0]);
    for (a, b) in losses.iter().zip(&wanted) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{losses:?} {wanted:?}");
    }
}

#[test]
fn sizes_must_be_known() {
    let spec = Spec::new(DType::F32, "n");
    let e = compile_with(spec, &budget(64), |x| x.exp().cumsum(0)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory);
    assert!(e.to_string().contains("sizes that are known"), "{e}");
}

#[test]
fn a_gpu_keeps_it_too() {
    let Some(gpu) = cuda::device() else { return };
    let (program, x) = stack(&CompileOptions::default(), gpu).unwrap();
    let (most, wanted) = (peak(&program), results(&program, &x));
    let (program, x) = stack(&budget(most / 4 * 3), gpu).unwrap();
    assert!(peak(&program) <= most / 4 * 3);
    for (a, b) in results(&program, &x).iter().zip(&wanted) {
        let size = b.iter().fold(1e-30f32, |m, x| m.max(x.abs()));
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * size));
    }
}

#[test]
fn random_programs_compute_the_same() {
    random_programs(None);
}

#[test]
fn random_programs_compute_the_same_on_a_gpu() {
    if cuda::device().is_some() {
        random_programs(Some(0));
    }
}

fn random_programs(gpu: Option<u32>) {
    let config = Config {
        control_flow: true,
        ..Config::default()
    };
    let mut kept = 0;
    for seed in 0..SEEDS {
        let Some(graph) = differentiated(config.graph(seed)) else {
            continue;
        };
        let plain = Options {
            gpu,
            ..Options::default()
        };
        let memory = kiln_compiler::compile(&graph, &[], &plain)
            .unwrap()
            .explain
            .memory;
        let Some(peak) = memory.map(|m| m.peak).filter(|p| *p > 0) else {
            continue;
        };
        for bytes in [peak - 1, peak / 4 * 3] {
            let options = Options {
                memory_budget: Some(bytes),
                ..plain.clone()
            };
            match check(&graph, seed, &[options]) {
                Ok(_) => kept += 1,
                Err(e) => assert!(e.contains("memory budget"), "seed {seed}: {e}"),
            }
        }
    }
    // Most programs are too short to free a value and recompute it.
    assert!(kept * 100 >= SEEDS, "only {kept} budgets were kept");
}

/// Runs in a process of its own, since the figures are the process's.
#[test]
fn a_run_takes_what_is_planned() {
    const INSIDE: &str = "KILN_TEST_MEMORY";
    if std::env::var_os(INSIDE).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "memory_budget::a_run_takes_what_is_planned";
        let output = command
            .args([name, "--exact"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let (program, _) = stack(&CompileOptions::default(), Device::Cpu).unwrap();
    let most = peak(&program);
    let mut taken = Vec::new();
    for options in [CompileOptions::default(), budget(most / 2)] {
        let (program, x) = stack(&options, Device::Cpu).unwrap();
        drop(program.run(&x).unwrap());
        let before = memory::stats().allocated;
        memory::reset_peak();
        let results = program.run(&x).unwrap();
        let report = program.explain().memory.unwrap();
        let used = memory::stats().peak - before;
        // Sizes are rounded up, also that of each result.
        let about = report.peak + report.outputs;
        let rounding = 4096 * (results.len() + 2);
        assert!(
            (about / 4 * 3..about + rounding).contains(&used),
            "{used} for {report:?}"
        );
        taken.push(used);
    }
    assert!(taken[1] + most / 4 <= taken[0], "{taken:?} of {most}");
}

/// Products of one operand become one product unless memory is short.
#[test]
fn products_stay_apart_where_one_would_hold_too_much() {
    let weight = |shape: [usize; 2]| Var::new(Tensor::randn(shape, DType::F32)).unwrap();
    let weights = with_seed(3, || [0, 1, 2].map(|_| weight([32, 256])));
    let narrow = weight([256, 2]);
    let make = |options: &CompileOptions| {
        let spec = Spec::new(DType::F32, [64, 32]);
        compile_with(spec, options, |x| {
            kiln::no_grad(|| {
                let part = |w: &Var| x.matmul(w.get()).matmul(narrow.get());
                let [a, b, c] = weights.each_ref().map(part);
                a + b + c
            })
        })
    };
    let merged = make(&CompileOptions::default()).unwrap();
    assert!(merged.explain().count("shared_operand") > 0);
    let apart = make(&budget(peak(&merged) - 1)).unwrap();
    assert_eq!(apart.explain().count("shared_operand"), 0);
    assert!(peak(&apart) < peak(&merged) && apart.explain().recomputed.is_empty());
}

/// The gradients of layers `tanh(y · w / 4)`.
fn deep_graph() -> Graph {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let data =
        |b: &mut GraphBuilder, shape: [usize; 2]| b.input(Fact::new(DType::F32, shape), Role::Data);
    let mut y = data(&mut b, [24, 16]);
    for _ in 0..8 {
        let w = data(&mut b, [16, 16]);
        let product = b.op(MatMul {}, &[y, w]).unwrap();
        let product = b.with(Pw::Mul, &product, 0.25).unwrap();
        y = b.pointwise(Pw::Tanh, &[product]).unwrap();
    }
    graph.add_output(y);
    differentiated(graph).unwrap()
}

/// A bug of the rewrite: changes a graph that recomputes values, or does nothing where it does not apply.
type Bug = fn(&mut Graph) -> bool;

const BUGS: [(&str, Bug); 4] = [
    ("operands behind a barrier change places", |g| {
        let found = barriers(g).into_iter().find_map(|id| {
            let inputs = &g.node(id).inputs;
            let same =
                |i: &usize| inputs[*i] != inputs[0] && g.fact(inputs[*i]) == g.fact(inputs[0]);
            Some((id, (1..inputs.len()).find(same)?))
        });
        found
            .map(|(id, i)| g.node_mut(id).inputs.swap(0, i))
            .is_some()
    }),
    ("an op of a copy is left out", |g| {
        let copy = copies(g).into_iter().find(|id| {
            let node = g.node(*id);
            node.inputs.iter().any(|v| g.fact(*v) == node.fact())
        });
        copy.map(|id| {
            let node = g.node(id);
            let operand = node.inputs.iter().find(|v| g.fact(**v) == node.fact());
            read_instead(g, id, *operand.unwrap());
        })
        .is_some()
    }),
    ("a late reader reads what another copy is of", |g| {
        let copies = copies(g);
        let pair = copies.iter().find_map(|id| {
            let alike = |o: &&NodeId| *o < id && g.node(**o).facts == g.node(*id).facts;
            Some((*id, *copies.iter().find(alike)?))
        });
        pair.map(|(id, other)| read_instead(g, id, other.value()))
            .is_some()
    }),
    (
        "a copy waits for its operand and reads what it waits with",
        |g| {
            let found = barriers(g).into_iter().find(|id| {
                let inputs = &g.node(*id).inputs;
                let last = inputs[inputs.len() - 1];
                last != inputs[0] && g.fact(last) == g.fact(inputs[0])
            });
            found
                .map(|id| {
                    let inputs = &mut g.node_mut(id).inputs;
                    inputs[0] = inputs[inputs.len() - 1];
                })
                .is_some()
        },
    ),
];

fn barriers(graph: &Graph) -> Vec<NodeId> {
    let found = graph.iter().filter(|(_, n)| matches!(n.op, Op::Barrier(_)));
    found.map(|(id, _)| id).collect()
}

/// The nodes computed from values behind barriers.
fn copies(graph: &Graph) -> Vec<NodeId> {
    let barriers = barriers(graph);
    let found = graph
        .iter()
        .filter(|(_, n)| n.inputs.iter().any(|v| barriers.contains(&v.node)));
    found.map(|(id, _)| id).collect()
}

/// Lets all readers of a node read another value.
fn read_instead(graph: &mut Graph, of: NodeId, other: Value) {
    for id in (0..graph.len() as u32).map(NodeId) {
        for v in &mut graph.node_mut(id).inputs {
            if *v == of.value() {
                *v = other;
            }
        }
    }
    for o in &mut graph.outputs {
        if o.value == of.value() {
            o.value = other;
        }
    }
}

#[test]
fn broken_recomputation_is_caught() {
    let graph = deep_graph();
    let oracle = Oracle::new(&graph, random_inputs(&graph, 3));
    let plain = Engine::new(&graph, &Options::default()).unwrap();
    let most = plain.explain.memory.unwrap().peak;
    let options = Options {
        memory_budget: Some(most / 4 * 3),
        ..Options::default()
    };
    let engine = Engine::new(&graph, &options).unwrap();
    assert!(!engine.explain.recomputed.is_empty());
    oracle.check(&engine.run(&oracle.inputs).unwrap()).unwrap();
    let rewritten = &engine.explain.stages.as_ref().unwrap().optimized;
    for (name, bug) in BUGS {
        let mut broken = rewritten.clone();
        assert!(bug(&mut broken), "{name}: does not apply to {rewritten}");
        let outputs = Engine::new(&broken, &Options::default()).unwrap();
        let outputs = outputs.run(&oracle.inputs).unwrap();
        assert!(oracle.check(&outputs).is_err(), "{name}: not caught");
    }
}
