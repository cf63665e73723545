//! Responses of OVER_LIMIT of this replica as they are decided: the script reads them from
//! `/api/v1/over-limit`.

use maud::{Markup, html};

use crate::operator::admin::api::viewer::Viewer;
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::dialogs::hidden_values;
use crate::operator::console::frame::Tab;
use crate::operator::console::parts::Parts;
use crate::operator::observe::redact::Values;

/// What the page is limited to, as it is in the URL: the name of the parameter, its label and an
/// example. Empty texts include everything.
const FILTERS: [(&str, &str, &str); 3] = [
    ("domain", "Domain", "shop"),
    ("rule", "Rule", "shop.user"),
    ("key", "Key", "user or user=ann"),
];

pub(crate) fn content(parts: &Parts, pairs: &Pairs, viewer: &Viewer) -> Markup {
    html! {
        div.heading {
            h1 { "Over limit" }
            p.dim #feed-state role="status" { "The feed needs JavaScript." }
            button #feed-pause type="button" aria-pressed="false" hidden { "Pause" }
        }
        (form(pairs))
        (feed(parts, pairs, viewer.values))
        (hidden_values(viewer))
    }
}

fn form(pairs: &Pairs) -> Markup {
    html! {
        form.filters role="search" action=(Tab::OVER_LIMIT.path) {
            @for (name, label, example) in FILTERS {
                label {
                    (label)
                    input type="search" name=(name) value=(pairs.text(name)) placeholder=(example)
                        autocomplete="off" spellcheck="false";
                }
            }
            button type="submit" { "Filter" }
        }
    }
}

fn feed(parts: &Parts, pairs: &Pairs, values: Values) -> Markup {
    let columns = ["Time", "Rule", "Key", "Limit", "Retry after", "Decided by"];
    let [domain, rule, key] = FILTERS.map(|(name, ..)| pairs.text(name));
    html! {
        p.lead { "Requests over limit of " (parts.this_replica()) ", as they are decided; above 10 a second of all rules, a sample." }
        div.scroll tabindex="0" {
            table {
                thead { tr { @for name in columns { th scope="col" { (name) } } } }
                tbody #feed data-keep data-source="/api/v1/over-limit" data-values=(values.name())
                    data-domain=(domain) data-rule=(rule) data-key=(key) {}
            }
        }
        p.empty #feed-none data-keep { "No such request was over limit since this page was opened." }
    }
}
