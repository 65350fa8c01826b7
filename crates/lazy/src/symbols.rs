//! The user's names of symbolic sizes, for messages.

use std::cell::RefCell;

thread_local! {
    /// The names of the symbols of the function that this thread is recording for `compile`, in order.
    static NAMES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Sets the names of the symbols of the function that is being recorded; an empty list clears them.
pub fn set(names: Vec<String>) {
    NAMES.set(names);
}

/// Returns a message with the user's names instead of `s0`, `s1`, …, while recording.
pub fn named(text: &str) -> String {
    NAMES.with_borrow(|names| replace_symbols(text, names))
}

/// Returns a message with these names instead of `s0`, `s1`, ….
pub fn replace_symbols(text: &str, names: &[String]) -> String {
    let name = |word: &str| {
        let number: usize = word.strip_prefix('s')?.parse().ok()?;
        names.get(number)
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::new();
    for part in text.split_inclusive(|c| !is_word(c)) {
        let word = part.trim_end_matches(|c| !is_word(c));
        match name(word) {
            Some(name) => out.extend([name, &part[word.len()..]]),
            None => out.push_str(part),
        }
    }
    out
}
