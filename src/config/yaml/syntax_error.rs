//! The parser's refusals in words for someone who writes rules and not parsers, at the place where
//! the mistake was probably made.

use std::iter;

use crate::config::yaml::outline::{Outline, closing};
use crate::config::yaml::{DEPTH_MAX, Location, SyntaxError};

/// What the parser says where a bracket is missing, or quotes are.
const BRACKETS: [&str; 5] = [
    "expected ',' or",
    "only valid inside a block",
    "illegal placement of ':'",
    "expected node content",
    "end of plain scalar",
];

/// What the parser says where a line does not go together with those above.
const LINES: [&str; 5] = [
    "mapping values are not allowed",
    "simple key expect",
    "expected key",
    "expected '-'",
    "invalid indentation",
];

/// How the parser's words begin, what we say, and what to write instead.
const WORDINGS: [(&str, &str, &str); 13] = [
    (
        "plain scalar cannot start with '-'",
        "a `-` cannot stand alone in brackets",
        "quote it: '-'",
    ),
    (
        "misplaced bracket",
        "this bracket closes nothing",
        "remove it, or quote the text that it belongs to",
    ),
    (
        "invalid trailing content after double",
        "the text goes on after its closing quote",
        "put the quotes around all of it; within '..' write '' for a quote, within \"..\" write \\\"",
    ),
    (
        "while scanning a quoted scalar",
        "this quote is never closed",
        "add the closing quote",
    ),
    (
        "invalid indentation in quoted scalar",
        "this quote is never closed",
        "add the closing quote",
    ),
    (
        "while parsing a quoted scalar",
        "a backslash in this text starts no known escape",
        "write \\\\ for a backslash, or use single quotes",
    ),
    (
        "block sequence entries are not allowed",
        "no list item can start here",
        "start the list on the next line, or quote a text that starts with `- `",
    ),
    (
        "mapping keys are not allowed",
        "no key can start here",
        "quote a text that starts with `? `",
    ),
    (
        "comment intercepting",
        "a comment stands in the middle of a text of several lines",
        "quote the text",
    ),
    (
        "comments must be separated",
        "a space is missing before `#`",
        "write ` #` before a comment",
    ),
    (
        "while scanning a block scalar, did not",
        "something follows the `|` or `>` on its line",
        "start the text on the next line, or quote it if it starts with `|` or `>`",
    ),
    (
        "wrongly indented line in block scalar",
        "this line of a `|` or `>` text is indented differently",
        "indent all of it alike",
    ),
    (
        "did not find expected <document start>",
        "a `---` is missing between the line with `%` and this one",
        "remove that line",
    ),
];

/// A place in a text, and the lines around it.
struct Near<'t> {
    location: Location,
    line: Line<'t>,
    /// The nearest one above that is not blank.
    above: Option<Line<'t>>,
}

#[derive(Clone, Copy)]
struct Line<'t> {
    /// Counted from 1.
    number: usize,
    text: &'t str,
}

/// What is wrong with a text, given what the parser says and where it noticed.
pub fn explain(text: &str, info: &str, noticed: Location) -> SyntaxError {
    let near = Near::new(text, noticed);
    let mut error = if info.contains("tab") && !info.contains("alphabetic") {
        tab(text, &near)
    } else if BRACKETS.iter().any(|known| info.contains(known)) {
        bracket(text, near.location)
    } else if LINES.iter().any(|known| info.contains(known)) && !info.contains("quoted") {
        misplaced_line(&near, info)
    } else {
        reworded(&near, info)
    };
    if near.line.text.contains("{{") {
        error.hint =
            Some("a placeholder such as {{ .x }} must be filled in before the file is read".into());
    }
    error
}

/// A tab where only spaces may indent.
pub fn indented_with_tab(location: Location) -> SyntaxError {
    SyntaxError::new(location, "this line is indented with a tab").hint("indent with spaces")
}

/// More lists and maps within one another than [`DEPTH_MAX`].
pub fn too_deep(location: Location) -> SyntaxError {
    SyntaxError::new(
        location,
        format!("lists and maps are nested more than {DEPTH_MAX} deep here"),
    )
}

/// For messages: one line, and not a page of it.
pub fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && line.chars().count() <= CHARS_MAX {
        return line.to_owned();
    }
    line.chars().take(CHARS_MAX).chain("..".chars()).collect()
}

impl<'t> Near<'t> {
    /// The parser calls the end of the text the line after it; nobody's editor shows that one, so
    /// we say its last line then.
    fn new(text: &'t str, noticed: Location) -> Self {
        let (mut last, mut above) = (None, None);
        for (number, text) in (1..).zip(text.lines()).take(noticed.line as usize) {
            if !text.trim().is_empty() {
                above = last.replace(Line { number, text });
            }
        }
        let line = last.unwrap_or(Line {
            number: 1,
            text: "",
        });
        let at_end = Location::new(line.number, line.text.trim_end().chars().count().max(1), 1);
        let location = if line.number == noticed.line as usize {
            noticed
        } else {
            at_end
        };
        Near {
            location,
            line,
            above,
        }
    }

    /// The part of the line that is left of the place, and the one that starts there.
    fn split(&self) -> (&'t str, &'t str) {
        let text = self.line.text;
        text.split_at(
            text.char_indices()
                .nth(self.location.column as usize - 1)
                .map_or(text.len(), |(at, _)| at),
        )
    }

    /// The lines where a mistake may be that the parser notices on the line itself or, when it
    /// could still have become something, on the next.
    fn suspects(&self) -> impl Iterator<Item = Line<'t>> {
        iter::once(self.line).chain(self.above)
    }
}

impl Line<'_> {
    /// All of it but the blanks around.
    fn location(&self) -> Location {
        let indent = self.text.chars().take_while(|c| c.is_whitespace()).count();
        Location::new(
            self.number,
            indent + 1,
            self.text.trim().chars().count().max(1),
        )
    }

    /// The location of a piece that ends where the line does.
    fn location_of_end(&self, piece: &str, width: usize) -> Location {
        Location::new(
            self.number,
            self.text.chars().count() - piece.chars().count() + 1,
            width,
        )
    }

    fn has_key(&self) -> bool {
        self.text.contains(": ") || self.text.trim_end().ends_with(':')
    }

    /// `key:value` and `-item`, which YAML takes for texts.
    fn missing_space(&self) -> Option<SyntaxError> {
        let content = self.text.trim_start_matches([' ', '-']);
        if let Some((key, value)) = content.split_once(':')
            && !key.is_empty()
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !value.is_empty()
            && !value.starts_with([' ', '\t', '\r', '/'])
        {
            let hint = format!(
                "write `{}: {}`",
                shortened(key),
                shortened(value.trim_end())
            );
            let text = format!("a space is missing after `{}:`", shortened(key));
            return Some(
                SyntaxError::new(self.location_of_end(content, key.len() + 1), text).hint(hint),
            );
        }
        let dash = self.text.trim_start();
        let item = dash
            .strip_prefix('-')
            .filter(|item| item.starts_with(char::is_alphabetic))?;
        let hint = format!("write `- {}`", shortened(item.trim_end()));
        Some(
            SyntaxError::new(
                self.location_of_end(dash, 1),
                "a space is missing after the `-`",
            )
            .hint(hint),
        )
    }
}

fn tab(text: &str, near: &Near<'_>) -> SyntaxError {
    // Where a text might go on the parser is still at its first line.
    for (number, line) in (1..).zip(text.lines()).skip(near.line.number - 1).take(2) {
        let content = line.trim_start_matches(' ');
        if content.starts_with('\t') {
            return indented_with_tab(Location::new(number, line.len() - content.len() + 1, 1));
        }
    }
    SyntaxError::new(near.location, "a tab stands where only spaces may").hint("write spaces")
}

fn bracket(text: &str, location: Location) -> SyntaxError {
    match Outline::of(text).bracket() {
        Some((open, at)) => SyntaxError::new(at, format!("the `{open}` is never closed"))
            .hint(format!("add the missing `{}`", closing(open))),
        None => SyntaxError::new(
            location,
            "a comma or a closing bracket is missing, or a text needs quotes",
        )
        .hint("separate items with `,`, and quote a text that contains `: `, a comma or a bracket"),
    }
}

fn misplaced_line(near: &Near<'_>, info: &str) -> SyntaxError {
    if let Some(error) = near.suspects().find_map(|line| line.missing_space()) {
        return error;
    }
    if info.contains("simple key")
        && let Some(lone) = near.suspects().find(|line| !line.has_key())
    {
        return SyntaxError::new(
            lone.location(),
            "this line is neither `key: value` nor a list item",
        )
        .hint("put a colon and a space after the key");
    }
    if info.contains("mapping values") && near.split().0.contains(": ") {
        return SyntaxError::new(near.location, "a second `: ` stands on this line")
            .hint("quote the value if the colon belongs to it, or start a new line");
    }
    SyntaxError::new(
        near.line.location(),
        "this line's indentation does not fit the lines above",
    )
    .hint("indent the keys of one map alike, and the dashes of one list alike")
}

fn reworded(near: &Near<'_>, info: &str) -> SyntaxError {
    if info == "recursion limit exceeded" {
        return too_deep(near.location);
    }
    if let Some((_, text, hint)) = WORDINGS.iter().find(|(known, ..)| info.starts_with(known)) {
        return SyntaxError::new(near.location, *text).hint(*hint);
    }
    let word = shortened(
        near.split()
            .1
            .split([' ', '\t', ',', ']', '}'])
            .next()
            .unwrap_or_default(),
    );
    let first = word.chars().next().unwrap_or_default();
    let text = if info.contains("unknown anchor") {
        format!("`{word}` is an alias, and nothing above has that anchor")
    } else if info.starts_with("while scanning an anchor") {
        format!(
            "a value that starts with `{first}` is {}",
            if first == '*' {
                "an alias"
            } else {
                "an anchor"
            }
        )
    } else if info.starts_with("unexpected character") {
        format!("no value may start with `{first}`")
    } else if first == '!' && (info.contains("tag") || info.contains("handle")) {
        "a value that starts with `!` is a tag, and this is none".into()
    } else {
        return SyntaxError::new(near.location, info.strip_prefix("while ").unwrap_or(info));
    };
    let location = Location::new(
        near.location.line as usize,
        near.location.column as usize,
        word.chars().count().max(1),
    );
    SyntaxError::new(location, text).hint(format!("quote it: '{}'", word.replace('\'', "''")))
}

#[cfg(test)]
mod tests {
    use crate::config::yaml::read;

    #[test]
    fn common_mistakes_are_named_where_they_are_made() {
        for (text, line, column, says, hints) in [
            ("a:\n\t- b\n", 2, 1, "indented with a tab", "spaces"),
            ("\ta: b\n", 1, 1, "indented with a tab", "spaces"),
            ("a:\n  \t- b: c\n", 2, 3, "indented with a tab", "spaces"),
            (
                "a:\n  - b: c\n\td: e\n",
                3,
                1,
                "indented with a tab",
                "spaces",
            ),
            (
                "domain:d\nb: c\n",
                1,
                1,
                "a space is missing after `domain:`",
                "`domain: d`",
            ),
            (
                "a:\n  - key: x\n    value:y\n    c: d\n",
                3,
                5,
                "a space is missing after `value:`",
                "`value: y`",
            ),
            (
                "a:\n  - b: c\n  -d: e\n",
                3,
                3,
                "a space is missing after the `-`",
                "`- d: e`",
            ),
            (
                "a: b\nlone\nc: d\n",
                2,
                1,
                "neither `key: value` nor",
                "colon",
            ),
            ("a: [\n  b\n", 1, 4, "the `[` is never closed", "`]`"),
            (
                "a:\n- {b: c, d: {e: f}\n- {g: h}\n",
                2,
                3,
                "the `{` is never closed",
                "`}`",
            ),
            ("a: [b}\n", 1, 4, "the `[` is never closed", "`]`"),
            (
                "a: {b: c d: e}\n",
                1,
                11,
                "a comma or a closing bracket is missing",
                "quote",
            ),
            ("a: b\n}\n", 2, 1, "closes nothing", "remove"),
            (
                "a: *.example\n",
                1,
                4,
                "is an alias",
                "quote it: '*.example'",
            ),
            ("a: * b\n", 1, 4, "is an alias", "quote it: '*'"),
            ("a: @b\n", 1, 4, "no value may start with `@`", "'@b'"),
            ("a: `b`\n", 1, 4, "no value may start with ```", "'`b`'"),
            ("a: %b\n", 1, 4, "no value may start with `%`", "'%b'"),
            ("a: !b!c d\n", 1, 4, "is a tag", "'!b!c'"),
            ("a: \"b\nc: d\n", 1, 4, "never closed", "closing quote"),
            ("a: 'b\n  c: d\n", 1, 4, "never closed", "closing quote"),
            ("a: 'it's'\n", 1, 8, "goes on after its closing quote", "''"),
            ("a: \"\\d+\"\n", 1, 4, "backslash", "single quotes"),
            ("a: b: c\n", 1, 5, "a second `: `", "quote"),
            ("a: b\n  c: d\n", 2, 3, "indentation", "alike"),
            ("a:\n  - b: c\n - d: e\n", 3, 2, "indentation", "alike"),
            ("a: - b\n", 1, 4, "no list item", "next line"),
            ("a: {b: -}\n", 1, 8, "alone in brackets", "'-'"),
            (
                "a: {{ .Values.x }}\n",
                1,
                5,
                "where a key must be",
                "placeholder",
            ),
            ("{{ if .x }}\na: b\n{{ end }}\n", 1, 2, "", "placeholder"),
            ("[a]: b\n", 1, 1, "where a key must be", "quote"),
            ("a: \u{7}\n", 1, 4, "U+0007", "\\xNN"),
            ("a: \0\n", 1, 4, "U+0000", "\\xNN"),
        ] {
            let error = read(text).map(|d| d.root).expect_err(text);
            assert_eq!(
                (error.location.line, error.location.column),
                (line, column),
                "{text:?}: {error}"
            );
            assert!(error.text.contains(says), "{text:?}: {error}");
            assert!(
                error.hint.as_ref().is_some_and(|hint| hint.contains(hints)),
                "{text:?}: {:?}",
                error.hint
            );
        }
    }
}
