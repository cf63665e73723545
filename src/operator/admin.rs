//! The admin listener: rules in force, explanations of limits, metrics, readiness, and `/api/v1`.
//!
//! An unknown path is answered with the table of routes.

use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRef, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, any, get};
use futures_util::future::join_all;
use http::{StatusCode, Uri, header};

use crate::base::http::accept::{self, AcceptErrors};
use crate::base::http::budget::{Bounds, HttpMetrics};
use crate::base::http::response_budget::{self, ResponseBudget};
use crate::base::http::{self as server, health};
use crate::base::net::client::ADMIN_PORT;
use crate::base::removed::replacement;
use crate::base::shutdown::Lifecycle;
use crate::base::text::Text;
use crate::limiter::Modes;
use crate::operator::admin::api::Api;
use crate::operator::admin::api::viewer::{Viewer, Viewers};
use crate::operator::admin::explain::NO_RULES;
use crate::operator::admin::page::{SharedPage, Turn};
use crate::operator::admin::query_string::Pairs;
use crate::report;
use crate::rules::{LiveRules, OnStoreError};
use crate::telemetry::metric::Metrics;
use crate::trial::Trial;

pub mod api;
pub(crate) mod explain;
pub(crate) mod page;
pub(crate) mod query_string;
pub(crate) mod settings;

/// The text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// The state of the admin endpoints.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) rules: Arc<LiveRules>,
    /// `None` without TRIAL_UPSTREAM.
    pub(crate) trial: Option<Trial>,
    pub(crate) modes: Modes,
    /// The default of rules without `on_store_error`.
    pub(crate) on_store_error: OnStoreError,
    pub(crate) metrics: Metrics,
    pub(crate) pages: Pages,
    pub(crate) viewers: Viewers,
    pub(crate) lifecycle: Lifecycle,
}

/// A path, its line on the index page, and its handlers.
type Route = (&'static str, &'static str, MethodRouter<Admin>);

/// Pages that may be large. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    metrics: SharedPage,
    stats: SharedPage,
    rlconfig: SharedPage,
    rlconfig_json: SharedPage,
    /// By [`Values`](crate::operator::observe::redact::Values).
    trial: [SharedPage; 2],
    /// The list of rules files.
    pub(crate) rules: SharedPage,
}

impl Pages {
    /// Registers the metric.
    pub(crate) fn new(responses: &ResponseBudget, metrics: &Metrics) -> Self {
        let repeated = metrics.counter(
            "tollgate_admin_pages_full_total",
            "Pages of the admin listener and PROMETHEUS_ADDR that are not sent, but the previous one or 503 instead, because others are still being sent (pages_max, response_bytes_max).",
        );
        let turn = Turn::default();
        let page = || SharedPage::budgeted(responses, &turn, repeated.clone());
        Self {
            metrics: SharedPage::reserved(repeated.clone()),
            stats: page(),
            rlconfig: page(),
            rlconfig_json: page(),
            trial: [page(), page()],
            rules: page(),
        }
    }
}

impl Admin {
    /// Routes that are always answered, and their lines on the index page.
    pub(crate) fn probes() -> [Route; 4] {
        [
            (
                "/healthcheck",
                "200 while this process should receive requests, else 500",
                any(health::healthcheck),
            ),
            ("/live", "200 while this process answers, for liveness probes", any(health::live)),
            ("/metrics", "all metrics, for Prometheus", get(metrics_page)),
            ("/ready", "readiness, with the status of the store and the rules", get(health::ready)),
        ]
    }

    /// The other ones, whose responses are bounded.
    pub(crate) fn pages() -> [Route; 4] {
        [
            (
                "/explain",
                "the limits of a request and their rules: /explain?domain=D&descriptor=KEY%3DVALUE, a `descriptor` for each entry, or POST a body of /json",
                get(explain_query).post(explain_body),
            ),
            (
                "/rlconfig",
                "every limit in force, one per line; complete with /rlconfig?format=json",
                get(rlconfig),
            ),
            ("/stats", "every counter and gauge under its statsd name, one per line", get(stats)),
            (
                "/trial",
                "how the upstream of a trial decides, compared with this service, as JSON",
                get(trial),
            ),
        ]
    }

    /// All endpoints.
    pub(crate) fn router(self, api: Api) -> Router {
        let add = |router: Router<Self>, (path, _, route): Route| router.route(path, route);
        let pages = Self::pages().into_iter().fold(Router::new(), add);
        let pages = api.responses.counted(pages, full);
        Self::probes()
            .into_iter()
            .fold(pages, add)
            .fallback(unknown_path)
            .with_state(self)
            .nest("/api/v1", api.router())
    }

    /// The metrics page alone, at a path: the endpoint of PROMETHEUS_ADDR.
    pub(crate) fn metrics_router(self, path: &str) -> Router {
        let other = format!("this is PROMETHEUS_ADDR, with {path}; {ADMIN_PORT}\n");
        Router::new()
            .route(path, get(metrics_page))
            .fallback(async || (StatusCode::NOT_FOUND, other))
            .with_state(self)
    }
}

impl FromRef<Admin> for Viewers {
    fn from_ref(admin: &Admin) -> Self {
        admin.viewers.clone()
    }
}

impl FromRef<Admin> for Lifecycle {
    fn from_ref(admin: &Admin) -> Self {
        admin.lifecycle.clone()
    }
}

/// Serves each listener with its router until the process stops.
pub(crate) async fn serve(
    listeners: Vec<(TcpListener, Router)>,
    bounds: Bounds,
    lifecycle: Lifecycle,
    errors: AcceptErrors,
    metrics: HttpMetrics,
) {
    let lifecycle = &lifecycle;
    let errors = &errors;
    let metrics = &metrics;
    let serving = listeners.into_iter().map(|(listener, router)| async move {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                let incoming = accept::incoming(listener, errors.clone());
                server::serve(incoming, router, lifecycle.stopping(), bounds, metrics).await;
            }
            Err(error) => tracing::error!(%error, "cannot accept connections"),
        }
    });
    join_all(serving).await;
}

fn index() -> String {
    let routes = Admin::pages().into_iter().chain(Admin::probes());
    let mut pages: Vec<String> =
        routes.map(|(path, help, _)| format!("{path}: {help}\n")).collect();
    pages.sort();
    format!(
        "/api/v1: the API of counters, top keys and rules files: docs/console.md lists its paths\n{}",
        pages.concat()
    )
}

/// 404: with 200 a mistyped path would look like a page.
async fn unknown_path(uri: Uri) -> Response {
    let replacement = replacement(uri.path()).map(|text| format!("unknown path; {text}\n\n"));
    let page = replacement.unwrap_or_default() + &index();
    (StatusCode::NOT_FOUND, page).into_response()
}

async fn explain_query(State(admin): State<Admin>, pairs: Pairs) -> Response {
    explain::by_query(&admin.rules, admin.modes, &pairs)
}

async fn explain_body(State(admin): State<Admin>, body: Body) -> Response {
    explain::by_body(&admin.rules, admin.modes, body).await
}

async fn rlconfig(State(admin): State<Admin>, pairs: Pairs) -> Response {
    let rules = admin.rules.clone();
    match &*pairs.all("format").next().map_or("text".into(), |format| Text(format).shown()) {
        "text" => {
            let dump = move || rules.load().as_ref().map(|rules| rules.dump()).unwrap_or_default();
            match admin.pages.rlconfig.get(dump).await {
                // As in envoyproxy/ratelimit, an empty body has no content type.
                Ok(dump) if dump.is_empty() => StatusCode::OK.into_response(),
                dump => respond(TEXT_TYPE, dump),
            }
        }
        "json" if rules.load().is_none() => {
            (StatusCode::SERVICE_UNAVAILABLE, NO_RULES).into_response()
        }
        "json" => {
            let on_store_error = admin.on_store_error;
            let dump = move || {
                rules
                    .load()
                    .as_ref()
                    .map(|rules| rules.dump_json(on_store_error))
                    .unwrap_or_default()
            };
            respond("application/json", admin.pages.rlconfig_json.get(dump).await)
        }
        other => (
            StatusCode::BAD_REQUEST,
            format!("unknown format {other:?}; write format=text or format=json\n"),
        )
            .into_response(),
    }
}

async fn trial(State(admin): State<Admin>, viewer: Viewer) -> Response {
    let Some(trial) = admin.trial else {
        return (StatusCode::NOT_FOUND, "TRIAL_UPSTREAM is not set\n").into_response();
    };
    let values = viewer.values;
    let page = move || report::json(&trial.results(values));
    let shared = &admin.pages.trial[values as usize];
    respond("application/json", shared.get(page).await)
}

async fn stats(State(admin): State<Admin>) -> Response {
    respond(TEXT_TYPE, admin.pages.stats.get(move || admin.metrics.lines()).await)
}

async fn metrics_page(State(admin): State<Admin>) -> Response {
    respond(METRICS_TYPE, admin.pages.metrics.get(move || admin.metrics.page()).await)
}

/// A page, which is counted already, or why there is none.
fn respond(content_type: &'static str, page: Result<Bytes, StatusCode>) -> Response {
    match page {
        Ok(page) => page::shown(content_type, page),
        Err(StatusCode::SERVICE_UNAVAILABLE) => full(),
        Err(status) => status.into_response(),
    }
}

/// The response when there are too many others.
pub(crate) fn full() -> Response {
    let retry_after = [(header::RETRY_AFTER, response_budget::RETRY_AFTER_SECS.to_string())];
    let reason = format!("{}\n", response_budget::FULL);
    (StatusCode::SERVICE_UNAVAILABLE, retry_after, reason).into_response()
}
