//! A pattern of requests against several limits.

use crate::base::parse;
use crate::base::time::{Span, Time};
use crate::limits::EXACT_MAX;
use crate::limits::check::HITS_MAX;
use crate::report::{CallChart, Run, Scene};
use crate::what_if::simulate::compared::Compared;
use crate::what_if::simulate::play::{self, Work};
use crate::what_if::simulate::traffic::{Pattern, Traffic};

/// Maximum requests of a run: a second or two of work for each algorithm.
const CALLS_MAX: u64 = 1_000_000;
/// Minimum requests of a run without --calls.
const CALLS_DEFAULT_MIN: u64 = 10_000;
/// Minimum periods of a run without --calls, within [`CALLS_MAX`], since a run shorter than a
/// period exceeds few limits; and periods of a chart without --show, so that a period has ten
/// columns.
const PERIODS_DEFAULT: u64 = 6;
/// Times are counted exactly below 2^53 µs, which is in the year 2255.
const END_MAX: Time = Time::from_micros(EXACT_MAX);

/// How much is played, and how much of it is drawn.
#[derive(Debug, Clone, Copy, clap::Args)]
#[group(skip)]
pub(crate) struct Extent {
    /// Number of requests [default: those of six periods, from 10000 to 1000000]
    #[arg(long, value_name = "NUMBER", value_parser = calls)]
    calls: Option<u64>,
    /// Hits of each request
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=HITS_MAX))]
    hits: u64,
    /// Time that is drawn, from the first request on [default: six periods]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    show: Option<Span>,
}

impl Extent {
    /// Plays a pattern to every limit. `hold` is how long an admitted request goes on.
    ///
    /// # Errors
    /// A pattern without a rate, times that are too long or too short.
    pub(crate) fn scene(
        &self,
        compared: &Compared,
        pattern: Pattern,
        hold: Span,
    ) -> Result<Scene, String> {
        let period = compared.period;
        let traffic = Traffic::new(pattern, compared.requests, period, self.hits)?;
        let number = self.calls.unwrap_or_else(|| default_calls(&traffic));
        let work = Work { hits: self.hits, hold };
        let calls: Vec<Time> = (0..number).map(|index| traffic.at(index)).collect();
        let start = traffic.start;
        let last = traffic.at(number - 1);
        if last.plus(work.hold) >= END_MAX {
            return Err("these requests would last beyond the year 2255; reduce --calls".to_owned());
        }
        let shown = self
            .show
            .unwrap_or(Span::from_micros(period.as_micros().saturating_mul(PERIODS_DEFAULT)));
        if shown == Span::ZERO {
            return Err("a time of 0 s cannot be drawn; increase --show".to_owned());
        }
        let shown_from = (start, shown);
        let runs: Vec<Run> = compared
            .limits
            .iter()
            .map(|compare| play::run(compare, period, shown_from, &calls, work))
            .collect();
        let lasted = last.since(calls[0]);
        Ok(Scene {
            pattern: pattern.to_string(),
            traffic: traffic.to_string(),
            calls: number,
            hits: work.hits,
            period,
            note: note(&runs, lasted, period),
            lasted,
            chart: CallChart { shown, hits: play::columns(shown_from, &calls, work.hits) },
            runs,
        })
    }
}

/// The requests of the first [`PERIODS_DEFAULT`] periods, within the bounds.
fn default_calls(traffic: &Traffic) -> u64 {
    let lasts = traffic.period.as_micros().saturating_mul(PERIODS_DEFAULT);
    let end = traffic.start.plus(Span::from_micros(lasts));
    let mut enough = CALLS_DEFAULT_MIN;
    let mut most = CALLS_MAX;
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

/// Which limits were over limit for no call: the run may be too short or too slow for them.
fn note(runs: &[Run], lasted: Span, period: Span) -> Option<String> {
    let never: Vec<&str> = runs
        .iter()
        .filter(|run| run.over_limit == 0 && run.queued == 0)
        .map(|run| &*run.label)
        .collect();
    let mut note = match never.len() {
        0 => return None,
        all if all == runs.len() => "no call was over limit".to_owned(),
        _ => format!("no call was over limit of: {}", never.join("; ")),
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
