//! Gradients of random programs: the engine, with and without rewrites and fusion, gives what the
//! reference gives.

use kiln_compiler::Options;
use kiln_conformance::programs::{AT_A_KINK, check, differentiated, plain};
use kiln_ir::fuzz::Config;

const SEEDS: u64 = 400;

#[test]
fn gradients_of_random_programs_give_what_the_reference_gives() {
    let config = Config {
        control_flow: true,
        ..Config::default()
    };
    let mut checked = 0;
    let mut wrong = Vec::new();
    for seed in 0..SEEDS {
        let Some(graph) = differentiated(config.graph(seed)) else {
            continue;
        };
        checked += 1;
        for way in [Options::default(), plain()] {
            if let Err(e) = check(&graph, seed, &[way])
                && seed != AT_A_KINK
            {
                wrong.push(format!("seed {seed}: {e}"));
            }
        }
    }
    assert!(
        checked * 2 > SEEDS,
        "only {checked} programs have gradients"
    );
    assert!(
        wrong.is_empty(),
        "{} wrong of {checked}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
