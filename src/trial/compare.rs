//! Compares one descriptor's status here with that of the upstream, and explains a difference. Pure.
//!
//! Statuses agree if both are over limit or neither is. A disagreement has the first class that fits,
//! in the order of [`Class`].

use std::sync::Arc;

use crate::limit::{Limit, Unit};
use crate::named_enum::named_enum;
use crate::time::{Span, Time};

/// The clocks of two services may differ by this, whatever their durations until reset: these have
/// whole seconds.
const CLOCK_DISTANCE_MIN: Span = Span::from_secs(1);

/// A descriptor as decided here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Here {
    /// The path of its rule; `None` if no rule applies.
    pub(crate) rule: Option<Arc<str>>,
    /// `None` if there is no answer, because of the store.
    pub(crate) status: Option<Status<Limit>>,
    /// The store gave no verdict, so the status is that of the fallback.
    pub(crate) store_failed: bool,
}

/// What a response states about a descriptor. `L` is the type of its limit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Status<L> {
    pub(crate) over_limit: bool,
    pub(crate) limit: Option<L>,
    pub(crate) remaining: u32,
    /// `None` if it is not stated.
    pub(crate) until_reset: Option<Span>,
}

/// A limit as a response states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatedLimit {
    pub(crate) requests: u32,
    /// `None` if a response cannot state it.
    pub(crate) unit: Option<Unit>,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Agreed,
    /// Over limit here only.
    OverHere(Class),
    /// Over limit at the upstream only.
    OverThere(Class),
    /// One side has no status.
    NoStatus(Class),
}

named_enum! {
    /// Why statuses differ.
    pub enum Class {
        /// The upstream returned an error, or nothing.
        ErrorThere = "error_there",
        /// Our store gave no verdict.
        StoreError = "store_error",
        /// One side has no limit.
        RuleMissing = "rule_missing",
        /// The limits differ.
        LimitDiffers = "limit_differs",
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

impl From<&Limit> for StatedLimit {
    fn from(limit: &Limit) -> Self {
        Self {
            requests: limit.requests,
            unit: limit.unit(),
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

/// Compares a descriptor that was decided `now`. `there` is `None` if the upstream returned an error.
/// Counters here began at `began`.
pub(crate) fn compare(
    here: &Here,
    there: Option<&Status<StatedLimit>>,
    began: Time,
    now: Time,
) -> Comparison {
    let Some(there) = there else {
        return Comparison::NoStatus(Class::ErrorThere);
    };
    let Some(own) = &here.status else {
        return Comparison::NoStatus(Class::StoreError);
    };
    match (own.over_limit, there.over_limit) {
        (true, true) | (false, false) => Comparison::Agreed,
        (true, false) => Comparison::OverHere(classify(here, own, there, began, now)),
        (false, true) => Comparison::OverThere(classify(here, own, there, began, now)),
    }
}

fn classify(
    here: &Here,
    own: &Status<Limit>,
    there: &Status<StatedLimit>,
    began: Time,
    now: Time,
) -> Class {
    if here.store_failed {
        return Class::StoreError;
    }
    let (limit, stated) = match (&own.limit, there.limit) {
        (Some(limit), Some(stated)) => (limit, stated),
        (None, None) => return Class::Unexplained,
        (Some(_), None) | (None, Some(_)) => return Class::RuleMissing,
    };
    if differs(StatedLimit::from(limit), stated) {
        return Class::LimitDiffers;
    }
    if !limit.algorithm.has_windows() {
        return Class::Algorithm;
    }
    let window = limit.window(now);
    if there.over_limit && began > window.start {
        return Class::WarmUp;
    }
    let period = window.end.since(window.start);
    let distance = clock_distance(own.until_reset, there.until_reset, period);
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
