//! Random programs and their gradients on the device.

use crate::{Failed, Report, Settings};
use kiln_compiler::Options;
use kiln_ir::Graph;
use kiln_ir::fuzz::{Config, coverage, features};
use kiln_testkit::programs::{check, differentiated, plain};
use kiln_testkit::rules::{rare, some_program};
use std::collections::{BTreeMap, BTreeSet};

/// Every so many programs one runs without fusion too, where each of its nodes is a kernel.
const PLAIN: u64 = 10;

/// So many programs show every rewrite.
const ENOUGH_SEEDS: u64 = 500;

/// The ways in which a program is compiled.
fn option_sets(seed: u64) -> Vec<Options> {
    let fused = Options {
        gpu: Some(0),
        ..Options::default()
    };
    let plain = Options {
        gpu: Some(0),
        ..plain()
    };
    match seed % PLAIN {
        0 => vec![fused, plain],
        _ => vec![fused],
    }
}

/// The features of programs that so many of them must have: those of which they hold ten on average.
fn wanted(seeds: u64) -> BTreeSet<String> {
    let graphs: Vec<_> = (0..ENOUGH_SEEDS)
        .map(|seed| Config::default().graph(seed))
        .collect();
    let counts = coverage(&graphs).into_iter();
    let common = counts.filter(|(_, n)| *n as u64 * seeds >= 10 * ENOUGH_SEEDS);
    common.map(|(feature, _)| feature).collect()
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let mut rules: BTreeMap<&str, u64> = BTreeMap::new();
    let mut covered: BTreeSet<String> = BTreeSet::new();
    let required = wanted(settings.seeds);
    for seed in settings.first..settings.first + settings.seeds {
        if stops(seed, settings, report) {
            break;
        }
        let graph = Config::default().graph(seed);
        covered.extend(features(&graph));
        for (kind, graph) in [("seed", graph), ("rule's program", some_program(seed))] {
            let result = run_one(&graph, seed, settings);
            for rule in result.iter().flatten() {
                *rules.entry(rule).or_default() += 1;
            }
            report.check(&format!("{kind} {seed}"), result.map(drop));
        }
    }
    // Few programs don't show everything.
    if !report.left_out.is_empty() {
        return Ok(());
    }
    if settings.seeds >= ENOUGH_SEEDS {
        for rule in rare(&rules, settings.seeds) {
            report.wrong(rule);
        }
    }
    let missing: Vec<&String> = required.difference(&covered).collect();
    if !missing.is_empty() {
        report.wrong(format!("no program has {missing:?}"));
    }
    report.note(format!(
        "{} features of programs are covered",
        covered.len()
    ));
    Ok(())
}

pub(crate) fn run_gradients(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let seeds = settings.seeds;
    let mut without = 0;
    for seed in settings.first..settings.first + seeds {
        if stops(seed, settings, report) {
            return Ok(());
        }
        let Some(graph) = differentiated(Config::default().graph(seed)) else {
            without += 1;
            continue;
        };
        let result = run_one(&graph, seed, settings).map(drop);
        report.check(&format!("seed {seed}"), result);
    }
    if without * 2 > seeds {
        report.wrong(format!("{without} of {seeds} programs have no gradients"));
    }
    Ok(())
}

/// Runs a program; of one that is wrong the message says whether the CPU's engine is too. A single program is
/// printed.
fn run_one(graph: &Graph, seed: u64, settings: &Settings) -> Result<Vec<&'static str>, String> {
    if settings.seeds == 1 {
        eprintln!("{graph}");
    }
    check(graph, seed, &option_sets(seed)).map_err(|e| {
        match check(graph, seed, &[Options::default()]) {
            Ok(_) => format!("{e}; on the CPU it is right"),
            Err(here) => format!("{e}; on the CPU {here}"),
        }
    })
}

/// True if there is no time for the program of a seed and those after it.
fn stops(seed: u64, settings: &Settings, report: &mut Report) -> bool {
    let (done, seeds) = (seed - settings.first, settings.seeds);
    if settings.is_over() {
        report.leave_out(format!("programs {done} to {seeds}"));
        return true;
    }
    if done.is_multiple_of(100) {
        eprintln!("  program {done} of {seeds}");
    }
    false
}
