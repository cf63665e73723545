//! Recorded requests decided by both sets of rules: which answers change.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use hashbrown::HashSet;

use crate::base::text::Text;
use crate::report::comparison::{KeyChanges, OverLimitChange, TrafficRule, TrafficView};
use crate::report::outcome::Outcome;
use crate::rules::explain::counter_entries;
use crate::what_if::engine::Engine;
use crate::what_if::keys::Keys;
use crate::what_if::traffic::Record;

/// Keys that are shown of a rule.
const KEYS_SHOWN: usize = 10;
/// Changed keys of a rule that are distinguished. Of more, their number is a lower bound.
pub(crate) const KEYS_COUNTED_MAX: usize = 1_000_000;

/// Descriptors of one rule.
#[derive(Default)]
struct RuleTally {
    requests: u64,
    newly_over: u64,
    no_longer_over: u64,
    /// The keys with the most changes.
    keys: Keys,
    /// Hashes of all changed keys.
    changed_keys: HashSet<u64>,
}

/// Answers by the old and by the new rules.
pub(crate) struct AnswerDiff {
    old: Engine,
    new: Engine,
    /// Requests with another answer.
    changed: u64,
    rules: BTreeMap<(String, Arc<str>), RuleTally>,
    hasher: RandomState,
}

/// The answer to a request.
struct Answer {
    /// `None` for an error.
    over_limit: Option<bool>,
    outcomes: Vec<Outcome>,
}

impl AnswerDiff {
    pub(crate) fn new(old: Engine, new: Engine) -> Self {
        Self {
            old,
            new,
            changed: 0,
            rules: BTreeMap::new(),
            hasher: RandomState::new(),
        }
    }

    /// Decides a request by both, and counts what differs.
    pub(crate) fn add(&mut self, record: &Record<'_>) {
        let [before, after] = [&mut self.old, &mut self.new].map(|engine| answer(engine, record));
        self.changed += u64::from(before.over_limit != after.over_limit);
        let outcomes = before.outcomes.iter().zip(&after.outcomes);
        for (descriptor, (before, after)) in record.query.descriptors.iter().zip(outcomes) {
            // The rule of the new set, so that a removed one is shown only if no other applies.
            let (rules, path) = match (counted_by(after), counted_by(before)) {
                (Some(path), _) => (self.new.rules(), path),
                (None, Some(path)) => (self.old.rules(), path),
                (None, None) => continue,
            };
            let domain = Text(record.query.domain).to_string();
            let tally = self.rules.entry((domain, path.clone())).or_default();
            tally.requests += 1;
            match OverLimitChange::new(before.over_limit, after.over_limit) {
                OverLimitChange::Same => continue,
                OverLimitChange::NewlyOver => tally.newly_over += 1,
                OverLimitChange::NoLongerOver => tally.no_longer_over += 1,
            }
            let key = counter_entries(&rules, record.query.domain, descriptor);
            if tally.changed_keys.len() < KEYS_COUNTED_MAX {
                tally.changed_keys.insert(self.hasher.hash_one(&key));
            }
            tally.keys.add(key);
        }
    }

    /// The rules with changed answers. `requests` were decided.
    pub(crate) fn finish(self, requests: u64) -> TrafficView {
        let rules = self.rules.into_iter();
        let mut rules: Vec<_> = rules
            .map(|((domain, path), tally)| tally.view(domain, &path))
            .collect();
        rules.retain(|rule| rule.changed() > 0);
        rules.sort_by_key(|rule| Reverse(rule.changed()));
        TrafficView {
            requests,
            changed: self.changed,
            rules,
        }
    }
}

fn answer(engine: &mut Engine, record: &Record<'_>) -> Answer {
    let mut outcomes = Vec::new();
    let decided = engine.decide(&record.query, record.time, |decision| {
        outcomes = decision.outcomes();
    });
    Answer {
        over_limit: decided.ok().map(|response| response.over_limit),
        outcomes,
    }
}

/// The rule that counts a descriptor.
fn counted_by(outcome: &Outcome) -> Option<&Arc<str>> {
    outcome.rule.as_ref().filter(|_| outcome.key.is_some())
}

impl RuleTally {
    fn view(self, domain: String, path: &str) -> TrafficRule {
        let keys = self.keys.top(KEYS_SHOWN).into_iter();
        let keys = keys.map(|(key, changed)| KeyChanges {
            key: key.to_owned(),
            changed,
        });
        TrafficRule {
            domain,
            rule: path.to_owned(),
            requests: self.requests,
            newly_over: self.newly_over,
            no_longer_over: self.no_longer_over,
            keys_changed: self.changed_keys.len(),
            keys: keys.collect(),
        }
    }
}
