//! Builds the admin listener: pages, API, and what they show of decisions.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;

use crate::admin::api::Api;
use crate::admin::api::actions::Actions;
use crate::admin::api::counters::Counters;
use crate::admin::api::fleet::Fleet;
use crate::admin::api::rule_changes::RuleChanges;
use crate::admin::api::rule_check::RuleChecks;
use crate::admin::api::rules::Rules as RuleAnswers;
use crate::admin::api::token::{TokenCheck, TokenFile, TokenOptions};
use crate::admin::api::top::Top;
use crate::admin::{Admin, Pages};
use crate::app::console::console;
use crate::app::rules::{Candidates, Rules};
use crate::http::callers::Callers;
use crate::http::response_budget::ResponseBudget;
use crate::limiter::Observers;
use crate::over_limit_feed::OverLimitFeed;
use crate::redact::Redaction;
use crate::settings::Settings;
use crate::shutdown::Lifecycle;
use crate::store::Backend;
use crate::telemetry::metric::Metrics;
use crate::time::Clock;
use crate::trial::Trial;

/// The admin pages at `address`, and the additional metrics page; what the limiter has to show them;
/// and the file of the token. Peers get the address with heartbeats.
pub(super) fn routes(
    (settings, address): (&Settings, SocketAddr),
    (token, redaction): (TokenOptions, Option<Arc<Redaction>>),
    (listener, prometheus): (TcpListener, Option<TcpListener>),
    (rules, candidates, trial): (&Rules, &Candidates, Option<&Trial>),
    (backend, clock, lifecycle): (&Backend, &Clock, &Lifecycle),
    metrics: &Metrics,
) -> (Vec<(TcpListener, Router)>, Observers, Option<TokenFile>) {
    let advertised = settings.admin.advertised(address);
    if let Some(address) = advertised {
        backend.advertise(address);
    }
    let replica = backend.replica();
    let feed = OverLimitFeed::new(&replica, redaction.clone(), metrics);
    let (stats, limiter) = (rules.stats.clone(), &settings.limiter);
    let observers = Observers::new(stats, feed, limiter, clock, metrics);
    let modes = settings.limiter.modes();
    let (token, token_file) = TokenCheck::new(token, clock.clone(), metrics);
    let counters = Counters::new(rules.live.clone(), modes, backend.clone(), clock.clone());
    let counters = Arc::new(counters);
    let fleet = Fleet::new(backend.clone(), advertised.unwrap_or(address), metrics);
    let keys = observers.top_keys.clone();
    let top = Top::new(keys, rules.live.clone(), redaction.clone(), fleet);
    let responses = ResponseBudget::new(metrics);
    let pages = Pages::new(&responses, metrics);
    let check = rules.check(settings, redaction);
    let checks = RuleChecks::new(check, observers.top_keys.clone(), counters.clone(), metrics);
    let (answers, rule_changes) = rule_answers(rules, &token, &pages, metrics);
    let api = Api {
        replica: replica.into(),
        counters: counters.clone(),
        actions: Arc::new(Actions::new(counters, token, metrics)),
        top: Arc::new(top),
        feed: observers.feed.clone(),
        rules: answers,
        rule_checks: Arc::new(checks),
        responses,
        rule_changes,
        lifecycle: lifecycle.clone(),
    };
    let console = console(
        settings,
        (rules, candidates, trial),
        (backend, clock, lifecycle),
        &api,
        metrics,
    );
    let admin = Admin {
        rules: rules.live.clone(),
        candidate: candidates.rules.clone(),
        trial: trial.cloned(),
        modes,
        on_store_error: settings.limiter.on_store_error,
        metrics: metrics.clone(),
        pages,
        lifecycle: lifecycle.clone(),
    };
    let metrics_page = admin
        .clone()
        .metrics_router(&settings.telemetry.prometheus_path);
    let callers = Callers::new(&settings.admin.admin_hosts, metrics);
    let pages = callers.guard(admin.router(api).merge(console.router()));
    let mut routes = vec![(listener, pages)];
    routes.extend(prometheus.map(|listener| (listener, callers.guard(metrics_page))));
    (routes, observers, token_file)
}

/// Answers about rules files, and their changes.
fn rule_answers(
    rules: &Rules,
    token: &Arc<TokenCheck>,
    pages: &Pages,
    metrics: &Metrics,
) -> (Arc<RuleAnswers>, Arc<RuleChanges>) {
    let changes = RuleChanges::new(rules.writer.clone(), token.clone(), metrics);
    let (changes, list) = (Arc::new(changes), pages.rules.clone());
    let answers = RuleAnswers::new(rules.files.clone(), changes.clone(), list);
    (Arc::new(answers), changes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::console::Console;

    use super::*;

    #[test]
    fn security_page_has_a_row_for_every_path() {
        let pages = Admin::pages().into_iter().chain(Admin::probes());
        let api = Api::routes().into_iter().chain(Api::unplaced());
        let console = Console::views().into_iter().chain(Console::assets());
        let routes: BTreeSet<String> = pages
            .map(|(path, ..)| path.to_owned())
            .chain(api.map(|(path, _)| format!("/api/v1{path}")))
            .chain(console.map(|(path, _)| path.to_owned()))
            .collect();
        let page = include_str!("../../SECURITY.md");
        let (_, table) = page
            .split_once("\n## Paths of port 6070\n")
            .expect("it has this section");
        let table = table.split("\n## ").next().unwrap_or_default();
        let firsts = table
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        let rows: BTreeSet<String> = firsts
            .flat_map(|first| first.split(['`', ',', ' ']))
            .filter(|path| path.starts_with('/'))
            .map(str::to_owned)
            .collect();
        assert_eq!(rows, routes, "rows of SECURITY.md and routes");
    }
}
