//! The printed tree of a module.

use crate::Module;
use std::fmt;

/// Writes PyTorch's form: the name, the module's settings, and its children indented by two.
pub(crate) fn tree(m: &dyn Module, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&text(m))
}

fn text(m: &dyn Module) -> String {
    let (name, extra, children) = (m.name(), m.extra_repr(), m.named_children());
    if children.is_empty() {
        return format!("{name}({extra})");
    }
    let mut lines: Vec<String> = extra.lines().map(str::to_string).collect();
    for (label, child) in children {
        lines.push(format!("({label}): {}", text(child)));
    }
    let body = lines.join("\n").replace('\n', "\n  ");
    format!("{name}(\n  {body}\n)")
}

/// `True` or `False`, as PyTorch prints them.
pub(crate) fn python(b: bool) -> &'static str {
    if b { "True" } else { "False" }
}

/// Formats sizes as PyTorch does: `(3, 3)`. One number is repeated `n` times.
pub(crate) fn sizes<N: ToString>(list: &[N], n: usize) -> String {
    let numbers: Vec<String> = match list {
        [one] => vec![one.to_string(); n],
        list => list.iter().map(N::to_string).collect(),
    };
    match &numbers[..] {
        [one] => format!("({one},)"),
        numbers => format!("({})", numbers.join(", ")),
    }
}

/// Formats a number as Python does: `0.1`, `1e-05`.
pub(crate) fn float(x: f64) -> String {
    let s = format!("{x:?}");
    match s.split_once("e-") {
        Some((digits, exponent)) if exponent.len() == 1 => format!("{digits}e-0{exponent}"),
        _ => s,
    }
}

/// Formats a number, or `None`.
pub(crate) fn optional(x: Option<f64>) -> String {
    x.map_or("None".to_string(), float)
}
