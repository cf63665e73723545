//! The trial and the candidate rules: what /trial and /candidate have, as tables.

use maud::{Markup, html};

use crate::admin::api::viewer::Viewer;
use crate::candidate::Candidate;
use crate::console::dialogs::hidden_values;
use crate::console::rules::href_of;
use crate::console::widgets::{clamped, table};
use crate::report::comparison::{CandidateView, Disagreement, TrialRule, TrialView, agreement};
use crate::trial::Trial;

/// Results of the candidate rules.
pub(crate) fn candidate(candidate: &Candidate, viewer: &Viewer) -> Markup {
    let results = candidate.results(viewer.values());
    html! {
        h1 { "Candidate" }
        p.lead { "What the candidate rules would change of " strong { (results.requests) } " requests. They have no effect on responses." }
        section aria-labelledby="rules" {
            h2 #rules { "By rule" }
            (candidate_rules(&results))
        }
        section aria-labelledby="examples" {
            h2 #examples { "Latest changes" }
            (examples(&results))
            (hidden_values(viewer))
        }
        p.dim { a href="/candidate" { "/candidate" } " has the same as JSON." }
    }
}

/// How the upstream decides, compared with this service.
pub(crate) fn trial(trial: &Trial, viewer: &Viewer) -> Markup {
    let results = trial.results(viewer.values());
    html! {
        h1 { "Trial" }
        p.lead {
            "Compared with " code { (results.upstream) } " since " (moment(&results.since)) ": "
            strong { (results.agreed) } " of " strong { (results.requests) } " requests agree, "
            (agreement(results.agreed, results.requests)) ". "
            (results.enforce_percent) " % of the callers get the answer of this service; "
            (results.dropped) " calls were not compared."
        }
        section aria-labelledby="rules" {
            h2 #rules { "By rule" }
            (trial_rules(&results))
        }
        section aria-labelledby="disagreements" {
            h2 #disagreements { "Latest disagreements" }
            (disagreements(&results))
            (hidden_values(viewer))
        }
        p.dim { a href="/trial" { "/trial" } " has the same as JSON; docs/migration.md explains each class." }
    }
}

fn candidate_rules(results: &CandidateView) -> Markup {
    const COUNTS: [&str; 4] = [
        "Same",
        "Newly over limit",
        "No longer over limit",
        "Keys changed",
    ];
    if results.rules.is_empty() {
        return html! { p.empty { "Nothing was compared so far." } };
    }
    table(
        &["Rule"],
        &COUNTS,
        &html! {
            @for rule in &results.rules {
                tr {
                    th scope="row" { a href=(href_of(&rule.domain, &rule.rule)) { (rule.rule) } }
                    td.number { (rule.same) }
                    td.number { (rule.newly_over) }
                    td.number { (rule.no_longer_over) }
                    td.number { (rule.keys_changed) }
                }
            }
        },
    )
}

fn examples(results: &CandidateView) -> Markup {
    if results.examples.is_empty() {
        return html! { p.empty { "None so far." } };
    }
    table(
        &["Time", "Rule", "Change", "Key"],
        &[],
        &html! {
            @for example in &results.examples {
                tr {
                    td { (moment(&example.time)) }
                    td { (example.rule) }
                    td { (words(example.change.name())) }
                    td { (clamped(&example.descriptor)) }
                }
            }
        },
    )
}

fn trial_rules(results: &TrialView) -> Markup {
    const COUNTS: [&str; 4] = [
        "Requests",
        "Agreed (95 % interval)",
        "Over limit here",
        "Over limit there",
    ];
    if results.rules.is_empty() {
        return html! { p.empty { "Nothing was compared so far." } };
    }
    table(
        &["Rule", "Classes of disagreements"],
        &COUNTS,
        &html! {
            @for rule in &results.rules {
                tr {
                    th scope="row" { a href=(href_of(&rule.domain, &rule.rule)) { (rule.rule) } }
                    td { (classes(rule)) }
                    td.number { (rule.requests) }
                    td.number { (agreement(rule.agreed, rule.requests)) }
                    td.number { (rule.over_here) }
                    td.number { (rule.over_there) }
                }
            }
        },
    )
}

fn classes(rule: &TrialRule) -> String {
    let classes = rule.classes.iter().filter(|(_, count)| **count > 0);
    let classes = classes.map(|(class, count)| format!("{} {count}", words(class)));
    classes.collect::<Vec<_>>().join(", ")
}

fn disagreements(results: &TrialView) -> Markup {
    if results.disagreements.is_empty() {
        return html! { p.empty { "None so far." } };
    }
    let key = |one: &Disagreement| one.descriptors.join(" | ");
    table(
        &["Time", "Class", "Rule", "Key", "Here", "There"],
        &[],
        &html! {
            @for one in &results.disagreements {
                tr {
                    td { (moment(&one.time)) }
                    td { (words(&one.class)) }
                    td { (one.rule.as_deref().unwrap_or("(response)")) }
                    td { (clamped(&key(one))) }
                    td { (one.here) }
                    td { (one.there) }
                }
            }
        },
    )
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// A time to the second, for people.
fn moment(time: &str) -> String {
    match time.split_once('T') {
        Some((date, time)) => format!("{date} {} UTC", time.get(..8).unwrap_or(time)),
        None => time.to_owned(),
    }
}
