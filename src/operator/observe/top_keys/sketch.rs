//! The keys with the greatest weight of a stream, in bounded memory: filtered Space-Saving (Homem
//! and Carvalho, "Finding top-k elements in data streams", 2010).
//!
//! ```text
//!  key --> tracked? -- yes --> add its weight
//!             \-- no --> add its weight to a cell of the filter;
//!                        more than the least tracked key? take its place
//! ```
//! Plain Space-Saving replaces a tracked key with every key that it does not know. With the filter
//! most keys of a stream with many keys change one cell. Counts begin when a key is tracked, so
//! they are exact for up to [`TOP_KEYS_MAX`] keys, and never more than the truth.

use hashbrown::HashTable;

use crate::operator::observe::top_keys::entries::Entries;
use crate::report::top::TOP_KEYS_MAX;
use crate::rules::stats::counts::HitCounts;

/// Cells of the filter. Fewer make more keys replace each other, at the cost of some hundred
/// instructions; of 100,000 keys with one hit each, one in ten does with these.
const CELLS: usize = 1_024;

/// The keys with the greatest weight.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    tracked: Vec<Tracked>,
    /// Indices of `tracked`, by hash.
    index: HashTable<usize>,
    /// Weights of keys that are not tracked. Empty until [`TOP_KEYS_MAX`] are.
    filter: Box<[u64]>,
    /// No tracked key has a lower rank.
    least_rank: u64,
    /// Indices of `tracked` that had the least rank when it was computed, as long as they may have
    /// it.
    least: Vec<usize>,
}

/// A key and what was counted of it.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    /// Identifies the key.
    pub(crate) hash: u64,
    pub(crate) entries: Entries,
    pub(crate) counts: HitCounts,
    /// Its weight, and what the filter had for it before: at least the weight of all its hits.
    rank: u64,
}

/// Whether a sketch may track one more key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capacity {
    Free,
    /// Too many keys are tracked elsewhere.
    Full,
}

/// The result of adding a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// The sketch tracks as many keys as before.
    Same,
    /// The sketch tracks one more key.
    New,
    /// The key is not counted: too many are tracked.
    Left,
}

impl Sketch {
    /// Adds the hits of a key. `set` writes its entries, if it begins to be tracked.
    pub(crate) fn add(
        &mut self,
        hash: u64,
        weight: u64,
        counts: HitCounts,
        capacity: Capacity,
        set: impl FnOnce(&mut Entries),
    ) -> Added {
        if let Some(&at) = self.index.find(hash, |&at| self.tracked[at].hash == hash) {
            let tracked = &mut self.tracked[at];
            tracked.rank += weight;
            tracked.counts.add(counts);
            return Added::Same;
        }
        if capacity == Capacity::Full {
            return Added::Left;
        }
        if self.tracked.len() < TOP_KEYS_MAX {
            let mut entries = Entries::default();
            set(&mut entries);
            self.tracked.push(Tracked { hash, entries, counts, rank: weight });
            self.insert(hash, self.tracked.len() - 1);
            return Added::New;
        }
        self.filter(hash, weight, counts, set);
        Added::Same
    }

    /// The tracked keys, in no order.
    pub(crate) fn into_tracked(self) -> Vec<Tracked> {
        self.tracked
    }

    /// Adds the hits of a key that is not tracked, while [`TOP_KEYS_MAX`] others are.
    fn filter(
        &mut self,
        hash: u64,
        weight: u64,
        counts: HitCounts,
        set: impl FnOnce(&mut Entries),
    ) {
        if self.filter.is_empty() {
            self.filter = vec![0; CELLS].into();
        }
        let cell = cell_of(hash);
        let rank = self.filter[cell] + weight;
        if rank > self.least_rank
            && let Some(at) = self.least_below(rank)
        {
            return self.replace(at, hash, rank, counts, set);
        }
        self.filter[cell] = rank;
    }

    /// Takes a tracked key of the least rank, if that is below `rank`.
    fn least_below(&mut self, rank: u64) -> Option<usize> {
        while let Some(at) = self.least.pop() {
            if self.tracked[at].rank == self.least_rank {
                return Some(at);
            }
        }
        let ranks = || self.tracked.iter().map(|tracked| tracked.rank);
        self.least_rank = ranks().min()?;
        if rank <= self.least_rank {
            return None;
        }
        let least = ranks().enumerate().filter(|(_, rank)| *rank == self.least_rank);
        self.least.extend(least.map(|(at, _)| at));
        self.least.pop()
    }

    fn replace(
        &mut self,
        at: usize,
        hash: u64,
        rank: u64,
        counts: HitCounts,
        set: impl FnOnce(&mut Entries),
    ) {
        let tracked = &mut self.tracked[at];
        let replaced = tracked.hash;
        self.filter[cell_of(replaced)] = tracked.rank;
        (tracked.hash, tracked.rank, tracked.counts) = (hash, rank, counts);
        set(&mut tracked.entries);
        if let Ok(entry) = self.index.find_entry(replaced, |&other| other == at) {
            entry.remove();
        }
        self.insert(hash, at);
    }

    fn insert(&mut self, hash: u64, at: usize) {
        let tracked = &self.tracked;
        self.index.insert_unique(hash, at, |&other| tracked[other].hash);
    }
}

/// By other bits than those that the table uses.
fn cell_of(hash: u64) -> usize {
    let [_, _, high, low, ..] = hash.to_be_bytes();
    usize::from(u16::from_be_bytes([high, low])) % CELLS
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::BuildHasher as _;

    use hashbrown::DefaultHashBuilder;
    use proptest::prelude::*;

    use super::*;
    use crate::rules::Entry;

    fn add(sketch: &mut Sketch, hasher: &DefaultHashBuilder, key: u64, hits: u64) -> Added {
        let counts = HitCounts { hits, over_limit: 0 };
        let name = key.to_string();
        sketch.add(hasher.hash_one(key), hits, counts, Capacity::Free, |entries| {
            entries.set(std::iter::once(Entry::new("user", &name)));
        })
    }

    /// Hits by value.
    fn counted(sketch: Sketch) -> HashMap<u64, u64> {
        let tracked = sketch.into_tracked().into_iter();
        let counted = tracked.map(|tracked| {
            let entry = tracked.entries.iter().next().expect("one entry");
            let value = str::from_utf8(entry.value).expect("it is text");
            (value.parse().expect("a number"), tracked.counts.hits)
        });
        counted.collect()
    }

    proptest! {
        #[test]
        fn counts_are_exact_up_to_keys_max(keys in prop::collection::vec((0..TOP_KEYS_MAX as u64, 1..9_u64), 0..999)) {
            let mut sketch = Sketch::default();
            let hasher = DefaultHashBuilder::default();
            let mut expected = HashMap::new();
            for (key, hits) in keys {
                add(&mut sketch, &hasher, key, hits);
                *expected.entry(key).or_insert(0) += hits;
            }
            prop_assert_eq!(counted(sketch), expected);
        }
    }

    #[test]
    fn frequent_keys_are_found_among_many_and_never_overstated() {
        let mut sketch = Sketch::default();
        let hasher = DefaultHashBuilder::default();
        // 20 keys have 1,000 hits each, which begin after 100,000 keys had one.
        let rare = |from: u64| from..from + 100_000;
        for key in rare(1_000) {
            add(&mut sketch, &hasher, key, 1);
        }
        for (at, key) in rare(200_000).take(20_000).enumerate() {
            add(&mut sketch, &hasher, key, 1);
            add(&mut sketch, &hasher, at as u64 % 20, 1);
        }
        let counted = counted(sketch);
        assert_eq!(counted.len(), TOP_KEYS_MAX);
        for key in 0..20 {
            // A cell has about 100 hits of other keys before.
            let hits = counted.get(&key).copied().unwrap_or_default();
            assert!((700..=1_000).contains(&hits), "{key}: {hits}");
        }
        let rare = counted.into_iter().filter(|(key, _)| *key >= 1_000);
        assert!(rare.into_iter().all(|(_, hits)| hits == 1));
    }

    #[test]
    fn few_keys_of_a_uniform_stream_replace_others() {
        let mut sketch = Sketch::default();
        let hasher = DefaultHashBuilder::default();
        let mut replaced = 0;
        for key in 0..100_000_u64 {
            let counts = HitCounts { hits: 1, over_limit: 0 };
            sketch.add(hasher.hash_one(key), 1, counts, Capacity::Free, |_| {
                replaced += 1;
            });
        }
        assert!(replaced < 15_000, "{replaced} of 100,000");
    }

    #[test]
    fn at_the_bound_only_tracked_keys_are_counted() {
        let mut sketch = Sketch::default();
        let hasher = DefaultHashBuilder::default();
        assert_eq!(add(&mut sketch, &hasher, 1, 1), Added::New);
        let counts = HitCounts { hits: 2, over_limit: 2 };
        for (key, expected) in [(1, Added::Same), (2, Added::Left)] {
            let added = sketch.add(hasher.hash_one(key), 2, counts, Capacity::Full, |_| ());
            assert_eq!(added, expected);
        }
        assert_eq!(counted(sketch), HashMap::from([(1, 3)]));
    }
}
