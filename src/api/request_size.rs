//! Counts the descriptors and entries of an encoded request, protobuf or JSON, before it is decoded.
//!
//! Two bytes of a message can encode an empty descriptor, which takes 250 in memory: a message of
//! 4 MiB would become half a gigabyte.

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::limiter::{DESCRIPTORS_MAX, ENTRIES_MAX, LimiterError};

/// Bytes of a message, and of a body of `/json`. As in the reference, whose gRPC library has this
/// default.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The field number of RateLimitRequest.descriptors.
const DESCRIPTORS: u32 = 2;
/// The field number of RateLimitDescriptor.entries.
const ENTRIES: u32 = 1;
/// Memory of a descriptor besides its entries, decoded and as part of a query.
const DESCRIPTOR_BYTES: usize = 320;
/// Memory of an entry besides its strings, decoded and as part of a query.
const ENTRY_BYTES: usize = 96;

/// The size of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestSize {
    descriptors: usize,
    entries: usize,
}

impl RequestSize {
    /// Counts an encoded RateLimitRequest, up to the first bytes that cannot be decoded: decoding
    /// ends there, too.
    ///
    /// # Errors
    /// More descriptors or entries than a request may have.
    pub fn of_protobuf(message: &[u8]) -> Result<Self, LimiterError> {
        let mut size = Self::default();
        for descriptor in messages(message, DESCRIPTORS) {
            size.add_descriptor()?;
            for _ in messages(descriptor, ENTRIES) {
                size.add_entry()?;
            }
        }
        Ok(size)
    }

    /// Counts a request in JSON by the depth of its objects: descriptors are in the request, entries
    /// in a descriptor. The text need not be JSON.
    ///
    /// # Errors
    /// More descriptors or entries than a request may have.
    pub(crate) fn of_json(body: &[u8]) -> Result<Self, LimiterError> {
        let mut size = Self::default();
        let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
        // Within a list an object follows `[` or `,`; the limit of a descriptor follows `:`.
        let mut before = b' ';
        for byte in body {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if in_string => is_escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'{' => {
                    depth += 1;
                    match depth {
                        2 => size.add_descriptor()?,
                        3 if before != b':' => size.add_entry()?,
                        _ => {}
                    }
                }
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if !byte.is_ascii_whitespace() {
                before = *byte;
            }
        }
        Ok(size)
    }

    fn add_descriptor(&mut self) -> Result<(), LimiterError> {
        self.descriptors += 1;
        let fits = self.descriptors <= DESCRIPTORS_MAX;
        fits.then_some(()).ok_or(LimiterError::TooManyDescriptors)
    }

    fn add_entry(&mut self) -> Result<(), LimiterError> {
        self.entries += 1;
        let fits = self.entries <= ENTRIES_MAX;
        fits.then_some(()).ok_or(LimiterError::TooManyEntries)
    }

    /// Memory of the decoded request besides its strings.
    pub(crate) fn bytes(self) -> usize {
        self.descriptors * DESCRIPTOR_BYTES + self.entries * ENTRY_BYTES
    }
}

/// The messages in fields of this number.
///
/// The fields of a group, which only unknown fields can be, count as fields of the message: too
/// many, never too few.
fn messages(mut message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        loop {
            let (field, wire_type, value) = next_field(&mut message)?;
            if field == number && wire_type == WireType::LengthDelimited {
                return Some(value);
            }
        }
    })
}

/// Splits off the first field; `None` at the end, and where the rest cannot be decoded.
fn next_field<'m>(rest: &mut &'m [u8]) -> Option<(u32, WireType, &'m [u8])> {
    if rest.is_empty() {
        return None;
    }
    let (field, wire_type) = decode_key(rest).ok()?;
    let length = match wire_type {
        WireType::Varint => decode_varint(rest).map(|_| 0).ok()?,
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => {
            usize::try_from(decode_varint(rest).ok()?).unwrap_or(usize::MAX)
        }
        WireType::StartGroup | WireType::EndGroup => 0,
    };
    let (value, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some((field, wire_type, value))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

    fn request(descriptors: usize, entries: usize) -> RateLimitRequest {
        let entry = Entry {
            key: "k".into(),
            value: "v".into(),
        };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry; entries],
            limit: Some(RateLimitOverride {
                requests_per_unit: 7,
                unit: 1,
            }),
            hits_addend: Some(3),
            is_negative_hits: true,
        };
        RateLimitRequest {
            domain: "d".into(),
            descriptors: vec![descriptor; descriptors],
            hits_addend: 4,
        }
    }

    fn counted(message: &[u8]) -> Result<(usize, usize), LimiterError> {
        RequestSize::of_protobuf(message).map(|size| (size.descriptors, size.entries))
    }

    #[test]
    fn protobuf_is_counted_up_to_the_bounds() {
        assert_eq!(counted(&request(3, 4).encode_to_vec()), Ok((3, 12)));
        assert_eq!(
            counted(&request(1_000, 10).encode_to_vec()),
            Ok((1_000, 10_000))
        );
        assert_eq!(
            counted(&request(1_001, 0).encode_to_vec()),
            Err(LimiterError::TooManyDescriptors)
        );
        assert_eq!(
            counted(&request(1, 10_001).encode_to_vec()),
            Err(LimiterError::TooManyEntries)
        );
        assert_eq!(counted(&[]), Ok((0, 0)));
        assert_eq!(
            counted(&[0x12, 0].repeat(2_000_000)),
            Err(LimiterError::TooManyDescriptors)
        );
    }

    #[test]
    fn fields_before_invalid_bytes_are_counted() {
        let whole = request(1_001, 0).encode_to_vec();
        for broken in [&[0xff_u8; 20][..], &[0x12, 0xff, 0x01], &[0x0d, 1], &[0x07]] {
            assert_eq!(
                counted(&[&whole, broken].concat()),
                Err(LimiterError::TooManyDescriptors),
                "{broken:?}"
            );
            assert_eq!(
                counted(&[&[0x12, 0], broken].concat()),
                Ok((1, 0)),
                "{broken:?}"
            );
        }
    }

    #[test]
    fn json_is_counted_by_depth() {
        let counted = |body: &str| {
            RequestSize::of_json(body.as_bytes()).map(|size| (size.descriptors, size.entries))
        };
        let body =
            r#"{"domain":"{\"{","descriptors":[{"entries":[{"key":"k"},{}]},{},{"limit" : {}}]}"#;
        assert_eq!(counted(body), Ok((3, 2)));
        assert_eq!(
            counted(&format!(r#"{{"descriptors":[{}"#, "{},".repeat(2_000))),
            Err(LimiterError::TooManyDescriptors)
        );
        assert_eq!(
            counted(&format!(
                r#"{{"descriptors":[{{"entries":[{}"#,
                "{},".repeat(20_000)
            )),
            Err(LimiterError::TooManyEntries)
        );
        assert_eq!(counted("}}{"), Ok((0, 0)));
    }

    #[test]
    fn unknown_fields_hide_no_descriptor() {
        let unknown = [
            &[0x78, 0xff, 0x01][..],
            &[0x79, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x7d, 1, 2, 3, 4],
            &[0x7a, 2, 0x12, 0],
            &[0x7b, 0x10, 1, 0x7c],
        ];
        for unknown in unknown {
            assert_eq!(
                counted(&[unknown, &[0x12, 2, 0x0a, 0]].concat()),
                Ok((1, 1)),
                "{unknown:x?}"
            );
        }
    }
}
