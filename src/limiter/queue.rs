//! Requests over their limit that wait for their turn instead of being refused.
//!
//! There is no queue to keep: the store books a slot for the hits in the step in which it charges
//! them, so each request knows when its turn is, whichever replica it asked, and its answer is held
//! back until then. That is the only wait besides the store's.
//!
//! ```text
//!  decided     the slot begins,
//!    |         and the answer leaves      the caller stops waiting
//!    |                 |   next slot              |
//!  --[-- start_after --]-------[------------------|------> time
//! ```
//!
//! Nothing is ever given back. A caller who goes away has used its slot, and so has one whose turn
//! would be too late since the store took its time to say when it is: others may have been told of
//! later slots meanwhile, and theirs could not be moved.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::check::{CheckRequest, Verdict, Verdicts};
use crate::telemetry::metric::{Counter, Gauge, Histogram, Metrics};
use crate::time::{MICROS_PER_SECOND, Span, Time};

/// How many requests of one runtime may wait, or be about to find out whether they have to. Envoy's
/// circuit breaker lets as many be under way to one cluster unless it is told otherwise; each holds
/// a few KiB, so all of them hold a few MiB.
pub const QUEUE_WAITERS_MAX: usize = 1_024;

/// Where requests of one runtime wait. Clones are the same.
#[derive(Debug, Clone)]
pub struct Queue {
    permits: Arc<Semaphore>,
    metrics: QueueMetrics,
}

/// What is told of the queues of all runtimes. Clones are the same.
#[derive(Debug, Clone)]
pub struct QueueMetrics {
    waiters: Gauge,
    seconds: Histogram,
    full: Counter,
    gone: Counter,
    late: Counter,
}

/// The right to wait, from before it is known whether there is a need to until the answer leaves.
#[derive(Debug)]
pub struct QueuePermit<'q> {
    metrics: &'q QueueMetrics,
    _permit: SemaphorePermit<'q>,
}

/// Somebody who waits, as the metrics see it.
struct Waiting<'q> {
    metrics: &'q QueueMetrics,
    turn_came: bool,
}

impl QueueMetrics {
    /// None of them yet.
    pub fn new(metrics: &Metrics) -> Self {
        let wasted = |cause: &str| {
            metrics.counter_with(
                "tollgate_queue_wasted_slots_total",
                "Requests whose slots nobody used: the caller left before its turn (gone), or the store said too late when it is (late).",
                &[("cause", cause)],
            )
        };
        Self {
            waiters: metrics.gauge("tollgate_queue_waiters", "Requests that are held back until their turn."),
            seconds: metrics.latency("tollgate_queue_wait_seconds", "How long the turns of requests that were held back were away.", &[]),
            full: metrics.counter(
                "tollgate_queue_full_total",
                "Requests that could not have waited, because as many others did as may on one thread (queue_waiters_max).",
            ),
            gone: wasted("gone"),
            late: wasted("late"),
        }
    }
}

impl Queue {
    /// One in which nobody waits.
    pub fn new(metrics: QueueMetrics) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(QUEUE_WAITERS_MAX)),
            metrics,
        }
    }

    /// A permit for a request that may have to wait. `None` for all others, among them those that
    /// come when every permit is taken: no slot is booked for these, so that they pass at once
    /// or are refused.
    pub fn permit_for(&self, request: &mut CheckRequest) -> Option<QueuePermit<'_>> {
        if request
            .checks
            .iter()
            .all(|check| check.book_ahead == Span::ZERO)
        {
            return None;
        }
        if let Ok(permit) = self.permits.try_acquire() {
            return Some(QueuePermit {
                metrics: &self.metrics,
                _permit: permit,
            });
        }
        self.metrics.full.inc();
        for check in &mut request.checks {
            check.book_ahead = Span::ZERO;
        }
        None
    }
}

impl QueuePermit<'_> {
    /// Refuses what was booked but would begin when nobody waits for it any more: slots are booked
    /// in time, but the store has taken some. What came with it was charged.
    pub fn reject_expired(&self, verdicts: &mut Verdicts, now: Time, deadline: Option<Time>) {
        if deadline.is_some_and(|deadline| reject_expired(verdicts, now, deadline)) {
            self.metrics.late.inc();
        }
    }

    /// Returns when it is the request's turn.
    pub async fn wait(self, span: Span) {
        if span == Span::ZERO {
            return;
        }
        let mut waiting = Waiting::begin(self.metrics, span);
        tokio::time::sleep(span.into()).await;
        waiting.turn_came = true;
    }
}

impl<'q> Waiting<'q> {
    fn begin(metrics: &'q QueueMetrics, wait: Span) -> Self {
        metrics.waiters.inc();
        metrics.seconds.observe(wait.as_secs_f64());
        Self {
            metrics,
            turn_came: false,
        }
    }
}

/// However it ends: whoever goes away is dropped in the middle of it.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.metrics.waiters.dec();
        if !self.turn_came {
            self.metrics.gone.inc();
        }
    }
}

/// Refuses those whose slots begin after the deadline. Gives whether there were any.
fn reject_expired(verdicts: &mut Verdicts, now: Time, deadline: Time) -> bool {
    let mut any = false;
    for verdict in verdicts
        .iter_mut()
        .filter(|verdict| is_booked(verdict) && now.plus(verdict.start_after) > deadline)
    {
        // When this slot would have begun, another one can be had.
        *verdict = Verdict {
            over: true,
            retry_after: Some(verdict.start_after),
            ..*verdict
        };
        any = true;
    }
    any
}

/// How long a request that passes has to wait: until the last of its slots begins.
pub fn wait(verdicts: &Verdicts) -> Span {
    verdicts
        .iter()
        .filter(|verdict| is_booked(verdict))
        .map(|verdict| verdict.start_after)
        .max()
        .unwrap_or(Span::ZERO)
}

/// Whether a slot was booked for it that has not begun.
pub fn is_booked(verdict: &Verdict) -> bool {
    !verdict.over && verdict.start_after > Span::ZERO
}

/// A whole number of seconds, from none to `max`, another one each time.
pub fn jitter(max: Span) -> Span {
    if max == Span::ZERO {
        return max;
    }
    Span::from_secs(fastrand::u64(..) % (max.as_micros() / MICROS_PER_SECOND + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Span = Span::from_micros(1_000);

    fn booked(start_after: Span) -> Verdict {
        let reset_after = Span::from_secs(1);
        Verdict {
            over: false,
            used: 1,
            remaining: 0,
            start_after,
            retry_after: None,
            reset_after,
            from_cache: false,
        }
    }

    #[test]
    fn a_slot_that_begins_at_the_deadline_is_waited_for_and_a_later_one_is_refused() {
        let (now, deadline) = (Time::from_micros(5_000), Time::from_micros(6_000));
        let mut verdicts = Verdicts::from_slice(&[booked(Span::ZERO), booked(MILLI)]);
        assert!(!reject_expired(&mut verdicts, now, deadline));
        assert_eq!(wait(&verdicts), MILLI);

        let later = now.plus(Span::from_micros(1));
        assert!(reject_expired(&mut verdicts, later, deadline));
        assert_eq!(
            verdicts
                .iter()
                .map(|verdict| verdict.over)
                .collect::<Vec<_>>(),
            [false, true]
        );
        assert_eq!(verdicts[1].retry_after, Some(MILLI));
        assert_eq!(
            wait(&verdicts),
            Span::ZERO,
            "nobody waits for what is refused"
        );

        let mut verdicts = Verdicts::from_slice(&[booked(Span::ZERO)]);
        assert!(
            !reject_expired(&mut verdicts, deadline.plus(MILLI), deadline),
            "what has no slot to wait for is no later than any answer"
        );
    }

    #[test]
    fn chance_is_whole_seconds_up_to_the_most_that_there_may_be() {
        assert_eq!(jitter(Span::ZERO), Span::ZERO);
        let drawn: std::collections::BTreeSet<u64> = (0..1_000)
            .map(|_| jitter(Span::from_secs(3)).as_micros())
            .collect();
        assert_eq!(
            drawn.into_iter().collect::<Vec<_>>(),
            [0, 1_000_000, 2_000_000, 3_000_000]
        );
    }
}
