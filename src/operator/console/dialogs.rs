//! Dialogs that ask for the token: for actions on a counter, and to see values.

use maud::{Markup, html};

use crate::operator::admin::api::viewer::Viewer;
use crate::operator::console::runbook;
use crate::operator::console::widgets::clamped;
use crate::report::json;

struct Action {
    name: &'static str,
    path: &'static str,
    /// The effect on the counter.
    effect: &'static str,
    done: &'static str,
    asks_for_hits: bool,
}

const ACTIONS: [Action; 2] = [
    Action {
        name: "Reset",
        path: "/api/v1/counters/reset",
        effect: "The counter begins again at zero.",
        done: "The counter was reset",
        asks_for_hits: false,
    },
    Action {
        name: "Grant",
        path: "/api/v1/counters/grant",
        effect: "This number of used hits is given back, at most the limit.",
        done: "Hits were granted",
        asks_for_hits: true,
    },
];

/// The buttons and dialogs of a descriptor, or why there are none.
pub(crate) fn actions(unconfigured: Option<&str>, domain: &str, entries: &[[String; 2]]) -> Markup {
    if let Some(reason) = unconfigured {
        return html! { p.dim { "Reset and Grant are off: " (reason) "." } };
    }
    let descriptor = json(&entries);
    html! {
        div.actions {
            @for action in ACTIONS {
                button type="button" data-dialog={ "dialog-" (action.name) } { (action.name) }
            }
            span #result role="status" data-keep {}
        }
        @for action in ACTIONS { (dialog(&action, domain, entries, &descriptor)) }
    }
}

fn dialog(action: &Action, domain: &str, entries: &[[String; 2]], descriptor: &str) -> Markup {
    let title = format!("title-{}", action.name);
    html! {
        dialog id={ "dialog-" (action.name) } aria-labelledby=(title) data-keep {
            form method="dialog" data-action=(action.path) data-done=(action.done) data-domain=(domain) data-descriptor=(descriptor) {
                h2 id=(title) { (action.name) " this counter?" }
                p {
                    @for [key, value] in entries { code { (clamped(&format!("{key}={value}"))) } " " }
                    "of " (domain) ". " (action.effect)
                }
                @if action.asks_for_hits {
                    label { span { "Hits" } input type="number" name="hits" min="1" value="1" required; }
                }
                (confirmation())
            }
        }
    }
}

/// Asks for the token, and sends what the script sets.
pub(crate) fn ask(name: &str, title: &str, text: &Markup) -> Markup {
    let label = format!("title-{name}");
    html! {
        dialog id={ "dialog-" (name) } aria-labelledby=(label) data-keep {
            form method="dialog" {
                h2 id=(label) { (title) }
                p { (text) }
                (confirmation())
            }
        }
    }
}

/// The end of each dialog.
fn confirmation() -> Markup {
    html! {
        label { span { "Token" } input type="password" name="token" required autocomplete="off"; }
        p.error role="alert" hidden {}
        div.actions {
            button type="button" data-cancel { "Cancel" }
            button.primary type="submit" { "Confirm" }
        }
    }
}

/// Where values are left out: that they are, and the button that shows them.
pub(crate) fn hidden_values(viewer: &Viewer) -> Markup {
    html! {
        @if let Some(hint) = viewer.hint() {
            p.dim {
                "Values that clients send are left out: " (hint) ". "
                a href=(runbook::href_of("who-is-limited")) { "Who sees values" }
                @if viewer.may_reveal { " " button type="button" data-dialog="dialog-Reveal" { "Show values" } }
            }
            @if viewer.may_reveal {
                (ask("Reveal", "Show values?", &html! { "Pages of this tab show values of clients until it is closed." }))
            }
        }
    }
}
