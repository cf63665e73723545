//! Sums of the hits of keys: those whose values are dropped are one.

use std::collections::HashMap;

use crate::operator::observe::top_keys::windows::By;
use crate::report::counter::Entries;
use crate::report::top::{KeyHits, TOP_KEYS_MAX};
use crate::rules::stats::counts::HitCounts;

/// Hits of the keys of a rule.
#[derive(Debug, Default)]
pub(crate) struct Sums(HashMap<Entries, HitCounts>);

impl Sums {
    pub(crate) fn add(&mut self, key: Entries, counts: HitCounts) {
        self.0.entry(key).or_default().add(counts);
    }

    /// The first keys, those without hits left out.
    pub(crate) fn first(self, by: By) -> Vec<KeyHits> {
        let keys = self.0.into_iter();
        let keys =
            keys.map(|(key, HitCounts { hits, over_limit })| KeyHits { key, hits, over_limit });
        let mut keys: Vec<_> = keys.filter(|key| by.of(key.counts()) > 0).collect();
        keys.sort_unstable_by(|one, other| {
            let order = |key: &KeyHits| (by.of(key.counts()), key.hits);
            let by_hits = order(other).cmp(&order(one));
            by_hits.then_with(|| one.key.cmp(&other.key))
        });
        keys.truncate(TOP_KEYS_MAX);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(value: &str, hits: u64, over_limit: u64) -> KeyHits {
        KeyHits { key: vec![["user".to_owned(), value.to_owned()]], hits, over_limit }
    }

    fn add(sums: &mut Sums, key: &KeyHits) {
        sums.add(key.key.clone(), key.counts());
    }

    #[test]
    fn hits_are_summed_by_key_and_ordered() {
        let counted = [key("ann", 5, 2), key("bob", 9, 0), key("eve", 3, 3), key("ann", 2, 2)];
        let ann = key("ann", 7, 4);
        let bob = key("bob", 9, 0);
        let eve = key("eve", 3, 3);
        for (by, expected) in
            [(By::OverLimit, vec![ann.clone(), eve.clone()]), (By::Hits, vec![bob, ann, eve])]
        {
            let mut sums = Sums::default();
            for key in &counted {
                add(&mut sums, key);
            }
            assert_eq!(sums.first(by), expected);
        }
    }

    #[test]
    fn sums_saturate() {
        let mut sums = Sums::default();
        for _ in 0..3 {
            add(&mut sums, &key("ann", u64::MAX, 1));
        }
        assert_eq!(sums.first(By::Hits), [key("ann", u64::MAX, 3)]);
    }
}
