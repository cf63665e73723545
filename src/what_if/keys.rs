//! The keys with the most over-limit requests, in bounded memory.
//!
//! Counts are exact up to [`KEYS_MAX`] keys. At the bound the half with the fewest requests is
//! dropped; if one of them is over limit again, it starts from zero. So a count is never too high,
//! and too low by at most the largest count that was dropped so far.

use std::mem;

use hashbrown::HashMap;

/// Keys that are counted for each rule: about a megabyte.
const KEYS_MAX: usize = 10_000;

/// Over-limit requests by key.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    counts: HashMap<Box<str>, u64>,
    /// By how much a count may be too low.
    pub(crate) missed_max: u64,
}

impl Keys {
    /// Counts one request.
    pub(crate) fn add(&mut self, key: String) {
        if let Some(count) = self.counts.get_mut(&*key) {
            *count += 1;
            return;
        }
        if self.counts.len() == KEYS_MAX {
            self.drop_half();
        }
        self.counts.insert(key.into(), 1);
    }

    /// The keys with the highest counts, the highest first.
    pub(crate) fn top(&self, number: usize) -> Vec<(&str, u64)> {
        let mut keys: Vec<(&str, u64)> =
            self.counts.iter().map(|(key, count)| (&**key, *count)).collect();
        keys.sort_unstable_by(|(one, few), (other, many)| many.cmp(few).then(one.cmp(other)));
        keys.truncate(number);
        keys
    }

    fn drop_half(&mut self) {
        let mut keys: Vec<(Box<str>, u64)> = mem::take(&mut self.counts).into_iter().collect();
        keys.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
        let dropped = keys.drain(KEYS_MAX / 2..).map(|(_, count)| count).max();
        self.missed_max = self.missed_max.max(dropped.unwrap_or(0));
        self.counts.extend(keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_keys_are_found_among_more_than_the_bound() {
        let mut keys = Keys::default();
        for number in 0..5 * KEYS_MAX {
            keys.add(format!("rare={number}"));
            if number % 10 < 3 {
                keys.add(format!("frequent={}", number % 3));
            }
        }
        assert!(keys.counts.len() <= KEYS_MAX);
        let top = keys.top(3);
        assert!(
            top.iter()
                .all(|(key, count)| key.starts_with("frequent")
                    && *count == 5 * KEYS_MAX as u64 / 10),
            "{top:?}"
        );
        assert_eq!(keys.missed_max, 1, "only rare keys were dropped");
    }
}
