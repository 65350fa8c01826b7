//! Claims about random programs.

use kiln_ir::eval::{Mode, evaluate, evaluate_all, symbol_values};
use kiln_ir::fuzz::{Config, Rng, coverage, random_graph, random_inputs};
use kiln_ir::verify::verify;
use kiln_ir::{DType, Graph, Pw};

const SEEDS: u64 = 3000;

/// `KILN_FUZZ_SEEDS` sets the number of seeds and `KILN_FUZZ_FIRST` the first one.
#[test]
fn random_programs_are_sound_and_evaluate() {
    let given = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let first = given("KILN_FUZZ_FIRST").unwrap_or(0);
    for seed in first..first + given("KILN_FUZZ_SEEDS").unwrap_or(SEEDS) {
        let graph = random_graph(seed);
        if let Err(found) = verify(&graph) {
            panic!("seed {seed}: {}\n{graph}", found[0]);
        }
        let inputs = random_inputs(&graph, seed);
        let symbols = symbol_values(&graph, &inputs).unwrap();
        for mode in [Mode::Rounded, Mode::Exact] {
            let all = evaluate_all(&graph, &inputs, &symbols, mode)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
            let outputs = evaluate(&graph, &inputs, &symbols, mode).unwrap();
            assert_eq!(outputs.len(), graph.outputs.len());
            for (o, y) in graph.outputs.iter().zip(&outputs) {
                let same = &all[o.value.node.index()][o.value.output as usize];
                assert_eq!(same.to_bytes(), y.to_bytes(), "seed {seed}");
                let fact = graph.fact(o.value);
                let shape: Vec<i64> = fact.shape.iter().map(|d| d.eval(&symbols)).collect();
                let given: Vec<i64> = y.shape().iter().map(|n| *n as i64).collect();
                assert_eq!((shape, fact.dtype), (given, y.dtype()), "seed {seed}");
            }
        }
    }
}

#[test]
fn ops_say_whether_they_have_sizes() {
    for seed in 0..SEEDS {
        let graph = random_graph(seed);
        for (_, node) in graph.iter() {
            let mut op = node.op.clone();
            let mut has_any = op.scalar().is_some();
            op.dims_mut(&mut |_| has_any = true);
            assert!(!has_any || op.has_sizes(), "{}", op.name());
            assert_eq!(op.bodies().len(), op.bodies_mut().len(), "{}", op.name());
        }
    }
}

#[test]
fn random_programs_print_and_parse() {
    for seed in 0..SEEDS {
        let graph = random_graph(seed);
        let text = graph.to_string();
        let back = Graph::parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert_eq!(back, graph.without_locs(), "seed {seed}");
        assert_eq!(back.to_string(), text, "seed {seed}");
        let located = Graph::parse(&format!("{graph:#}")).unwrap();
        assert_eq!(located, back, "seed {seed}");
    }
}

#[test]
fn random_programs_serialise() {
    for seed in 0..200 {
        let graph = random_graph(seed);
        let text = ron::to_string(&graph).unwrap();
        let back: Graph = ron::from_str(&text).unwrap();
        assert_eq!(back, graph, "seed {seed}");
    }
}

#[test]
fn random_programs_are_the_same_again() {
    for seed in 0..50 {
        assert_eq!(random_graph(seed), random_graph(seed));
        let graph = random_graph(seed);
        for (a, b) in random_inputs(&graph, 1)
            .iter()
            .zip(&random_inputs(&graph, 1))
        {
            assert_eq!(a.to_bytes(), b.to_bytes());
        }
    }
}

#[test]
fn random_programs_cover_everything() {
    let graphs: Vec<Graph> = (0..SEEDS).map(random_graph).collect();
    let counts = coverage(&graphs);
    let share = |feature: &str| counts.get(feature).copied().unwrap_or(0) as f64 / SEEDS as f64;
    let ops = "input full constant iota random pointwise cast broadcast reshape permute slice pad \
        concat reduce arg_reduce gather matmul conv window_reduce softmax batch_norm scan \
        arg_sort scatter attention attention_grad if loop";
    let mut wanted: Vec<(String, f64)> = vec![];
    wanted.extend(ops.split_whitespace().map(|op| (format!("op:{op}"), 0.01)));
    wanted.extend(Pw::ALL.iter().map(|p| (format!("row:{}", p.name()), 0.01)));
    wanted.extend(DType::ALL.iter().map(|d| (format!("dtype:{d}"), 0.01)));
    wanted.extend((0..6).map(|r| (format!("rank:{r}"), 0.01)));
    for (feature, least) in [
        ("outputs", 0.5),
        ("symbols", 0.1),
        ("kept", 0.2),
        ("assign", 0.1),
        ("parameter", 0.5),
        ("data", 0.5),
        ("randomkey", 0.05),
        ("empty", 0.05),
        ("quotient", 0.01),
        ("dead", 0.2),
        ("conditional", 0.01),
    ] {
        wanted.push((feature.into(), least));
    }
    // Every row with every dtype that it takes.
    for row in Pw::ALL {
        let dtypes = DType::ALL.into_iter().filter(|d| row.takes(*d));
        wanted.extend(dtypes.map(|d| (format!("row:{}:{d}", row.name()), 0.0003)));
    }
    let missing: Vec<String> = wanted
        .iter()
        .filter(|(feature, least)| share(feature) < *least)
        .map(|(feature, _)| format!("{feature} {}", share(feature)))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let sizes = graphs.iter().map(|g| g.len());
    assert!(sizes.clone().min() >= Some(15) && sizes.max() <= Some(100));
}

#[test]
fn random_programs_can_do_without() {
    let config = Config {
        control_flow: false,
        symbolic: false,
        ..Config::default()
    };
    let graphs: Vec<Graph> = (0..300).map(|seed| config.graph(seed)).collect();
    let counts = coverage(&graphs);
    for feature in ["op:if", "op:loop", "symbols"] {
        assert!(!counts.contains_key(feature), "{feature}");
    }
}

/// For most seeds, low precision agrees with f64: rounding errors stay small.
#[test]
fn random_programs_are_tame() {
    let (mut far, mut compared) = (0, 0);
    for seed in (0..SEEDS).filter(|s| s % 8 != 7) {
        let graph = random_graph(seed);
        let inputs = random_inputs(&graph, seed);
        let symbols = symbol_values(&graph, &inputs).unwrap();
        let rounded = evaluate(&graph, &inputs, &symbols, Mode::Rounded).unwrap();
        let exact = evaluate(&graph, &inputs, &symbols, Mode::Exact).unwrap();
        for (a, b) in rounded.iter().zip(&exact) {
            let tolerance = match a.dtype() {
                // Their operands may have been narrower.
                DType::F64 | DType::F32 => 0.02,
                DType::F16 => 0.05,
                DType::BF16 => 0.4,
                d if d.float8().is_some() => 0.5,
                _ => 0.0,
            };
            let close = |(x, y): (&f64, &f64)| {
                (x.is_nan() && y.is_nan()) || x == y || (x - y).abs() <= tolerance * (1.0 + y.abs())
            };
            compared += 1;
            far += !a.to_f64().iter().zip(&b.to_f64()).all(close) as usize;
        }
    }
    assert!(compared > SEEDS as usize);
    assert!(
        far * 500 < compared,
        "{far} of {compared} outputs are far off"
    );
}

/// Mutated and truncated texts give errors, or graphs that the verifier can look at.
#[test]
fn parsing_never_panics() {
    for seed in 0..300 {
        let text = random_graph(seed).to_string();
        let mut rng = Rng::new(seed);
        for _ in 0..20 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bytes.len());
                match rng.below(5) {
                    0 => bytes.truncate(at),
                    1 => {
                        bytes.remove(at);
                    }
                    2 => bytes.insert(at, b"(){}[],:%=\"#-9s.\n\\"[rng.below(18)]),
                    3 => bytes[at] = rng.bits() as u8,
                    _ => {
                        let end = (at + rng.below(40)).min(bytes.len());
                        let part = bytes[at..end].to_vec();
                        let to = rng.below(bytes.len());
                        bytes.splice(to..to, part);
                    }
                }
                if bytes.is_empty() {
                    break;
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Ok(graph) = Graph::parse(&text) {
                let _ = verify(&graph);
                let printed = graph.to_string();
                assert_eq!(Graph::parse(&printed).unwrap().to_string(), printed);
            }
        }
    }
}
