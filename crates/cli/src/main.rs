//! The `kiln` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    match kiln_cli::run(std::env::args_os()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("kiln: {e}");
            ExitCode::FAILURE
        }
    }
}
