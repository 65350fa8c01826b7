//! Progress of long work.
//!
//! With the feature `progress` a line on the standard error shows it, if that is a terminal. Without the feature,
//! with output into pipes, or if `KILN_PROGRESS` is `off`, nothing is shown. Neither is work of less than half a
//! second.

use std::fmt::Display;
use std::time::Duration;

#[cfg(feature = "progress")]
mod shown;
#[cfg(not(feature = "progress"))]
mod silent;

#[cfg(feature = "progress")]
use shown::Bar;
#[cfg(not(feature = "progress"))]
use silent::Bar;

/// The time that work takes before its line is shown.
#[cfg(feature = "progress")]
const DELAY: Duration = Duration::from_millis(500);

/// The progress of some long work: the part that is done, the rate, the remaining time, and metrics. Clones share the
/// line.
///
/// ```
/// use kiln_data::Progress;
///
/// let batches = vec![3, 1, 2];
/// let progress = Progress::new("training", batches.len() as u64);
/// for (step, batch) in progress.wrap(&batches).enumerate() {
///     let loss = f64::from(*batch) / (step + 1) as f64;
///     progress.set_postfix([("loss", loss)]);
/// }
/// progress.finish();
/// ```
#[derive(Clone)]
pub struct Progress(Bar);

impl Progress {
    /// The progress of `total` steps of work named `what`; `None` for work of unknown length.
    pub fn new(what: impl Into<String>, total: impl Into<Option<u64>>) -> Progress {
        Progress(Bar::new(what.into(), total.into(), false))
    }

    /// The progress of work on `total` bytes.
    pub fn of_bytes(what: impl Into<String>, total: impl Into<Option<u64>>) -> Progress {
        Progress(Bar::new(what.into(), total.into(), true))
    }

    /// True if nothing is ever shown, for programs that print lines instead.
    pub fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }

    /// Counts `steps` more steps as done.
    pub fn inc(&self, steps: u64) {
        self.0.inc(steps);
    }

    /// Sets the number of steps that are done, and the total.
    pub fn set(&self, done: u64, total: u64) {
        self.0.set(done, total);
    }

    /// Sets the name of the current work.
    pub fn set_description(&self, what: impl Into<String>) {
        self.0.set_description(what.into());
    }

    /// Shows metrics by name, after the rate: numbers with four significant digits, anything else as it prints.
    pub fn set_postfix<N: Display, M: Metric>(&self, metrics: impl IntoIterator<Item = (N, M)>) {
        if self.is_hidden() {
            return;
        }
        let metrics = metrics.into_iter();
        let text: Vec<String> = metrics
            .map(|(name, m)| format!("{name}={}", m.text()))
            .collect();
        self.0.set_message(text.join(", "));
    }

    /// Shows a text in place of metrics.
    pub fn set_message(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }

    /// Shows a text before the metrics, which is computed whenever the line is drawn.
    pub fn live(&self, text: impl Fn() -> String + Send + Sync + 'static) {
        self.0.live(text);
    }

    /// Redraws the line at an interval, even without progress.
    pub fn tick_every(&self, interval: Duration) {
        self.0.tick_every(interval);
    }

    /// Calls a function that prints to the terminal, and hides the line meanwhile.
    pub fn suspend<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.suspend(f)
    }

    /// An iterator that counts each item as a step when the next one is requested.
    pub fn wrap<I: IntoIterator>(&self, items: I) -> Tqdm<I::IntoIter> {
        Tqdm {
            items: items.into_iter(),
            progress: self.clone(),
            open: false,
            owned: false,
        }
    }

    /// Ends the work; the line stays.
    pub fn finish(&self) {
        self.0.finish(false);
    }

    /// Ends the work; the line is removed.
    pub fn finish_and_clear(&self) {
        self.0.finish(true);
    }
}

/// A value that [`Progress::set_postfix`] can show.
pub trait Metric {
    /// The text of the metric.
    fn text(&self) -> String;
}

macro_rules! metrics {
    ($($float:ty)*; $($other:ty)*) => {
        $(impl Metric for $float {
            fn text(&self) -> String {
                number(f64::from(*self))
            }
        })*
        $(impl Metric for $other {
            fn text(&self) -> String {
                self.to_string()
            }
        })*
    };
}
metrics!(f32 f64; i32 i64 u32 u64 usize bool String &str);

/// A number with four significant digits.
fn number(x: f64) -> String {
    let size = x.abs();
    if x == 0.0 || !x.is_finite() {
        return format!("{x}");
    }
    if !(1e-4..1e6).contains(&size) {
        return format!("{x:.3e}");
    }
    let digits = 3 - size.log10().floor() as i32;
    format!("{x:.*}", digits.max(0) as usize)
}

/// The items of `items`, such as the batches of a loader, with a progress line: tqdm's `tqdm`. To show metrics, use
/// [`Progress::wrap`].
///
/// ```
/// let sum: u64 = kiln_data::tqdm(0..100u64).sum();
/// assert_eq!(sum, 4950);
/// ```
pub fn tqdm<I: IntoIterator>(items: I) -> Tqdm<I::IntoIter> {
    let items = items.into_iter();
    let total = items.size_hint().1.map(|upper| upper as u64);
    Tqdm {
        items,
        progress: Progress::new("", total),
        open: false,
        owned: true,
    }
}

/// An iterator whose items are counted; see [`Progress::wrap`] and [`tqdm`].
pub struct Tqdm<I> {
    items: I,
    progress: Progress,
    /// True if an item was returned whose work is not counted yet.
    open: bool,
    /// True if the line ends with the iterator.
    owned: bool,
}

impl<I> Tqdm<I> {
    /// The progress line, for metrics.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl<I: Iterator> Iterator for Tqdm<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        if std::mem::take(&mut self.open) {
            self.progress.inc(1);
        }
        let item = self.items.next();
        self.open = item.is_some();
        if item.is_none() && self.owned {
            self.progress.finish();
        }
        item
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_four_digits() {
        let shown = [0.0, 1.0, -0.012344, 123456.7, 1e7, 1.5e-7, f64::NAN, 99.996];
        let text: Vec<String> = shown.iter().map(Metric::text).collect();
        let wanted = [
            "0", "1.000", "-0.01234", "123457", "1.000e7", "1.500e-7", "NaN", "100.00",
        ];
        assert_eq!(text, wanted);
        assert_eq!("x".text(), "x");
    }

    #[test]
    fn items_are_counted_when_their_work_is_done() {
        let progress = Progress::new("", 3);
        let mut items = progress.wrap(0..3);
        assert_eq!(items.size_hint(), (3, Some(3)));
        assert_eq!((items.next(), items.next()), (Some(0), Some(1)));
        assert_eq!(items.by_ref().count(), 1);
        assert_eq!(items.next(), None);
    }
}
