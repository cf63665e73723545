//! Each class, in a situation that it explains.

use super::*;
use crate::limits::{Algorithm, Limit, Terms, Unit};

/// A descriptor under a limit of ten per minute, which each case changes.
struct Case {
    here: Option<Outcome>,
    there: Option<Status>,
    /// Seconds into the current window.
    at: u64,
    /// Seconds since the start of the current window at which counting began; `None` for the window
    /// before.
    began_at: Option<u64>,
}

type Change = fn(&mut Case);

fn limit(requests: u64, unit: Unit, algorithm: Algorithm) -> Limit {
    Limit::new(&Terms::new(requests, unit, algorithm)).expect("it is valid")
}

fn bucket(burst: u32) -> Limit {
    let terms =
        Terms { burst: Some(burst), ..Terms::new(10, Unit::Minute, Algorithm::TokenBucket) };
    Limit::new(&terms).expect("it is valid")
}

fn outcome(over_limit: bool, limit: Limit, reset: u64) -> Outcome {
    Outcome {
        rule: Some("d.user".into()),
        over_limit,
        limit: Some(limit),
        reset: Some(Span::from_secs(reset)),
        ..Outcome::default()
    }
}

impl Case {
    /// Over limit on one side only, in the middle of a window, with synchronous clocks.
    fn over(here: bool, there: bool) -> Self {
        let own = limit(10, Unit::Minute, Algorithm::FixedWindow);
        Self {
            there: Some(Status::from(&outcome(there, own, 30))),
            here: Some(outcome(here, own, 30)),
            at: 30,
            began_at: None,
        }
    }

    fn change(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn own(&mut self) -> &mut Outcome {
        self.here.as_mut().expect("it has one")
    }

    fn stated(&mut self) -> &mut Status {
        self.there.as_mut().expect("it has one")
    }

    fn compared(&self) -> Comparison {
        let window = Time::default().plus(Span::from_secs(600));
        let began = self.began_at.map_or(Time::default(), |at| window.plus(Span::from_secs(at)));
        let now = window.plus(Span::from_secs(self.at));
        compare(self.here.as_ref(), self.there.as_ref(), began, now)
    }
}

#[test]
fn statuses_agree_if_both_are_over_limit_or_neither() {
    for over in [false, true] {
        let other_limit = |case: &mut Case| case.stated().limit = None;
        assert_eq!(Case::over(over, over).compared(), Comparison::Agreed);
        let case = Case::over(over, over).change(other_limit);
        assert_eq!(case.compared(), Comparison::Agreed);
    }
    let fallback = Case::over(true, true).change(|case| case.own().source = Some(Source::Fallback));
    assert_eq!(fallback.compared(), Comparison::Agreed);
}

#[test]
fn each_class_explains_a_disagreement() {
    use Class::{
        ErrorThere, Leased, LimitDiffers, RuleMissing, StoreError, Unexplained, WarmUp, WindowEdge,
    };
    use Comparison::{NoStatus, OverHere, OverThere};
    let unit = |case: &mut Case, unit| {
        let stated = StatedLimit { requests: 10, unit };
        case.stated().limit = Some(stated);
    };
    let cases: [(&str, Case, Comparison); 24] = [
        (
            "an error there",
            Case::over(true, false).change(|case| case.there = None),
            NoStatus(ErrorThere),
        ),
        (
            "no answer here",
            Case::over(true, true).change(|case| case.here = None),
            NoStatus(StoreError),
        ),
        (
            "a fallback here",
            Case::over(true, false).change(|case| case.own().source = Some(Source::Fallback)),
            OverHere(StoreError),
        ),
        (
            "no limit here",
            Case::over(false, true).change(|case| case.own().limit = None),
            OverThere(RuleMissing),
        ),
        (
            "no limit there",
            Case::over(true, false).change(|case| case.stated().limit = None),
            OverHere(RuleMissing),
        ),
        (
            "another number",
            Case::over(true, false).change(|case| {
                case.own().limit = Some(limit(5, Unit::Minute, Algorithm::FixedWindow));
            }),
            OverHere(LimitDiffers),
        ),
        (
            "another unit",
            Case::over(true, false).change(|case| unit(case, Some(Unit::Hour))),
            OverHere(LimitDiffers),
        ),
        (
            "an unknown unit is not compared",
            Case::over(true, false).change(|case| unit(case, None)),
            OverHere(Unexplained),
        ),
        (
            "a hold of a lease here",
            Case::over(true, false).change(|case| case.own().source = Some(Source::Lease)),
            OverHere(Leased),
        ),
        (
            "hits of a lease here",
            Case::over(false, true).change(|case| case.own().source = Some(Source::Lease)),
            OverThere(Leased),
        ),
        (
            "the over-limit cache here",
            Case::over(true, false).change(|case| {
                case.own().source = Some(Source::OverLimitCache);
            }),
            OverHere(Unexplained),
        ),
        (
            "a sliding window",
            Case::over(true, false).change(|case| {
                case.own().limit = Some(limit(10, Unit::Minute, Algorithm::SlidingWindow));
            }),
            OverHere(Class::Algorithm),
        ),
        (
            "a bucket with a burst of its requests",
            Case::over(true, false).change(|case| case.own().limit = Some(bucket(10))),
            OverHere(Class::Algorithm),
        ),
        (
            "a bucket with a smaller burst",
            Case::over(true, false).change(|case| case.own().limit = Some(bucket(5))),
            OverHere(Class::Burst),
        ),
        (
            "counting began in this window",
            Case::over(false, true).change(|case| case.began_at = Some(5)),
            OverThere(WarmUp),
        ),
        (
            "counting began with this window",
            Case::over(false, true).change(|case| case.began_at = Some(0)),
            OverThere(Unexplained),
        ),
        (
            "a new counter has no more hits",
            Case::over(true, false).change(|case| case.began_at = Some(5)),
            OverHere(Unexplained),
        ),
        (
            "the window began a second ago",
            Case::over(false, true).change(|case| case.at = 1),
            OverThere(WindowEdge),
        ),
        (
            "the window ends in a second",
            Case::over(false, true).change(|case| case.at = 59),
            OverThere(WindowEdge),
        ),
        (
            "two seconds from an edge",
            Case::over(false, true).change(|case| case.at = 2),
            OverThere(Unexplained),
        ),
        (
            "two seconds from an edge, and clocks that differ by three",
            Case::over(false, true).change(|case| {
                case.at = 2;
                case.own().reset = Some(Span::from_secs(58));
                case.stated().until_reset = Some(Span::from_secs(1));
            }),
            OverThere(WindowEdge),
        ),
        (
            "in the middle, and clocks that differ by three",
            Case::over(false, true)
                .change(|case| case.stated().until_reset = Some(Span::from_secs(33))),
            OverThere(Unexplained),
        ),
        (
            "no duration until reset",
            Case::over(false, true).change(|case| case.stated().until_reset = None),
            OverThere(Unexplained),
        ),
        (
            "no limit on either side",
            Case::over(false, true).change(|case| {
                case.own().limit = None;
                case.stated().limit = None;
            }),
            OverThere(Unexplained),
        ),
    ];
    for (situation, case, expected) in cases {
        assert_eq!(case.compared(), expected, "{situation}");
    }
}

/// Each change makes another class fit, and the former ones still do.
#[test]
fn the_first_class_that_fits_wins() {
    let changes: [(Class, Change); 8] = [
        (Class::WindowEdge, |case| case.at = 1),
        (Class::WarmUp, |case| case.began_at = Some(1)),
        (Class::Algorithm, |case| {
            case.own().limit = Some(limit(10, Unit::Minute, Algorithm::SlidingLog));
        }),
        (Class::Leased, |case| {
            case.own().source = Some(Source::Lease);
        }),
        (Class::LimitDiffers, |case| {
            case.stated().limit = Some(StatedLimit { requests: 9, unit: Some(Unit::Second) });
        }),
        (Class::RuleMissing, |case| case.stated().limit = None),
        (Class::StoreError, |case| {
            case.own().source = Some(Source::Fallback);
        }),
        (Class::ErrorThere, |case| case.there = None),
    ];
    let mut case = Case::over(false, true);
    assert_eq!(case.compared().class(), Some(Class::Unexplained));
    for (class, change) in changes {
        change(&mut case);
        assert_eq!(case.compared().class(), Some(class));
    }
}
