//! Compares one descriptor's status here with that of the upstream, and explains a difference.
//! Pure.
//!
//! Statuses agree if both are over limit or neither is. A disagreement has the first class that
//! fits, in the order of [`Class`].

use crate::base::named_enum::named_enum;
use crate::base::time::{Span, Time};
use crate::limits::check::Source;
use crate::report::comparison::StatedLimit;
use crate::report::outcome::Outcome;

/// The clocks of two services may differ by this, whatever their durations until reset: these have
/// whole seconds.
const CLOCK_DISTANCE_MIN: Span = Span::from_secs(1);

/// A descriptor's status, as a response states it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Status {
    pub(crate) over_limit: bool,
    pub(crate) limit: Option<StatedLimit>,
    pub(crate) remaining: u64,
    /// `None` if it is not stated.
    pub(crate) until_reset: Option<Span>,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Agreed,
    /// Over limit here only.
    OverHere(Class),
    /// Over limit at the upstream only.
    OverThere(Class),
    /// A side has no status.
    NoStatus(Class),
}

named_enum! {
    /// Why statuses differ.
    pub enum Class {
        /// The upstream returned an error, or nothing.
        ErrorThere = "error_there",
        /// Our store gave no verdict.
        StoreError = "store_error",
        /// A side has no limit.
        RuleMissing = "rule_missing",
        /// The limits differ.
        LimitDiffers = "limit_differs",
        /// Hits that were taken ahead decided ours, or their lack.
        Leased = "leased",
        /// Our rule is a bucket whose burst is not its number of requests.
        Burst = "burst",
        /// Our rule is not a fixed window.
        Algorithm = "algorithm",
        /// Our counter began inside the current window, so it has fewer hits.
        WarmUp = "warm_up",
        /// The request came as close to the edge of a window as the clocks differ.
        WindowEdge = "window_edge",
        /// None of these.
        Unexplained = "unexplained",
    }
}

impl From<&Outcome> for Status {
    fn from(outcome: &Outcome) -> Self {
        Self {
            over_limit: outcome.over_limit,
            limit: outcome.limit.as_ref().map(StatedLimit::from),
            remaining: outcome.remaining,
            until_reset: outcome.reset,
        }
    }
}

impl Comparison {
    /// `None` if the two agree.
    pub(crate) fn class(self) -> Option<Class> {
        match self {
            Self::Agreed => None,
            Self::OverHere(class) | Self::OverThere(class) | Self::NoStatus(class) => Some(class),
        }
    }
}

/// Compares a descriptor that was decided `now`. A side is `None` if it returned an error. Counters
/// here began at `began`.
pub(crate) fn compare(
    here: Option<&Outcome>,
    there: Option<&Status>,
    began: Time,
    now: Time,
) -> Comparison {
    let Some(there) = there else {
        return Comparison::NoStatus(Class::ErrorThere);
    };
    let Some(here) = here else {
        return Comparison::NoStatus(Class::StoreError);
    };
    match (here.over_limit, there.over_limit) {
        (true, true) | (false, false) => Comparison::Agreed,
        (true, false) => Comparison::OverHere(classify(here, there, began, now)),
        (false, true) => Comparison::OverThere(classify(here, there, began, now)),
    }
}

fn classify(here: &Outcome, there: &Status, began: Time, now: Time) -> Class {
    if here.source == Some(Source::Fallback) {
        return Class::StoreError;
    }
    let (limit, stated) = match (&here.limit, there.limit) {
        (Some(limit), Some(stated)) => (limit, stated),
        (None, None) => return Class::Unexplained,
        (Some(_), None) | (None, Some(_)) => return Class::RuleMissing,
    };
    if differs(StatedLimit::from(limit), stated) {
        return Class::LimitDiffers;
    }
    if here.source == Some(Source::Lease) {
        return Class::Leased;
    }
    if limit.algorithm.is_bucket() && limit.capacity != limit.requests {
        return Class::Burst;
    }
    if !limit.algorithm.has_windows() {
        return Class::Algorithm;
    }
    let window = limit.window(now);
    if there.over_limit && began > window.start {
        return Class::WarmUp;
    }
    let period = window.end.since(window.start);
    let distance = clock_distance(here.reset, there.until_reset, period);
    if now.since(window.start) <= distance || window.end.since(now) <= distance {
        return Class::WindowEdge;
    }
    Class::Unexplained
}

/// A unit that one side cannot state is not compared.
fn differs(one: StatedLimit, other: StatedLimit) -> bool {
    let units = one.unit.zip(other.unit);
    one.requests != other.requests || units.is_some_and(|(one, other)| one != other)
}

/// How far apart two clocks are by their durations until reset. Of two windows that follow each
/// other these differ by almost a period, although the clocks do not:
/// ```text
///  one clock      |-------------------|--59 s left-----------|
///  the other   |----------------1 s left-|-------------------|
/// ```
fn clock_distance(one: Option<Span>, other: Option<Span>, period: Span) -> Span {
    let (Some(one), Some(other)) = (one, other) else {
        return CLOCK_DISTANCE_MIN;
    };
    let apart = one.as_micros().abs_diff(other.as_micros());
    let apart = apart.min(period.as_micros().saturating_sub(apart));
    Span::from_micros(apart).max(CLOCK_DISTANCE_MIN)
}

#[cfg(test)]
mod tests;
