//! The latest decisions that are over limit: the script reads them from `/api/v1/over-limit`.

use maud::{Markup, html};

use crate::admin::api::viewer::Viewer;
use crate::console::dialogs::hidden_values;

pub(crate) fn content(viewer: &Viewer) -> Markup {
    let links = viewer.links();
    html! {
        div.heading {
            h1 { "Over limit" }
            p.dim #feed-state role="status" { "The feed needs JavaScript." }
            button #feed-pause type="button" aria-pressed="false" hidden { "Pause" }
        }
        p.lead { "Requests over limit as they are decided; above 10 a second, a sample of them." }
        div.scroll tabindex="0" {
            table {
                thead { tr {
                    th scope="col" { "Time" }
                    th scope="col" { "Rule" }
                    th scope="col" { "Key" }
                } }
                tbody #feed data-keep data-source="/api/v1/over-limit" data-links=(links.name()) {}
            }
        }
        p.empty #feed-none data-keep { "No request was over limit since this page was opened." }
        (hidden_values(viewer))
    }
}
