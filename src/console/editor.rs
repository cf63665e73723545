//! The editor of a rules file: its script checks the text by the API while an operator types, and
//! shows what the change would do. Without the script it shows the text.

use maud::{Markup, html};

use crate::console::dialogs::ask;
use crate::console::files::href_of;
use crate::console::frame::editor_script;
use crate::observe::redact::Values;
use crate::rule_source::edit::etag::ETag;
use crate::rule_source::edit::name::FileName;

/// Value and name of each pattern of requests.
const PATTERNS: [(&str, &str); 4] = [
    ("steady", "Steady, at the rate of the limit"),
    ("double", "Twice the rate of the limit"),
    ("bursty", "Bursts of two periods"),
    ("rate", "A number of requests per second"),
];

/// Whether the buttons that change files are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    Allowed,
    Off,
}

/// The script owns everything in it.
pub(crate) fn editor(
    name: &FileName,
    etag: &ETag,
    text: &str,
    changes: Changes,
    values: Values,
) -> Markup {
    html! {
        div #editor data-keep data-file=(name) data-etag=(etag) data-refresh={ (href_of(name.as_str())) "&text=no" } {
            div.columns {
                section {
                    label.title for="text" { "Rules of " (name) }
                    div.code {
                        div #lines aria-hidden="true" {}
                        // Browsers drop the first line break of a textarea.
                        textarea #text readonly spellcheck="false" autocomplete="off" autocapitalize="off" wrap="off" aria-describedby="verdict" { "\n" (text) }
                    }
                    div #differs role="alert" hidden {
                        p.error { "The file has changed since this page was opened: applying this text would be rejected." }
                        button #reload type="button" { "Discard this text and open the file again" }
                    }
                    div.actions {
                        @if changes == Changes::Allowed {
                            button #apply.primary type="button" data-dialog="dialog-Apply" disabled hidden { "Apply" }
                        }
                        button #discard type="button" hidden { "Discard changes" }
                        span #verdict role="status" { "Changes are checked by JavaScript." }
                        span #applied role="status" {}
                    }
                }
                section aria-labelledby="messages-title" {
                    h2 #messages-title { "Messages" }
                    div #messages {}
                }
            }
            section aria-labelledby="differences-title" hidden {
                h2 #differences-title { "Differences to the rules in force" }
                div #differences {}
            }
            section aria-labelledby="keys-title" hidden {
                h2 #keys-title { "Top keys that would be treated differently" }
                div #keys {}
                @if values == Values::Dropped {
                    p.dim { "Values that clients send are left out (ADMIN_REDACT), so a new rule for one value finds no key." }
                }
            }
            section aria-labelledby="simulation-title" hidden {
                h2 #simulation-title { "Simulation" }
                (simulation())
                div #simulated role="status" {}
            }
            @if changes == Changes::Allowed {
                (ask("Apply", "Apply this text?", &html! { "The rules of " code { (name) } " are replaced, and in force as soon as they are loaded." }))
                (ask("Rollback", "Roll back?", &html! {
                    "The rules of " code { (name) } " become those of version " strong #rollback-version {} ". Changes in the editor are discarded."
                }))
            }
        }
        (editor_script())
    }
}

fn simulation() -> Markup {
    html! {
        form #simulation {
            label { span { "Domain" } input type="text" name="domain" required autocomplete="off" spellcheck="false"; }
            label { span { "Entries, one KEY=VALUE per line" } textarea.entries name="entries" rows="2" required spellcheck="false" autocomplete="off" placeholder="user=42" {} }
            label { span { "Requests" } select name="traffic" {
                @for (value, name) in PATTERNS { option value=(value) { (name) } }
            } }
            label #rate { span { "Requests per second" } input type="number" name="rate" min="0.01" max="1000000" step="any" value="10"; }
            label { span { "Periods" } input type="number" name="periods" min="1" max="60" value="6" required; }
            button type="submit" { "Simulate" }
        }
    }
}
