//! How the text of a setting is read. By Go's rules, since existing deployments write them for a Go
//! program.

use std::fmt;

use crate::time::Span;

/// What a setting was set to. Set to nothing, as templates do that have no value to fill in, is not
/// set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given<T>(pub Option<T>);

/// A text that is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A text that is to be shown to nobody.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Takes any text.
    ///
    /// # Errors
    /// None: an error would quote it.
    pub fn read(text: &str) -> Result<Self, String> {
        Ok(Self::new(text))
    }

    /// The text itself. Whoever asks must not show it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("<hidden>")
    }
}

/// A reader of a setting that may be set to nothing.
pub fn given<T>(
    read: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<Given<T>, String> + Copy {
    move |text| {
        if text.is_empty() {
            Ok(Given(None))
        } else {
            read(text).map(Some).map(Given)
        }
    }
}

/// Any text.
///
/// # Errors
/// None.
pub fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

/// The words that Go's ParseBool knows.
///
/// # Errors
/// Any other text, also none.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// A duration with its unit, such as `10s`, `1h30m` or `150us`; only zero needs none.
///
/// # Errors
/// A number without a unit, or no number.
pub fn duration(text: &str) -> Result<Span, String> {
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a number and a unit, such as 10s, 150ms or 1h"))?;
    Ok(parsed.into())
}

/// A port, also in hexadecimal as Go reads it; 0 leaves the choice to the kernel.
///
/// # Errors
/// Anything else.
pub fn port(text: &str) -> Result<u16, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}; write a port from 0 to 65535"))
}

/// A whole number of bytes, also in hexadecimal as Go reads it.
///
/// # Errors
/// Anything else.
pub fn bytes(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}; write a whole number of bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_by_the_rules_of_go() {
        assert_eq!(boolean("T"), Ok(true));
        assert!(boolean("").is_err() && boolean("yes").is_err());
        assert_eq!(duration("1h30m"), Ok(Span::from_secs(5_400)));
        assert_eq!(duration("0"), Ok(Span::ZERO));
        assert!(duration("10").is_err() && duration("").is_err() && duration("-1s").is_err());
        assert_eq!(bytes("0x10"), Ok(16));
        assert!(bytes("").is_err());
        assert_eq!((port("0x1F90"), port("0")), (Ok(8_080), Ok(0)));
        assert!(port("70000").is_err() && port("-1").is_err() && port("").is_err());
    }

    #[test]
    fn a_setting_that_is_set_to_nothing_is_not_set() {
        assert_eq!(given(boolean)(""), Ok(Given(None)));
        assert_eq!(given(boolean)("1"), Ok(Given(Some(true))));
        assert!(given(boolean)(" ").is_err());
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::read("s3cret").expect("any text will do");
        assert_eq!(
            format!("{secret:?} {:?}", Given(Some(secret.clone()))),
            "<hidden> Given(Some(<hidden>))"
        );
        assert_eq!(secret.reveal(), "s3cret");
    }
}
