//! Search for an order of placing blocks that needs little memory.
//!
//! No order is best for all programs. By descending size, small blocks fill the gaps between large ones. By descending
//! lifetime, long-lived blocks do not obstruct short-lived ones. By memory pressure, the blocks that are live
//! at the peak are packed without gaps. Each of these orders is tried. Then a local search repeatedly moves a block
//! that exceeds the lower bound before one that obstructs it. It keeps moves that don't raise the peak.

use super::Lifetime;
use super::place::{Fit, Placer, in_program_order, pairs};
use std::cmp::Reverse;

/// The maximum number of pairs of simultaneously live blocks; beyond it only program order is tried.
const MAX_PAIRS: usize = 1 << 22;
/// The maximum number of pairs that the whole search visits.
const MAX_WORK: usize = 1 << 23;
/// The maximum number of moves that the local search tries.
const MAX_MOVES: usize = 600;
/// The number of consecutive moves without improvement after which the local search restarts.
const PATIENCE: usize = 150;

/// Returns the offsets of the best layout found, and its peak. `blocks` are sorted by their first step.
pub(super) fn best(blocks: &[Lifetime], lower_bound: usize) -> (Vec<usize>, usize) {
    let (offsets, peak) = in_program_order(blocks);
    if peak == lower_bound || pairs(blocks) > MAX_PAIRS {
        return (offsets, peak);
    }
    let mut search = Search {
        blocks,
        placer: Placer::new(blocks),
        lower_bound,
        offsets,
        peak,
    };
    search.run();
    (search.offsets, search.peak)
}

struct Search<'a> {
    blocks: &'a [Lifetime],
    placer: Placer<'a>,
    lower_bound: usize,
    /// The offsets of the best layout so far.
    offsets: Vec<usize>,
    peak: usize,
}

impl Search<'_> {
    fn run(&mut self) {
        let mut starts = Vec::new();
        for order in orders(self.blocks) {
            for fit in [Fit::First, Fit::Best] {
                let peak = self.placer.place(&order, fit, usize::MAX);
                let Some(peak) = peak else { continue };
                self.keep(peak);
                if self.is_done() {
                    return;
                }
                starts.push((peak, starts.len(), fit, order.clone()));
            }
        }
        starts.sort_by_key(|(peak, at, ..)| (*peak, *at));
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut moves = 0;
        for (peak, _, fit, order) in starts.into_iter().cycle() {
            self.improve(order, fit, peak, &mut random, &mut moves);
            if self.is_done() || moves >= MAX_MOVES {
                return;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.peak == self.lower_bound || self.placer.work > MAX_WORK
    }

    /// Keeps the layout of the placer if it is the best so far.
    fn keep(&mut self, peak: usize) {
        if peak < self.peak {
            self.peak = peak;
            self.offsets.clone_from(&self.placer.offsets);
        }
    }

    /// Moves to neighbours of an order while their peak is no higher, until [`PATIENCE`] moves have not lowered it.
    fn improve(
        &mut self,
        mut order: Vec<u32>,
        fit: Fit,
        mut peak: usize,
        random: &mut Random,
        moves: &mut usize,
    ) {
        self.placer.place(&order, fit, usize::MAX);
        let mut offsets = self.placer.offsets.clone();
        let mut since = 0;
        while since < PATIENCE && *moves < MAX_MOVES && !self.is_done() {
            (*moves, since) = (*moves + 1, since + 1);
            let next = self.neighbour(&order, &offsets, random);
            let Some(found) = self.placer.place(&next, fit, peak) else {
                continue;
            };
            if found < peak {
                since = 0;
            }
            (order, peak) = (next, found);
            offsets.clone_from(&self.placer.offsets);
            self.keep(peak);
        }
    }

    /// Returns a neighbour of an order: a block that exceeds the bound is moved before an obstacle, or to the front.
    fn neighbour(&self, order: &[u32], offsets: &[usize], random: &mut Random) -> Vec<u32> {
        let mut rank = vec![0; order.len()];
        for (position, i) in order.iter().enumerate() {
            rank[*i as usize] = position;
        }
        // The blocks that are live with block `i`, lie below it and were placed before it.
        let obstacles = |i: u32| -> Vec<u32> {
            let i = i as usize;
            let lower = |j: &usize| offsets[*j] < offsets[i] && rank[*j] < rank[i];
            let live_with = self.placer.live_with(i).iter().map(|j| *j as usize);
            live_with.filter(lower).map(|j| j as u32).collect()
        };
        let end = |i: u32| offsets[i as usize] + self.blocks[i as usize].size;
        let exceeding = order.iter().filter(|i| end(**i) > self.lower_bound);
        let exceeding: Vec<u32> = exceeding.copied().collect();
        let mut moved = exceeding[random.below(exceeding.len())];
        let mut below = obstacles(moved);
        // In half of the cases, an obstacle is moved instead.
        if random.below(2) == 0 && !below.is_empty() {
            let obstacle = below[random.below(below.len())];
            let nested = obstacles(obstacle);
            if !nested.is_empty() {
                (moved, below) = (obstacle, nested);
            }
        }
        let target = match below.is_empty() || random.below(4) == 0 {
            true => 0,
            false => rank[below[random.below(below.len())] as usize],
        };
        let mut next = order.to_vec();
        next[target..=rank[moved as usize]].rotate_right(1);
        next
    }
}

/// Returns the initial orders of the search.
fn orders(blocks: &[Lifetime]) -> Vec<Vec<u32>> {
    let life = |i: u32| {
        let b = &blocks[i as usize];
        b.last - b.first + 1
    };
    let size = |i: u32| blocks[i as usize].size;
    let pressure = pressure(blocks);
    let order_by = |key: &dyn Fn(u32) -> (usize, usize)| {
        let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
        order.sort_by_key(|i| (Reverse(key(*i)), *i));
        order
    };
    vec![
        order_by(&|i| (size(i), life(i))),
        order_by(&|i| (size(i).saturating_mul(life(i)), size(i))),
        order_by(&|i| (life(i), size(i))),
        order_by(&|i| (pressure[i as usize], size(i))),
        order_by(&|i| (pressure[i as usize], life(i))),
        order_by(&|i| (blocks[i as usize].last, size(i))),
        order_by(&|i| (usize::MAX - blocks[i as usize].first, size(i))),
    ]
}

/// Returns for each block the maximum number of bytes that are live at one of its steps. `blocks` are sorted by their
/// first step.
fn pressure(blocks: &[Lifetime]) -> Vec<usize> {
    // There may be many more steps than blocks; live memory peaks where a block begins.
    let mut starts: Vec<usize> = blocks.iter().map(|b| b.first).collect();
    starts.dedup();
    let mut live = vec![0usize; starts.len()];
    let span = |b: &Lifetime| {
        let start = starts.partition_point(|s| *s < b.first);
        start..starts.partition_point(|s| *s <= b.last)
    };
    for b in blocks {
        live[span(b)].iter_mut().for_each(|a| *a += b.size);
    }
    let peak = |b: &Lifetime| live[span(b)].iter().copied().max().unwrap_or(0);
    blocks.iter().map(peak).collect()
}

/// Reproducible pseudo-random numbers (Vigna's xorshift64*).
struct Random(u64);

impl Random {
    /// Returns a number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        high as usize % n.max(1)
    }
}
