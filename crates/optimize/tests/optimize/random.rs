//! Random graphs: optimised = unoptimised.

use crate::compare::{difference_on, flaw};
use crate::generate::random_graph;
use kiln_ir::eval::{Array, Mode, evaluate, symbol_values};
use kiln_ir::{DType, Graph, Op, Role, fuzz};
use kiln_optimize::{Options, Pass, Report, optimize, passes};
use std::collections::BTreeMap;

pub fn seeds() -> u64 {
    let wanted = std::env::var("KILN_FUZZ_SEEDS").ok();
    wanted.and_then(|n| n.parse().ok()).unwrap_or(2000)
}

/// Asserts that each rule of these passes, and no other name, fired in at least 1% of the seeds.
pub fn covers<'p>(passes: impl Iterator<Item = &'p Pass>, fired_in: &BTreeMap<&str, u64>) {
    let all: Vec<&str> = kiln_optimize::passes()
        .iter()
        .flat_map(Pass::rules)
        .collect();
    let unknown = fired_in.keys().find(|rule| !all.contains(rule));
    assert_eq!(unknown, None, "it is a rule of no pass");
    for rule in passes.flat_map(Pass::rules) {
        let n = fired_in.get(rule).copied().unwrap_or(0);
        assert!(
            n * 100 >= seeds(),
            "{rule} fired in {n} of {} seeds",
            seeds()
        );
    }
}

#[test]
fn exact_passes_change_no_bit() {
    let options = Options {
        exact: true,
        verify: true,
        ..Options::default()
    };
    let mut fired_in: BTreeMap<&str, u64> = BTreeMap::new();
    let mut in_bodies = 0;
    for seed in 0..seeds() {
        let report = flaw(&random_graph(seed), passes(), &options, seed)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (rule, _) in report.counts() {
            *fired_in.entry(rule).or_default() += 1;
        }
        in_bodies += report.fired.iter().any(|f| f.depth > 0) as u64;
        assert!(
            !report.stopped && report.rounds <= 5,
            "seed {seed}: {report}"
        );
    }
    println!("seeds in which each rule fired: {fired_in:?}, in bodies {in_bodies}");
    covers(passes().iter().filter(|p| p.exact), &fired_in);
    assert!(in_bodies * 100 >= seeds());
}

#[test]
fn each_pass_alone_changes_no_bit() {
    for pass in passes().iter().filter(|p| p.exact) {
        let options = Options {
            passes: Some(vec![pass.name]),
            verify: true,
            ..Options::default()
        };
        for seed in 0..seeds() / 10 {
            flaw(&random_graph(seed), passes(), &options, seed)
                .unwrap_or_else(|e| panic!("{} on seed {seed}: {e}", pass.name));
        }
    }
}

#[test]
fn stopping_after_any_patch_is_right() {
    for seed in 0..seeds() / 20 {
        let graph = random_graph(seed);
        let exact = Options {
            exact: true,
            ..Options::default()
        };
        let (_, report) = optimize(graph.clone(), &exact).unwrap();
        for n in 0..report.fired.len() {
            let options = Options {
                max_patches: Some(n),
                ..exact.clone()
            };
            let stopped = flaw(&graph, passes(), &options, seed).unwrap();
            assert!(stopped.stopped);
            assert_eq!(stopped.fired, report.fired[..n]);
        }
    }
}

#[test]
fn optimising_twice_changes_nothing_and_is_deterministic() {
    for seed in 0..seeds() / 10 {
        let graph = random_graph(seed);
        let (once, report) = optimize(graph.clone(), &Options::default()).unwrap();
        let (again, same_report) = optimize(graph, &Options::default()).unwrap();
        assert_eq!((&once, &report), (&again, &same_report), "seed {seed}");
        let (twice, nothing) = optimize(once.clone(), &Options::default()).unwrap();
        assert_eq!(nothing.fired, [], "seed {seed}");
        assert_eq!(once, twice, "seed {seed}");
    }
}

/// The programs that tests of all crates use: every op, dtype and pointwise row, symbolic sizes.
#[test]
fn exact_passes_change_no_bit_of_common_programs() {
    let options = Options {
        exact: true,
        verify: true,
        ..Options::default()
    };
    let mut fired_in: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..seeds() {
        let graph = fuzz::random_graph(seed);
        let (after, report) = optimize(graph.clone(), &options)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        let inputs = fuzz::random_inputs(&graph, seed);
        if let Some(text) = difference_on(&graph, &after, &inputs) {
            panic!("seed {seed}: {text}\n{report}\n{graph}\n{after}");
        }
        for (rule, _) in report.counts() {
            *fired_in.entry(rule).or_default() += 1;
        }
    }
    println!("common programs in which each rule fired: {fired_in:?}");
}

#[test]
fn all_passes_stay_near_the_exact_result_of_common_programs() {
    let mut changed = 0;
    for seed in 0..seeds() {
        let graph = fuzz::random_graph(seed);
        let (after, report) = optimize(graph.clone(), &Options::default())
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        let inexact = inexact_rules(&report);
        if inexact.is_empty() {
            continue;
        }
        let mut inputs = fuzz::random_inputs(&graph, seed);
        let finite = |a: &Array| a.to_f64().iter().all(|x| x.is_finite());
        // Folding requires finite parameters, and zero sums finite data; otherwise data may be anything.
        let ids = graph.inputs().into_iter().zip(&mut inputs);
        for (id, array) in ids {
            let parameter = matches!(&graph.node(id).op, Op::Input(i) if i.role == Role::Parameter);
            if !finite(array) && (parameter || inexact.contains(&"zero_sum")) {
                let values = array.to_f64().into_iter();
                let values: Vec<f64> = values
                    .map(|x| if x.is_finite() { x } else { 1.0 })
                    .collect();
                *array = Array::from_f64(array.dtype(), array.shape(), &values).unwrap();
            }
        }
        changed += 1;
        if let Some(text) = distance(&graph, &after, &inputs) {
            panic!("seed {seed}: {text}\n{report}\n{graph}\n{after}");
        }
    }
    println!("common programs in which an inexact rule fired: {changed}");
    assert!(changed * 20 > seeds() || seeds() < 2000);
}

/// The rules that fired and may change rounding.
fn inexact_rules(report: &Report) -> Vec<&'static str> {
    let inexact = |pass: &str| passes().iter().any(|p| p.name == pass && !p.exact);
    let fired = report.fired.iter().filter(|f| inexact(f.pass));
    fired.map(|f| f.rule).collect()
}

/// The first output at which the optimised program is much further from the f64 result than the original: by more
/// than a small multiple of the original's error plus some roundings of the narrowest dtype.
fn distance(before: &Graph, after: &Graph, inputs: &[Array]) -> Option<String> {
    let symbols = symbol_values(before, inputs).expect("each symbol is a dim of an input");
    let run = |g: &Graph, mode| evaluate(g, inputs, &symbols, mode).expect("no data errors");
    let (exact, old) = (run(before, Mode::Exact), run(before, Mode::Rounded));
    let new = run(after, Mode::Rounded);
    let facts = before.iter().flat_map(|(_, n)| &n.facts);
    let roundoffs = facts.map(|f| match f.dtype {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        DType::F32 => 2f64.powi(-24),
        _ => 0.0,
    });
    let roundoff = roundoffs.fold(2f64.powi(-53), f64::max);
    let largest = |a: &[f64], b: &[f64]| {
        let gaps = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        gaps.filter(|d| d.is_finite()).fold(0.0, f64::max)
    };
    for (i, ((exact, old), new)) in exact.iter().zip(&old).zip(&new).enumerate() {
        let (exact, old, new) = (exact.to_f64(), old.to_f64(), new.to_f64());
        let size = largest(&exact, &vec![0.0; exact.len()]).max(1.0);
        let allowed = 8.0 * largest(&exact, &old) + 32.0 * roundoff * size;
        let wrong = (exact.iter().zip(&old).zip(&new)).any(|((x, a), b)| {
            let lost = a.is_finite() && !b.is_finite();
            a != b && (lost || (x - b).abs() > allowed)
        });
        if wrong {
            return Some(format!("output {i}: {new:?}, not {exact:?} +-{allowed}"));
        }
    }
    None
}
