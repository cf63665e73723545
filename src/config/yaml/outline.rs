//! Which brackets, quotes and block scalars of a text are open, line by line, without parsing it.
//!
//! For texts that the parser has refused. It is rough: where the text is broken, so is its outline.

use crate::config::yaml::Location;

/// What is open at the end of the lines read so far.
#[derive(Default)]
pub struct Outline {
    lines: usize,
    /// Brackets, outermost first.
    brackets: Vec<(char, Location)>,
    /// A quote, and how many characters stand before it.
    quote: Option<(char, usize)>,
    /// A block scalar, and how far the key or dash that it belongs to is indented. Its own lines
    /// are indented more.
    block: Option<usize>,
    /// A bracket was closed by one of the other kind. Nothing is certain from there on, so nothing
    /// is read.
    crossed: bool,
}

impl Outline {
    /// The outline of a whole text.
    pub fn of(text: &str) -> Self {
        let mut outline = Self::default();
        for line in text.lines() {
            outline.read(line);
        }
        outline
    }

    /// The innermost open bracket.
    pub fn bracket(&self) -> Option<(char, Location)> {
        self.brackets.last().copied()
    }

    /// How many characters stand before the bracket or the quote in which the next line begins.
    pub fn inside(&self) -> Option<usize> {
        let bracket = self
            .brackets
            .first()
            .map(|(_, location)| location.column as usize - 1);
        bracket.or(self.quote.map(|(_, column)| column))
    }

    /// Reads the next line. Returns how many characters stand before each tab that follows a colon.
    pub fn read(&mut self, line: &str) -> Vec<usize> {
        self.lines += 1;
        let content = line.trim_start_matches(' ');
        let indent = line.len() - content.len();
        self.block = self
            .block
            .filter(|parent| indent > *parent || content.trim_end().is_empty());
        if self.crossed || self.block.is_some() {
            Vec::new()
        } else {
            self.read_tokens(line)
        }
    }

    fn read_tokens(&mut self, line: &str) -> Vec<usize> {
        let mut tabs = Vec::new();
        // Whether a quote, a bracket or a block scalar may start here, and where the last key or
        // dash did.
        let (mut fresh, mut start) = (true, 0);
        let mut before = ' ';
        let mut chars = line.chars().enumerate().peekable();
        while let Some((column, c)) = chars.next() {
            let blank_next = chars.peek().is_none_or(|(_, next)| next.is_whitespace());
            let in_flow = !self.brackets.is_empty();
            match (self.quote, c) {
                (Some(('"', _)), '\\') => {
                    chars.next();
                }
                // The second of two single quotes, which are one, opens again.
                (Some((quote, _)), c) if c == quote => (self.quote, fresh) = (None, true),
                (None, '#') if before.is_whitespace() => break,
                (None, '"' | '\'') if fresh => (self.quote, start) = (Some((c, column)), column),
                (None, '[' | '{') if fresh || in_flow => {
                    self.brackets
                        .push((c, Location::new(self.lines, column + 1, 1)));
                    fresh = true;
                }
                (None, ']' | '}') if in_flow => {
                    self.crossed = self
                        .brackets
                        .pop_if(|(open, _)| closing(*open) == c)
                        .is_none();
                    if self.crossed {
                        break;
                    }
                    fresh = false;
                }
                (None, ',') if in_flow => fresh = true,
                // In JSON no blank need follow, but a quote comes before.
                (None, ':') if fresh || blank_next => {
                    fresh = true;
                    tabs.extend(
                        chars
                            .next_if(|(_, next)| *next == '\t')
                            .map(|(column, _)| column),
                    );
                }
                (None, '-' | '?') if fresh && blank_next => start = column,
                (None, '|' | '>') if fresh && !in_flow => {
                    self.block = Some(start);
                    break;
                }
                (None, '&' | '!') if fresh => {
                    while chars.next_if(|(_, c)| !c.is_whitespace()).is_some() {}
                }
                (None, _) if fresh && !c.is_whitespace() => (fresh, start) = (false, column),
                _ => {}
            }
            before = c;
        }
        tabs
    }
}

/// What closes a bracket.
pub fn closing(open: char) -> char {
    if open == '[' { ']' } else { '}' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_quotes_and_blocks_are_told_from_what_looks_like_them() {
        for (text, open) in [
            ("a: [b, {c: d}]", None),
            ("a: b [c {d", None),
            ("a: b # [", None),
            ("a: b#[", None),
            ("a: '[ it''s [' # '", None),
            ("a: \"[ \\\" [\"", None),
            ("{\"a\":\"[\",\"b\":[1]}", None),
            ("- !t &a '['", None),
            ("- a: |\n    [\n\n    '\n  b: >-\n   {\nc: d", None),
            ("- a: |\n    [\n  b: [", Some(('[', Location::new(3, 6, 1)))),
            (
                "a: don't [\nb: {c: [d}, e: ]\nf: {",
                Some(('[', Location::new(2, 8, 1))),
            ),
        ] {
            let outline = Outline::of(text);
            assert_eq!(outline.bracket(), open, "{text}");
            assert_eq!(outline.quote, None, "{text}");
        }
        assert_eq!(Outline::of("a:\n  - 'b\n [").inside(), Some(4));
    }
}
