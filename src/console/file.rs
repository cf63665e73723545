//! A rules file: its text in an editor that tries changes, and what the compiler reported about
//! it.

use maud::{Markup, html};
use tokio::task::spawn_blocking;

use crate::admin::api::viewer::Viewer;
use crate::admin::query_string::Pairs;
use crate::base::text::Text;
use crate::console::editor::{Changes, editor};
use crate::console::files::{messages, rules_by_file};
use crate::console::parts::Parts;
use crate::console::runbook;
use crate::console::widgets::tile;
use crate::rule_source::edit::etag::ETag;
use crate::rule_source::edit::history::Version;
use crate::rule_source::edit::name::FileName;
use crate::rule_source::edit::{ReadError, Reading, RuleFile, RuleFiles};

/// Bytes of a text in the editor: a browser is slow with more.
// bound edited_bytes_max: the page has the reason instead of the editor; -
const EDITED_BYTES_MAX: usize = 1 << 20;

/// A file as it is.
struct Shown {
    etag: ETag,
    bytes: usize,
    /// `None` if it is not asked for or too large.
    text: Option<Vec<u8>>,
}

/// The title and the content, and the permit that counts for it. With `text=no` the text is left
/// out: the script has it already.
///
/// # Errors
/// There is no such file.
pub(crate) async fn content(
    parts: &Parts,
    query: &str,
    viewer: &Viewer,
) -> Result<(String, Markup, Reading), String> {
    let pairs = Pairs::new(query);
    let name = Text(pairs.first("name")).shown().into_owned();
    let name = FileName::new(&name).map_err(|error| error.to_string())?;
    let files = parts.files.clone();
    let files = files.ok_or("The rules come from a control plane, not from files.")?;
    let changes = parts.api.rule_changes.clone();
    let reading = files.reading().await.map_err(|busy| busy.to_string())?;
    let is_refresh = pairs.first("text") == b"no";
    let read = spawn_blocking({
        let (files, name) = (files.clone(), name.clone());
        move || {
            (
                Shown::read(&files, &name, is_refresh),
                changes.unwritable(),
                reading,
            )
        }
    });
    let (file, unwritable, reading) = read.await.map_err(|_| "The file cannot be read.")?;
    let file = file.map_err(|error| error.to_string())?;
    let versions = parts.versions(&files, &name, &file.etag).await;
    let changes = match &unwritable {
        None => Changes::Allowed,
        Some(_) => Changes::Off,
    };
    let findings = parts.findings.load();
    let content = html! {
        p.crumbs { a href="/console/files" { "Files" } " / " }
        h1 { (name) }
        (facts(parts, &name, &file))
        (messages(parts, &findings, |file| file == Some(name.as_str())))
        @if let Some(reason) = &unwritable {
            section { p #off.empty { "Changes can be tried here, and not applied: " (reason) "." } }
        }
        @match file.edited() {
            Ok(text) => (editor(&name, &file.etag, text, changes, viewer.values)),
            Err(reason) => section { p.empty { (reason) } },
        }
        (history(&versions, changes))
    };
    Ok((name.to_string(), content, reading))
}

impl Shown {
    /// Blocks.
    fn read(files: &RuleFiles, name: &FileName, is_refresh: bool) -> Result<Self, ReadError> {
        let read = if is_refresh {
            None
        } else {
            match files.read_up_to(name, EDITED_BYTES_MAX) {
                Err(ReadError::TooLarge(..)) => None,
                read => Some(read?),
            }
        };
        Ok(match read {
            Some(RuleFile { etag, bytes, .. }) => Self {
                etag,
                bytes: bytes.len(),
                text: Some(bytes),
            },
            None => {
                let (etag, bytes, _) = files.hashed(name)?;
                Self {
                    etag,
                    bytes,
                    text: None,
                }
            }
        })
    }

    /// The text, if it can be edited.
    ///
    /// # Errors
    /// Why it cannot.
    fn edited(&self) -> Result<&str, String> {
        if self.bytes > EDITED_BYTES_MAX {
            return Err(format!(
                "The editor is for files of at most {EDITED_BYTES_MAX} bytes (edited_bytes_max): use /api/v1/rules, tollgate check and tollgate diff."
            ));
        }
        let text = self.text.as_deref().unwrap_or_default();
        str::from_utf8(text)
            .map_err(|_| "The file is not UTF-8: replace it by one that is.".to_owned())
    }
}

fn facts(parts: &Parts, name: &FileName, file: &Shown) -> Markup {
    let rules = rules_by_file(parts);
    let rules = rules.get(name.as_str()).copied().unwrap_or(0);
    let fault = parts.rules_fault();
    html! {
        dl.tiles #facts data-etag=(file.etag) {
            (tile("Rules in force", &html! { (rules) }, &html! { "of this file" }))
            (tile("Last load", &html! {
                @if fault.is_some() { span.state.bad { "rejected" } } @else { span.state.good { "in force" } }
            }, &html! {
                @match fault {
                    Some(fault) => { (fault.text) ". " (runbook::link(fault.anchor)) },
                    None => "the newest rules",
                }
            }))
            (tile("Size", &html! { (file.bytes) }, &html! { "bytes" }))
        }
    }
}

/// The first version is the file as it is.
fn history(versions: &[Version], changes: Changes) -> Markup {
    html! {
        section aria-labelledby="history" {
            h2 #history { "History" }
            div.scroll tabindex="0" {
                table {
                    thead { tr { th scope="col" { "Version" } th scope="col" { "Since" } th scope="col" { "Action" } } }
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
