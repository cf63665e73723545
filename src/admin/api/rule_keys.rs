//! The keys of the counters of one rule, as the store has them.

use crate::base::time::Time;
use crate::check::{Check, Hits, Key};
use crate::limit::Limit;
use crate::rules::key::{KeyTail, is_hash};
use crate::rules::lookup::{End, lookup};
use crate::rules::tree::Domain;
use crate::rules::{Entry, Link, Rule, RuleSet};

/// The keys of a rule, as the store has them.
pub(super) struct RuleKeys<'r> {
    domain: &'r Domain,
    rule: &'r Rule,
    /// The keys of its entries.
    names: Vec<&'r str>,
    pub(super) limits: Vec<(Link<'r>, &'r Limit, &'r KeyTail)>,
    /// The same of rules whose keys look like its own in the reference form: parts are joined by
    /// underscores, so `team_a_user_b_` is a team or a user. Longer keys are more likely.
    rivals: Vec<Vec<&'r str>>,
}

impl<'r> RuleKeys<'r> {
    /// `None` without such a rule, or without a limit of its own.
    pub(super) fn find(rules: &'r RuleSet, domain: &str, path: &str) -> Option<Self> {
        let domain = rules.domain(domain.as_bytes())?;
        let mut rules = Vec::new();
        domain.visit(&mut |nodes| {
            let rule = nodes.last().and_then(|node| node.rule.as_deref());
            let names = || nodes.iter().map(|node| &*node.key).collect::<Vec<_>>();
            rules.extend(rule.map(|rule| (rule, names())));
        });
        let at = rules.iter().position(|(rule, _)| *rule.path == *path)?;
        let (rule, names) = rules.swap_remove(at);
        let length = |names: &[&str]| names.iter().map(|name| name.len()).sum::<usize>();
        rules.retain(|(other, others)| {
            let period = |rule: &Rule| rule.limit().map(|limit| limit.period);
            other.key_tail == KeyTail::Reference
                && period(other) == period(rule)
                && length(others) > length(&names)
        });
        let limits = rule.counters().map(|(further, limit, tail)| {
            let link = Link {
                rule: Some(rule),
                further,
                is_override: false,
                check: 0,
                entries: names.len(),
                passes: false,
                enforced: true,
                key_format: tail.format(),
                metric_name: None,
            };
            (link, limit, tail)
        });
        let limits: Vec<_> = limits.collect();
        (!limits.is_empty()).then_some(Self {
            domain,
            rule,
            names,
            limits,
            rivals: rules.into_iter().map(|(_, names)| names).collect(),
        })
    }

    /// What its keys begin with.
    pub(super) fn start(&self) -> String {
        let starts = self.limits.iter().map(|&(.., tail)| self.start_of(tail));
        starts
            .reduce(|some, other| common_start(&some, &other))
            .unwrap_or_default()
    }

    fn start_of(&self, tail: &KeyTail) -> String {
        let is_tagged = self.rule.tagged_entries > 0;
        self.domain.key_head.start(tail, is_tagged, self.names[0])
    }

    /// Whether a key in the reference form is one of another rule.
    fn is_of_rival(&self, key: &Key) -> bool {
        self.rivals.iter().any(|names| {
            let tail = &KeyTail::Reference;
            let start = self.domain.key_head.start(tail, false, names[0]);
            let entries = key.as_bytes().strip_prefix(start.as_bytes());
            entries.is_some_and(|entries| tail.entries_of(entries, names).is_some())
        })
    }

    /// What the keys of each limit end with.
    pub(super) fn ends(&self, at: Time) -> Vec<Key> {
        let end = |(_, limit, tail): &(Link<'_>, &Limit, &KeyTail)| {
            let mut end = Key::from(tail.text());
            if limit.algorithm.has_windows() {
                end.push_window(&limit.window(at));
            }
            end
        };
        self.limits.iter().map(end).collect()
    }

    /// The limit that a name is counted by, and its key without a window. `None` for a key of
    /// another rule.
    pub(super) fn limit_of(&self, name: &[u8], ends: &[Key]) -> Option<(usize, Key)> {
        let (limit, entries) = ends
            .iter()
            .enumerate()
            .find_map(|(limit, end)| Some((limit, name.strip_suffix(end.as_bytes())?)))?;
        let (.., tail) = self.limits[limit];
        let mut key = Key::from(entries);
        key.push(tail.text().as_bytes());
        if *tail == KeyTail::Reference && self.is_of_rival(&key) {
            return None;
        }
        let entries = self.entries(&key, limit)?;
        let is_hashed = entries.iter().any(|[key, _]| is_hash(key));
        let entries = entries.iter().map(|[key, value]| Entry::new(key, value));
        let entries: Vec<_> = entries.collect();
        let is_its = match lookup(self.domain, &entries).1 {
            End::Rule(rule) => std::ptr::eq(rule, self.rule),
            _ => is_hashed,
        };
        is_its.then_some((limit, key))
    }

    pub(super) fn entries(&self, key: &Key, limit: usize) -> Option<Vec<[Vec<u8>; 2]>> {
        let (.., tail) = self.limits[limit];
        let entries = key
            .as_bytes()
            .strip_prefix(self.start_of(tail).as_bytes())?;
        tail.entries_of(entries.strip_suffix(tail.text().as_bytes())?, &self.names)
    }

    pub(super) fn check(&self, limit: usize, key: Key) -> Check {
        let (_, limit, _) = self.limits[limit];
        Check {
            holder: limit.algorithm.counts_holders().then(Box::default),
            ..Check::new(key, *limit, Hits::Peek)
        }
    }
}

fn common_start(some: &str, other: &str) -> String {
    let both = some.chars().zip(other.chars());
    both.take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
}

/// What all of them end with.
pub(super) fn common_end(ends: &[Key]) -> &[u8] {
    let Some((first, others)) = ends.split_first() else {
        return &[];
    };
    let (first, others) = (first.as_bytes(), others.iter().map(Key::as_bytes));
    let is_common = |from: &usize| others.clone().all(|other| other.ends_with(&first[*from..]));
    let from = (0..=first.len()).find(is_common).unwrap_or(first.len());
    &first[from..]
}
