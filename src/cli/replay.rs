//! `tollgate replay`: plays recorded traffic through rules, on the recorded clock.
//!
//! Requests are read and decided one at a time, so a file may have any length. Every set of rules
//! that is compared decides the same requests, each with its own counters.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::base::environment::Environment;
use crate::base::time::Time;
use crate::cli::deciding::Deciding;
use crate::cli::output::{CliError, Format, print_report};
use crate::cli::recorded;
use crate::report::Replay;
use crate::what_if::replay::Variant;
use crate::what_if::simulate::compared::Named;

mod text;
mod variant;

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// JSON lines of requests or of Envoy's access log, plain, gzip or zstd; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Directory, file or manifest of rules [default: as for serve]
    #[arg(value_name = "RULES")]
    rules: Option<PathBuf>,
    /// Other rules to show beside them; may be repeated
    #[arg(long, value_name = "RULES")]
    compare: Vec<PathBuf>,
    /// Show the rules with these algorithms beside them, separated by commas, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Named::read)]
    algorithm: Vec<Named>,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Invalid lines that are left out; one more is an error
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    max_errors: u64,
    #[command(flatten)]
    deciding: Deciding,
}

/// Prints what the rules do to the traffic.
///
/// # Errors
/// Invalid rules, a file that cannot be read or has too many invalid lines.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let Args { rules, compare, algorithm, deciding, .. } = args;
    let variants = variant::load(rules.as_ref(), compare, algorithm, deciding, environment)?;
    let report = replay(args, variants)?;
    print_report(args.format, &report, text::write);
    Ok(ExitCode::SUCCESS)
}

fn replay(args: &Args, mut variants: Vec<Variant>) -> anyhow::Result<Replay> {
    let (traffic, times) = recorded::play(&args.file, args.max_errors, |record| {
        for variant in &mut variants {
            variant.decide(record);
        }
    })?;
    let requests = traffic.requests;
    let mut sets = variants.into_iter().map(|variant| variant.report(requests));
    let rules = sets.next().context("there are rules")?;
    let (first, last) = times.unzip();
    Ok(Replay {
        file: args.file.display().to_string(),
        traffic,
        first: first.map(Time::to_rfc3339),
        last: last.map(Time::to_rfc3339),
        rules,
        compared: sets.collect(),
    })
}
