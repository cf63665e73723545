//! The load generator: asks a rate limit service as fast as it can, or at a given rate, and
//! accounts for every request.
//!
//! It shares a small machine with the server it measures, so it is one thread that speaks HTTP/2
//! with the `h2` crate. An answer counts once its code is decoded; a request that got none is named
//! and makes the run fail.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a run's counts and times stay far below 2^53, and are printed to a few digits"
)]

mod load {
    pub mod args;
    pub mod link;
    pub mod process;
    pub mod report;
    pub mod request;
    pub mod run;
    pub mod schedule;
    pub mod tally;
}

use std::env;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use tokio::runtime::{Builder, LocalOptions};

use crate::load::args::Args;
use crate::load::{report, run};

fn main() -> anyhow::Result<ExitCode> {
    // So that `cargo test --all-targets` and a plain `cargo bench` end.
    if env::args_os().skip(1).all(|argument| argument == "--bench") {
        Args::command().print_help().context("print the help")?;
        return Ok(ExitCode::SUCCESS);
    }
    let args = Args::parse();
    args.validate()?;
    // One thread and no `Send`: nothing here needs a lock, and the server keeps the other core.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .context("build the runtime")?;
    let outcome = runtime.block_on(run::run(&args))?;
    report::print(&args, &outcome);
    Ok(if outcome.is_clean() || args.allow_errors { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
