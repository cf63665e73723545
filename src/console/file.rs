//! One rules file: its text in an editor that tries changes, and what the compiler reported about it.

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::admin::query_string::Pairs;
use crate::console::editor::editor;
use crate::console::files::{messages, rules_by_file};
use crate::console::parts::Parts;
use crate::console::widgets::tile;
use crate::rule_files::RuleFile;
use crate::rule_files::name::FileName;
use crate::text::Text;

/// Bytes of a text in the editor: a browser is slow with more.
const EDITED_BYTES_MAX: usize = 1 << 20;

/// The title and the content. With `text=no` the text is left out: the script has it already.
///
/// # Errors
/// There is no such file.
pub(crate) async fn content(parts: &Parts, query: &str) -> Result<(String, Markup), String> {
    let pairs = Pairs::new(query);
    let name = Text(pairs.first("name")).shown().into_owned();
    let name = FileName::new(&name).map_err(|error| error.to_string())?;
    let files = parts.files.clone();
    let files = files.ok_or("The rules come from a control plane, not from files.")?;
    let read = spawn_blocking({
        let name = name.clone();
        move || files.read(&name)
    });
    let read = read.await.map_err(|_| "The file cannot be read.")?;
    let file = read.map_err(|error| error.to_string())?;
    let findings = parts.findings.load();
    let is_refresh = pairs.first("text") == b"no";
    let content = html! {
        p.crumbs { a href="/console/files" { "Files" } " / " }
        h1 { (name) }
        (facts(parts, &name, &file))
        (messages(parts, &findings, |file| file == Some(name.as_str())))
        @match edited(&file) {
            Ok(text) => (editor(&name, &file.etag, if is_refresh { "" } else { text })),
            Err(reason) => section { p.empty { (reason) } },
        }
    };
    Ok((name.to_string(), content))
}

fn facts(parts: &Parts, name: &FileName, file: &RuleFile) -> Markup {
    let rules = rules_by_file(parts);
    let rules = rules.get(name.as_str()).copied().unwrap_or(0);
    let is_rejected = parts.rules.last_error().is_some();
    html! {
        dl.tiles #facts data-etag=(file.etag) {
            (tile("Rules in force", &html! { (rules) }, &html! { "of this file" }))
            (tile("Last load", &html! {
                @if is_rejected { span.state.bad { "rejected" } } @else { span.state.good { "in force" } }
            }, &html! {
                @if is_rejected { "the last good configuration serves" } @else { "the newest rules" }
            }))
            (tile("Size", &html! { (file.bytes.len()) }, &html! { "bytes" }))
        }
    }
}

/// The text of a file that can be edited.
///
/// # Errors
/// Why it cannot.
fn edited(file: &RuleFile) -> Result<&str, String> {
    if file.bytes.len() > EDITED_BYTES_MAX {
        return Err(format!(
            "The editor is for files of at most {EDITED_BYTES_MAX} bytes (edited_bytes_max): use /api/v1/rules, tollgate check and tollgate diff."
        ));
    }
    str::from_utf8(&file.bytes)
        .map_err(|_| "The file is not UTF-8: replace it by one that is.".to_owned())
}
