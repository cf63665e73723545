//! `tollgate version`: the build of this binary.

use std::process::ExitCode;

use crate::cli::output::{json, print};
use crate::report::build::{BUILD, Build};

/// Arguments of `version`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// Prints the build.
pub(crate) fn run(args: &Args) -> ExitCode {
    let Build {
        version,
        commit,
        profile,
        target,
        rustc,
        ..
    } = BUILD;
    print(&if args.json {
        json(&BUILD)
    } else {
        format!("tollgate {version}, commit {commit}, {profile} build for {target} by {rustc}\n")
    });
    ExitCode::SUCCESS
}
