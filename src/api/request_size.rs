//! Counts the descriptors and entries of a request in its bytes, protobuf or JSON, before anything
//! is built from them.
//!
//! Two bytes of a message are an empty descriptor, which takes 250 in memory: a message of 4 MiB
//! would become half a gigabyte.

use std::fmt;

use prost::DecodeError;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::limiter::{DESCRIPTORS_MAX, ENTRIES_MAX, LimiterError};

/// The number of RateLimitRequest.descriptors.
const DESCRIPTORS: u32 = 2;
/// The number of RateLimitDescriptor.entries.
const ENTRIES: u32 = 1;
/// What a descriptor takes besides its entries, decoded and as a part of a query.
const DESCRIPTOR_BYTES: usize = 320;
/// What an entry takes besides its texts, decoded and as a part of a query.
const ENTRY_BYTES: usize = 96;

/// More names than any of our messages has fields.
const FIELDS_MAX: usize = 32;

/// How much a request consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestSize {
    descriptors: usize,
    entries: usize,
}

/// What a scan has counted so far, and why it ended early.
#[derive(Debug, Default)]
struct Counted {
    size: RequestSize,
    refusal: Option<LimiterError>,
}

/// Visits any JSON and keeps nothing but the names of the object it is in.
struct Scan<'s> {
    place: Place,
    counted: &'s mut Counted,
}

/// Where in a request a scan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Request,
    Descriptors,
    Descriptor,
    Entries,
    Elsewhere,
}

/// An item of a list, which is counted when there is one.
struct Item<'s> {
    list: Place,
    counted: &'s mut Counted,
}

impl RequestSize {
    /// Counts what an encoded RateLimitRequest consists of. Bytes that cannot be decoded are
    /// counted up to there: decoding ends there, too.
    ///
    /// # Errors
    /// More descriptors or entries than a request may have.
    pub fn of_protobuf(message: &[u8]) -> Result<Self, LimiterError> {
        let mut size = Self::default();
        let mut refusal = None;
        // A message that cannot be decoded gets its error from the decoder.
        let _ = each_message(message, DESCRIPTORS, |descriptor| {
            let counted = size.add_descriptor().and_then(|()| {
                let mut counted = Ok(());
                let _ = each_message(descriptor, ENTRIES, |_| {
                    counted = size.add_entry();
                    counted.is_ok()
                });
                counted
            });
            refusal = counted.err();
            refusal.is_none()
        });
        refusal.map_or(Ok(size), Err)
    }

    /// Counts what a request in JSON consists of.
    ///
    /// An object that has a name twice, in whichever spelling, is an error in protobuf's JSON; our
    /// reader would take the last.
    ///
    /// # Errors
    /// A [`LimiterError`] if there are more descriptors or entries than a request may have; or it is no
    /// JSON, or has a name twice.
    pub fn of_json(body: &[u8]) -> anyhow::Result<Self> {
        let mut counted = Counted::default();
        let read = serde_json::Deserializer::from_slice(body).deserialize_any(Scan {
            place: Place::Request,
            counted: &mut counted,
        });
        match (counted.refusal, read) {
            (Some(refusal), _) => Err(refusal.into()),
            (None, read) => Ok(read.map(|()| counted.size)?),
        }
    }

    /// Counts a descriptor.
    ///
    /// # Errors
    /// It is one too many.
    fn add_descriptor(&mut self) -> Result<(), LimiterError> {
        self.descriptors += 1;
        if self.descriptors <= DESCRIPTORS_MAX {
            Ok(())
        } else {
            Err(LimiterError::TooManyDescriptors)
        }
    }

    /// Counts an entry.
    ///
    /// # Errors
    /// It is one too many.
    fn add_entry(&mut self) -> Result<(), LimiterError> {
        self.entries += 1;
        if self.entries <= ENTRIES_MAX {
            Ok(())
        } else {
            Err(LimiterError::TooManyEntries)
        }
    }

    /// Bytes that it takes in memory besides its texts.
    pub fn bytes(self) -> usize {
        self.descriptors * DESCRIPTOR_BYTES + self.entries * ENTRY_BYTES
    }
}

impl Place {
    /// The place of what an object has under this name.
    fn below(self, name: &str) -> Self {
        match (self, name) {
            (Self::Request, "descriptors") => Self::Descriptors,
            (Self::Descriptor, "entries") => Self::Entries,
            _ => Self::Elsewhere,
        }
    }
}

impl Counted {
    /// Counts an item of a list, and gives the place of what is in it.
    fn item<E: serde::de::Error>(&mut self, of: Place) -> Result<Place, E> {
        let (counted, place) = match of {
            Place::Descriptors => (self.size.add_descriptor(), Place::Descriptor),
            Place::Entries => (self.size.add_entry(), Place::Elsewhere),
            _ => (Ok(()), Place::Elsewhere),
        };
        counted.map(|()| place).map_err(|refusal| {
            let error = E::custom(&refusal);
            self.refusal = Some(refusal);
            error
        })
    }
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen: SmallVec<[String; 8]> = SmallVec::new();
        while let Some(written) = map.next_key::<String>()? {
            let name = written.replace('_', "").to_ascii_lowercase();
            if seen.contains(&name) {
                return Err(serde::de::Error::custom(format!(
                    "repeated field name '{written}'"
                )));
            }
            map.next_value_seed(Scan {
                place: self.place.below(&name),
                counted: &mut *self.counted,
            })?;
            // Messages have a handful of fields; whatever has more names is refused for one that no
            // message has.
            if seen.len() < FIELDS_MAX {
                seen.push(name);
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items
            .next_element_seed(Item {
                list: self.place,
                counted: &mut *self.counted,
            })?
            .is_some()
        {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let place = self.counted.item(self.list)?;
        deserializer.deserialize_any(Scan {
            place,
            counted: self.counted,
        })
    }
}

/// Gives `visit` the bytes of every field with this number that is a message, until it says
/// `false`.
///
/// The fields of a group, which only unknown fields can be, are taken for fields of the message:
/// that counts too many, never too few.
fn each_message<'m>(
    mut message: &'m [u8],
    number: u32,
    mut visit: impl FnMut(&'m [u8]) -> bool,
) -> Result<(), DecodeError> {
    while !message.is_empty() {
        let (field, wire_type) = decode_key(&mut message)?;
        let length = match wire_type {
            WireType::Varint => {
                decode_varint(&mut message)?;
                0
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => {
                usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX)
            }
            WireType::StartGroup | WireType::EndGroup => 0,
        };
        // What reaches beyond the end is the decoder's error.
        let Some((value, rest)) = message.split_at_checked(length) else {
            return Ok(());
        };
        if field == number && wire_type == WireType::LengthDelimited && !visit(value) {
            return Ok(());
        }
        message = rest;
    }
    Ok(())
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
    fn descriptors_and_entries_are_counted_up_to_their_bounds() {
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
    fn what_precedes_broken_bytes_is_counted() {
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
    fn json_is_counted_wherever_descriptors_and_entries_are() {
        let counted = |body: &str| {
            RequestSize::of_json(body.as_bytes()).map(|size| (size.descriptors, size.entries))
        };
        let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"},{}]},{},{"limit":{"entries":[1]}}],"entries":[1,2],"other":[{}]}"#;
        assert_eq!(counted(body).expect("it is JSON"), (3, 2));
        let refusal = |body: &str| {
            counted(body)
                .expect_err("it is too much")
                .downcast::<LimiterError>()
                .expect("it says so")
        };
        assert_eq!(
            refusal(&format!(r#"{{"descriptors":[{}"#, "{},".repeat(2_000))),
            LimiterError::TooManyDescriptors
        );
        assert_eq!(
            refusal(&format!(
                r#"{{"descriptors":[{{"entries":[{}"#,
                "{},".repeat(20_000)
            )),
            LimiterError::TooManyEntries
        );
        assert!(
            counted("{")
                .expect_err("it ends early")
                .downcast_ref::<LimiterError>()
                .is_none()
        );
        assert!(counted(r#"{"descriptors":[],"descriptors":[]}"#).is_err());
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
