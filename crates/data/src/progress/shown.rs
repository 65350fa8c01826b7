//! Progress on a terminal, drawn by `indicatif`.

use super::DELAY;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const STEPS: &str =
    "{prefix}{percent:>3}% |{bar:30}| {pos}/{len} [{elapsed}<{eta}, {per_sec}{live}{msg}]";
const ENDLESS: &str = "{prefix}{pos} [{elapsed}, {per_sec}{live}{msg}]";
const BYTES: &str = "{prefix}{percent:>3}% |{bar:30}| {bytes}/{total_bytes} [{elapsed}<{eta}, {bytes_per_sec}{live}{msg}]";

#[derive(Clone)]
pub(super) struct Bar(Arc<Line>);

struct Line {
    bar: ProgressBar,
    /// The terminal to draw on once the work takes long; `None` to draw nothing.
    target: Option<fn() -> ProgressDrawTarget>,
    since: Instant,
    drawn: AtomicBool,
}

/// True if progress is not switched off and the standard error is a terminal.
fn is_visible() -> bool {
    let off = std::env::var("KILN_PROGRESS")
        .is_ok_and(|v| ["0", "off", "false", "no"].contains(&v.to_ascii_lowercase().as_str()));
    !off && stderr().is_terminal()
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Bar {
    pub(super) fn new(what: String, total: Option<u64>, bytes: bool) -> Bar {
        let target: Option<fn() -> ProgressDrawTarget> = match is_visible() {
            true => Some(ProgressDrawTarget::stderr),
            false => None,
        };
        Bar::draw_on(target, what, total, bytes)
    }

    fn draw_on(
        target: Option<fn() -> ProgressDrawTarget>,
        what: String,
        total: Option<u64>,
        bytes: bool,
    ) -> Bar {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        bar.set_style(style(match (total, bytes) {
            (Some(_), true) => BYTES,
            (Some(_), false) => STEPS,
            (None, _) => ENDLESS,
        }));
        let line = Bar(Arc::new(Line {
            bar,
            target,
            since: Instant::now(),
            drawn: AtomicBool::new(false),
        }));
        line.set_description(what);
        line
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.0.target.is_none()
    }

    /// Shows the line if the work has taken long enough.
    fn show(&self) {
        let Some(target) = self.0.target else { return };
        if self.0.since.elapsed() >= DELAY && !self.0.drawn.swap(true, Ordering::Relaxed) {
            self.0.bar.set_draw_target(target());
        }
    }

    pub(super) fn inc(&self, steps: u64) {
        self.show();
        self.0.bar.inc(steps);
    }

    pub(super) fn set(&self, done: u64, total: u64) {
        self.show();
        self.0.bar.set_length(total);
        self.0.bar.set_position(done);
    }

    pub(super) fn set_description(&self, what: String) {
        let space = if what.is_empty() { "" } else { " " };
        self.0.bar.set_prefix(what + space);
    }

    pub(super) fn set_message(&self, text: String) {
        self.show();
        let comma = if text.is_empty() { "" } else { ", " };
        self.0.bar.set_message(format!("{comma}{text}"));
    }

    pub(super) fn live(&self, text: impl Fn() -> String + Send + Sync + 'static) {
        // The text is shared, because styles are cloned.
        let text = Arc::new(text);
        let written = move |_: &ProgressState, out: &mut dyn Write| {
            // A failing write only means that the text is not shown.
            let _ = write!(out, ", {}", text());
        };
        let style = self.0.bar.style();
        self.0.bar.set_style(style.with_key("live", written));
    }

    pub(super) fn tick_every(&self, interval: Duration) {
        if let Some(target) = self.0.target {
            // Work that ticks is long by its nature, so it is shown at once.
            if !self.0.drawn.swap(true, Ordering::Relaxed) {
                self.0.bar.set_draw_target(target());
            }
            self.0.bar.enable_steady_tick(interval);
        }
    }

    pub(super) fn suspend<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.bar.suspend(f)
    }

    pub(super) fn finish(&self, clear: bool) {
        match clear {
            true => self.0.bar.finish_and_clear(),
            false => self.0.bar.abandon(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io::Result;
    use std::sync::Mutex;

    static SEEN: Mutex<String> = Mutex::new(String::new());

    /// A terminal that keeps the text written to it.
    #[derive(Debug)]
    struct Paper;

    impl TermLike for Paper {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, s: &str) -> Result<()> {
            self.write_str(&format!("{s}\n"))
        }
        fn write_str(&self, s: &str) -> Result<()> {
            SEEN.lock().unwrap().push_str(s);
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            SEEN.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_appears_once_the_work_is_long() {
        let paper: fn() -> ProgressDrawTarget =
            || ProgressDrawTarget::term_like_with_hz(Box::new(Paper), 255);
        let bar = Bar::draw_on(Some(paper), "training".into(), Some(4), false);
        bar.inc(1);
        assert_eq!(*SEEN.lock().unwrap(), "");
        std::thread::sleep(DELAY);
        bar.set_message("loss=0.5".into());
        bar.live(|| "7 measured".into());
        bar.inc(1);
        bar.finish(false);
        let seen = SEEN.lock().unwrap().clone();
        for part in ["training", " 50% |", " 2/4 [", ", 7 measured, loss=0.5]"] {
            assert!(seen.contains(part), "{seen:?}");
        }
    }

    #[test]
    fn nothing_is_drawn_where_nobody_watches() {
        let bar = Bar::draw_on(None, "x".into(), Some(1), true);
        bar.tick_every(Duration::from_millis(1));
        bar.inc(1);
        assert!(bar.is_hidden() && bar.0.bar.is_hidden());
        assert_eq!(bar.suspend(|| 7), 7);
        bar.finish(true);
    }
}
