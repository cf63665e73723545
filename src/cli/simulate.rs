//! `tollgate simulate`: a pattern of calls against limits, and what each algorithm lets through.
//!
//! It counts with the memory store that serves, and hands it the time of each call: hours of
//! traffic take milliseconds, nobody sleeps, and the same command prints the same bytes everywhere.
//! The pictures of `docs/algorithms.md` are made by it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use crate::check::HITS_MAX;
use crate::cli::check;
use crate::cli::output::{Failure, print};
use crate::cli::simulate::compared::{Compare, Compared, Named, Options};
use crate::cli::simulate::play::{Chart, Figures, Work, chart, figures, play};
use crate::cli::simulate::traffic::{Pattern, Traffic};
use crate::limit::{EXACT_MAX, Limit, OverLimitHits, Unit};
use crate::rule_source::settings::Reading;
use crate::settings::environment::Environment;
use crate::settings::parse;
use crate::time::{Span, Time};

mod compared;
mod json;
mod play;
mod svg;
mod text;
mod traffic;

/// How many calls a run has at most: a second or two of work for each algorithm.
const CALLS_MAX: u64 = 1_000_000;
/// How many calls a run has at least without --calls.
const CALLS_DEFAULT_MIN: u64 = 10_000;
/// How many periods a run lasts at least without --calls, if [`CALLS_MAX`] calls are enough for
/// that, since a run shorter than one period passes most limits; and how many a chart shows without
/// --show: few enough for a period to be ten columns.
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
    /// How many a period; of concurrency, how many at once
    #[arg(long, value_name = "NUMBER", required_unless_present = "domain")]
    requests: Option<u32>,
    /// second, minute, hour, day, week, month or year [default: second]
    #[arg(long, value_name = "UNIT", value_parser = unit)]
    unit: Option<Unit>,
    /// The period is so many units [default: 1]
    #[arg(long, value_name = "NUMBER")]
    unit_multiplier: Option<u32>,
    /// Algorithms side by side, separated by commas, or all [default: all; with DIR the rule's
    /// own, and these are shown beside it]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Named::read)]
    algorithm: Vec<Named>,
    /// How deep buckets are
    #[arg(long, value_name = "NUMBER")]
    burst: Option<u32>,
    /// Into how many sub-windows a sliding window is cut [default: none; among all algorithms
    /// there is one with 10, too]
    #[arg(long, value_name = "NUMBER")]
    buckets: Option<u32>,
    /// Whether refused calls use up quota: count or drop [default: the algorithm's]
    #[arg(long, value_name = "WORD", value_parser = over_limit_hits)]
    over_limit_hits: Option<OverLimitHits>,
    /// How long buckets may hold back a call that there is no room for yet (on_limit: queue)
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    max_wait: Option<Span>,
    /// Concurrency: after how long a place is free again that nobody gave back [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    lease: Option<Span>,
    /// How long an admitted call goes on: what it holds of a concurrency limit is given back then
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    hold: Option<Span>,
    /// How calls come, also several: steady (at the limit's rate), double (twice that), bursty
    /// (two periods' worth at once around a window's edge, every second period), or a number
    /// of calls a second
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',', default_value = "bursty", value_parser = Pattern::read)]
    traffic: Vec<Pattern>,
    /// How many calls [default: as many as six periods take, at least 10000 and at most 1000000]
    #[arg(long, value_name = "NUMBER", value_parser = calls)]
    calls: Option<u64>,
    /// Hits of each call
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=HITS_MAX))]
    hits: u64,
    /// How much of the run is drawn, from its beginning [default: six periods]
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

/// Everything that is to be told.
struct Report {
    /// What it is about, in a line.
    title: String,
    /// Worth knowing of the rule.
    notes: Vec<String>,
    scenes: Vec<Scene>,
}

/// One pattern of calls against every limit.
struct Scene {
    traffic: Traffic,
    /// How many calls there are, and of how many hits each.
    work: Work,
    /// What the figures do not show.
    note: Option<String>,
    /// From the first call to the last.
    lasted: Span,
    /// How much of it is drawn.
    shown: Span,
    /// The calls in the chart's columns.
    calls: Vec<u64>,
    runs: Vec<Run>,
}

/// What came of one limit.
struct Run {
    label: String,
    limit: Limit,
    figures: Figures,
    chart: Chart,
}

/// Prints what each limit lets through.
///
/// # Errors
/// A command line that makes no sense, rules that would be refused.
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
        Format::Json => json::write(&report),
    });
    Ok(ExitCode::SUCCESS)
}

fn compared(args: &Args, environment: &Environment) -> Result<Compared, Failure> {
    let &Args {
        burst,
        buckets,
        over_limit_hits,
        max_wait,
        lease,
        hold,
        ..
    } = args;
    let options = Options {
        burst,
        buckets,
        over_limit_hits,
        max_wait,
        lease,
        hold,
    };
    let compared = match &args.domain {
        Some(domain) => {
            let checked = check::load(args.rules.clone(), &args.reading, environment)?;
            Compared::of_rule(
                &checked.loaded.rules,
                domain,
                &args.entry,
                &args.algorithm,
                options,
            )
        }
        None => {
            let unit = args.unit.unwrap_or(Unit::Second);
            Compared::of_terms(
                args.requests.unwrap_or(0),
                unit,
                args.unit_multiplier.unwrap_or(1),
                &args.algorithm,
                options,
            )
        }
    };
    compared.map_err(Failure::Usage)
}

fn scene(args: &Args, compared: &Compared, pattern: Pattern) -> Result<Scene, Failure> {
    let traffic = Traffic::new(pattern, compared.pace, args.hits).map_err(Failure::Usage)?;
    let number = args.calls.unwrap_or_else(|| default_calls(&traffic));
    let work = Work {
        calls: number,
        hits: args.hits,
        hold: args.hold.unwrap_or(Span::ZERO),
    };
    let calls: Vec<Time> = (0..work.calls).map(|index| traffic.at(index)).collect();
    let (start, last) = (traffic.start(), traffic.at(work.calls - 1));
    if last.plus(work.hold) >= END_MAX {
        return Err(Failure::Usage(
            "these calls would go on beyond the year 2255; write fewer --calls".to_owned(),
        ));
    }
    let period = compared.pace.per;
    let shown = args.show.unwrap_or(Span::from_micros(
        period.as_micros().saturating_mul(PERIODS_DEFAULT),
    ));
    if shown == Span::ZERO {
        return Err(Failure::Usage(
            "nothing is drawn of 0 s; write a longer --show".to_owned(),
        ));
    }
    let runs = compared.limits.iter().map(|Compare { limit, book_ahead }| {
        let starts = play(limit, *book_ahead, &calls, work);
        Run {
            label: compared::label(limit),
            limit: *limit,
            figures: figures(limit, period, &calls, &starts, work),
            chart: chart(limit, (start, shown), period, &calls, &starts, work),
        }
    });
    let columns = play::columns(start, shown, calls.iter().map(|&call| (call, work.hits)));
    let (lasted, runs): (Span, Vec<Run>) = (last.since(calls[0]), runs.collect());
    Ok(Scene {
        work,
        note: note(&runs, lasted, period),
        lasted,
        shown,
        calls: columns,
        runs,
        traffic,
    })
}

/// The calls of the first [`PERIODS_DEFAULT`] periods, within the bounds.
fn default_calls(traffic: &Traffic) -> u64 {
    let end = traffic.start().plus(Span::from_micros(
        traffic.period().as_micros().saturating_mul(PERIODS_DEFAULT),
    ));
    let (mut enough, mut most) = (CALLS_DEFAULT_MIN, CALLS_MAX);
    while enough < most {
        let middle = enough.midpoint(most);
        if traffic.at(middle) < end {
            enough = middle + 1
        } else {
            most = middle
        }
    }
    enough
}

/// Says which limits were never exceeded, so that nobody takes a run that is too short or too slow
/// for a limit that lets everything pass.
fn note(runs: &[Run], lasted: Span, period: Span) -> Option<String> {
    let never: Vec<&str> = runs
        .iter()
        .filter(|run| run.figures.refused == 0 && run.figures.queued == 0)
        .map(|run| &*run.label)
        .collect();
    let mut note = match never.len() {
        0 => return None,
        all if all == runs.len() => "the limit was never exceeded".to_owned(),
        _ => format!("never exceeded: {}", never.join("; ")),
    };
    if lasted < period {
        note += &format!(
            "; the calls end within one period ({period}): write more --calls, or a faster --traffic"
        );
    }
    Some(note)
}

fn unit(name: &str) -> Result<Unit, String> {
    Unit::from_name(name)
        .ok_or_else(|| format!("write one of {}", Unit::ALL.map(Unit::name).join(", ")))
}

fn over_limit_hits(name: &str) -> Result<OverLimitHits, String> {
    OverLimitHits::from_name(name).ok_or_else(|| "write count or drop".to_owned())
}

fn calls(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(calls @ 1..=CALLS_MAX) => Ok(calls),
        _ => Err(format!("write a number from 1 to {CALLS_MAX} (calls_max)")),
    }
}
