//! `tollgate simulate`: what each algorithm admits of a pattern of requests.
//!
//! It counts with the memory store that serves, and passes it the time of each request: hours of
//! traffic take milliseconds, and the same command prints the same bytes everywhere.

use std::process::ExitCode;

use crate::base::environment::Environment;
use crate::base::time::Span;
use crate::cli::input;
use crate::cli::output::{CliError, Format, print_report};
use crate::cli::words::{self, Words};
use crate::limits::{Algorithm, Terms, Unit};
use crate::report::Simulation;
use crate::rules::source::settings::Reading;
use crate::what_if::simulate::compared::{Compared, Named, Options};
use crate::what_if::simulate::scene::Extent;
use crate::what_if::simulate::traffic::Pattern;

mod text;

/// The start of the help.
pub(crate) const USAGE: &str = "\
tollgate simulate [OPTIONS] [RULES] DOMAIN KEY=VALUE...
       tollgate simulate [OPTIONS] --requests NUMBER";

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[arg(value_name = "WORD", help = words::HELP, conflicts_with_all = ["requests", "unit", "unit_multiplier"])]
    words: Vec<String>,
    /// Simulate this limit instead of that of a rule: requests per period; of concurrency, requests
    /// at once
    #[arg(long, value_name = "NUMBER", required_unless_present = "words")]
    requests: Option<u32>,
    /// second, minute, hour, day, week, month or year [default: second]
    #[arg(long, value_name = "UNIT")]
    unit: Option<Unit>,
    /// Number of units of a period [default: 1]
    #[arg(long, value_name = "NUMBER")]
    unit_multiplier: Option<u32>,
    /// Algorithms side by side, separated by commas, or all [default: all; of a rule its
    /// own, and these are shown beside it]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Named::read)]
    algorithm: Vec<Named>,
    #[command(flatten)]
    options: Options,
    /// Patterns of requests: steady (at the rate of the limit), double (twice that), bursty (the
    /// requests of two periods at once around a window's edge, every second period), or a number of
    /// requests per second
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',', default_value = "bursty", value_parser = Pattern::read)]
    traffic: Vec<Pattern>,
    #[command(flatten)]
    extent: Extent,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(flatten)]
    reading: Reading,
}

/// Prints what each limit admits.
///
/// # Errors
/// Arguments that contradict each other, or invalid rules.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let compared = compared(args, environment)?;
    let hold = args.options.hold.unwrap_or(Span::ZERO);
    let scenes = args.traffic.iter().map(|&pattern| args.extent.scene(&compared, pattern, hold));
    let scenes = scenes.collect::<Result<_, _>>().map_err(CliError::Usage)?;
    let simulation = Simulation { title: compared.title, notes: compared.notes, scenes };
    print_report(args.format, &simulation, text::write);
    Ok(ExitCode::SUCCESS)
}

fn compared(args: &Args, environment: &Environment) -> Result<Compared, CliError> {
    let named = &args.algorithm;
    let options = &args.options;
    let compared = if let Some(requests) = args.requests {
        let unit = args.unit.unwrap_or(Unit::Second);
        let terms = Terms {
            unit_multiplier: args.unit_multiplier.unwrap_or(1),
            ..Terms::new(requests.into(), unit, Algorithm::FixedWindow)
        };
        Compared::of_terms(&terms, named, options)
    } else {
        let words = Words::read(&args.words)?;
        let rules = input::load(words.rules.as_ref(), &args.reading, environment)?;
        Compared::of_rule(&rules, words.domain, words.entries, named, options)
    };
    compared.map_err(CliError::Usage)
}
