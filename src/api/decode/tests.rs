//! Compares with prost, on valid and on invalid messages.

use proptest::prelude::*;
use prost::Message as _;
use prost::encoding::{encode_key, encode_varint};

use super::*;
use crate::api::request_size::{DESCRIPTORS_MAX, ENTRIES_MAX, RequestTooLarge};
use crate::base::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry as WireEntry;
use crate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;

/// Encoded fields with numbers of any level, known and unknown, of any type, given any number of
/// times.
fn message(depth: u32) -> BoxedStrategy<Vec<u8>> {
    let number = 1..6_u32;
    let varint = (number.clone(), any::<u64>()).prop_map(|(number, value)| {
        let mut field = Vec::new();
        encode_key(number, WireType::Varint, &mut field);
        encode_varint(value, &mut field);
        field
    });
    let fixed =
        (number.clone(), any::<[u8; 8]>(), any::<bool>()).prop_map(|(number, bytes, is_long)| {
            let mut field = Vec::new();
            let (wire_type, length) =
                if is_long { (WireType::SixtyFourBit, 8) } else { (WireType::ThirtyTwoBit, 4) };
            encode_key(number, wire_type, &mut field);
            field.extend_from_slice(&bytes[..length]);
            field
        });
    let content = if depth == 0 {
        prop::collection::vec(any::<u8>(), 0..8).boxed()
    } else {
        message(depth - 1)
    };
    let delimited = (number.clone(), content.clone()).prop_map(|(number, content)| {
        let mut field = Vec::new();
        encode_key(number, WireType::LengthDelimited, &mut field);
        encode_varint(content.len() as u64, &mut field);
        field.extend(content);
        field
    });
    let group = (number, content).prop_map(|(number, content)| {
        let mut field = Vec::new();
        encode_key(number, WireType::StartGroup, &mut field);
        field.extend(content);
        encode_key(number, WireType::EndGroup, &mut field);
        field
    });
    let field = prop_oneof![2 => varint, 1 => fixed, 6 => delimited, 1 => group];
    prop::collection::vec(field, 0..6).prop_map(|fields| fields.concat()).boxed()
}

fn agrees_with_prost(message: &[u8]) -> Result<(), TestCaseError> {
    let wire = RateLimitRequest::decode(message);
    match (query(message), &wire) {
        (Ok((query, _)), Ok(wire)) => {
            prop_assert_eq!(format!("{query:?}"), format!("{:?}", convert::query(wire)));
        }
        (Err(QueryError::Invalid(_)), Err(_)) => {}
        (ours, theirs) => prop_assert!(false, "{ours:?}, and {theirs:?} by prost"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_fields_mean_what_they_mean_to_prost(message in message(3)) {
        agrees_with_prost(&message)?;
    }

    #[test]
    fn changed_bytes_mean_what_they_mean_to_prost(
        mut message in message(3),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for (index, byte) in changes {
            if !message.is_empty() {
                let index = index.index(message.len());
                message[index] = byte;
            }
        }
        agrees_with_prost(&message)?;
    }
}

fn request(descriptors: usize, entries: usize) -> Vec<u8> {
    let entry = WireEntry { key: "k".into(), value: "v".into() };
    let descriptor =
        RateLimitDescriptor { entries: vec![entry; entries], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest {
        domain: "d".into(),
        descriptors: vec![descriptor; descriptors],
        hits_addend: 4,
    };
    request.encode_to_vec()
}

#[test]
fn requests_are_bounded() {
    let error = |message: &[u8]| query(message).err();
    assert_eq!(error(&request(DESCRIPTORS_MAX, 10)), None);
    assert_eq!(error(&request(DESCRIPTORS_MAX + 1, 0)), Some(RequestTooLarge::Descriptors.into()));
    assert_eq!(error(&request(1, ENTRIES_MAX + 1)), Some(RequestTooLarge::Entries.into()));
    assert_eq!(error(&[0x12, 0].repeat(2_000_000)), Some(RequestTooLarge::Descriptors.into()));
}
