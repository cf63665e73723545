//! Which top keys a change of rules would treat differently: the plan that serves, by both rule
//! sets.
//!
//! With ADMIN_REDACT, keys are matched by their redacted values. Else a change with `value: a*`,
//! `value: b*` and so on, which anybody may check, would spell the values that clients send.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::base::text::Text;
use crate::base::time::Time;
use crate::check::Check;
use crate::limit::Limit;
use crate::observe::redact::{Redacted, Values};
use crate::observe::top_keys::RuleKeys;
use crate::report::{self, Mode};
use crate::rules::plan::Modes;
use crate::rules::stats::counts::HitCounts;
use crate::rules::{Descriptor, Entry, Plan, Query, RuleSet, Step, plan};

/// Keys in the answer of a check: for each, two counters are read.
// bound changed_keys_max: counted in `keys_left_out`; -
const CHANGED_KEYS_MAX: usize = 50;
/// The value of an entry that names the holder of a slot: counters leave it out.
const ANY_HOLDER: &[u8] = b"any";

/// Two rule sets, and how they are applied.
#[derive(Debug)]
pub(crate) struct Keys<'r> {
    pub(crate) in_force: &'r RuleSet,
    pub(crate) changed: &'r RuleSet,
    pub(crate) modes: Modes,
    pub(crate) values: Values,
}

/// The keys with the most hits among those that are treated differently.
#[derive(Debug)]
pub(crate) struct ChangedKeys {
    pub(crate) keys: Vec<ChangedKey>,
    pub(crate) left_out: usize,
}

/// A key that is treated differently.
#[derive(Debug)]
pub(crate) struct ChangedKey {
    pub(crate) domain: Box<str>,
    /// Keys and values of its entries, redacted.
    pub(crate) entries: Vec<[String; 2]>,
    pub(crate) counts: HitCounts,
    pub(crate) before: Treatment,
    pub(crate) after: Treatment,
    /// Whether it counts from zero, under another key.
    pub(crate) counter_restarts: bool,
}

/// The treatment of requests of a key.
#[derive(Debug, Clone)]
pub(crate) struct Treatment {
    /// The path of the rule; `None` if no rule applies.
    rule: Option<Arc<str>>,
    mode: Mode,
    /// Reads the counter; `None` if nothing is counted.
    pub(crate) check: Option<Check>,
}

impl Keys<'_> {
    pub(crate) fn changed(&self, top: &[RuleKeys]) -> ChangedKeys {
        let of_rules = top.iter().flat_map(|rule| {
            let keys = rule.keys.iter();
            keys.map(|key| (&*rule.domain, key.entries.iter(), key.counts))
        });
        let mut keys: Vec<ChangedKey> = of_rules
            .filter_map(|(domain, entries, counts)| self.compare(domain, entries, counts))
            .collect();
        keys.sort_by(|one, other| {
            let order =
                |key: &ChangedKey| (Reverse(key.counts.hits), Reverse(key.counts.over_limit));
            let by_hits = order(one).cmp(&order(other));
            by_hits.then_with(|| one.entries.cmp(&other.entries))
        });
        let found = keys.len();
        keys.truncate(CHANGED_KEYS_MAX);
        ChangedKeys {
            left_out: found - keys.len(),
            keys: merged(keys),
        }
    }

    /// `None` if the key is treated as before.
    fn compare<'e>(
        &self,
        domain: &'e str,
        entries: impl Iterator<Item = Entry<'e>>,
        counts: HitCounts,
    ) -> Option<ChangedKey> {
        let query = self.query(domain, entries);
        match self.values {
            Values::Clear => self.compare_as(&query, &query, counts),
            Values::Dropped => {
                let redacted = Redacted::of(&query, self.in_force);
                let mut changed = self.compare_as(&query, &redacted.query(), counts)?;
                self.read_counter_of(&query, &mut changed);
                Some(changed)
            }
        }
    }

    /// Matches the key as it is shown.
    fn compare_as(
        &self,
        query: &Query<'_>,
        shown: &Query<'_>,
        counts: HitCounts,
    ) -> Option<ChangedKey> {
        let before = self.treatment(self.in_force, shown);
        let after = self.treatment(self.changed, shown);
        let counter_restarts = restarts(before.check.as_ref(), after.check.as_ref());
        let is_changed = counter_restarts || !before.is_like(&after);
        is_changed.then(|| ChangedKey {
            domain: Text(query.domain).shown().into(),
            entries: entries_of(shown),
            counts,
            before,
            after,
            counter_restarts,
        })
    }

    /// A redacted key has the state of the counter of its value.
    fn read_counter_of(&self, query: &Query<'_>, changed: &mut ChangedKey) {
        changed.before = self.treatment(self.in_force, query);
        if changed.counter_restarts {
            return;
        }
        if let (Some(before), Some(after)) = (&changed.before.check, &mut changed.after.check) {
            after.key = before.key.clone();
        }
    }

    fn query<'e>(&self, domain: &'e str, entries: impl Iterator<Item = Entry<'e>>) -> Query<'e> {
        let mut query = Query {
            domain: domain.as_bytes(),
            descriptors: [Descriptor::new(entries)].into_iter().collect(),
            ..Query::default()
        };
        let is_holder = self.plan(self.in_force, &query).is_none();
        let last = query.descriptors[0].entries.last_mut();
        if let Some(last) = last.filter(|last| is_holder && last.value.is_empty()) {
            last.value = ANY_HOLDER;
        }
        query
    }

    fn plan<'r>(&self, rules: &'r RuleSet, query: &Query<'_>) -> Option<Plan<'r>> {
        // The time of the request does not matter for its plan.
        plan(rules, query, self.modes, Time::default()).ok()
    }

    fn treatment(&self, rules: &RuleSet, query: &Query<'_>) -> Treatment {
        let Some(plan) = self.plan(rules, query) else {
            return Treatment {
                rule: None,
                mode: Mode::Invalid,
                check: None,
            };
        };
        let step = &plan.steps[0];
        Treatment {
            rule: step.path(),
            mode: mode(step, self.modes),
            check: step
                .links()
                .last()
                .map(|link| plan.request.checks[link.check].clone()),
        }
    }
}

/// Rows of the same key as one: dropped values are all the same.
fn merged(keys: Vec<ChangedKey>) -> Vec<ChangedKey> {
    let mut merged: Vec<ChangedKey> = Vec::new();
    for key in keys {
        let known = merged
            .iter_mut()
            .find(|known| (&known.domain, &known.entries) == (&key.domain, &key.entries));
        match known {
            Some(known) => known.counts.add(key.counts),
            None => merged.push(key),
        }
    }
    merged
}

fn restarts(before: Option<&Check>, after: Option<&Check>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return false;
    };
    before.key != after.key || before.limit.key_windows() != after.limit.key_windows()
}

fn mode(step: &Step<'_>, modes: Modes) -> Mode {
    let Some(link) = step.links().last() else {
        return Mode::NotLimited;
    };
    let rule = link.rule;
    if modes.shadow || link.in_shadow() {
        Mode::Shadow
    } else if link.admits() {
        Mode::Degrade
    } else if modes.quota || rule.is_some_and(|rule| rule.quota_mode) {
        Mode::Quota
    } else {
        Mode::Enforced
    }
}

fn entries_of(query: &Query<'_>) -> Vec<[String; 2]> {
    let entries = query.descriptors.iter().flat_map(|one| &one.entries);
    let shown = |bytes| Text(bytes).shown().into_owned();
    entries
        .map(|entry| [shown(entry.key), shown(entry.value)])
        .collect()
}

impl Treatment {
    fn limit(&self) -> Option<&Limit> {
        self.check.as_ref().map(|check| &check.limit)
    }

    fn is_like(&self, other: &Self) -> bool {
        (&self.rule, self.mode, self.limit()) == (&other.rule, other.mode, other.limit())
    }

    /// `over_limit` is whether one more hit would be over limit now; `None` if that is unknown.
    fn report(self, over_limit: Option<bool>) -> report::Treatment {
        report::Treatment {
            limit: self.limit().map(ToString::to_string),
            rule: self.rule.as_deref().map(str::to_owned),
            mode: self.mode,
            over_limit,
        }
    }
}

impl ChangedKey {
    /// With whether one more hit would be over limit before and after.
    pub(crate) fn report(self, [before, after]: [Option<bool>; 2]) -> report::ChangedKey {
        report::ChangedKey {
            domain: self.domain,
            key: self.entries,
            hits: self.counts.hits,
            over_limit: self.counts.over_limit,
            before: self.before.report(before),
            after: self.after.report(after),
            counter_restarts: self.counter_restarts,
        }
    }
}
