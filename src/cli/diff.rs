//! `tollgate diff`: what differs between two sets of rules, and which recorded requests would be
//! answered differently.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use crate::base::environment::Environment;
use crate::cli::deciding::Deciding;
use crate::cli::diff::report::Report;
use crate::cli::diff::side::{Side, forget_multipliers};
use crate::cli::output::{CliError, json, print};
use crate::cli::recorded;
use crate::report::change::diff;
use crate::report::comparison::TrafficView;
use crate::rules::RuleSet;
use crate::what_if::diff::traffic::AnswerDiff;
use crate::what_if::engine::Engine;

mod git;
mod markdown;
mod report;
mod side;
mod text;

/// With --exit-code, of rules that differ.
const DIFFERENT: u8 = 1;

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Rules: a folder, a file, a Kubernetes manifest, git:REV:PATH, the URL of a service's admin
    /// port, or - for stdin
    #[arg(value_name = "OLD")]
    old: String,
    /// The rules that they are compared with
    #[arg(value_name = "NEW")]
    new: String,
    /// Recorded requests, as for replay: which of them would be answered differently
    #[arg(long, value_name = "FILE")]
    traffic: Option<PathBuf>,
    /// Invalid lines of FILE that are left out; one more is an error
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    max_errors: u64,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Exit with 1 if rules or answers differ
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    deciding: Deciding,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs
    Json,
    /// For the comment of a pull request
    Markdown,
}

/// Prints the differences.
///
/// # Errors
/// Rules or traffic that cannot be read or are invalid.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let deciding = &args.deciding;
    let read = |name| Side::read(name, &deciding.reading, environment);
    let sides = [read(&args.old)?, read(&args.new)?];
    let is_served = sides.iter().any(Side::is_served);
    let compile = |side: &Side| -> Result<RuleSet, CliError> {
        let mut rules = side.compile(&deciding.reading, environment)?;
        if is_served {
            forget_multipliers(&mut rules);
        }
        Ok(rules)
    };
    let (old, new) = (compile(&sides[0])?, compile(&sides[1])?);
    let traffic = match &args.traffic {
        None => None,
        Some(file) => Some(compare(&sides, args, file, environment)?),
    };
    let report = Report {
        differences: diff(&old, &new, deciding.limiter.on_store_error),
        traffic,
    };
    print(&match args.format {
        Format::Text => text::write(&report),
        Format::Json => json(&report),
        Format::Markdown => markdown::write(&report),
    });
    Ok(if args.exit_code && report.is_different() {
        DIFFERENT.into()
    } else {
        ExitCode::SUCCESS
    })
}

/// Plays a file through the old and the new rules.
fn compare(
    sides: &[Side; 2],
    args: &Args,
    file: &Path,
    environment: &Environment,
) -> Result<TrafficView, CliError> {
    let engine = |side: &Side| -> Result<Engine, CliError> {
        let rules = side.compile(&args.deciding.reading_for_memory(), environment)?;
        Ok(args.deciding.engine(rules))
    };
    let mut answers = AnswerDiff::new(engine(&sides[0])?, engine(&sides[1])?);
    let played = recorded::play(file, args.max_errors, |record| answers.add(record));
    let played = played.map_err(|error| CliError::Config(format!("{error:#}")))?;
    Ok(answers.finish(played.stats.requests))
}
