//! The lines of a text, for what the parser's marks do not tell: widths, brackets and tabs.
//!
//! Lines are only read forward: all of a file costs one pass.

use saphyr_parser::{Marker, ScalarStyle, Span};

use crate::rules::config::yaml::node::Location;

#[derive(Default)]
pub(super) struct Lines<'t> {
    rest: &'t str,
    line: &'t str,
    /// 1-based; 0 before the first.
    number: usize,
    /// The number of spaces before a tab in the indentation.
    tab: Option<usize>,
}

/// A location of one character.
pub(super) fn location(mark: Marker) -> Location {
    Location::new(mark.line(), mark.col() + 1, 1)
}

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { rest: text.trim_start_matches('\u{feff}'), ..Self::default() }
    }

    /// The location of an alias or of a scalar with its text; of width 0 if it is empty. That of a
    /// quoted text with escapes is shorter than what is written.
    ///
    /// The parser's span of a quoted scalar goes on to the next token, comments included, and that
    /// of a long one over several lines.
    pub(super) fn location_of(&mut self, span: Span, style: ScalarStyle, text: &str) -> Location {
        let width = match style {
            ScalarStyle::Plain if span.start.line() == span.end.line() => span.len(),
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => text.chars().count() + 2,
            _ => {
                let line = self.line(span.start.line()).trim_end();
                let width = line.chars().count().saturating_sub(span.start.col());
                width.max(1)
            }
        };
        Location::new(span.start.line(), span.start.col() + 1, width)
    }

    /// The tab in the indentation of a mark's line. yaml.v2 rejects all of them, the parser only
    /// some.
    pub(super) fn tab_before(&mut self, mark: Marker) -> Option<Location> {
        self.line(mark.line());
        let spaces = self.tab.filter(|spaces| *spaces < mark.col())?;
        Some(Location::new(mark.line(), spaces + 1, 1))
    }

    /// Whether the start of a list or map is a bracket. In block style its span covers at most an
    /// anchor and a tag.
    pub(super) fn has_bracket(&mut self, span: Span) -> bool {
        let start = span.start;
        let end = span.end;
        (start.line()..=end.line()).any(|number| {
            let from = if number == start.line() { start.col() } else { 0 };
            let to = if number == end.line() { end.col() } else { usize::MAX };
            let mut covered = self.line(number).chars().take(to).skip(from);
            covered.any(|letter| matches!(letter, '[' | '{'))
        })
    }

    fn line(&mut self, number: usize) -> &'t str {
        while self.number < number && !self.rest.is_empty() {
            let end = self.rest.find(['\n', '\r']).unwrap_or(self.rest.len());
            (self.line, self.rest) = self.rest.split_at(end);
            let next = self.rest.strip_prefix("\r\n");
            self.rest = next.unwrap_or_else(|| self.rest.get(1..).unwrap_or_default());
            let indented = self.line.trim_start_matches(' ');
            self.tab = indented.starts_with('\t').then(|| self.line.len() - indented.len());
            self.number += 1;
        }
        self.line
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::config::yaml::read;
    use crate::rules::config::yaml::tests::shape::collect_locations;

    #[test]
    fn every_node_has_its_location() {
        let text = concat!(
            "domain: é \"q\"\n",
            "list: # why\n",
            "- plain\n",
            "- \"quo\\\"ted\"  # comment\n",
            "- 'it''s' \n",
            "- &anchor 'x'\n",
            "- |\n",
            "  literal\n",
            "  lines\n",
            "- two\n",
            "  lines\n",
            "map: {é: 'é', empty: , \"k\": [1, 22]}\n",
            "nothing:\n",
            "last: {a:\n",
            "  'x'}\n",
        );
        let expected = "1:1+6 1:1+6 1:9+5 2:1+4 3:3+1 3:3+5 4:3+9 5:3+6 6:3+3 8:3+7 10:3+3 12:1+3 12:6+1 12:7+1 12:10+3 12:15+5 12:15+5 \
                        12:24+3 12:29+1 12:30+1 12:33+2 13:1+7 13:1+7 14:1+4 14:7+1 14:8+1 15:3+3";
        assert_eq!(locations(text), expected);
        assert_eq!(locations(&text.replace('\n', "\r\n")), expected);
        assert_eq!(locations(&format!("\u{feff}{text}")), expected);
    }

    fn locations(text: &str) -> String {
        let mut all = Vec::new();
        collect_locations(&read(text).unwrap().root.unwrap(), &mut all);
        let shown: Vec<String> =
            all.iter().map(|s| format!("{}:{}+{}", s.line, s.column, s.width)).collect();
        shown.join(" ")
    }
}
