//! Distinguishes callers that leave Redis less than its normal time from late replies of Redis.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::time::{Span, Time};
use crate::limits::check::StoreError;

/// The normal time is at least this, however fast Redis is: a pause of the scheduler, or of Redis
/// while it forks, takes as long.
const NORMAL_MIN: Span = Span::from_micros(5_000);

/// Names the cause of a verdict that did not come in time.
#[derive(Debug)]
pub(crate) struct Lateness {
    store_timeout: Span,
    /// The time in which Redis usually answers; in µs.
    normal: AtomicU64,
}

impl Lateness {
    pub(crate) fn new(store_timeout: Span) -> Self {
        Self { store_timeout, normal: AtomicU64::new(NORMAL_MIN.as_micros()) }
    }

    /// Sets the time in which Redis usually answers.
    pub(crate) fn set_normal(&self, usual: Span) {
        let normal = usual.max(NORMAL_MIN);
        self.normal.store(normal.as_micros(), Relaxed);
    }

    /// Why a call has no verdict that was received at this time, with this deadline.
    pub(crate) fn cause(&self, received: Time, deadline: Time) -> StoreError {
        let left = deadline.since(received);
        if left < self.store_timeout && left < self.normal() {
            StoreError::ShortDeadline
        } else {
            StoreError::TimedOut
        }
    }

    /// The cause for a caller that gave up `now`. `None` if Redis may still have answered in time.
    pub(crate) fn cause_of_cancel(
        &self,
        received: Time,
        deadline: Option<Time>,
        now: Time,
    ) -> Option<StoreError> {
        let timeout = received.plus(self.store_timeout);
        let deadline = deadline.map_or(timeout, |deadline| deadline.min(timeout));
        let is_late = now >= deadline || now.since(received) >= self.normal();
        is_late.then(|| self.cause(received, deadline))
    }

    fn normal(&self) -> Span {
        Span::from_micros(self.normal.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    #[test]
    fn deadlines_below_the_normal_time_are_short() {
        use StoreError::{ShortDeadline, TimedOut};
        for (store_timeout, usual, left, expected) in [
            (100, 0, 0, ShortDeadline),
            (100, 0, 4, ShortDeadline),
            (100, 0, 12, TimedOut),
            (100, 25, 12, ShortDeadline),
            (100, 25, 100, TimedOut),
            // STORE_TIMEOUT ends the call, and no caller.
            (2, 0, 2, TimedOut),
            (2, 0, 1, ShortDeadline),
        ] {
            let lateness = Lateness::new(Span::from_micros(store_timeout * 1_000));
            lateness.set_normal(Span::from_micros(usual * 1_000));
            let cause = lateness.cause(at(7), at(7 + left));
            assert_eq!(cause, expected, "{store_timeout} {usual} {left}");
        }
    }

    #[test]
    fn callers_that_leave_early_say_nothing_about_the_store() {
        let lateness = Lateness::new(Span::from_micros(100_000));
        let canceled = |deadline: Option<u64>, after| {
            lateness.cause_of_cancel(at(0), deadline.map(at), at(after))
        };
        assert_eq!(canceled(Some(12), 1), None);
        assert_eq!(canceled(None, 4), None);
        assert_eq!(canceled(Some(12), 6), Some(StoreError::TimedOut));
        assert_eq!(canceled(None, 6), Some(StoreError::TimedOut));
        assert_eq!(canceled(Some(2), 2), Some(StoreError::ShortDeadline));
        assert_eq!(canceled(Some(0), 0), Some(StoreError::ShortDeadline));
    }
}
