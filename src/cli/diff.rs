//! `tollgate diff`: what differs between two sets of rules.

use std::process::ExitCode;

use crate::base::environment::Environment;
use crate::cli::diff::report::Report;
use crate::cli::output::{CliError, Format, print_report};
use crate::limiter;
use crate::report::change::diff;
use crate::rules::source::settings::Reading;

mod git;
mod report;
mod side;
mod text;

/// With --exit-code, of rules that differ.
const DIFFERENT: u8 = 1;

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Rules: a folder, a file, a Kubernetes manifest, git:REV:PATH, or - for stdin
    #[arg(value_name = "OLD")]
    old: String,
    /// The rules that they are compared with
    #[arg(value_name = "NEW")]
    new: String,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Exit with 1 if rules differ
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    limiter: limiter::Settings,
}

/// Prints the differences.
///
/// # Errors
/// Rules that cannot be read or are invalid.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let rules = |name| side::rules(name, &args.reading, environment);
    let differences = diff(&rules(&args.old)?, &rules(&args.new)?, args.limiter.on_store_error);
    let report = Report { differences };
    print_report(args.format, &report, text::write);
    Ok(if args.exit_code && !report.differences.is_empty() {
        DIFFERENT.into()
    } else {
        ExitCode::SUCCESS
    })
}
