//! Keeps the memory of a fused plan close to that of an unfused one.
//!
//! Fusion saves temporaries. But a kernel that stores several results, or reads many values at once, can hold more
//! memory at one step than the kernels that it replaces. If that raises the peak by more than half, smaller kernels
//! are tried, and in the end none are fused.

use crate::CompileError;
use crate::error::lower_error;
use crate::lowered::Lowered;
use kiln_codegen as codegen;

/// The number of bytes of temporaries below which memory is not checked.
const WORTH: usize = 1 << 20;
/// The maximum number of operations and buffers of smaller kernels.
const SMALLER: [(usize, usize); 2] = [(48, 8), (16, 5)];

/// True if the fused plan needs more than 1.5 times the memory of the unfused one.
fn is_too_much(fused: usize, unfused: usize) -> bool {
    fused > unfused + unfused / 2
}

/// Returns the plan, or one with smaller kernels and the reason. Plans with unknown sizes stay as they are.
pub(crate) fn limit_to_unfused_memory(
    lowered: Lowered,
    options: &codegen::Options,
) -> Result<(Lowered, Option<String>), CompileError> {
    let Some(fused) = lowered.peak().filter(|p| options.fuse && *p >= WORTH) else {
        return Ok((lowered, None));
    };
    let without_fusion = codegen::Options {
        fuse: false,
        ..*options
    };
    let graph = &lowered.graph;
    let lower = codegen::live_bytes(graph, &without_fusion).map_err(|e| lower_error(graph, e))?;
    if usize::try_from(lower).is_ok_and(|lower| !is_too_much(fused, lower)) {
        return Ok((lowered, None));
    }
    let unfused = Lowered::with(graph.clone(), &without_fusion)?;
    let Some(limit) = unfused.peak().filter(|p| is_too_much(fused, *p)) else {
        return Ok((lowered, None));
    };
    let note = |text: &str| {
        Some(format!(
            "{text}: larger ones need {fused} bytes of temporaries, more than {limit} without fusion"
        ))
    };
    for (max_ops, max_buffers) in SMALLER {
        let smaller = codegen::Options {
            max_ops,
            max_buffers,
            ..*options
        };
        let candidate = Lowered::with(graph.clone(), &smaller)?;
        if candidate.peak().is_some_and(|p| !is_too_much(p, limit)) {
            let text = format!("kernels of at most {max_ops} operations and {max_buffers} buffers");
            return Ok((candidate, note(&text)));
        }
    }
    Ok((unfused, note("no fused kernels")))
}
