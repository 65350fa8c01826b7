//! Other schedules of the program of a kernel, for a tuner to try.

use super::inst::emit;
use super::stages::in_place_with;
use crate::Schedule;
use crate::kir::Kernel;
use kiln_plan::tile::{self, TileProgram, TileSizes};

/// The minimum number of bytes of a kernel that is worth tuning.
const MIN_BYTES: i64 = 1 << 18;
/// The maximum number of bytes for which one thread may be as fast as all.
const MAX_ONE_THREAD_BYTES: i64 = 1 << 21;
/// The minimum number of bytes of a result that does not fit into the second-level cache.
const MIN_LARGE_RESULT: i64 = 8 << 20;

/// Returns other schedules of the program of a kernel that touches `bytes` bytes, with a largest result of `result`
/// bytes. In all of them, pairs of arguments in `in_place` may alias.
pub(crate) fn variants(
    kernel: &Kernel,
    program: &TileProgram,
    in_place: &[(usize, usize)],
    bytes: i64,
    result: i64,
) -> Vec<(Schedule, TileProgram)> {
    let mut variants = Vec::new();
    if bytes < MIN_BYTES {
        return variants;
    }
    let other_schedule = match program.schedule {
        tile::Schedule::Lanes => tile::Schedule::Rows,
        tile::Schedule::Rows => tile::Schedule::Lanes,
    };
    if !kernel.inner.is_empty() && !kernel.axes.is_empty() && kernel.serial == 0 {
        let may_alias = in_place_with(kernel, other_schedule);
        if in_place.iter().all(|p| may_alias.contains(p)) {
            variants.push((Schedule::OtherAxis, emit(kernel, other_schedule)));
        }
    }
    let (mut all_sizes, default) = (Vec::new(), TileSizes::default());
    all_sizes.extend([128, 256, 512].map(|tile| TileSizes {
        tile: Some(tile),
        ..default
    }));
    if result >= MIN_LARGE_RESULT {
        all_sizes.extend([true, false].map(|stream| TileSizes {
            stream: Some(stream),
            ..default
        }));
    }
    let threads = if bytes <= MAX_ONE_THREAD_BYTES {
        &[0, 1][..]
    } else {
        &[1]
    };
    all_sizes.extend(threads.iter().map(|parts| TileSizes {
        parts: Some(*parts),
        ..default
    }));
    variants.extend(all_sizes.into_iter().map(|sizes| {
        let program = TileProgram {
            sizes,
            ..program.clone()
        };
        (Schedule::Tiles(sizes), program)
    }));
    variants
}
