//! The charge of a call: the same arithmetic for windows, which count hits, and buckets, which
//! count credits.

use crate::limits::check::{Hits, hits_max};
use crate::limits::{Limit, OverLimitHits};

/// A call, in the units of its counter, all of them below 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// Positive for hits, negative for a refund, 0 for a peek.
    pub cost: i64,
    /// Whether a charge over the limit takes nothing. For a refund: whether hits over the limit are
    /// given back as well, which makes it a grant.
    pub drops: bool,
    /// The most that may be spent.
    pub full: u64,
    /// The most that over-limit hits can spend.
    pub deepest: u64,
}

impl Charge {
    /// The charge of `hits` that cost `cost` units.
    pub fn new(
        hits: Hits,
        cost: u64,
        over_limit_hits: OverLimitHits,
        full: u64,
        deepest: u64,
    ) -> Self {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let (cost, drops) = match hits {
            Hits::Add(_) => (cost, over_limit_hits == OverLimitHits::Drop),
            Hits::Peek => (0, false),
            Hits::Refund(_) => (-cost, false),
        };
        Self { cost, drops, full, deepest }
    }

    /// For a counter of hits that counts up to `deepest`.
    pub fn of_hits(limit: &Limit, hits: Hits, deepest: u64) -> Self {
        Self::new(
            hits,
            hits.count().min(hits_max(limit)),
            limit.over_limit_hits,
            limit.requests,
            deepest,
        )
    }

    /// Takes this much without a limit.
    pub fn taking(spent: u64) -> Self {
        Self {
            cost: i64::try_from(spent).unwrap_or(i64::MAX),
            drops: false,
            full: u64::MAX,
            deepest: u64::MAX,
        }
    }

    /// A refund as a grant, which admits its hits even if more than the limit was spent.
    #[must_use]
    pub fn granting(self) -> Self {
        Self { drops: self.drops || self.cost < 0, ..self }
    }

    /// The refund that grants hits to a counter with `spent` units.
    pub(crate) fn granted(self, spent: u64) -> Self {
        let over = i64::try_from(spent.saturating_sub(self.full)).unwrap_or(i64::MAX);
        Self { cost: self.cost.saturating_sub(over), drops: false, ..self }
    }

    /// The cost of hits; 0 for a refund and a peek.
    pub fn wanted(self) -> u64 {
        self.cost.max(0).unsigned_abs()
    }

    /// Whether the charge exceeds the limit.
    pub fn is_over(self, spent: u64) -> bool {
        spent.saturating_add_signed(self.cost) > self.full
    }

    /// Spent after the charge, over limit or not.
    pub fn charged(self, spent: u64) -> u64 {
        spent.saturating_add_signed(self.cost).min(self.deepest)
    }

    /// Units added and units given back; one of them is 0.
    pub fn change(self, spent: u64) -> (u64, u64) {
        (self.charged(spent).saturating_sub(spent), self.cost.min(0).unsigned_abs())
    }
}
