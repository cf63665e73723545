//! The counters of rules. They outlive reloads, so that they only grow.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::check::{HITS_MAX, Hits, Verdict};
use crate::limit::{Algorithm, Limit, OverLimitHits};

pub use table::{METRIC_SERIES_MAX, SERIES_NAMES_BYTES_MAX, StatsTable};

mod exposition;
mod table;
#[cfg(test)]
mod tests;

/// The counters of one rule: those of envoyproxy/ratelimit, and refunded, queued and degraded hits.
#[derive(Debug, Default)]
pub struct RuleStats {
    pub(super) total_hits: AtomicU64,
    pub(super) over_limit: AtomicU64,
    pub(super) near_limit: AtomicU64,
    pub(super) within_limit: AtomicU64,
    pub(super) shadow_mode: AtomicU64,
    pub(super) over_limit_with_local_cache: AtomicU64,
    pub(super) given_back: AtomicU64,
    pub(super) queued: AtomicU64,
    pub(super) degraded: AtomicU64,
}

/// The outcome of one check, for [`RuleStats::record`].
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'o> {
    /// See [`Limit`].
    pub limit: &'o Limit,
    /// Of the request.
    pub hits: Hits,
    /// Of the store or its fallback.
    pub verdict: &'o Verdict,
    /// Nothing was consumed because another check of the request was over limit.
    pub not_consumed: bool,
    /// What happened to hits over the limit.
    pub disposition: Disposition,
    /// NEAR_LIMIT_RATIO.
    pub near_ratio: f32,
}

/// What happens to hits over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// They are rejected.
    Nothing,
    /// The rule is in shadow mode.
    Shadowed,
    /// They pass, with headers for the upstream.
    Degraded,
    /// They wait for their slot.
    Queued,
}

impl RuleStats {
    /// Adds one call, by the reference's arithmetic.
    pub fn record(&self, outcome: &Outcome<'_>) {
        let hits = match outcome.hits {
            Hits::Peek => return,
            Hits::Refund(hits) => {
                self.given_back.fetch_add(hits.min(HITS_MAX), Relaxed);
                return;
            }
            Hits::Add(hits) => hits.min(HITS_MAX),
        };
        self.total_hits.fetch_add(hits, Relaxed);
        if outcome.not_consumed {
            return;
        }
        let limit = u64::from(outcome.limit.capacity());
        let near = near_threshold(outcome.limit.capacity(), outcome.near_ratio);
        let after = outcome.verdict.used;
        let before = after.saturating_sub(hits);
        if !outcome.verdict.over {
            if outcome.disposition == Disposition::Queued {
                self.queued.fetch_add(hits, Relaxed);
            }
            self.within_limit.fetch_add(hits, Relaxed);
            if after > near {
                self.near_limit
                    .fetch_add(if before >= near { hits } else { after - near }, Relaxed);
            }
            return;
        }
        // Of a call over a fixed window that counts over-limit hits, the first hits count as within
        // the limit. Other calls are over limit as a whole, and so are verdicts below the limit: by
        // policy, or against one replica's share.
        let counts = outcome.limit.algorithm() == Algorithm::FixedWindow
            && outcome.limit.over_limit_hits() == OverLimitHits::Count;
        let splits = counts && after > limit;
        let rejected = if splits && before < limit {
            after - limit
        } else {
            hits
        };
        self.over_limit.fetch_add(rejected, Relaxed);
        if outcome.verdict.from_cache {
            self.over_limit_with_local_cache.fetch_add(hits, Relaxed);
        }
        if splits && before < limit {
            self.near_limit
                .fetch_add(limit.saturating_sub(near.max(before)), Relaxed);
        }
        match outcome.disposition {
            Disposition::Shadowed => self.shadow_mode.fetch_add(rejected, Relaxed),
            Disposition::Degraded => self.degraded.fetch_add(rejected, Relaxed),
            Disposition::Nothing | Disposition::Queued => return,
        };
    }
}

/// In 32-bit floats, as in envoyproxy/ratelimit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the arithmetic of envoyproxy/ratelimit"
)]
fn near_threshold(limit: u32, ratio: f32) -> u64 {
    (limit as f32 * ratio).floor() as u64
}
