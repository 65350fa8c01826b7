//! Every seeded bug of schedules, and every bug that only whole programs show, is found by interpreted layers and
//! programs.

use super::{layers, programs};
use kiln_kernel::bugs::seed;
use kiln_runtime::Features;

const BUGS: [&str; 30] = [
    "the last vector has a lane too many",
    "a tap has a step too few",
    "a tap is read where the one behind it lies",
    "what is fetched ahead is read",
    "a row multiplies what the first does",
    "the next tap has the weights of the last",
    "work on sums is that of the next row",
    "a sum that waits lies where another does",
    "a tap after a line is left out too early",
    "padding multiplies the last tap",
    "a coefficient has another sign",
    "the last channel is not transformed",
    "the halo of a block is a tap short",
    "padding behind a line is not zero",
    "padding is 0 where 128 is added",
    "what was added to the left is left in sums",
    "a copy is taken for that of another block",
    "weights lie a tap further",
    "a tile reads the line of the first",
    "a depthwise filter reads beyond its line",
    "a panel misses its last column",
    "the next terms are not added",
    "two lanes of a sum are left out",
    "a piece of a concatenation begins with the first element",
    "even runs are contiguous",
    "a row of tiles has a word too few",
    "tiles multiply the first vector alone",
    "a half is widened by a bit too few",
    "a half is added twice",
    "a panel is read twice",
];

/// True if a layer or a random program gives wrong results.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn is_wrong(seed: u64) -> bool {
    let level = [Features::AVX2, Features::AVX512][seed as usize / 2 % 2];
    let check = || match seed % 4 {
        0 => programs::check(seed, level),
        2 => layers::check(seed, level),
        _ if seed % 16 == 3 => layers::check_halves(seed, Features::AMX),
        _ if seed % 16 == 11 => layers::check_halves(seed, Features::AVX512_FP16),
        _ if seed % 16 == 7 => layers::check_whole(seed, Features::AMX),
        _ => layers::check_whole(seed, Features::AVX512_VNNI),
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    !matches!(result, Ok(Ok(_)))
}

#[test]
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn bugs_of_printers_and_schedules_are_found() {
    let missed = BUGS.into_iter().filter(|bug| {
        let bug = *bug;
        // A new thread: cached results of a thread must neither predate the bug nor outlive it.
        let search = move || {
            seed(Some(bug));
            (0..600).find(|i| is_wrong(*i))
        };
        let found = std::thread::spawn(search).join().expect("ends");
        found.is_none()
    });
    let missed: Vec<&str> = missed.collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
