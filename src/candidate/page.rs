//! `/candidate`: the results.

use crate::candidate::tally::Tally;
use crate::report::comparison::{CandidateExample, CandidateRule, CandidateView, Change};

/// The results. Examples are newest first.
pub(crate) fn results(tally: &Tally) -> CandidateView {
    let rules = tally.domains.iter().flat_map(|(domain, rules)| {
        let rules = rules.iter();
        rules.map(move |(rule, of_rule)| CandidateRule {
            domain: domain.to_string(),
            rule: rule.to_string(),
            same: of_rule.changes[Change::Same as usize],
            newly_over: of_rule.changes[Change::NewlyOver as usize],
            no_longer_over: of_rule.changes[Change::NoLongerOver as usize],
            keys_changed: of_rule.keys_changed(),
        })
    });
    let examples = tally.examples.iter().rev();
    let examples = examples.map(|example| CandidateExample {
        time: example.time.to_rfc3339_millis(),
        domain: example.domain.to_string(),
        rule: example.rule.to_string(),
        change: example.change,
        descriptor: example.descriptor.clone(),
    });
    CandidateView {
        requests: tally.requests,
        rules: rules.collect(),
        examples: examples.collect(),
    }
}
