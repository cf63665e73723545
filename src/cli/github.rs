//! Workflow commands of GitHub, which annotate lines of a pull request: see "Workflow commands" in
//! its documentation.

use crate::report::{Finding, Severity};

/// A line for a finding. `end` is the column behind it, if known.
pub(crate) fn annotation(severity: Severity, finding: &Finding, end: Option<u32>) -> String {
    let command = match severity {
        Severity::Note => "notice",
        severity => severity.name(),
    };
    let file = finding.file.as_deref().unwrap_or_default();
    let mut properties = format!("file={}", property(file));
    if let (Some(line), Some(column)) = (finding.line, finding.column) {
        // GitHub marks the end column, too.
        let end = end.unwrap_or(0).saturating_sub(1).max(column);
        properties += &format!(",line={line},col={column},endColumn={end}");
    }
    let mut message = finding.message.clone();
    if let Some(hint) = &finding.hint {
        message += &format!("\n{hint}");
    }
    format!("::{command} {properties}::{}\n", data(&message))
}

fn data(text: &str) -> String {
    let escaped = text.replace('%', "%25").replace('\r', "%0D");
    escaped.replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
