//! What goes in and out of the leases of a counter.

use crate::base::time::{Span, Time};
use crate::limits::algorithm::Counter;
use crate::limits::algorithm::lease::held::Held;
use crate::limits::check::Verdict;

/// What to do with a call.
#[derive(Debug)]
pub enum Answer {
    /// All hits are reserved.
    Reserved(Asked),
    /// Over limit.
    Over(Verdict),
    /// The store decides the hits that are not reserved.
    Ask(Asked),
}

/// Hits that are reserved for a call. `settle` must follow.
#[derive(Debug)]
pub struct Asked {
    pub(super) reserved: Held,
    pub(super) is_probe: bool,
}

/// The outcome of a call with reserved hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was admitted, or it is unknown whether it was.
    Used,
    /// It was over limit.
    Unused,
    /// There is no verdict.
    Failed,
}

/// Hits to charge ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// The most hits.
    pub hits: u64,
    /// The beginning of the next window, if they are for that.
    pub next_window: Option<Time>,
}

/// The reply to a [`Take`].
#[derive(Debug)]
pub struct TakeReply {
    /// Hits that were charged.
    pub granted: u64,
    /// The time whose window they were charged to.
    pub charged_at: Time,
    /// The counter after the take, as of that time.
    pub counter: Counter,
    /// The time between request and reply.
    pub round_trip: Span,
}

/// Unused hits to refund. `given_back` must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GiveBack(pub(super) Held);

/// Hits since the last call of `take_events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// Charged ahead.
    pub taken: u64,
    /// Handed out.
    pub used: u64,
    /// Refunded without being used.
    pub given_back: u64,
    /// Stranded because their window is over.
    pub window: u64,
    /// Stranded because it is unknown whether they were charged or refunded.
    pub unknown: u64,
    /// Stranded because the counter was reset.
    pub dropped: u64,
}

impl GiveBack {
    /// How many.
    pub fn hits(&self) -> u64 {
        self.0.hits
    }

    /// A time in their window.
    pub fn window(&self) -> Time {
        self.0.from
    }

    /// The end of their window.
    pub fn until(&self) -> Time {
        self.0.until
    }
}

impl Asked {
    /// How many hits are reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved.hits
    }

    /// Whether its outcome makes a difference.
    pub fn is_empty(&self) -> bool {
        self.reserved.hits == 0 && !self.is_probe
    }
}
