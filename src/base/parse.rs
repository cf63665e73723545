//! Value parsers of settings: booleans, durations, ports, sizes and secrets.
//!
//! Values are written as for envoyproxy/ratelimit, a Go program, because existing deployments set
//! them. No parser accepts an empty text: `environment::without_empty_variables` makes a variable
//! that is set to nothing an unset one before clap sees it, so a field is `T` with a
//! `default_value`, or `Option<T>` where "not set" has a meaning of its own.

use std::fmt;
use std::path::Path;

use crate::base::regular_file;
use crate::base::time::Span;

/// A secret; redacted in `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The value parser: accepts any text, since an error would quote it.
    ///
    /// # Errors
    /// None.
    pub fn read(text: &str) -> Result<Self, String> {
        Ok(Self::new(text))
    }

    /// Reads a file with the secret in one line.
    ///
    /// # Errors
    /// Why it cannot be used, which never quotes the content. It follows the path of the file.
    pub fn read_file(path: &Path, expected: &str) -> Result<Self, String> {
        let bytes = regular_file::read(path).map_err(|error| format!(": {error}"))?;
        let rejected = |what| format!(" {what}; expected {expected} in one line");
        let text = String::from_utf8(bytes).map_err(|_| rejected("is not UTF-8"))?;
        // The line break at the end is not part of the secret.
        let line = match text.strip_suffix('\n') {
            Some(line) => line.strip_suffix('\r').unwrap_or(line),
            None => &text,
        };
        if line.is_empty() {
            return Err(rejected("is empty"));
        }
        if line.contains(['\n', '\r']) {
            return Err(rejected("has more than one line"));
        }
        Ok(Self::new(line))
    }

    /// The text itself, which must not be logged.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("<hidden>")
    }
}

/// Reads a boolean as Go's `strconv.ParseBool` does.
///
/// # Errors
/// Any other text.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// A number and a unit, such as `10s`, `1h30m` or `150us`; only zero needs no unit.
///
/// # Errors
/// A number without a unit, a negative number, or no number.
pub fn duration(text: &str) -> Result<Span, String> {
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a number and a unit, such as 10s, 150ms or 1h"))?;
    Ok(parsed.into())
}

/// A port to bind; with 0 the kernel chooses one.
///
/// # Errors
/// No number from 0 to 65535.
pub fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|error| format!("{error}; write a port from 0 to 65535"))
}

/// A whole number of bytes.
///
/// # Errors
/// No such number.
pub fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error| format!("{error}; write a whole number of bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_for_go() {
        assert_eq!(boolean("T"), Ok(true));
        assert!(boolean("").is_err() && boolean("yes").is_err());
        assert_eq!(duration("1h30m"), Ok(Span::from_secs(5_400)));
        assert_eq!(duration("0"), Ok(Span::ZERO));
        assert!(duration("10").is_err() && duration("").is_err() && duration("-1s").is_err());
        assert_eq!(bytes("16"), Ok(16));
        assert!(bytes("").is_err() && bytes("0x10").is_err());
        assert_eq!(port("0"), Ok(0));
        assert!(port("70000").is_err() && port("-1").is_err() && port("").is_err());
    }

    #[test]
    fn secrets_are_redacted() {
        let secret = Secret::new("s3cret");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "<hidden> Some(<hidden>)");
        assert_eq!(secret.reveal(), "s3cret");
    }
}
