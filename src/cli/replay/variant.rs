//! The sets of rules that are compared: those of --rules, those of --compare, and the rules with
//! other algorithms.

use std::path::PathBuf;
use std::sync::Arc;

use crate::base::environment::Environment;
use crate::cli::deciding::Deciding;
use crate::cli::output::Failure;
use crate::cli::replay::tally::Tally;
use crate::limit::{Algorithm, Limit, LimitOption, Terms};
use crate::offline::Engine;
use crate::report::RulesReplay;
use crate::rules::key::{KeyFormat, KeyTail};
use crate::rules::{Allowance, OnLimit, Rule, RuleSet};
use crate::traffic::Record;
use crate::what_if::simulate::compared::{BUCKETS_DEFAULT, Named, same_period};

/// One set of rules, and what it did.
pub(super) struct Variant {
    label: String,
    tally: Tally,
    engine: Engine,
    rules: Arc<RuleSet>,
}

/// Where rules come from.
pub(super) struct Sources<'s> {
    pub(super) rules: Option<&'s PathBuf>,
    pub(super) compare: &'s [PathBuf],
    pub(super) algorithms: &'s [Named],
}

impl Variant {
    fn new(label: String, engine: Engine) -> Self {
        Self {
            label,
            tally: Tally::default(),
            rules: engine.rules(),
            engine,
        }
    }

    /// Decides a request.
    pub(super) fn decide(&mut self, record: &Record<'_>) {
        self.tally.decide(&mut self.engine, &self.rules, record);
    }

    /// What it did with `requests`.
    pub(super) fn report(self, requests: u64) -> RulesReplay {
        let evicted = self.engine.evicted();
        self.tally
            .report(self.label, &self.rules, requests, evicted)
    }
}

/// Loads all rules; those of --rules come first.
pub(super) fn load(
    sources: &Sources<'_>,
    deciding: &Deciding,
    environment: &Environment,
) -> Result<Vec<Variant>, Failure> {
    let rules = || deciding.rules(sources.rules, environment);
    let mut variants = vec![Variant::new("rules".to_owned(), deciding.engine(rules()?))];
    for directory in sources.compare {
        let rules = deciding.rules(Some(directory), environment)?;
        let label = directory.display().to_string();
        variants.push(Variant::new(label, deciding.engine(rules)));
    }
    for (algorithm, buckets) in algorithms(sources.algorithms)? {
        let mut rules = rules()?;
        rules.change_rules(|rule, format| change(rule, format, algorithm, buckets));
        let label = match buckets {
            Some(buckets) => format!("{algorithm}, {buckets} buckets"),
            None => algorithm.to_string(),
        };
        variants.push(Variant::new(label, deciding.engine(rules)));
    }
    Ok(variants)
}

/// Each algorithm that was named, and a sliding window with buckets among all of them.
fn algorithms(named: &[Named]) -> Result<Vec<(Algorithm, Option<u32>)>, Failure> {
    let mut wanted = Vec::new();
    for name in named {
        match *name {
            Named::One(algorithm) if algorithm.counts_holders() => {
                return Err(Failure::Usage(
                    "--algorithm: a log does not say when requests end, as concurrency needs; name another algorithm"
                        .to_owned(),
                ));
            }
            Named::One(algorithm) => wanted.push((algorithm, None)),
            Named::All => {
                let mut all = Algorithm::ALL.to_vec();
                all.retain(|algorithm| !algorithm.counts_holders());
                for algorithm in all {
                    wanted.push((algorithm, None));
                    if algorithm.takes(LimitOption::Buckets) {
                        wanted.push((algorithm, Some(BUCKETS_DEFAULT)));
                    }
                }
            }
        }
    }
    Ok(wanted)
}

/// Gives a rule the same requests per period by another algorithm, with the defaults of that. A
/// concurrency rule has no period, and stays; so does one that the algorithm cannot count.
fn change(rule: &mut Rule, format: KeyFormat, algorithm: Algorithm, buckets: Option<u32>) {
    let Allowance::Limited(limit) = rule.allowance else {
        return;
    };
    if limit.algorithm.counts_holders() {
        return;
    }
    let terms = Terms {
        algorithm,
        buckets,
        months: limit.months,
        ..same_period(&limit)
    };
    let Ok(limit) = Limit::new(&terms) else {
        return;
    };
    rule.allowance = Allowance::Limited(limit);
    rule.key_tail = KeyTail::new(format, &limit, terms.unit_multiplier);
    if rule.on_limit == OnLimit::Queue {
        rule.on_limit = OnLimit::Reject { body: None };
    }
}
