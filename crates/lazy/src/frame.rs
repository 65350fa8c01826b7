//! Code frames: an error message under the user's source line.

use kiln_base::Loc;
use std::fmt;

/// Writes `error: title`, the source line of `loc` where its file can be read, and notes.
pub fn write(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    loc: &Loc,
    notes: &[impl fmt::Display],
) -> fmt::Result {
    write!(f, "error: {title}")?;
    let mut margin = 1;
    if loc.is_known() {
        let number = loc.line().to_string();
        margin = number.len();
        write!(f, "\n{:margin$}--> {loc}", "")?;
        if let Some(line) = source_line(loc) {
            let column = loc.column() as usize - 1;
            write!(f, "\n{:margin$} |", "")?;
            write!(f, "\n{number} | {line}")?;
            write!(
                f,
                "\n{:margin$} | {:column$}{}",
                "",
                "",
                "^".repeat(width(&line, column))
            )?;
        }
    }
    for note in notes {
        write!(f, "\n{:margin$} = {note}", "")?;
    }
    Ok(())
}

/// The number of characters to underline: those of the called name.
fn width(line: &str, column: usize) -> usize {
    line.chars()
        .skip(column)
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .count()
        .max(1)
}

/// The line of the file, which is looked for from the working directory and its parents: paths of a `Location` are
/// relative to the workspace, but tests run in the folder of their package.
fn source_line(loc: &Loc) -> Option<String> {
    let working = std::env::current_dir().ok()?;
    let text = working
        .ancestors()
        .take(4)
        .find_map(|dir| std::fs::read_to_string(dir.join(loc.file())).ok())?;
    let line = text.lines().nth(loc.line() as usize - 1)?;
    Some(line.replace('\t', " "))
}
