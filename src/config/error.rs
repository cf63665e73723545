//! Problems and warnings about rules: text, location, the line with a caret, and a hint.
//!
//! A problem that envoyproxy/ratelimit has too keeps its message.

use std::fmt;
use std::mem;
use std::sync::Arc;

use crate::config::source::Source;
use crate::config::yaml::{Location, NOT_UTF8};

/// The most findings kept: more of them are mostly one mistake, repeated.
const FINDINGS_MAX: usize = 100;
/// The most characters of a line shown around the caret.
const EXCERPT_CHARS: usize = 120;

/// A problem or warning about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// See [`Source::name`].
    pub name: Arc<str>,
    /// See [`Source::path`].
    pub path: Arc<str>,
    /// `None` for resources of a control plane.
    pub location: Option<Location>,
    /// The place in the rules, such as `domain shop > descriptors[2].rate_limit`.
    pub place: String,
    /// A sentence without a full stop.
    pub text: String,
    /// What to write instead.
    pub hint: Option<String>,
    excerpt: Option<Excerpt>,
    /// The number of findings dropped after this one.
    left_out: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    line: String,
    caret_from: usize,
    caret_width: usize,
}

/// The findings about all sources.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    problems: Vec<Finding>,
    warnings: Vec<Finding>,
    left_out: usize,
}

/// Adds findings about one source.
#[derive(Debug)]
pub(crate) struct SourceFindings<'f> {
    all: &'f mut Findings,
    source: &'f Source,
    lines: Option<Vec<&'f str>>,
}

/// A finding without its source.
#[derive(Debug)]
pub(crate) struct Draft<'p> {
    pub(crate) location: Location,
    /// See [`Finding::place`].
    pub(crate) place: &'p str,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

impl<'p> Draft<'p> {
    pub(crate) fn new(location: Location, place: &'p str, text: impl Into<String>) -> Self {
        Self {
            location,
            place,
            text: text.into(),
            hint: None,
        }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}

impl Findings {
    pub(crate) fn of<'f>(&'f mut self, source: &'f Source) -> SourceFindings<'f> {
        SourceFindings {
            all: self,
            source,
            lines: None,
        }
    }

    /// Problems and warnings. The first problem is the one that envoyproxy/ratelimit reports.
    pub(crate) fn into_parts(mut self) -> (Vec<Finding>, Vec<Finding>) {
        if let Some(last) = self.problems.last_mut() {
            last.left_out = self.left_out;
        }
        (self.problems, self.warnings)
    }
}

impl SourceFindings<'_> {
    /// The rules are rejected.
    pub(crate) fn problem(&mut self, draft: Draft<'_>) {
        if self.all.problems.len() < FINDINGS_MAX {
            let finding = self.finding(draft);
            self.all.problems.push(finding);
        } else {
            self.all.left_out += 1;
        }
    }

    /// The rules are valid, but may not mean what their author thinks.
    pub(crate) fn warning(&mut self, draft: Draft<'_>) {
        if self.all.warnings.len() < FINDINGS_MAX {
            let finding = self.finding(draft);
            self.all.warnings.push(finding);
        }
    }

    fn finding(&mut self, draft: Draft<'_>) -> Finding {
        let text = &self.source.text;
        let lines = self.lines.get_or_insert_with(|| text.lines().collect());
        let line = (draft.location.line as usize)
            .checked_sub(1)
            .and_then(|index| lines.get(index));
        Finding {
            name: self.source.name.clone(),
            path: self.source.path.clone(),
            location: (draft.location.line > 0).then_some(draft.location),
            place: draft.place.to_owned(),
            text: draft.text,
            hint: draft.hint,
            excerpt: line.map(|line| Excerpt::new(line, draft.location)),
            left_out: 0,
        }
    }
}

impl Excerpt {
    fn new(line: &str, location: Location) -> Self {
        let column = (location.column as usize).saturating_sub(1);
        let skip = if column > EXCERPT_CHARS * 2 / 3 {
            column - EXCERPT_CHARS / 3
        } else {
            0
        };
        // A tab would move the caret, and a control character could change the terminal.
        let shown = |letter: char| match letter {
            NOT_UTF8 => char::REPLACEMENT_CHARACTER,
            _ if letter.is_control() => ' ',
            _ => letter,
        };
        let line: String = line
            .chars()
            .skip(skip)
            .take(EXCERPT_CHARS)
            .map(shown)
            .collect();
        let caret_from = (column - skip).min(line.chars().count());
        let room = line.chars().count().saturating_sub(caret_from).max(1);
        Self {
            line,
            caret_from,
            caret_width: (location.width as usize).clamp(1, room),
        }
    }
}

impl Finding {
    /// `name: text`, as envoyproxy/ratelimit reports it.
    pub fn headline(&self) -> String {
        let Self {
            name,
            text,
            left_out,
            ..
        } = self;
        match left_out {
            0 => format!("{name}: {text}"),
            1 => format!("{name}: {text} (and 1 more problem, not shown)"),
            many => format!("{name}: {text} (and {many} more problems, not shown)"),
        }
    }

    /// `path:line:column (place)`, as far as known.
    pub(crate) fn source_location(&self) -> String {
        let location = self
            .location
            .map(|location| format!(":{}:{}", location.line, location.column))
            .unwrap_or_default();
        let place = if self.place.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.place)
        };
        format!("{}{location}{place}", self.path)
    }

    fn place_in_files(&self) -> (&str, Option<(u32, u32)>) {
        (
            &self.path,
            self.location
                .map(|location| (location.line, location.column)),
        )
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}\n  --> {}",
            self.headline(),
            self.source_location()
        )?;
        if let (Some(location), Some(excerpt)) = (self.location, &self.excerpt) {
            let number = location.line.to_string();
            let margin = " ".repeat(number.len());
            write!(
                formatter,
                "\n {margin} |\n {number} | {}",
                excerpt.line.trim_end()
            )?;
            write!(
                formatter,
                "\n {margin} | {}{}",
                " ".repeat(excerpt.caret_from),
                "^".repeat(excerpt.caret_width)
            )?;
        }
        if let Some(hint) = &self.hint {
            write!(formatter, "\n   = {hint}")?;
        }
        Ok(())
    }
}

/// Sorts findings by file, line and column.
pub(crate) fn in_file_order(mut findings: Vec<Finding>) -> Vec<Finding> {
    let left_out = findings
        .iter_mut()
        .map(|finding| mem::take(&mut finding.left_out))
        .sum();
    findings.sort_by(|one, other| one.place_in_files().cmp(&other.place_in_files()));
    if let Some(last) = findings.last_mut() {
        last.left_out = left_out;
    }
    findings
}

/// The word of a list that is most similar, if one is similar enough to be meant.
pub(crate) fn did_you_mean<'w>(
    word: &str,
    words: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    let score = |candidate: &str| strsim::jaro_winkler(&word.to_lowercase(), candidate);
    let scored = words
        .into_iter()
        .map(|candidate| (score(candidate), candidate));
    scored
        .filter(|(score, _)| *score > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_finding_in_file_order_counts_those_left_out() {
        let source = Source {
            name: "r".into(),
            path: "r".into(),
            text: "".into(),
        };
        let mut findings = Findings::default();
        for number in 0..FINDINGS_MAX + 2 {
            let line = u32::try_from(FINDINGS_MAX * 2 - number).unwrap();
            let location = Location {
                line,
                column: 1,
                width: 1,
            };
            findings.of(&source).problem(Draft {
                location,
                place: "",
                text: line.to_string(),
                hint: None,
            });
        }
        let found = in_file_order(findings.into_parts().0);
        let headlines: Vec<String> = found.iter().map(Finding::headline).collect();
        assert_eq!((&*headlines[0], &*headlines[1]), ("r: 101", "r: 102"));
        assert_eq!(
            headlines.last().unwrap(),
            "r: 200 (and 2 more problems, not shown)"
        );
    }
}
