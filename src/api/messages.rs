//! RateLimitRequest and RateLimitResponse in protobuf's JSON.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde_json::Value;

use crate::api::request_size::RequestSize;
use crate::base::proto::DESCRIPTOR_SET;
use crate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::limits::EXACT_MAX;

/// A valid request, for errors.
pub(crate) const EXAMPLE: &str =
    r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}"#;

/// Request and response. Read at the first use, since most deployments never use `/json` and this
/// memory is not small.
static DESCRIPTORS: LazyLock<[MessageDescriptor; 2]> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(DESCRIPTOR_SET).expect("the descriptors were compiled in");
    ["RateLimitRequest", "RateLimitResponse"].map(|name| {
        let name = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&name).expect("it is one of them")
    })
});

/// Encodes a request in protobuf's JSON: names in either spelling, numbers as numbers or strings,
/// null for absent fields. The last of repeated names counts.
///
/// # Errors
/// It is not JSON, not a request, has unknown names, or is too large.
pub(crate) fn read(body: &[u8]) -> anyhow::Result<Vec<u8>> {
    RequestSize::of_json(body)?;
    let mut reader = serde_json::Deserializer::from_slice(body);
    let message = DynamicMessage::deserialize_with_options(
        DESCRIPTORS[0].clone(),
        &mut reader,
        &DeserializeOptions::new(),
    )?;
    reader.end()?;
    Ok(message.encode_to_vec())
}

pub(crate) fn write(response: &RateLimitResponse) -> anyhow::Result<Vec<u8>> {
    let mut message = DynamicMessage::new(DESCRIPTORS[1].clone());
    message.transcode_from(response)?;
    if response.dynamic_metadata.is_none() {
        return Ok(serde_json::to_vec(&message)?);
    }
    let mut json = serde_json::to_value(&message)?;
    shorten_numbers(&mut json);
    Ok(serde_json::to_vec(&json)?)
}

/// Writes whole numbers of metadata, which has doubles only, as `2` instead of `2.0`, as the
/// reference does: some JSON readers distinguish them.
fn shorten_numbers(json: &mut Value) {
    match json {
        Value::Number(number) => {
            // `{}` prints a double without a fraction as a whole number, and every whole number of
            // up to 16 digits is exact.
            if let Some(whole) = number
                .as_f64()
                .and_then(|value| value.to_string().parse::<i64>().ok())
                .filter(|whole| whole.unsigned_abs() < EXACT_MAX)
            {
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_numbers),
        Value::Object(map) => map.values_mut().for_each(shorten_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::decode;

    /// Valid bodies, each for one hit, a peek or a refund of `k` in domain `d`.
    const VALID: &[&str] = &[
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":""}]}],"hitsAddend":1}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hits_addend":1}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hitsAddend":"1"}]}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hits_addend":1}]}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":null}],"limit":null,"hitsAddend":null}],"hitsAddend":null}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"isNegativeHits":false}]}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"is_negative_hits":true}]}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":5,"unit":"MINUTE"}}]}"#,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requests_per_unit":5,"unit":2}}]}"#,
        r#"{"domain":"e","domain":"d","descriptors":[{"entries":[{"key":"x","key":"k"}]}],"hitsAddend":9,"hits_addend":1}"#,
        " \n{\"domain\" : \"d\",\n\t\"descriptors\":[{\"entries\":[{\"key\":\"\\u006b\"}]}]} \n",
    ];

    #[test]
    fn protobuf_json_is_read_in_every_spelling() {
        for body in VALID {
            let message = read(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"));
            let (query, _) = decode::query(&message).expect("it was encoded here");
            let [descriptor] = &*query.descriptors else { panic!("one descriptor: {body}") };
            assert_eq!((query.domain, descriptor.hits.count()), (&b"d"[..], 1), "{body}");
            let entries: Vec<_> =
                descriptor.entries.iter().map(|one| (one.key, one.value)).collect();
            assert_eq!(entries, [(&b"k"[..], &b""[..])], "{body}");
        }
    }

    /// Invalid bodies, and the reason.
    const INVALID: &str = r#"
 => EOF while parsing a value at line 1 column 0
no json => expected ident at line 1 column 2
{ => EOF while parsing an object at line 1 column 1
[] => invalid type: sequence, expected a map
null => invalid type: null, expected a map
1 => invalid type: integer `1`, expected a map
{"domain":1,"descriptors":[{"entries":[{"key":"k"}]}]} => invalid type: integer `1`, expected a string at line 1 column 11
{"domain":"d","descriptors":{"entries":[{"key":"k"}]}} => invalid type: map, expected a list
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"unknown":1} => unrecognized field name 'unknown' at line 1 column 65
{"domain":"d","descriptors":[{"entries":[{"key":"k","unknown":1}]}]} => unrecognized field name 'unknown'
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hitsAddend":-1} => out of range
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hitsAddend":4294967296} => out of range
{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"hitsAddend":18446744073709555712}]} => out of range
{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requestsPerUnit":5,"unit":"FORTNIGHT"}}]} => unrecognized enum value 'FORTNIGHT'
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]} trailing => trailing characters at line 1 column 58
{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}{} => trailing characters
"#;

    #[test]
    fn invalid_bodies_are_errors_with_the_reason() {
        for line in INVALID.lines().skip(1) {
            let (body, reason) = line.split_once(" => ").expect("a body => a reason");
            let error = read(body.as_bytes()).expect_err(body).to_string();
            assert!(error.contains(reason), "{body}: {error}");
        }
        let bodies = [
            "[".repeat(100_000),
            r#"{"a":"#.repeat(100_000),
            format!(r#"{{"domain":{}"#, "[".repeat(1_000_000)),
        ];
        assert!(bodies.iter().all(|body| read(body.as_bytes()).is_err()), "deeply nested ones");
    }
}
