//! Placement of blocks one after the other.

use super::Lifetime;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The choice among the gaps that a block fits into.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest.
    First,
    /// The smallest; the lowest of several.
    Best,
}

/// Places blocks in program order: each when it becomes live, into the lowest gap between the live ones. `blocks` are
/// sorted by their first step. The time is nearly linear in the number of blocks.
pub(super) fn in_program_order(blocks: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; blocks.len()];
    let mut alive: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    let mut gaps = Gaps {
        sizes: BTreeMap::new(),
        classes: [const { BTreeSet::new() }; _],
        end: 0,
        peak: 0,
    };
    for (i, b) in blocks.iter().enumerate() {
        while let Some(&Reverse((last, dead))) = alive.peek()
            && last < b.first
        {
            alive.pop();
            gaps.free(offsets[dead], blocks[dead].size);
        }
        offsets[i] = gaps.take(b.size);
        alive.push(Reverse((b.last, i)));
    }
    (offsets, gaps.peak)
}

/// The gaps between live blocks. Beyond the last one, everything is free.
struct Gaps {
    /// The size of each gap, by offset.
    sizes: BTreeMap<usize, usize>,
    /// The offsets of the gaps of 2^i to 2^(i + 1) - 1 bytes, in set i.
    classes: [BTreeSet<usize>; usize::BITS as usize],
    /// The end of the last block.
    end: usize,
    /// The largest end so far.
    peak: usize,
}

impl Gaps {
    /// The number of gaps of a block's own class that are tried. In larger classes every gap fits.
    const TRIED: usize = 256;

    /// Allocates `size` bytes, at least 1, in the lowest gap that fits. Returns the offset.
    fn take(&mut self, size: usize) -> usize {
        let class = size.ilog2() as usize;
        let fits = self.classes[class].iter().take(Gaps::TRIED);
        let fits = fits.copied().find(|offset| self.sizes[offset] >= size);
        let larger = self.classes[class + 1..].iter();
        let larger = larger.filter_map(|offsets| offsets.first().copied());
        let Some(offset) = larger.chain(fits).min() else {
            let offset = self.end;
            self.end += size;
            self.peak = self.peak.max(self.end);
            return offset;
        };
        let gap_size = self.remove(offset);
        if gap_size > size {
            self.add(offset + size, gap_size - size);
        }
        offset
    }

    /// Frees a block, and merges its memory with adjacent gaps.
    fn free(&mut self, offset: usize, size: usize) {
        let (mut start, mut end) = (offset, offset + size);
        if let Some((&below, &gap_size)) = self.sizes.range(..offset).next_back()
            && below + gap_size == offset
        {
            self.remove(below);
            start = below;
        }
        if self.sizes.contains_key(&end) {
            end += self.remove(end);
        }
        match end == self.end {
            true => self.end = start,
            false => self.add(start, end - start),
        }
    }

    fn add(&mut self, offset: usize, size: usize) {
        self.sizes.insert(offset, size);
        self.classes[size.ilog2() as usize].insert(offset);
    }

    /// Removes a gap; returns its size.
    fn remove(&mut self, offset: usize) -> usize {
        let size = self.sizes.remove(&offset).unwrap_or_default();
        self.classes[size.ilog2() as usize].remove(&offset);
        size
    }
}

/// Returns the number of pairs of blocks that are live together. `blocks` are sorted by their first step.
pub(super) fn pairs(blocks: &[Lifetime]) -> usize {
    let mut ends: Vec<usize> = blocks.iter().map(|b| b.last).collect();
    ends.sort();
    let (mut dead, mut pairs) = (0, 0);
    for (i, b) in blocks.iter().enumerate() {
        while ends[dead] < b.first {
            dead += 1;
        }
        pairs += i - dead;
    }
    pairs
}

/// A placer of blocks.
pub(super) struct Placer<'a> {
    blocks: &'a [Lifetime],
    /// For each block, the start in `live_with` of the blocks that are live with it.
    starts: Vec<usize>,
    live_with: Vec<u32>,
    placed: Vec<bool>,
    /// Scratch: the offset and end of each placed block that is live with a block.
    occupied: Vec<(usize, usize)>,
    pub offsets: Vec<usize>,
    /// The number of pairs of blocks visited.
    pub work: usize,
}

impl<'a> Placer<'a> {
    /// Returns a placer. `blocks` are sorted by their first step.
    pub fn new(blocks: &'a [Lifetime]) -> Placer<'a> {
        let mut alive: Vec<u32> = Vec::new();
        let mut live_with: Vec<(u32, u32)> = Vec::new();
        for (i, b) in blocks.iter().enumerate() {
            alive.retain(|j| blocks[*j as usize].last >= b.first);
            live_with.extend(alive.iter().map(|j| (i as u32, *j)));
            alive.push(i as u32);
        }
        let mut from = vec![0; blocks.len() + 1];
        for (i, j) in &live_with {
            from[*i as usize + 1] += 1;
            from[*j as usize + 1] += 1;
        }
        for i in 0..blocks.len() {
            from[i + 1] += from[i];
        }
        let mut next = from.clone();
        let mut list = vec![0; 2 * live_with.len()];
        for (i, j) in live_with {
            for (of, other) in [(i, j), (j, i)] {
                list[next[of as usize]] = other;
                next[of as usize] += 1;
            }
        }
        Placer {
            blocks,
            starts: from,
            live_with: list,
            placed: vec![false; blocks.len()],
            occupied: Vec::new(),
            offsets: vec![0; blocks.len()],
            work: 0,
        }
    }

    /// Returns the other blocks that are live with a block.
    pub fn live_with(&self, i: usize) -> &[u32] {
        &self.live_with[self.starts[i]..self.starts[i + 1]]
    }

    /// Places all blocks in this order. Returns the peak, or `None` as soon as it is above `max_peak`.
    pub fn place(&mut self, order: &[u32], fit: Fit, max_peak: usize) -> Option<usize> {
        self.placed.fill(false);
        let mut peak = 0;
        for &i in order {
            let i = i as usize;
            let offset = self.gap(i, fit);
            peak = peak.max(offset + self.blocks[i].size);
            if peak > max_peak {
                return None;
            }
            self.offsets[i] = offset;
            self.placed[i] = true;
        }
        Some(peak)
    }

    /// Returns the offset of a block among those that are placed.
    fn gap(&mut self, i: usize, fit: Fit) -> usize {
        let live_with = &self.live_with[self.starts[i]..self.starts[i + 1]];
        self.work += live_with.len() + 1;
        self.occupied.clear();
        for &j in live_with {
            let j = j as usize;
            if self.placed[j] {
                let offset = self.offsets[j];
                self.occupied.push((offset, offset + self.blocks[j].size));
            }
        }
        self.work += 4 * self.occupied.len(); // sorting them costs more
        self.occupied.sort_unstable();
        let size = self.blocks[i].size;
        let mut end = 0;
        let mut best: Option<(usize, usize)> = None; // room, offset
        for &(start, stop) in &self.occupied {
            if start >= end + size && best.is_none_or(|(room, _)| start - end < room) {
                best = Some((start - end, end));
                if fit == Fit::First {
                    break;
                }
            }
            end = end.max(stop);
        }
        best.map_or(end, |(_, offset)| offset)
    }
}
