//! Caches counters that cannot admit even one hit, and until when.
//!
//! A flood of over-limit requests is answered here without a Redis round trip. Only `remaining ==
//! 0` is cached: a request for 100 hits that was over limit says nothing about a request for one.
//! The limit is part of what is looked up, so a higher one asks Redis.
//!
//! Refunds make a cached verdict wrong before its time. Those of this process are known: a verdict
//! is used only if its request came after the last refund of its counter, under whatever limit, so
//! a reply that was overtaken by a refund is not used either. Those of other Tollgate replicas are
//! not known, so no verdict is used for longer than [`AGE_MAX`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::check::{Check, Hits, Key, Verdict};
use crate::limit::{Algorithm, OverLimitHits};
use crate::store::redis::direct_mapped::DirectMappedTable;
use crate::telemetry::metric::{self, Metrics};
use crate::time::{Span, Time};

/// How long a refund by another Tollgate replica may go unnoticed. It costs one request to Redis
/// per second for each counter that is over its limit and asked for.
pub const AGE_MAX: Span = Span::from_secs(1);
/// Counters share so many times of a last refund; 8 KiB. A refund of one makes Redis be asked for
/// the others, too.
const REFUNDS_MAX: usize = 1_024;

/// The cache.
#[derive(Debug)]
pub struct OverLimitCache {
    /// For a key and a limit: until when there is no room, until when anything is left of what was
    /// used, and when the request came that was told so.
    slots: DirectMappedTable<3>,
    /// When counters were last refunded, by the hash of their keys.
    refunds: Box<[AtomicU64]>,
    hits: metric::Counter,
    overwritten: metric::Counter,
}

impl OverLimitCache {
    /// A cache of so many bytes.
    pub fn new(bytes: u64, metrics: &Metrics) -> Self {
        let hits = metrics.counter(
            "tollgate_over_limit_cache_hits_total",
            "Checks that were refused without asking Redis.",
        );
        let overwritten = metrics.counter(
            "tollgate_over_limit_cache_overwritten_total",
            "Counters that were forgotten by the over-limit cache before their time, because another one needed the room.",
        );
        Self {
            slots: DirectMappedTable::new(
                usize::try_from(bytes).unwrap_or(usize::MAX) / DirectMappedTable::<3>::SLOT_BYTES,
            ),
            refunds: (0..REFUNDS_MAX).map(|_| AtomicU64::new(0)).collect(),
            hits: metrics.reference_gauge_of(
                hits,
                "ratelimit.localcache.hitCount",
                "ratelimit_localcache_hitCount",
                "Checks that were refused without asking Redis.",
            ),
            overwritten: metrics.reference_gauge_of(
                overwritten,
                "ratelimit.localcache.evacuateCount",
                "ratelimit_localcache_evacuateCount",
                "Counters that were forgotten by the over-limit cache before their time.",
            ),
        }
    }

    /// The verdict of a check whose counter is known to have no room. A look is always asked.
    pub fn get(&self, check: &Check, now: Time) -> Option<Verdict> {
        let Hits::Add(hits) = check.hits else {
            return None;
        };
        let [until, reset, asked] = self.slots.get(self.hash(check))?;
        let is_fresh = now.since(Time::from_micros(asked)) < AGE_MAX
            && asked > self.refunded_at(&check.key).load(Ordering::Acquire);
        let retry_after = Some(Time::from_micros(until).since(now))
            .filter(|left| is_fresh && left.as_micros() > 0)?;
        self.hits.inc();
        Some(Verdict {
            over: true,
            used: u64::from(check.limit.capacity()).saturating_add(hits),
            remaining: 0,
            start_after: Span::ZERO,
            // More than there ever is never passes.
            retry_after: (hits <= check.limit.capacity().into()).then_some(retry_after),
            reset_after: Time::from_micros(reset).since(now),
            from_cache: true,
        })
    }

    /// Learns at `now` from what Redis replied to a request that came at `asked`; `of_one` is what
    /// it would have replied to a single hit.
    pub fn learn(
        &self,
        check: &Check,
        verdict: &Verdict,
        of_one: impl FnOnce() -> Verdict,
        asked: Time,
        now: Time,
    ) {
        if verdict.over && verdict.remaining == 0 && may_be_remembered(check) {
            let one = of_one();
            // Of a limit that nothing ever fits into nothing is new until its counter is.
            let room_after = one.retry_after.unwrap_or(one.reset_after);
            let [until, reset] =
                [room_after, one.reset_after].map(|after| now.plus(after).as_micros());
            let lost = self
                .slots
                .set(self.hash(check), [until, reset, asked.as_micros()]);
            if lost.is_some_and(|[until, _, asked]| {
                until > now.as_micros() && now.since(Time::from_micros(asked)) < AGE_MAX
            }) {
                self.overwritten.inc();
            }
        }
    }

    /// Hits of a counter may have been refunded by `now`: verdicts of requests that came before are
    /// not used any more.
    pub fn refunded(&self, key: &Key, now: Time) {
        self.refunded_at(key)
            .fetch_max(now.as_micros(), Ordering::Release);
    }

    fn refunded_at(&self, key: &Key) -> &AtomicU64 {
        &self.refunds[usize::try_from(self.slots.hash(key) % REFUNDS_MAX as u64).unwrap_or(0)]
    }

    fn hash(&self, check: &Check) -> u64 {
        self.slots.hash((&check.key, &check.limit))
    }
}

/// Whether a refusal says for how long there will be no room for anybody. What counts refused hits
/// has to be told of them: the debt is what it is for. The slots of a queue are booked at the
/// counter, and who holds a place may give it back, or ask again. A log tells when there is
/// room for this call, not when there is for a smaller one.
fn may_be_remembered(check: &Check) -> bool {
    let drops = check.limit.over_limit_hits() == OverLimitHits::Drop;
    match check.limit.algorithm() {
        _ if matches!(check.hits, Hits::Refund(_)) => false,
        Algorithm::FixedWindow => true,
        Algorithm::SlidingWindow => drops,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            drops && check.limit.max_wait() == Span::ZERO
        }
        Algorithm::SlidingLog => drops && check.hits == Hits::Add(1),
        Algorithm::Concurrency => false,
    }
}
