//! The trial and the candidate rules: what /trial and /candidate have, as tables.

use maud::{Markup, html};

use crate::admin::api::viewer::Viewer;
use crate::candidate::Candidate;
use crate::console::rules::href_of;
use crate::console::widgets::percent;
use crate::observe::redact::Values;
use crate::report::comparison::DecidedSide;
use crate::trial::Trial;

/// Results of the candidate rules.
pub(crate) fn candidate(candidate: &Candidate) -> Markup {
    let results = candidate.results(Values::Redacted);
    let rules = results.rules.iter().map(|rule| {
        let keys = rule.keys_changed as u64;
        let counts = [rule.same, rule.newly_over, rule.no_longer_over, keys];
        (&*rule.domain, &*rule.rule, counts)
    });
    let examples = results.examples.iter().map(|example| {
        let change = example.change.name().replace('_', " ");
        [moment(&example.time), example.rule.clone(), change]
    });
    html! {
        h1 { "Candidate" }
        p.lead { "What the candidate rules would change of " strong { (results.requests) } " requests. They have no effect on responses." }
        section aria-labelledby="rules" {
            h2 #rules { "By rule" }
            (table(["Same", "Newly over limit", "No longer over limit", "Keys changed"], rules))
        }
        section aria-labelledby="examples" {
            h2 #examples { "Latest changes" }
            (rows(["Time", "Rule", "Change"], examples))
        }
        p.dim { a href="/candidate" { "/candidate" } " has the same as JSON." }
    }
}

/// How the upstream decides, compared with this service.
pub(crate) fn trial(trial: &Trial, viewer: &Viewer) -> Markup {
    let results = trial.results(viewer.values());
    let rules = results.rules.iter().map(|rule| {
        let counts = [rule.requests, rule.agreed, rule.over_here, rule.over_there];
        (&*rule.domain, &*rule.rule, counts)
    });
    let disagreements = results.disagreements.iter().map(|one| {
        let rule = one.rule.as_deref().unwrap_or("–");
        let class = one.class.replace('_', " ");
        [
            moment(&one.time),
            rule.to_owned(),
            class,
            side(&one.here),
            side(&one.there),
        ]
    });
    html! {
        h1 { "Trial" }
        p.lead {
            "Compared with " code { (results.upstream) } " since " (moment(&results.since)) ": "
            strong { (results.agreed) } " of " strong { (results.requests) } " requests agree (" (percent(results.agreed, results.requests)) "). "
            (results.enforce_percent) " % of the callers get the answer of this service; "
            (results.dropped) " calls were not compared."
        }
        section aria-labelledby="rules" {
            h2 #rules { "By rule" }
            (table(["Requests", "Agreed", "Over limit here", "Over limit there"], rules))
        }
        section aria-labelledby="disagreements" {
            h2 #disagreements { "Latest disagreements" }
            (rows(["Time", "Rule", "Class", "Here", "There"], disagreements))
        }
        p.dim { a href="/trial" { "/trial" } " has the same as JSON." }
    }
}

/// Counts by domain and rule.
fn table<'r>(
    titles: [&str; 4],
    rules: impl ExactSizeIterator<Item = (&'r str, &'r str, [u64; 4])>,
) -> Markup {
    if rules.len() == 0 {
        return html! { p.empty { "Nothing was compared so far." } };
    }
    html! {
        div.scroll tabindex="0" {
            table {
                thead { tr { th scope="col" { "Rule" } @for title in titles { th.number scope="col" { (title) } } } }
                tbody {
                    @for (domain, rule, counts) in rules {
                        tr {
                            th scope="row" { a href=(href_of(domain, rule)) { (rule) } }
                            @for count in counts { td.number { (count) } }
                        }
                    }
                }
            }
        }
    }
}

fn rows<const N: usize>(
    titles: [&str; N],
    rows: impl ExactSizeIterator<Item = [String; N]>,
) -> Markup {
    if rows.len() == 0 {
        return html! { p.empty { "None so far." } };
    }
    html! {
        div.scroll tabindex="0" {
            table {
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody { @for cells in rows { tr { @for cell in cells { td { (cell) } } } } }
            }
        }
    }
}

fn side(side: &DecidedSide) -> String {
    match side {
        DecidedSide::Error { error } => error.clone(),
        DecidedSide::Response { code } => code.name().to_owned(),
        DecidedSide::Status(status) => {
            format!("{}, {} left", status.code.name(), status.limit_remaining)
        }
    }
}

/// A time to the second, for people.
fn moment(time: &str) -> String {
    match time.split_once('T') {
        Some((date, time)) => format!("{date} {} UTC", time.get(..8).unwrap_or(time)),
        None => time.to_owned(),
    }
}
