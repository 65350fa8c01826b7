//! Kernels in CUDA C++, compiled by NVRTC and executed on an emulated device, equal the reference.

use crate::device;
use crate::fuzz::{config, difference, env_number, max_epsilon, show};
use crate::run::{decompose, decompose_for_cuda, run_compiled};
use kiln_base::{DType, Gpu, Machine};
use kiln_codegen::{Options, Program, Sequence, lower};
use kiln_ir::Graph;
use kiln_ir::eval::{Array, Mode, evaluate, symbol_values};
use kiln_ir::fuzz::random_inputs;
use kiln_plan::Kernel;
use std::sync::Arc;

mod absorbed;
mod approximate;
mod attention;
mod candidates;
mod choice;
mod contractions;
pub mod elements;
mod families;
mod im2col;
mod layouts;
mod library;
mod machine_code;
mod merged_launches;
mod networks;
mod permutations;
mod prologues;
mod registers;
mod row_epilogues;
mod schedules;
mod sources;
mod tma_store;
mod traffic;
mod transposed;
mod warpgroups;

/// Lowers for an H100. Returns `None` if a kernel isn't implemented.
pub fn lowered(graph: &Graph, fuse: bool) -> Option<Program> {
    lowered_for(Gpu::H100, graph, fuse)
}

fn lowered_for(gpu: Gpu, graph: &Graph, fuse: bool) -> Option<Program> {
    let options = Options {
        fuse,
        machine: Machine::Gpu(gpu),
        ..Options::default()
    };
    match lower(graph, &options) {
        Ok(p) => Some(p),
        Err(e) if e.text.contains("has no CUDA kernel yet") => None,
        Err(e) => panic!("{e}\n{graph}"),
    }
}

pub fn sources(sequence: &Sequence) -> String {
    let mut text = String::new();
    for l in &sequence.launches {
        if let Kernel::Cuda(k) = &*l.kernel {
            text += &format!(
                "// grid {:?} block {:?} in place {:?}\n{}\n",
                k.grid,
                k.block,
                l.in_place,
                k.source()
            );
        }
    }
    text
}

/// Runs a graph fused, with `unfused` also unfused, and compares the results with the reference. Returns false if a
/// kernel isn't implemented.
pub fn check(graph: &Graph, inputs: &[Array], unfused: bool) -> Result<bool, String> {
    check_as(graph, inputs, unfused, |sequence| sequence)
}

/// Runs [`check`] on launches that `transform` changes.
pub fn check_as(
    graph: &Graph,
    inputs: &[Array],
    unfused: bool,
    transform: impl Fn(Sequence) -> Sequence,
) -> Result<bool, String> {
    let expected = Expected::of(graph, inputs)?;
    for fuse in if unfused { &[true, false][..] } else { &[true] } {
        let Some(program) = lowered(&expected.lowered, *fuse) else {
            return Ok(false);
        };
        let sequence = transform(program.sequence());
        let compiled = device::compile(&sequence);
        let got = run_compiled(&sequence, inputs, &expected.symbols, &compiled);
        let compared = expected.compare(&got.ok_or("a false data error")?);
        if let Err(d) = compared {
            if std::env::var("KILN_SHOW").is_ok() {
                show(&expected.lowered, &program);
                println!("{}", sources(&sequence));
            }
            return Err(format!("fuse {fuse}, {d}"));
        }
    }
    Ok(true)
}

/// Replaces the first occurrence of `right` in each kernel by `wrong`.
fn with_bug(sequence: &Sequence, label: &str, [right, wrong]: [&str; 2]) -> Sequence {
    let mut sequence = sequence.clone();
    for launch in &mut sequence.launches {
        let Kernel::Cuda(kernel) = Arc::make_mut(&mut launch.kernel) else {
            continue;
        };
        let scope = &mut kernel.text.scope;
        assert!(scope.contains(right), "{label}: {right}");
        *scope = scope.replacen(right, wrong, 1);
        *kernel = kernel.clone().named();
    }
    sequence
}

/// The expected results of a graph.
struct Expected {
    /// The graph that is lowered.
    lowered: Graph,
    symbols: Vec<i64>,
    rounded: Vec<Array>,
    exact: Vec<Array>,
    steps: Vec<Array>,
    eps: f64,
}

impl Expected {
    fn of(graph: &Graph, inputs: &[Array]) -> Result<Expected, String> {
        let symbols = symbol_values(graph, inputs).unwrap();
        let result = |graph: &Graph, mode| evaluate(graph, inputs, &symbols, mode);
        let steps = result(&decompose(graph), Mode::Rounded).map_err(|e| e.to_string())?;
        let lowered = decompose_for_cuda(graph);
        Ok(Expected {
            rounded: result(graph, Mode::Rounded).unwrap(),
            exact: result(graph, Mode::Exact).unwrap(),
            steps,
            eps: max_epsilon(&lowered),
            lowered,
            symbols,
        })
    }

    /// Compares results. The error names the output and the element.
    fn compare(&self, got: &[Option<Array>]) -> Result<(), String> {
        for (o, g) in got.iter().enumerate() {
            let Some(g) = g else { continue };
            let (rounded, steps) = (&self.rounded[o], &self.steps[o]);
            if let Some(d) = difference(g, rounded, steps, &self.exact[o], self.eps) {
                return Err(format!("output {o}: {d}"));
            }
        }
        Ok(())
    }
}

/// Parses and verifies the nodes of a graph.
fn parsed(text: &str) -> Graph {
    let graph =
        Graph::parse(&format!("graph {{\n{text}\n}}")).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert!(kiln_ir::verify::verify(&graph).is_ok(), "{graph}");
    graph
}

/// Returns a product of matrices of 4096 by 4096 with an epilogue. Each operand may be transposed.
fn large_product(dtype: DType, transposed: [bool; 2]) -> Graph {
    let [a, b] = transposed.map(|transposed| if transposed { "[1, 0]" } else { "[0, 1]" });
    parsed(&format!(
        "%0: {dtype}[4096, 4096] = input(index: 0, role: Data)
         %1: {dtype}[4096, 4096] = input(index: 1, role: Data)
         %2: {dtype}[4096, 4096] = permute(perm: {a}) %0
         %3: {dtype}[4096, 4096] = permute(perm: {b}) %1
         %4: {dtype}[4096, 4096] = matmul %2, %3
         %5: {dtype}[4096, 4096] = relu %4
         return %5"
    ))
}

#[test]
fn random_programs_on_the_device() {
    if device::nvrtc().is_none() {
        return;
    }
    let first_seed = env_number("KILN_SEED", 0);
    let (mut failures, mut ran) = (Vec::new(), 0);
    for seed in first_seed..first_seed + env_number("KILN_FUZZ", 60) {
        let graph = config().graph(seed);
        let result = std::panic::catch_unwind(|| check(&graph, &random_inputs(&graph, seed), true));
        let text = match result {
            Ok(Ok(r)) => {
                ran += r as u32;
                continue;
            }
            Ok(Err(text)) => text,
            Err(p) => {
                let text = p.downcast_ref::<String>().cloned().unwrap_or_default();
                format!("panic: {text}")
            }
        };
        failures.push(format!("seed {seed}: {}", &text[..text.len().min(2000)]));
    }
    assert!(ran > 0, "no program ran");
    let shown: Vec<&str> = failures.iter().take(4).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} fail\n{}",
        failures.len(),
        shown.join("\n")
    );
}
