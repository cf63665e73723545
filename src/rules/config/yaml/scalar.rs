//! Values of scalars: YAML 1.1 as yaml.v2's `resolve.go` reads it, its faults included.
//!
//! A YAML 1.2 reading would change rules (`010` is 8, `1_000` a thousand, `yes` true).

use std::rc::Rc;

use saphyr_parser::{ScalarStyle, Tag};

use crate::rules::config::yaml::node::{Diagnostic, Location, Scalar, Value, shortened};

impl Scalar {
    /// A scalar by its tag, as in yaml.v2: `!!int "7"` is a number, and unknown tags make text.
    ///
    /// # Errors
    /// Text and tag do not agree, as in `!!int x`.
    pub(super) fn new(
        text: Rc<str>,
        style: ScalarStyle,
        tag: Option<&Tag>,
        location: Location,
    ) -> Result<Self, Diagnostic> {
        let Some(tag) = tag else {
            let literal = style != ScalarStyle::Plain;
            return Ok(Self { text, literal });
        };
        let full = format!("{}{}", tag.handle, tag.suffix);
        let name = full.strip_prefix("tag:yaml.org,2002:").unwrap_or_default();
        let value = resolve(&text);
        let fits = match name {
            "int" => matches!(value, Value::Int(_) | Value::BigInt(_)),
            "float" => matches!(value, Value::Float(_) | Value::Int(_)),
            "bool" => matches!(value, Value::Bool(_)),
            "null" => value == Value::Null,
            // yq writes it before every `<<`.
            "merge" => &*text == "<<",
            "binary" => {
                return Err(Diagnostic::new(location, "!!binary is not supported")
                    .hint("write the text itself"));
            }
            _ => return Ok(Self::quoted(text)),
        };
        if fits {
            return Ok(Self::plain(text));
        }
        let no = format!("`{}` is no !!{name}", shortened(&text));
        Err(Diagnostic::new(location, no).hint("leave the tag out, or write !!str for a text"))
    }

    /// The value. Only plain scalars and tagged ones (`!!int "7"`) can be anything but text.
    pub(crate) fn value(&self) -> Value {
        if self.literal { Value::Text } else { resolve(&self.text) }
    }

    /// Whether this is a merge key; in quotes `<<` is a key like others.
    pub(super) fn is_merge(&self) -> bool {
        !self.literal && &*self.text == "<<"
    }
}

fn resolve(text: &str) -> Value {
    named(text).or_else(|| number(text)).unwrap_or(Value::Text)
}

fn named(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        _ => return None,
    })
}

fn number(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        // Underscores make it text. yaml.v2 accepts `.5_0`.
        b'.' => float(text),
        b'0'..=b'9' | b'+' | b'-' => {
            let text = text.replace('_', "");
            integer(&text).or_else(|| float(&text))
        }
        _ => None,
    }
}

/// Go's `ParseInt(text, 0, 64)`, then `ParseUint`, which takes no sign: hence
/// `+9223372036854775808` is left to [`float`].
fn integer(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match unsigned.get(..2) {
        Some("0x" | "0X") => (16, &unsigned[2..]),
        Some("0o" | "0O") => (8, &unsigned[2..]),
        Some("0b" | "0B") => (2, &unsigned[2..]),
        _ if unsigned.starts_with('0') => (8, unsigned),
        _ => (10, unsigned),
    };
    // Rust accepts a plus here, after the sign.
    let magnitude = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))?;
    if text.starts_with('-') {
        return 0_i64.checked_sub_unsigned(magnitude).map(Value::Int);
    }
    match i64::try_from(magnitude) {
        Ok(n) => Some(Value::Int(n)),
        Err(_) => (unsigned.len() == text.len()).then_some(Value::BigInt(magnitude)),
    }
}

/// Rust's grammar is yaml.v2's pattern except for `inf` and `nan`. What is too large is text,
/// because Go's parser fails.
fn float(text: &str) -> Option<Value> {
    text.parse().ok().filter(|f: &f64| f.is_finite()).map(Value::Float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::config::yaml::tests::scalar_cases::{
        BIG_INTS, FALSE, FLOATS, INTS, NULLS, TEXTS, TRUE,
    };
    use crate::rules::config::yaml::tests::shape::value_at;
    use crate::rules::config::yaml::{Kind, read};

    #[test]
    fn plain_scalars_have_the_values_of_yaml_v2() {
        for text in NULLS.split(' ') {
            assert_eq!(value_of(text), Value::Null, "{text}");
        }
        for (texts, expected) in [(TRUE, true), (FALSE, false)] {
            for text in texts.split(' ') {
                assert_eq!(value_of(text), Value::Bool(expected), "{text}");
            }
        }
        for (text, expected) in INTS {
            assert_eq!(value_of(text), Value::Int(*expected), "{text}");
        }
        for (text, expected) in BIG_INTS {
            assert_eq!(value_of(text), Value::BigInt(*expected), "{text}");
        }
        for (text, expected) in FLOATS {
            let Value::Float(float) = value_of(text) else {
                panic!("{text} is {:?}", value_of(text))
            };
            assert!(
                float.to_bits() == expected.to_bits() || (float.is_nan() && expected.is_nan()),
                "{text} is {float}"
            );
        }
        for text in TEXTS.split(' ') {
            assert_eq!(value_of(text), Value::Text, "{text}");
            assert_eq!(&*scalar_of(text).text, text);
        }
        assert_eq!(value_of(""), Value::Null);
    }

    #[test]
    fn quoted_scalars_and_blocks_are_text_and_tags_override() {
        for (written, value, text) in [
            ("'yes'", Value::Text, "yes"),
            ("\"7\"", Value::Text, "7"),
            ("'~'", Value::Text, "~"),
            ("''", Value::Text, ""),
            ("'it''s'", Value::Text, "it's"),
            ("\"tab\\there \\u00e9\"", Value::Text, "tab\there é"),
            ("|\n  1\n  2", Value::Text, "1\n2\n"),
            (">-\n  two\n  words", Value::Text, "two words"),
            ("two\n  words", Value::Text, "two words"),
            ("!!str 5", Value::Text, "5"),
            ("!!str ~", Value::Text, "~"),
            ("!!str", Value::Text, ""),
            ("! yes", Value::Text, "yes"),
            ("!own yes", Value::Text, "yes"),
            ("!!timestamp 2026-01-01", Value::Text, "2026-01-01"),
            ("!!int \"7\"", Value::Int(7), "7"),
            ("!<tag:yaml.org,2002:int> 0x10", Value::Int(16), "0x10"),
            ("!!bool 'on'", Value::Bool(true), "on"),
            ("!!float 1.5", Value::Float(1.5), "1.5"),
            ("!!float 1", Value::Int(1), "1"),
            ("!!null ''", Value::Null, ""),
            ("!!null", Value::Null, ""),
        ] {
            assert_eq!((value_of(written), &*scalar_of(written).text), (value, text), "{written}");
        }
        for invalid in [
            "!!int x",
            "!!int 1.5",
            "!!int",
            "!!float yes",
            "!!float 18446744073709551615",
            "!!bool 1",
            "!!null x",
            "!!binary aGk=",
        ] {
            assert!(read(&format!("v: {invalid}\n")).is_err(), "{invalid}");
        }
    }

    fn scalar_of(written: &str) -> Scalar {
        let root = read(&format!("v: {written}\n")).expect(written).root.unwrap();
        let Kind::Scalar(scalar) = &value_at(&root, 0).kind else {
            panic!("{written} is no scalar")
        };
        scalar.clone()
    }

    fn value_of(written: &str) -> Value {
        scalar_of(written).value()
    }
}
