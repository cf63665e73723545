//! The operators' door: the rules in force, why a descriptor gets its limit, metrics, readiness. It changes nothing.
//!
//! The table of routes is also the index page.

use std::net::TcpListener;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{FromRef, Query as QueryString, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, any, get};
use http::{StatusCode, header};
use tokio::net::TcpStream;
use tokio_stream::{Stream, StreamExt as _};

use crate::admin::explain::{Explainer, NO_RULES};
use crate::http::health;
use crate::rules::{LiveRules, OnStoreError};
use crate::shutdown::Lifecycle;
use crate::telemetry::metric::Metrics;

pub mod explain;
pub mod settings;

/// The text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the door shows.
#[derive(Debug, Clone)]
pub struct Admin {
    /// The rules in force.
    pub rules: Arc<LiveRules>,
    /// Answers `/explain`.
    pub explainer: Explainer,
    /// The policy of rules without `on_store_error`.
    pub on_store_error: OnStoreError,
    /// All metrics.
    pub metrics: Metrics,
    /// How far the process is.
    pub lifecycle: Lifecycle,
}

impl Admin {
    /// Every route, with a line of help.
    fn routes() -> [(&'static str, &'static str, MethodRouter<Self>); 6] {
        [
            (
                "/explain",
                "why a request gets its limits: /explain?domain=D&descriptor=KEY%3DVALUE, a `descriptor` for each entry, or POST a body of /json",
                get(explain::by_query).post(explain::by_body),
            ),
            ("/healthcheck", "200 while this process should get calls, else 500", any(health::healthcheck)),
            ("/metrics", "everything that is counted, for Prometheus, as of now", get(metrics_page)),
            ("/ready", "what this process waits for, by name", get(health::ready)),
            ("/rlconfig", "every limit in force, one per line; complete with /rlconfig?format=json", get(rlconfig)),
            ("/stats", "every counter and gauge under its statsd name, one a line", get(stats)),
        ]
    }

    /// The whole door.
    pub fn router(self) -> Router {
        let routes = Self::routes().into_iter().fold(Router::new(), |router, (path, _, route)| router.route(path, route));
        routes.route("/", any(index)).fallback(unknown_path).with_state(self)
    }

    /// The metrics page alone, at that path: what PROMETHEUS_ADDR serves.
    pub fn metrics_router(self, path: &str) -> Router {
        Router::new().route(path, get(metrics_page)).with_state(self)
    }
}

impl FromRef<Admin> for Lifecycle {
    fn from_ref(admin: &Admin) -> Self {
        admin.lifecycle.clone()
    }
}

impl FromRef<Admin> for Explainer {
    fn from_ref(admin: &Admin) -> Self {
        admin.explainer.clone()
    }
}

/// Connections of a listener, for as long as it can accept any.
///
/// # Errors
/// The runtime cannot take the listener.
pub fn incoming(listener: TcpListener) -> anyhow::Result<impl Stream<Item = TcpStream>> {
    let listener = tokio::net::TcpListener::from_std(listener).context("take over a listener")?;
    // A connection that could not be accepted is its client's loss, and the next one may do better.
    Ok(tokio_stream::wrappers::TcpListenerStream::new(listener).filter_map(Result::ok))
}

async fn index() -> String {
    Admin::routes().map(|(path, help, _)| format!("{path}: {help}\n")).concat()
}

/// A 200 would let a mistyped path pass for a page.
async fn unknown_path() -> Response {
    (StatusCode::NOT_FOUND, index().await).into_response()
}

async fn rlconfig(State(admin): State<Admin>, QueryString(pairs): QueryString<Vec<(String, String)>>) -> Response {
    let rules = admin.rules.load();
    match pairs.iter().find(|(name, _)| name == "format").map_or("text", |(_, format)| format) {
        "text" => match rules.as_ref().map(|rules| rules.dump()) {
            Some(dump) if !dump.is_empty() => dump.into_response(),
            // As in the reference, an empty body has no content type.
            _ => StatusCode::OK.into_response(),
        },
        "json" => match rules.as_ref() {
            Some(rules) => ([(header::CONTENT_TYPE, "application/json")], rules.dump_json(admin.on_store_error)).into_response(),
            None => (StatusCode::SERVICE_UNAVAILABLE, NO_RULES).into_response(),
        },
        other => (StatusCode::BAD_REQUEST, format!("unknown format {other:?}; write format=text or format=json\n")).into_response(),
    }
}

async fn stats(State(admin): State<Admin>) -> String {
    admin.metrics.lines()
}

async fn metrics_page(State(admin): State<Admin>) -> Response {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], admin.metrics.page()).into_response()
}
