//! The body of an action: a domain, one descriptor, and hits to grant.

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::admin::api::answer::Rejected;
use crate::named_enum::named_enum;

const USAGE: &str =
    r#"write {"domain": "shop", "descriptor": [["user", "42"]]}, and "hits" to grant"#;

named_enum! {
    /// What is done to a counter.
    pub enum Action {
        /// It is deleted.
        Reset = "reset",
        /// It gets hits back.
        Grant = "grant",
    }
}

/// A change of one counter.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) action: Action,
    pub(crate) remote: Option<IpAddr>,
    pub(crate) domain: String,
    pub(crate) entries: Vec<(String, String)>,
    /// To grant; 0 for a reset.
    pub(crate) hits: u64,
}

impl Change {
    /// # Errors
    /// 400.
    pub(crate) fn read(
        action: Action,
        body: &[u8],
        remote: Option<IpAddr>,
    ) -> Result<Self, Rejected> {
        let invalid = |reason: &str| Rejected::bad_request(format!("{reason}; {USAGE}"));
        let body: Map<String, Value> =
            serde_json::from_slice(body).map_err(|error| invalid(&error.to_string()))?;
        let known = ["domain", "descriptor", "hits"];
        if let Some(name) = body.keys().find(|name| !known.contains(&&***name)) {
            return Err(invalid(&format!("unknown field {name:?}")));
        }
        let domain = body.get("domain").and_then(Value::as_str);
        let domain = domain.filter(|domain| !domain.is_empty());
        let entries = body.get("descriptor").and_then(entries);
        let entries = entries.filter(|entries| !entries.is_empty());
        let (Some(domain), Some(entries)) = (domain, entries) else {
            return Err(invalid("a domain and a descriptor are needed"));
        };
        let hits = match (action, body.get("hits").map(Value::as_u64)) {
            (Action::Grant, Some(Some(hits))) if hits > 0 => hits,
            (Action::Grant, _) => return Err(invalid("hits must be a whole number of at least 1")),
            (Action::Reset, None) => 0,
            (Action::Reset, Some(_)) => return Err(invalid("a reset has no hits")),
        };
        Ok(Self {
            action,
            remote,
            domain: domain.to_owned(),
            entries,
            hits,
        })
    }

    /// Equal for equal changes.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let parts = json!([self.action.name(), self.domain, self.entries, self.hits]);
        Sha256::digest(parts.to_string()).into()
    }

    /// As `key=value,key=value`.
    pub(crate) fn descriptor(&self) -> String {
        let entries = self
            .entries
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        entries.collect::<Vec<_>>().join(",")
    }
}

fn entries(descriptor: &Value) -> Option<Vec<(String, String)>> {
    let entry = |entry: &Value| match entry.as_array()?.as_slice() {
        [Value::String(key), Value::String(value)] if !key.is_empty() => {
            Some((key.clone(), value.clone()))
        }
        _ => None,
    };
    descriptor.as_array()?.iter().map(entry).collect()
}
