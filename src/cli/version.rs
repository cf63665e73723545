//! `tollgate version`: the build of this binary.

use std::process::ExitCode;

use crate::cli::output::{json, print};
use crate::report::build::BUILD;

/// Arguments of `version`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Print version, commit, compiler and target as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the version.
pub(crate) fn run(args: &Args) -> ExitCode {
    print(&if args.json { json(&BUILD) } else { format!("tollgate {}\n", BUILD.versions()) });
    ExitCode::SUCCESS
}
