//! Offsets of temporary buffers in one arena.

mod place;
mod plan;
mod search;

pub use plan::{Temporaries, planned, roots};

/// A buffer that lives from the step that writes it to the last step that reads it, both inclusive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The size in bytes.
    pub size: usize,
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
}

/// The layout of blocks in the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The byte offset of each block, a multiple of [`ALIGN`].
    pub offsets: Vec<usize>,
    /// The bytes that the arena needs.
    pub peak: usize,
    /// The maximum number of bytes that are live at one step: no layout can need less.
    pub lower_bound: usize,
}

/// Every offset is a multiple of this many bytes.
pub const ALIGN: usize = 64;

fn aligned(size: usize) -> usize {
    size.next_multiple_of(ALIGN)
}

/// Places blocks without overlaps of those that are live together. The same blocks in another order get the same peak.
///
/// Greedy orders are tried first, then a bounded local search from the best of them (see `search`). The search stops
/// once a layout needs only the lower bound. Its effort is counted, not timed, so a layout depends only on the blocks.
pub fn solve(blocks: &[Lifetime]) -> Layout {
    // Equal blocks keep their order: exchanging them changes nothing.
    let mut sorted: Vec<usize> = (0..blocks.len()).filter(|i| blocks[*i].size > 0).collect();
    sorted.sort_by_key(|&i| (blocks[i].first, blocks[i].last, blocks[i].size, i));
    let canonical = sorted.iter().map(|&i| Lifetime {
        size: aligned(blocks[i].size),
        ..blocks[i]
    });
    let canonical: Vec<Lifetime> = canonical.collect();
    let lower_bound = lower_bound(&canonical);
    let (placed, peak) = search::best(&canonical, lower_bound);
    let mut offsets = vec![0; blocks.len()];
    for (i, offset) in sorted.into_iter().zip(placed) {
        offsets[i] = offset;
    }
    Layout {
        offsets,
        peak,
        lower_bound,
    }
}

fn lower_bound(blocks: &[Lifetime]) -> usize {
    let mut events: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * blocks.len());
    for b in blocks {
        events.push((b.first, true, b.size));
        events.push((b.last + 1, false, b.size));
    }
    events.sort(); // at one step, ends (false) come before starts
    let (mut live, mut peak) = (0, 0);
    for (_, starts, size) in events {
        if starts {
            live += size;
            peak = peak.max(live);
        } else {
            live -= size;
        }
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
            (self.0 >> 33) as usize % n
        }

        /// Returns blocks that each begin at one of `steps` and live for less than `life`.
        fn blocks(&mut self, n: usize, steps: usize, life: usize) -> Vec<Lifetime> {
            let block = |_| {
                let first = self.below(steps);
                let last = first + self.below(life);
                let size = self.below(1000) * [1, 1, 64][self.below(3)];
                Lifetime { size, first, last }
            };
            (0..n).map(block).collect()
        }
    }

    /// Describes the first pair of blocks that are live together and overlap, or the first block that is placed wrong.
    fn fault(blocks: &[Lifetime], layout: &Layout) -> Option<String> {
        if layout.peak < layout.lower_bound {
            return Some("the peak is below the bound".into());
        }
        for (i, a) in blocks.iter().enumerate() {
            let offset = layout.offsets[i];
            if !offset.is_multiple_of(ALIGN) || (a.size > 0 && offset + a.size > layout.peak) {
                return Some(format!("{a:?} at {offset}"));
            }
            for (j, b) in blocks[..i].iter().enumerate() {
                let other = layout.offsets[j];
                let together = a.first <= b.last && b.first <= a.last;
                if together && offset < other + b.size && other < offset + a.size {
                    return Some(format!("{a:?} at {offset} and {b:?} at {other}"));
                }
            }
        }
        None
    }

    /// A layout with a deliberate error.
    type Bug = fn(&[Lifetime]) -> Layout;

    /// Returns the layout of other blocks, with the right bound.
    fn of_others(blocks: &[Lifetime], change: fn(&Lifetime) -> Lifetime) -> Layout {
        let changed: Vec<Lifetime> = blocks.iter().map(change).collect();
        Layout {
            lower_bound: solve(blocks).lower_bound,
            ..solve(&changed)
        }
    }

    const BUGS: [(&str, Bug); 6] = [
        ("the last reader is forgotten", |blocks| {
            of_others(blocks, |b| Lifetime {
                last: b.last.max(b.first + 1) - 1,
                ..*b
            })
        }),
        ("a block is there one step too late", |blocks| {
            of_others(blocks, |b| Lifetime {
                first: (b.first + 1).min(b.last),
                ..*b
            })
        }),
        ("half a block", |blocks| {
            of_others(blocks, |b| Lifetime {
                size: b.size / 2,
                ..*b
            })
        }),
        ("two blocks changed places", |blocks| {
            let mut layout = solve(blocks);
            let other = (1..blocks.len()).find(|i| blocks[*i].size != blocks[0].size);
            layout.offsets.swap(0, other.unwrap_or(0));
            layout
        }),
        ("a peak without the last block", |blocks| {
            let mut layout = solve(blocks);
            layout.peak -= ALIGN;
            layout
        }),
        ("offsets are not aligned", |blocks| {
            let mut layout = solve(blocks);
            layout.offsets.iter_mut().for_each(|o| *o += 8);
            layout.peak += ALIGN;
            layout
        }),
    ];

    #[test]
    fn broken_layouts_are_flagged() {
        for (name, bug) in BUGS {
            let mut random = Random(5);
            let flagged = (0..50).any(|_| {
                let blocks = random.blocks(12, 10, 6);
                fault(&blocks, &bug(&blocks)).is_some()
            });
            assert!(flagged, "{name}");
        }
    }

    fn alive_at(blocks: &[Lifetime], step: usize) -> usize {
        let alive = blocks.iter().filter(|b| b.first <= step && step <= b.last);
        alive.map(|b| aligned(b.size)).sum()
    }

    #[test]
    fn chains_reach_the_bound() {
        let block = |i| Lifetime {
            size: 100,
            first: i,
            last: i + 1,
        };
        let layout = solve(&(0..20).map(block).collect::<Vec<_>>());
        assert_eq!((layout.peak, layout.lower_bound), (256, 256));
        assert_eq!(solve(&[]).peak, 0);
    }

    #[test]
    fn random_blocks_never_overlap_in_any_order() {
        let mut random = Random(7);
        for case in 0..300 {
            let n = random.below(40);
            let mut blocks = random.blocks(n, 20, 9);
            let layout = solve(&blocks);
            assert_eq!(fault(&blocks, &layout), None, "case {case}");
            let bound = (0..30).map(|s| alive_at(&blocks, s)).max();
            assert_eq!(Some(layout.lower_bound), bound, "case {case}");
            for i in (1..n).rev() {
                blocks.swap(i, random.below(i + 1));
            }
            let again = solve(&blocks);
            assert_eq!(fault(&blocks, &again), None, "case {case}");
            assert_eq!(layout.peak, again.peak, "case {case}");
        }
    }

    /// Returns the minimum peak over all orders of placing blocks into the lowest gap, which is the optimum.
    fn best_peak(blocks: &[Lifetime], placed: &mut Vec<(usize, usize)>, bound: usize) -> usize {
        if placed.len() == blocks.len() {
            let end = |(i, o): &(usize, usize)| o + blocks[*i].size;
            return placed.iter().map(end).max().unwrap_or(0);
        }
        let mut best = bound;
        for (i, b) in blocks.iter().enumerate() {
            if placed.iter().any(|p| p.0 == i) {
                continue;
            }
            let live = placed.iter().filter(|(j, _)| {
                let other = &blocks[*j];
                b.first <= other.last && other.first <= b.last
            });
            let mut taken: Vec<_> = live.map(|(j, o)| (*o, o + blocks[*j].size)).collect();
            taken.sort();
            let mut o = 0;
            for (from, to) in taken {
                if from >= o + b.size {
                    break;
                }
                o = o.max(to);
            }
            if o + b.size < best {
                placed.push((i, o));
                best = best.min(best_peak(blocks, placed, best));
                placed.pop();
            }
        }
        best
    }

    #[test]
    fn small_cases_get_the_minimum_peak() {
        let mut random = Random(11);
        for case in 0..150 {
            let blocks: Vec<Lifetime> = (random.blocks(7, 6, 4).into_iter())
                .map(|b| Lifetime {
                    size: (b.size % 9 + 1) * ALIGN,
                    ..b
                })
                .collect();
            let min_peak = best_peak(&blocks, &mut Vec::new(), usize::MAX);
            assert_eq!(solve(&blocks).peak, min_peak, "case {case}: {blocks:?}");
        }
    }

    /// Each block is read once more after as many steps as there were before it.
    #[test]
    fn hundreds_of_thousands_of_live_blocks_take_little_time() {
        for n in [37_500, 75_000, 150_000, 300_000] {
            let block = |i: usize| Lifetime {
                size: 4,
                first: i,
                last: (2 * i).min(n),
            };
            let blocks: Vec<Lifetime> = (0..n).map(block).collect();
            let start = std::time::Instant::now();
            let layout = solve(&blocks);
            println!("{n}: {:?}", start.elapsed());
            assert_eq!(layout.peak, layout.lower_bound);
        }
    }

    /// Blocks like those of a training step: one value per layer lives until its gradient, others for a step.
    #[test]
    fn ten_thousand_blocks_take_little_time() {
        let mut random = Random(3);
        let layers = 2500;
        let mut blocks = Vec::new();
        for l in 0..layers {
            let mut add = |first, last| {
                let size = (random.below(64) + 1) * 4096;
                blocks.push(Lifetime { size, first, last });
            };
            add(l, 2 * layers - l);
            add(l, l + 1);
            add(2 * layers - l, 2 * layers - l + 1);
            add(2 * layers - l, 2 * layers - l + 2);
        }
        for blocks in [blocks, random.blocks(10_000, 10_000, 60)] {
            let start = std::time::Instant::now();
            let layout = solve(&blocks);
            let ratio = layout.peak as f64 / layout.lower_bound as f64;
            println!("{:?}, {ratio:.4}", start.elapsed());
            assert_eq!(fault(&blocks, &layout), None);
            assert!(ratio <= 1.05, "{ratio}");
        }
    }
}
