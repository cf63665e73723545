//! `tollgate simulate`: what each algorithm admits of a pattern of requests.
//!
//! It counts with the memory store that serves, and passes it the time of each request: hours of
//! traffic take milliseconds, and the same command prints the same bytes everywhere. It draws the
//! pictures of `docs/algorithms.md`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use crate::base::environment::Environment;
use crate::base::parse;
use crate::check::HITS_MAX;
use crate::cli::input;
use crate::cli::output::{Failure, print};
use crate::cli::simulate::compared::{Compared, Named, Options};
use crate::cli::simulate::report::{Report, Scene};
use crate::limit::{Algorithm, EXACT_MAX, Terms, Unit};
use crate::rule_source::settings::Reading;
use crate::simulation::play::{self, Run, Work};
use crate::simulation::traffic::{Pattern, Traffic};
use crate::time::{Span, Time};

pub(crate) mod compared;
mod report;
mod svg;
mod text;

/// Maximum requests of a run: a second or two of work for each algorithm.
const CALLS_MAX: u64 = 1_000_000;
/// Minimum requests of a run without --calls.
const CALLS_DEFAULT_MIN: u64 = 10_000;
/// Minimum periods of a run without --calls, within [`CALLS_MAX`], since a run shorter than a period
/// exceeds few limits; and periods of a chart without --show, so that a period has ten columns.
const PERIODS_DEFAULT: u64 = 6;
/// Times are counted exactly below 2^53 µs, which is in the year 2255.
const END_MAX: Time = Time::from_micros(EXACT_MAX);

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// With --domain and -e: directory of rules files [default: as for serve]
    #[arg(value_name = "DIR", requires = "domain")]
    rules: Option<PathBuf>,
    /// Simulate the limit of a rule instead of --requests: the domain that Envoy's filter is
    /// configured with
    #[arg(long, value_name = "DOMAIN", requires = "entry", conflicts_with_all = ["requests", "unit", "unit_multiplier"])]
    domain: Option<String>,
    /// With --domain: one entry of the descriptor, the outermost first, with everything after the
    /// first `=` as its value
    #[arg(
        short,
        long,
        alias = "descriptor",
        value_name = "KEY=VALUE",
        requires = "domain"
    )]
    entry: Vec<String>,
    /// Requests per period; of concurrency, requests at once
    #[arg(long, value_name = "NUMBER", required_unless_present = "domain")]
    requests: Option<u32>,
    /// second, minute, hour, day, week, month or year [default: second]
    #[arg(long, value_name = "UNIT")]
    unit: Option<Unit>,
    /// Number of units of a period [default: 1]
    #[arg(long, value_name = "NUMBER")]
    unit_multiplier: Option<u32>,
    /// Algorithms side by side, separated by commas, or all [default: all; with DIR the rule's
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
    /// Number of requests [default: those of six periods, from 10000 to 1000000]
    #[arg(long, value_name = "NUMBER", value_parser = calls)]
    calls: Option<u64>,
    /// Hits of each request
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=HITS_MAX))]
    hits: u64,
    /// Time that is drawn, from the first request on [default: six periods]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    show: Option<Span>,
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// A table, and a chart of what is let through
    Text,
    /// A picture
    Svg,
    /// All figures
    Json,
}

/// Prints what each limit admits.
///
/// # Errors
/// Arguments that contradict each other, or invalid rules.
pub(crate) fn run(args: &Args, environment: &Environment) -> Result<ExitCode, Failure> {
    let compared = compared(args, environment)?;
    let scenes = args
        .traffic
        .iter()
        .map(|&pattern| scene(args, &compared, pattern))
        .collect::<Result<_, _>>()?;
    let report = Report {
        title: compared.title,
        notes: compared.notes,
        scenes,
    };
    print(&match args.format {
        Format::Text => text::write(&report),
        Format::Svg => svg::write(&report),
        Format::Json => report.json(),
    });
    Ok(ExitCode::SUCCESS)
}

fn compared(args: &Args, environment: &Environment) -> Result<Compared, Failure> {
    let (named, options) = (&args.algorithm, &args.options);
    let compared = if let Some(domain) = &args.domain {
        let rules = input::load(args.rules.as_ref(), &args.reading, environment)?;
        Compared::of_rule(&rules, domain, &args.entry, named, options)
    } else {
        let unit = args.unit.unwrap_or(Unit::Second);
        let terms = Terms {
            unit_multiplier: args.unit_multiplier.unwrap_or(1),
            ..Terms::new(args.requests.unwrap_or(0), unit, Algorithm::FixedWindow)
        };
        Compared::of_terms(&terms, named, options)
    };
    compared.map_err(Failure::Usage)
}

fn scene(args: &Args, compared: &Compared, pattern: Pattern) -> Result<Scene, Failure> {
    let period = compared.period;
    let traffic = Traffic::new(pattern, compared.requests, period, args.hits);
    let traffic = traffic.map_err(Failure::Usage)?;
    let number = args.calls.unwrap_or_else(|| default_calls(&traffic));
    let work = Work {
        calls: number,
        hits: args.hits,
        hold: args.options.hold.unwrap_or(Span::ZERO),
    };
    let calls: Vec<Time> = (0..work.calls).map(|index| traffic.at(index)).collect();
    let (start, last) = (traffic.start, traffic.at(work.calls - 1));
    if last.plus(work.hold) >= END_MAX {
        return Err(Failure::Usage(
            "these requests would last beyond the year 2255; reduce --calls".to_owned(),
        ));
    }
    let shown = args.show.unwrap_or(Span::from_micros(
        period.as_micros().saturating_mul(PERIODS_DEFAULT),
    ));
    if shown == Span::ZERO {
        return Err(Failure::Usage(
            "a time of 0 s cannot be drawn; increase --show".to_owned(),
        ));
    }
    let shown_from = (start, shown);
    let runs: Vec<Run> = compared
        .limits
        .iter()
        .map(|compare| play::run(compare, period, shown_from, &calls, work))
        .collect();
    let lasted = last.since(calls[0]);
    Ok(Scene {
        work,
        note: note(&runs, lasted, period),
        lasted,
        shown,
        calls: play::columns(shown_from, calls.iter().copied(), work.hits),
        runs,
        traffic,
    })
}

/// The requests of the first [`PERIODS_DEFAULT`] periods, within the bounds.
fn default_calls(traffic: &Traffic) -> u64 {
    let lasts = traffic.period.as_micros().saturating_mul(PERIODS_DEFAULT);
    let end = traffic.start.plus(Span::from_micros(lasts));
    let (mut enough, mut most) = (CALLS_DEFAULT_MIN, CALLS_MAX);
    while enough < most {
        let middle = enough.midpoint(most);
        if traffic.at(middle) < end {
            enough = middle + 1;
        } else {
            most = middle;
        }
    }
    enough
}

/// Which limits were never exceeded: the run may be too short or too slow for them.
fn note(runs: &[Run], lasted: Span, period: Span) -> Option<String> {
    let never: Vec<&str> = runs
        .iter()
        .filter(|run| run.refused == 0 && run.queued == 0)
        .map(|run| &*run.label)
        .collect();
    let mut note = match never.len() {
        0 => return None,
        all if all == runs.len() => "the limit was never exceeded".to_owned(),
        _ => format!("never exceeded: {}", never.join("; ")),
    };
    if lasted < period {
        note += &format!(
            "; all requests are within one period ({period}): increase --calls, or use a faster --traffic"
        );
    }
    Some(note)
}

fn calls(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(calls @ 1..=CALLS_MAX) => Ok(calls),
        _ => Err(format!("write a number from 1 to {CALLS_MAX} (calls_max)")),
    }
}
