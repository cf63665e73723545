//! A key: its counter, its last hour, what an operator may do to it, and why requests get it.

use maud::{Markup, html};

use crate::base::text::Text;
use crate::base::time::Span;
use crate::limits::Algorithm;
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::budgets;
use crate::operator::console::dialogs::actions;
use crate::operator::console::parts::Parts;
use crate::operator::console::rules::href_of;
use crate::operator::console::top_keys::key_href;
use crate::operator::console::widgets::{TimeAxis, bar, chart, clamped, duration, number};
use crate::operator::observe::history::{Bar, Chart};
use crate::operator::observe::top_keys::windows::HISTORY_SLOT_MINUTES;
use crate::report::counter::{CountedIn, CounterLimit, CounterView};
use crate::report::top::TOP_KEYS_MAX;
use crate::rules::explain::explain;
use crate::rules::{Entry, Query, plan};

/// The title and the content.
pub(crate) async fn content(parts: &Parts, pairs: &Pairs) -> (String, Markup) {
    let domain = pairs.text("domain");
    let entries: Vec<String> = pairs.all("e").map(|entry| Text(entry).to_string()).collect();
    let title = entries.join(", ");
    let counters = &parts.api.counters;
    let answer = counters.read_by_query(pairs).await;
    let hour = hour(parts, &domain, pairs).await;
    let limits = budgets::of_key(parts, pairs).await;
    let content = html! {
        p.crumbs {
            a href="/console/rules" { "Rules" } " / " (domain)
            @if let Some(rule) = answer.as_ref().ok().and_then(|counter| counter.rule.as_deref()) {
                " / " a href=(href_of(&domain, rule)) { (rule) }
            }
        }
        h1 { (clamped(&title)) }
        @match &answer {
            Ok(counter) => {
                (shown(counter, &parts.this_replica()))
                @if let Some(limits) = limits { (limits) }
                (actions(parts.api.actions.unconfigured(), &domain, &descriptor(pairs)))
                (history(hour.as_ref(), parts))
            },
            Err(rejected) => p.empty role="alert" { (rejected.reason()) },
        }
        section aria-labelledby="explain" {
            h2 #explain { "Explain" }
            pre { (explained(parts, pairs)) }
        }
    };
    (title, content)
}

/// Keys and values, as the API reads them.
fn descriptor(pairs: &Pairs) -> Vec<[String; 2]> {
    let entries = pairs.all("e").filter_map(|entry| Entry::parse(entry).ok());
    entries.map(Entry::shown).collect()
}

/// The URL of this view for pairs of `k` and `v`, as a form sends them.
pub(crate) fn canonical(pairs: &Pairs) -> Option<String> {
    pairs.all("k").next()?;
    let entries = pairs.all("k").zip(pairs.all("v"));
    let entries = entries.map(|(key, value)| [key, value].map(|part| Text(part).to_string()));
    Some(key_href(&pairs.text("domain"), &entries.collect::<Vec<_>>()))
}

fn shown(counter: &CounterView, this_replica: &str) -> Markup {
    let limit = counter.limit.as_ref();
    let capacity = limit.map_or(0, CounterLimit::capacity);
    let used = counter.used.unwrap_or_default();
    let reset = counter.resets_in_seconds.unwrap_or_default();
    let name = |name: Option<&'static str>| name.unwrap_or("–");
    html! {
        dl.tiles {
            div.tile { dt { "State" } dd.figure {
                @if counter.over_limit { span.state.bad { "over limit" } } @else { span.state.good { "within limit" } }
            } dd.note { (bar(used, capacity)) } }
            div.tile { dt { "Used" } dd.figure #used { (number(used)) } dd.note { "of " (number(capacity)) @if used > capacity { "; hits over limit count, too" } } }
            div.tile { dt { "Leased" } dd.figure #leased { (number(counter.leased.unwrap_or_default())) } dd.note { "of used, held by " (this_replica) } }
            div.tile { dt { "Remaining" } dd.figure { (number(counter.remaining.unwrap_or_default())) } dd.note { "hits that pass now" } }
            div.tile { dt { "Resets in" } dd.figure { (duration(reset)) } dd.note { (name(counter.algorithm.map(Algorithm::name))) } }
            div.tile { dt { "Counted in" } dd.figure { (name(counter.counted_in.map(CountedIn::name))) } dd.note {
                @if counter.counted_in == Some(CountedIn::Fallback) { "Redis gave no answer: the share of this replica" } @else { code { (clamped(counter.key.as_deref().unwrap_or("–"))) } }
            } }
        }
    }
}

/// Hits of the key in each slot of the last hour. `None` if it was not tracked.
async fn hour(parts: &Parts, domain: &str, pairs: &Pairs) -> Option<Chart> {
    let rules = parts.rules_in_force()?;
    let query = Query::of_entries(pairs.first("domain"), pairs.all("e")).ok()?;
    let plan = plan(&rules, &query, parts.modes, parts.clock.now()).ok()?;
    let step = plan.steps.first()?;
    let link = step.links().last()?;
    let key = &plan.request.checks[link.check].key;
    let keys = &parts.api.top.keys;
    let hour = keys.history(domain, &link.rule?.path, key).await?;
    // Whether a quota rejects depends on the others of a call.
    let admits = link.admits() || parts.modes.shadow;
    let bars = hour.into_iter().map(|counts| {
        let over = counts.over_limit;
        let [over_limit, admitted] = if admits { [0, over] } else { [over, 0] };
        Bar { all: counts.hits, over_limit, admitted }
    });
    Some(bars.collect())
}

fn history(hour: Option<&Chart>, parts: &Parts) -> Markup {
    let axis = TimeAxis {
        last: parts.clock.now(),
        bar: Span::from_secs(60 * HISTORY_SLOT_MINUTES as u64),
    };
    html! {
        section aria-labelledby="hour" {
            h2 #hour { "Last hour" span.dim { " · " (parts.this_replica()) } }
            @match hour {
                Some(hour) => {
                    (chart(hour, axis, "hits"))
                    p.dim { "Without times in which " (TOP_KEYS_MAX) " other keys of the rule had more hits." }
                },
                None => p.empty { "None of its hits is known: this replica had none, or " (TOP_KEYS_MAX) " other keys of the rule had more." },
            }
        }
    }
}

fn explained(parts: &Parts, pairs: &Pairs) -> String {
    let query = Query::of_entries(pairs.first("domain"), pairs.all("e"));
    match (parts.rules_in_force(), query) {
        (Some(rules), Ok(query)) => explain(&rules, &query, parts.modes).text,
        (None, _) => "No rules are loaded.".to_owned(),
        (_, Err(invalid)) => invalid,
    }
}
