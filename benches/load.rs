//! The load generator: asks a rate limit service as fast as it can, or at a given rate, and
//! accounts for every request.
//!
//! It shares a small machine with the server it measures, so it is one thread that speaks HTTP/2
//! with the `h2` crate, patches its requests into a template and reads of an answer no more than it
//! needs. It believes nothing it has not read: an answer counts once its code is decoded, and a
//! request that got none is named and makes the run fail.
//!
//! Without any argument it checks itself instead, which is how `cargo test --all-targets` starts
//! it.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a run's counts and times stay far below 2^53, and are printed to a few digits"
)]

mod load {
    pub mod answer;
    pub mod args;
    pub mod clock;
    pub mod draw;
    pub mod limit_check;
    pub mod link;
    pub mod process;
    pub mod report;
    pub mod request;
    pub mod run;
    pub mod schedule;
    pub mod self_check;
    pub mod tally;
}

use std::env;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::runtime::{Builder, LocalOptions};

use crate::load::args::Args;
use crate::load::{report, run, self_check};

fn main() -> ExitCode {
    if env::args_os().len() == 1 {
        self_check::run();
        println!("load: the self-check passed; --help tells what else it can do");
        return ExitCode::SUCCESS;
    }
    match measure(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the load, prints what came of it, and says whether all went well.
fn measure(args: &Args) -> anyhow::Result<bool> {
    args.validate()?;
    // One thread and no `Send`: nothing here needs a lock, and the server keeps the other core.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .context("build the runtime")?;
    let outcome = runtime.block_on(run::run(args))?;
    report::print(args, &outcome)?;
    Ok(outcome.is_clean() || args.allow_errors)
}
