//! Other ways to run the program of a kernel, for a tuner to try.

use super::{in_place_as, print_as};
use crate::kir::Kernel;
use kiln_plan::tile::{Cut, Schedule, TileProgram};

/// A kernel that touches fewer bytes has no variants: little can be won.
const LEAST_BYTES: i64 = 1 << 18;
/// Up to so many bytes one thread may be as fast as all are.
const FEW_BYTES: i64 = 1 << 21;
/// From so many bytes of a result on, the second-level cache is too small to hold it for whoever reads it.
const LARGE_RESULT: i64 = 8 << 20;

/// Other ways to run the program of a kernel, each with a name. The kernel touches so many bytes, and its
/// largest result has so many; pairs of arguments in `in_place` may share memory in all of them.
pub(crate) fn variants(
    kernel: &Kernel,
    program: &TileProgram,
    in_place: &[(usize, usize)],
    bytes: i64,
    result: i64,
) -> Vec<(String, TileProgram)> {
    let mut all = Vec::new();
    if bytes < LEAST_BYTES {
        return all;
    }
    let turned = match program.schedule {
        Schedule::Lanes => Schedule::Rows,
        Schedule::Rows => Schedule::Lanes,
    };
    if !kernel.inner.is_empty() && !kernel.axes.is_empty() && kernel.serial == 0 {
        let may_share = in_place_as(kernel, turned);
        if in_place.iter().all(|p| may_share.contains(p)) {
            all.push(("turned".into(), print_as(kernel, turned)));
        }
    }
    let mut cut = |name: String, cut: Cut| {
        let program = TileProgram {
            cut,
            ..program.clone()
        };
        all.push((name, program));
    };
    for tile in [128, 256, 512] {
        cut(
            format!("tile_{tile}"),
            Cut {
                tile: Some(tile),
                ..Cut::default()
            },
        );
    }
    let stream = |stream| Cut {
        stream: Some(stream),
        ..Cut::default()
    };
    if result >= LARGE_RESULT {
        cut("streamed".into(), stream(true));
        cut("cached".into(), stream(false));
    }
    let parts = |parts| Cut {
        parts: Some(parts),
        ..Cut::default()
    };
    if bytes <= FEW_BYTES {
        cut("one_thread".into(), parts(0));
    }
    cut("one_part_a_thread".into(), parts(1));
    all
}
