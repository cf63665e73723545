//! The values of options: how each type is read from a node and shown.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use crate::base::named_enum::named_enum;
use crate::base::parse;
use crate::base::time::Span;
use crate::limits::{
    AMOUNT_MAX, Algorithm, BUCKETS_MAX, Consistency, LimitOption, OverLimitHits, Unit, Weekday,
};
use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::values;
use crate::rules::config::tollgate::reader;
use crate::rules::config::yaml::Node;
use crate::rules::{EnforcedShare, OnStoreError};

/// Headers that a rule adds to a degraded request.
const REQUEST_HEADERS_MAX: usize = 16;
/// Bytes of the names and values of those headers. Proxies and applications reject requests with
/// much more than 8 KiB of headers.
const REQUEST_HEADERS_BYTES_MAX: usize = 4 << 10;
/// Bytes of the body of a response over limit: it is sent to clients that flood.
const RESPONSE_BODY_BYTES_MAX: usize = 4 << 10;
/// The units of a duration. Longer ones are longer than any wait or lease.
const DURATION_UNITS: [&str; 5] = ["us", "ms", "s", "m", "h"];

/// The value of an option.
pub(crate) trait OptionValue: Sized {
    /// Reports an invalid value.
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self>;
    /// The value as `explain` shows it.
    fn display(&self) -> Arc<str>;
}

named_enum! {
    /// The values of `on_limit`.
    pub enum OnLimitWord {
        /// See [`OnLimit::Reject`](crate::rules::OnLimit::Reject).
        Reject = "reject",
        /// See [`OnLimit::Queue`](crate::rules::OnLimit::Queue).
        Queue = "queue",
        /// See [`OnLimit::Degrade`](crate::rules::OnLimit::Degrade).
        Degrade = "degrade",
    }
}

impl OnLimitWord {
    /// The option that only a rule with it may have.
    pub(super) const fn option(self) -> &'static str {
        match self {
            Self::Reject => "response_body",
            Self::Queue => "max_wait",
            Self::Degrade => "request_headers",
        }
    }

    /// Only buckets can queue.
    pub(super) fn can_be(self, algorithm: Algorithm) -> bool {
        self != Self::Queue || algorithm.takes(LimitOption::MaxWait)
    }

    /// Whether an option is for rules with it and this algorithm.
    pub(super) fn has_option(self, key: &str, algorithm: Algorithm) -> bool {
        let mut words = Self::ALL.into_iter();
        match words.find(|word| word.option() == key) {
            Some(word) => word == self,
            None => key.parse().map_or(true, |option| algorithm.takes(option)),
        }
    }
}

/// Headers that many rules may share.
#[derive(Debug, Clone)]
pub(crate) struct RequestHeaders {
    /// Names in lower case, and values.
    pub(crate) pairs: Arc<[(Box<str>, Box<str>)]>,
    shown: Arc<str>,
}

/// A body that many rules may share.
#[derive(Debug, Clone)]
pub(crate) struct ResponseBody {
    /// At most [`RESPONSE_BODY_BYTES_MAX`].
    pub(crate) text: Arc<str>,
    shown: Arc<str>,
}

// How values are written, for editors.
values! {
    /// A whole number from 1.
    pub(crate) enum Positive = {"type": "integer", "minimum": 1, "maximum": u32::MAX};
    /// A number of sub-windows.
    pub(crate) enum Buckets = {"type": "integer", "minimum": 1, "maximum": BUCKETS_MAX};
    /// A percentage.
    pub(crate) enum Percent = {"type": "integer", "minimum": 0, "maximum": 100};
    /// A whole number and a unit. No option may be 0.
    pub(crate) enum Duration = {"type": "string",
        "pattern": format!("^0*[1-9][0-9]*({})$", DURATION_UNITS.join("|"))};
    /// A text with at most as many characters as bytes are allowed.
    pub(crate) enum Body = {"type": ["string", "number", "boolean"],
        "maxLength": RESPONSE_BODY_BYTES_MAX};
    /// Names and values.
    pub(crate) enum Headers = {"type": "object", "maxProperties": REQUEST_HEADERS_MAX,
        "propertyNames": {"pattern": "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$",
            "not": {"pattern": "^[hH][oO][sS][tT]$"}},
        "additionalProperties": {"type": ["string", "number", "boolean"], "pattern": "^[\\t -~]*$"}};
}

macro_rules! words {
    ($($type:ty),*) => {
        $(impl OptionValue for $type {
            fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
                reader::word(node, key, &Self::ALL.map(|word| (word.name(), word)), findings)
            }

            fn display(&self) -> Arc<str> {
                self.name().into()
            }
        })*
    };
}

words!(Algorithm, Consistency, OverLimitHits, OnLimitWord, OnStoreError, Unit, Weekday);

/// Numbers, each with the largest.
macro_rules! numbers {
    ($($type:ty: $max:expr),*) => {
        $(impl OptionValue for $type {
            fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
                reader::whole(node, key, $max, |value| value.try_into().ok(), findings)
            }

            fn display(&self) -> Arc<str> {
                self.to_string().into()
            }
        })*
    };
}

// An amount that is too large for its algorithm has an error of its own.
numbers!(u32: u32::MAX.into(), u64: AMOUNT_MAX);

impl OptionValue for EnforcedShare {
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        reader::whole(node, key, 100, Self::from_percent, findings)
    }

    fn display(&self) -> Arc<str> {
        self.percent().to_string().into()
    }
}

impl OptionValue for Span {
    /// A whole number and a unit only, so that every reader understands it.
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let text = node.text();
        let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
        if DURATION_UNITS.contains(&unit)
            && let Ok(value) = parse::duration(text)
        {
            return Some(value);
        }
        let units = DURATION_UNITS.join(", ");
        let hint = format!("write it like `{key}: 30s`; the units are {units}");
        let text = format!("`{key}` must be a whole number and a unit");
        findings.reject(node.location, text, hint);
        None
    }

    fn display(&self) -> Arc<str> {
        self.to_string().into()
    }
}

impl OptionValue for Box<str> {
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        reader::text(node, key, findings).map(Self::from)
    }

    fn display(&self) -> Arc<str> {
        (**self).into()
    }
}

impl OptionValue for ResponseBody {
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let body = reader::text(node, key, findings)?;
        if body.len() <= RESPONSE_BODY_BYTES_MAX {
            return Some(Self { text: body.into(), shown: format!("{body:?}").into() });
        }
        let text = format!(
            "`{key}` has {} bytes, more than the {RESPONSE_BODY_BYTES_MAX} of response_body_bytes_max",
            body.len()
        );
        let hint = "write less: it is sent with every response over limit";
        findings.reject(node.location, text, hint);
        None
    }

    fn display(&self) -> Arc<str> {
        self.shown.clone()
    }
}

impl OptionValue for RequestHeaders {
    /// Headers that Envoy can add to a request.
    fn read(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let Some(pairs) = node.pairs() else {
            let hint = "write it as `request_headers: {x-degraded: \"true\"}`";
            let text = format!("`{key}` must be a map of names and values");
            findings.reject(node.location, text, hint);
            return None;
        };
        let fewer = "write fewer: they are sent with every degraded request";
        if pairs.len() > REQUEST_HEADERS_MAX {
            let text = format!(
                "`{key}` has {} headers, more than the {REQUEST_HEADERS_MAX} of request_headers_max",
                pairs.len()
            );
            findings.reject(node.location, text, fewer);
            return None;
        }
        let mut headers: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (name_node, value) in pairs {
            let name = header_name(name_node, findings);
            let value = header_value(value, findings);
            let (Some(name), Some(value)) = (name, value) else {
                continue;
            };
            if headers.iter().any(|(other, _)| *other == name) {
                let text = format!("the header {name} is repeated: case makes no difference");
                findings.reject(name_node.location, text, "keep one of them");
            }
            headers.push((name, value));
        }
        let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > REQUEST_HEADERS_BYTES_MAX {
            let text = format!(
                "`{key}` has {bytes} bytes, more than the {REQUEST_HEADERS_BYTES_MAX} of request_headers_bytes_max"
            );
            findings.reject(node.location, text, fewer);
        }
        let shown = headers.iter().map(|(name, value)| format!("{name}: {value}"));
        let shown: Vec<_> = shown.collect();
        Some(Self { shown: shown.join(", ").into(), pairs: headers.into() })
    }

    fn display(&self) -> Arc<str> {
        self.shown.clone()
    }
}

fn header_name(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Box<str>> {
    let text = node.text();
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) if name != http::header::HOST => Some(name.as_str().into()),
        _ => {
            let hint = "write a name of letters, digits and hyphens, such as x-degraded; not host, and none that begins with a colon";
            let text = format!("'{text}' is no header that can be added to a request");
            findings.reject(node.location, text, hint);
            None
        }
    }
}

fn header_value(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Box<str>> {
    let is_valid =
        |text: &str| HeaderValue::from_str(text).is_ok_and(|value| value.to_str().is_ok());
    if !node.is_null() && node.scalar().is_some_and(|scalar| is_valid(&scalar.text)) {
        return Some(node.text().into());
    }
    let hint = "write a text of visible ASCII characters and spaces on one line";
    findings.reject(node.location, "no value of a header", hint);
    None
}

#[cfg(test)]
mod tests {
    use crate::rules::config::error::Findings;
    use crate::rules::config::source::Source;
    use crate::rules::config::tollgate;
    use crate::rules::config::yaml;

    fn problems(text: &str) -> Vec<String> {
        let source = Source { name: "rules".into(), path: "rules".into(), text: text.into() };
        let root = yaml::read(text).expect("it is YAML").root.expect("a map");
        let mut findings = Findings::default();
        tollgate::read_block(&root, &mut findings.of(&source));
        let (problems, _) = findings.into_parts();
        problems.into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn request_headers_and_response_body_are_bounded() {
        let headers = |count: usize| {
            let headers: Vec<String> = (0..count).map(|index| format!("x-{index}: v")).collect();
            problems(&format!("request_headers: {{{}}}", headers.join(", ")))
        };
        assert_eq!(headers(16), [""; 0]);
        assert_eq!(
            headers(17),
            ["`request_headers` has 17 headers, more than the 16 of request_headers_max"]
        );
        let header = |bytes: usize| {
            let value = "v".repeat(bytes - "x-a".len());
            problems(&format!("request_headers: {{x-a: {value}}}"))
        };
        assert_eq!(header(4_096), [""; 0]);
        assert_eq!(
            header(4_097),
            ["`request_headers` has 4097 bytes, more than the 4096 of request_headers_bytes_max"]
        );
        let body = |bytes: usize| problems(&format!("response_body: {}", "b".repeat(bytes)));
        assert_eq!(body(4_096), [""; 0]);
        assert_eq!(
            body(4_097),
            ["`response_body` has 4097 bytes, more than the 4096 of response_body_bytes_max"]
        );
    }
}
