//! Delays responses until their booked slots begin (`on_limit: queue`).
//!
//! There is no queue in memory. The store books a slot for the hits when it charges them, so each
//! request knows when its slot begins, whichever replica it asked, and its response is delayed
//! until then.
//!
//! ```text
//!  decided     the slot begins,
//!    |         and the response is sent   the caller stops waiting
//!    |                 |   next slot              |
//!  --[-- start_after --]-------[------------------|------> time
//! ```
//!
//! Slots are never given back: not if the caller cancels, and not if the store's reply arrives too
//! late for the slot. Later slots may have been booked meanwhile, and could not be moved.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::base::time::{MICROS_PER_SECOND, Span, Time};
use crate::limits::check::{CheckRequest, Verdict, Verdicts};
use crate::telemetry::metric::{Counter, Gauge, Histogram, Metrics};

/// Requests of one worker that wait for their slot, or may have to once the store has replied.
/// Envoy's circuit breaker admits as many to one cluster by default. Each takes a few KiB.
// bound queue_waiters_max: admitted at once or over limit; tollgate_queue_full_total
pub const QUEUE_WAITERS_MAX: usize = 1_024;

/// The requests of one worker that wait.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    permits: Arc<Semaphore>,
    metrics: QueueMetrics,
}

/// Metrics of the queues of all workers.
#[derive(Debug, Clone)]
pub(crate) struct QueueMetrics {
    waiters: Gauge,
    seconds: Histogram,
    full: Counter,
    gone: Counter,
    late: Counter,
}

/// The right to wait, held from before the store is asked until the response is sent.
#[derive(Debug)]
pub(crate) struct QueuePermit<'q> {
    metrics: &'q QueueMetrics,
    _permit: SemaphorePermit<'q>,
}

/// Counts a waiting request, also when its future is dropped.
struct Waiting<'q> {
    metrics: &'q QueueMetrics,
    slot_began: bool,
}

impl QueueMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let wasted = |cause: &str| {
            metrics.counter_with(
                "tollgate_queue_wasted_slots_total",
                "Booked slots that were not used: the caller canceled (gone), or the store's reply came after its deadline (late).",
                &[("cause", cause)],
            )
        };
        Self {
            waiters: metrics.gauge(
                "tollgate_queue_waiters",
                "Requests waiting for their slot.",
            ),
            seconds: metrics.latency(
                "tollgate_queue_wait_seconds",
                "Time queued requests waited for their slot.",
                &[],
            ),
            full: metrics.counter(
                "tollgate_queue_full_total",
                "Requests that could not be queued because their worker had too many (queue_waiters_max).",
            ),
            gone: wasted("gone"),
            late: wasted("late"),
        }
    }
}

impl Queue {
    pub(crate) fn new(metrics: QueueMetrics) -> Self {
        Self { permits: Arc::new(Semaphore::new(QUEUE_WAITERS_MAX)), metrics }
    }

    /// A permit for a request that may book a slot. If there is none left, the request books no
    /// slot: it is admitted at once or over limit.
    pub(crate) fn permit_for(&self, request: &mut CheckRequest) -> Option<QueuePermit<'_>> {
        let mut checks = request.checks.iter_mut();
        if checks.all(|check| check.book_ahead == Span::ZERO) {
            return None;
        }
        if let Ok(permit) = self.permits.try_acquire() {
            return Some(QueuePermit { metrics: &self.metrics, _permit: permit });
        }
        self.metrics.full.inc();
        for check in &mut request.checks {
            check.book_ahead = Span::ZERO;
        }
        None
    }
}

impl QueuePermit<'_> {
    /// Rejects slots that begin after the deadline: they were booked in time, but the store's reply
    /// took a while. Their hits stay charged.
    pub(crate) fn reject_expired(
        &self,
        verdicts: &mut Verdicts,
        now: Time,
        deadline: Option<Time>,
    ) {
        if deadline.is_some_and(|deadline| reject_expired(verdicts, now, deadline)) {
            self.metrics.late.inc();
        }
    }

    /// Waits until the slot begins.
    pub(crate) async fn wait(self, wait: Span) {
        if wait == Span::ZERO {
            return;
        }
        self.metrics.waiters.inc();
        self.metrics.seconds.observe(wait.as_secs_f64());
        let mut waiting = Waiting { metrics: self.metrics, slot_began: false };
        tokio::time::sleep(wait.into()).await;
        waiting.slot_began = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.metrics.waiters.dec();
        if !self.slot_began {
            self.metrics.gone.inc();
        }
    }
}

/// Rejects slots that begin after the deadline. Returns whether there were any.
fn reject_expired(verdicts: &mut Verdicts, now: Time, deadline: Time) -> bool {
    let is_expired =
        |verdict: &&mut Verdict| is_booked(verdict) && now.plus(verdict.start_after) > deadline;
    let mut any = false;
    for verdict in verdicts.iter_mut().filter(is_expired) {
        verdict.over = true;
        // When this slot begins, another one can be booked.
        verdict.retry_after = Some(verdict.start_after);
        any = true;
    }
    any
}

/// How long to delay an admitted request: until the last of its slots begins.
pub(crate) fn wait(verdicts: &Verdicts) -> Span {
    let booked = verdicts.iter().filter(|verdict| is_booked(verdict));
    booked.map(|verdict| verdict.start_after).max().unwrap_or(Span::ZERO)
}

/// Whether a slot was booked that has not begun.
pub(crate) fn is_booked(verdict: &Verdict) -> bool {
    !verdict.over && verdict.start_after > Span::ZERO
}

/// A random number of whole seconds from 0 to `max`.
pub(crate) fn jitter(max: Span) -> Span {
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
        Verdict { used: 1, start_after, reset_after: Span::from_secs(1), ..Verdict::default() }
    }

    #[test]
    fn slots_that_begin_after_the_deadline_are_rejected() {
        let now = Time::from_micros(5_000);
        let deadline = Time::from_micros(6_000);
        let mut verdicts = Verdicts::from_slice(&[booked(Span::ZERO), booked(MILLI)]);
        assert!(!reject_expired(&mut verdicts, now, deadline));
        assert_eq!(wait(&verdicts), MILLI);

        let later = now.plus(Span::from_micros(1));
        assert!(reject_expired(&mut verdicts, later, deadline));
        assert_eq!(verdicts.iter().map(|verdict| verdict.over).collect::<Vec<_>>(), [false, true]);
        assert_eq!(verdicts[1].retry_after, Some(MILLI));
        assert_eq!(wait(&verdicts), Span::ZERO, "over-limit responses are not delayed");

        let mut verdicts = Verdicts::from_slice(&[booked(Span::ZERO)]);
        assert!(
            !reject_expired(&mut verdicts, deadline.plus(MILLI), deadline),
            "without a booked slot nothing expires"
        );
    }

    #[test]
    fn jitter_is_whole_seconds_up_to_the_maximum() {
        assert_eq!(jitter(Span::ZERO), Span::ZERO);
        let drawn: std::collections::BTreeSet<u64> =
            (0..1_000).map(|_| jitter(Span::from_secs(3)).as_micros()).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [0, 1_000_000, 2_000_000, 3_000_000]);
    }
}
