//! Responses of OVER_LIMIT: of this replica as they are decided, which the script reads from
//! `/api/v1/over-limit`; of the fleet the keys over limit in the last minute.

use std::cmp::Reverse;

use maud::{Markup, html};

use crate::admin::api::top::Scope;
use crate::admin::api::viewer::{Links, Viewer};
use crate::admin::query_string::Pairs;
use crate::base::text::Text;
use crate::console::dialogs::hidden_values;
use crate::console::frame::Tab;
use crate::console::parts::Parts;
use crate::console::rules::href_of;
use crate::console::scope::{covered, field, scope_of, switch};
use crate::console::top_keys::key_href;
use crate::console::widgets::{clamped, encoded, table};
use crate::report::counter::Entries;
use crate::report::top::{KeyHits, TopKeys};

/// Keys of the fleet on the page.
// bound over_limit_rows_max: left out; -
const ROWS_MAX: usize = 200;

/// What the page is limited to, as it is in the URL. Empty texts include everything.
#[derive(Debug, Clone)]
struct Filter {
    domain: String,
    /// The path of a rule.
    rule: String,
    /// `KEY` or `KEY=VALUE` of an entry.
    key: String,
}

/// A key that was over limit.
struct Row {
    domain: String,
    rule: String,
    key: KeyHits,
}

pub(crate) async fn content(parts: &Parts, query: &str, viewer: &Viewer) -> Markup {
    let pairs = Pairs::new(query);
    let scope = scope_of(&pairs);
    let filter = Filter::of(&pairs);
    html! {
        div.heading {
            h1 { "Over limit" }
            (switch(Tab::OverLimit, scope, &filter.parameters()))
            @if scope == Scope::Replica {
                p.dim #feed-state role="status" { "The feed needs JavaScript." }
                button #feed-pause type="button" aria-pressed="false" hidden { "Pause" }
            }
        }
        (form(&filter, scope))
        @match scope {
            Scope::Replica => (feed(&filter, viewer.links())),
            Scope::Fleet => (keys_of_fleet(parts, filter, viewer).await),
        }
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

    fn includes(&self, entries: &Entries) -> bool {
        let mut entries = entries.iter();
        self.key.is_empty()
            || entries.any(|[key, value]| match self.key.strip_prefix(&**key) {
                Some("") => true,
                Some(rest) => rest.strip_prefix('=') == Some(value),
                None => false,
            })
    }
}

fn form(filter: &Filter, scope: Scope) -> Markup {
    let labels = [
        ("Domain", "shop"),
        ("Rule", "shop.user"),
        ("Key", "user or user=ann"),
    ];
    html! {
        form.filters role="search" action=(Tab::OverLimit.path()) {
            @for ((name, value), (label, example)) in filter.parameters().iter().zip(labels) {
                label {
                    (label)
                    input type="search" name=(name) value=(value) placeholder=(example)
                        autocomplete="off" spellcheck="false";
                }
            }
            (field(scope))
            button type="submit" { "Filter" }
        }
    }
}

fn feed(filter: &Filter, links: Links) -> Markup {
    let columns = ["Time", "Rule", "Key", "Limit", "Retry after", "Source"];
    let Filter { domain, rule, key } = filter;
    html! {
        p.lead { "Requests over limit of this replica as they are decided; above 10 a second of all rules, a sample." }
        div.scroll tabindex="0" {
            table {
                thead { tr { @for name in columns { th scope="col" { (name) } } } }
                tbody #feed data-keep data-source="/api/v1/over-limit" data-links=(links.name())
                    data-domain=(domain) data-rule=(rule) data-key=(key) {}
            }
        }
        p.empty #feed-none data-keep { "No such request was over limit since this page was opened." }
    }
}

/// The keys that all replicas count, as `tollgate top --fleet` has them. Their hits are unknown: a
/// replica leaves out keys of which none was over limit.
async fn keys_of_fleet(parts: &Parts, filter: Filter, viewer: &Viewer) -> Markup {
    let api = &parts.api;
    let (domain, rule) = (encoded(&filter.domain), encoded(&filter.rule));
    let query = format!("scope=fleet&domain={domain}&rule={rule}");
    let show = move |mut answer: TopKeys| {
        let answered = answer.replicas.as_ref().map_or(0, Vec::len);
        let missing = answer.missing.take().unwrap_or_default();
        (answered, missing, rows(answer, &filter))
    };
    let (answered, missing, rows) = match api.top.read(&api.replica, &query, viewer, show).await {
        Ok(shown) => shown,
        Err(rejected) => return html! { p.empty role="alert" { (rejected.reason()) } },
    };
    let covered = covered(
        answered,
        &missing,
        &api.statuses.fleet.peers(),
        "last minute",
    );
    html! {
        p.lead { "Keys over limit: " (covered) "." }
        @if rows.is_empty() {
            p.empty { "No such key was over limit." }
        } @else {
            (table(&["Rule", "Key"], &["Over limit"], &html! {
                @for row in rows.iter().take(ROWS_MAX) { (line(row, viewer.links())) }
            }))
        }
        @if rows.len() > ROWS_MAX { p.dim { "The first " (ROWS_MAX) " of " (rows.len()) "." } }
    }
}

/// Keys with the most hits over limit first.
fn rows(answer: TopKeys, filter: &Filter) -> Vec<Row> {
    let rules = answer.rules.into_iter();
    let mut rows: Vec<_> = rules
        .flat_map(|of_rule| {
            let (domain, rule) = (of_rule.domain, of_rule.rule);
            of_rule.keys.into_iter().map(move |key| Row {
                domain: domain.clone(),
                rule: rule.clone(),
                key,
            })
        })
        .filter(|row| filter.includes(&row.key.key))
        .collect();
    rows.sort_by_key(|row| Reverse((row.key.over_limit, row.key.hits)));
    rows
}

fn line(row: &Row, links: Links) -> Markup {
    let Row { domain, rule, key } = row;
    let entries = key.key.iter().map(|[key, value]| format!("{key}={value}"));
    let name = entries.collect::<Vec<_>>().join(", ");
    html! {
        tr {
            td { a href=(href_of(domain, rule)) { (rule) } }
            td {
                @match key_href(domain, &key.key, links) {
                    Some(href) => a href=(href) { (clamped(&name)) },
                    None => (clamped(&name)),
                }
            }
            td.number.over { (key.over_limit) }
        }
    }
}
