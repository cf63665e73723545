//! Sliding log: exactly at most N hits in any period, because every call is stored for a period.
//!
//! The state is an entry for each call, so it is bounded: beyond [`LOG_ENTRIES_MAX`] a call is
//! added to the newest entry, which takes the later time. Its hits then leave later than they
//! could, and never sooner: the promise holds. Hits of the same µs are one entry.

use std::collections::VecDeque;

use crate::base::time::{Span, Time};
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::decide::Decide;
use crate::limits::check::{Call, Verdict};
use crate::limits::{EXACT_MAX, LOG_ENTRIES_MAX, Limit};

/// The most hits of a log: half of [`EXACT_MAX`], since the Lua twin adds two such numbers.
pub const LOG_HITS_MAX: u64 = EXACT_MAX / 2;

/// The calls of one period, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlidingLog {
    entries: VecDeque<Entry>,
    /// Hits of all entries.
    used: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: Time,
    hits: u64,
}

impl Decide for SlidingLog {
    const LUA: &'static str = include_str!("sliding_log.lua");

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        Charge::of_hits(limit, call.hits, LOG_HITS_MAX - 1)
    }

    /// Calls in the future mean that the clock went back. They are kept as if they were made now,
    /// so calls are neither admitted sooner nor wait longer than one period.
    fn advance(&mut self, limit: &Limit, now: Time) {
        while let Some(oldest) =
            self.entries.front().filter(|oldest| now.since(oldest.at) >= limit.period)
        {
            self.used -= oldest.hits;
            self.entries.pop_front();
        }
        let mut later = 0;
        while let Some(newest) = self.entries.back().filter(|newest| newest.at > now) {
            later += newest.hits;
            self.entries.pop_back();
        }
        self.used -= later;
        self.add(now, later);
    }

    fn spent(&self, _: &Limit, _: Time) -> u64 {
        self.used
    }

    /// A refund is taken from the newest entries.
    fn apply(&mut self, _: &Limit, now: Time, _: Call<'_>, charge: Charge) {
        let (added, given_back) = charge.change(self.used);
        self.give_back(given_back);
        self.add(now, added);
    }

    /// `extra`: the hits that have to expire for the call to pass, when the last of them came, when
    /// the newest came, and the number of entries.
    fn fill_from_reply(&mut self, _: &Limit, _: Time, spent: u64, extra: &[u64]) {
        if let &[leaving, left, newest, _] = extra {
            let leaving = leaving.min(spent);
            self.add(Time::from_micros(left), leaving);
            self.add(Time::from_micros(newest), spent - leaving);
        }
    }

    fn is_new(&self) -> bool {
        self.used == 0
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.entries.capacity() * size_of::<Entry>()
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let requests = limit.requests;
        let wanted = Self::charge(limit, call).wanted();
        let newest = self.entries.back().map(|newest| newest.at.plus(limit.period).since(now));
        // For a limit of 0 any time will do: a period.
        let never = if requests == 0 { limit.period } else { Span::ZERO };
        let retry_after = (over && wanted <= requests)
            .then(|| self.falls_by((self.used + wanted).saturating_sub(requests), limit, now));
        Verdict::of_hits(limit, self.used, over, retry_after, newest.unwrap_or(never))
    }
}

impl SlidingLog {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the log has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, oldest first: when they came, and their hits.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (Time, u64)> {
        self.entries.iter().map(|entry| (entry.at, entry.hits))
    }

    fn add(&mut self, at: Time, hits: u64) {
        if hits == 0 {
            return;
        }
        self.used += hits;
        let is_full = self.entries.len() >= LOG_ENTRIES_MAX as usize;
        match self.entries.back_mut() {
            Some(newest) if newest.at == at || is_full => {
                *newest = Entry { at, hits: newest.hits + hits }
            }
            _ => self.entries.push_back(Entry { at, hits }),
        }
    }

    fn give_back(&mut self, mut hits: u64) {
        while hits > 0
            && let Some(newest) = self.entries.back_mut()
        {
            let taken = hits.min(newest.hits);
            newest.hits -= taken;
            self.used -= taken;
            hits -= taken;
            if newest.hits == 0 {
                self.entries.pop_back();
            }
        }
    }

    /// The time from `now` until this many hits have expired.
    fn falls_by(&self, hits: u64, limit: &Limit, now: Time) -> Span {
        let mut left = 0;
        let enough = self.entries.iter().find(|entry| {
            left += entry.hits;
            left >= hits
        });
        enough.map_or(Span::ZERO, |entry| entry.at.plus(limit.period).since(now))
    }
}
