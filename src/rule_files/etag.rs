//! The version of a file's content: an ETag.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// A strong ETag: equal for equal bytes. Written with its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ETag(String);

impl ETag {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let hash = Sha256::digest(bytes);
        let digits: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("\"{}\"", digits.concat()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_is_the_quoted_sha256() {
        let empty = "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"";
        assert_eq!(ETag::of(b"").as_str(), empty);
        assert_ne!(ETag::of(b"a"), ETag::of(b"b"));
    }
}
