//! How hot a counter is, and how many hits one take may have.

use std::num::NonZeroU32;

use crate::base::time::{Span, Time};

/// Hits in a span from which a counter is hot. With less, most takes would be for keys that are
/// not asked for again.
pub(super) const HOT: u64 = 4;
/// The fewest hits of a take.
const TAKE_MIN: u64 = 2;
/// A take has at most this part of what remains, divided by the replicas: all of them together
/// never take more than half of it.
pub const PART_OF_REMAINING: u64 = 2;
/// A take has at most this part of the limit, divided by the replicas.
const PART_OF_LIMIT: u64 = 15;
/// A replica holds at most one and a half takes, so all of them together this part of the limit.
const PART_HELD: u64 = 10;

/// Hits in the present span and in the one before, admitted or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// The index of the present span.
    span: u64,
    hits: u32,
    before: u32,
}

impl Demand {
    /// Adds hits at `now`.
    pub fn add(&mut self, hits: u64, now: Time, span: Span) {
        self.advance(now, span);
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        self.hits = self.hits.saturating_add(hits);
    }

    /// The demand of a span: the greater of both, so that it doubles with each span while a counter
    /// gets hot.
    pub fn at(mut self, now: Time, span: Span) -> u64 {
        self.advance(now, span);
        self.hits.max(self.before).into()
    }

    /// Whether hits are worth being taken ahead.
    pub fn is_hot(self, now: Time, span: Span) -> bool {
        self.at(now, span) >= HOT
    }

    /// In two numbers, for a table.
    pub fn to_words(self) -> [u64; 2] {
        [self.span, u64::from(self.hits) << 32 | u64::from(self.before)]
    }

    /// Of what [`Self::to_words`] made.
    pub fn from_words([span, counts]: [u64; 2]) -> Self {
        let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        Self { span, hits: half(counts >> 32), before: half(counts) }
    }

    fn advance(&mut self, now: Time, span: Span) {
        let index = now.as_micros() / span.as_micros().max(1);
        (self.hits, self.before) = match index.checked_sub(self.span) {
            // A clock that went back changes nothing.
            None | Some(0) => return,
            Some(1) => (0, self.hits),
            Some(_) => (0, 0),
        };
        self.span = index;
    }
}

/// The hits of a take; 0 if none is worth it. `held` are those of earlier takes, also the reserved
/// ones of calls in flight, which may return.
pub(super) fn take_size(
    demand: u64,
    remaining: u64,
    held: u64,
    capacity: u64,
    replicas: NonZeroU32,
) -> u64 {
    let replicas = u64::from(replicas.get());
    let most =
        (remaining / (PART_OF_REMAINING * replicas)).min(capacity / (PART_OF_LIMIT * replicas));
    let held_max = (demand.saturating_mul(3) / 2).min(capacity / (PART_HELD * replicas));
    let hits = demand.min(most).min(held_max.saturating_sub(held));
    if hits < TAKE_MIN { 0 } else { hits }
}
