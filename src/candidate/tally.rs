//! Counts what candidate rules change, per rule, since they were loaded.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::base::time::Time;
use crate::observe::redact::{Quoted, Values};
use crate::report::comparison::{CandidateExample, CandidateRule, CandidateView, OverLimitChange};
use crate::rules::RuleSet;
use crate::telemetry::metric::Series;

/// Changed keys of candidate rules that are distinguished: 16 bytes each. Of more, the counts of
/// keys are lower bounds.
// bound candidate_keys_max: `keys_changed` is a lower bound; tollgate_candidate_keys_full_total
pub(crate) const KEYS_MAX: usize = 100_000;
/// The last changes by candidate rules of a key that had none before.
// bound candidate_examples_max: the oldest is removed; -
pub(crate) const EXAMPLES_MAX: usize = 20;
const HELP: &str =
    "Descriptors by what the candidate rules change about them, since these were loaded.";

/// A descriptor, compared.
#[derive(Clone, Copy)]
pub(crate) struct Changed<'c> {
    pub(crate) domain: &'c str,
    pub(crate) rule: &'c Arc<str>,
    pub(crate) key_hash: u64,
    pub(crate) change: OverLimitChange,
}

/// The counts of one candidate rule set. Its rules, and so the entries, are bounded by the files.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    of: Option<Arc<RuleSet>>,
    pub(crate) requests: u64,
    domains: BTreeMap<Box<str>, BTreeMap<Arc<str>, RuleTally>>,
    examples: VecDeque<Quoted<CandidateExample>>,
    keys: usize,
}

#[derive(Debug, Default)]
struct RuleTally {
    /// By [`OverLimitChange`].
    changes: [u64; 3],
    /// Hashes of changed keys.
    keys: HashSet<u64>,
}

impl Tally {
    /// Begins again unless it counts these rules.
    pub(crate) fn restart_if_not_of(&mut self, rules: Option<&Arc<RuleSet>>) {
        if self.of.as_ref().map(Arc::as_ptr) != rules.map(Arc::as_ptr) {
            *self = Self {
                of: rules.cloned(),
                ..Self::default()
            };
        }
    }

    /// Counts one descriptor, which `describe` shows. Returns whether its key is counted if it
    /// changed: false if too many are known.
    pub(crate) fn count(
        &mut self,
        changed: Changed<'_>,
        now: Time,
        describe: impl FnOnce() -> Quoted<String>,
    ) -> bool {
        let Changed {
            domain,
            rule,
            key_hash,
            change,
        } = changed;
        if !self.domains.contains_key(domain) {
            self.domains.insert(domain.into(), BTreeMap::new());
        }
        let rules = self.domains.get_mut(domain).expect("it was added");
        let tally = rules.entry(rule.clone()).or_default();
        tally.changes[change as usize] += 1;
        if change == OverLimitChange::Same || tally.keys.contains(&key_hash) {
            return true;
        }
        if self.keys == KEYS_MAX {
            return false;
        }
        tally.keys.insert(key_hash);
        self.keys += 1;
        if self.examples.len() == EXAMPLES_MAX {
            self.examples.pop_front();
        }
        let example = describe().map(|_, descriptor| CandidateExample {
            time: now.to_rfc3339_millis(),
            domain: domain.to_owned(),
            rule: rule.to_string(),
            change,
            descriptor,
        });
        self.examples.push_back(example);
        true
    }

    /// The results. Examples are newest first.
    pub(crate) fn results(&self, values: Values) -> CandidateView {
        let rules = self.domains.iter().flat_map(|(domain, rules)| {
            let rules = rules.iter();
            rules.map(move |(rule, tally)| CandidateRule {
                domain: domain.to_string(),
                rule: rule.to_string(),
                same: tally.changes[OverLimitChange::Same as usize],
                newly_over: tally.changes[OverLimitChange::NewlyOver as usize],
                no_longer_over: tally.changes[OverLimitChange::NoLongerOver as usize],
                keys_changed: tally.keys.len(),
            })
        });
        let newest_first = self.examples.iter().rev();
        CandidateView {
            requests: self.requests,
            rules: rules.collect(),
            examples: newest_first.map(|one| one.seen(values).clone()).collect(),
        }
    }

    /// Adds the metrics.
    pub(crate) fn collect(&self, series: &mut Vec<Series>) {
        for (domain, rules) in &self.domains {
            for (rule, tally) in rules {
                for change in OverLimitChange::ALL {
                    let labels = vec![
                        ("domain", domain.to_string()),
                        ("rule", rule.to_string()),
                        ("change", change.name().to_owned()),
                    ];
                    let count = tally.changes[change as usize];
                    series.push(Series::counter(
                        "tollgate_candidate_decisions_total",
                        HELP,
                        labels,
                        count,
                        None,
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(tally: &mut Tally, key_hash: u64, change: OverLimitChange) -> bool {
        let changed = Changed {
            domain: "d",
            rule: &"d.user".into(),
            key_hash,
            change,
        };
        let describe = || Quoted::default().map(|_, ()| key_hash.to_string());
        tally.count(changed, Time::default(), describe)
    }

    fn of_user(tally: &Tally) -> ([u64; 3], usize) {
        let tally = &tally.domains["d"]["d.user"];
        (tally.changes, tally.keys.len())
    }

    #[test]
    fn a_key_is_counted_once_and_decisions_each_time() {
        let mut tally = Tally::default();
        for (key, change) in [
            (1, OverLimitChange::Same),
            (2, OverLimitChange::NewlyOver),
            (2, OverLimitChange::NewlyOver),
            (2, OverLimitChange::NoLongerOver),
            (3, OverLimitChange::NoLongerOver),
        ] {
            assert!(count(&mut tally, key, change));
        }
        assert_eq!(of_user(&tally), ([1, 2, 2], 2));
    }

    #[test]
    fn examples_are_the_last_keys_and_bounded() {
        let mut tally = Tally::default();
        for key in 0..30 {
            count(&mut tally, key, OverLimitChange::NewlyOver);
            count(&mut tally, key, OverLimitChange::NewlyOver);
        }
        let shown: Vec<&str> = tally
            .examples
            .iter()
            .map(|example| &*example.seen(Values::Redacted).descriptor)
            .collect();
        assert_eq!(shown.len(), EXAMPLES_MAX);
        assert_eq!((shown[0], shown[19]), ("10", "29"));
    }

    #[test]
    fn keys_are_bounded_and_decisions_are_counted_beyond() {
        let mut tally = Tally::default();
        for key in 0..KEYS_MAX as u64 {
            assert!(count(&mut tally, key, OverLimitChange::NewlyOver));
        }
        let key = KEYS_MAX as u64;
        assert!(!count(&mut tally, key, OverLimitChange::NewlyOver));
        assert!(count(&mut tally, 0, OverLimitChange::NewlyOver));
        assert_eq!(of_user(&tally), ([0, key + 2, 0], KEYS_MAX));
    }

    #[test]
    fn other_rules_begin_again() {
        let (first, second) = (Arc::new(RuleSet::default()), Arc::new(RuleSet::default()));
        let mut tally = Tally::default();
        tally.restart_if_not_of(Some(&first));
        count(&mut tally, 1, OverLimitChange::NewlyOver);
        tally.restart_if_not_of(Some(&first));
        assert_eq!(of_user(&tally), ([0, 1, 0], 1));
        for rules in [Some(&second), None] {
            count(&mut tally, 1, OverLimitChange::NewlyOver);
            tally.restart_if_not_of(rules);
            assert!(tally.domains.is_empty() && tally.examples.is_empty());
        }
    }
}
