//! Random programs whose machine code is interpreted give what the reference gives.

use super::interpreting;
use crate::{Buffer, Executable};
use kiln_base::Level;
use kiln_compiler::{Layout, Options};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Config;
use kiln_plan::Plan;
use kiln_testkit::programs::{check_by, plain};
use kiln_testkit::rules::some_program;
use kiln_testkit::sweep::seeds;

/// Runs a plan twice at a level, so that the second run meets prepared values, and judges its outputs; gives how many
/// calls of printed code it took.
pub(super) fn run(
    plan: Plan,
    inputs: &[Array],
    level: Level,
    judge: &mut dyn FnMut(&[Array]) -> Result<(), String>,
) -> Result<usize, String> {
    let (result, calls) = interpreting(|| {
        let executable = Executable::load(plan, None, level).map_err(|e| e.to_string())?;
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

#[test]
fn random_programs_that_are_interpreted_give_what_the_reference_gives() {
    let last = Options {
        layout: Layout::ChannelsLast,
        ..Options::default()
    };
    let ways = [Options::default(), plain(), last];
    let mut wrong = vec![];
    let mut calls = 0;
    for seed in seeds(60) {
        for level in [Level::Avx2, Level::Avx512] {
            let graphs = [Config::default().graph(seed), some_program(seed)];
            for graph in graphs {
                let counted = std::cell::Cell::new(0);
                let result = check_by(&graph, seed, &ways, &|engine, oracle| {
                    let plan = engine.executable.plan().clone();
                    let calls = run(plan, &oracle.inputs, level, &mut |outputs| {
                        let of = |at: &Option<usize>| at.map(|at| outputs[at].clone());
                        oracle.check_arrays(&engine.outputs.iter().map(of).collect::<Vec<_>>())
                    })?;
                    counted.set(counted.get() + calls);
                    Ok(())
                });
                calls += counted.get();
                if let Err(e) = result {
                    wrong.push(format!("seed {seed} at {level:?}: {e}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(calls > 0, "nothing is printed");
}
