//! Plays one pattern of requests of one descriptor to two rule sets.
//!
//! ```text
//!  requests   |||| |    |||| |    |||| |
//!  before     |||       |||       |||        the limit in force
//!  after      |         |         |          the limit of the change
//!             +---------+---------+---------
//!             a period of the longer limit
//! ```

use crate::base::time::{Span, Time};
use crate::limit::EXACT_MAX;
use crate::report::{RuleSimulation, SimulatedSide};
use crate::rules::{Query, RuleSet};
use crate::what_if::simulate::limits::{NotLimited, RuleLimit};
use crate::what_if::simulate::play::{COLUMNS, Played, Work, columns, play};
use crate::what_if::simulate::traffic::{Pattern, Traffic};

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

/// The requests to play.
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

impl Scenario {
    /// # Errors
    /// The descriptor is invalid, or the pattern has no rate.
    pub(crate) fn play(
        &self,
        in_force: &RuleSet,
        changed: &RuleSet,
    ) -> Result<RuleSimulation, String> {
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
        let note = next.map(|_| {
            format!("only the first {SIMULATED_REQUESTS_MAX} requests were played (simulated_requests_max)")
        });
        let [before, after] = limits.map(|limit| self.side(limit, shown, &calls));
        Ok(RuleSimulation {
            traffic: traffic.to_string(),
            period_ms: millis(period),
            periods: self.periods,
            columns: COLUMNS,
            requests: calls.len(),
            requests_by_period: self.by_period(shown, &calls),
            requests_by_column: columns(shown, &calls, 1),
            note,
            before,
            after,
        })
    }

    /// The rate that a limit lets through: of slots, as many requests as can hold them.
    fn rate_of(&self, found: &RuleLimit) -> (u64, Span) {
        let limit = found.compare.limit;
        let is_held = limit.algorithm.counts_holders();
        let period = if is_held { self.hold } else { limit.period };
        (limit.requests, period)
    }

    fn side(
        &self,
        limit: Result<RuleLimit, NotLimited>,
        shown: (Time, Span),
        calls: &[Time],
    ) -> SimulatedSide {
        let work = Work {
            calls: calls.len() as u64,
            hits: 1,
            hold: self.hold,
        };
        let played = match &limit {
            Ok(found) => play(&found.compare, calls, work),
            Err(_) => Played {
                admitted: calls.to_vec(),
                ..Played::default()
            },
        };
        let first = played.over_limit.first();
        let side = SimulatedSide {
            admitted: played.admitted.len(),
            over_limit: played.over_limit.len(),
            queued: played.queued,
            wait_max_ms: millis(played.wait_max),
            first_over_limit_ms: first.map(|call| millis(call.since(shown.0))),
            admitted_by_period: self.by_period(shown, &played.admitted),
            admitted_by_column: columns(shown, &played.admitted, 1),
            ..SimulatedSide::default()
        };
        match limit {
            Ok(found) => SimulatedSide {
                rule: Some(found.rule),
                source: Some(found.origin),
                limit: Some(found.compare.limit.to_string()),
                notes: found.notes,
                ..side
            },
            Err(why) => SimulatedSide {
                not_limited: Some(why.to_string()),
                rule: match why {
                    NotLimited::Unlimited(rule) => Some(rule),
                    _ => None,
                },
                ..side
            },
        }
    }

    fn by_period(&self, (start, length): (Time, Span), times: &[Time]) -> Vec<u64> {
        let period = (length.as_micros() / self.periods as u64).max(1);
        let mut by_period = vec![0; self.periods];
        for time in times {
            let number = usize::try_from(time.since(start).as_micros() / period);
            // Those that wait until after the end are in none.
            if let Some(sum) = number.ok().and_then(|number| by_period.get_mut(number)) {
                *sum += 1;
            }
        }
        by_period
    }
}

fn reason(limit: Result<RuleLimit, NotLimited>) -> String {
    limit.map_or_else(
        |why| why.to_string(),
        |found| found.compare.limit.to_string(),
    )
}

fn millis(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}
