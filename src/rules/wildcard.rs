//! Patterns with `*`, split once when the rules are compiled. A match allocates nothing.

use memchr::memmem;

/// A text in which each star matches any bytes, also none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    first: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    last: Box<[u8]>,
    fixed_len: usize,
}

impl Pattern {
    /// Splits a text at its stars; `None` if it has none.
    pub fn new(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('*')?;
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle: Box<[Box<[u8]>]> = middle
            .split('*')
            .filter(|part| !part.is_empty())
            .map(|part| part.as_bytes().into())
            .collect();
        let fixed_len =
            first.len() + last.len() + middle.iter().map(|part| part.len()).sum::<usize>();
        Some(Self {
            first: first.as_bytes().into(),
            middle,
            last: last.as_bytes().into(),
            fixed_len,
        })
    }

    /// Whether the text begins with the first part, ends with the last, and has the others between
    /// them in order, each taken as far left as it goes. Parts never overlap.
    pub fn matches(&self, text: &[u8]) -> bool {
        if text.len() < self.fixed_len {
            return false;
        }
        let Some(rest) = text.strip_prefix(&*self.first) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(&*self.last) else {
            return false;
        };
        for part in &self.middle {
            match memmem::find(rest, part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, text: impl AsRef<[u8]>) -> bool {
        Pattern::new(pattern).expect("it has a star").matches(text.as_ref())
    }

    #[test]
    fn stars_match_any_bytes() {
        for (pattern, text, expected) in [
            ("foo*", "foo", true),
            ("foo*", "foobar", true),
            ("foo*", "fo", false),
            ("*foo", "barfoo", true),
            ("*foo", "foobar", false),
            ("bar*b", "barb", true),
            ("bar*b", "barxxb", true),
            ("bar*b", "bar", false),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("foo*bar*baz", "foo-bar-baz", true),
            ("foo*bar*baz", "foo-baz-bar", false),
            ("a*b*b", "ab", false),
            ("a*b*b", "abb", true),
            ("x**y", "xy", true),
            ("*", "", true),
            ("**", "anything", true),
            ("é*", "éa", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
        }
        assert_eq!(Pattern::new("plain"), None);
    }

    /// The definition, by trying every split.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|from| naive(rest, &text[from..])),
            Some((byte, rest)) => {
                text.split_first().is_some_and(|(first, text)| first == byte && naive(rest, text))
            }
        }
    }

    /// Whole characters, and parts of them.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let parts =
            prop::sample::select(vec![&b"a"[..], "é".as_bytes(), b"\xc3", b"\xa9", b"\xff"]);
        prop::collection::vec(parts, 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_definition(pattern in "[ab]{0,2}\\*[ab*]{0,5}", text in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &text), naive(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn it_agrees_with_the_definition_on_bytes(pattern in "[aé]{0,2}\\*[aé*]{0,5}", text in bytes()) {
            prop_assert_eq!(matches(&pattern, &text), naive(pattern.as_bytes(), &text));
        }
    }
}
