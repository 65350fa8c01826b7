//! Random programs: the engine, with and without rewrites and fusion and at every instruction set, agrees with the
//! reference.

use crate::is_alone;
use kiln_compiler::{Layout, Options};
use kiln_ir::Op;
use kiln_ir::fuzz::Config;
use kiln_runtime::Features;
use kiln_testkit::programs::{check, plain};
use kiln_testkit::rules::{rare, some_program};
use std::collections::BTreeMap;

#[test]
fn random_programs_give_what_the_reference_gives() {
    // Levels are forced for the process, so this test re-runs itself alone.
    if !is_alone("fuzz::random_programs_give_what_the_reference_gives", &[]) {
        return;
    }
    let config = Config::default();
    let levels: Vec<Features> = Features::LEVELS
        .into_iter()
        .filter(|l| l.is_supported())
        .collect();
    let mut rules: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut wrong, mut convolutions) = (Vec::new(), 0);
    let seeds = crate::seeds(2000);
    for seed in seeds.clone() {
        Features::force(Some(levels[seed as usize % levels.len()])).unwrap();
        let graph = config.graph(seed);
        let convolves = |id| matches!(graph.node(id).op, Op::Conv(_) | Op::ConvTranspose(_));
        let mut ways = vec![Options::default(), plain()];
        if graph.ids().any(convolves) {
            convolutions += 1;
            ways.push(Options {
                layout: Layout::ChannelsLast,
                ..Options::default()
            });
        }
        let made = some_program(seed);
        for (graph, ways) in [(&graph, &ways[..]), (&made, &ways[..1])] {
            match check(graph, seed, ways) {
                Ok(fired) => fired
                    .into_iter()
                    .for_each(|rule| *rules.entry(rule).or_default() += 1),
                Err(e) => wrong.push(format!("seed {seed}: {e}")),
            }
        }
    }
    Features::force(None).unwrap();
    let programs = seeds.end - seeds.start;
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(
        convolutions * 20 >= programs,
        "{convolutions} programs convolve"
    );
    let rare = rare(&rules, programs);
    assert!(rare.is_empty(), "{rare:?}: {rules:?}");
}

#[test]
fn a_barrier_of_constants_gives_each_of_them() {
    let text = r#"graph {
  %0: f64[3] = full(value: Float(-1.25))
  %1: f64[] = full(value: Float(1.0))
  %2: (f64[3], f64[]) = barrier(detach: false) %0, %1
  %3: f64[3] = neg %2
  return %3
}"#;
    let graph = kiln_ir::Graph::parse(text).unwrap();
    check(&graph, 0, &[Options::default()]).unwrap();
}

#[test]
fn a_scatter_of_its_own_operand_behind_a_barrier_takes_no_memory_over() {
    let text = r#"graph {
  symbols s0 >= 2 "n"
  %0: f32[s0, 3] = input(index: 0, role: Data)
  %1: f32[s0, 3] = abs %0
  %2: (f32[s0, 3], f32[s0, 3]) = barrier(detach: false) %1, %0
  %3: i64[s0, 3] = input(index: 1, role: Data)
  %4: f32[s0, 3] = scatter(axis: 1, kind: Set) %1, %3, %2
  %5: f32[s0, 3] = neg %4
  return %5
}"#;
    let graph = kiln_ir::Graph::parse(text).unwrap();
    for seed in 0..4 {
        for way in [Options::default(), plain()] {
            check(&graph, seed, &[way]).unwrap();
        }
    }
}
