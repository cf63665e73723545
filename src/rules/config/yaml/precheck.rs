//! Rejects a text before parsing: too long, or characters that YAML forbids.

use crate::rules::config::yaml::node::{Diagnostic, FILE_BYTES_MAX, Location, NOT_UTF8};

/// # Errors
/// Too long, or a character that yaml.v2 rejects: the parser takes a NUL for the
/// end of the file, and a byte order mark where two files were joined for a part of a key.
pub(super) fn check(text: &str) -> Result<(), Diagnostic> {
    if text.len() > FILE_BYTES_MAX {
        let text = format!(
            "the file is {} bytes long, more than the {FILE_BYTES_MAX} allowed",
            text.len()
        );
        return Err(Diagnostic::new(Location::new(1, 1, 1), text));
    }
    let Some((at, c)) = text.char_indices().find(|(at, c)| is_forbidden(*at, *c)) else {
        return Ok(());
    };
    let line = text[..at].rsplit('\n').next().unwrap_or_default();
    let location = Location::new(text[..at].matches('\n').count() + 1, line.chars().count() + 1, 1);
    if c == NOT_UTF8 {
        return Err(Diagnostic::new(location, "this is not UTF-8 text")
            .hint("rules are YAML; save the file as UTF-8"));
    }
    let text = format!("the character U+{:04X} is not allowed in YAML", u32::from(c));
    Err(Diagnostic::new(location, text)
        .hint("in double quotes it can be written as \\xNN or \\uNNNN"))
}

fn is_forbidden(at: usize, c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\u{FEFF}' => at > 0,
        '\u{FFFE}' | NOT_UTF8 => true,
        _ => c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::config::yaml::read;

    #[test]
    fn size_is_bounded() {
        assert!(read(&"#".repeat(FILE_BYTES_MAX + 1)).unwrap_err().text.contains("bytes long"));
    }

    #[test]
    fn forbidden_characters_are_errors_with_their_location() {
        for (text, line, column) in [
            ("a: b\né: \u{7}\n", 2, 4),
            ("a: \0\n", 1, 4),
            ("a: b\n\u{FEFF}c: d\n", 2, 1),
            ("a: b\nc: \u{FFFF}\n", 2, 4),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(
                (error.location.line, error.location.column),
                (line, column),
                "{text:?}: {error}"
            );
        }
        assert!(read("\u{FEFF}a: \"\u{85}\"\r\n").is_ok());
    }
}
