//! Converts the parser's marks to locations: measures widths, and finds tabs that the parser accepts.
//!
//! Marks count characters, so finding one means walking the text. The walk only goes forward: all
//! measuring in a file costs one pass.

use std::str::Chars;

use saphyr_parser::{Marker, ScalarStyle, Span};

use crate::config::yaml::node::Location;

pub(super) struct Locator<'t> {
    rest: Chars<'t>,
    /// The number of the character that `rest` starts with.
    at: usize,
}

/// One character wide.
pub(super) fn location(mark: Marker) -> Location {
    Location::new(mark.line(), mark.col() + 1, 1)
}

impl<'t> Locator<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            rest: text.chars(),
            at: 0,
        }
    }

    /// The location of an alias or a scalar; of width 0 if it is empty.
    ///
    /// The parser's span of a quoted scalar goes on to the next token, comments included, and that
    /// of a long one over several lines.
    pub(super) fn location_of(&mut self, span: Span, style: ScalarStyle) -> Location {
        let width = match style {
            ScalarStyle::Plain if span.start.line() == span.end.line() => span.len(),
            ScalarStyle::SingleQuoted => quoted_width(self.text_from(span.start.index()), '\''),
            ScalarStyle::DoubleQuoted => quoted_width(self.text_from(span.start.index()), '"'),
            _ => {
                let line = self
                    .text_from(span.start.index())
                    .split(['\n', '\r'])
                    .next()
                    .unwrap_or_default();
                line.trim_end().chars().count().max(1)
            }
        };
        Location {
            width: Location::new(0, 0, width).width,
            ..location(span.start)
        }
    }

    /// The tab in the indentation of a mark's line. yaml.v2 rejects all of them, the parser only
    /// some.
    pub(super) fn tab_before(&mut self, mark: Marker) -> Option<Location> {
        // `None`: a token before it on this line was measured already.
        let start = mark
            .index()
            .checked_sub(mark.col())
            .filter(|start| *start >= self.at)?;
        let line = self.text_from(start);
        let spaces = line.len() - line.trim_start_matches(' ').len();
        (spaces < mark.col() && line[spaces..].starts_with('\t'))
            .then(|| Location::new(mark.line(), spaces + 1, 1))
    }

    /// The text of a span.
    pub(super) fn text_of(&mut self, span: Span) -> impl Iterator<Item = char> + use<'t> {
        self.text_from(span.start.index()).chars().take(span.len())
    }

    fn text_from(&mut self, index: usize) -> &'t str {
        let skip = index.saturating_sub(self.at);
        if skip > 0 {
            self.rest.nth(skip - 1);
            self.at = index;
        }
        self.rest.as_str()
    }
}

/// The number of characters up to the closing quote, or else up to the last one on this line. An
/// anchor or a tag may come before the opening quote.
fn quoted_width(text: &str, quote: char) -> usize {
    let (mut inside, mut width) = (false, 1);
    // Does not look beyond the closing quote: a line can be the whole file.
    let mut chars = text
        .chars()
        .take_while(|c| !matches!(c, '\n' | '\r'))
        .enumerate()
        .peekable();
    while let Some((i, c)) = chars.next() {
        if !c.is_whitespace() {
            width = i + 1;
        }
        if inside && c == '\\' && quote == '"' {
            chars.next();
        } else if inside && c == quote {
            // Two single quotes are an escaped one.
            if quote == '"' || chars.next_if(|(_, next)| *next == quote).is_none() {
                return i + 1;
            }
        } else if c == quote {
            inside = true;
        }
    }
    width
}

#[cfg(test)]
mod tests {
    use crate::config::yaml::read;
    use crate::config::yaml::shape::collect_locations;

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
        let expected = "1:1+6 1:1+6 1:9+5 2:1+4 3:3+1 3:3+5 4:3+10 5:3+7 6:3+11 8:3+7 10:3+3 12:1+3 12:6+1 12:7+1 12:10+3 12:15+5 12:15+5 \
                        12:24+3 12:29+1 12:30+1 12:33+2 13:1+7 13:1+7 14:1+4 14:7+1 14:8+1 15:3+3";
        assert_eq!(locations(text), expected);
        assert_eq!(locations(&text.replace('\n', "\r\n")), expected);
        assert_eq!(locations(&format!("\u{feff}{text}")), expected);
    }

    fn locations(text: &str) -> String {
        let mut all = Vec::new();
        collect_locations(&read(text).unwrap().root.unwrap(), &mut all);
        let shown: Vec<String> = all
            .iter()
            .map(|s| format!("{}:{}+{}", s.line, s.column, s.width))
            .collect();
        shown.join(" ")
    }
}
