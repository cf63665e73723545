//! Recorded requests decided by both sets of rules: which answers change.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;

use hashbrown::HashSet;
use smallvec::SmallVec;

use crate::cli::deciding::Deciding;
use crate::cli::diff::side::Side;
use crate::cli::keys::Keys;
use crate::cli::output::{Failure, counted};
use crate::cli::recorded;
use crate::offline::Engine;
use crate::report::comparison::{Change, KeyChanges, TrafficRule, TrafficView};
use crate::rules::RuleSet;
use crate::rules::explain::counter_entries;
use crate::text::Text;
use crate::traffic::Record;

/// Keys that are shown of a rule.
const KEYS_SHOWN: usize = 10;
/// Changed keys of a rule that are distinguished. Of more, their number is a lower bound.
const KEYS_COUNTED_MAX: usize = 1_000_000;

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
) -> Result<TrafficView, Failure> {
    let decider = |side: &Side| -> Result<Decider, Failure> {
        let rules = side.compile(&deciding.reading_for_memory())?;
        let engine = deciding.engine(rules);
        let rules = engine.rules();
        Ok(Decider { engine, rules })
    };
    let (mut old, mut new) = (decider(&sides[0])?, decider(&sides[1])?);
    let mut rules: BTreeMap<(String, Arc<str>), RuleTally> = BTreeMap::new();
    let mut changed = 0;
    let hasher = RandomState::new();
    let played = recorded::play(file, errors_max, |record| {
        let answers = [old.decide(record), new.decide(record)];
        changed += u64::from(answers[0].over_limit != answers[1].over_limit);
        let [before, after] = answers.map(|answer| answer.descriptors);
        for (index, (before, after)) in before.into_iter().zip(after).enumerate() {
            // The rule of the new set, so that a removed one is shown only if no other applies.
            let (rule_set, path) = match (&after.rule, &before.rule) {
                (Some(path), _) => (&new.rules, path),
                (None, Some(path)) => (&old.rules, path),
                (None, None) => continue,
            };
            let domain = Text(record.query.domain).to_string();
            let tally = rules.entry((domain, path.clone())).or_default();
            tally.requests += 1;
            match Change::new(before.is_over, after.is_over) {
                Change::Same => continue,
                Change::NewlyOver => tally.newly_over += 1,
                Change::NoLongerOver => tally.no_longer_over += 1,
            }
            let descriptor = &record.query.descriptors[index];
            let key = counter_entries(rule_set, record.query.domain, descriptor);
            if tally.changed_keys.len() < KEYS_COUNTED_MAX {
                tally.changed_keys.insert(hasher.hash_one(&key));
            }
            tally.keys.add(key);
        }
    });
    let played = played.map_err(|error| Failure::Config(format!("{error:#}")))?;
    let rules = rules.into_iter();
    let mut rules: Vec<_> = rules
        .map(|((domain, path), tally)| tally.view(domain, &path))
        .collect();
    rules.retain(|rule| rule.changed() > 0);
    rules.sort_by_key(|rule| Reverse(rule.changed()));
    Ok(TrafficView {
        requests: played.stats.requests,
        changed,
        rules,
    })
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

/// One line about all requests.
pub(super) fn summary(traffic: &TrafficView) -> String {
    let requests = usize::try_from(traffic.requests).unwrap_or(usize::MAX);
    format!(
        "{} of {} get another answer",
        traffic.changed,
        counted(requests, "request")
    )
}

/// The number of changed keys.
pub(super) fn keys_changed(rule: &TrafficRule) -> String {
    match rule.keys_changed {
        KEYS_COUNTED_MAX => format!("at least {KEYS_COUNTED_MAX}"),
        keys => keys.to_string(),
    }
}
