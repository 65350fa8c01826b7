//! Recorded timelines.

use super::{Timeline, TimelineBlock};
use crate::Device;
use hashbrown::HashMap;
use kiln_runtime::memory::{Holder, MemoryEvent, keep_history};

/// Runs `f` and returns its result, and the timeline of the device's memory in the meantime, of all threads. Recordings
/// of one device do not nest: the inner one ends the outer.
///
/// ```
/// use kiln_tensor::{DType, Device, Tensor, memory};
/// let (sum, timeline) = memory::record(Device::Cpu, || {
///     let x = Tensor::rand([512, 512], DType::F32);
///     x.matmul(&x).sum(()).item::<f32>()
/// });
/// assert!(sum? > 0.0 && timeline.peak().1 >= 512 * 512 * 4);
/// std::fs::write(std::env::temp_dir().join("memory.html"), timeline.to_html()).unwrap();
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn record<T>(device: Device, f: impl FnOnce() -> T) -> (T, Timeline) {
    /// Ends the recording, even if `f` panics.
    struct History(Device);
    impl History {
        fn keep(&self, on: bool) -> Vec<MemoryEvent> {
            match self.0.gpu() {
                Some(gpu) => gpu.keep_history(on),
                None => keep_history(on),
            }
        }
    }
    impl Drop for History {
        fn drop(&mut self) {
            self.keep(false);
        }
    }
    let history = History(device);
    history.keep(true);
    let held_before = device.memory_holders().current;
    let value = f();
    let events = history.keep(false);
    drop(history);
    let timeline = timeline(&format!("memory of {device}"), held_before, &events);
    (value, timeline)
}

/// Returns the timeline of changes to what was held before. A step is the time after a change.
fn timeline(title: &str, before: Vec<(Holder, usize)>, events: &[MemoryEvent]) -> Timeline {
    let steps = events.len() + 1;
    let mut before: HashMap<Holder, usize> = before.into_iter().collect();
    let mut alive: HashMap<usize, (Holder, usize, usize)> = HashMap::new();
    let mut blocks = Vec::new();
    for (i, event) in events.iter().enumerate() {
        if let Some(old_holder) = event.from {
            let first = match alive.remove(&event.block) {
                Some((_, _, first)) => first,
                None => {
                    // A block from before the recording, or one that changed between its beginning and the look at
                    // the holders.
                    let bytes_left = before.entry(old_holder).or_default();
                    *bytes_left = bytes_left.saturating_sub(event.bytes);
                    0
                }
            };
            blocks.push(TimelineBlock::new(old_holder, event.bytes, first, i));
        }
        if let Some(new_holder) = event.to {
            alive.insert(event.block, (new_holder, event.bytes, i + 1));
        }
    }
    let unchanged = before.into_iter().map(|(holder, bytes)| (holder, bytes, 0));
    for (holder, bytes, first) in unchanged.chain(alive.into_values()) {
        blocks.push(TimelineBlock::new(holder, bytes, first, steps - 1));
    }
    blocks.retain(|b| b.bytes > 0);
    blocks.sort_by(|a, b| (a.first, a.last, &a.holder).cmp(&(b.first, b.last, &b.holder)));
    Timeline {
        title: title.into(),
        steps,
        blocks,
    }
}
