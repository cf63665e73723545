//! Metrics of leases. Those of each rule are counted where its checks carry them.

use crate::limits::algorithm::lease::{LeasedCounter, Take};
use crate::limits::check::{LeaseEvent, Leased};
use crate::telemetry::metric::{self, Gauge, Metrics};

#[derive(Debug)]
pub(super) struct LeaseMetrics {
    leases: Gauge,
    hits: Gauge,
    stranded: [metric::Counter; 3],
    /// Granted, partial, none and failed.
    takes: [metric::Counter; 4],
    pub(super) held_answers: metric::Counter,
    pub(super) full: metric::Counter,
}

impl LeaseMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let stranded = |cause| {
            metrics.counter_with(
                "tollgate_lease_stranded_hits_total",
                "Hits taken ahead that nothing can use any more while their window lasts.",
                &[("cause", cause)],
            )
        };
        let takes = |outcome| {
            metrics.counter_with(
                "tollgate_lease_takes_total",
                "Requests to Redis for hits of a counter ahead: all of them granted, a part, none, or failed.",
                &[("outcome", outcome)],
            )
        };
        Self {
            leases: metrics.gauge(
                "tollgate_leases",
                "Counters of which this process holds hits that it has taken ahead.",
            ),
            hits: metrics.gauge(
                "tollgate_leased_hits",
                "Hits that this process has taken ahead and not used yet.",
            ),
            stranded: ["window", "unknown", "dropped"].map(stranded),
            takes: ["granted", "partial", "none", "failed"].map(takes),
            held_answers: metrics.counter(
                "tollgate_lease_held_answers_total",
                "Checks over limit without asking Redis, because it had no hits left a moment before.",
            ),
            full: metrics.counter(
                "tollgate_leases_full_total",
                "Hot counters without leases because there are as many as there may be (leases_max), or with a longer key than they may have (key_bytes_max).",
            ),
        }
    }

    /// Counts a take by the hits that were granted; `None` if it failed.
    pub(super) fn count_take(&self, take: Take, hits: Option<u64>) {
        let [granted, partial, none, failed] = &self.takes;
        match hits {
            None => failed.inc(),
            Some(0) => none.inc(),
            Some(hits) if hits < take.hits => partial.inc(),
            Some(_) => granted.inc(),
        }
    }

    /// Counts the events of a counter, which held `before` hits.
    pub(super) fn count(&self, leased: &Leased, counter: &mut LeasedCounter, before: u64) {
        let events = counter.take_events();
        let held = counter.held();
        if held != before {
            self.hits.add(held.cast_signed() - before.cast_signed());
            self.leases.add(i64::from(held > 0) - i64::from(before > 0));
        }
        let stranded = [events.window, events.unknown, events.dropped];
        for (counter, hits) in self.stranded.iter().zip(stranded) {
            if hits > 0 {
                counter.inc_by(hits);
            }
        }
        for (event, hits) in [
            (LeaseEvent::Taken, events.taken),
            (LeaseEvent::Used, events.used),
            (LeaseEvent::GivenBack, events.given_back),
            (LeaseEvent::Stranded, stranded.into_iter().sum()),
        ] {
            if hits > 0 {
                leased.hits.add(event, hits);
            }
        }
    }
}
