//! Printing to a reader that may close the pipe.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;

/// Prints as `print!` does; if the reader has closed the pipe, the program ends quietly.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::write(format_args!($($text)*), "") };
}

/// The same with a newline.
macro_rules! sayln {
    ($($text:tt)*) => { $crate::say::write(format_args!($($text)*), "\n") };
}

pub(crate) use {say, sayln};

/// Writes to the standard output.
pub fn write(text: Arguments<'_>, end: &str) {
    match write!(stdout().lock(), "{text}{end}") {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => exit(0),
        Err(e) => {
            eprintln!("the output can't be written: {e}");
            exit(1)
        }
    }
}
