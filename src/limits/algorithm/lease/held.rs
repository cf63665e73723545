//! Hits that are charged and not handed out yet.

use crate::base::time::{Span, Time};

/// The hits that a replica holds of a counter, besides those of the next window.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The rest of earlier takes, which is used first.
    older: Held,
    /// The newest take.
    newer: Held,
    /// Hits whose window ended, or whose slot was needed for those of another window.
    pub(super) stranded: u64,
}

/// Hits of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Held {
    pub(super) hits: u64,
    /// The first of them were taken then.
    pub(super) taken_at: Time,
    /// They can be used from then on.
    pub(super) from: Time,
    /// They can be used until then.
    pub(super) until: Time,
}

impl Slots {
    /// Hits that can be used `now`.
    pub(super) fn usable(&self, now: Time) -> u64 {
        self.older.usable(now) + self.newer.usable(now)
    }

    /// All hits, usable or not.
    pub(super) fn hits(&self) -> u64 {
        self.older.hits + self.newer.hits
    }

    /// Hits of windows that begin then or later. By a clock that is late, they may not have begun.
    pub(super) fn from(&self, begin: Time) -> u64 {
        let slots = [self.older, self.newer].into_iter();
        let later = slots.filter(|held| held.from >= begin);
        later.map(|held| held.hits).sum()
    }

    /// Keeps a take.
    pub(super) fn keep(&mut self, held: Held) {
        let earlier = std::mem::replace(&mut self.newer, held);
        self.stranded += self.older.add(earlier);
    }

    /// Takes usable hits out.
    pub(super) fn take_out(&mut self, hits: u64, now: Time) -> Held {
        let first = if self.older.usable(now) > 0 { self.older } else { self.newer };
        let older = self.older.use_up_to(hits, now);
        let newer = self.newer.use_up_to(hits - older, now);
        Held { hits: older + newer, ..first }
    }

    /// Puts hits back that were taken out.
    pub(super) fn put_back(&mut self, held: Held, now: Time) {
        if held.hits > 0 {
            self.stranded += self.older.add(held);
            self.strand(now);
        }
    }

    /// Removes what nothing can use any more.
    pub(super) fn strand(&mut self, now: Time) {
        self.stranded += self.older.strand(now) + self.newer.strand(now);
    }

    /// Takes some out.
    pub(super) fn remove(&mut self, is: impl Fn(&Held) -> bool) -> impl Iterator<Item = Held> {
        let slots = [&mut self.older, &mut self.newer].into_iter();
        let slots = slots.filter(move |held| held.hits > 0 && is(held));
        slots.map(std::mem::take)
    }
}

impl Held {
    /// Hits that can be used `now`.
    pub(super) fn usable(&self, now: Time) -> u64 {
        if self.from <= now && now < self.until { self.hits } else { 0 }
    }

    /// Takes up to this many out. Returns how many.
    pub(super) fn use_up_to(&mut self, hits: u64, now: Time) -> u64 {
        let used = self.usable(now).min(hits);
        self.hits -= used;
        used
    }

    /// Takes all out, if their window is over.
    pub(super) fn strand(&mut self, now: Time) -> u64 {
        if now < self.until {
            return 0;
        }
        std::mem::take(&mut self.hits)
    }

    /// Adds hits. Those of another window are returned: they cannot be kept together.
    pub(super) fn add(&mut self, other: Self) -> u64 {
        if self.hits == 0 {
            *self = other;
            return 0;
        }
        if other.until != self.until {
            return other.hits;
        }
        self.hits += other.hits;
        self.taken_at = self.taken_at.min(other.taken_at);
        0
    }

    /// Whether they have to be given back.
    pub(super) fn is_expired(&self, now: Time, lifetime: Span) -> bool {
        now.since(self.taken_at) >= lifetime
    }
}
