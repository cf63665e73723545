//! Replies that clients got, their outcomes, and what tests assert of them.

use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tollgate::base::time::{Span, Time};

use crate::support::http::Reply;

/// Difference between the clocks of two processes: each ties its monotonic clock to the epoch when
/// it starts, and may be interrupted then.
const CLOCK_SKEW: Duration = Duration::from_secs(1);

/// Requests by outcome.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(super) sent: AtomicU64,
    /// By [`Outcome`].
    pub(super) ended: [AtomicU64; 3],
}

/// What Envoy did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The backend answered.
    Passed,
    /// Envoy answered, because of a limit.
    OverLimit,
    /// Envoy answered, because it had no verdict.
    Failed,
}

/// A reply, and when it was sent and received.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) reply: Reply,
    pub(crate) sent_at: Time,
    pub(crate) received_at: Time,
}

impl Timed {
    /// What Envoy did. It marks requests over limit; the HTTP status of a gRPC call is 200 all the
    /// same.
    pub(crate) fn outcome(&self) -> Outcome {
        match (self.reply.status, self.reply.header("x-envoy-ratelimited")) {
            (200 | 429, Some("true")) => Outcome::OverLimit,
            (200, None) => Outcome::Passed,
            (500, None) => Outcome::Failed,
            _ => panic!("an unknown kind of reply: {:?}", self.reply),
        }
    }

    /// Fails unless the request was admitted with this many remaining.
    pub(crate) fn passed_with(self, remaining: u64) -> Self {
        assert_eq!(self.outcome(), Outcome::Passed, "{:?}", self.reply);
        assert_eq!(self.reply.number("x-ratelimit-remaining"), remaining, "{:?}", self.reply);
        self
    }

    /// Fails unless the request was over limit with a 429.
    pub(crate) fn was_over_limit(self) -> Self {
        assert_eq!(
            (self.outcome(), self.reply.status),
            (Outcome::OverLimit, 429),
            "{:?}",
            self.reply
        );
        self
    }

    /// Fails unless this header is the whole seconds until `then`, rounded up, at some time during
    /// the request.
    pub(crate) fn counts_down(&self, header: &str, then: RangeInclusive<Time>) {
        let least = then.start().since(self.received_at.plus(CLOCK_SKEW.into())).ceil_secs();
        let most = then.end().plus(CLOCK_SKEW.into()).since(self.sent_at).ceil_secs();
        let seconds = self.reply.number(header);
        assert!(
            (least..=most).contains(&seconds),
            "{header} is {seconds}, not in {least}..={most}: {:?}",
            self.reply
        );
    }

    /// The end of the aligned window of this request, which may end during the request.
    pub(crate) fn end_of_window(&self, period: Span) -> RangeInclusive<Time> {
        let end = |time: Time| {
            Time::from_micros(time.as_micros() / period.as_micros() * period.as_micros())
                .plus(period)
        };
        end(self.sent_at)..=end(self.received_at)
    }

    /// This long after the request, whose exact time only Tollgate knows.
    pub(crate) fn after(&self, span: Span) -> RangeInclusive<Time> {
        self.sent_at.plus(span)..=self.received_at.plus(span)
    }
}
