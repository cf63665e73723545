//! The latest decisions that are over limit: the script reads them from `/api/v1/over-limit`.

use maud::{Markup, html};

use crate::admin::api::top::Scope;
use crate::admin::query_string::Pairs;
use crate::base::text::Text;
use crate::console::frame::Tab;
use crate::console::parts::Parts;
use crate::console::rules::encoded;
use crate::console::scope::{scope_of, switch};

/// The filters, with their names and examples on the page.
const FILTERS: [[&str; 3]; 3] = [
    ["domain", "Domain", "shop"],
    ["rule", "Rule", "shop.user"],
    ["key", "Key", "user or user=ann"],
];

pub(crate) fn content(parts: &Parts, query: &str) -> Markup {
    let is_redacted = parts.api.top.redaction.is_some();
    let pairs = Pairs::new(query);
    let scope = scope_of(&pairs);
    let filters = FILTERS.map(|[name, ..]| (name, Text(pairs.first(name)).shown()));
    let filters = filters.each_ref().map(|(name, value)| (*name, &**value));
    let mut source = format!("/api/v1/over-limit?scope={}", scope.name());
    for (name, value) in filters.iter().filter(|(_, value)| !value.is_empty()) {
        source += &format!("&{name}={}", encoded(value));
    }
    html! {
        div.heading {
            h1 { "Over limit" }
            (switch(Tab::OverLimit, scope, &filters))
            p.dim #feed-state role="status" { "The feed needs JavaScript." }
            @if scope == Scope::Fleet { p.dim #feed-replicas role="status" data-keep {} }
            button #feed-pause type="button" aria-pressed="false" hidden { "Pause" }
        }
        p.lead { "Requests over limit as they are decided; above 10 a second of a replica, a sample of them." }
        form.filters role="search" action="/console/over-limit" {
            @for ([_, label, example], (name, value)) in FILTERS.iter().zip(filters) {
                label { (label) input type="search" name=(name) value=(value) placeholder=(example) autocomplete="off" spellcheck="false"; }
            }
            @if scope == Scope::Fleet { input type="hidden" name="scope" value=(scope.name()); }
            button type="submit" { "Filter" }
        }
        div.scroll {
            table {
                thead { tr {
                    th scope="col" { "Time" }
                    @if scope == Scope::Fleet { th scope="col" { "Replica" } }
                    @for name in ["Rule", "Key", "Limit", "Retry after", "Decided by"] { th scope="col" { (name) } }
                } }
                tbody #feed data-keep data-source=(source) data-scope=(scope.name()) data-redacted[is_redacted] {}
            }
        }
        p.empty #feed-none data-keep { "No request was over limit since this page was opened." }
        @if is_redacted { p.dim { "ADMIN_REDACT replaces the values that clients send." } }
    }
}
