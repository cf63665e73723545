//! The binary: parse, run, and turn an error into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate::cli::run()
}
