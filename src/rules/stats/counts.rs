//! The counters and the usage of one rule, and the reference's arithmetic.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::base::time::{MICROS_PER_SECOND, Span, Time};
use crate::limits::OverLimitHits;
use crate::limits::check::{Check, Hits, LeaseEvent, LeaseHits, Leased, Source, Verdict};

/// Limits of a rule that only have crossings: its own, and those of former names.
const RETIRED_LIMITS_MAX: usize = 16;

/// The counters of one rule.
#[derive(Debug, Default)]
pub struct RuleStats {
    /// By [`Count`].
    counts: [AtomicU64; 10],
    /// Hits in use after the last verdict in the upper half, and in the lower half the second since
    /// the epoch at which the counter is unused again. One word, so that a request stores it at
    /// once.
    usage: AtomicU64,
    /// Empty until a rule has `consistency: leased`.
    lease_hits: OnceLock<Arc<LeaseHits>>,
    /// By the names of limits: those beside the rule's own, and those with `warn_at`.
    limits: Mutex<BTreeMap<Box<str>, Arc<LimitStats>>>,
}

/// The usage of one of several limits of a rule, and the crossings of its thresholds.
#[derive(Debug, Default)]
pub struct LimitStats {
    /// Hits in use after the last verdict.
    used: AtomicU64,
    /// The second since the epoch at which its counter is unused again.
    resets_at: AtomicU64,
    /// How often hits have crossed each threshold, in percent.
    crossings: Mutex<BTreeMap<u8, u64>>,
}

/// Hits, and those of them that were over limit, as in the metrics of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HitCounts {
    /// All hits.
    pub hits: u64,
    /// Hits over limit.
    pub over_limit: u64,
}

/// The counters of a rule: those of envoyproxy/ratelimit, then those of Tollgate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    TotalHits,
    OverLimit,
    NearLimit,
    WithinLimit,
    ShadowMode,
    OverLimitWithLocalCache,
    Refunded,
    Queued,
    Degraded,
    Admitted,
}

/// A treatment of the hits of a check other than being admitted or rejected at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    Nothing,
    /// Nothing was consumed because another check of the request was over limit.
    NotConsumed,
    /// Admitted over the limit: the rule is in shadow mode.
    Shadowed,
    /// Admitted over the limit, with headers for the upstream.
    Degraded,
    /// Admitted over the limit for another reason: a quota beside others, or SHADOW_MODE.
    Admitted,
    /// They wait for their slot.
    Queued,
}

impl HitCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.over_limit = self.over_limit.saturating_add(other.over_limit);
    }
}

impl RuleStats {
    /// Adds one check. Hits above `near_ratio` of the limit count as near it. Returns its hits;
    /// none for a peek or a refund.
    pub(crate) fn record(
        &self,
        check: &Check,
        verdict: &Verdict,
        disposition: Disposition,
        near_ratio: f32,
    ) -> HitCounts {
        let hits = check.counted_hits();
        match check.hits {
            Hits::Peek => return HitCounts::default(),
            Hits::Refund(_) => {
                self.add(Count::Refunded, hits);
                return HitCounts::default();
            }
            Hits::Add(_) => self.add(Count::TotalHits, hits),
        }
        let over_limit = if disposition == Disposition::NotConsumed {
            0
        } else {
            self.record_consumed(hits, check, verdict, disposition, near_ratio)
        };
        HitCounts { hits, over_limit }
    }

    /// Adds hits that were admitted or over limit, and returns the latter.
    fn record_consumed(
        &self,
        hits: u64,
        check: &Check,
        verdict: &Verdict,
        disposition: Disposition,
        near_ratio: f32,
    ) -> u64 {
        let limit = check.limit.capacity;
        let near = near_threshold(check.limit.capacity, near_ratio);
        let after = verdict.used;
        let before = after.saturating_sub(hits);
        if !verdict.over {
            if disposition == Disposition::Queued {
                self.add(Count::Queued, hits);
            }
            self.add(Count::WithinLimit, hits);
            if after > near {
                let near_hits = if before >= near { hits } else { after - near };
                self.add(Count::NearLimit, near_hits);
            }
            return 0;
        }
        // Of a call over a fixed window that counts over-limit hits, the first hits count as within
        // the limit. Other calls are over limit as a whole, and so are verdicts below the limit: by
        // policy, or against one replica's share.
        let splits = check.limit.algorithm.has_windows()
            && check.limit.over_limit_hits == OverLimitHits::Count
            && before < limit
            && limit < after;
        let rejected = if splits { after - limit } else { hits };
        self.add(Count::OverLimit, rejected);
        if verdict.source == Source::OverLimitCache {
            self.add(Count::OverLimitWithLocalCache, hits);
        }
        if splits {
            self.add(Count::NearLimit, limit.saturating_sub(near.max(before)));
        }
        match disposition {
            Disposition::Shadowed => self.add(Count::ShadowMode, rejected),
            Disposition::Degraded => self.add(Count::Degraded, rejected),
            Disposition::Admitted => {}
            Disposition::Nothing | Disposition::NotConsumed | Disposition::Queued => {
                return rejected;
            }
        }
        self.add(Count::Admitted, rejected);
        rejected
    }

    /// Stores the usage that a verdict at `now` states. Meaningful for a rule with one counter.
    pub(crate) fn set_usage(&self, verdict: &Verdict, now: Time) {
        let reset = now.plus(verdict.reset_after).as_micros().div_ceil(1_000_000);
        let half = |number: u64| number.min(u64::from(u32::MAX));
        self.usage.store(half(verdict.used) << 32 | half(reset), Relaxed);
    }

    /// Hits in use as of the last verdict; 0 once the counter is unused again.
    pub(crate) fn used(&self, now: Time) -> u64 {
        let usage = self.usage.load(Relaxed);
        let reset_micros = (usage & u64::from(u32::MAX)) * 1_000_000;
        if now.as_micros() < reset_micros { usage >> 32 } else { 0 }
    }

    pub(super) fn add(&self, count: Count, hits: u64) {
        self.counts[count as usize].fetch_add(hits, Relaxed);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    /// Hits, those over limit that were rejected, and those that were admitted.
    pub(crate) fn hits(&self) -> [u64; 3] {
        let [hits, over, admitted] =
            [Count::TotalHits, Count::OverLimit, Count::Admitted].map(|count| self.get(count));
        [hits, over.saturating_sub(admitted), admitted]
    }

    /// Leases whose hits it counts.
    pub(crate) fn lease(&self, lifetime: Option<Span>) -> Arc<Leased> {
        let hits = self.lease_hits.get_or_init(Arc::default).clone();
        Arc::new(Leased { lifetime, hits })
    }

    /// Hits that were taken ahead.
    pub(super) fn leased(&self, event: LeaseEvent) -> u64 {
        self.lease_hits.get().map_or(0, |hits| hits.get(event))
    }

    /// Of the limit with this name, which may be empty for the rule's own.
    pub(crate) fn of_limit(&self, name: &str) -> Arc<LimitStats> {
        let mut limits = self.limits.lock();
        limits.entry(name.into()).or_default().clone()
    }

    /// Of each limit that has some, by name.
    pub(super) fn limits(&self) -> BTreeMap<Box<str>, Arc<LimitStats>> {
        self.limits.lock().clone()
    }

    /// Removes limits that are not in use and have no crossings, and of the others those beyond
    /// [`RETIRED_LIMITS_MAX`].
    pub(super) fn forget_retired_limits(&self) {
        let mut retired = 0;
        self.limits.lock().retain(|_, limit| {
            if Arc::strong_count(limit) > 1 {
                return true;
            }
            retired += 1;
            retired <= RETIRED_LIMITS_MAX && !limit.crossings.lock().is_empty()
        });
    }

    pub(super) fn is_zero(&self) -> bool {
        let is_unleased = self.leased(LeaseEvent::Taken) == 0;
        is_unleased && self.counts.iter().all(|count| count.load(Relaxed) == 0)
    }
}

impl LimitStats {
    /// Stores the usage that a verdict at `now` states. Meaningful for a limit with one counter.
    pub(crate) fn set_usage(&self, verdict: &Verdict, now: Time) {
        let reset = now.plus(verdict.reset_after).as_micros();
        let reset = reset.div_ceil(MICROS_PER_SECOND);
        self.used.store(verdict.used, Relaxed);
        self.resets_at.store(reset, Relaxed);
    }

    /// Hits in use as of the last verdict; 0 once the counter is unused again.
    pub(crate) fn used(&self, now: Time) -> u64 {
        let is_in_use = now.as_micros() / MICROS_PER_SECOND < self.resets_at.load(Relaxed);
        if is_in_use { self.used.load(Relaxed) } else { 0 }
    }

    /// Counts that hits have crossed a threshold.
    pub(crate) fn crossed(&self, percent: u8) {
        *self.crossings.lock().entry(percent).or_default() += 1;
    }

    /// By threshold, in percent.
    pub(super) fn crossings(&self) -> BTreeMap<u8, u64> {
        self.crossings.lock().clone()
    }
}

/// In 32-bit floats, as in envoyproxy/ratelimit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the arithmetic of envoyproxy/ratelimit"
)]
fn near_threshold(limit: u64, ratio: f32) -> u64 {
    (limit as f32 * ratio).floor() as u64
}
