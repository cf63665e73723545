//! The trial and the candidate rules: what /trial and /candidate have, as tables.

use maud::{Markup, html};
use serde_json::Value;

use crate::candidate::Candidate;
use crate::console::rules::href_of;
use crate::console::widgets::percent;
use crate::trial::Trial;

/// What the candidate rules would change.
pub(crate) fn candidate(candidate: &Candidate) -> Markup {
    let page: Value = serde_json::from_str(&candidate.page()).unwrap_or_default();
    html! {
        h1 { "Candidate" }
        p.lead { "What the candidate rules would change of " strong { (count(&page, "requests")) } " requests. They have no effect on responses." }
        section aria-labelledby="rules" {
            h2 #rules { "By rule" }
            (table(&page["rules"], &["Same", "Newly over limit", "No longer over limit", "Keys changed"], &["same", "newly_over", "no_longer_over", "keys_changed"]))
        }
        section aria-labelledby="examples" {
            h2 #examples { "Latest changes" }
            (rows(&page["examples"], &["Time", "Rule", "Change"], |example| vec![moment(example, "time"), text(example, "rule"), text(example, "change").replace('_', " ")]))
        }
        p.dim { a href="/candidate" { "/candidate" } " has the same as JSON." }
    }
}

/// How the upstream decides, compared with this service.
pub(crate) fn trial(trial: &Trial) -> Markup {
    let page: Value = serde_json::from_str(&trial.page()).unwrap_or_default();
    let (requests, agreed) = (count(&page, "requests"), count(&page, "agreed"));
    html! {
        h1 { "Trial" }
        p.lead {
            "Compared with " code { (text(&page, "upstream")) } " since " (moment(&page, "since")) ": "
            strong { (agreed) } " of " strong { (requests) } " requests agree (" (percent(agreed, requests)) "). "
            (count(&page, "enforce_percent")) " % of the callers get the answer of this service; "
            (count(&page, "dropped")) " calls were not compared."
        }
        section aria-labelledby="rules" {
            h2 #rules { "By rule" }
            (table(&page["rules"], &["Requests", "Agreed", "Over limit here", "Over limit there"], &["requests", "agreed", "over_here", "over_there"]))
        }
        section aria-labelledby="disagreements" {
            h2 #disagreements { "Latest disagreements" }
            (rows(&page["disagreements"], &["Time", "Rule", "Class", "Here", "There"], |row| {
                vec![moment(row, "time"), text(row, "rule"), text(row, "class").replace('_', " "), side(&row["here"]), side(&row["there"])]
            }))
        }
        p.dim { a href="/trial" { "/trial" } " has the same as JSON." }
    }
}

/// Counts by rule.
fn table(rules: &Value, titles: &[&str], names: &[&str]) -> Markup {
    let rules = rules.as_array().map_or(&[][..], Vec::as_slice);
    if rules.is_empty() {
        return html! { p.empty { "Nothing was compared so far." } };
    }
    html! {
        div.scroll {
            table {
                thead { tr { th scope="col" { "Rule" } @for title in titles { th.number scope="col" { (title) } } } }
                tbody {
                    @for rule in rules {
                        tr {
                            th scope="row" { a href=(href_of(&text(rule, "domain"), &text(rule, "rule"))) { (text(rule, "rule")) } }
                            @for name in names { td.number { (count(rule, name)) } }
                        }
                    }
                }
            }
        }
    }
}

fn rows(values: &Value, titles: &[&str], cells: impl Fn(&Value) -> Vec<String>) -> Markup {
    let values = values.as_array().map_or(&[][..], Vec::as_slice);
    if values.is_empty() {
        return html! { p.empty { "None so far." } };
    }
    html! {
        div.scroll {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody { @for value in values { tr { @for cell in cells(value) { td { (cell) } } } } }
            }
        }
    }
}

/// One side of a disagreement.
fn side(side: &Value) -> String {
    let state = side["code"].as_str().or(side["error"].as_str());
    let state = state.unwrap_or("–").to_owned();
    match side["limit_remaining"].as_u64() {
        Some(remaining) => format!("{state}, {remaining} left"),
        None => state,
    }
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or("–").to_owned()
}

/// A time to the second, for people.
fn moment(value: &Value, name: &str) -> String {
    let time = text(value, name);
    match time.split_once('T') {
        Some((date, time)) => format!("{date} {} UTC", time.get(..8).unwrap_or(time)),
        None => time,
    }
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}
