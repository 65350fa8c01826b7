//! Random programs: the engine, with and without rewrites and fusion and at every instruction set,
//! gives what the reference gives.

use kiln_compiler::{Layout, Options};
use kiln_conformance::programs::{check, plain};
use kiln_conformance::rules::{rare, some_program};
use kiln_ir::Op;
use kiln_ir::fuzz::Config;
use kiln_runtime::Level;
use std::collections::BTreeMap;

/// How many seeds; `KILN_FUZZ_SEEDS` says otherwise.
fn seeds() -> u64 {
    let given = std::env::var("KILN_FUZZ_SEEDS").ok();
    given.and_then(|s| s.parse().ok()).unwrap_or(2000)
}

#[test]
fn random_programs_give_what_the_reference_gives() {
    // Levels are forced for the process, so this test re-runs itself alone.
    if std::env::var_os("KILN_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "fuzz::random_programs_give_what_the_reference_gives",
                "--exact",
                "--nocapture",
            ])
            .env("KILN_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success(), "see the output above");
        return;
    }
    let config = Config::default();
    let levels: Vec<Level> = Level::ALL
        .into_iter()
        .filter(|l| l.is_supported())
        .collect();
    let mut rules: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut wrong, mut convolutions) = (Vec::new(), 0);
    for seed in 0..seeds() {
        Level::force(Some(levels[seed as usize % levels.len()])).unwrap();
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
    Level::force(None).unwrap();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(
        convolutions * 20 >= seeds(),
        "{convolutions} programs convolve"
    );
    let rare = rare(&rules, seeds());
    assert!(rare.is_empty(), "{rare:?}: {rules:?}");
}
