//! Recorded traffic under sets of rules: the figures of each set and of its rules.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::base::text::Text;
use crate::base::time::{Span, Time};
use crate::limiter::decision::Decision;
use crate::limits::{Algorithm, Limit, Terms};
use crate::report::{KeyReplay, Minute, RuleReplay, RulesReplay};
use crate::rules::explain::counter_entries;
use crate::rules::key::{KeyFormat, KeyTail};
use crate::rules::{Allowance, Link, OnLimit, Rule, RuleSet};
use crate::what_if::engine::Engine;
use crate::what_if::keys::Keys;
use crate::what_if::simulate::compared::same_period;
use crate::what_if::traffic::Record;

/// Keys that are shown of a rule.
const KEYS_SHOWN: usize = 10;
const MINUTE: Span = Span::from_secs(60);

/// A set of rules, and what it did.
pub(crate) struct Variant {
    label: String,
    tally: Tally,
    engine: Engine,
    rules: Arc<RuleSet>,
}

/// Requests decided by one set of rules.
#[derive(Debug, Default)]
struct Tally {
    /// Responses of OVER_LIMIT.
    over_limit: u64,
    /// Requests of which no descriptor has a limit.
    without_limit: u64,
    /// Requests that the service would answer with an error.
    errors: u64,
    /// The first of these errors.
    first_error: Option<String>,
    /// By the path of the rule.
    rules: HashMap<Box<str>, RuleTally>,
}

/// Requests that one rule counted.
#[derive(Debug, Default)]
struct RuleTally {
    domain: Box<str>,
    requests: u64,
    /// Requests over its limit, whether it rejects them or not.
    over_limit: u64,
    /// The first minute with an over-limit request.
    first: Option<Minute>,
    /// The minute with the most of them.
    worst: Option<Minute>,
    keys: Keys,
    minute: Minute,
}

impl Variant {
    pub(crate) fn new(label: String, engine: Engine) -> Self {
        Self { label, tally: Tally::default(), rules: engine.rules(), engine }
    }

    /// Decides a request.
    pub(crate) fn decide(&mut self, record: &Record<'_>) {
        self.tally.decide(&mut self.engine, &self.rules, record);
    }

    /// The results for this number of requests.
    pub(crate) fn report(self, requests: u64) -> RulesReplay {
        let evicted = self.engine.evicted();
        self.tally.report(self.label, &self.rules, requests, evicted)
    }
}

impl Tally {
    /// Decides a request and counts the answer.
    fn decide(&mut self, engine: &mut Engine, rules: &RuleSet, record: &Record<'_>) {
        let Record { time, query } = record;
        let inspect = |decision: &Decision<'_, '_, '_>| self.add(decision, rules, *time);
        match engine.decide(query, *time, inspect) {
            Ok(response) => self.over_limit += u64::from(response.over_limit),
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// Completes the last minute of each rule. `rules` decided; `requests` were decided.
    fn report(
        mut self,
        label: String,
        rules: &RuleSet,
        requests: u64,
        evicted: u64,
    ) -> RulesReplay {
        let sources = rules.rules().into_iter().map(|rule| (&*rule.path, rule.origin.to_string()));
        let mut sources: HashMap<&str, String> = sources.collect();
        let tallies = self.rules.drain();
        let mut rules: Vec<RuleReplay> = tallies
            .map(|(path, tally)| {
                let source = sources.remove(&*path);
                tally.report(path, source)
            })
            .collect();
        rules.sort_unstable_by(|one, other| {
            let by_number = other.over_limit.cmp(&one.over_limit);
            by_number.then_with(|| one.rule.cmp(&other.rule))
        });
        RulesReplay {
            label,
            over_limit: self.over_limit,
            share: share(self.over_limit, requests),
            without_limit: self.without_limit,
            errors: self.errors,
            first_error: self.first_error,
            evicted,
            rules,
        }
    }

    fn add(&mut self, decision: &Decision<'_, '_, '_>, rules: &RuleSet, now: Time) {
        let mut is_limited = false;
        for (step, descriptor) in decision.plan.steps.iter().zip(&decision.query.descriptors) {
            let Some(counted) = decision.counted(step) else {
                continue;
            };
            is_limited = true;
            let rule = self.rule(counted.link, decision);
            let is_over = counted.is_over();
            rule.add(now, is_over);
            if is_over {
                let domain = decision.query.domain;
                rule.keys.add(counter_entries(rules, domain, descriptor));
            }
        }
        self.without_limit += u64::from(!is_limited);
    }

    fn rule(&mut self, link: &Link<'_>, decision: &Decision<'_, '_, '_>) -> &mut RuleTally {
        let without_rule;
        let path = match link.rule {
            Some(rule) => &*rule.path,
            None => {
                let domain = Text(decision.query.domain);
                without_rule = format!("{domain}.(limit in the request)");
                &without_rule
            }
        };
        let new = || RuleTally { domain: decision.domain().into(), ..RuleTally::default() };
        // Most rules are known, so their paths are not copied.
        if self.rules.contains_key(path) {
            return self.rules.get_mut(path).expect("it was just found");
        }
        self.rules.entry(path.into()).or_insert_with(new)
    }
}

impl RuleTally {
    fn add(&mut self, now: Time, is_over: bool) {
        if now.since(self.minute.start) >= MINUTE {
            self.close_minute();
            let minute = now.as_micros() / MINUTE.as_micros();
            self.minute.start = Time::from_micros(minute * MINUTE.as_micros());
        }
        self.requests += 1;
        self.minute.requests += 1;
        if is_over {
            self.over_limit += 1;
            self.minute.over_limit += 1;
        }
    }

    fn report(mut self, path: Box<str>, source: Option<String>) -> RuleReplay {
        self.close_minute();
        let keys = self.keys.top(KEYS_SHOWN).into_iter();
        let keys = keys.map(|(key, over_limit)| KeyReplay { key: key.into(), over_limit });
        RuleReplay {
            rule: path,
            source,
            requests: self.requests,
            over_limit: self.over_limit,
            share: share(self.over_limit, self.requests),
            first_minute: self.first,
            worst_minute: self.worst,
            keys: keys.collect(),
            keys_missed_max: self.keys.missed_max(),
            domain: self.domain,
        }
    }

    fn close_minute(&mut self) {
        let minute = std::mem::take(&mut self.minute);
        if minute.over_limit == 0 {
            return;
        }
        self.first = self.first.or(Some(minute));
        let is_worse = |worst: Minute| minute.over_limit > worst.over_limit;
        if self.worst.is_none_or(is_worse) {
            self.worst = Some(minute);
        }
    }
}

/// Gives a rule the same requests per period by another algorithm, with the defaults of that. A
/// concurrency rule has no period, and stays; so does one that the algorithm cannot count.
pub(crate) fn change_algorithm(
    rule: &mut Rule,
    format: KeyFormat,
    algorithm: Algorithm,
    buckets: Option<u32>,
) {
    let Allowance::Limited(limit) = rule.allowance else {
        return;
    };
    if limit.algorithm.counts_holders() {
        return;
    }
    let terms = Terms { algorithm, buckets, windows: limit.windows, ..same_period(&limit) };
    let Ok(limit) = Limit::new(&terms) else {
        return;
    };
    rule.allowance = Allowance::Limited(limit);
    rule.key_tail = KeyTail::new(format, &limit, terms.unit_multiplier);
    if rule.on_limit == OnLimit::Queue {
        rule.on_limit = OnLimit::Reject { body: None };
    }
}

/// From 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "a ratio to be shown")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
