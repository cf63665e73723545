//! What a call does to a counter that knows how much of it is spent: the same sentence for windows, which count hits, and for
//! buckets, which count credits.

use crate::check::Hits;
use crate::limit::RefusedHits;

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
    pub fn new(hits: Hits, cost: u64, refused_hits: RefusedHits, full: u64, deepest: u64) -> Self {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let (cost, drops) = match hits {
            Hits::Add(_) => (cost, refused_hits == RefusedHits::Drop),
            Hits::Look => (0, false),
            Hits::GiveBack(_) => (-cost, false),
        };
        Self { cost, drops, full, deepest }
    }

    /// What is spent after the call, and whether the call was over.
    pub fn apply(self, spent: u64) -> (u64, bool) {
        let over = spent.saturating_add_signed(self.cost) > self.full;
        if over && self.drops { (spent, over) } else { (self.charged(spent), over) }
    }

    /// What is spent after it, however much that is.
    pub fn charged(self, spent: u64) -> u64 {
        spent.saturating_add_signed(self.cost).min(self.deepest)
    }
}
