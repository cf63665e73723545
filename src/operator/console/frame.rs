//! The frame of all views: the page around their content, its headers, its style sheet and its
//! script.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;

use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::base::named_enum::named_enum;
use crate::operator::console::runbook;

const STYLE: &str = include_str!("console.css");
const SCRIPT: &str = include_str!("console.js");
const EDITOR: &str = include_str!("editor.js");
const ICON: &str = include_str!("icon.svg");
/// Their paths, types and texts.
pub(crate) const ASSETS: [(&str, &str, &str); 4] = [
    ("/console/console.css", "text/css; charset=utf-8", STYLE),
    ("/console/console.js", "text/javascript; charset=utf-8", SCRIPT),
    ("/console/editor.js", "text/javascript; charset=utf-8", EDITOR),
    ("/console/icon.svg", "image/svg+xml", ICON),
];

/// Changes when the files do: browsers keep them for a year.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    (STYLE, SCRIPT, EDITOR, ICON).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
});

/// A part of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tab {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
}

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

named_enum! {
    /// How serious a state is, and the class of its color.
    pub enum Status {
        /// No fault.
        Good = "good",
        /// A fault beside which calls are decided.
        Warning = "warning",
        /// Calls are not decided as they should be.
        Bad = "bad",
    }
}

impl Tab {
    pub(crate) const OVERVIEW: Self = Self { name: "Overview", path: "/" };
    pub(crate) const RULES: Self = Self { name: "Rules", path: "/console/rules" };
    pub(crate) const BUDGETS: Self = Self { name: "Budgets", path: "/console/budgets" };
    pub(crate) const FILES: Self = Self { name: "Files", path: "/console/files" };
    pub(crate) const OVER_LIMIT: Self = Self { name: "Over limit", path: "/console/over-limit" };
    pub(crate) const STORE: Self = Self { name: "Store", path: "/console/store" };
    pub(crate) const TRIAL: Self = Self { name: "Trial", path: "/console/trial" };
    /// The navigation.
    const ALL: [Self; 7] = [
        Self::OVERVIEW,
        Self::RULES,
        Self::BUDGETS,
        Self::FILES,
        Self::OVER_LIMIT,
        Self::STORE,
        Self::TRIAL,
    ];
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
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, page.into_string()).into_response()
}

fn top(head: &Head, current: Tab) -> Markup {
    html! {
        header.top {
            a.brand href="/" aria-label="Tollgate" {
                (PreEscaped(ICON))
                span { "Tollgate" }
            }
            nav aria-label="Views" {
                @for tab in Tab::ALL {
                    a href=(tab.path) aria-current=[(tab == current).then_some("page")] { (tab.name) }
                }
            }
            div.replica #status role="status" {
                @let class = head.status.name();
                @match head.runbook {
                    Some(anchor) => a.pill.(class) href=(runbook::href_of(anchor)) { (head.note) },
                    None => span.pill.(class) { (head.note) },
                }
                span.dim { "replica " code { (head.replica) } }
            }
        }
    }
}

/// Runs the script of the editor on a page.
pub(crate) fn editor_script() -> Markup {
    html! { script type="module" src={ "/console/editor.js?" (*VERSION) } {} }
}

pub(crate) fn asset(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, text).into_response()
}
