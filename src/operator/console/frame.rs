//! The frame of all views: the page around their content, its headers, its style sheet and its
//! script.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, StatusCode, header};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::operator::console::runbook;

const STYLE: &str = include_str!("console.css");
const SCRIPT: &str = include_str!("console.js");
const EDITOR: &str = include_str!("editor.js");
const ICON: &str = include_str!("icon.svg");

/// Changes when the files do: browsers keep them for a year.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    (STYLE, SCRIPT, EDITOR, ICON).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
});

/// A part of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Overview,
    Rules,
    Budgets,
    Files,
    OverLimit,
    Store,
    Trial,
}

/// The navigation.
const TABS: [Tab; 7] =
    [Tab::Overview, Tab::Rules, Tab::Budgets, Tab::Files, Tab::OverLimit, Tab::Store, Tab::Trial];

/// The top of every page.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// The name of this process' pod.
    pub(crate) replica: String,
    pub(crate) status: Status,
    /// The state in words.
    pub(crate) note: String,
    /// The section of the runbook about a fault.
    pub(crate) runbook: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Good,
    Warning,
    Bad,
}

impl Tab {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Rules => "Rules",
            Self::Budgets => "Budgets",
            Self::Files => "Files",
            Self::OverLimit => "Over limit",
            Self::Store => "Store",
            Self::Trial => "Trial",
        }
    }

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Rules => "/console/rules",
            Self::Budgets => "/console/budgets",
            Self::Files => "/console/files",
            Self::OverLimit => "/console/over-limit",
            Self::Store => "/console/store",
            Self::Trial => "/console/trial",
        }
    }
}

impl Status {
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Bad => "bad",
        }
    }
}

/// A page of the console.
pub(crate) fn page(
    head: &Head,
    tab: Tab,
    title: &str,
    status: StatusCode,
    content: &Markup,
) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Tollgate" }
                link rel="icon" href={ "/console/icon.svg?" (*VERSION) } type="image/svg+xml";
                link rel="stylesheet" href={ "/console/console.css?" (*VERSION) };
                script type="module" src={ "/console/console.js?" (*VERSION) } {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                (top(head, tab))
                p #connection role="alert" hidden {}
                main #main tabindex="-1" { (content) }
                footer { "All times are in UTC." }
            }
        }
    };
    let mut response = (status, page.into_string()).into_response();
    let headers = response.headers_mut();
    for (name, value) in
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-store")]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn top(head: &Head, current: Tab) -> Markup {
    html! {
        header.top {
            a.brand href="/" aria-label="Tollgate" {
                (PreEscaped(ICON))
                span { "Tollgate" }
            }
            nav aria-label="Views" {
                @for tab in TABS {
                    a href=(tab.path()) aria-current=[(tab == current).then_some("page")] { (tab.name()) }
                }
            }
            div.replica #status role="status" {
                @let class = head.status.class();
                @match head.runbook {
                    Some(anchor) => a.pill.(class) href=(runbook::href_of(anchor)) { (head.note) },
                    None => span.pill.(class) { (head.note) },
                }
                span.dim { "replica " code { (head.replica) } }
            }
        }
    }
}

pub(crate) async fn style() -> Response {
    asset("text/css; charset=utf-8", STYLE)
}

pub(crate) async fn script() -> Response {
    asset("text/javascript; charset=utf-8", SCRIPT)
}

pub(crate) async fn editor() -> Response {
    asset("text/javascript; charset=utf-8", EDITOR)
}

/// Runs the script of the editor on a page.
pub(crate) fn editor_script() -> Markup {
    html! { script type="module" src={ "/console/editor.js?" (*VERSION) } {} }
}

pub(crate) async fn icon() -> Response {
    asset("image/svg+xml", ICON)
}

fn asset(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, text).into_response()
}
