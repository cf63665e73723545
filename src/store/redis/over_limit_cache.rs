//! Caches counters that cannot admit even one hit, and until when.
//!
//! A flood of over-limit requests is answered here without a Redis round trip. Only `remaining ==
//! 0` is cached: a request for 100 hits that was over limit says nothing about a request for one.
//! The limit is part of the key, so a higher limit asks Redis.
//!
//! Refunds make a cached verdict outdated. Those of this process are known: a verdict is used only
//! if its request was received after the last refund of its counter, under any limit, so a reply
//! that a refund overtook is not used either. Those of other Tollgate replicas are not known, so no
//! verdict is used for longer than [`AGE_MAX`]. What an operator changes is announced to all
//! replicas.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::time::{Span, Time};
use crate::limits::check::{Check, Hits, Key, Source, Verdict};
use crate::limits::{Algorithm, OverLimitHits};
use crate::store::redis::direct_mapped::DirectMappedTable;
use crate::telemetry::metric::{self, Metrics};

/// Age of a cached over-limit verdict: how long a refund by another Tollgate replica may be
/// unnoticed. It costs one request to Redis per second for each counter that is over limit and in
/// use.
// bound cached_verdict_age_max: Redis is queried again; tollgate_over_limit_cache_hits_total
pub const AGE_MAX: Span = Span::from_secs(1);
/// Times of last refunds, 8 KiB. Counters share them: a refund of one makes Redis decide the
/// others, too.
const REFUNDS_MAX: usize = 1_024;

/// Verdicts of counters that are over limit.
#[derive(Debug)]
pub(crate) struct OverLimitCache {
    /// For a key and a limit: until when it admits nothing, when it is unused again, and when the
    /// request was received.
    slots: DirectMappedTable<3>,
    /// When counters were last refunded, by the hash of their keys.
    refunds: Box<[AtomicU64]>,
    hits: metric::Counter,
    overwritten: metric::Counter,
}

impl OverLimitCache {
    pub(crate) fn new(bytes: u64, metrics: &Metrics) -> Self {
        Self {
            slots: DirectMappedTable::new(
                usize::try_from(bytes).unwrap_or(usize::MAX) / DirectMappedTable::<3>::SLOT_BYTES,
            ),
            refunds: (0..REFUNDS_MAX).map(|_| AtomicU64::new(0)).collect(),
            hits: metrics.counter_as_gauge(
                "tollgate_over_limit_cache_hits_total",
                "ratelimit.localcache.hitCount",
                "Checks rejected by the over-limit cache, without asking Redis.",
            ),
            overwritten: metrics.counter_as_gauge(
                "tollgate_over_limit_cache_overwritten_total",
                "ratelimit.localcache.evacuateCount",
                "Counters evicted from the over-limit cache by another counter before they expired.",
            ),
        }
    }

    /// The verdict of a check whose counter is known to admit nothing. A peek is never cached, and
    /// neither are hits that Redis has to count.
    pub(crate) fn get(&self, check: &Check, now: Time) -> Option<Verdict> {
        let hits = match check.hits {
            Hits::Add(hits) if !check.settles => hits,
            _ => return None,
        };
        let [until, reset, asked] = self.slots.get(self.hash(check))?;
        let is_fresh = now.since(Time::from_micros(asked)) < AGE_MAX
            && asked > self.refunded_at(&check.key).load(Ordering::Acquire);
        let retry_after = Some(Time::from_micros(until).since(now))
            .filter(|left| is_fresh && left.as_micros() > 0)?;
        self.hits.inc();
        Some(Verdict {
            over: true,
            used: check.limit.capacity.saturating_add(hits),
            remaining: 0,
            start_after: Span::ZERO,
            // More than the capacity is never admitted.
            retry_after: (hits <= check.limit.capacity).then_some(retry_after),
            reset_after: Time::from_micros(reset).since(now),
            source: Source::OverLimitCache,
        })
    }

    /// Learns at `now` from Redis' verdict on a request that was received at `asked`; `of_one` is
    /// the verdict on a single hit.
    pub(crate) fn learn(
        &self,
        check: &Check,
        verdict: &Verdict,
        of_one: impl FnOnce() -> Verdict,
        asked: Time,
        now: Time,
    ) {
        if verdict.over && verdict.remaining == 0 && is_cacheable(check) {
            let one = of_one();
            // A limit of 0 admits nothing until the counter expires.
            let room_after = one.retry_after.unwrap_or(one.reset_after);
            let [until, reset] =
                [room_after, one.reset_after].map(|after| now.plus(after).as_micros());
            let lost = self.slots.set(self.hash(check), [until, reset, asked.as_micros()]);
            if lost.is_some_and(|[until, _, asked]| {
                until > now.as_micros() && now.since(Time::from_micros(asked)) < AGE_MAX
            }) {
                self.overwritten.inc();
            }
        }
    }

    /// Hits of a counter may have been refunded at `now`: verdicts of earlier requests are not used
    /// any more.
    pub(crate) fn refunded(&self, key: &Key, now: Time) {
        self.refunded_at(key).fetch_max(now.as_micros(), Ordering::Release);
    }

    /// Any counter may have changed at `now`.
    pub(crate) fn all_refunded(&self, now: Time) {
        for refunded in &self.refunds {
            refunded.fetch_max(now.as_micros(), Ordering::Release);
        }
    }

    fn refunded_at(&self, key: &Key) -> &AtomicU64 {
        &self.refunds[usize::try_from(self.slots.hash(key) % REFUNDS_MAX as u64).unwrap_or(0)]
    }

    fn hash(&self, check: &Check) -> u64 {
        self.slots.hash((&check.key, &check.limit))
    }
}

/// Whether a verdict of over limit says until when the counter admits nothing. Not so if over-limit
/// hits count, since Redis has to count them; if slots are booked; or if leases may be released. A
/// sliding log says when it admits this call, not when it admits a smaller one.
fn is_cacheable(check: &Check) -> bool {
    let drops = check.limit.over_limit_hits == OverLimitHits::Drop;
    match check.limit.algorithm {
        _ if check.settles || matches!(check.hits, Hits::Refund(_)) => false,
        // Over-limit hits that count as by envoyproxy/ratelimit change no verdict.
        Algorithm::FixedWindow => true,
        Algorithm::SlidingWindow => drops,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            drops && check.limit.max_wait == Span::ZERO
        }
        Algorithm::SlidingLog => drops && check.hits == Hits::Add(1),
        Algorithm::Concurrency => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Limit, Terms, Unit};

    #[test]
    fn hits_that_have_to_be_charged_are_not_answered() {
        let limit = Limit::new(&Terms::new(5, Unit::Day, Algorithm::FixedWindow)).expect("a limit");
        let cache = OverLimitCache::new(100_000, &Metrics::new());
        let asked = Time::from_micros(9);
        let now = Time::from_micros(10);
        let plain = Check::new(Key::from("k"), limit, Hits::Add(1));
        let settlement = Check { settles: true, ..plain.clone() };
        let full =
            Verdict { over: true, used: 5, reset_after: Span::from_secs(9), ..Verdict::default() };
        cache.learn(&settlement, &full, || full, asked, now);
        assert_eq!(cache.get(&plain, now), None);
        cache.learn(&plain, &full, || full, asked, now);
        assert!(cache.get(&plain, now).is_some());
        assert_eq!(cache.get(&settlement, now), None);
    }
}
