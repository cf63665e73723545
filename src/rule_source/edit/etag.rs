//! The version of a file's content: an ETag, and the ETags that a request expects (If-Match).

use std::fmt;

use sha2::{Digest as _, Sha256};

/// A strong ETag: equal for equal bytes. Written with its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ETag(String);

/// The value of If-Match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// `*`: any content of a file that exists.
    Any,
    OneOf(Vec<String>),
}

/// Makes the ETag of bytes that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> ETag {
        let hash = self.0.finalize();
        let digits: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        ETag(format!("\"{}\"", digits.concat()))
    }
}

impl ETag {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.add(bytes);
        hasher.finish()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Expected {
    pub(crate) fn read(if_match: &str) -> Self {
        let tags = if_match.split(',').map(str::trim);
        if tags.clone().any(|tag| tag == "*") {
            return Self::Any;
        }
        // Shells remove quotes. A weak ETag keeps its `W/`, and is equal to none of ours.
        let tags = tags.map(|tag| tag.trim_matches('"').to_owned());
        Self::OneOf(tags.collect())
    }

    pub(crate) fn matches(&self, etag: &ETag) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(tags) => tags.iter().any(|tag| tag == etag.0.trim_matches('"')),
        }
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
            let matches = Expected::read(&if_match).matches(&ETag::of(b""));
            assert_eq!(matches, expected, "{if_match}");
        }
    }
}
