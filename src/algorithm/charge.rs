//! What a call does to a counter that knows how much of it is spent: the same sentence for windows, which count hits, and for
//! buckets, which count credits.

use crate::check::Hits;
use crate::limit::RefusedHits;

/// One call, in the units of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// What to do.
    pub kind: Kind,
    /// What it takes, or gives back.
    pub cost: u64,
    /// As much as may be spent.
    pub full: u64,
    /// As much as refused calls can make it.
    pub deepest: u64,
}

/// What to do with the cost. The numbers are those of the Lua twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Take it, also when that is too much.
    Count = 1,
    /// Take it if there is room.
    Drop = 2,
    /// Take nothing.
    Look = 3,
    /// Give it back.
    GiveBack = 4,
}

impl Charge {
    /// What is spent after the call, and whether the call was over.
    pub fn apply(self, spent: u64) -> (u64, bool) {
        match self.kind {
            Kind::Look => (spent, spent > self.full),
            Kind::GiveBack => {
                let left = spent.saturating_sub(self.cost);
                (left, left > self.full)
            }
            Kind::Count | Kind::Drop => {
                let charged = spent + self.cost;
                match self.kind {
                    _ if charged <= self.full => (charged, false),
                    Kind::Drop => (spent, true),
                    _ => (charged.min(self.deepest), true),
                }
            }
        }
    }
}

impl Kind {
    /// What these hits do where refused ones are treated like that.
    pub fn of(hits: Hits, refused_hits: RefusedHits) -> Self {
        match (hits, refused_hits) {
            (Hits::Look, _) => Self::Look,
            (Hits::GiveBack(_), _) => Self::GiveBack,
            (Hits::Add(_), RefusedHits::Count) => Self::Count,
            (Hits::Add(_), RefusedHits::Drop) => Self::Drop,
        }
    }
}
