//! Remembers which counters have no room for even one hit, and until when.
//!
//! A client that floods is refused here, without a trip to Redis. Only `remaining == 0` is remembered: being refused 100 hits says
//! nothing about one. The limit is part of what is looked up, so a higher one asks Redis.

use crate::check::{Check, Hits, Verdict};
use crate::limit::{Algorithm, RefusedHits};
use crate::store::redis::slots::{SLOT_BYTES, Slots};
use crate::telemetry::metric::{self, Metrics};
use crate::time::{Span, Time};

/// The cache.
#[derive(Debug)]
pub struct OverLimitCache {
    /// For a key and a limit: until when there is no room, and until when anything is left of what was used.
    slots: Slots,
    hits: metric::Counter,
    overwritten: metric::Counter,
}

impl OverLimitCache {
    /// A cache of so many bytes.
    pub fn new(bytes: u64, metrics: &Metrics) -> Self {
        let hits = metrics.counter("tollgate_over_limit_cache_hits_total", "Checks that were refused without asking Redis.");
        let overwritten = metrics.counter(
            "tollgate_over_limit_cache_overwritten_total",
            "Counters that were forgotten by the over-limit cache before their time, because another one needed the room.",
        );
        Self {
            slots: Slots::new(usize::try_from(bytes).unwrap_or(usize::MAX) / SLOT_BYTES),
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

    /// The refusal of a check whose counter is known to have no room. A look is always asked.
    pub fn get(&self, check: &Check, now: Time) -> Option<Verdict> {
        let Hits::Add(hits) = check.hits else { return None };
        let (until, reset) = self.slots.get(self.hash(check))?;
        let retry_after = Some(Time::from_micros(until).since(now)).filter(|left| left.as_micros() > 0)?;
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

    /// Learns at `now` from what Redis said; `of_one` is what it would have said to a single hit.
    pub fn learn(&self, check: &Check, verdict: &Verdict, of_one: impl FnOnce() -> Verdict, now: Time) {
        if let Hits::GiveBack(_) = check.hits {
            self.slots.forget(self.hash(check));
        } else if verdict.over && verdict.remaining == 0 && may_be_remembered(check) {
            let one = of_one();
            // Of a limit that nothing ever fits into nothing is new until its counter is.
            let room_after = one.retry_after.unwrap_or(one.reset_after);
            let lost = self.slots.set(self.hash(check), (now.plus(room_after).as_micros(), now.plus(one.reset_after).as_micros()));
            if lost.is_some_and(|(until, _)| until > now.as_micros()) {
                self.overwritten.inc();
            }
        }
    }

    fn hash(&self, check: &Check) -> u64 {
        self.slots.hash((&check.key, &check.limit))
    }
}

/// Whether a refusal says for how long there will be no room for anybody. What counts refused hits has to be told of them: the debt is what
/// it is for. The slots of a queue are booked at the counter, and who holds a place may give it back, or ask again. A log tells when there is
/// room for this call, not when there is for a smaller one.
fn may_be_remembered(check: &Check) -> bool {
    let drops = check.limit.refused_hits() == RefusedHits::Drop;
    match check.limit.algorithm() {
        Algorithm::FixedWindow => true,
        Algorithm::SlidingWindow => drops,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => drops && check.limit.max_wait() == Span::ZERO,
        Algorithm::SlidingLog => drops && check.hits == Hits::Add(1),
        Algorithm::Concurrency => false,
    }
}
