//! Shows bytes that others send as text, and declares enums with names.
//!
//! Text in UTF-8 is shown as it is. In bytes that are not UTF-8, those that are no part of a
//! character are percent-encoded, and so is each `%`: `a%\xff` is shown as `a%25%FF`. So two
//! different byte strings that are not UTF-8 are never shown alike. Text that has such a form
//! by itself (`a%FF`) stays as it is, because metrics, logs and metadata of text are those of
//! envoyproxy/ratelimit.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_encode_byte;

/// Bytes, most often text.
#[derive(Clone, Copy)]
pub struct Text<'t>(pub &'t [u8]);

impl<'t> Text<'t> {
    /// As text. Allocates only for bytes that are not UTF-8.
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

/// Declares an enum whose variants have names in rules, settings, keys or metrics.
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $type:ident {
        $($(#[$about:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$about])* $variant,)+
        }

        impl $type {
            /// All variants, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name of the variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|variant| variant.name() == name);
                found.ok_or_else(|| format!("write one of {}", [$($name),+].join(", ")))
            }
        }
    };
}
pub(crate) use named_enum;

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
