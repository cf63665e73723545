//! The rules files: what is in force of each, and what the compiler reported when they were loaded.

use std::collections::HashMap;

use maud::{Markup, html};

use crate::operator::console::parts::Parts;
use crate::operator::console::runbook;
use crate::operator::console::widgets;
use crate::operator::console::widgets::encoded;
use crate::report::Finding;
use crate::rules::source::edit::Listed;
use crate::rules::source::findings::Findings;

/// Rows of the list of rules files.
const ROWS_MAX: usize = 1_000;
/// Shown where rules come from a control plane.
const NO_FILES: &str =
    "The rules come from a control plane (CONFIG_TYPE=GRPC_XDS_SOTW), not from files.";

pub(crate) async fn content(parts: &Parts) -> Markup {
    let Some(listed) = parts.files().await else {
        return html! { h1 { "Files" } p.empty { (NO_FILES) } };
    };
    let findings = parts.findings.load();
    html! {
        div.heading {
            h1 { "Files" }
            p.dim { "Open a file to read or change it." }
        }
        (messages(parts, &findings, |_| true))
        section aria-labelledby="files" {
            h2 #files { "Rules files" }
            @match &listed {
                Err(reason) => p.empty role="alert" { (reason) },
                Ok(files) if files.is_empty() => p.empty { "The folder has no rules files: nothing is limited." },
                Ok(files) => (table(parts, files, &findings)),
            }
        }
    }
}

/// The URL of a file's view.
pub(crate) fn href_of(file: &str) -> String {
    format!("/console/file?name={}", encoded(file))
}

/// The errors and warnings of the last load whose file is shown; nothing without any.
pub(crate) fn messages(
    parts: &Parts,
    findings: &Findings,
    is_shown: impl Fn(Option<&str>) -> bool,
) -> Markup {
    let shown = |findings: &[Finding]| -> Vec<Finding> {
        let named = findings.iter().map(|finding| Finding {
            file: finding.file.as_deref().map(|path| parts.file_name(path)),
            ..finding.clone()
        });
        named.filter(|finding| is_shown(finding.file.as_deref())).collect()
    };
    let errors = shown(&findings.errors);
    let warnings = shown(&findings.warnings);
    html! {
        @if !errors.is_empty() {
            section aria-labelledby="errors" {
                h2 #errors { "Rejected: the newest rules are not in force" }
                @if let Some(fault) = parts.rules_fault() {
                    p { (fault.text) ". " (runbook::link(fault.anchor)) }
                }
                (list("error", &errors))
            }
        }
        @if !warnings.is_empty() {
            section aria-labelledby="warnings" {
                h2 #warnings { "Warnings" }
                (list("warning", &warnings))
            }
        }
    }
}

fn list(class: &str, findings: &[Finding]) -> Markup {
    html! {
        ol.messages {
            @for Finding { file, line, message, hint, .. } in findings {
                li.(class) {
                    @if let Some(file) = file {
                        @let at = line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"));
                        @let fragment = line.map_or_else(String::new, |line| format!("#L{line}"));
                        // Only files directly in the folder have a view.
                        @if file.contains('/') { code { (at) } }
                        @else { a href={ (href_of(file)) (fragment) } { (at) } }
                        " "
                    }
                    span { (message) }
                    @if let Some(hint) = hint { span.dim { (hint) } }
                }
            }
        }
    }
}

fn table(parts: &Parts, files: &[Listed], findings: &Findings) -> Markup {
    let rules = rules_by_file(parts);
    html! {
        (widgets::table(&["File"], &["Rules in force", "Errors", "Warnings", "Bytes"], &html! {
            @for file in files.iter().take(ROWS_MAX) {
                @let name = file.name.as_str();
                @let count = |messages| count_of(parts, messages, name);
                @let errors = count(&findings.errors);
                tr {
                    th scope="row" { a href=(href_of(name)) { (name) } }
                    td.number { (rules.get(name).unwrap_or(&0)) }
                    td.number.over[errors > 0] { (errors) }
                    td.number { (count(&findings.warnings)) }
                    td.number { (file.bytes) }
                }
            }
        }))
        @if files.len() > ROWS_MAX { p.empty { "The first " (ROWS_MAX) " of " (files.len()) " are shown." } }
    }
}

fn count_of(parts: &Parts, findings: &[Finding], name: &str) -> usize {
    let paths = findings.iter().filter_map(|finding| finding.file.as_deref());
    paths.filter(|path| parts.file_name(path) == name).count()
}

/// The number of rules in force of each file.
pub(crate) fn rules_by_file(parts: &Parts) -> HashMap<String, usize> {
    let rules = parts.rules_in_force();
    let mut numbers = HashMap::new();
    for rule in rules.iter().flat_map(|rules| rules.rules()) {
        *numbers.entry(&*rule.origin.file).or_insert(0) += 1;
    }
    numbers.into_iter().map(|(path, number)| (parts.file_name(path), number)).collect()
}
