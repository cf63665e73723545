//! Reports the parser's syntax errors: its own message, the location, and one hint for all.

use saphyr_parser::ScanError;

use crate::config::yaml::node::{Location, SyntaxError};

/// Covers the mistakes that are made most, and the two constructs that only yaml.v2 accepts.
const HINT: &str = "indent with spaces, also inside brackets and quotes; write `: ` after a key, and \
                    quote a text that contains it or starts with a special character";

pub(super) fn of_parser(text: &str, error: &ScanError) -> SyntaxError {
    let marker = error.marker();
    SyntaxError::new(
        inside(text, marker.line(), marker.col() + 1),
        error.info().strip_prefix("while ").unwrap_or(error.info()),
    )
    .hint(HINT)
}

pub(super) fn indented_with_tab(location: Location) -> SyntaxError {
    SyntaxError::new(location, "this line is indented with a tab").hint("indent with spaces")
}

/// The parser reports the end of the text on the line after it; editors do not show that line, so
/// the end of the last line with text is reported.
fn inside(text: &str, line: usize, column: usize) -> Location {
    let end = text.trim_end();
    let lines = end.matches('\n').count() + 1;
    if line <= lines {
        return Location::new(line, column, 1);
    }
    let last = end.rsplit('\n').next().unwrap_or_default();
    Location::new(lines, last.chars().count().max(1), 1)
}

#[cfg(test)]
mod tests {
    use crate::config::yaml::read;

    #[test]
    fn syntax_errors_have_a_location_and_a_hint() {
        let locations = [
            "a:\n\t- b\n",
            "domain:d\nb: c\n",
            "a: b\nlone\nc: d\n",
            "a: [\n  b\n\n",
            "a: {b: c d: e}\n",
            "a: \"b\nc: d\n",
            "a: 'it's'\n",
            "a: b\n  c: d\n",
            "a: {{ .Values.x }}\n",
            "a: \u{7}\n",
            // Only yaml.v2 accepts these two.
            "a: [\n{b: c},\n]\n",
            "a:\tb\n",
        ]
        .map(|text| {
            let error = read(text).map(|document| document.root).expect_err(text);
            assert!(error.hint.is_some(), "{text:?}");
            format!("{}:{}", error.location.line, error.location.column)
        });
        let expected = "2:2 2:2 3:1 2:3 1:11 1:4 1:8 2:4 1:5 1:4 2:1 1:4";
        assert_eq!(locations.join(" "), expected);
    }
}
