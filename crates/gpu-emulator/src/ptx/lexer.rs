//! Splits a text into tokens. Words keep their dots (`ld.global.v4.u32`, `%tid.x`, `shared::cta`); every other token
//! is one character.

use super::SyntaxError;

/// One token and the line it stands on, counted from 1.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Token<'a> {
    pub text: &'a str,
    pub line: u32,
}

impl Token<'_> {
    /// True if the token is a name, number, opcode or directive.
    pub fn is_word(&self) -> bool {
        self.text.bytes().next().is_some_and(is_word_byte)
    }
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'%' | b'.')
}

/// The tokens of `source`, without its comments.
pub(crate) fn tokenize(source: &str) -> Result<Vec<Token<'_>>, SyntaxError> {
    let bytes = source.as_bytes();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1u32);
    let error = |line, why: &str| SyntaxError {
        line,
        why: why.into(),
    };
    let token = |range: std::ops::Range<usize>, line| Token {
        text: &source[range],
        line,
    };
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b if b.is_ascii_whitespace() => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += source[at..].find('\n').unwrap_or(source.len() - at);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let length = source[at..].find("*/");
                let length = length.ok_or_else(|| error(line, "a comment does not end"))?;
                line += source[at..at + length].matches('\n').count() as u32;
                at += length + 2;
            }
            b'"' => {
                let length = source[at + 1..].find('"');
                at += 2 + length.ok_or_else(|| error(line, "a string does not end"))?;
                tokens.push(token(start..at, line));
            }
            b if is_word_byte(b) => {
                at = word_end(bytes, at);
                tokens.push(token(start..at, line));
            }
            b if b.is_ascii() => {
                at += 1;
                tokens.push(token(start..at, line));
            }
            _ => return Err(error(line, "a character outside ASCII")),
        }
    }
    Ok(tokens)
}

/// The end of the word at `at`. `::` belongs to a word; a single `:` ends it. A second dot ends a word that begins
/// with a dot (`.reg.b32`).
fn word_end(bytes: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    loop {
        match bytes.get(end) {
            Some(b'.') if bytes[start] == b'.' => return end,
            Some(&b) if is_word_byte(b) => end += 1,
            Some(b':')
                if bytes.get(end + 1) == Some(&b':')
                    && bytes.get(end + 2).is_some_and(|&b| is_word_byte(b)) =>
            {
                end += 2
            }
            _ => return end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_dots_and_double_colons() {
        let tokens =
            tokenize("$L1: @!%p1 ld.shared::cta.u32 %r1, [%rd2+-4]; // end\n/* a\nb */ x").unwrap();
        let texts: Vec<_> = tokens.iter().map(|t| t.text).collect();
        assert_eq!(
            texts,
            [
                "$L1",
                ":",
                "@",
                "!",
                "%p1",
                "ld.shared::cta.u32",
                "%r1",
                ",",
                "[",
                "%rd2",
                "+",
                "-",
                "4",
                "]",
                ";",
                "x"
            ]
        );
        assert_eq!(tokens.last().unwrap().line, 3);
    }
}
