//! Problems and warnings about rules: text, location, the line with a caret, and a hint.
//!
//! A problem that envoyproxy/ratelimit has too keeps its message.

use std::fmt;
use std::mem;

use crate::base::text::shortened;
use crate::report;
use crate::rules::config::source::Source;
use crate::rules::config::yaml::{self, Diagnostic, Location, NOT_UTF8, Node};

/// Problems of a load, and warnings: more of them are mostly one mistake, repeated.
pub(crate) const FINDINGS_MAX: usize = 1_000;
/// Problems and warnings that are kept; the others are counted.
const FINDINGS_SHOWN_MAX: usize = 100;
/// Bytes of the text and of the hint of a finding, which may quote the rules.
const FINDING_BYTES_MAX: usize = 1_024;
/// Memory of what rules have of their own: paths, names and metadata. A long domain is in the path
/// of each of its rules, and an alias in the metadata of each that names it.
const RULES_BYTES_MAX: usize = 40 << 20;
/// The most characters of a line shown around the caret.
const EXCERPT_CHARS: usize = 120;

/// A problem or warning about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The source of the finding.
    pub source: Source,
    /// `None` for resources of a control plane.
    pub location: Option<Location>,
    /// The place in the rules, such as `domain shop > descriptors[2].rate_limit`.
    pub place: String,
    /// A sentence without a full stop.
    pub text: String,
    /// The remedy: a text to write instead.
    pub hint: Option<String>,
    /// The number of findings after this one that were left out.
    left_out: usize,
}

/// The findings about all sources.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    problems: Kept,
    warnings: Kept,
    /// The used part of [`RULES_BYTES_MAX`].
    rules_bytes: usize,
}

/// The first findings, and how many there are, up to [`FINDINGS_MAX`].
#[derive(Debug, Default)]
struct Kept {
    first: Vec<Finding>,
    count: usize,
}

/// Adds findings about one place in a source.
#[derive(Debug)]
pub(crate) struct SourceFindings<'f> {
    all: &'f mut Findings,
    source: &'f Source,
    /// See [`Finding::place`].
    pub(crate) place: String,
}

impl Findings {
    pub(crate) fn of<'f>(&'f mut self, source: &'f Source) -> SourceFindings<'f> {
        SourceFindings { all: self, source, place: String::new() }
    }

    /// Problems and warnings. The first problem is the one that envoyproxy/ratelimit reports.
    pub(crate) fn into_parts(self) -> (Vec<Finding>, Vec<Finding>) {
        (self.problems.into_list(), self.warnings.into_list())
    }
}

impl Kept {
    fn add(&mut self, about: Diagnostic, source: &Source, place: &str) {
        if self.first.len() < FINDINGS_SHOWN_MAX {
            self.first.push(Finding::new(about, source, place));
        }
        self.count = FINDINGS_MAX.min(self.count + 1);
    }

    fn into_list(mut self) -> Vec<Finding> {
        let left_out = self.count - self.first.len();
        if let Some(last) = self.first.last_mut() {
            last.left_out = left_out;
        }
        self.first
    }
}

impl SourceFindings<'_> {
    /// Adds findings about a place below this one.
    pub(crate) fn at(&mut self, below: impl fmt::Display) -> SourceFindings<'_> {
        SourceFindings {
            all: self.all,
            source: self.source,
            place: format!("{}{below}", self.place),
        }
    }

    /// Parses the source as YAML and adds the warnings about it; `None` if it is empty or a null.
    ///
    /// # Errors
    /// The first syntax error.
    pub(crate) fn read_yaml(&mut self, nodes_max: usize) -> Result<Option<Node>, Diagnostic> {
        let document = yaml::read_within(&self.source.text, nodes_max)?;
        for warning in document.warnings {
            self.warning(warning);
        }
        Ok(document.root.filter(|root| !root.is_null()))
    }

    /// The rules are rejected.
    pub(crate) fn problem(&mut self, problem: Diagnostic) {
        self.all.problems.add(problem, self.source, &self.place);
    }

    /// [`Self::problem`] with what to write instead.
    pub(crate) fn reject(
        &mut self,
        location: Location,
        text: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.problem(Diagnostic::new(location, text).hint(hint));
    }

    /// The rules are valid, but may not mean what their author thinks.
    pub(crate) fn warning(&mut self, warning: Diagnostic) {
        self.all.warnings.add(warning, self.source, &self.place);
    }

    /// The number of problems so far, about all sources.
    pub(crate) fn problem_count(&self) -> usize {
        self.all.problems.count
    }

    /// Adds memory of what a rule has of its own. Beyond [`RULES_BYTES_MAX`] that is a problem, and
    /// nothing else is read.
    pub(crate) fn fits(&mut self, bytes: usize, location: Location) -> bool {
        self.all.rules_bytes = self.all.rules_bytes.saturating_add(bytes);
        let fits = self.all.rules_bytes <= RULES_BYTES_MAX;
        if !fits && !self.is_full() {
            let text = format!(
                "the names, paths and metadata of the rules take more than {} MiB of memory (rules_bytes_max)",
                RULES_BYTES_MAX >> 20
            );
            let hint = "write shorter names and less metadata: each rule has its own copy";
            self.reject(location, text, hint);
            self.all.problems.count = FINDINGS_MAX;
        }
        fits
    }

    /// Whether too many problems were found to read the rest.
    pub(crate) fn is_full(&self) -> bool {
        self.problem_count() >= FINDINGS_MAX
    }
}

impl Finding {
    pub(crate) fn new(about: Diagnostic, source: &Source, place: &str) -> Self {
        let kept = |text: String| shortened(&text, FINDING_BYTES_MAX).into_owned();
        Self {
            source: source.clone(),
            location: (about.location.line > 0).then_some(about.location),
            place: place.to_owned(),
            text: kept(about.text),
            hint: about.hint.map(kept),
            left_out: 0,
        }
    }

    /// `name: text`, as envoyproxy/ratelimit reports it.
    pub fn headline(&self) -> String {
        format!("{}: {}", self.source.name, self.message())
    }

    /// The text, and the number of findings that are not shown.
    pub(crate) fn message(&self) -> String {
        let text = &self.text;
        match self.left_out {
            0 => text.clone(),
            1 => format!("{text} (and 1 more, not shown)"),
            many if many + FINDINGS_SHOWN_MAX >= FINDINGS_MAX => format!(
                "{text} (and at least {many} more, not shown; the rest was not read after {FINDINGS_MAX} of them, findings_max)"
            ),
            many => format!("{text} (and {many} more, not shown)"),
        }
    }

    /// For operators, without the text of the source.
    pub(crate) fn report(&self) -> report::Finding {
        report::Finding {
            file: Some(self.source.path.to_string()),
            line: self.location.map(|at| at.line),
            column: self.location.map(|at| at.column),
            message: self.message(),
            place: Some(self.place.clone()),
            hint: self.hint.clone(),
        }
    }

    /// `path:line:column (place)`, as far as known.
    pub(crate) fn source_location(&self) -> String {
        let mut shown = self.source.path.to_string();
        if let Some(Location { line, column, .. }) = self.location {
            shown += &format!(":{line}:{column}");
        }
        if !self.place.is_empty() {
            shown += &format!(" ({})", self.place);
        }
        shown
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headline = self.headline();
        let at = self.source_location();
        write!(formatter, "{headline}\n  --> {at}")?;
        if let Some(location) = self.location
            && let Some(line) = self.source.text.lines().nth(location.line as usize - 1)
        {
            write_excerpt(line, location, formatter)?;
        }
        if let Some(hint) = &self.hint {
            write!(formatter, "\n   = {hint}")?;
        }
        Ok(())
    }
}

/// A line, or the part of it around a location, with carets below.
fn write_excerpt(line: &str, at: Location, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let column = (at.column as usize).saturating_sub(1);
    let skip = if column > EXCERPT_CHARS * 2 / 3 { column - EXCERPT_CHARS / 3 } else { 0 };
    // A tab would move the caret, and a control character could change the terminal.
    let shown = |letter: char| match letter {
        NOT_UTF8 => char::REPLACEMENT_CHARACTER,
        _ if letter.is_control() => ' ',
        _ => letter,
    };
    let part = line.chars().skip(skip).take(EXCERPT_CHARS).map(shown);
    let part: String = part.collect();
    let length = part.chars().count();
    let indent = (column - skip).min(length);
    let width = (at.width as usize).clamp(1, (length - indent).max(1));
    let number = at.line.to_string();
    let margin = " ".repeat(number.len());
    let part = part.trim_end();
    let indent = " ".repeat(indent);
    let carets = "^".repeat(width);
    write!(formatter, "\n {margin} |\n {number} | {part}\n {margin} | {indent}{carets}")
}

/// Findings for operators, in the order of their files.
pub(crate) fn reported(findings: Vec<Finding>) -> Vec<report::Finding> {
    let findings = in_file_order(findings).into_iter();
    findings.map(|finding| finding.report()).collect()
}

/// Sorts findings by file, line and column.
pub(crate) fn in_file_order(mut findings: Vec<Finding>) -> Vec<Finding> {
    let left_out = findings.iter_mut().map(|finding| mem::take(&mut finding.left_out)).sum();
    let order = |finding: &Finding| {
        let at = finding.location.map(|at| (at.line, at.column));
        (finding.source.path.clone(), at)
    };
    findings.sort_by_key(order);
    if let Some(last) = findings.last_mut() {
        last.left_out = left_out;
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_finding_in_file_order_counts_those_left_out() {
        let source = Source { name: "r".into(), path: "r".into(), text: "".into() };
        let mut findings = Findings::default();
        for number in 0..FINDINGS_SHOWN_MAX + 2 {
            let line = u32::try_from(FINDINGS_SHOWN_MAX * 2 - number).unwrap();
            let location = Location { line, column: 1, width: 1 };
            let problem = Diagnostic::new(location, line.to_string());
            findings.of(&source).problem(problem);
        }
        let found = in_file_order(findings.into_parts().0);
        let headlines: Vec<String> = found.iter().map(Finding::headline).collect();
        assert_eq!((&*headlines[0], &*headlines[1]), ("r: 101", "r: 102"));
        assert_eq!(headlines.last().unwrap(), "r: 200 (and 2 more, not shown)");
    }
}
