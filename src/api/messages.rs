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
