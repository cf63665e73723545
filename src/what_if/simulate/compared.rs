//! The limits that are compared, and the rate that traffic is derived from.

use crate::base::parse;
use crate::base::time::{Span, Time};
use crate::limits::{Algorithm, Limit, LimitOption, OverLimitHits, Terms, Unit};
use crate::rules::plan::Modes;
use crate::rules::{Query, RuleSet, Step, plan};
use crate::what_if::simulate::limits::{Compare, notes};

/// Sub-windows of the additional sliding window among all algorithms.
pub(crate) const BUCKETS_DEFAULT: u32 = 10;
/// The lease without --lease, as in the examples of rules.
const LEASE_DEFAULT: Span = Span::from_secs(30);
const NEEDS_HOLD: &str =
    "concurrency needs --hold, how long a call holds its place, such as --hold 200ms";

/// Limits side by side.
#[derive(Debug)]
pub struct Compared {
    /// The common part of the limits, on one line.
    pub title: String,
    /// About the rule.
    pub notes: Vec<String>,
    /// The rate of a steady client: requests per period.
    pub requests: u64,
    /// The period.
    pub period: Span,
    /// At least one.
    pub limits: Vec<Compare>,
}

/// An algorithm by its name, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Every one; concurrency only with --hold.
    All,
    /// One.
    One(Algorithm),
}

/// Options of some algorithms.
#[derive(Debug, Clone, Copy, clap::Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Burst of buckets
    #[arg(long, value_name = "NUMBER")]
    burst: Option<u32>,
    /// Number of sub-windows of a sliding window [default: none; all algorithms include one with
    /// 10]
    #[arg(long, value_name = "NUMBER")]
    buckets: Option<u32>,
    /// Whether requests over the limit consume quota: count or drop [default: the algorithm's]
    #[arg(long, value_name = "WORD")]
    over_limit_hits: Option<OverLimitHits>,
    /// Maximum time that buckets queue a request (on_limit: queue)
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    max_wait: Option<Span>,
    /// Concurrency: time after which a slot that is not released is free again [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    lease: Option<Span>,
    /// Duration of an admitted request, after which it releases its slot of a concurrency limit
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub(crate) hold: Option<Span>,
}

impl Named {
    /// Reads a name.
    ///
    /// # Errors
    /// The valid names.
    pub fn read(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let one: Result<_, String> = text.parse().map(Self::One);
        one.map_err(|known| format!("{known}, or all"))
    }
}

impl Compared {
    /// Limits of these terms, whose algorithm is not used.
    ///
    /// # Errors
    /// Terms that make no limit, with what to write instead.
    pub fn of_terms(terms: &Terms, named: &[Named], options: &Options) -> Result<Self, String> {
        let named = if named.is_empty() { &[Named::All] } else { named };
        let limit = Limit::new(terms).map_err(|error| error.to_string())?;
        let requests = limit.requests;
        let period = limit.period;
        let unit = Unit::of(period);
        let per = unit.map_or_else(|| period.to_string(), |unit| unit.name().to_owned());
        Ok(Self {
            title: format!("{requests} per {per}"),
            notes: Vec::new(),
            requests,
            period,
            limits: limits(terms, named, options)?,
        })
    }

    /// The limit of the rule that a descriptor meets, as a service would look it up, and others of
    /// the same numbers beside it.
    ///
    /// # Errors
    /// A descriptor that no limit is met by, options without an algorithm that has them.
    pub fn of_rule(
        rules: &RuleSet,
        domain: &str,
        entries: &[String],
        named: &[Named],
        options: &Options,
    ) -> Result<Self, String> {
        let query = Query::of_entries(domain, entries.iter().map(|entry| &**entry))?;
        // The time of the request does not matter for its plan.
        let planned = plan(rules, &query, Modes::default(), Time::default());
        let planned = planned.map_err(|error| error.to_string())?;
        if !planned.domain_known {
            let known: Vec<&str> = rules.domains().iter().map(|known| &*known.name).collect();
            return Err(format!("there is no domain {domain}; there are {}", known.join(", ")));
        }
        let step = planned.steps.first();
        let link = step.and_then(|step| step.links().last());
        let Some((rule, link)) = link.and_then(|link| Some((link.own_rule()?, link))) else {
            let why = match step {
                Some(Step::Unlimited(_)) => "its rule is unlimited",
                _ => "it matches no rule with a limit",
            };
            let entries = entries.join(", ");
            return Err(format!(
                "{entries} of domain {domain} is not limited: {why}; see tollgate explain"
            ));
        };
        let check = &planned.request.checks[link.check];
        let limit = check.limit;
        let mut compared = Self {
            title: format!("{} at {}: {limit}", rule.path, rule.origin),
            notes: notes(rule),
            requests: limit.requests,
            period: limit.period,
            limits: vec![Compare { limit, book_ahead: check.book_ahead }],
        };
        if limit.algorithm.counts_holders() {
            // A steady client of N slots that each request holds for a while starts N requests in
            // that while.
            compared.period = options.hold.ok_or(NEEDS_HOLD)?;
            if !named.is_empty() {
                return Err(
                    "a concurrency rule has no period for other algorithms; leave --algorithm out"
                        .to_owned(),
                );
            }
        }
        if named.is_empty() && options.any() {
            return Err("the limit is the rule's; --burst, --buckets, --over-limit-hits, --max-wait and --lease are for what --algorithm shows beside it".to_owned());
        }
        for other in limits(&same_period(&limit), named, options)? {
            if !compared.limits.contains(&other) {
                compared.limits.push(other);
            }
        }
        Ok(compared)
    }
}

impl Options {
    /// The options that an algorithm takes.
    fn of(&self, algorithm: Algorithm) -> Self {
        let takes = |option| algorithm.takes(option);
        Self {
            burst: self.burst.filter(|_| takes(LimitOption::Burst)),
            buckets: self.buckets.filter(|_| takes(LimitOption::Buckets)),
            over_limit_hits: self.over_limit_hits.filter(|_| takes(LimitOption::OverLimitHits)),
            max_wait: self.max_wait.filter(|_| takes(LimitOption::MaxWait)),
            lease: self.lease.filter(|_| takes(LimitOption::Lease)),
            hold: self.hold,
        }
    }

    /// Whether any of them that a limit has is set.
    fn any(&self) -> bool {
        self.burst.or(self.buckets).is_some()
            || self.over_limit_hits.is_some()
            || self.max_wait.or(self.lease).is_some()
    }

    fn limit(&self, terms: &Terms, algorithm: Algorithm) -> Result<Limit, String> {
        let is_held = algorithm.counts_holders();
        if is_held && self.hold.is_none() {
            return Err(NEEDS_HOLD.to_owned());
        }
        let terms = Terms {
            algorithm,
            burst: self.burst,
            buckets: self.buckets,
            over_limit_hits: self.over_limit_hits,
            max_wait: self.max_wait,
            lease: self.lease.or(is_held.then_some(LEASE_DEFAULT)),
            ..*terms
        };
        Limit::new(&terms).map_err(|error| error.to_string())
    }
}

/// A limit of each algorithm that was named, each once.
fn limits(terms: &Terms, named: &[Named], options: &Options) -> Result<Vec<Compare>, String> {
    let mut wanted: Vec<(Algorithm, Options)> = Vec::new();
    for name in named {
        match *name {
            // A single algorithm rejects every option that it does not have.
            Named::One(algorithm) if named.len() == 1 => wanted.push((algorithm, *options)),
            Named::One(algorithm) => wanted.push((algorithm, options.of(algorithm))),
            Named::All => wanted.extend(all(options)),
        }
    }
    let mut limits = Vec::new();
    for (algorithm, options) in wanted {
        let limit = options.limit(terms, algorithm)?;
        let compare = Compare { limit, book_ahead: limit.max_wait };
        if !limits.contains(&compare) {
            limits.push(compare);
        }
    }
    Ok(limits)
}

/// Every algorithm, and a sliding window of buckets beside the one without.
fn all(options: &Options) -> Vec<(Algorithm, Options)> {
    let mut all: Vec<_> = Algorithm::ALL
        .into_iter()
        .filter(|&algorithm| !algorithm.counts_holders() || options.hold.is_some())
        .map(|algorithm| (algorithm, options.of(algorithm)))
        .collect();
    let is_window = |(algorithm, _): &(Algorithm, Options)| algorithm.takes(LimitOption::Buckets);
    if let Some(at) = all.iter().position(is_window) {
        let (algorithm, mut window) = all[at];
        all[at].1.buckets = None;
        window.buckets = window.buckets.or(Some(BUCKETS_DEFAULT));
        all.insert(at + 1, (algorithm, window));
    }
    all
}

/// Terms of another limit over the same period.
pub(crate) fn same_period(limit: &Limit) -> Terms {
    let period = limit.period.as_micros();
    let mut units = Unit::ALL.into_iter().rev();
    let unit =
        units.find(|unit| period.is_multiple_of(unit.span().as_micros())).unwrap_or(Unit::Second);
    let unit_multiplier = u32::try_from(period / unit.span().as_micros()).unwrap_or(u32::MAX);
    Terms { unit_multiplier, ..Terms::new(limit.requests, unit, limit.algorithm) }
}
