//! Builds the admin listener: pages, API, and what they show of decisions.

use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;

use crate::app::background::Background;
use crate::app::console::{Seen, Shown, console};
use crate::app::core::Core;
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
use crate::operator::observe::feed::OverLimitFeed;
use crate::operator::observe::history::History;

/// The bound admin listener.
pub(super) struct AdminPort {
    pub(super) listener: TcpListener,
    /// The additional metrics page.
    pub(super) prometheus: Option<TcpListener>,
    pub(super) bounds: Bounds,
    pub(super) errors: AcceptErrors,
    pub(super) metrics: HttpMetrics,
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
    let observers = observers(core, shown, &replica);
    let (token, token_files) = TokenCheck::new(token, core.clock.clone(), metrics);
    background.watch(token_files);
    let viewers = Viewers::new(&replica, shown.values, shown.local, &token);
    let keys = observers.top_keys.clone();
    let responses = ResponseBudget::new(metrics);
    let top = Top::new(keys.clone(), rules.live.clone(), responses.clone());
    let top = Arc::new(top);
    let (live, modes, backend) =
        (rules.live.clone(), core.settings.limiter.modes(), core.backend.clone());
    let counters = Counters::new(live, modes, backend, core.clock.clone());
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
        top,
        feed: observers.feed.clone(),
        rules: Arc::new(answers),
        responses,
        lifecycle: core.lifecycle.clone(),
    };
    let admin = admin(core, shown, pages, viewers);
    let responses = observers.responses.clone();
    let history = History::new(rules.live.clone(), responses, core.clock.clone(), metrics);
    let seen = Seen { history: history.clone(), unmatched: observers.unmatched.clone() };
    let console = console(core, shown, &api, seen).router();
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

fn observers(core: &Core, shown: &Shown<'_>, replica: &str) -> Observers {
    let Core { clock, metrics, .. } = core;
    let feed = OverLimitFeed::new(replica, shown.values, metrics);
    let stats = shown.rules.stats.clone();
    let limiter = &core.settings.limiter;
    Observers::new(stats, feed, limiter, clock, metrics)
}

fn admin(core: &Core, shown: &Shown<'_>, pages: Pages, viewers: Viewers) -> Admin {
    Admin {
        rules: shown.rules.live.clone(),
        trial: shown.trial.cloned(),
        modes: core.settings.limiter.modes(),
        on_store_error: core.settings.limiter.on_store_error,
        metrics: core.metrics.clone(),
        pages,
        viewers,
        lifecycle: core.lifecycle.clone(),
    }
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

    use crate::operator::console::Console;

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
