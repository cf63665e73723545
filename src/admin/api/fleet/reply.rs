//! The answer of another replica, read into its type.
//!
//! The process at the address of a heartbeat need not be a replica, so no value is read that an answer
//! does not have: a tree of any JSON takes tens of times the memory of its text.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::admin::api::top_answer::{KeyHits, RuleHits};
use crate::top_keys::TOP_KEYS_MAX;

/// Rules of a reply.
// bound reply_rules_max: the replica is missing in the answer; -
const RULES_MAX: usize = 10_000;

/// The answer of a replica to `/api/v1/replica`, or to `/api/v1/top`.
#[derive(Debug, Default)]
pub struct Reply {
    /// The name of the replica.
    pub(crate) replica: String,
    pub(crate) rules: Vec<RuleHits>,
}

/// A value that is read from an object.
trait Object<'de>: Default {
    const EXPECTED: &'static str;

    /// Reads the value of a field; `false` if it has no such field.
    fn field<A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<bool, A::Error>;

    /// Whether every field was read that it needs.
    fn is_complete(&self) -> bool;
}

/// Reads an object.
struct Read<T>(T);

/// Reads a list of at most `MAX` objects.
struct List<T, const MAX: usize>(Vec<T>);

impl Reply {
    /// Reads a reply.
    ///
    /// # Errors
    /// It is not in the form of an answer, or has more than one may have.
    pub fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json).map(|Read(reply)| reply)
    }

    /// Entries of all keys: each takes memory, even if it is empty.
    pub(crate) fn entries(&self) -> usize {
        let keys = self.rules.iter().flat_map(|rule| &rule.keys);
        keys.map(|key| key.key.len()).sum()
    }
}

impl<'de> Object<'de> for Reply {
    const EXPECTED: &'static str = "an answer with the name of a replica";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<bool, A::Error> {
        match name {
            "replica" => self.replica = values.next_value()?,
            "rules" => self.rules = values.next_value::<List<_, RULES_MAX>>()?.0,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_complete(&self) -> bool {
        !self.replica.is_empty()
    }
}

impl<'de> Object<'de> for RuleHits {
    const EXPECTED: &'static str = "a rule with keys";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<bool, A::Error> {
        match name {
            "domain" => self.domain = values.next_value()?,
            "rule" => self.rule = values.next_value()?,
            "keys" => self.keys = values.next_value::<List<_, TOP_KEYS_MAX>>()?.0,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_complete(&self) -> bool {
        !self.keys.is_empty()
    }
}

impl<'de> Object<'de> for KeyHits {
    const EXPECTED: &'static str = "a key with hits";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, values: &mut A) -> Result<bool, A::Error> {
        match name {
            "key" => self.key = values.next_value()?,
            "hits" => self.counts.hits = values.next_value()?,
            "over_limit" => self.counts.over_limit = values.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_complete(&self) -> bool {
        !self.key.is_empty() && self.counts.hits > 0
    }
}

impl<'de, T: Object<'de>> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Object<'de>> Visitor<'de> for Fields<T> {
            type Value = Read<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(T::EXPECTED)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
                let mut object = T::default();
                while let Some(name) = values.next_key::<Cow<'_, str>>()? {
                    if !object.field(&name, &mut values)? {
                        values.next_value::<IgnoredAny>()?;
                    }
                }
                if object.is_complete() {
                    Ok(Read(object))
                } else {
                    Err(A::Error::custom(format_args!("expected {}", T::EXPECTED)))
                }
            }
        }

        json.deserialize_map(Fields(PhantomData))
    }
}

impl<'de, T: Object<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Elements<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Object<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "at most {MAX} times {}", T::EXPECTED)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(Read(element)) = values.next_element()? {
                    if list.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    list.push(element);
                }
                Ok(List(list))
            }
        }

        json.deserialize_seq(Elements(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: &str) -> Result<Reply, serde_json::Error> {
        Reply::read(
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
        assert_eq!(reply.rules[0].keys[0].counts.over_limit, 2);
        assert!(rules(&rule(&vec![key; TOP_KEYS_MAX])).is_ok());
        for invalid in [
            rule(&vec![key; TOP_KEYS_MAX + 1]),
            rule(&[r#"{"key":[],"hits":1}"#]),
            rule(&[r#"{"key":[["a"]],"hits":1}"#]),
            rule(&[r#"{"key":[["a","b"]],"hits":-1}"#]),
            rule(&["{}"]),
            rule(&[]),
            ["{}"; 2].join(","),
            r#""",0"#.to_owned(),
            "[],0".to_owned(),
            r#"{"a":0},0"#.to_owned(),
        ] {
            assert!(rules(&invalid).is_err(), "{invalid}");
        }
        assert!(Reply::read(br#"{"rules":[]}"#).is_err(), "no name");
    }
}
