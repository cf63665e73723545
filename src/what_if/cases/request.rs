//! Reads the request of a step: its fields are those of the body of `/json`, and descriptors have
//! a short form.
//!
//! ```text
//! {user: "42", path: /a}                                   a map of entries, in order
//! [[user, "42"], [user, "43"]]                             a list of pairs, where keys are repeated
//! {entries: {user: "42"}, hits_addend: 0, limit: {..}}     with the other fields of a descriptor
//! ```

use crate::api::convert::{self, wire_unit};
use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::{Name, Text, Whole, keys, values};
use crate::rules::config::tollgate::reader;
use crate::rules::config::yaml::{Diagnostic, Kind, Node};
use crate::what_if::cases::value::{fields, whole};
use crate::what_if::traffic::{Descriptor, Entry, Limit, Request};

keys! {
    /// A request for a decision, as Envoy sends it.
    pub(super) enum TestRequest {
        /// The domain of the rules
        domain: Name, required;
        /// Descriptors: maps of entries in their order, `{route: checkout, client_ip: 10.0.0.1}`
        descriptors: DescriptorList, required;
        /// Hits of descriptors without their own; 0 is 1
        hits_addend: Whole;
    }

    /// A descriptor with more than entries.
    enum LongDescriptor {
        /// A map of entries, or a list of pairs
        entries: Entries, required;
        /// Number and unit that replace those of the rule
        limit: OwnLimit;
        /// Hits; 0 reads the counter
        hits_addend: Hits;
        /// Whether hits are given back
        is_negative_hits: bool;
    }

    /// A limit in a request.
    enum OwnLimit {
        /// Number of hits per period
        requests_per_unit: Whole;
        /// `second`, `minute`, `hour`, `day`, `month` or `year`
        unit: Text;
    }

    /// An entry of a descriptor.
    enum EntryMap {
        /// Key of the entry
        key: Text, required;
        /// Value of the entry
        value: Option<Text>;
    }
}

values! {
    /// A number of hits.
    enum Hits = {"type": "integer", "minimum": 0, "maximum": u64::MAX};
    /// Entries of a descriptor.
    enum Entries(schemas) = {"anyOf": [
        {"type": "object", "additionalProperties": schemas.subschema_for::<Option<Text>>()},
        {"type": "array", "items": {"anyOf": [
            schemas.subschema_for::<EntryMap>(),
            {"type": "array", "minItems": 1, "maxItems": 2,
                "prefixItems": [schemas.subschema_for::<Text>()],
                "items": schemas.subschema_for::<Option<Text>>()},
        ]}},
    ]};
    /// Descriptors, each in one of its forms.
    enum DescriptorList(schemas) = {"type": "array", "minItems": 1, "items": {"anyOf": [
        schemas.subschema_for::<LongDescriptor>(),
        schemas.subschema_for::<Entries>(),
    ]}};
}

/// `None` after a problem.
pub(crate) fn read(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Request> {
    let problems = findings.problem_count();
    let mut request = Request::default();
    for (key, value) in fields(node, TestRequest::KEYS, findings)? {
        match key {
            "domain" => request.domain = text(value, key, findings)?,
            "descriptors" => {
                let mut findings = findings.at(".descriptors");
                request.descriptors = reader::list(value, &mut findings, descriptor);
            }
            _ => request.hits_addend = number(value, key, findings)?,
        }
    }
    if findings.problem_count() > problems {
        return None;
    }
    if let Err(error) = convert::validate(&request) {
        findings.problem(Diagnostic::new(node.location, error));
        return None;
    }
    Some(request)
}

fn descriptor(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Descriptor> {
    // An entry of the key `entries` has a scalar.
    let is_long = node.pairs().is_some_and(|pairs| {
        let mut pairs = pairs.iter();
        pairs.any(|(key, value)| key.text() == "entries" && value.scalar().is_none())
    });
    let mut read = Descriptor::default();
    if !is_long {
        read.entries = entries(node, findings)?;
        return Some(read);
    }
    for (key, value) in fields(node, LongDescriptor::KEYS, findings)? {
        match key {
            "entries" => read.entries = entries(value, &mut findings.at(".entries"))?,
            "limit" => read.limit = limit(value, &mut findings.at(".limit")),
            "hits_addend" => read.hits_addend = whole(value, key, 0..=u64::MAX, findings),
            _ => read.is_negative_hits = reader::flag(value, key, findings),
        }
    }
    Some(read)
}

fn entries(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Vec<Entry>> {
    if let Some(pairs) = node.pairs() {
        return pairs.iter().map(|(key, value)| entry(key, Some(value), findings)).collect();
    }
    if node.scalar().is_some() {
        let text = "expected a map of entries, or a list of [key, value] pairs";
        findings.problem(Diagnostic::new(node.location, text).hint("write {user: \"42\"}"));
        return None;
    }
    Some(reader::list(node, findings, item))
}

fn item(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Entry> {
    match &node.kind {
        Kind::List(pair) => match &**pair {
            [key] => entry(key, None, findings),
            [key, value] => entry(key, Some(value), findings),
            _ => {
                let text = "an entry is a pair of a key and a value";
                findings.problem(Diagnostic::new(node.location, text).hint("write [user, \"42\"]"));
                None
            }
        },
        Kind::Map(_) | Kind::Scalar(_) => {
            let pairs = fields(node, EntryMap::KEYS, findings)?;
            let of = |name| pairs.iter().find(|(key, _)| *key == name);
            match of("key") {
                Some((_, key)) => entry(key, of("value").map(|(_, value)| *value), findings),
                None => {
                    let text = "the entry has no `key`";
                    findings.problem(Diagnostic::new(node.location, text));
                    None
                }
            }
        }
    }
}

fn entry(key: &Node, value: Option<&Node>, findings: &mut SourceFindings<'_>) -> Option<Entry> {
    let key = text(key, "key", findings)?;
    // Envoy sends entries without a value.
    let value = value.filter(|value| !value.is_null());
    let value = value.map_or(Some(Vec::new()), |value| text(value, "value", findings))?;
    Some(Entry { key, value })
}

fn limit(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Limit> {
    let mut limit = Limit::default();
    for (key, value) in fields(node, OwnLimit::KEYS, findings)? {
        if key == "requests_per_unit" {
            limit.requests_per_unit = number(value, key, findings)?;
            continue;
        }
        match wire_unit(&value.text().to_uppercase()) {
            Ok(unit) => limit.unit = unit,
            Err(error) => findings.problem(Diagnostic::new(value.location, error)),
        }
    }
    Some(limit)
}

fn text(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<Vec<u8>> {
    Some(reader::text(node, key, findings)?.as_bytes().to_owned())
}

fn number(node: &Node, key: &str, findings: &mut SourceFindings<'_>) -> Option<u32> {
    let number = whole(node, key, 0..=u32::MAX.into(), findings)?;
    u32::try_from(number).ok()
}
