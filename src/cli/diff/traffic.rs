//! Recorded requests decided by both sets of rules: which answers change.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;

use hashbrown::HashSet;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use smallvec::SmallVec;

use crate::cli::deciding::Deciding;
use crate::cli::diff::side::Side;
use crate::cli::keys::Keys;
use crate::cli::output::{Failure, counted};
use crate::cli::recorded;
use crate::offline::Engine;
use crate::rules::RuleSet;
use crate::rules::explain::counter_entries;
use crate::text::Text;
use crate::traffic::Record;

/// Keys that are shown of a rule.
pub(super) const KEYS_SHOWN: usize = 10;
/// Changed keys of a rule that are distinguished. Of more, their number is a lower bound.
const KEYS_COUNTED_MAX: usize = 1_000_000;

/// Requests whose answers were compared.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) requests: u64,
    /// Those with another answer.
    pub(super) changed: u64,
    /// Rules with changed answers, by domain and path.
    pub(super) rules: BTreeMap<(String, Arc<str>), RuleTally>,
}

/// Descriptors of one rule.
#[derive(Debug, Default)]
pub(super) struct RuleTally {
    pub(super) requests: u64,
    /// Over limit with the new rules only.
    pub(super) newly_over: u64,
    /// Over limit with the old rules only.
    pub(super) no_longer_over: u64,
    /// The keys with the most changes.
    pub(super) keys: Keys,
    /// Hashes of all changed keys.
    changed_keys: HashSet<u64>,
}

/// Decides requests by one set of rules.
struct Decider {
    engine: Engine,
    rules: Arc<RuleSet>,
}

/// One descriptor, as one set of rules decides it.
struct Decided {
    /// The path of its rule.
    rule: Option<Arc<str>>,
    is_over: bool,
}

/// The answer to a request.
struct Answer {
    /// `None` for an error.
    over_limit: Option<bool>,
    descriptors: SmallVec<[Decided; 2]>,
}

/// Plays a file through the old and the new rules.
///
/// # Errors
/// Rules that are invalid, a file that cannot be read or has too many invalid lines.
pub(super) fn compare(
    sides: &[Side; 2],
    deciding: &Deciding,
    file: &Path,
    errors_max: u64,
) -> Result<Traffic, Failure> {
    let decider = |side: &Side| -> Result<Decider, Failure> {
        let rules = side.compile(&deciding.reading_for_memory())?;
        let engine = deciding.engine(rules);
        let rules = engine.rules();
        Ok(Decider { engine, rules })
    };
    let (mut old, mut new) = (decider(&sides[0])?, decider(&sides[1])?);
    let mut traffic = Traffic::default();
    let hasher = RandomState::new();
    let played = recorded::play(file, errors_max, |record| {
        let answers = [old.decide(record), new.decide(record)];
        traffic.changed += u64::from(answers[0].over_limit != answers[1].over_limit);
        let [before, after] = answers.map(|answer| answer.descriptors);
        for (index, (before, after)) in before.into_iter().zip(after).enumerate() {
            // The rule of the new set, so that a removed one is shown only if no other applies.
            let (rules, path) = match (&after.rule, &before.rule) {
                (Some(path), _) => (&new.rules, path),
                (None, Some(path)) => (&old.rules, path),
                (None, None) => continue,
            };
            let domain = Text(record.query.domain).to_string();
            let tally = traffic.rules.entry((domain, path.clone())).or_default();
            tally.requests += 1;
            if before.is_over == after.is_over {
                continue;
            }
            tally.newly_over += u64::from(after.is_over);
            tally.no_longer_over += u64::from(before.is_over);
            let descriptor = &record.query.descriptors[index];
            let key = counter_entries(rules, record.query.domain, descriptor);
            if tally.changed_keys.len() < KEYS_COUNTED_MAX {
                tally.changed_keys.insert(hasher.hash_one(&key));
            }
            tally.keys.add(key);
        }
    });
    let played = played.map_err(|error| Failure::Config(format!("{error:#}")))?;
    traffic.requests = played.stats.requests;
    traffic.rules.retain(|_, tally| tally.changed() > 0);
    Ok(traffic)
}

impl Decider {
    fn decide(&mut self, record: &Record<'_>) -> Answer {
        let mut rules: SmallVec<[Option<Arc<str>>; 2]> = SmallVec::new();
        let decided = self.engine.decide(&record.query, record.time, |decision| {
            let steps = decision.plan.steps.iter();
            rules = steps
                .map(|step| step.rule().map(|rule| rule.path.clone()))
                .collect();
        });
        let Ok(response) = decided else {
            return Answer {
                over_limit: None,
                descriptors: SmallVec::new(),
            };
        };
        let statuses = response.statuses.iter().zip(rules);
        Answer {
            over_limit: Some(response.over_limit),
            descriptors: statuses
                .map(|(status, rule)| Decided {
                    rule,
                    is_over: status.over_limit,
                })
                .collect(),
        }
    }
}

impl Traffic {
    /// One line about all requests.
    pub(super) fn summary(&self) -> String {
        let requests = usize::try_from(self.requests).unwrap_or(usize::MAX);
        format!(
            "{} of {} get another answer",
            self.changed,
            counted(requests, "request")
        )
    }

    /// The rules with the most changes first.
    pub(super) fn sorted(&self) -> Vec<(&(String, Arc<str>), &RuleTally)> {
        let mut rules: Vec<_> = self.rules.iter().collect();
        rules.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.changed()));
        rules
    }

    /// For programs.
    fn json(&self) -> Value {
        let rules = self.sorted().into_iter();
        let rules = rules.map(|((domain, path), tally)| {
            let keys = tally.keys.top(KEYS_SHOWN).into_iter();
            let keys = keys.map(|(key, changed)| json!({"key": key, "changed": changed}));
            json!({
                "domain": domain,
                "rule": **path,
                "requests": tally.requests,
                "newly_over": tally.newly_over,
                "no_longer_over": tally.no_longer_over,
                "keys_changed": tally.changed_keys.len(),
                "keys": keys.collect::<Vec<_>>(),
            })
        });
        json!({
            "requests": self.requests,
            "changed": self.changed,
            "rules": rules.collect::<Vec<_>>(),
        })
    }
}

impl Serialize for Traffic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

impl RuleTally {
    fn changed(&self) -> u64 {
        self.newly_over + self.no_longer_over
    }

    /// The number of changed keys.
    pub(super) fn keys_changed(&self) -> String {
        match self.changed_keys.len() {
            KEYS_COUNTED_MAX => format!("at least {KEYS_COUNTED_MAX}"),
            keys => keys.to_string(),
        }
    }
}
