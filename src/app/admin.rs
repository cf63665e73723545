//! Builds the admin listener: pages, API, and what they show of decisions.

use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;

use crate::app::background::Background;
use crate::app::core::Core;
use crate::app::rules::Rules;
use crate::base::http::accept::AcceptErrors;
use crate::base::http::budget::{Bounds, HttpMetrics};
use crate::base::http::callers::Callers;
use crate::base::http::response_budget::ResponseBudget;
use crate::limiter::Observers;
use crate::operator::admin::api::Api;
use crate::operator::admin::api::actions::Actions;
use crate::operator::admin::api::counters::Counters;
use crate::operator::admin::api::rules::Rules as RuleAnswers;
use crate::operator::admin::api::token::{TokenCheck, TokenOptions};
use crate::operator::admin::api::top::Top;
use crate::operator::admin::api::viewer::Viewers;
use crate::operator::admin::{self, Admin, Pages};
use crate::operator::console::Console;
use crate::operator::console::parts::{Parts, RecentReads};
use crate::operator::observe::feed::OverLimitFeed;
use crate::operator::observe::history::History;
use crate::operator::observe::redact::Values;
use crate::trial::Trial;

/// The bound admin listener.
pub(super) struct AdminPort {
    pub(super) listener: TcpListener,
    /// The additional metrics page.
    pub(super) prometheus: Option<TcpListener>,
    pub(super) bounds: Bounds,
    pub(super) errors: AcceptErrors,
    pub(super) metrics: HttpMetrics,
}

/// The components that the pages show.
pub(super) struct Shown<'a> {
    pub(super) rules: &'a Rules,
    pub(super) trial: Option<&'a Trial>,
    /// What callers without a token see.
    pub(super) values: Values,
    /// What those of them on this machine see.
    pub(super) local: Values,
}

/// Adds the listener to the background, and returns what the limiter has to show it.
pub(super) fn build(
    core: &Core,
    port: AdminPort,
    token: TokenOptions,
    shown: &Shown<'_>,
    background: &mut Background,
) -> Observers {
    let metrics = &core.metrics;
    let rules = shown.rules;
    let replica: Arc<str> = core.backend.replica().into();
    let pod = core.settings.admin.pod_name.clone();
    let pod = pod.map_or_else(|| replica.clone(), Arc::from);
    let feed = OverLimitFeed::new(&replica, shown.values, metrics);
    let limiter = &core.settings.limiter;
    let observers = Observers::new(rules.stats.clone(), feed, limiter, &core.clock, metrics);
    let (token, token_files) = TokenCheck::new(token, core.clock.clone(), metrics);
    background.watch(token_files);
    let viewers = Viewers::new(&replica, shown.values, shown.local, &token);
    let keys = observers.top_keys.clone();
    let responses = ResponseBudget::new(metrics);
    let top = Top::new(keys.clone(), rules.live.clone(), responses.clone());
    let (live, backend) = (rules.live.clone(), core.backend.clone());
    let counters = Counters::new(live, limiter.modes(), backend, core.clock.clone());
    let counters = Arc::new(counters);
    let pages = Pages::new(&responses, metrics);
    let files = rules.files.clone();
    let list = pages.rules.clone();
    let answers = RuleAnswers::new(files, token.clone(), list, metrics);
    let api = Api {
        replica,
        pod,
        counters: counters.clone(),
        actions: Arc::new(Actions::new(counters, token, metrics)),
        viewers: viewers.clone(),
        top: Arc::new(top),
        feed: observers.feed.clone(),
        rules: Arc::new(answers),
        responses,
        lifecycle: core.lifecycle.clone(),
    };
    let admin = Admin {
        rules: rules.live.clone(),
        trial: shown.trial.cloned(),
        modes: limiter.modes(),
        on_store_error: limiter.on_store_error,
        metrics: metrics.clone(),
        pages,
        viewers,
        lifecycle: core.lifecycle.clone(),
    };
    let responses = observers.responses.clone();
    let history = History::new(rules.live.clone(), responses, core.clock.clone(), metrics);
    let console = console(core, shown, &api, history.clone(), &observers).router();
    let serve = serve(core, port, admin, api, console);
    // In a thread of its own: requests to the admin listener delay neither the store nor signals.
    background.thread("admin", async {
        tokio::select! {
            () = serve => {}
            () = history.run() => {}
            () = keys.run() => {}
        }
    });
    observers
}

fn console(
    core: &Core,
    shown: &Shown<'_>,
    api: &Api,
    history: History,
    observers: &Observers,
) -> Console {
    let rules = shown.rules;
    Console::new(Parts {
        rules: rules.live.clone(),
        files: rules.files.clone(),
        folder: rules.files.as_ref().map(|files| files.directory.path.clone()),
        findings: rules.findings.clone(),
        trial: shown.trial.cloned(),
        modes: core.settings.limiter.modes(),
        backend: core.backend.clone(),
        api: api.clone(),
        history,
        unmatched: observers.unmatched.clone(),
        metrics: core.metrics.clone(),
        watch: core.watch.clone(),
        lifecycle: core.lifecycle.clone(),
        clock: core.clock.clone(),
        reads: RecentReads::default(),
    })
}

/// Serves all pages to callers that may have them.
fn serve(
    core: &Core,
    port: AdminPort,
    admin: Admin,
    api: Api,
    console: Router,
) -> impl Future<Output = ()> + Send + use<> {
    let settings = &core.settings;
    let callers = Callers::new(&settings.admin.admin_hosts, &core.metrics);
    let metrics_page = admin.clone().metrics_router(&settings.telemetry.prometheus_path);
    let metrics_page = port.prometheus.map(|listener| (listener, callers.guard(metrics_page)));
    let pages = callers.guard(admin.router(api).merge(console));
    let mut routes = vec![(port.listener, pages)];
    routes.extend(metrics_page);
    let lifecycle = core.lifecycle.clone();
    admin::serve(routes, port.bounds, lifecycle, port.errors, port.metrics)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        let (_, table) = page.split_once("\n## Paths of port 6070\n").expect("it has this section");
        let table = table.split("\n## ").next().unwrap_or_default();
        let firsts = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        let rows: BTreeSet<String> = firsts
            .flat_map(|first| first.split(['`', ',', ' ']))
            .filter(|path| path.starts_with('/'))
            .map(str::to_owned)
            .collect();
        assert_eq!(rows, routes, "rows of SECURITY.md and routes");
    }
}
