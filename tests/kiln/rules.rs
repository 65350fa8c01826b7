//! Every rewrite rule on the engine: programs written for a rule fire it, and agree with the reference.

use kiln_compiler::Options;
use kiln_testkit::programs::check;
use kiln_testkit::rules::{program, rules};

#[test]
fn every_rule_of_every_pass_has_a_program() {
    let missing: Vec<&str> = rules().filter(|r| program(r, 0).is_none()).collect();
    assert!(missing.is_empty(), "no program fires {missing:?}");
}

#[test]
fn each_rule_fires_and_is_right_on_the_engine() {
    for seed in 0..20 {
        check_all(seed, &Options::default());
    }
}

#[test]
fn each_rule_fires_and_is_right_on_a_gpu() {
    let gpu = crate::cuda::device().map(|_| 0);
    for seed in gpu.iter().flat_map(|_| 0..2) {
        let options = Options {
            gpu,
            ..Options::default()
        };
        check_all(seed, &options);
    }
}

/// Compiles and runs the program of every rule.
fn check_all(seed: u64, options: &Options) {
    for rule in rules() {
        let graph = program(rule, seed).expect("every rule has a program");
        let fired = check(&graph, seed, std::slice::from_ref(options));
        let fired = fired.unwrap_or_else(|e| panic!("{rule}, seed {seed}: {e}\n{graph}"));
        assert!(fired.contains(&rule), "{rule}, seed {seed}: {graph}");
    }
}
