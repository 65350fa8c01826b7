//! C text with its indentation.

use std::fmt::Display;

/// Lines of C.
#[derive(Default)]
pub(crate) struct Text {
    text: String,
    depth: usize,
}

impl Text {
    pub fn line(&mut self, line: impl Display) {
        self.text.extend(std::iter::repeat_n(' ', 2 * self.depth));
        self.text += &line.to_string();
        self.text.push('\n');
    }

    /// Appends a line that opens a block.
    pub fn open(&mut self, head: impl Display) {
        self.line(format!("{head} {{").trim_start());
        self.depth += 1;
    }

    /// Opens a loop over `0..n`.
    pub fn loop_to(&mut self, index: &str, n: impl Display) {
        self.open(format!(
            "for (kiln_int {index} = 0; {index} < {n}; ++{index})"
        ));
    }

    /// Opens a loop over `0..n` in blocks of `step`; `len` becomes the length of a block.
    pub fn blocks(&mut self, index: &str, n: i64, step: i64, len: &str) {
        self.open(format!(
            "for (kiln_int {index} = 0; {index} < {n}; {index} += {step})"
        ));
        self.line(format!(
            "const kiln_int {len} = {n} - {index} < {step} ? {n} - {index} : {step};"
        ));
    }

    /// Appends a line that clears an array.
    pub fn zero(&mut self, array: &str, len: impl Display) {
        self.line(format!(
            "memset({array}, 0, (size_t)({len}) * sizeof *{array});"
        ));
    }

    /// Appends a line that copies `len` elements of one array to another.
    pub fn copy(&mut self, to: &str, from: &str, len: impl Display) {
        self.line(format!(
            "memcpy({to}, {from}, (size_t)({len}) * sizeof *({to}));"
        ));
    }

    /// Appends lines that were emitted separately.
    pub fn block(&mut self, lines: &str) {
        lines.lines().for_each(|line| match line {
            "" => self.text.push('\n'),
            line => self.line(line),
        });
    }

    pub fn close(&mut self) {
        self.close_with("");
    }

    /// Closes a block, with `rest` after the brace.
    pub fn close_with(&mut self, rest: &str) {
        self.depth -= 1;
        self.line(format!("}}{rest}"));
    }

    pub fn close_all(&mut self, blocks: usize) {
        (0..blocks).for_each(|_| self.close());
    }

    pub fn into_string(self) -> String {
        self.text
    }
}

/// `offset + Σ factor · name`, without terms that are 0.
pub(crate) fn sum<'a>(offset: i64, terms: impl IntoIterator<Item = (i64, &'a str)>) -> String {
    let mut terms_text = Vec::new();
    for (factor, name) in terms {
        match (factor, name) {
            (0, _) | (_, "0") => {}
            (1, name) => terms_text.push(name.to_string()),
            (factor, name) => terms_text.push(format!("{factor} * {name}")),
        }
    }
    if offset != 0 || terms_text.is_empty() {
        terms_text.push(offset.to_string());
    }
    terms_text.join(" + ").replace("+ -", "- ")
}

/// `offset + Σ stride · name`.
pub(crate) fn affine(offset: i64, strides: &[i64], names: &[String]) -> String {
    let names = names.iter().map(|name| &name[..]);
    sum(offset, strides.iter().copied().zip(names))
}

/// The names of indices: `b0`, `b1`, … for `b`.
pub(crate) fn indices(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{name}{i}")).collect()
}

/// Turns any name into an identifier of C: letters, digits and underscores, not beginning with a digit.
pub(crate) fn identifier(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let text: String = name.chars().map(legal).collect();
    match text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => text,
        false => format!("x{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_say_what_is_there() {
        assert_eq!(sum(0, [(0, "i"), (1, "j")]), "j");
        assert_eq!(sum(-3, [(2, "i"), (-1, "j")]), "2 * i - 1 * j - 3");
        assert_eq!(sum(0, []), "0");
        assert_eq!(identifier("0.weight"), "x0_weight");
    }
}
