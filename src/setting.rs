//! How the text of a setting is read. By Go's rules, since existing deployments write them for a Go program.

use crate::time::Span;

/// The words that Go's ParseBool knows.
///
/// # Errors
/// Any other text, also none.
pub fn flag(text: &str) -> Result<bool, String> {
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
pub fn span(text: &str) -> Result<Span, String> {
    let parsed =
        humantime::parse_duration(text).map_err(|error| format!("{error}; write a number and a unit, such as 10s, 150ms or 1h"))?;
    Ok(parsed.into())
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
        assert_eq!(flag("T"), Ok(true));
        assert!(flag("").is_err() && flag("yes").is_err());
        assert_eq!(span("1h30m"), Ok(Span::from_secs(5_400)));
        assert_eq!(span("0"), Ok(Span::ZERO));
        assert!(span("10").is_err() && span("").is_err() && span("-1s").is_err());
        assert_eq!(bytes("0x10"), Ok(16));
        assert!(bytes("").is_err());
    }
}
