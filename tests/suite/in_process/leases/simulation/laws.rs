//! The laws of leases, checked after each step. They count apart from the code that they judge.

use std::collections::BTreeMap;

use tollgate::base::time::{Span, Time};
use tollgate::limits::Limit;
use tollgate::limits::algorithm::Counter;
use tollgate::limits::algorithm::lease::Events;
use tollgate::limits::check::Hits;

/// A law that does not hold, and how.
#[derive(Debug, Clone)]
pub(super) struct Broken(pub(super) String);

pub(super) type Kept = Result<(), Broken>;

/// Laws W and B: what was admitted through all replicas.
#[derive(Debug)]
pub(super) struct Admitted {
    /// The greatest of all limits, and the highest rate.
    most: Limit,
    pub(super) windows: BTreeMap<Time, Window>,
    /// The units above what refilled since then: the most of any interval that ends now.
    level: i128,
    level_at: u64,
    /// The most units that a bucket may admit at once.
    level_max: i128,
}

/// A window or sub-window.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) admitted: u64,
    /// The greatest limit of those that were charged.
    limit: u64,
    /// Refunded hits, and those of a deleted counter.
    refunded: u64,
}

/// Laws G and S: the hits that one replica has taken in one window.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) granted: u64,
    pub(super) used: u64,
    pub(super) given_back: u64,
    /// Nothing can use or give them back any more.
    pub(super) lost: u64,
}

/// The demand of one replica in its spans.
#[derive(Debug, Default)]
pub(super) struct Peak {
    span: u64,
    hits: u64,
    pub(super) most: u64,
}

impl Admitted {
    pub(super) fn new(limits: &[Limit]) -> Self {
        let most = greatest(limits);
        let held: u64 = limits.iter().map(Limit::held_max).sum();
        let hits = i128::from(most.capacity + held);
        Self {
            most,
            windows: BTreeMap::new(),
            level: 0,
            level_at: 0,
            level_max: hits * i128::from(price(&most)),
        }
    }

    /// Hits were admitted: those of a lease at the time whose window they were charged to.
    pub(super) fn admit(&mut self, limit: &Limit, at: Time, hits: u64, now: Time) -> Kept {
        if limit.algorithm.is_bucket() {
            return self.admit_to_bucket(hits, now);
        }
        let start = limit.usable(at).0;
        let window = self.windows.entry(start).or_default();
        window.admitted += hits;
        window.limit = window.limit.max(limit.requests);
        let parts = u64::from(limit.buckets.max(1));
        let width = limit.sub_window().as_micros();
        // Every period with this sub-window.
        for ends in (0..parts).map(|part| start.as_micros() + part * width) {
            let begins = ends - (parts - 1) * width;
            let period = Time::from_micros(begins)..=Time::from_micros(ends);
            let mut admitted = 0;
            let mut allowed = 0;
            let mut most = 0;
            for window in self.windows.range(period).map(|(_, window)| window) {
                admitted += window.admitted;
                allowed += window.refunded;
                most = most.max(window.limit);
            }
            if admitted > most + allowed {
                return Err(Broken(format!(
                    "W: {admitted} admitted in the period that ends with sub-window {ends}, limit {most}, refunded {allowed}"
                )));
            }
        }
        Ok(())
    }

    /// The limit of what is charged to a window.
    pub(super) fn charge(&mut self, limit: &Limit, at: Time) {
        if !limit.algorithm.is_bucket() {
            let window = self.windows.entry(limit.usable(at).0).or_default();
            window.limit = window.limit.max(limit.requests);
        }
    }

    /// Units were refunded, or their counter was deleted.
    pub(super) fn refund(&mut self, limit: &Limit, at: Time, units: u64) {
        if limit.algorithm.is_bucket() {
            self.level -= i128::from(units);
        } else {
            self.windows.entry(limit.usable(at).0).or_default().refunded += units;
        }
    }

    fn admit_to_bucket(&mut self, hits: u64, now: Time) -> Kept {
        let tick = now.as_micros() / self.most.tick.span().as_micros();
        let refilled = i128::from(tick - self.level_at) * i128::from(self.most.requests);
        self.level = (self.level - refilled).max(0) + i128::from(hits * price(&self.most));
        self.level_at = tick;
        if self.level > self.level_max {
            return Err(Broken(format!(
                "B: {} units admitted beyond what refilled, at most {}",
                self.level, self.level_max
            )));
        }
        Ok(())
    }
}

impl Ledger {
    /// Hits that a replica that is killed now strands.
    pub(super) fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.used + self.given_back + self.lost)
    }

    pub(super) fn check(&self) -> Kept {
        if self.used + self.given_back + self.lost > self.granted {
            return Err(Broken(format!("G: {self:?}")));
        }
        Ok(())
    }

    /// After a take.
    pub(super) fn check_bound(&self, limit: &Limit, replicas: usize, demand: u64) -> Kept {
        let held = self.outstanding();
        let replicas = replicas as u64;
        if held * 10 * replicas > limit.capacity || held * 2 > 3 * demand {
            return Err(Broken(format!(
                "S: a replica of {replicas} holds {held} of {}, with at most {} in a span: {self:?}",
                limit.capacity, demand
            )));
        }
        Ok(())
    }
}

impl Peak {
    pub(super) fn add(&mut self, hits: u64, now: Time, span: Span) {
        let index = now.as_micros() / span.as_micros();
        if index != self.span {
            (self.span, self.hits) = (index, 0);
        }
        self.hits += hits;
        self.most = self.most.max(self.hits);
    }
}

/// The greatest limit and the highest rate of all.
pub(super) fn greatest(limits: &[Limit]) -> Limit {
    let most = |value: fn(&Limit) -> u64| limits.iter().map(value).max().unwrap_or(0);
    Limit {
        requests: most(|limit| limit.requests),
        capacity: most(|limit| limit.capacity),
        ..limits[0]
    }
}

/// The identity of the metrics.
pub(super) fn check_identity(totals: &Events, held: u64) -> Kept {
    let Events { taken, used, given_back, window, unknown, dropped } = *totals;
    if taken != used + given_back + window + unknown + dropped + held {
        return Err(Broken(format!("identity: {totals:?}, held {held}")));
    }
    Ok(())
}

/// Units of one hit.
pub(super) fn price(limit: &Limit) -> u64 {
    Counter::charge(limit, Hits::Add(1)).wanted()
}
