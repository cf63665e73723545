//! The memory that a resource takes when it is decoded, which is bounded.
//!
//! Two bytes of a message can encode an empty descriptor, which takes 200 in memory: a resource of
//! 4 MiB would become half a gigabyte. prost's functions read the fields here, so what they skip is
//! skipped.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::base::proto::ratelimit::config::ratelimit::v3::{
    RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};

/// Memory of the resources of a response, when they are decoded: 130,000 rules.
// bound xds_decoded_bytes_max: the response is rejected, the previous rules stay;
// tollgate_rules_rejected
pub(super) const DECODED_BYTES_MAX: usize = 32 << 20;
/// The deepest nesting of messages, as in prost.
const DEPTH_MAX: usize = 100;
/// Memory of a text besides its bytes.
const TEXT_BYTES: usize = 16;
/// Memory of a map: a node of its B-tree holds eleven pairs.
const MAP_BYTES: usize = 1_200;
/// Memory of a value in a list.
const VALUE_BYTES: usize = 72;

/// The messages of a resource. Others have no part that is repeated.
#[derive(Clone, Copy)]
enum Message {
    Config,
    Descriptor,
    Policy,
    Replace,
    Struct,
    Pair,
    Value,
    List,
}

impl Message {
    /// The message in a field; `None` for a text, a number or an unknown field.
    const fn field(self, number: u32) -> Option<Self> {
        Some(match (self, number) {
            (Self::Config, 3) | (Self::Descriptor, 4) => Self::Descriptor,
            (Self::Descriptor, 3) => Self::Policy,
            (Self::Policy, 5) => Self::Replace,
            (Self::Descriptor, 8) | (Self::Value, 5) => Self::Struct,
            (Self::Struct, 1) => Self::Pair,
            (Self::Pair, 2) | (Self::List, 1) => Self::Value,
            (Self::Value, 6) => Self::List,
            _ => return None,
        })
    }

    /// Memory of the message without its texts and what it has in it.
    const fn bytes(self) -> usize {
        match self {
            Self::Descriptor => size_of::<RateLimitDescriptor>(),
            Self::Policy => size_of::<RateLimitPolicy>(),
            Self::Replace => size_of::<RateLimitReplace>(),
            Self::Struct => MAP_BYTES,
            Self::Value => VALUE_BYTES,
            Self::Config | Self::Pair | Self::List => 0,
        }
    }
}

/// The memory that a `RateLimitConfig` takes when it is decoded, or as much of it as exceeds
/// [`DECODED_BYTES_MAX`].
///
/// # Errors
/// It cannot be decoded.
pub(super) fn decoded_bytes(config: &[u8]) -> Result<usize, DecodeError> {
    let mut bytes = 0;
    add(Message::Config, config, DEPTH_MAX, &mut bytes)?;
    Ok(bytes)
}

fn add(
    message: Message,
    mut encoded: &[u8],
    depth: usize,
    bytes: &mut usize,
) -> Result<(), DecodeError> {
    *bytes += message.bytes();
    while !encoded.is_empty() && *bytes <= DECODED_BYTES_MAX {
        let (number, wire_type) = decode_key(&mut encoded)?;
        let before = encoded;
        skip_field(wire_type, number, &mut encoded, DecodeContext::default())?;
        if wire_type != WireType::LengthDelimited {
            continue;
        }
        let mut content = &before[..before.len() - encoded.len()];
        decode_varint(&mut content)?;
        match message.field(number) {
            // prost says that it is too deep.
            Some(_) if depth == 0 => {}
            Some(inner) => add(inner, content, depth - 1, bytes)?,
            None => *bytes += TEXT_BYTES + content.len(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::base::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;

    #[test]
    fn each_repeated_message_is_counted() {
        let empty = RateLimitConfig::default();
        assert_eq!(decoded_bytes(&empty.encode_to_vec()), Ok(0));
        let replaces = vec![RateLimitReplace::default(); 2];
        let policy = RateLimitPolicy { replaces, ..RateLimitPolicy::default() };
        let value =
            prost_types::Value { kind: Some(prost_types::value::Kind::StringValue("text".into())) };
        let metadata = prost_types::Struct { fields: [("key".to_owned(), value)].into() };
        let descriptor = RateLimitDescriptor {
            rate_limit: Some(policy),
            descriptors: vec![RateLimitDescriptor::default()],
            metadata: Some(metadata),
            ..RateLimitDescriptor::default()
        };
        let config =
            RateLimitConfig { descriptors: vec![descriptor], ..RateLimitConfig::default() };
        let expected = 2 * size_of::<RateLimitDescriptor>()
            + size_of::<RateLimitPolicy>()
            + 2 * size_of::<RateLimitReplace>()
            + (MAP_BYTES + VALUE_BYTES)
            + (2 * TEXT_BYTES + "keytext".len());
        assert_eq!(decoded_bytes(&config.encode_to_vec()), Ok(expected));
    }

    #[test]
    fn counting_stops_at_the_bound() {
        let empty_descriptor = [3 << 3 | 2, 0];
        let bytes = decoded_bytes(&empty_descriptor.repeat(1 << 20)).expect("it can be decoded");
        let descriptor = size_of::<RateLimitDescriptor>();
        assert!((1..=descriptor).contains(&(bytes - DECODED_BYTES_MAX)));
        // A length that the message does not have.
        assert!(decoded_bytes(&[3 << 3 | 2, 1]).is_err());
    }
}
