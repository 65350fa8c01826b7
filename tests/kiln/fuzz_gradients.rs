//! Gradients of random programs: the engine, with and without rewrites and fusion, agrees with the reference.

use kiln_compiler::Options;
use kiln_ir::fuzz::Config;
use kiln_testkit::programs::{check, differentiated, plain};

#[test]
fn gradients_of_random_programs_are_those_of_the_reference() {
    let config = Config {
        control_flow: true,
        ..Config::default()
    };
    let mut checked = 0;
    let mut wrong = Vec::new();
    let seeds = crate::seeds(400);
    for seed in seeds.clone() {
        let Some(graph) = differentiated(config.graph(seed)) else {
            continue;
        };
        checked += 1;
        if seeds.end - seeds.start == 1 {
            eprintln!("{graph}");
        }
        for options in [Options::default(), plain()] {
            if let Err(e) = check(&graph, seed, &[options]) {
                wrong.push(format!("seed {seed}: {e}"));
            }
        }
    }
    assert!(
        checked * 2 >= seeds.end - seeds.start,
        "only {checked} programs have gradients"
    );
    assert!(
        wrong.is_empty(),
        "{} wrong of {checked}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
