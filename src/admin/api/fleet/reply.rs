//! Answers of other replicas, as far as they are needed.
//!
//! The process at the address of a heartbeat need not be a replica, so no value is read that an
//! answer does not have: a tree of any JSON takes tens of times the memory of its text.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::report::status::ReplicaStatus;
use crate::report::top::{RuleHits, list_of};

/// Rules of a reply.
// bound reply_rules_max: the replica is missing in the answer; -
const RULES_MAX: usize = 10_000;

/// An answer of a replica.
pub trait Reply: DeserializeOwned + Send + 'static {
    /// The name of the replica.
    fn replica(&self) -> &str;

    /// Parts that each take memory, even if they are empty.
    fn entries(&self) -> usize;

    /// Reads a reply.
    ///
    /// # Errors
    /// The text is not in the form of an answer, or has more than an answer may have.
    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

/// The answer of a replica to `/api/v1/top`.
#[derive(Debug, Deserialize)]
pub struct TopReply {
    replica: String,
    #[serde(deserialize_with = "list_of::<_, _, 0, RULES_MAX>")]
    pub(crate) rules: Vec<RuleHits>,
}

impl Reply for TopReply {
    fn replica(&self) -> &str {
        &self.replica
    }

    /// Entries of all keys.
    fn entries(&self) -> usize {
        let keys = self.rules.iter().flat_map(|rule| &rule.keys);
        keys.map(|key| key.key.len()).sum()
    }
}

/// The answer of a replica to `/api/v1/counters`.
#[derive(Debug, Deserialize)]
pub(crate) struct LeasedReply {
    pub(crate) replica: String,
    pub(crate) leased: Option<u64>,
}

impl Reply for LeasedReply {
    fn replica(&self) -> &str {
        &self.replica
    }

    fn entries(&self) -> usize {
        1
    }
}

impl Reply for ReplicaStatus {
    fn replica(&self) -> &str {
        &self.replica
    }

    /// Rules.
    fn entries(&self) -> usize {
        self.last_hour.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::top::TOP_KEYS_MAX;

    fn rules(rules: &str) -> Result<TopReply, serde_json::Error> {
        TopReply::read(
            format!(r#"{{"replica":"a","rules":[{rules}],"later":{{"x":[1]}}}}"#).as_bytes(),
        )
    }

    #[test]
    fn only_answers_are_read() {
        let key = r#"{"key":[["user","ann"]],"hits":5,"over_limit":2}"#;
        let rule = |keys: &[&str]| {
            format!(
                r#"{{"domain":"d","rule":"d.user","keys":[{}]}}"#,
                keys.join(",")
            )
        };
        let reply = rules(&rule(&[key])).expect("it is an answer");
        assert_eq!((&*reply.replica, reply.entries()), ("a", 1));
        assert_eq!(reply.rules[0].keys[0].over_limit, 2);
        assert!(rules(&rule(&vec![key; TOP_KEYS_MAX])).is_ok());
        let many = vec![rule(&[key]); RULES_MAX + 1];
        assert!(rules(&many[1..].join(",")).is_ok());
        for invalid in [
            many.join(","),
            rule(&vec![key; TOP_KEYS_MAX + 1]),
            rule(&[r#"{"key":[],"hits":1,"over_limit":0}"#]),
            rule(&[r#"{"key":[["a"]],"hits":1,"over_limit":0}"#]),
            rule(&[r#"{"key":[["a","b"]],"hits":-1,"over_limit":0}"#]),
            rule(&[r#"{"key":[["a","b"]],"over_limit":0}"#]),
            rule(&["{}"]),
            rule(&[]),
            ["{}"; 2].join(","),
            r#""",0"#.to_owned(),
            "[],0".to_owned(),
            r#"{"a":0},0"#.to_owned(),
        ] {
            assert!(rules(&invalid).is_err(), "{invalid}");
        }
        assert!(TopReply::read(br#"{"rules":[]}"#).is_err(), "no name");
    }
}
