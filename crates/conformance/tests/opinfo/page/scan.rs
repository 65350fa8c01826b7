//! The operators that the source of Kiln's tensors defines, and those that a line of code calls.

use std::collections::BTreeSet;
use std::path::Path;

/// Where operators are defined.
const SOURCES: &[&str] = &[
    "ops",
    "autograd",
    "create.rs",
    "in_place.rs",
    "names.rs",
    "random.rs",
    "strides.rs",
    "var.rs",
];

/// Public functions, those that macros make by name included.
pub(super) fn operators(source: &Path) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for name in SOURCES {
        below(&source.join(name), &mut out);
    }
    out
}

/// Adds what a file defines, or all files of a folder.
fn below(path: &Path, out: &mut BTreeSet<String>) {
    if path.is_dir() {
        for file in std::fs::read_dir(path).unwrap() {
            below(&file.unwrap().path(), out);
        }
    } else {
        defined(&std::fs::read_to_string(path).unwrap(), out);
    }
}

/// Adds what a file defines: `pub fn name`, and in calls of macros such as `unary_methods! {` the names
/// in front of each documented line.
fn defined(text: &str, out: &mut BTreeSet<String>) {
    let (mut in_macro, mut documented) = (false, false);
    for line in text.lines() {
        in_macro = (in_macro || line.ends_with("! {")) && line != "}";
        let line = line.trim();
        let function = line.strip_prefix("pub fn ").filter(|f| !f.starts_with('$'));
        if let Some(function) = function {
            out.extend(words(function).next().map(str::to_string));
        } else if in_macro && documented && line.ends_with(';') && !line.starts_with("static ") {
            let names = line.split(' ').take_while(|w| words(w).eq([*w]));
            let names = names.filter(|w| w.starts_with(|c: char| c.is_ascii_lowercase()));
            out.extend(names.map(str::to_string));
        }
        documented = line.starts_with("///");
    }
}

/// The names that are called: in front of `(` or `::<`.
pub(super) fn calls(code: &str) -> Vec<String> {
    let called = |word: &str| {
        let behind = &code[word.as_ptr() as usize - code.as_ptr() as usize + word.len()..];
        behind.starts_with('(') || behind.starts_with("::<")
    };
    words(code)
        .filter(|w| called(w))
        .map(str::to_string)
        .collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let other = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.split(other).filter(|w| !w.is_empty())
}
