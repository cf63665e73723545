//! The limits that are compared, and the rate that traffic is derived from.

use crate::cli::simulate::traffic::Pace;
use crate::limit::{Algorithm, Limit, LimitError, OverLimitHits, Terms, Unit};
use crate::limiter::Modes;
use crate::rules::{OnLimit, Query, Rule, RuleSet, Step, plan};
use crate::time::{Span, Time};

/// Sub-windows of the additional sliding window among all algorithms.
const BUCKETS_DEFAULT: u32 = 10;
/// The lease without --lease, as in the examples of rules.
const LEASE_DEFAULT: Span = Span::from_secs(30);

/// Limits side by side.
#[derive(Debug)]
pub struct Compared {
    /// What they have in common, on one line.
    pub title: String,
    /// About the rule.
    pub notes: Vec<String>,
    /// The rate of a steady client.
    pub pace: Pace,
    /// At least one.
    pub limits: Vec<Compare>,
}

/// A limit to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compare {
    /// The limit.
    pub limit: Limit,
    /// The maximum time in the queue.
    pub book_ahead: Span,
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
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Of buckets.
    pub burst: Option<u32>,
    /// Of sliding windows.
    pub buckets: Option<u32>,
    /// Of all but concurrency.
    pub over_limit_hits: Option<OverLimitHits>,
    /// Of buckets.
    pub max_wait: Option<Span>,
    /// Of concurrency.
    pub lease: Option<Span>,
    /// Duration of an admitted request.
    pub hold: Option<Span>,
}

impl Named {
    /// Reads a name.
    ///
    /// # Errors
    /// What can be written.
    pub fn read(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let known = || {
            format!(
                "write all, or some of {}",
                Algorithm::ALL.map(Algorithm::name).join(", ")
            )
        };
        Algorithm::from_name(text).map(Self::One).ok_or_else(known)
    }
}

impl Compared {
    /// Limits of this rate.
    ///
    /// # Errors
    /// Terms that make no limit, with what to write instead.
    pub fn of_terms(
        requests: u32,
        unit: Unit,
        unit_multiplier: u32,
        named: &[Named],
        options: Options,
    ) -> Result<Self, String> {
        let terms = Terms {
            unit_multiplier,
            ..Terms::new(requests, unit, Algorithm::FixedWindow)
        };
        let named = if named.is_empty() {
            &[Named::All]
        } else {
            named
        };
        let period = Limit::new(&terms)
            .map_err(|error| error.to_string())?
            .period();
        Ok(Self {
            title: format!("{requests} per {}", period_name(period)),
            notes: Vec::new(),
            pace: Pace {
                hits: requests.into(),
                per: period,
            },
            limits: limits(&terms, named, &options)?,
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
        options: Options,
    ) -> Result<Self, String> {
        let query = Query::of_entries(domain, entries.iter().map(|entry| &**entry))?;
        // The time of the request does not matter for its plan.
        let planned = plan(rules, &query, Modes::default(), Time::default())
            .map_err(|error| error.to_string())?;
        let not_limited = |why: &str| {
            Err(format!(
                "{} of domain {domain} is not limited: {why}; see tollgate explain",
                entries.join(", ")
            ))
        };
        let (rule, check) = match (planned.domain_known, planned.steps.first()) {
            (false, _) => {
                let known: Vec<&str> = rules.domains().iter().map(|known| &*known.name).collect();
                return Err(format!(
                    "there is no domain {domain}; there are {}",
                    known.join(", ")
                ));
            }
            (_, Some(&Step::Counted { rule, check, .. })) => (rule, &planned.request.checks[check]),
            (_, Some(Step::Unlimited(_))) => return not_limited("its rule is unlimited"),
            _ => return not_limited("it matches no rule with a limit"),
        };
        let limit = check.limit;
        let mut compared = Self {
            title: format!("{} at {}: {limit}", rule.path, rule.origin),
            notes: notes(rule),
            pace: Pace {
                hits: limit.requests().into(),
                per: limit.period(),
            },
            limits: vec![Compare {
                limit,
                book_ahead: check.book_ahead,
            }],
        };
        if limit.algorithm() == Algorithm::Concurrency {
            // A steady client of N slots that each request holds for a while starts N requests in
            // that while.
            compared.pace.per = options.hold.ok_or(NEEDS_HOLD)?;
            if !named.is_empty() {
                return Err(
                    "a concurrency rule has no period for other algorithms; leave --algorithm out"
                        .to_owned(),
                );
            }
        }
        if named.is_empty() {
            options.refuse_any()?;
        } else {
            for other in limits(&same_period(&limit), named, &options)? {
                if !compared.limits.contains(&other) {
                    compared.limits.push(other);
                }
            }
        }
        Ok(compared)
    }
}

/// What a simulation of a rule's limit does not show.
fn notes(rule: &Rule) -> Vec<String> {
    let notes = [
        (
            rule.shadow_mode,
            "shadow_mode: counted as shown, but never over limit",
        ),
        (
            rule.quota_mode,
            "quota_mode: over limit when every quota of the request is used up",
        ),
        (
            matches!(rule.on_limit, OnLimit::Degrade { .. }),
            "on_limit: degrade: requests over the limit are admitted, and a header asks the upstream for a cheap response",
        ),
    ];
    let apply = notes.into_iter().filter(|(applies, _)| *applies);
    apply.map(|(_, note)| note.to_owned()).collect()
}

impl Options {
    /// What of them belongs to an algorithm that is one of several.
    fn of(&self, algorithm: Algorithm) -> Self {
        let is_held = algorithm == Algorithm::Concurrency;
        Self {
            burst: self.burst.filter(|_| algorithm.is_bucket()),
            buckets: self
                .buckets
                .filter(|_| algorithm == Algorithm::SlidingWindow),
            over_limit_hits: self.over_limit_hits.filter(|_| !is_held),
            max_wait: self.max_wait.filter(|_| algorithm.is_bucket()),
            lease: self.lease.filter(|_| is_held),
            hold: self.hold,
        }
    }

    fn refuse_any(&self) -> Result<(), String> {
        let &Self {
            burst,
            buckets,
            over_limit_hits,
            max_wait,
            lease,
            ..
        } = self;
        if burst.or(buckets).is_none() && over_limit_hits.is_none() && max_wait.or(lease).is_none()
        {
            return Ok(());
        }
        Err("the limit is the rule's; --burst, --buckets, --over-limit-hits, --max-wait and --lease are for what --algorithm shows beside it"
            .to_owned())
    }
}

const NEEDS_HOLD: &str =
    "concurrency needs --hold, how long a call holds its place, such as --hold 200ms";

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
        if algorithm == Algorithm::Concurrency && options.hold.is_none() {
            return Err(NEEDS_HOLD.to_owned());
        }
        let limit = limit(terms, algorithm, &options).map_err(|error| error.to_string())?;
        let compare = Compare {
            limit,
            book_ahead: limit.max_wait(),
        };
        if !limits.contains(&compare) {
            limits.push(compare);
        }
    }
    Ok(limits)
}

fn all(options: &Options) -> Vec<(Algorithm, Options)> {
    let mut all = Vec::new();
    for algorithm in Algorithm::ALL {
        let own = options.of(algorithm);
        match algorithm {
            Algorithm::SlidingWindow => {
                all.push((
                    algorithm,
                    Options {
                        buckets: None,
                        ..own
                    },
                ));
                all.push((
                    algorithm,
                    Options {
                        buckets: own.buckets.or(Some(BUCKETS_DEFAULT)),
                        ..own
                    },
                ));
            }
            Algorithm::Concurrency if options.hold.is_none() => {}
            _ => all.push((algorithm, own)),
        }
    }
    all
}

fn limit(terms: &Terms, algorithm: Algorithm, options: &Options) -> Result<Limit, LimitError> {
    let &Options {
        burst,
        buckets,
        over_limit_hits,
        max_wait,
        lease,
        ..
    } = options;
    let lease = lease.or((algorithm == Algorithm::Concurrency).then_some(LEASE_DEFAULT));
    Limit::new(&Terms {
        algorithm,
        burst,
        buckets,
        over_limit_hits,
        max_wait,
        lease,
        ..*terms
    })
}

/// Terms of another limit over the same period.
fn same_period(limit: &Limit) -> Terms {
    let period = limit.period().as_micros();
    let units = Unit::ALL
        .into_iter()
        .rev()
        .map(|unit| (unit, unit.span().as_micros()));
    let (unit, length) = units
        .into_iter()
        .find(|(_, length)| period.is_multiple_of(*length))
        .unwrap_or((Unit::Second, 1_000_000));
    let unit_multiplier = u32::try_from(period / length).unwrap_or(u32::MAX);
    Terms {
        unit_multiplier,
        ..Terms::new(limit.requests(), unit, limit.algorithm())
    }
}

fn period_name(period: Span) -> String {
    Unit::of(period).map_or_else(|| period.to_string(), |unit| unit.name().to_owned())
}

/// What distinguishes a limit from the others.
pub fn label(limit: &Limit) -> String {
    let mut label = limit.algorithm().name().to_owned();
    if limit.algorithm().is_bucket() {
        label += &format!(", burst {}", limit.capacity());
    }
    if limit.buckets() > 0 {
        label += &format!(", {} buckets", limit.buckets());
    }
    if limit.max_wait() > Span::ZERO {
        label += &format!(", queue {}", limit.max_wait());
    }
    if limit.algorithm() == Algorithm::Concurrency {
        label += &format!(", lease {}", limit.period());
    }
    if limit.over_limit_hits() != limit.algorithm().default_over_limit_hits() {
        label += &format!(", {}", limit.over_limit_hits().name());
    }
    label
}
