//! A request as JSON: the body of `/json`, and a line that `tollgate replay` reads.
//!
//! Written without a tree of values in between, since every recorded request pays for it.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::base::text::Text;
use crate::base::time::Time;
use crate::check::Hits;
use crate::rules::Query;
use crate::rules::query::{Descriptor, Override};

/// What every line begins with.
pub(super) const START: &[u8] = b"{\"time\":\"";

/// A line with its end. Text that is not UTF-8 is percent-encoded.
pub(super) fn line(query: &Query<'_>, now: Time) -> Vec<u8> {
    let mut line = START.to_vec();
    line.extend_from_slice(now.to_rfc3339().as_bytes());
    line.extend_from_slice(b"\",");
    write_fields(query, &mut line);
    line.extend_from_slice(b"}\n");
    line
}

/// The body of `/json`.
pub(crate) fn body(query: &Query<'_>) -> Vec<u8> {
    let mut body = vec![b'{'];
    write_fields(query, &mut body);
    body.push(b'}');
    body
}

/// Equal for requests of a domain with the same entries, in every version and process.
pub(super) fn hash(query: &Query<'_>) -> u64 {
    let mut hasher = SipHasher13::new();
    // With their lengths, so that different entries are different texts.
    let mut write = |part: &[u8]| {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    };
    write(query.domain);
    for descriptor in &query.descriptors {
        write(&(descriptor.entries.len() as u64).to_le_bytes());
        for entry in &descriptor.entries {
            write(entry.key);
            write(entry.value);
        }
    }
    hasher.finish()
}

fn write_fields(query: &Query<'_>, json: &mut Vec<u8>) {
    json.extend_from_slice(b"\"domain\":");
    write_text(query.domain, json);
    json.extend_from_slice(b",\"descriptors\":[");
    for (index, descriptor) in query.descriptors.iter().enumerate() {
        write_comma(index, json);
        write_descriptor(descriptor, json);
    }
    json.push(b']');
    if query.hits_addend > 0 {
        let hits = format!(",\"hits_addend\":{}", query.hits_addend);
        json.extend_from_slice(hits.as_bytes());
    }
}

fn write_descriptor(descriptor: &Descriptor<'_>, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"entries\":[");
    for (index, entry) in descriptor.entries.iter().enumerate() {
        write_comma(index, json);
        json.extend_from_slice(b"{\"key\":");
        write_text(entry.key, json);
        json.extend_from_slice(b",\"value\":");
        write_text(entry.value, json);
        json.push(b'}');
    }
    json.push(b']');
    if let Some(limit) = descriptor.limit {
        write_limit(limit, json);
    }
    if let Some(hits) = descriptor.hits_addend {
        json.extend_from_slice(format!(",\"hits_addend\":{hits}").as_bytes());
    }
    if matches!(descriptor.hits, Hits::Refund(_)) {
        json.extend_from_slice(b",\"is_negative_hits\":true");
    }
    json.push(b'}');
}

fn write_limit(limit: Override, json: &mut Vec<u8>) {
    let unit = match limit.unit {
        Some(unit) => unit.name().to_uppercase(),
        None => limit.wire_unit.to_string(),
    };
    let requests = limit.requests_per_unit;
    let limit = format!(",\"limit\":{{\"requests_per_unit\":{requests},\"unit\":\"{unit}\"}}");
    json.extend_from_slice(limit.as_bytes());
}

fn write_comma(index: usize, json: &mut Vec<u8>) {
    if index > 0 {
        json.push(b',');
    }
}

fn write_text(text: &[u8], json: &mut Vec<u8>) {
    serde_json::to_writer(json, &*Text(text).shown()).expect("memory is writable");
}
