//! Offsets of temporary buffers in one arena.

/// A buffer that lives from the step that writes it to the last step that reads it, both inclusive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes.
    pub size: usize,
    /// First step.
    pub first: usize,
    /// Last step.
    pub last: usize,
}

/// Where each block lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Byte offset of each block, a multiple of [`ALIGN`].
    pub offsets: Vec<usize>,
    /// Bytes the arena needs.
    pub peak: usize,
    /// The most bytes that are alive at one step: no layout can need less.
    pub lower_bound: usize,
}

/// Every offset is a multiple of this many bytes.
pub const ALIGN: usize = 64;

fn aligned(size: usize) -> usize {
    size.next_multiple_of(ALIGN)
}

/// Lays out blocks so that no two that are alive together overlap.
///
/// Several greedy orders are tried (largest first, longest-lived first, program order) and the best
/// kept; each puts a block into the lowest gap among the blocks placed before it.
pub fn solve(blocks: &[Block]) -> Layout {
    let mut orders: [Vec<usize>; 3] = std::array::from_fn(|_| (0..blocks.len()).collect());
    orders[0].sort_by_key(|&i| (std::cmp::Reverse(blocks[i].size), i));
    orders[1].sort_by_key(|&i| (std::cmp::Reverse(blocks[i].last - blocks[i].first), i));
    let lower_bound = lower_bound(blocks);
    let mut best: Option<(Vec<usize>, usize)> = None;
    for order in &orders {
        let (offsets, peak) = place(blocks, order);
        if best.as_ref().is_none_or(|(_, p)| peak < *p) {
            best = Some((offsets, peak));
        }
        if peak == lower_bound {
            break;
        }
    }
    let (offsets, peak) = best.unwrap_or_default();
    Layout {
        offsets,
        peak,
        lower_bound,
    }
}

fn lower_bound(blocks: &[Block]) -> usize {
    let mut events: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * blocks.len());
    for b in blocks {
        events.push((b.first, true, aligned(b.size)));
        events.push((b.last + 1, false, aligned(b.size)));
    }
    events.sort(); // at one step, ends (false) come before starts
    let (mut live, mut most) = (0, 0);
    for (_, starts, size) in events {
        if starts {
            live += size;
            most = most.max(live);
        } else {
            live -= size;
        }
    }
    most
}

fn place(blocks: &[Block], order: &[usize]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; blocks.len()];
    let mut placed: Vec<usize> = Vec::new(); // by ascending offset
    let mut peak = 0;
    for &i in order {
        let b = &blocks[i];
        let size = aligned(b.size);
        let mut at = 0;
        for &j in &placed {
            let other = &blocks[j];
            if other.last < b.first || b.last < other.first {
                continue;
            }
            if offsets[j] >= at + size {
                break;
            }
            at = at.max(offsets[j] + aligned(other.size));
        }
        offsets[i] = at;
        peak = peak.max(at + size);
        let position = placed.partition_point(|&j| offsets[j] <= at);
        placed.insert(position, i);
    }
    (offsets, peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_never_overlap_and_reach_the_bound_on_chains() {
        let chain: Vec<Block> = (0..20)
            .map(|i| Block {
                size: 100,
                first: i,
                last: i + 1,
            })
            .collect();
        let layout = solve(&chain);
        assert_eq!(layout.peak, 256);
        assert_eq!(layout.lower_bound, 256);

        let mut state = 7u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let blocks: Vec<Block> = (0..next(30))
                .map(|_| {
                    let first = next(20) as usize;
                    Block {
                        size: next(1000) as usize,
                        first,
                        last: first + next(8) as usize,
                    }
                })
                .collect();
            let layout = solve(&blocks);
            assert!(layout.peak >= layout.lower_bound);
            for i in 0..blocks.len() {
                for j in 0..i {
                    let (a, b) = (&blocks[i], &blocks[j]);
                    let together = a.first <= b.last && b.first <= a.last;
                    let (oa, ob) = (layout.offsets[i], layout.offsets[j]);
                    let apart = oa + a.size <= ob || ob + b.size <= oa;
                    assert!(!together || apart, "{a:?} {b:?}");
                }
            }
        }
    }
}
