//! Counts of the keys of a rule in the last 1, 5 and 60 minutes.
//!
//! ```text
//!  1m    |·|·|·|·|·|·|x    six slots of 10 s, and the current one
//!  5m    |·|·|·|·|·|x      five of a minute
//!  60m   |·|·| … |·|·|x    twelve of 5 minutes
//! ```
//! So a window is up to a sixth longer than its name. A slot keeps the [`TOP_KEYS_MAX`] keys with
//! the most hits, and those with the most hits over limit.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::base::named_enum::named_enum;
use crate::base::time::{Span, Time};
use crate::operator::observe::top_keys::entries::Entries;
use crate::report::top::TOP_KEYS_MAX;
use crate::rules::stats::counts::HitCounts;

named_enum! {
    /// How long ago hits may be.
    pub enum Window {
        /// The last minute.
        Minute = "1m",
        /// The last five minutes.
        FiveMinutes = "5m",
        /// The last hour.
        Hour = "60m",
    }
}

named_enum! {
    /// The order of keys.
    pub enum By {
        /// Hits over limit.
        OverLimit = "over_limit",
        /// Hits.
        Hits = "hits",
    }
}

/// The length of a slot of the last hour.
pub(crate) const HISTORY_SLOT_MINUTES: usize = 5;

/// The keys of one rule.
#[derive(Debug, Default)]
pub(crate) struct Windows([VecDeque<Slot>; Window::ALL.len()]);

/// A key and its hits.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub(crate) entries: Arc<Entries>,
    pub(crate) counts: HitCounts,
}

/// Bytes of a key in a slot, without its entries.
const SLOT_KEY_BYTES: usize = 96;

#[derive(Debug)]
struct Slot {
    /// Its start, in lengths of a slot.
    number: u64,
    /// By hash.
    keys: HashMap<u64, Counted>,
}

impl Window {
    /// The length of a slot, and how many are counted before the current one.
    const fn slots(self) -> (Span, u64) {
        match self {
            Self::Minute => (Span::from_secs(10), 6),
            Self::FiveMinutes => (Span::from_secs(60), 5),
            Self::Hour => (Span::from_secs(300), 12),
        }
    }

    const fn number(self, time: Time) -> u64 {
        time.as_micros() / self.slots().0.as_micros()
    }

    const fn first(self, now: Time) -> u64 {
        self.number(now).saturating_sub(self.slots().1)
    }
}

impl By {
    /// The count that decides.
    pub(crate) const fn of(self, counts: HitCounts) -> u64 {
        match self {
            Self::OverLimit => counts.over_limit,
            Self::Hits => counts.hits,
        }
    }
}

impl Windows {
    /// Adds hits of a key at a time that is not before that of earlier hits. `free` is how many
    /// more bytes of keys slots may have. Returns whether all of them were counted.
    pub(crate) fn add(&mut self, at: Time, hash: u64, key: &Counted, free: &mut usize) -> bool {
        let mut is_counted = true;
        for window in Window::ALL {
            let slots = &mut self.0[window as usize];
            let number = window.number(at);
            if slots.back().is_none_or(|last| last.number < number) {
                slots.push_back(Slot { number, keys: HashMap::new() });
            }
            let slot = slots.back_mut().expect("there is a last one");
            if let Some(known) = slot.keys.get_mut(&hash) {
                known.counts.add(key.counts);
            } else if let Some(less) = free.checked_sub(key.bytes()) {
                *free = less;
                slot.keys.insert(hash, key.clone());
            } else {
                is_counted = false;
            }
        }
        is_counted
    }

    /// Removes the slots before all windows, and keys beyond the bound. Returns the bytes of
    /// those that are left.
    pub(crate) fn trim(&mut self, now: Time) -> usize {
        for window in Window::ALL {
            let slots = &mut self.0[window as usize];
            slots.retain(|slot| slot.number >= window.first(now));
            // Earlier ones were trimmed when they were the last.
            if let Some(last) = slots.back_mut() {
                last.trim();
            }
        }
        let keys = self.0.iter().flatten().flat_map(|slot| slot.keys.values());
        keys.map(Counted::bytes).sum()
    }

    /// The hits of a key in each slot of the last hour, the current one last. `None` if it is in
    /// none of them.
    pub(crate) fn history(&self, hash: u64, now: Time) -> Option<Vec<HitCounts>> {
        let window = Window::Hour;
        let slots = self.0[window as usize].iter();
        let found = slots.filter_map(|slot| Some((slot.number, slot.keys.get(&hash)?.counts)));
        let found: HashMap<u64, HitCounts> = found.collect();
        let numbers = window.first(now)..=window.number(now);
        let counts = |number| found.get(&number).copied();
        let history: Vec<_> = numbers.map(counts).collect();
        let is_known = history.iter().any(Option::is_some);
        is_known.then(|| history.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// The hits of a window by key, in no order.
    pub(crate) fn sum(&self, window: Window, now: Time) -> Vec<Counted> {
        let mut keys: HashMap<u64, Counted> = HashMap::new();
        let slots = self.0[window as usize].iter();
        for slot in slots.filter(|slot| slot.number >= window.first(now)) {
            for (&hash, key) in &slot.keys {
                let known = keys.entry(hash).or_insert_with(|| Counted {
                    entries: key.entries.clone(),
                    counts: HitCounts::default(),
                });
                known.counts.add(key.counts);
            }
        }
        keys.into_values().collect()
    }
}

impl Counted {
    fn bytes(&self) -> usize {
        SLOT_KEY_BYTES + self.entries.bytes()
    }
}

impl Slot {
    fn trim(&mut self) {
        if self.keys.len() <= 2 * TOP_KEYS_MAX {
            return;
        }
        let mut kept = HashSet::new();
        for by in By::ALL {
            let counts = self.keys.iter();
            let mut order: Vec<_> = counts
                .map(|(&hash, key)| (by.of(key.counts), hash))
                .filter(|(count, _)| *count > 0)
                .collect();
            order.sort_unstable_by(|one, other| other.cmp(one));
            kept.extend(order.into_iter().take(TOP_KEYS_MAX).map(|(_, hash)| hash));
        }
        self.keys.retain(|hash, _| kept.contains(hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Entry;

    fn at(secs: u64) -> Time {
        Time::from_micros(1_700_000_400_000_000).plus(Span::from_secs(secs))
    }

    fn add(windows: &mut Windows, secs: u64, key: u64, hits: u64, over_limit: u64) {
        let mut entries = Entries::default();
        entries.set(std::iter::once(Entry::new("user", &key.to_string())));
        let key_hits = Counted { entries: entries.into(), counts: HitCounts { hits, over_limit } };
        assert!(windows.add(at(secs), key, &key_hits, &mut 9_000));
        windows.trim(at(secs));
    }

    /// Hits of one key in each window.
    fn hits(windows: &Windows, secs: u64) -> [u64; 3] {
        Window::ALL.map(|window| {
            let keys = windows.sum(window, at(secs));
            keys.iter().map(|key| key.counts.hits).sum()
        })
    }

    #[test]
    fn hits_leave_a_window_when_their_slot_does() {
        let mut windows = Windows::default();
        add(&mut windows, 5, 1, 10, 0);
        add(&mut windows, 65, 1, 1, 0);
        for (secs, expected) in [
            (65, [11, 11, 11]),
            (69, [11, 11, 11]),
            (70, [1, 11, 11]),
            (130, [0, 11, 11]),
            (359, [0, 11, 11]),
            (360, [0, 1, 11]),
            (420, [0, 0, 11]),
            (3_899, [0, 0, 11]),
            (3_900, [0, 0, 0]),
        ] {
            assert_eq!(hits(&windows, secs), expected, "after {secs} s");
        }
        let entries = [2, "user".len(), 2, "1".len()];
        let bytes = SLOT_KEY_BYTES + entries.into_iter().sum::<usize>();
        assert_eq!(windows.trim(at(3_899)), bytes);
        assert_eq!(windows.trim(at(3_900)), 0);
    }

    #[test]
    fn history_of_a_key_has_a_count_for_each_slot() {
        let mut windows = Windows::default();
        for (secs, hits) in [(0, 1), (299, 2), (300, 4), (3_599, 8)] {
            add(&mut windows, secs, 7, hits, hits / 2);
        }
        let history = |key, secs| {
            let history = windows.history(key, at(secs))?;
            Some(history.iter().map(|counts| counts.hits).collect::<Vec<_>>())
        };
        assert_eq!(history(7, 3_600), Some(vec![3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0]));
        assert_eq!(history(7, 3_900).map(|hits| hits[0]), Some(4));
        assert_eq!((history(7, 9_000), history(8, 0)), (None, None));
    }

    #[test]
    fn a_slot_keeps_the_keys_with_the_most_hits_of_each_kind() {
        let mut windows = Windows::default();
        for key in 0..300 {
            // The last have the most hits, the first are over limit.
            let over_limit = 300_u64.saturating_sub(key * 2);
            add(&mut windows, 0, key, 1_000 + key, over_limit);
        }
        let mut kept = windows.sum(Window::Minute, at(0));
        assert_eq!(kept.len(), 2 * TOP_KEYS_MAX);
        kept.sort_by_key(|key| key.counts.hits);
        let hits = |at: usize| kept[at].counts.hits;
        assert_eq!((hits(0), hits(99), hits(100), hits(199)), (1_000, 1_099, 1_200, 1_299));
    }

    #[test]
    fn at_the_bound_only_known_keys_are_counted() {
        let mut windows = Windows::default();
        add(&mut windows, 0, 1, 1, 0);
        let key = Counted { entries: Arc::default(), counts: HitCounts { hits: 5, over_limit: 0 } };
        assert!(windows.add(at(0), 1, &key, &mut 0));
        assert!(!windows.add(at(0), 2, &key, &mut 0));
        assert_eq!(hits(&windows, 0), [6, 6, 6]);
        // Clients choose the length of a key, so it is counted.
        let long = "x".repeat(200);
        let mut entries = Entries::default();
        entries.set(std::iter::once(Entry::new("user", &long)));
        let long = Counted { entries: entries.into(), ..key };
        assert!(long.bytes() > SLOT_KEY_BYTES + 200);
        let mut free = Window::ALL.len() * long.bytes();
        assert!(windows.add(at(0), 3, &long, &mut free));
        assert_eq!(free, 0);
        let before = windows.trim(at(0));
        assert!(!windows.add(at(0), 4, &long, &mut (long.bytes() - 1)));
        assert_eq!(windows.trim(at(0)), before);
    }
}
