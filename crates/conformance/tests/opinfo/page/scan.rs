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

/// Keywords in front of a name that is defined.
const KINDS: &[&str] = &["enum", "fn", "struct", "trait"];

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
    let (mut in_macro, mut documented, mut hidden) = (false, false, false);
    for line in text.lines() {
        in_macro = (in_macro || line.ends_with("! {")) && line != "}";
        let line = line.trim();
        let function = line.strip_prefix("pub fn ").filter(|f| !f.starts_with('$'));
        if let Some(function) = function.filter(|_| !hidden) {
            out.extend(words(function).next().map(str::to_string));
        } else if in_macro && documented && line.ends_with(';') && !line.starts_with("static ") {
            let names = line.split(' ').take_while(|w| words(w).eq([*w]));
            let names = names.filter(|w| w.starts_with(|c: char| c.is_ascii_lowercase()));
            out.extend(names.map(str::to_string));
        }
        documented = line.starts_with("///");
        hidden = line == "#[doc(hidden)]" || hidden && line.starts_with('#');
    }
}

/// Public functions and types of a file or folder.
pub(super) fn public_names(path: &Path) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    if path.is_dir() {
        for file in std::fs::read_dir(path).unwrap() {
            out.append(&mut public_names(&file.unwrap().path()));
        }
        return out;
    }
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let mut code = line.split_whitespace().skip_while(|w| *w == "pub");
        if line.trim().starts_with("pub ") && code.next().is_some_and(|w| KINDS.contains(&w)) {
            out.extend(
                code.next()
                    .and_then(|w| words(w).next())
                    .map(str::to_string),
            );
        }
    }
    out
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

/// Names in code of the text that are Rust's, PyTorch's or the page's own.
pub(super) const NOT_OURS: &[&str] = &[
    "AutoAugment",
    "CUDA_VISIBLE_DEVICES",
    "CutMix",
    "ElasticTransform",
    "KILN_UPDATE_DOCS",
    "MKL_NUM_THREADS",
    "MixUp",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RandomPerspective",
    "StepLR",
    "UPLO",
    "absolute_",
    "antialias",
    "apply_",
    "as_strided_",
    "asarray",
    "batchmean",
    "cargo",
    "conformance",
    "detach_",
    "doctor",
    "dx",
    "ext",
    "fromarray",
    "indexing",
    "kiln",
    "map_",
    "models",
    "nn",
    "opinfo",
    "out_int32",
    "page",
    "println",
    "resize_",
    "scale_grad_by_freq",
    "see",
    "set_",
    "sparse",
    "to_dot",
    "total_loss",
    "transformers",
    "trilinear",
    "valid",
];

/// The words in the code of a file or folder, without its comments.
pub(super) fn code_words(path: &Path, out: &mut BTreeSet<String>) {
    if path.is_dir() {
        for file in std::fs::read_dir(path).unwrap() {
            code_words(&file.unwrap().path(), out);
        }
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    out.extend(code.flat_map(words).map(str::to_string));
}

/// The words in backticks of the prose and of the notes, the last cells of tables; PyTorch's own paths
/// and what is not a name are left out.
pub(super) fn names_in_text(page: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut in_code = false;
    for line in page.lines() {
        in_code ^= line.starts_with("```");
        if in_code {
            continue;
        }
        let text = match line.strip_prefix('|') {
            Some(row) => row
                .trim_end_matches('|')
                .rsplit(" | ")
                .next()
                .unwrap_or(row),
            None => line,
        };
        let spans = text.split('`').skip(1).step_by(2);
        let ours = spans.filter(|s| !s.starts_with("torch") && !s.contains('/'));
        let name = |w: &&str| w.len() > 1 && !w.starts_with(|c: char| c.is_ascii_digit());
        out.extend(ours.flat_map(words).filter(name).map(str::to_string));
    }
    out
}
