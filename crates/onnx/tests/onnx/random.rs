//! Random programs, exported.

use crate::peers::Cases;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::{Config, random_inputs};
use kiln_ir::{Builder, DType, Dim, Graph, Op};
use kiln_lazy::{Handle, Recorder};
use kiln_onnx::Export;
use kiln_tensor::{Compiled, Device, DimSpec, Spec, Tensor, compile};
use kiln_testkit::sweep::seeds;
use std::panic::Location;

/// Records a program's ops on its inputs.
fn replayed(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut recorder = Recorder::new(Location::caller(), "replayed", None);
    let mut values: Vec<Vec<Handle>> = Vec::new();
    for (_, node) in graph.iter() {
        values.push(match &node.op {
            Op::Input(i) => vec![inputs[i.index as usize].as_ref().clone()],
            op => {
                let operands = node.inputs.iter();
                let operands: Vec<Handle> = operands
                    .map(|v| values[v.node.index()][v.output as usize].clone())
                    .collect();
                recorder.emit(op.clone(), &operands).unwrap().into_vec()
            }
        });
    }
    let outputs = graph.outputs.iter().map(|o| o.value);
    outputs
        .map(|v| values[v.node.index()][v.output as usize].clone().into())
        .collect()
}

/// The specs of a program's inputs, or none if a size is neither a number nor a symbol, or an input holds f16 or bf16,
/// which onnxruntime computes with other roundings.
fn specs(graph: &Graph) -> Option<Vec<Spec>> {
    let narrow = |dtype| matches!(dtype, DType::F16 | DType::BF16);
    if graph
        .iter()
        .any(|(_, n)| n.facts.iter().any(|f| narrow(f.dtype)))
    {
        return None;
    }
    let dim = |d: &Dim| match d.as_const() {
        Some(n) => Some(DimSpec::Known(n)),
        None => {
            let symbol = d.symbols().find(|s| Dim::symbol(*s) == *d)?;
            Some(DimSpec::Symbol(
                graph.symbols[symbol.0 as usize].name.clone(),
            ))
        }
    };
    let spec = |id| {
        let fact: &kiln_ir::Fact = graph.node(id).fact();
        let dims = fact
            .shape
            .iter()
            .map(dim)
            .collect::<Option<Vec<DimSpec>>>()?;
        Some(Spec {
            dtype: fact.dtype,
            dims,
            device: Device::Cpu,
        })
    };
    graph.inputs().into_iter().map(spec).collect()
}

/// True if a program with attention gives NaN: a query without keys is found by a maximum, in which onnxruntime ignores
/// NaN.
fn attends_to_nan(graph: &Graph, f: &Compiled, inputs: &[Tensor]) -> bool {
    let attends = |op: &Op| matches!(op, Op::Attention(_) | Op::AttentionGrad(_));
    let results = match graph.iter().any(|(_, node)| attends(&node.op)) {
        true => f.run(inputs.to_vec()).unwrap(),
        false => return false,
    };
    let floats = results.iter().filter(|t| t.dtype().is_float());
    let numbers = floats.map(|t| t.to_dtype(DType::F64).to_vec::<f64>().unwrap());
    numbers.flatten().any(|x| x.is_nan())
}

/// Small programs of all ops and dtypes, with symbols, branches and loops. Those that hold what ONNX lacks are refused.
/// `KILN_FUZZ_SEEDS` and `KILN_FUZZ_FIRST` say which seeds are tried.
#[test]
fn random_programs() {
    let config = Config {
        empty: false,
        min_nodes: 4,
        max_nodes: 12,
        ..Config::default()
    };
    let cases = Cases::new("random", [1e-3, 1e-3]);
    let (mut exported, mut refused) = (0, 0);
    for seed in seeds(300) {
        let graph = config.graph(seed);
        let Some(specs) = specs(&graph) else { continue };
        let Ok(f) = compile(specs, |inputs: Vec<Tensor>| replayed(&graph, &inputs)) else {
            continue;
        };
        let tensor = |a: Array| Tensor::from_bytes(&a.to_bytes(), a.dtype(), a.shape());
        // Seeds without NaN and infinities, of which runtimes make different things.
        let inputs: Vec<Tensor> = random_inputs(&graph, 8 * seed)
            .into_iter()
            .map(tensor)
            .collect();
        if attends_to_nan(&graph, &f, &inputs) {
            continue;
        }
        let how = Export::new().opset(17 + seed as i64 % 12);
        match cases.add(&format!("seed-{seed}"), &f, &[&inputs], how) {
            Ok(_) => exported += 1,
            Err(e) => {
                refused += 1;
                println!("{seed}: {e}");
            }
        }
    }
    println!("{exported} exported, {refused} refused");
    assert!(
        2 * exported > refused || exported + refused < 100,
        "{exported} exported, {refused} refused"
    );
    cases.beside_onnxruntime();
}
