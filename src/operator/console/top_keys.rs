//! The keys of a rule with the most hits, and those most over limit, with a link to each.

use maud::{Markup, html};

use crate::operator::admin::api::viewer::Viewer;
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::dialogs::hidden_values;
use crate::operator::console::parts::Parts;
use crate::operator::console::rules::href_of;
use crate::operator::console::widgets::{clamped, encoded, number, percent, table};
use crate::operator::observe::redact::Values;
use crate::operator::observe::top_keys::windows::{By, Window};
use crate::report::top::KeyHits;

/// Keys of a page of the console.
const KEYS_MAX: usize = 20;
/// With their names on the page.
const WINDOWS: [(Window, &str); 3] =
    [(Window::Hour, "60 min"), (Window::FiveMinutes, "5 min"), (Window::Minute, "1 min")];
const ORDERS: [(By, &str); 2] = [(By::OverLimit, "over limit"), (By::Hits, "hits")];

/// `open` has the names of entries whose value the rule leaves to requests.
pub(crate) async fn section(
    parts: &Parts,
    pairs: &Pairs,
    domain: &str,
    rule: &str,
    open: &[bool],
    viewer: &Viewer,
) -> Markup {
    let window = pairs.text("window").parse().unwrap_or(Window::Hour);
    let by = pairs.text("by").parse().unwrap_or(By::OverLimit);
    let keys = parts.api.top.of_rule(domain, rule, window, by, viewer.values).await;
    let href = |window: Window, by: By| {
        let window = window.name();
        let by = by.name();
        format!("{}&window={window}&by={by}", href_of(domain, rule))
    };
    html! {
        section aria-labelledby="top" {
            div.heading {
                h2 #top { "Top keys" span.dim { " · " (parts.this_replica()) } }
                nav.choice aria-label="Period" {
                    @for (other, name) in WINDOWS {
                        a href=(href(other, by)) aria-current=[(other == window).then_some("true")] { (name) }
                    }
                }
                nav.choice aria-label="Order" {
                    @for (other, name) in ORDERS {
                        a href=(href(window, other)) aria-current=[(other == by).then_some("true")] { "by " (name) }
                    }
                }
            }
            @match &keys {
                Err(rejected) => p.empty role="alert" { (rejected.reason()) },
                Ok(keys) if keys.is_empty() => p.empty { "No hits in this period." },
                Ok(keys) => (table(&["Key"], &["Over limit", "Hits", "Share over limit"], &html! { @for key in keys.iter().take(KEYS_MAX) { (row(domain, key, open, viewer.values)) } })),
            }
            (hidden_values(viewer))
        }
    }
}

fn row(domain: &str, key: &KeyHits, open: &[bool], values: Values) -> Markup {
    let KeyHits { key: entries, hits, over_limit: over } = key;
    let name = name_of(entries, open);
    html! {
        tr {
            th scope="row" {
                @match values {
                    Values::Clear => a href=(key_href(domain, entries)) { (clamped(&name)) },
                    Values::Dropped => (clamped(&name)),
                }
            }
            td.number.over[*over > 0] { (number(*over)) }
            td.number { (number(*hits)) }
            td.number { (percent(*over, *hits)) }
        }
    }
}

/// The values that the rule leaves to requests; all of them if there are none.
pub(crate) fn name_of(entries: &[[String; 2]], open: &[bool]) -> String {
    let is_open = |index: usize| open.get(index).copied().unwrap_or(true);
    let values = |all: bool| {
        let shown = entries.iter().enumerate();
        let shown = shown.filter(|(index, _)| all || is_open(*index));
        let shown: Vec<&str> = shown.map(|(_, [_, value])| value.as_str()).collect();
        shown.join(", ")
    };
    let name = values(false);
    let name = if name.is_empty() { values(true) } else { name };
    if name.is_empty() { "(empty)".to_owned() } else { name }
}

/// The URL of a key's view.
pub(crate) fn key_href(domain: &str, entries: &[[String; 2]]) -> String {
    let entries =
        entries.iter().map(|[key, value]| format!("&e={}", encoded(&format!("{key}={value}"))));
    let entries: Vec<String> = entries.collect();
    let domain = encoded(domain);
    format!("/console/key?domain={domain}{}", entries.concat())
}
