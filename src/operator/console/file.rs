//! A rules file: its text, the button that applies a changed one, and what the compiler reported
//! about it.

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::operator::admin::query_string::Pairs;
use crate::operator::console::dialogs::ask;
use crate::operator::console::files::{href_of, messages, rules_by_file};
use crate::operator::console::frame::editor_script;
use crate::operator::console::parts::Parts;
use crate::operator::console::runbook;
use crate::operator::console::widgets::tile;
use crate::rules::source::edit::etag::ETag;
use crate::rules::source::edit::name::FileName;
use crate::rules::source::edit::{EditError, Reading};

/// Bytes of a text in the editor: a browser is slow with more.
const EDITED_BYTES_MAX: usize = 1 << 20;

/// The title and the content, and the permit that counts for it. With `text=no` the text is left
/// out: the script has it already.
///
/// # Errors
/// There is no such file.
pub(crate) async fn content(
    parts: &Parts,
    pairs: &Pairs,
) -> Result<(String, Markup, Reading), String> {
    let name = FileName::new(&pairs.text("name")).map_err(|error| error.to_string())?;
    let files = parts.files.clone();
    let files = files.ok_or("The rules come from a control plane, not from files.")?;
    let rules = parts.api.rules.clone();
    let reading = files.reading().await.map_err(|busy| busy.to_string())?;
    let read_name = name.clone();
    let read = spawn_blocking(move || {
        let read = files.read(&read_name, EDITED_BYTES_MAX);
        (read, rules.unwritable(), reading)
    });
    let (read, unwritable, reading) = read.await.map_err(|_| "The file cannot be read.")?;
    let (etag, bytes, text) = match read {
        Ok(bytes) => (Some(ETag::of(&bytes)), bytes.len() as u64, Some(bytes)),
        Err(EditError::TooLarge(_, bytes, _)) => (None, bytes, None),
        Err(error) => return Err(error.to_string()),
    };
    let findings = parts.findings.load();
    let is_refresh = pairs.first("text") == b"no";
    let content = html! {
        p.crumbs { a href="/console/files" { "Files" } " / " }
        h1 { (name) }
        (facts(parts, &name, etag.as_ref(), bytes))
        (messages(parts, &findings, |file| file == Some(name.as_str())))
        @if let Some(reason) = &unwritable {
            section { p #off.empty { "Changes cannot be applied: " (reason) "." } }
        }
        @match (etag, text.as_deref().map(str::from_utf8)) {
            (Some(etag), Some(Ok(text))) => {
                (editor(&name, &etag, if is_refresh { "" } else { text }, unwritable.is_none()))
            }
            (_, None) => section { p.empty { "The editor is for files of at most " (EDITED_BYTES_MAX) " bytes (edited_bytes_max): use /api/v1/rules." } },
            _ => section { p.empty { "The file is not UTF-8: replace it by one that is." } },
        }
    };
    Ok((name.to_string(), content, reading))
}

/// The script owns everything in it.
fn editor(name: &FileName, etag: &ETag, text: &str, can_be_applied: bool) -> Markup {
    html! {
        section #editor data-keep data-file=(name) data-etag=(etag) data-refresh={ (href_of(name.as_str())) "&text=no" } {
            label.title for="text" { "Rules of " (name) }
            // Browsers drop the first line break of a textarea.
            textarea #text readonly spellcheck="false" autocomplete="off" autocapitalize="off" wrap="off" { "\n" (text) }
            p #differs.error role="alert" hidden { "The file has changed since this page was opened: applying this text would be rejected. Open the page again to edit the file." }
            @if can_be_applied {
                div.actions {
                    button #apply.primary type="button" data-dialog="dialog-Apply" disabled { "Apply" }
                    span #applied role="status" {}
                }
                (ask("Apply", "Apply this text?", &html! { "The rules of " code { (name) } " are replaced, and in force as soon as they are loaded." }))
            }
        }
        (editor_script())
    }
}

fn facts(parts: &Parts, name: &FileName, etag: Option<&ETag>, bytes: u64) -> Markup {
    let rules = rules_by_file(parts);
    let rules = rules.get(name.as_str()).copied().unwrap_or(0);
    let fault = parts.rules_fault();
    html! {
        dl.tiles #facts data-etag=[etag] {
            (tile("Rules in force", &html! { (rules) }, &html! { "of this file" }))
            (tile("Last load", &html! {
                @if fault.is_some() { span.state.bad { "rejected" } } @else { span.state.good { "in force" } }
            }, &html! {
                @match fault {
                    Some(fault) => { (fault.text) ". " (runbook::link(fault.anchor)) },
                    None => "the newest rules",
                }
            }))
            (tile("Size", &html! { (bytes) }, &html! { "bytes" }))
        }
    }
}
