//! Plays calls to the store that serves, and looks at what it let through.
//!
//! A call that a bucket holds back starts when its slot does; that is when it is counted here, in
//! every figure.

use std::collections::VecDeque;

use crate::base::time::{Span, Time};
use crate::limits::check::{Check, CheckRequest, Hits, Key};
use crate::report::{Run, RunChart};
use crate::store::memory::Counters;
use crate::telemetry::metric::Metrics;
use crate::what_if::simulate::limits::{Compare, label};

/// In how many columns a chart is drawn: what fits beside nothing on a terminal of 80, and divides
/// six periods into tenths.
pub(crate) const COLUMNS: usize = 60;
/// Memory for one counter, however large: a store never evicts the one that it counts.
const BYTES_MAX: u64 = 1 << 20;

/// The requests that each limit gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Hits of each.
    pub(crate) hits: u64,
    /// How long an admitted call goes on; zero where it has no effect.
    pub(crate) hold: Span,
}

/// Calls that were played to one limit.
#[derive(Debug, Default)]
pub(crate) struct Played {
    /// When those that were let through started, in order.
    pub(crate) admitted: Vec<Time>,
    pub(crate) over_limit: Vec<Time>,
    /// Calls that were held back.
    pub(crate) queued: usize,
    /// The longest that one was.
    pub(crate) wait_max: Span,
}

/// Plays the calls against one limit. `shown` is the time that is drawn, from its start.
pub(crate) fn run(
    compare: &Compare,
    period: Span,
    shown: (Time, Span),
    calls: &[Time],
    work: Work,
) -> Run {
    let limit = compare.limit;
    let Played { admitted: begun, over_limit, queued, wait_max } = play(compare, calls, work);
    let is_held = limit.algorithm.counts_holders();
    let (within, weight) = if is_held { (work.hold, 1) } else { (period, work.hits) };
    let level = levels(shown, within, &begun).into_iter();
    Run {
        label: label(&limit),
        algorithm: limit.algorithm.name(),
        limit,
        admitted: begun.len(),
        over_limit: over_limit.len(),
        most_in_a_period: most_within(period, &begun).saturating_mul(work.hits),
        most_in_a_window: most_in_a_window(period, &begun).saturating_mul(work.hits),
        most_at_once: (work.hold > Span::ZERO || is_held).then(|| most_within(work.hold, &begun)),
        queued,
        wait_max,
        chart: RunChart {
            admitted: columns(shown, &begun, work.hits),
            over_limit: columns(shown, &over_limit, work.hits),
            level: level.map(|calls| calls.saturating_mul(weight)).collect(),
        },
    }
}

/// Plays the calls against one limit.
pub(crate) fn play(&Compare { limit, book_ahead }: &Compare, calls: &[Time], work: Work) -> Played {
    let counters = Counters::new(BYTES_MAX, "simulate", &Metrics::new());
    let is_held = limit.algorithm.counts_holders();
    let check =
        Check { book_ahead, ..Check::new(Key::from("simulate"), limit, Hits::Add(work.hits)) };
    let decide = |hits, number: usize, now| {
        let holder = is_held.then(|| number.to_string().into_bytes().into());
        let request = CheckRequest {
            checks: [Check { hits, holder, ..check.clone() }].into_iter().collect(),
            ..CheckRequest::default()
        };
        counters.decide(&request, now)[0]
    };
    let mut going_on: VecDeque<(Time, usize)> = VecDeque::new();
    let mut played = Played::default();
    for (number, &now) in calls.iter().enumerate() {
        while let Some(&(end, holder)) = going_on.front().filter(|(end, _)| *end <= now) {
            decide(Hits::Refund(1), holder, end);
            going_on.pop_front();
        }
        let verdict = decide(Hits::Add(work.hits), number, now);
        if !verdict.over && is_held {
            going_on.push_back((now.plus(work.hold), number));
        }
        if verdict.over {
            played.over_limit.push(now);
            continue;
        }
        played.admitted.push(now.plus(verdict.start_after));
        played.queued += usize::from(verdict.start_after > Span::ZERO);
        played.wait_max = played.wait_max.max(verdict.start_after);
    }
    // Slots are booked in order; should one not be, the figures are right all the same.
    played.admitted.sort_unstable();
    played
}

/// Hits of calls at these times, by column.
pub(crate) fn columns((start, length): (Time, Span), times: &[Time], hits: u64) -> Vec<u64> {
    let mut sums = vec![0_u64; COLUMNS];
    for &at in times {
        if let Some(sum) = sums.get_mut(column(start, length, at)) {
            *sum = sum.saturating_add(hits);
        }
    }
    sums
}

/// The column of a time; [`COLUMNS`] or more, if it is not shown any more.
fn column(start: Time, length: Span, at: Time) -> usize {
    let column =
        u128::from(at.since(start).as_micros()) * COLUMNS as u128 / u128::from(length.as_micros());
    usize::try_from(column).unwrap_or(usize::MAX)
}

/// When a column begins: the first µs that is in it.
fn begins(start: Time, length: Span, column: usize) -> Time {
    let micros = (u128::from(length.as_micros()) * column as u128).div_ceil(COLUMNS as u128);
    start.plus(Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
}

/// The most of `begun` that lie within `length` of each other, in each column.
fn levels((start, length): (Time, Span), within: Span, begun: &[Time]) -> Vec<u64> {
    let mut levels = vec![0; COLUMNS];
    // Those from `first` to `next` count at the time that is looked at.
    let mut first = 0;
    let mut next = 0;
    for (at, level) in levels.iter_mut().enumerate() {
        let from = begins(start, length, at);
        let to = begins(start, length, at + 1);
        let mut look = |first: &mut usize, next: usize, now: Time| {
            *first +=
                begun[*first..next].iter().take_while(|begun| now.since(**begun) >= within).count();
            *level = (*level).max((next - *first) as u64);
        };
        look(&mut first, next, from);
        while let Some(&now) = begun.get(next).filter(|&&now| now < to) {
            next += 1;
            look(&mut first, next, now);
        }
    }
    levels
}

/// The most that lie within `length` of each other: at its start or after, and before its end.
fn most_within(length: Span, begun: &[Time]) -> u64 {
    let mut first = 0;
    let counts = begun.iter().enumerate().map(|(at, now)| {
        while now.since(begun[first]) >= length && first < at {
            first += 1;
        }
        at - first + 1
    });
    counts.max().unwrap_or(0) as u64
}

/// The most that lie in one window aligned to the epoch.
fn most_in_a_window(period: Span, begun: &[Time]) -> u64 {
    let windows = begun.chunk_by(|one, other| {
        one.as_micros() / period.as_micros() == other.as_micros() / period.as_micros()
    });
    windows.map(|window| window.len() as u64).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: &[u64]) -> Vec<Time> {
        micros.iter().map(|&micros| Time::from_micros(micros)).collect()
    }

    #[test]
    fn the_most_within_a_period_is_found_wherever_it_starts() {
        let span = Span::from_micros(10);
        assert_eq!(most_within(span, &at(&[0, 4, 9, 10, 13])), 4);
        assert_eq!(most_within(span, &at(&[0, 10, 20])), 1);
        assert_eq!(most_within(span, &at(&[5, 5, 5])), 3);
        assert_eq!(most_within(span, &[]), 0);
        assert_eq!(most_in_a_window(span, &at(&[8, 9, 10, 11, 12])), 3);
    }

    #[test]
    fn a_chart_shows_what_was_there_in_each_column() {
        let start = Time::from_micros(600);
        let length = Span::from_micros(600);
        let begun = at(&[600, 601, 612, 640, 1_199, 1_200]);
        let sums = columns((start, length), &begun, 2);
        assert_eq!((sums[0], sums[1], sums[4], sums[59], sums.iter().sum()), (4, 2, 2, 2, 10_u64));
        let levels = levels((start, length), Span::from_micros(12), &begun);
        assert_eq!(levels[..6], [2, 2, 1, 0, 1, 1]);
        assert_eq!(levels[59], 1);
    }
}
