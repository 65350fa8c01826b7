//! A lowered graph, with its launches and its memory plan.

use crate::error::lower_error;
use crate::place::{self, Placed};
use crate::{CompileError, Options};
use kiln_codegen::{self as codegen, Hints};
use kiln_ir::Graph;

/// The number of bytes of temporaries that do not matter on a GPU.
const HARDLY: usize = 1 << 16;

/// A lowered graph, with its memory plan.
pub(crate) struct Lowered {
    pub graph: Graph,
    pub program: codegen::Program,
    /// The launches of the program, by the candidates that are chosen.
    pub sequence: codegen::Sequence,
    pub placed: Placed,
}

impl Lowered {
    /// # Errors
    /// If an op is not supported by the engine.
    pub fn with(graph: Graph, options: &codegen::Options) -> Result<Lowered, CompileError> {
        Lowered::hinted(graph, options, &Hints::default())
    }

    /// # Errors
    /// If an op is not supported by the engine.
    pub fn hinted(
        graph: Graph,
        options: &codegen::Options,
        hints: &Hints,
    ) -> Result<Lowered, CompileError> {
        let program = codegen::lower_with(&graph, options, hints);
        let program = program.map_err(|e| lower_error(&graph, e))?;
        Lowered::chosen(graph, program)
    }

    /// # Errors
    /// If the program contradicts itself, which would be a bug.
    pub fn chosen(graph: Graph, program: codegen::Program) -> Result<Lowered, CompileError> {
        let sequence = program.sequence();
        let placed = place::place(&graph, &sequence)?;
        Ok(Lowered {
            graph,
            program,
            sequence,
            placed,
        })
    }

    /// Merges launches for a GPU, unless they then need much more memory, or fewer outputs are donated.
    pub fn merge(&mut self, options: &Options) -> Result<(), CompileError> {
        if options.gpu.is_none() || !options.fuse {
            return Ok(());
        }
        let budget = options.memory_budget.unwrap_or(usize::MAX);
        let max_peak =
            (self.peak()).map(|peak| (peak + (peak / place::MORE).max(HARDLY)).min(budget));
        let donated = |placed: &Placed| {
            let outputs = placed.plan.outputs.iter();
            outputs.filter(|o| o.donor.is_some()).count()
        };
        for near in [place::NEAR, 1, 0] {
            let groups = place::groups(&self.graph, &self.sequence, near);
            if groups.iter().all(|g| g.len() == 1) {
                break;
            }
            let sequence = codegen::merge_launches(&self.sequence, &groups);
            let placed = place::place(&self.graph, &sequence)?;
            if placed.peak() <= max_peak && donated(&placed) >= donated(&self.placed) {
                (self.sequence, self.placed) = (sequence, placed);
                break;
            }
        }
        Ok(())
    }

    /// The number of bytes of temporaries that a run needs, where sizes are known.
    pub fn peak(&self) -> Option<usize> {
        self.placed.peak()
    }
}
