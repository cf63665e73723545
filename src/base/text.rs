//! Shows bytes that others send as text.
//!
//! Text in UTF-8 is shown as it is. In bytes that are not UTF-8, those that are no part of a
//! character are percent-encoded, and so is each `%`: `a%\xff` is shown as `a%25%FF`. So two
//! different byte strings that are not UTF-8 are never shown alike. Text that has such a form
//! by itself (`a%FF`) stays as it is, because metrics, logs and metadata of text are those of
//! envoyproxy/ratelimit.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use percent_encoding::percent_encode_byte;

/// Names that are compared with one to find the nearest.
const COMPARED_NAMES_MAX: usize = 1_000;
/// Bytes of a name that are compared.
const COMPARED_BYTES_MAX: usize = 64;

/// Bytes, most often text.
#[derive(Clone, Copy)]
pub struct Text<'t>(pub &'t [u8]);

impl<'t> Text<'t> {
    /// The bytes as text. Allocates only for bytes that are not UTF-8.
    pub fn shown(self) -> Cow<'t, str> {
        str::from_utf8(self.0).map_or_else(|_| self.to_string().into(), Cow::Borrowed)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Ok(text) = str::from_utf8(self.0) {
            return formatter.write_str(text);
        }
        for chunk in self.0.utf8_chunks() {
            for (index, part) in chunk.valid().split('%').enumerate() {
                if index > 0 {
                    formatter.write_str("%25")?;
                }
                formatter.write_str(part)?;
            }
            for &byte in chunk.invalid() {
                formatter.write_str(percent_encode_byte(byte))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.shown(), formatter)
    }
}

/// Control characters as escapes, such as `\u{1b}`: what a client sends stays in its line, and does
/// nothing to the terminal that prints it.
pub(crate) struct Escaped<D>(pub(crate) D);

impl<D: fmt::Display> fmt::Display for Escaped<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_string().chars().try_for_each(|letter| match letter {
            letter if letter.is_control() => write!(formatter, "{}", letter.escape_unicode()),
            letter => formatter.write_char(letter),
        })
    }
}

/// The longest start of a text that is not longer than this.
pub(crate) fn prefix(text: &str, bytes_max: usize) -> &str {
    let mut ends = (0..=bytes_max.min(text.len())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// At most this many bytes of a text, with three dots for the rest.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    match prefix(text, bytes_max) {
        kept if kept.len() < text.len() => format!("{kept}...").into(),
        whole => whole.into(),
    }
}

/// The nearest of these names.
pub(crate) fn nearest<'r>(name: &str, known: impl Iterator<Item = &'r str>) -> Option<&'r str> {
    let compared = |name: &'r str| prefix(name, COMPARED_BYTES_MAX);
    let name = prefix(name, COMPARED_BYTES_MAX);
    let known = known.take(COMPARED_NAMES_MAX);
    known.min_by_key(|known| strsim::osa_distance(compared(known), name))
}

/// The most similar word, if any is similar enough.
pub(crate) fn did_you_mean<'w>(
    word: &str,
    words: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    let score = |candidate: &str| strsim::jaro_winkler(&word.to_lowercase(), candidate);
    let scored = words.into_iter().map(|candidate| (score(candidate), candidate));
    scored
        .filter(|(score, _)| *score > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// A number and a noun: `1 problem`, `2 problems`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    #[test]
    fn text_is_shown_as_it_is_and_bytes_that_are_none_percent_encoded() {
        for (bytes, shown) in [
            (&b""[..], ""),
            (b"100%", "100%"),
            (b"a%FF", "a%FF"),
            ("ü\n\u{1F600}".as_bytes(), "ü\n\u{1F600}"),
            (b"a\xff", "a%FF"),
            (b"\xff\xfe", "%FF%FE"),
            (b"100%\xff", "100%25%FF"),
            // A character that is cut off, a surrogate and a NUL in two bytes.
            (b"\xc3\xbcx\xc3", "üx%C3"),
            (b"\xed\xa0\x80", "%ED%A0%80"),
            (b"\xc0\x80", "%C0%80"),
        ] {
            assert_eq!(Text(bytes).shown(), shown);
            assert_eq!(Text(bytes).to_string(), shown);
            assert_eq!(format!("{:?}", Text(bytes)), format!("{shown:?}"));
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        for (text, escaped) in [
            ("", ""),
            ("a b", "a b"),
            ("\u{1b}[2J\r\n", "\\u{1b}[2J\\u{d}\\u{a}"),
            ("ü\u{9b}ü\u{7f}", "ü\\u{9b}ü\\u{7f}"),
        ] {
            assert_eq!(Escaped(text).to_string(), escaped);
        }
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_text_can_be_read_back(bytes: Vec<u8>) {
            let shown = Text(&bytes).shown().into_owned();
            match str::from_utf8(&bytes) {
                Ok(text) => prop_assert_eq!(shown, text),
                Err(_) => prop_assert_eq!(percent_decode_str(&shown).collect::<Vec<u8>>(), bytes),
            }
        }
    }
}
