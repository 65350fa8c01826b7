//! Reports of memory: who holds how much, and when.

pub mod leaks;
mod page;
mod planned;
mod recorded;

use crate::Device;
use kiln_runtime::memory::{Category, Holder, MemoryHolders};
pub use leaks::{Leak, find_leaks};
pub use recorded::record;
use std::fmt::{self, Write as _};

/// The memory of a device over the steps of a program: planned for a run
/// ([`Program::memory_timeline`](crate::run::compiled::Program::memory_timeline)), or [recorded](record).
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The subject, for titles.
    pub title: String,
    /// The number of steps: of launches, or of allocations.
    pub steps: usize,
    /// The blocks of memory.
    pub blocks: Vec<TimelineBlock>,
}

/// A block of memory and the steps in which it is held.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineBlock {
    /// The purpose.
    pub category: Category,
    /// The line of the program, or a name.
    pub holder: String,
    /// The bytes.
    pub bytes: usize,
    /// The first step that holds it.
    pub first: usize,
    /// The last step that holds it.
    pub last: usize,
}

impl TimelineBlock {
    fn new(holder: Holder, bytes: usize, first: usize, last: usize) -> TimelineBlock {
        TimelineBlock {
            category: holder.category(),
            holder: holder.to_string(),
            bytes,
            first,
            last,
        }
    }
}

impl Timeline {
    /// The bytes at each step, of the blocks that `is_counted` accepts.
    pub fn course(&self, is_counted: impl Fn(&TimelineBlock) -> bool) -> Vec<usize> {
        let mut change = vec![0isize; self.steps + 1];
        for b in self.blocks.iter().filter(|b| is_counted(b)) {
            change[b.first] += b.bytes as isize;
            change[b.last + 1] -= b.bytes as isize;
        }
        let mut now = 0;
        let course = change[..self.steps].iter().map(|n| {
            now += n;
            now as usize
        });
        course.collect()
    }

    /// Returns the first step with the maximum of bytes, and these.
    pub fn peak(&self) -> (usize, usize) {
        let course = self.course(|_| true).into_iter().enumerate();
        let peak = course.max_by_key(|(step, bytes)| (*bytes, std::cmp::Reverse(*step)));
        peak.unwrap_or_default()
    }

    /// Returns the bytes of each category at the peak, in the order of [`Category::ALL`].
    pub fn at_peak(&self) -> [(Category, usize); 7] {
        let (step, _) = self.peak();
        let alive = self
            .blocks
            .iter()
            .filter(|b| (b.first..=b.last).contains(&step));
        let mut totals = Category::ALL.map(|c| (c, 0));
        alive.for_each(|b| totals[b.category as usize].1 += b.bytes);
        totals
    }

    /// A page that needs no other file: categories over the steps, and when each of the largest holders is alive.
    pub fn to_html(&self) -> String {
        page::page(self)
    }
}

/// The peak by category.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, bytes) = self.peak();
        writeln!(
            f,
            "{}: {bytes} bytes at step {step} of {}",
            self.title, self.steps
        )?;
        let categories = self.at_peak().into_iter().filter(|(_, bytes)| *bytes > 0);
        for (category, bytes) in categories {
            writeln!(f, "{bytes:>15}  {}", category.name())?;
        }
        Ok(())
    }
}

/// The number of holders that a summary lists.
const LISTED: usize = 12;

/// See [`Device::memory_summary`].
pub fn summary(device: Device) -> String {
    let (stats, holders) = (device.memory(), device.memory_holders());
    let MemoryHolders { peak, .. } = &holders;
    // Writing to a string does not fail.
    let mut out = format!(
        "memory of {device} in bytes\n{:<12} {:>15} {:>15}\n",
        "", "now", "at the peak"
    );
    for (category, now, peak) in holders.by_category() {
        let _ = writeln!(out, "{:<12} {now:>15} {peak:>15}", category.name());
    }
    let _ = writeln!(
        out,
        "{:<12} {:>15} {:>15}",
        "total", stats.allocated, stats.peak
    );
    let _ = writeln!(
        out,
        "{:<12} {:>15}\nlargest at the peak",
        "reserved", stats.reserved
    );
    for (holder, bytes) in peak.iter().take(LISTED) {
        let _ = writeln!(
            out,
            "{bytes:>15}  {:<12} {holder}",
            holder.category().name()
        );
    }
    out
}
