//! Plays one pattern of requests of one descriptor to two rule sets.
//!
//! ```text
//!  requests   |||| |    |||| |    |||| |
//!  before     |||       |||       |||        the limit in force
//!  after      |         |         |          the limit of the change
//!             +---------+---------+---------
//!             a period of the longer limit
//! ```

use serde_json::{Value, json};

use crate::limit::EXACT_MAX;
use crate::rules::{Query, RuleSet};
use crate::simulation::limits::{NotLimited, RuleLimit};
use crate::simulation::play::{COLUMNS, Work, columns, starts};
use crate::simulation::traffic::{Pattern, Traffic};
use crate::time::{Span, Time};

/// Requests of a simulation: a fraction of a second of work. More are left out.
// bound simulated_requests_max: left out, with a note; -
pub(crate) const SIMULATED_REQUESTS_MAX: u64 = 100_000;
/// Periods of a simulation.
// bound simulated_periods_max: 400; -
pub(crate) const PERIODS_MAX: usize = 60;
/// The period if neither rule set limits the descriptor.
const PERIOD_DEFAULT: Span = Span::from_secs(1);
/// Times are counted exactly below 2^53 µs.
const END_MAX: Time = Time::from_micros(EXACT_MAX);

/// What is played.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) domain: Vec<u8>,
    /// Each as `key=value`.
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) pattern: Pattern,
    /// From 1 to [`PERIODS_MAX`].
    pub(crate) periods: usize,
    /// How long a request holds its slot of a concurrency limit.
    pub(crate) hold: Span,
}

/// What both rule sets admit.
#[derive(Debug)]
pub(crate) struct Outcome {
    traffic: Traffic,
    /// The longer period of both limits.
    period: Span,
    requests: Series,
    /// Whether there would have been more requests.
    is_cut: bool,
    before: Side,
    after: Side,
}

/// One rule set.
#[derive(Debug)]
struct Side {
    limit: Result<RuleLimit, NotLimited>,
    admitted: Series,
    over_limit: u64,
    queued: u64,
    wait_max: Span,
    /// After the start of the simulation.
    first_over_limit: Option<Span>,
}

/// Requests over time.
#[derive(Debug)]
struct Series {
    all: u64,
    by_period: Vec<u64>,
    by_column: Vec<u64>,
}

impl Scenario {
    /// # Errors
    /// The descriptor is invalid, or the pattern has no rate.
    pub(crate) fn play(&self, in_force: &RuleSet, changed: &RuleSet) -> Result<Outcome, String> {
        let query = Query::of_entries(&self.domain, &self.entries)?;
        let limits = [in_force, changed].map(|rules| RuleLimit::find(rules, &query));
        let rates: Vec<(u64, Span)> = limits
            .iter()
            .flatten()
            .map(|found| self.rate_of(found))
            .collect();
        let period = rates.iter().map(|(_, period)| *period).max();
        let period = period.unwrap_or(PERIOD_DEFAULT);
        let is_rate = matches!(self.pattern, Pattern::Rate(_));
        let rate = rates.iter().find(|(requests, _)| *requests > 0);
        let Some(&(requests, own)) = rate.or(is_rate.then_some(&(0, PERIOD_DEFAULT))) else {
            let (pattern, [before, after]) = (self.pattern, limits.map(reason));
            return Err(format!(
                "no limit has a rate for {pattern} traffic (before: {before}; after: {after}); write a number of requests per second, such as 10"
            ));
        };
        let traffic = Traffic::new(self.pattern, requests, own, 1)?.aligned_to(period);
        let length = period.as_micros().saturating_mul(self.periods as u64);
        let end = traffic.start.plus(Span::from_micros(length));
        if end.plus(self.hold) >= END_MAX {
            return Err(
                "these periods would last beyond the year 2255; write fewer periods".into(),
            );
        }
        let mut calls = Vec::new();
        let mut times = (0..).map(|number| traffic.at(number));
        let mut next = times.next().filter(|time| *time < end);
        while let Some(time) = next.filter(|_| (calls.len() as u64) < SIMULATED_REQUESTS_MAX) {
            calls.push(time);
            next = times.next().filter(|time| *time < end);
        }
        let shown = (traffic.start, Span::from_micros(length));
        let [before, after] = limits.map(|limit| self.side(limit, shown, &calls));
        Ok(Outcome {
            traffic,
            period,
            requests: self.series(shown, &calls),
            is_cut: next.is_some(),
            before,
            after,
        })
    }

    /// The rate that a limit lets through: of slots, as many requests as can hold them.
    fn rate_of(&self, found: &RuleLimit) -> (u64, Span) {
        let limit = found.compare.limit;
        let is_held = limit.algorithm.counts_holders();
        let period = if is_held { self.hold } else { limit.period };
        (limit.requests.into(), period)
    }

    fn side(
        &self,
        limit: Result<RuleLimit, NotLimited>,
        (start, length): (Time, Span),
        calls: &[Time],
    ) -> Side {
        let work = Work {
            calls: calls.len() as u64,
            hits: 1,
            hold: self.hold,
        };
        let starts = match &limit {
            Ok(found) => starts(&found.compare, calls, work),
            Err(_) => calls.iter().copied().map(Some).collect(),
        };
        let both = || calls.iter().zip(&starts);
        let mut admitted: Vec<Time> = starts.iter().copied().flatten().collect();
        admitted.sort_unstable();
        let waits = both().filter_map(|(call, start)| Some((*start)?.since(*call)));
        let waits = waits.filter(|wait| *wait > Span::ZERO);
        let first = both().find(|(_, start)| start.is_none());
        Side {
            limit,
            over_limit: (calls.len() - admitted.len()) as u64,
            queued: waits.clone().count() as u64,
            wait_max: waits.max().unwrap_or(Span::ZERO),
            first_over_limit: first.map(|(call, _)| call.since(start)),
            admitted: self.series((start, length), &admitted),
        }
    }

    fn series(&self, (start, length): (Time, Span), times: &[Time]) -> Series {
        let period = (length.as_micros() / self.periods as u64).max(1);
        let mut by_period = vec![0; self.periods];
        for time in times {
            let number = usize::try_from(time.since(start).as_micros() / period);
            // Those that wait until after the end are in none.
            if let Some(sum) = number.ok().and_then(|number| by_period.get_mut(number)) {
                *sum += 1;
            }
        }
        Series {
            all: times.len() as u64,
            by_period,
            by_column: columns((start, length), times.iter().copied(), 1),
        }
    }
}

fn reason(limit: Result<RuleLimit, NotLimited>) -> String {
    limit.map_or_else(
        |why| why.to_string(),
        |found| found.compare.limit.to_string(),
    )
}

impl Outcome {
    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let note = self.is_cut.then(|| {
            format!("only the first {SIMULATED_REQUESTS_MAX} requests were played (simulated_requests_max)")
        });
        json!({
            "traffic": self.traffic.to_string(),
            "period_ms": millis(self.period),
            "periods": self.requests.by_period.len(),
            "columns": COLUMNS,
            "requests": self.requests.all,
            "requests_by_period": self.requests.by_period,
            "requests_by_column": self.requests.by_column,
            "note": note,
            "before": self.before.json(),
            "after": self.after.json(),
        })
    }
}

impl Side {
    fn json(&self) -> Value {
        let found = self.limit.as_ref();
        let (rule, why) = match found {
            Ok(found) => (Some(&*found.rule), None),
            Err(NotLimited::Unlimited(rule)) => (Some(&**rule), found.err()),
            Err(_) => (None, found.err()),
        };
        json!({
            "rule": rule,
            "source": found.ok().map(|found| &found.origin),
            "limit": found.ok().map(|found| found.compare.limit.to_string()),
            "not_limited": why.map(ToString::to_string),
            "notes": found.map_or(&[][..], |found| &found.notes),
            "admitted": self.admitted.all,
            "over_limit": self.over_limit,
            "queued": self.queued,
            "wait_max_ms": millis(self.wait_max),
            "first_over_limit_ms": self.first_over_limit.map(millis),
            "admitted_by_period": self.admitted.by_period,
            "admitted_by_column": self.admitted.by_column,
        })
    }
}

fn millis(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}
