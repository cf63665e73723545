//! Hits that are charged and not handed out yet.

use crate::base::time::{Span, Time};

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

impl Held {
    /// Hits that can be used `now`.
    pub(super) fn usable(&self, now: Time) -> u64 {
        if self.from <= now && now < self.until {
            self.hits
        } else {
            0
        }
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
        self.hits > 0 && now.since(self.taken_at) >= lifetime
    }
}
