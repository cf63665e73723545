//! The trial: what /trial has, as tables; without TRIAL_UPSTREAM how to begin one.

use maud::{Markup, html};

use crate::operator::admin::api::viewer::Viewer;
use crate::operator::console::dialogs::hidden_values;
use crate::operator::console::rules::href_of;
use crate::operator::console::widgets::{clamped, moment, number, table};
use crate::report::comparison::{Disagreement, TrialView, agreement};
use crate::trial::Trial;

/// How the upstream decides, compared with this service.
pub(crate) fn results(trial: &Trial, viewer: &Viewer) -> Markup {
    let results = trial.results(viewer.values);
    html! {
        h1 { "Trial" }
        p.lead {
            "Compared with " code { (results.upstream) } " since " (moment(&results.since)) ": "
            strong { (number(results.agreed)) } " of " strong { (number(results.requests)) } " requests agree, "
            (agreement(results.agreed, results.requests)) ". "
            (results.enforce_percent) " % of the callers get the answer of this service; "
            (number(results.dropped)) " calls were not compared."
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

/// How to begin a trial.
pub(crate) fn begin() -> Markup {
    html! {
        h1 { "Trial" }
        p.lead {
            "A trial shows with live traffic what a switch from envoyproxy/ratelimit would change. "
            "This service forwards each call to the one in use, returns its answer, and compares it with its own. "
            "None is running: TRIAL_UPSTREAM is not set."
        }
        ol.steps {
            li {
                "Restart this service with the address of the one in use, here " code { "ratelimit.istio-system:8081" } ":"
                pre { "TRIAL_UPSTREAM=ratelimit.istio-system:8081" }
                "With the chart:"
                pre { "helm upgrade tollgate helm/tollgate --reuse-values --set trial.upstream=ratelimit.istio-system:8081" }
            }
            li { "Give Envoy's cluster of the rate limit service the address of this one. Callers get the same answers as before." }
            li {
                "Open this page again, or print the same, of each replica by the URL of its admin port:"
                pre { "tollgate trial report" }
            }
        }
        p.dim { "docs/migration.md explains each class of disagreements, and the switch." }
    }
}

fn trial_rules(results: &TrialView) -> Markup {
    const COUNTS: [&str; 4] =
        ["Requests", "Agreed (95 % interval)", "Over limit here", "Over limit there"];
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
                    td { (rule.classes_by(words)) }
                    td.number { (number(rule.requests)) }
                    td.number { (agreement(rule.agreed, rule.requests)) }
                    td.number { (number(rule.over_here)) }
                    td.number { (number(rule.over_there)) }
                }
            }
        },
    )
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
