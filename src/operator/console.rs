//! The console: pages for operators on the admin port, rendered here and refreshed by one script.
//!
//! Without the script each page works as it was rendered. Whatever clients send is text: the
//! template macro escapes it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{MethodRouter, get};
use http::StatusCode;
use maud::{Markup, html};

use crate::operator::admin;
use crate::operator::admin::api::viewer::{Viewer, Viewers};
use crate::operator::admin::query_string::Pairs;
use crate::operator::console::frame::Tab;
use crate::operator::console::parts::Parts;

mod budgets;
mod dialogs;
mod file;
mod files;
mod frame;
mod key;
mod live;
mod overview;
pub(crate) mod parts;
mod rule;
mod rules;
mod runbook;
mod store;
mod top_keys;
mod trial;
mod widgets;

/// The console of the process. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Console(Arc<Parts>);

impl Console {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// The views, whose responses are bounded.
    pub(crate) fn views() -> [(&'static str, MethodRouter<Self>); 11] {
        [
            ("/", get(overview)),
            ("/console/rules", get(rules)),
            ("/console/rule", get(rule)),
            ("/console/key", get(key)),
            ("/console/budgets", get(budgets)),
            ("/console/files", get(files)),
            ("/console/file", get(file)),
            ("/console/over-limit", get(over_limit)),
            ("/console/store", get(store)),
            ("/console/trial", get(trial)),
            ("/console/runbook", get(runbook)),
        ]
    }

    /// Files that the views load, from the binary.
    pub(crate) fn assets() -> [(&'static str, MethodRouter<Self>); 4] {
        frame::ASSETS.map(|(path, content_type, text)| {
            (path, get(async move || frame::asset(content_type, text)))
        })
    }

    pub(crate) fn router(self) -> Router {
        let add = |router: Router<Self>, (path, route)| router.route(path, route);
        let views = Self::views().into_iter().fold(Router::new(), add);
        let views = self.0.api.responses.bounded(views, admin::full);
        Self::assets().into_iter().fold(views, add).with_state(self)
    }

    /// A page that the navigation leads to.
    async fn tab(&self, tab: Tab, content: &Markup) -> Response {
        self.page(tab, tab.name, content).await
    }

    async fn page(&self, tab: Tab, title: &str, content: &Markup) -> Response {
        let head = self.0.head().await;
        frame::page(&head, tab, title, StatusCode::OK, content)
    }

    async fn not_found(&self, tab: Tab, reason: &str) -> Response {
        let content = html! { h1 { "Not found" } p.empty { (reason) } };
        let head = self.0.head().await;
        let status = StatusCode::NOT_FOUND;
        frame::page(&head, tab, "Not found", status, &content)
    }
}

impl FromRef<Console> for Viewers {
    fn from_ref(console: &Console) -> Self {
        console.0.api.viewers.clone()
    }
}

async fn overview(State(console): State<Console>) -> Response {
    let content = overview::content(&console.0).await;
    console.tab(Tab::OVERVIEW, &content).await
}

async fn rules(State(console): State<Console>, pairs: Pairs) -> Response {
    let content = rules::content(&console.0, &pairs).await;
    console.tab(Tab::RULES, &content).await
}

async fn rule(State(console): State<Console>, viewer: Viewer, pairs: Pairs) -> Response {
    match rule::content(&console.0, &pairs, &viewer).await {
        Some((title, content)) => console.page(Tab::RULES, &title, &content).await,
        None => {
            let reason = "The rules in force have no such rule.";
            console.not_found(Tab::RULES, reason).await
        }
    }
}

async fn key(State(console): State<Console>, pairs: Pairs) -> Response {
    if let Some(canonical) = key::canonical(&pairs) {
        return Redirect::to(&canonical).into_response();
    }
    let (title, content) = key::content(&console.0, &pairs).await;
    console.page(Tab::RULES, &title, &content).await
}

async fn files(State(console): State<Console>) -> Response {
    let content = files::content(&console.0).await;
    console.tab(Tab::FILES, &content).await
}

async fn file(State(console): State<Console>, pairs: Pairs) -> Response {
    match file::content(&console.0, &pairs).await {
        // The permit counts the text until the page is.
        Ok((title, content, _reading)) => console.page(Tab::FILES, &title, &content).await,
        Err(reason) => console.not_found(Tab::FILES, &reason).await,
    }
}

async fn over_limit(State(console): State<Console>, viewer: Viewer, pairs: Pairs) -> Response {
    let content = live::content(&console.0, &pairs, &viewer);
    console.tab(Tab::OVER_LIMIT, &content).await
}

async fn budgets(State(console): State<Console>, viewer: Viewer) -> Response {
    let content = budgets::content(&console.0, &viewer).await;
    console.tab(Tab::BUDGETS, &content).await
}

async fn store(State(console): State<Console>) -> Response {
    let content = store::content(&console.0).await;
    console.tab(Tab::STORE, &content).await
}

async fn trial(State(console): State<Console>, viewer: Viewer) -> Response {
    let content = match &console.0.trial {
        Some(trial) => trial::results(trial, &viewer),
        None => trial::begin(),
    };
    console.tab(Tab::TRIAL, &content).await
}

async fn runbook(State(console): State<Console>, pairs: Pairs) -> Response {
    let content = runbook::content(&pairs);
    console.page(Tab::OVERVIEW, "Runbook", &content).await
}
