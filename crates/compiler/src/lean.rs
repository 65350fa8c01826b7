//! A fused plan needs hardly more memory than one without fusion.
//!
//! Fusion saves temporaries, but a kernel that stores several results, or reads many values at once, can
//! hold more at one step than the kernels it is made of. Where that lifts the peak by half, smaller kernels are
//! tried, and in the end none are fused.

use crate::CompileError;
use crate::error::lower_error;
use crate::lowered::Lowered;
use kiln_codegen as codegen;

/// Bytes of temporaries below which memory is not looked at.
const WORTH: usize = 1 << 20;
/// The most operations and buffers of smaller kernels.
const SMALLER: [(usize, usize); 2] = [(48, 8), (16, 5)];

/// Whether so much is more than fusion is worth: than half as much again.
fn is_too_much(fused: usize, unfused: usize) -> bool {
    fused > unfused + unfused / 2
}

/// The plan, or one with smaller kernels and why it is that one. Plans of which a size is not known stay.
pub(crate) fn hardly_more_than_unfused(
    lowered: Lowered,
    options: &codegen::Options,
) -> Result<(Lowered, Option<String>), CompileError> {
    let Some(fused) = lowered.peak().filter(|p| options.fuse && *p >= WORTH) else {
        return Ok((lowered, None));
    };
    let plain = codegen::Options {
        fuse: false,
        ..*options
    };
    let graph = &lowered.graph;
    let least = codegen::live_bytes(graph, &plain).map_err(|e| lower_error(graph, e))?;
    if usize::try_from(least).is_ok_and(|least| !is_too_much(fused, least)) {
        return Ok((lowered, None));
    }
    let unfused = Lowered::with(graph.clone(), &plain)?;
    let Some(most) = unfused.peak().filter(|p| is_too_much(fused, *p)) else {
        return Ok((lowered, None));
    };
    let note = |what: &str| {
        Some(format!(
            "{what}: larger ones need {fused} bytes of temporaries, more than {most} without fusion"
        ))
    };
    for (max_ops, max_buffers) in SMALLER {
        let smaller = codegen::Options {
            max_ops,
            max_buffers,
            ..*options
        };
        let found = Lowered::with(graph.clone(), &smaller)?;
        if found.peak().is_some_and(|p| !is_too_much(p, most)) {
            let what = format!("kernels of at most {max_ops} operations and {max_buffers} buffers");
            return Ok((found, note(&what)));
        }
    }
    Ok((unfused, note("no fused kernels")))
}
