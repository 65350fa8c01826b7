//! The ledger of a device's memory: the bytes of each holder, now and at the peak.

use super::holder::{Category, Holder};
use std::time::Instant;

/// The bytes of all storages.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The bytes in use.
    pub allocated: usize,
    /// The peak number of bytes in use, since [`reset_peak`](crate::memory::reset_peak) if it was called.
    pub peak: usize,
    /// The bytes taken from the system: in use or kept for reuse.
    pub reserved: usize,
    /// The limit on `allocated`, if one is set.
    pub limit: Option<usize>,
}

/// The bytes that are in use on a device, by holder.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The totals over all holders.
    pub stats: MemoryStats,
    /// Bytes by holder.
    by_holder: Vec<(Option<Holder>, usize)>,
    /// Bytes by holder at the peak; stale while `at_peak`.
    peak_by_holder: Vec<(Option<Holder>, usize)>,
    /// True if nothing was freed since the peak.
    at_peak: bool,
    history: Option<Vec<MemoryEvent>>,
}

/// A change of a device's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// The time.
    pub time: Instant,
    /// A number that identifies the block among live blocks.
    pub block: usize,
    /// The bytes.
    pub bytes: usize,
    /// The holder before; `None` if the block is new.
    pub from: Option<Holder>,
    /// The holder from now on; `None` if the block is freed.
    pub to: Option<Holder>,
}

/// The holders of a device's memory, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryHolders {
    /// The bytes in use now, by holder.
    pub current: Vec<(Holder, usize)>,
    /// The bytes in use at the peak, by holder.
    pub peak: Vec<(Holder, usize)>,
}

impl MemoryHolders {
    /// Returns the bytes of each category, now and at the peak, in the order of [`Category::ALL`].
    pub fn by_category(&self) -> [(Category, usize, usize); 7] {
        let total = |list: &[(Holder, usize)], category| {
            let total = list.iter().filter(|(h, _)| h.category() == category);
            total.map(|(_, bytes)| bytes).sum()
        };
        Category::ALL.map(|c| (c, total(&self.current, c), total(&self.peak, c)))
    }
}

impl Ledger {
    /// Returns an empty ledger.
    pub(super) const fn new() -> Ledger {
        Ledger {
            stats: MemoryStats {
                allocated: 0,
                peak: 0,
                reserved: 0,
                limit: None,
            },
            by_holder: Vec::new(),
            peak_by_holder: Vec::new(),
            at_peak: true,
            history: None,
        }
    }

    /// Records a new block.
    pub fn add(&mut self, bytes: usize, holder: Holder, block: usize) {
        self.stats.allocated += bytes;
        if self.stats.allocated > self.stats.peak {
            self.stats.peak = self.stats.allocated;
            self.at_peak = true;
        } else {
            self.save_peak_holders();
        }
        *self.bytes_of(holder) += bytes;
        self.record(block, bytes, None, Some(holder));
    }

    /// Records that a block is freed.
    pub fn remove(&mut self, bytes: usize, holder: Holder, block: usize) {
        self.save_peak_holders();
        self.stats.allocated -= bytes;
        *self.bytes_of(holder) -= bytes;
        self.record(block, bytes, Some(holder), None);
    }

    /// Records a change of a block's holder.
    pub fn hand_over(&mut self, bytes: usize, [from, to]: [Holder; 2], block: usize) {
        *self.bytes_of(from) -= bytes;
        *self.bytes_of(to) += bytes;
        self.record(block, bytes, Some(from), Some(to));
    }

    /// Resets the peak to the bytes in use now.
    pub fn reset_peak(&mut self) {
        self.stats.peak = self.stats.allocated;
        self.at_peak = true;
    }

    /// Returns the holders, now and at the peak.
    pub fn holders(&self) -> MemoryHolders {
        MemoryHolders {
            current: sort_by_bytes(&self.by_holder),
            peak: sort_by_bytes(match self.at_peak {
                true => &self.by_holder,
                false => &self.peak_by_holder,
            }),
        }
    }

    /// Returns the largest holders with their bytes, for error messages.
    pub fn largest(&self) -> Vec<(String, usize)> {
        let largest = sort_by_bytes(&self.by_holder).into_iter().take(5);
        largest.map(|(h, bytes)| (h.to_string(), bytes)).collect()
    }

    /// Starts or stops the history of changes; returns the recorded events.
    pub fn keep_history(&mut self, on: bool) -> Vec<MemoryEvent> {
        std::mem::replace(&mut self.history, on.then(Vec::new)).unwrap_or_default()
    }

    /// Saves the holders at the peak before the first change after it.
    fn save_peak_holders(&mut self) {
        if std::mem::take(&mut self.at_peak) {
            self.peak_by_holder.clone_from(&self.by_holder);
        }
    }

    fn bytes_of(&mut self, holder: Holder) -> &mut usize {
        let index = holder.index();
        if index >= self.by_holder.len() {
            self.by_holder.resize(index + 1, (None, 0));
        }
        self.by_holder[index].0 = Some(holder);
        &mut self.by_holder[index].1
    }

    fn record(&mut self, block: usize, bytes: usize, from: Option<Holder>, to: Option<Holder>) {
        if let Some(history) = &mut self.history {
            history.push(MemoryEvent {
                time: Instant::now(),
                block,
                bytes,
                from,
                to,
            });
        }
    }
}

fn sort_by_bytes(entries: &[(Option<Holder>, usize)]) -> Vec<(Holder, usize)> {
    let entries = entries.iter().filter(|(_, bytes)| *bytes > 0);
    let mut entries: Vec<_> = entries
        .filter_map(|(h, bytes)| Some(((*h)?, *bytes)))
        .collect();
    entries.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_add_up_to_the_totals_now_and_at_the_peak() {
        let mut ledger = Ledger::new();
        let mut random = 7u64;
        let mut blocks: Vec<(usize, Holder)> = Vec::new();
        let (mut peak, mut at_peak) = (0, Vec::new());
        let total = |list: &[(Holder, usize)]| list.iter().map(|(_, n)| n).sum::<usize>();
        for step in 0..2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let draw = (random >> 33) as usize;
            let holder = Holder::unknown(Category::ALL[draw % 7]);
            match (draw / 7 % 5, blocks.is_empty()) {
                (3, false) => {
                    let (bytes, holder) = blocks.swap_remove(draw % blocks.len());
                    ledger.remove(bytes, holder, 0);
                }
                (4, false) => {
                    let index = draw % blocks.len();
                    let (bytes, from) = blocks[index];
                    ledger.hand_over(bytes, [from, holder], 0);
                    blocks[index].1 = holder;
                }
                _ => {
                    blocks.push((draw % 1000, holder));
                    ledger.add(draw % 1000, holder, 0);
                }
            }
            if step == 1000 {
                ledger.reset_peak();
                peak = 0;
            }
            let holders = ledger.holders();
            let now: usize = blocks.iter().map(|(n, _)| n).sum();
            assert_eq!(
                (total(&holders.current), ledger.stats.allocated),
                (now, now)
            );
            if now > peak || now == peak && ledger.at_peak {
                (peak, at_peak) = (now, holders.current.clone());
            }
            assert_eq!((total(&holders.peak), ledger.stats.peak), (peak, peak));
            assert_eq!(holders.peak, at_peak);
        }
    }
}
