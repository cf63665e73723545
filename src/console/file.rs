//! One rules file: its text in an editor that tries changes, and what the compiler reported about it.

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::admin::query_string::Pairs;
use crate::console::editor::{Changes, Values, editor};
use crate::console::files::{messages, rules_by_file};
use crate::console::parts::Parts;
use crate::console::widgets::tile;
use crate::rule_files::RuleFile;
use crate::rule_files::history::Version;
use crate::rule_files::name::FileName;
use crate::text::Text;

/// Bytes of a text in the editor: a browser is slow with more.
// bound edited_bytes_max: the reason instead of the editor; -
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
    let changes = parts.api.rule_changes.clone();
    let read = spawn_blocking({
        let (files, name) = (files.clone(), name.clone());
        move || (files.read(&name), changes.unwritable())
    });
    let (file, unwritable) = read.await.map_err(|_| "The file cannot be read.")?;
    let file = file.map_err(|error| error.to_string())?;
    let versions = parts.versions(&files, &name, &file.etag).await;
    let changes = match &unwritable {
        None => Changes::Allowed,
        Some(_) => Changes::Off,
    };
    let values = match parts.api.top.redaction {
        None => Values::Shown,
        Some(_) => Values::Redacted,
    };
    let findings = parts.findings.load();
    let is_refresh = pairs.first("text") == b"no";
    let content = html! {
        p.crumbs { a href="/console/files" { "Files" } " / " }
        h1 { (name) }
        (facts(parts, &name, &file))
        (messages(parts, &findings, |file| file == Some(name.as_str())))
        @if let Some(reason) = &unwritable {
            section { p #off.empty { "Changes can be tried here, and not applied: " (reason) "." } }
        }
        @match edited(&file) {
            Ok(text) => (editor((&name, &file.etag, if is_refresh { "" } else { text }), changes, values)),
            Err(reason) => section { p.empty { (reason) } },
        }
        (history(&versions, changes))
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

/// The first version is the file as it is.
fn history(versions: &[Version], changes: Changes) -> Markup {
    html! {
        section aria-labelledby="history" {
            h2 #history { "History" }
            div.scroll {
                table {
                    thead { tr { th scope="col" { "Version" } th scope="col" { "Since" } th scope="col" {} } }
                    tbody {
                        @for (index, version) in versions.iter().enumerate() {
                            @let id = format!("version-{}", version.number);
                            tr {
                                th #(id) scope="row" { "Version " (version.number) }
                                td { (version.time.to_rfc3339_secs()) }
                                td {
                                    @if index == 0 { span.dim { "the file as it is" } }
                                    @else if changes == Changes::Allowed {
                                        button type="button" data-dialog="dialog-Rollback" data-version=(version.number) aria-describedby=(id) { "Roll back" }
                                    }
                                }
                            }
                        }
                    }
                }
            }
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
