//! `tollgate replay`: plays recorded traffic through rules, on the recorded clock.
//!
//! Requests are read and decided one at a time, so a file may have any length. Every set of rules that
//! is compared decides the same requests, each with its own counters.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::base::environment::Environment;
use crate::cli::deciding::Deciding;
use crate::cli::output::{Failure, print};
use crate::cli::recorded;
use crate::cli::replay::report::Report;
use crate::cli::replay::variant::{Sources, Variant};
use crate::cli::simulate::compared::Named;

mod report;
mod svg;
mod tally;
mod text;
mod timeline;
mod variant;

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// JSON lines of requests or of Envoy's access log, plain, gzip or zstd; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Directory of rules files [default: as for serve]
    #[arg(long, value_name = "DIR")]
    rules: Option<PathBuf>,
    /// Directory of other rules to show beside them; may be repeated
    #[arg(long, value_name = "DIR")]
    compare: Vec<PathBuf>,
    /// Show the rules with these algorithms beside them, separated by commas, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Named::read)]
    algorithm: Vec<Named>,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Write a picture of the requests over time
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Invalid lines that are left out; one more is an error
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    max_errors: u64,
    #[command(flatten)]
    deciding: Deciding,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Tables
    Text,
    /// All figures
    Json,
}

/// Prints what the rules do to the traffic.
///
/// # Errors
/// Invalid rules, a file that cannot be read or has too many invalid lines.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, Failure> {
    let sources = Sources {
        rules: args.rules.as_ref(),
        compare: &args.compare,
        algorithms: &args.algorithm,
    };
    let variants = variant::load(&sources, &args.deciding, environment)?;
    let report = replay(args, variants)?;
    if let Some(path) = &args.svg {
        fs::write(path, svg::write(&report))
            .with_context(|| format!("write {}", path.display()))?;
    }
    print(&match args.format {
        Format::Text => text::write(&report),
        Format::Json => report.json(),
    });
    Ok(ExitCode::SUCCESS)
}

fn replay(args: &Args, mut variants: Vec<Variant>) -> anyhow::Result<Report> {
    let played = recorded::play(&args.file, args.max_errors, |record| {
        for variant in &mut variants {
            variant.decide(record);
        }
    })?;
    for variant in &mut variants {
        variant.tally.finish();
    }
    Ok(Report {
        file: args.file.display().to_string(),
        stats: played.stats,
        times: played.times,
        variants,
    })
}
