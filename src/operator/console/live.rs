//! Responses of OVER_LIMIT of this replica as they are decided: the script reads them from
//! `/api/v1/over-limit`.

use maud::{Markup, html};

use crate::base::text::Text;
use crate::operator::admin::api::viewer::Viewer;
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::dialogs::hidden_values;
use crate::operator::console::frame::Tab;
use crate::operator::console::parts::Parts;
use crate::operator::observe::redact::Values;

/// What the page is limited to, as it is in the URL. Empty texts include everything.
#[derive(Debug, Clone)]
struct Filter {
    domain: String,
    /// The path of a rule.
    rule: String,
    /// `KEY` or `KEY=VALUE` of an entry.
    key: String,
}

pub(crate) fn content(parts: &Parts, query: &str, viewer: &Viewer) -> Markup {
    let filter = Filter::of(&Pairs::new(query));
    html! {
        div.heading {
            h1 { "Over limit" }
            p.dim #feed-state role="status" { "The feed needs JavaScript." }
            button #feed-pause type="button" aria-pressed="false" hidden { "Pause" }
        }
        (form(&filter))
        (feed(parts, &filter, viewer.values))
        (hidden_values(viewer))
    }
}

impl Filter {
    fn of(pairs: &Pairs) -> Self {
        let [domain, rule, key] =
            ["domain", "rule", "key"].map(|name| Text(pairs.first(name)).shown().into_owned());
        Self { domain, rule, key }
    }

    fn parameters(&self) -> [(&str, &str); 3] {
        let Self { domain, rule, key } = self;
        [("domain", domain), ("rule", rule), ("key", key)]
    }
}

fn form(filter: &Filter) -> Markup {
    let labels = [("Domain", "shop"), ("Rule", "shop.user"), ("Key", "user or user=ann")];
    html! {
        form.filters role="search" action=(Tab::OverLimit.path()) {
            @for ((name, value), (label, example)) in filter.parameters().iter().zip(labels) {
                label {
                    (label)
                    input type="search" name=(name) value=(value) placeholder=(example)
                        autocomplete="off" spellcheck="false";
                }
            }
            button type="submit" { "Filter" }
        }
    }
}

fn feed(parts: &Parts, filter: &Filter, values: Values) -> Markup {
    let columns = ["Time", "Rule", "Key", "Limit", "Retry after", "Decided by"];
    let Filter { domain, rule, key } = filter;
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
