//! The `kiln` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln_cli::exit_code(kiln_cli::run(std::env::args_os()))
}
