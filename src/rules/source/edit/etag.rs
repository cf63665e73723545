//! The version of a file's content: an ETag, which a request expects with If-Match.

use std::fmt;

use ring::digest::{SHA256, digest};

/// A strong ETag: equal for equal bytes. Written with its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ETag(String);

impl ETag {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let hash = digest(&SHA256, bytes);
        let digits: Vec<String> = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("\"{}\"", digits.concat()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the value of If-Match has it: `*`, or a list.
    pub(crate) fn is_in(&self, if_match: &str) -> bool {
        // Shells remove quotes. A weak ETag keeps its `W/`, and is equal to none of ours.
        let hash = self.0.trim_matches('"');
        let mut tags = if_match.split(',').map(str::trim);
        tags.any(|tag| tag == "*" || tag.trim_matches('"') == hash)
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn etag_is_the_quoted_sha256() {
        assert_eq!(ETag::of(b"").as_str(), format!("\"{EMPTY}\""));
        assert_ne!(ETag::of(b"a"), ETag::of(b"b"));
    }

    #[test]
    fn if_match_is_any_or_one_of_a_list() {
        for (if_match, expected) in [
            (format!("\"{EMPTY}\""), true),
            (EMPTY.to_owned(), true),
            (format!("\"other\", \"{EMPTY}\""), true),
            ("*".to_owned(), true),
            (format!("W/\"{EMPTY}\""), false),
            ("\"other\"".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(ETag::of(b"").is_in(&if_match), expected, "{if_match}");
        }
    }
}
