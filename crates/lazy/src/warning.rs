//! Warnings: each is given once, on standard error or to a hook of the program.

use crate::caller::user_line;
use hashbrown::HashMap;
use kiln_compiler::Reason;
use kiln_runtime::lock::lock;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

/// Takes the text of a warning; see [`set_warning_hook`].
pub type WarningHook = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
struct WarningState {
    hook: Option<WarningHook>,
    /// For each line, the number of plans that were compiled for values read there.
    compiled: Option<HashMap<(&'static str, u32, u32), u64>>,
}

static STATE: Mutex<WarningState> = Mutex::new(WarningState {
    hook: None,
    compiled: None,
});

/// The number of plans of one line at which a warning is given.
const WARNING_COUNT: u64 = 20;

fn state() -> MutexGuard<'static, WarningState> {
    lock(&STATE)
}

/// Passes warnings to `hook` instead of writing them to standard error, each once. `None` writes them again.
///
/// There are two warnings. A line that reads values has compiled many plans; the text states the last
/// difference. A scaler of gradients has skipped many steps in a row.
///
/// ```
/// use std::sync::Arc;
/// kiln_tensor::set_warning_hook(Some(Arc::new(|text| println!("{text}"))));
/// # kiln_tensor::set_warning_hook(None);
/// ```
pub fn set_warning_hook(hook: Option<WarningHook>) {
    state().hook = hook;
}

/// Gives a warning.
pub fn warn(text: &str) {
    let hook = state().hook.clone();
    match hook {
        Some(hook) => hook(text),
        None => eprintln!("kiln: {text}"),
    }
}

/// Counts the plans compiled for values read at a line.
pub fn compiled(loc: &'static Location<'static>, reason: &Reason) {
    let loc = user_line(loc);
    let mut state = state();
    let lines = state.compiled.get_or_insert_default();
    let count = lines
        .entry((loc.file(), loc.line(), loc.column()))
        .or_default();
    *count += 1;
    if *count != WARNING_COUNT {
        return;
    }
    drop(state);
    let text = format!(
        "the values read at {loc} were compiled {WARNING_COUNT} times; the last time, as plan {} of their structure, since {}",
        reason.count, reason.text
    );
    warn(&text);
}
