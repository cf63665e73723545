//! Hits of the keys of rules, as `/api/v1/top` answers them, and their sums.

use std::collections::{BTreeMap, HashMap};

use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::rules::stats::counts::HitCounts;
use crate::top_keys::TOP_KEYS_MAX;
use crate::top_keys::windows::By;

/// A key as it is shown: keys and values of its entries.
pub(crate) type Key = Vec<[String; 2]>;

/// A rule and its keys with hits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RuleHits {
    pub(crate) domain: String,
    /// Its path.
    pub(crate) rule: String,
    pub(crate) keys: Vec<KeyHits>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyHits {
    pub(crate) key: Key,
    pub(crate) counts: HitCounts,
}

/// Hits by domain and rule, and by key.
#[derive(Debug, Default)]
pub(crate) struct Sums(BTreeMap<(String, String), HashMap<Key, HitCounts>>);

impl Sums {
    pub(crate) fn add(&mut self, (domain, rule): (&str, &str), key: Key, counts: HitCounts) {
        let of_rule = self.0.entry((domain.to_owned(), rule.to_owned()));
        let of_key = of_rule.or_default().entry(key).or_default();
        of_key.add(counts);
    }

    /// Adds the answer of another replica.
    pub(crate) fn add_answer(&mut self, rules: Vec<RuleHits>) {
        for RuleHits { domain, rule, keys } in rules {
            let of_rule = self.0.entry((domain, rule)).or_default();
            for KeyHits { key, counts } in keys {
                of_rule.entry(key).or_default().add(counts);
            }
        }
    }

    /// The first keys of each rule, those without hits left out. Rules without keys are left out.
    pub(crate) fn first(self, by: By) -> Vec<RuleHits> {
        let rules = self.0.into_iter().filter_map(|((domain, rule), keys)| {
            let keys = keys
                .into_iter()
                .map(|(key, counts)| KeyHits { key, counts });
            let mut keys: Vec<_> = keys.filter(|key| by.of(key.counts) > 0).collect();
            keys.sort_unstable_by(|one, other| {
                let order = |key: &KeyHits| (by.of(key.counts), key.counts.hits);
                let by_hits = order(other).cmp(&order(one));
                by_hits.then_with(|| one.key.cmp(&other.key))
            });
            keys.truncate(TOP_KEYS_MAX);
            (!keys.is_empty()).then_some(RuleHits { domain, rule, keys })
        });
        rules.collect()
    }
}

impl Serialize for RuleHits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rule = serializer.serialize_struct("RuleHits", 3)?;
        rule.serialize_field("domain", &self.domain)?;
        rule.serialize_field("rule", &self.rule)?;
        rule.serialize_field("keys", &self.keys)?;
        rule.end()
    }
}

impl Serialize for KeyHits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut key = serializer.serialize_struct("KeyHits", 3)?;
        key.serialize_field("key", &self.key)?;
        key.serialize_field("hits", &self.counts.hits)?;
        key.serialize_field("over_limit", &self.counts.over_limit)?;
        key.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(value: &str, hits: u64, over_limit: u64) -> KeyHits {
        KeyHits {
            key: vec![["user".to_owned(), value.to_owned()]],
            counts: HitCounts { hits, over_limit },
        }
    }

    fn answer(keys: &[KeyHits]) -> Vec<RuleHits> {
        vec![RuleHits {
            domain: "d".to_owned(),
            rule: "d.user".to_owned(),
            keys: keys.to_vec(),
        }]
    }

    #[test]
    fn answers_are_summed_by_key_and_ordered() {
        let answers = [
            answer(&[key("ann", 5, 2), key("bob", 9, 0), key("eve", 3, 3)]),
            answer(&[key("ann", 2, 2)]),
        ];
        let (ann, bob, eve) = (key("ann", 7, 4), key("bob", 9, 0), key("eve", 3, 3));
        for (by, expected) in [
            (By::OverLimit, vec![ann.clone(), eve.clone()]),
            (By::Hits, vec![bob, ann, eve]),
        ] {
            let mut sums = Sums::default();
            for answer in &answers {
                sums.add_answer(answer.clone());
            }
            assert_eq!(sums.first(by), answer(&expected));
        }
    }

    #[test]
    fn sums_saturate() {
        let mut sums = Sums::default();
        for _ in 0..3 {
            sums.add_answer(answer(&[key("ann", u64::MAX, 1)]));
        }
        assert_eq!(sums.first(By::Hits), answer(&[key("ann", u64::MAX, 3)]));
    }

    #[test]
    fn json_is_that_of_the_document() {
        let expected = json!([{
            "domain": "d", "rule": "d.user",
            "keys": [{"key": [["user", "ann"]], "hits": 2, "over_limit": 1}],
        }]);
        assert_eq!(json!(answer(&[key("ann", 2, 1)])), expected);
    }
}
