//! What one set of rules does to the traffic: the figures of each rule.

use hashbrown::HashMap;

use crate::cli::keys::Keys;
use crate::limiter::decision::Decision;
use crate::offline::Engine;
use crate::rules::explain::counter_entries;
use crate::rules::{RuleSet, Step};
use crate::text::Text;
use crate::time::{Span, Time};
use crate::traffic::Record;

const MINUTE: Span = Span::from_secs(60);

/// Requests decided by one set of rules.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Responses of OVER_LIMIT.
    pub(super) over_limit: u64,
    /// Requests of which no descriptor has a limit.
    pub(super) without_limit: u64,
    /// Requests that the service would answer with an error.
    pub(super) errors: u64,
    /// The first of these errors.
    pub(super) first_error: Option<String>,
    /// By the path of the rule.
    pub(super) rules: HashMap<Box<str>, RuleTally>,
}

/// Requests that one rule counted.
#[derive(Debug)]
pub(super) struct RuleTally {
    pub(super) domain: Box<str>,
    pub(super) requests: u64,
    /// Requests over its limit, whether it rejects them or not.
    pub(super) over_limit: u64,
    /// The first minute with an over-limit request.
    pub(super) first: Option<Minute>,
    /// The minute with the most of them.
    pub(super) worst: Option<Minute>,
    pub(super) keys: Keys,
    minute: Minute,
}

/// The requests of a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Minute {
    pub(super) start: Time,
    pub(super) requests: u64,
    pub(super) over_limit: u64,
}

impl Tally {
    /// Decides a request and counts the answer.
    pub(super) fn decide(&mut self, engine: &mut Engine, rules: &RuleSet, record: &Record<'_>) {
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

    /// Completes the last minute of each rule.
    pub(super) fn finish(&mut self) {
        for rule in self.rules.values_mut() {
            rule.close_minute();
        }
    }

    /// The rules with the most over-limit requests first.
    pub(super) fn sorted(&self) -> Vec<(&str, &RuleTally)> {
        let mut rules: Vec<(&str, &RuleTally)> = self
            .rules
            .iter()
            .map(|(path, tally)| (&**path, tally))
            .collect();
        rules.sort_unstable_by(|(path, tally), (other_path, other)| {
            let by_number = other.over_limit.cmp(&tally.over_limit);
            by_number.then_with(|| path.cmp(other_path))
        });
        rules
    }

    fn add(&mut self, decision: &Decision<'_, '_, '_>, rules: &RuleSet, now: Time) {
        let mut is_limited = false;
        for (step, descriptor) in decision.plan.steps.iter().zip(&decision.query.descriptors) {
            if step.check().is_none() {
                continue;
            }
            is_limited = true;
            let rule = self.rule(step, decision);
            let is_over = decision.is_over(step);
            rule.add(now, is_over);
            if is_over {
                let domain = decision.query.domain;
                rule.keys.add(counter_entries(rules, domain, descriptor));
            }
        }
        self.without_limit += u64::from(!is_limited);
    }

    fn rule(&mut self, step: &Step<'_>, decision: &Decision<'_, '_, '_>) -> &mut RuleTally {
        let without_rule;
        let path = match step.rule() {
            Some(rule) => &*rule.path,
            None => {
                let domain = Text(decision.query.domain);
                without_rule = format!("{domain}.(limit in the request)");
                &without_rule
            }
        };
        let new = || RuleTally::new(decision.domain().into());
        // Most rules are known, so their paths are not copied.
        if self.rules.contains_key(path) {
            return self.rules.get_mut(path).expect("it was just found");
        }
        self.rules.entry(path.into()).or_insert_with(new)
    }
}

impl RuleTally {
    fn new(domain: Box<str>) -> Self {
        Self {
            domain,
            requests: 0,
            over_limit: 0,
            first: None,
            worst: None,
            keys: Keys::default(),
            minute: Minute::default(),
        }
    }

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
