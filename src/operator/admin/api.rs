//! `/api/v1`: counters, actions on them, top keys, over-limit responses and rules files.
//!
//! An endpoint has its own file, and a row in docs/console.md. Every answer has `replica`, the name
//! of this process in heartbeats.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, Path, State};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use http::{HeaderMap, StatusCode, Uri};
use serde::Serialize;

use crate::base::http::RemoteAddress;
use crate::base::http::response_budget::ResponseBudget;
use crate::base::removed::replacement;
use crate::base::shutdown::Lifecycle;
use crate::operator::admin::api::actions::Actions;
use crate::operator::admin::api::answer::{Answer, Rejected};
use crate::operator::admin::api::change::Action;
use crate::operator::admin::api::counters::Counters;
use crate::operator::admin::api::rules::Rules;
use crate::operator::admin::api::top::{Top, TopQuery};
use crate::operator::admin::api::viewer::{Viewer, Viewers};
use crate::operator::admin::query_string::Pairs;
use crate::operator::observe::feed::OverLimitFeed;
use crate::report;
use crate::report::top::TopKeys;

pub(crate) mod actions;
pub(crate) mod answer;
pub(crate) mod change;
pub(crate) mod counters;
mod limit_name;
mod outcome;
mod over_limit;
pub(crate) mod rules;
pub(crate) mod token;
pub(crate) mod top;
mod top_sums;
mod usage;
pub(crate) mod viewer;

/// The state of the API. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    /// The name of this process.
    pub(crate) replica: Arc<str>,
    /// The name of its pod.
    pub(crate) pod: Arc<str>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) actions: Arc<Actions>,
    pub(crate) viewers: Viewers,
    pub(crate) top: Arc<Top>,
    pub(crate) feed: OverLimitFeed,
    pub(crate) rules: Arc<Rules>,
    /// The budget of the admin listener.
    pub(crate) responses: ResponseBudget,
    pub(crate) lifecycle: Lifecycle,
}

impl FromRef<Api> for Viewers {
    fn from_ref(api: &Api) -> Self {
        api.viewers.clone()
    }
}

impl Api {
    /// Every route below `/api/v1` but those of [`Self::unplaced`]. A test compares them with
    /// docs/console.md.
    pub(crate) fn routes() -> [(&'static str, MethodRouter<Self>); 4] {
        let grant = |api, remote, headers, body| act(Action::Grant, api, remote, headers, body);
        let reset = |api, remote, headers, body| act(Action::Reset, api, remote, headers, body);
        [
            ("/counters", post(read_counters)),
            ("/counters/grant", post(grant)),
            ("/counters/reset", post(reset)),
            ("/rules/{file}", get(read_rules).put(put_rules)),
        ]
    }

    /// Routes that bound by themselves how many responses are prepared, or whose responses are
    /// small.
    pub(crate) fn unplaced() -> [(&'static str, MethodRouter<Self>); 5] {
        [
            ("/counters", get(read_counter)),
            ("/over-limit", get(follow_over_limit)),
            ("/rules", get(list_rules)),
            ("/top", get(read_top)),
            ("/usage", get(read_usage)),
        ]
    }

    /// All endpoints, for `/api/v1`.
    pub(crate) fn router(self) -> Router {
        let add = |router: Router<Self>, (path, route)| router.route(path, route);
        let replica = self.replica.clone();
        let full = move || answer::rejection(&replica, answer::full());
        let responses = &self.responses;
        let placed = Self::routes().into_iter().fold(Router::new(), add);
        let placed = responses.bounded(placed, full.clone());
        let unplaced = Self::unplaced().into_iter().fold(Router::new(), add);
        let unplaced = responses.counted(unplaced, full);
        placed.merge(unplaced).fallback(unknown_path).with_state(self)
    }

    fn respond(&self, answer: Answer<impl Serialize>) -> Response {
        answer::response(&self.replica, answer)
    }

    fn reject(&self, rejected: Rejected) -> Response {
        answer::rejection(&self.replica, rejected)
    }
}

async fn read_counter(State(api): State<Api>, pairs: Pairs) -> Response {
    api.respond(api.counters.read_by_query(&pairs).await)
}

async fn read_counters(State(api): State<Api>, body: Body) -> Response {
    api.respond(api.counters.read_by_body(body).await)
}

async fn act(
    action: Action,
    State(api): State<Api>,
    Extension(RemoteAddress(remote)): Extension<RemoteAddress>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    api.respond(api.actions.clone().act(action, remote, &headers, body).await)
}

async fn follow_over_limit(State(api): State<Api>, viewer: Viewer) -> Response {
    over_limit::events(&api.feed, viewer.values, &api.lifecycle)
}

async fn read_top(State(api): State<Api>, viewer: Viewer, pairs: Pairs) -> Response {
    let replica = api.replica.to_string();
    let hint = viewer.hint().map(str::to_owned);
    let json = |rules| report::json(&TopKeys { replica, hint, rules });
    let read = async { api.top.read(TopQuery::read(&pairs)?, viewer.values, json).await };
    read.await.map_or_else(|rejected| api.reject(rejected), answer::found)
}

async fn read_usage(State(api): State<Api>, pairs: Pairs) -> Response {
    api.respond(api.counters.usage(&pairs).await)
}

async fn list_rules(State(api): State<Api>) -> Response {
    let listed = api.rules.clone().list(api.replica.clone()).await;
    listed.unwrap_or_else(|rejected| api.reject(rejected))
}

async fn read_rules(State(api): State<Api>, file: Result<Path<String>, PathRejection>) -> Response {
    let read = async { api.rules.read(&file?.0).await };
    let read = read.await;
    read.unwrap_or_else(|rejected| api.reject(rejected))
}

async fn put_rules(
    State(api): State<Api>,
    Extension(RemoteAddress(remote)): Extension<RemoteAddress>,
    file: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let rules = api.rules.clone();
    let put = async { rules.put(file?.0, remote, headers, body).await };
    api.respond(put.await)
}

async fn unknown_path(State(api): State<Api>, uri: Uri) -> Response {
    let path = format!("/api/v1{}", uri.path());
    let last = path.rsplit('/').next().unwrap_or_default();
    let instead = replacement(&path).or_else(|| replacement(&format!("/{last}")));
    let known = instead.unwrap_or("docs/console.md lists the paths of the API");
    let reason = format!("unknown path; {known}");
    api.reject(Rejected::new(StatusCode::NOT_FOUND, reason))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn docs_list_every_route() {
        let page = include_str!("../../../docs/console.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let paths = rows.filter_map(|row| Some(row.split_once("/api/v1")?.1.split_once('`')?.0));
        let documented: BTreeSet<&str> = paths.collect();
        let routes = Api::routes().into_iter().chain(Api::unplaced());
        // Methods of one path may be in both.
        let routes: BTreeSet<&str> = routes.map(|(path, _)| path).collect();
        assert_eq!(documented, routes);
    }
}
