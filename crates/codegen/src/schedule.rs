//! The division of work among threads, as data.

use kiln_plan::tile::TileSizes;
use kiln_plan::{Decision, schedule};
use std::fmt;

/// The property that distinguishes a candidate for some work from the others, on either engine. Its text is its name in
/// explanations and in the tuner's store.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// The engine's own choice, or the only one.
    Default,
    /// A tile program with other tile sizes.
    Tiles(TileSizes),
    /// A tile program whose tiles run along the other axes.
    OtherAxis,
    /// An algorithm of the CPU engine, several that are chosen from by size, or one of a family of kernels.
    Algorithm(Decision),
    /// A further kernel of a user's operator.
    Custom(String),
    /// This many neighbouring elements per thread.
    Elements(u32),
    /// Tiles transposed in shared memory: threads read along one axis and write along another.
    Transposed,
    /// Rows that several threads share.
    Rows {
        /// The number of threads of a row.
        threads: u32,
        /// True if later loops recompute values that could have been kept.
        again: bool,
    },
    /// Tiles of a contraction's result on a GPU.
    Gpu(schedule::Gpu),
    /// A thread per element of a contraction's result.
    Sums,
    /// An algorithm of a library, such as `cublaslt 13.0.2 #1`.
    Library(String),
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Default => f.write_str("default"),
            Schedule::Tiles(sizes) => write_sizes(sizes, f),
            Schedule::OtherAxis => f.write_str("turned"),
            Schedule::Algorithm(algorithm) => algorithm.fmt(f),
            Schedule::Custom(name) | Schedule::Library(name) => f.write_str(name),
            Schedule::Elements(1) => f.write_str("an element a thread"),
            Schedule::Elements(n) => write!(f, "{n} elements a thread"),
            Schedule::Transposed => f.write_str("transposed tiles"),
            Schedule::Rows { threads, again } => {
                match threads {
                    1 => f.write_str("a thread per row")?,
                    n => write!(f, "{n} threads a row")?,
                }
                f.write_str(if *again { ", values read again" } else { "" })
            }
            Schedule::Gpu(schedule) => schedule.fmt(f),
            Schedule::Sums => f.write_str("a thread per element"),
        }
    }
}

fn write_sizes(sizes: &TileSizes, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let TileSizes {
        tile,
        stream,
        parts,
    } = sizes;
    let stream = stream.map(|s| if s { "streamed" } else { "cached" });
    let parts = parts.map(|n| match n {
        0 => "one_thread".to_string(),
        1 => "one_part_a_thread".to_string(),
        n => format!("{n}_parts_a_thread"),
    });
    let tile = tile.map(|n| format!("tile_{n}"));
    let words = [tile, stream.map(String::from), parts];
    let words: Vec<String> = words.into_iter().flatten().collect();
    f.write_str(&words.join(" "))
}
