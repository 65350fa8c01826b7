//! Random programs, whose machine code is interpreted, give the reference's results.

use kiln_base::Features;
use kiln_compiler::{Layout, Options};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Config;
use kiln_kernel::interpreted::interpreting;
use kiln_plan::Plan;
use kiln_runtime::{Buffer, Executable};
use kiln_testkit::programs::{check_by, plain};
use kiln_testkit::rules::some_program;
use kiln_testkit::sweep::seeds;
use std::cell::Cell;

/// Runs a plan twice at a level, so that the second run finds prepared values, and checks its outputs. Returns the
/// number of calls of emitted code.
pub(super) fn run(
    plan: Plan,
    inputs: &[Array],
    level: Features,
    judge: &mut dyn FnMut(&[Array]) -> Result<(), String>,
) -> Result<usize, String> {
    let (result, calls) = interpreting(|| {
        let executable = Executable::at_level(plan, level).map_err(|e| e.to_string())?;
        (0..2).try_for_each(|_| {
            let mut inputs: Vec<Buffer> = inputs.iter().map(buffer).collect();
            let kept = vec![false; inputs.len()];
            let outputs = executable.run(&mut inputs, &kept);
            let outputs = outputs.map_err(|e| e.to_string())?;
            let outputs: Vec<Array> = outputs.iter().map(array).collect();
            judge(&outputs)
        })
    });
    result.map(|()| calls)
}

fn buffer(x: &Array) -> Buffer {
    let shape: Vec<i64> = x.shape().iter().map(|d| *d as i64).collect();
    Buffer::from_bytes(x.dtype(), &shape, &x.to_bytes()).expect("memory")
}

fn array(x: &Buffer) -> Array {
    let shape: Vec<usize> = x.shape().iter().map(|d| *d as usize).collect();
    Array::from_bytes(x.dtype(), &shape, x.bytes().expect("on the host")).expect("as many bytes")
}

/// Runs the random programs of a seed at a level, compiled in several ways. Returns the number of calls of emitted
/// code.
pub(super) fn check(seed: u64, level: Features) -> Result<usize, String> {
    let last = Options {
        layout: Layout::ChannelsLast,
        ..Options::default()
    };
    let ways = [Options::default(), plain(), last];
    let calls = Cell::new(0);
    for graph in [Config::default().graph(seed), some_program(seed)] {
        check_by(&graph, seed, &ways, &|engine, oracle| {
            let plan = engine.executable.plan().clone();
            let count = run(plan, &oracle.inputs, level, &mut |outputs| {
                let of = |at: &Option<usize>| at.map(|at| outputs[at].clone());
                let outputs: Vec<Option<Array>> = engine.outputs.iter().map(of).collect();
                oracle.check_arrays(&outputs)
            })?;
            calls.set(calls.get() + count);
            Ok(())
        })?;
    }
    Ok(calls.get())
}

#[test]
fn random_programs_that_are_interpreted_give_what_the_reference_gives() {
    all_are_right(60, &[Features::AVX2, Features::AVX512], check);
}

/// Checks `count` seeds at levels for which code is emitted.
pub(super) fn all_are_right(
    count: u64,
    levels: &[Features],
    check: impl Fn(u64, Features) -> Result<usize, String>,
) {
    let (mut wrong, mut calls) = (vec![], 0);
    for seed in seeds(count) {
        for level in levels.iter().copied() {
            match check(seed, level) {
                Ok(n) => calls += n,
                Err(e) => wrong.push(format!("seed {seed} at {level:?}: {e}")),
            }
        }
    }
    let all = wrong.join("\n");
    assert!(wrong.is_empty(), "{} wrong:\n{all}", wrong.len());
    let prints = cfg!(all(target_arch = "x86_64", not(portable), unix));
    assert!(calls > 0 || !prints, "nothing is printed");
}
