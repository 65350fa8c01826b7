//! Placement of blocks one after the other.

use super::Lifetime;

/// The choice among the gaps that a block fits into.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest.
    First,
    /// The smallest; the lowest of several.
    Best,
}

/// Places blocks into the lowest gap in program order: each when it becomes live, among the live ones. `blocks` are
/// sorted by their first step. The time is linear in the number of blocks that are live together.
pub(super) fn in_program_order(blocks: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; blocks.len()];
    let mut alive: Vec<usize> = Vec::new(); // by ascending offset
    let mut peak = 0;
    for (i, b) in blocks.iter().enumerate() {
        alive.retain(|j| blocks[*j].last >= b.first);
        let mut at = 0;
        let gap = alive.iter().position(|&j| {
            let fits = offsets[j] >= at + b.size;
            if !fits {
                at = offsets[j] + blocks[j].size;
            }
            fits
        });
        alive.insert(gap.unwrap_or(alive.len()), i);
        offsets[i] = at;
        peak = peak.max(at + b.size);
    }
    (offsets, peak)
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

/// A placer of blocks, which knows the blocks that are live together.
pub(super) struct Placer<'a> {
    blocks: &'a [Lifetime],
    /// The other blocks that are live with each, as a part of `list`.
    from: Vec<usize>,
    list: Vec<u32>,
    placed: Vec<bool>,
    /// Scratch: the offset and end of each placed block that is live with a block.
    occupied: Vec<(usize, usize)>,
    pub offsets: Vec<usize>,
    /// The number of pairs of blocks visited.
    pub work: usize,
}

impl<'a> Placer<'a> {
    /// Makes a placer. `blocks` are sorted by their first step.
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
            from,
            list,
            placed: vec![false; blocks.len()],
            occupied: Vec::new(),
            offsets: vec![0; blocks.len()],
            work: 0,
        }
    }

    /// Returns the other blocks that are live with a block.
    pub fn live_with(&self, i: usize) -> &[u32] {
        &self.list[self.from[i]..self.from[i + 1]]
    }

    /// Places all blocks in this order. Returns the peak, or `None` as soon as it is above `most`.
    pub fn place(&mut self, order: &[u32], fit: Fit, most: usize) -> Option<usize> {
        self.placed.fill(false);
        let mut peak = 0;
        for &i in order {
            let i = i as usize;
            let at = self.gap(i, fit);
            peak = peak.max(at + self.blocks[i].size);
            if peak > most {
                return None;
            }
            self.offsets[i] = at;
            self.placed[i] = true;
        }
        Some(peak)
    }

    /// Returns the offset of a block among those that are placed.
    fn gap(&mut self, i: usize, fit: Fit) -> usize {
        let live_with = &self.list[self.from[i]..self.from[i + 1]];
        self.work += live_with.len() + 1;
        self.occupied.clear();
        for &j in live_with {
            let j = j as usize;
            if self.placed[j] {
                let at = self.offsets[j];
                self.occupied.push((at, at + self.blocks[j].size));
            }
        }
        self.work += 4 * self.occupied.len(); // sorting them costs more
        self.occupied.sort_unstable();
        let size = self.blocks[i].size;
        let mut end = 0;
        let mut best: Option<(usize, usize)> = None; // room, offset
        for &(from, to) in &self.occupied {
            if from >= end + size && best.is_none_or(|(room, _)| from - end < room) {
                best = Some((from - end, end));
                if fit == Fit::First {
                    break;
                }
            }
            end = end.max(to);
        }
        best.map_or(end, |(_, at)| at)
    }
}
