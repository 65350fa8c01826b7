//! Linked programs as work.

use super::code::Instruction;
use super::linked::{Linked, Stage};
use super::run::{ProgramLaunch, run_all};
use super::walk::Walk;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failure;
use kiln_kernel::work::{Call, LinkedKernel, Program};
use std::any::Any;

impl LinkedKernel for Linked {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let (args, parallel) = (call.args, call.parallel);
        let program = self;
        let launch = ProgramLaunch {
            program,
            args,
            parallel,
        };
        run_all(&[launch], call.failures);
        Ok(None)
    }

    fn schedule(&self) -> Option<String> {
        if !self.pieces.is_empty() {
            return Some(format!("in {} pieces", self.pieces.len()));
        }
        let instructions_of = |s: &'_ Stage| -> Vec<Instruction> {
            [&s.begin, &s.body, &s.end]
                .into_iter()
                .flatten()
                .copied()
                .collect()
        };
        let instructions = self.stages.iter().flat_map(instructions_of);
        let (emitted, interpreted): (Vec<Instruction>, Vec<Instruction>) =
            instructions.partition(|c| c.is_call);
        let count = |n: usize, what: &str| match n {
            0 => None,
            1 => Some(format!("1 {what} loop")),
            n => Some(format!("{n} {what} loops")),
        };
        let counts = [
            count(emitted.len(), "emitted"),
            count(interpreted.len(), "interpreted"),
        ];
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        (!counts.is_empty()).then(|| counts.join(", "))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self)
    }
}

impl Program for Linked {
    fn is_parallel(&self) -> bool {
        self.parallel
    }

    fn never_overlap(&self, args: &[usize]) -> bool {
        let walks = self.walks.iter();
        let walks: Vec<&Walk> = walks
            .filter(|w| w.reads_memory && args.contains(&w.arg))
            .collect();
        let clear = |(i, w): (usize, &&Walk)| walks[..i].iter().all(|v| w.is_disjoint_from(v));
        walks.iter().enumerate().all(clear)
    }

    fn covers(&self, arg: usize) -> bool {
        self.covered.get(arg) == Some(&true)
    }
}
