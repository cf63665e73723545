//! The page for operators, `docs/operations.md` of this version: faults link to its sections, and
//! readers need neither the internet nor a setting.

use maud::{Markup, PreEscaped, html};

use crate::operator::admin::query_string::Pairs;

/// From the build script.
const PAGE: &str = include_str!(concat!(env!("OUT_DIR"), "/operations.html"));

/// With `text=no` the page is left out: the script has it already.
pub(crate) fn content(pairs: &Pairs) -> Markup {
    let is_refresh = pairs.first("text") == b"no";
    html! {
        div.runbook #runbook data-keep data-refresh="/console/runbook?text=no" {
            @if !is_refresh { (PreEscaped(PAGE)) }
        }
    }
}

/// A link to a section.
pub(crate) fn link(anchor: &str) -> Markup {
    html! { a.help href=(href_of(anchor)) { "What to do" } }
}

pub(crate) fn href_of(anchor: &str) -> String {
    format!("/console/runbook#{anchor}")
}
