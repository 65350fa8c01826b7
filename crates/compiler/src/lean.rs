//! A fused plan needs no more memory than one without fusion.
//!
//! Fusion saves temporaries, but a kernel that stores several results, or reads many values at once, can
//! hold more at one step than the kernels it is made of. Where that lifts the peak, smaller kernels are
//! tried, and in the end none are fused.

use crate::CompileError;
use crate::error::lower_error;
use crate::lowered::Lowered;
use kiln_codegen as codegen;

/// Bytes of temporaries below which memory is not looked at.
const WORTH: usize = 1 << 20;
/// The most operations and buffers of smaller kernels.
const SMALLER: [(usize, usize); 2] = [(48, 8), (16, 5)];

/// The plan, or one with smaller kernels and why it is that one. Plans of which a size is not known stay.
pub(crate) fn no_more_than_unfused(
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
    if i64::try_from(fused).is_ok_and(|fused| fused <= least) {
        return Ok((lowered, None));
    }
    let unfused = Lowered::with(graph.clone(), &plain)?;
    let Some(most) = unfused.peak().filter(|p| *p < fused) else {
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
        if found.peak().is_some_and(|p| p <= most) {
            let what = format!("kernels of at most {max_ops} operations and {max_buffers} buffers");
            return Ok((found, note(&what)));
        }
    }
    Ok((unfused, note("no fused kernels")))
}
