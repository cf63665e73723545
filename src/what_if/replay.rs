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
    engine: Engine,
    rules: Arc<RuleSet>,
    /// Without the figures of rules.
    report: RulesReplay,
    tallies: Tallies,
}

/// Requests by the path of the rule that counted them.
#[derive(Debug, Default)]
struct Tallies(HashMap<String, Tally>);

/// Requests that one rule counted.
#[derive(Debug, Default)]
struct Tally {
    report: RuleReplay,
    keys: Keys,
    minute: Minute,
}

impl Variant {
    pub(crate) fn new(label: String, engine: Engine) -> Self {
        Self {
            rules: engine.rules(),
            engine,
            report: RulesReplay { label, ..RulesReplay::default() },
            tallies: Tallies::default(),
        }
    }

    /// Decides a request and counts the answer.
    pub(crate) fn decide(&mut self, Record { time, query }: &Record<'_>) {
        let inspect = |decision: &Decision<'_, '_, '_>| {
            let is_limited = self.tallies.add(decision, &self.rules, *time);
            self.report.without_limit += u64::from(!is_limited);
        };
        match self.engine.decide(query, *time, inspect) {
            Ok(response) => self.report.over_limit += u64::from(response.over_limit),
            Err(error) => {
                self.report.errors += 1;
                self.report.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// The results for this number of requests. Completes the last minute of each rule.
    pub(crate) fn report(self, requests: u64) -> RulesReplay {
        let rules = self.rules.rules().into_iter();
        let sources = rules.map(|rule| (&*rule.path, rule.origin.to_string()));
        let mut sources: HashMap<&str, String> = sources.collect();
        let tallies = self.tallies.0.into_iter();
        let reports = tallies.map(|(path, tally)| {
            let source = sources.remove(&*path);
            tally.report(path, source)
        });
        let mut rules: Vec<RuleReplay> = reports.collect();
        rules.sort_unstable_by(|one, other| {
            let by_number = other.over_limit.cmp(&one.over_limit);
            by_number.then_with(|| one.rule.cmp(&other.rule))
        });
        RulesReplay {
            share: share(self.report.over_limit, requests),
            evicted: self.engine.evicted(),
            rules,
            ..self.report
        }
    }
}

impl Tallies {
    /// Whether a limit counts the request.
    fn add(&mut self, decision: &Decision<'_, '_, '_>, rules: &RuleSet, now: Time) -> bool {
        let mut is_limited = false;
        for (step, descriptor) in decision.plan.steps.iter().zip(&decision.query.descriptors) {
            let Some(counted) = decision.counted(step) else {
                continue;
            };
            is_limited = true;
            let tally = self.of(counted.link, decision);
            let is_over = counted.is_over();
            tally.add(now, is_over);
            if is_over {
                let domain = decision.query.domain;
                tally.keys.add(counter_entries(rules, domain, descriptor));
            }
        }
        is_limited
    }

    fn of(&mut self, link: &Link<'_>, decision: &Decision<'_, '_, '_>) -> &mut Tally {
        let without_rule;
        let path = match link.rule {
            Some(rule) => &*rule.path,
            None => {
                let domain = Text(decision.query.domain);
                without_rule = format!("{domain}.(limit in the request)");
                &without_rule
            }
        };
        // Most rules are known, so their paths are not copied.
        self.0.entry_ref(path).or_insert_with(|| Tally {
            report: RuleReplay { domain: decision.domain().into(), ..RuleReplay::default() },
            ..Tally::default()
        })
    }
}

impl Tally {
    fn add(&mut self, now: Time, is_over: bool) {
        if now.since(self.minute.start) >= MINUTE {
            self.close_minute();
            let minute = now.as_micros() / MINUTE.as_micros();
            self.minute.start = Time::from_micros(minute * MINUTE.as_micros());
        }
        self.report.requests += 1;
        self.minute.requests += 1;
        if is_over {
            self.report.over_limit += 1;
            self.minute.over_limit += 1;
        }
    }

    fn report(mut self, path: String, source: Option<String>) -> RuleReplay {
        self.close_minute();
        let keys = self.keys.top(KEYS_SHOWN).into_iter();
        let keys = keys.map(|(key, over_limit)| KeyReplay { key: key.into(), over_limit });
        RuleReplay {
            rule: path.into(),
            source,
            share: share(self.report.over_limit, self.report.requests),
            keys: keys.collect(),
            keys_missed_max: self.keys.missed_max,
            ..self.report
        }
    }

    fn close_minute(&mut self) {
        let minute = std::mem::take(&mut self.minute);
        if minute.over_limit == 0 {
            return;
        }
        let report = &mut self.report;
        report.first_minute = report.first_minute.or(Some(minute));
        let is_worse = |worst: Minute| minute.over_limit > worst.over_limit;
        if report.worst_minute.is_none_or(is_worse) {
            report.worst_minute = Some(minute);
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
