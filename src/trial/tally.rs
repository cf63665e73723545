//! Counts how requests were answered and what was compared, per domain and rule.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::base::named_enum::named_enum;
use crate::operator::observe::redact::Quoted;
use crate::report::comparison::{Disagreement, TrialRule};
use crate::telemetry::metric::Series;
use crate::trial::compare::{Class, Comparison};
use crate::trial::request::Row;

/// The last disagreements of a trial.
pub(crate) const DISAGREEMENTS_MAX: usize = 100;
/// Domains in the counts of a trial. Clients choose their names; a domain that is known there only
/// must be shown, too.
// bound trial_domains_max: counted under `__other__`; tollgate_trial_domains_full_total
pub(crate) const DOMAINS_MAX: usize = 1_000;
/// Bytes of the name of a domain in those counts.
// bound trial_domain_bytes_max: counted under `__other__`; tollgate_trial_domains_full_total
const DOMAIN_BYTES_MAX: usize = 256;
/// The domain of requests that cannot be decoded, and of those beyond [`DOMAINS_MAX`].
pub(crate) const OTHER: &str = "__other__";
const REQUESTS_HELP: &str =
    "ShouldRateLimit calls of a trial, by domain and by how they were answered.";
const DECISIONS_HELP: &str =
    "Descriptors compared with the upstream's: agreed, or the class of the disagreement.";
const AGREED: &str = "agreed";

named_enum! {
    /// How a call was answered.
    pub enum CallOutcome {
        /// The upstream's response.
        Forwarded = "forwarded",
        /// The upstream's error.
        Error = "error",
        /// An error: the upstream is unreachable, or its reply was reset or too large.
        Unavailable = "unavailable",
        /// An error: the upstream did not reply before the deadline.
        Late = "late",
        /// Our response instead of an error of the upstream.
        Decided = "decided",
        /// Our response, by TRIAL_ENFORCE_PERCENT.
        Enforced = "enforced",
        /// Not answered: the caller canceled it.
        Canceled = "canceled",
    }
}

/// The counts since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Compared requests.
    pub(crate) requests: u64,
    /// Requests with the same code of the response and of each status.
    pub(crate) agreed: u64,
    pub(crate) domains: BTreeMap<Box<str>, DomainTally>,
    pub(crate) disagreements: VecDeque<Arc<Quoted<Disagreement>>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct DomainTally {
    /// By [`CallOutcome`].
    outcomes: [u64; CallOutcome::ALL.len()],
    pub(crate) rules: BTreeMap<Arc<str>, RuleTally>,
}

/// Counts of descriptors.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleTally {
    pub(crate) requests: u64,
    pub(crate) agreed: u64,
    pub(crate) over_here: u64,
    pub(crate) over_there: u64,
    /// By [`Class`].
    pub(crate) classes: [u64; Class::ALL.len()],
}

impl Tally {
    /// The counts of a domain. Of too many domains, or too long ones, the rest share one; then
    /// `false`.
    pub(crate) fn domain(&mut self, domain: &str) -> (&mut DomainTally, bool) {
        let is_short = domain.len() <= DOMAIN_BYTES_MAX;
        let fits =
            self.domains.contains_key(domain) || (is_short && self.domains.len() < DOMAINS_MAX);
        let domain = if fits { domain } else { OTHER };
        if !self.domains.contains_key(domain) {
            self.domains.insert(domain.into(), DomainTally::default());
        }
        let tally = self.domains.get_mut(domain).expect("it was added");
        (tally, fits)
    }

    /// A copy without the counts of domains, and their names.
    pub(crate) fn without_domains(&self) -> (Self, Vec<Box<str>>) {
        let copy = Self {
            requests: self.requests,
            agreed: self.agreed,
            domains: BTreeMap::new(),
            disagreements: self.disagreements.clone(),
        };
        (copy, self.domains.keys().cloned().collect())
    }

    pub(crate) fn add_disagreement(&mut self, disagreement: Arc<Quoted<Disagreement>>) {
        if self.disagreements.len() == DISAGREEMENTS_MAX {
            self.disagreements.pop_front();
        }
        self.disagreements.push_back(disagreement);
    }

    /// The counts of rules.
    pub(crate) fn rules(&self) -> Vec<TrialRule> {
        let rules = self.domains.iter().flat_map(|(domain, of_domain)| {
            of_domain.rules.iter().map(move |(rule, tally)| tally.view(domain, rule))
        });
        rules.collect()
    }

    /// Adds the metrics.
    pub(crate) fn collect(&self, series: &mut Vec<Series>) {
        for (domain, of_domain) in &self.domains {
            for outcome in CallOutcome::ALL {
                let count = of_domain.outcomes[outcome as usize];
                let labels =
                    vec![("domain", domain.to_string()), ("outcome", outcome.name().to_owned())];
                let name = "tollgate_trial_requests_total";
                series.push(Series::counter(name, REQUESTS_HELP, labels, count, None));
            }
            for (rule, tally) in &of_domain.rules {
                let classes = Class::ALL.map(|class| (class.name(), tally.classes[class as usize]));
                for (class, count) in [(AGREED, tally.agreed)].into_iter().chain(classes) {
                    let labels = vec![
                        ("domain", domain.to_string()),
                        ("rule", rule.to_string()),
                        ("class", class.to_owned()),
                    ];
                    let name = "tollgate_trial_decisions_total";
                    series.push(Series::counter(name, DECISIONS_HELP, labels, count, None));
                }
            }
        }
    }
}

impl DomainTally {
    pub(crate) fn count(&mut self, outcome: CallOutcome) {
        self.outcomes[outcome as usize] += 1;
    }

    /// Counts one descriptor.
    pub(crate) fn add(&mut self, row: &Row) {
        let tally = self.rules.entry(row.rule.clone()).or_default();
        tally.requests += 1;
        match row.comparison {
            Comparison::Agreed => tally.agreed += 1,
            Comparison::OverHere(_) => tally.over_here += 1,
            Comparison::OverThere(_) => tally.over_there += 1,
            Comparison::NoStatus(_) => {}
        }
        if let Some(class) = row.comparison.class() {
            tally.classes[class as usize] += 1;
        }
    }
}

impl RuleTally {
    fn view(&self, domain: &str, rule: &str) -> TrialRule {
        let classes = Class::ALL
            .into_iter()
            .map(|class| (class.name().to_owned(), self.classes[class as usize]));
        TrialRule {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            requests: self.requests,
            agreed: self.agreed,
            over_here: self.over_here,
            over_there: self.over_there,
            classes: classes.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::observe::redact::Values;
    use crate::report::comparison::{Code, DecidedSide};

    fn counts(tally: &RuleTally) -> [u64; 4] {
        let &RuleTally { requests, agreed, over_here, over_there, .. } = tally;
        [requests, agreed, over_here, over_there]
    }

    #[test]
    fn descriptors_are_counted_by_side_and_class() {
        let mut tally = DomainTally::default();
        for comparison in [
            Comparison::Agreed,
            Comparison::OverHere(Class::WindowEdge),
            Comparison::OverThere(Class::WarmUp),
            Comparison::OverThere(Class::WarmUp),
            Comparison::NoStatus(Class::ErrorThere),
        ] {
            let rule = "d.user".into();
            tally.add(&Row { rule, comparison });
        }
        let of_rule = &tally.rules["d.user"];
        assert_eq!(counts(of_rule), [5, 1, 1, 2]);
        let classes = Class::ALL.map(|class| of_rule.classes[class as usize]);
        assert_eq!(classes, [1, 0, 0, 0, 0, 0, 0, 2, 1, 0]);
    }

    #[test]
    fn domains_are_bounded_and_counted_beyond() {
        let mut tally = Tally::default();
        for number in 0..DOMAINS_MAX + 2 {
            let (domain, fits) = tally.domain(&number.to_string());
            domain.count(CallOutcome::Forwarded);
            assert_eq!(fits, number < DOMAINS_MAX, "{number}");
        }
        assert_eq!(tally.domains.len(), DOMAINS_MAX + 1);
        assert_eq!(tally.domains[OTHER].outcomes[CallOutcome::Forwarded as usize], 2);
        assert!(tally.domain("0").1, "a known domain is found");
    }

    #[test]
    fn the_last_disagreements_are_kept() {
        let mut tally = Tally::default();
        for number in 0..DISAGREEMENTS_MAX as u64 + 3 {
            let here = Code::Ok;
            let there = Code::OverLimit;
            let disagreement = Quoted::default().map(|_, descriptors| Disagreement {
                time: number.to_string(),
                domain: "d".to_owned(),
                descriptors,
                rule: None,
                here: DecidedSide::Response { code: here },
                there: DecidedSide::Response { code: there },
                class: Class::ErrorThere.name().to_owned(),
            });
            tally.add_disagreement(Arc::new(disagreement));
        }
        assert_eq!(tally.disagreements.len(), DISAGREEMENTS_MAX);
        assert_eq!(tally.disagreements[0].seen(Values::Clear).time, "3");
    }
}
