//! What a call does to a counter that knows how much of it is spent: the same sentence for windows,
//! which count hits, and for buckets, which count credits.

use crate::check::{HITS_MAX, Hits};
use crate::limit::{Limit, OverLimitHits};

/// One call, in the units of its counter, all of them below 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// What it takes. Below nothing it is given back, and nothing is a look.
    pub cost: i64,
    /// Whether it takes nothing where there is no room for all of it.
    pub drops: bool,
    /// As much as may be spent.
    pub full: u64,
    /// As much as refused calls can make it.
    pub deepest: u64,
}

impl Charge {
    /// Hits that cost so much together, by a rule that treats refused ones like that.
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
        Self {
            cost,
            drops,
            full,
            deepest,
        }
    }

    /// The same in a counter of which each hit is one, and that counts so many at most.
    pub fn of_hits(limit: &Limit, hits: Hits, deepest: u64) -> Self {
        Self::new(
            hits,
            hits.count().min(HITS_MAX),
            limit.over_limit_hits(),
            limit.requests().into(),
            deepest,
        )
    }

    /// One that takes so much, whatever there is.
    pub fn taking(spent: u64) -> Self {
        Self {
            cost: i64::try_from(spent).unwrap_or(i64::MAX),
            drops: false,
            full: u64::MAX,
            deepest: u64::MAX,
        }
    }

    /// What it wants to take; what is given back, and a look, want nothing.
    pub fn wanted(self) -> u64 {
        self.cost.max(0).unsigned_abs()
    }

    /// Whether there is no room for it.
    pub fn is_over(self, spent: u64) -> bool {
        spent.saturating_add_signed(self.cost) > self.full
    }

    /// What is spent after it, however much that is.
    pub fn charged(self, spent: u64) -> u64 {
        spent.saturating_add_signed(self.cost).min(self.deepest)
    }

    /// What it adds, and what it takes away: one of them is nothing.
    pub fn change(self, spent: u64) -> (u64, u64) {
        (
            self.charged(spent).saturating_sub(spent),
            self.cost.min(0).unsigned_abs(),
        )
    }
}
