//! Decodes a RateLimitRequest into a query that borrows the texts of the message.
//!
//! prost would allocate for each descriptor, entry, key and value. Its functions read the fields
//! here, so the same messages are valid, with the same meaning: the last of several values counts,
//! messages that are given twice are merged, and unknown fields are skipped. Keys and values may
//! be any bytes, since clients choose them.

use prost::DecodeError;
use prost::encoding::{
    DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field,
};
use smallvec::SmallVec;

use crate::api::convert;
use crate::api::request_size::{RequestSize, RequestTooLarge};
use crate::rules::query::{Descriptor, Entry, Query};

// Field numbers of `proto/`.
const REQUEST_DOMAIN: u32 = 1;
const REQUEST_DESCRIPTORS: u32 = 2;
const REQUEST_HITS_ADDEND: u32 = 3;
const DESCRIPTOR_ENTRIES: u32 = 1;
const DESCRIPTOR_LIMIT: u32 = 2;
const DESCRIPTOR_HITS_ADDEND: u32 = 3;
const DESCRIPTOR_IS_NEGATIVE_HITS: u32 = 4;
const ENTRY_KEY: u32 = 1;
const ENTRY_VALUE: u32 = 2;
const LIMIT_REQUESTS_PER_UNIT: u32 = 1;
const LIMIT_UNIT: u32 = 2;
/// The field of google.protobuf.UInt64Value.
const WRAPPED: u32 = 1;

/// Why a message is no query.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QueryError {
    /// The message is not a RateLimitRequest.
    #[error(transparent)]
    Invalid(#[from] DecodeError),
    /// The message has too many descriptors or entries.
    #[error(transparent)]
    TooLarge(#[from] RequestTooLarge),
}

/// The fields of a message that are not read yet.
pub(crate) struct Fields<'m>(pub(crate) &'m [u8]);

/// A field: its wire type, and the bytes after its key.
pub(crate) struct Field<'m> {
    pub(crate) number: u32,
    wire_type: WireType,
    encoded: &'m [u8],
}

/// Decodes a request, and counts what it has.
///
/// # Errors
/// The message is invalid, or has more descriptors or entries than the bounds allow.
pub fn query(message: &[u8]) -> Result<(Query<'_>, RequestSize), QueryError> {
    let mut query = Query::default();
    let mut size = RequestSize::default();
    // `hits_addend`, which applies to all descriptors, may follow them.
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        match field.number {
            REQUEST_DOMAIN => query.domain = field.bytes()?,
            REQUEST_HITS_ADDEND => query.hits_addend = truncated(field.varint()?),
            REQUEST_DESCRIPTORS => size.add_descriptor()?,
            _ => {}
        }
    }
    query.descriptors = SmallVec::with_capacity(size.descriptors());
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        if field.number == REQUEST_DESCRIPTORS {
            let descriptor = descriptor(field.bytes()?, query.hits_addend, &mut size)?;
            query.descriptors.push(descriptor);
        }
    }
    Ok((query, size))
}

fn descriptor<'m>(
    message: &'m [u8],
    hits_of_request: u32,
    size: &mut RequestSize,
) -> Result<Descriptor<'m>, QueryError> {
    let mut entries = SmallVec::new();
    let mut limit = None;
    let mut hits_addend = None;
    let mut is_negative = false;
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        match field.number {
            DESCRIPTOR_ENTRIES => {
                size.add_entry()?;
                entries.push(entry(field.bytes()?)?);
            }
            DESCRIPTOR_LIMIT => {
                let limit = limit.get_or_insert((0, 0));
                merge_limit(limit, field.bytes()?)?;
            }
            DESCRIPTOR_HITS_ADDEND => {
                let hits = hits_addend.get_or_insert(0);
                merge_wrapped(hits, field.bytes()?)?;
            }
            DESCRIPTOR_IS_NEGATIVE_HITS => is_negative = field.varint()? != 0,
            _ => {}
        }
    }
    Ok(Descriptor {
        entries,
        limit: limit.map(|(requests, unit)| convert::override_limit(requests, unit)),
        hits: convert::hits(hits_addend, hits_of_request, is_negative),
        hits_addend,
    })
}

fn entry(message: &[u8]) -> Result<Entry<'_>, DecodeError> {
    let mut read = Entry::new("", "");
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        match field.number {
            ENTRY_KEY => read.key = field.bytes()?,
            ENTRY_VALUE => read.value = field.bytes()?,
            _ => {}
        }
    }
    Ok(read)
}

/// Merges a RateLimitOverride into the number and the unit so far.
fn merge_limit(so_far: &mut (u32, i32), message: &[u8]) -> Result<(), DecodeError> {
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        match field.number {
            LIMIT_REQUESTS_PER_UNIT => so_far.0 = truncated(field.varint()?),
            LIMIT_UNIT => so_far.1 = truncated(field.varint()?).cast_signed(),
            _ => {}
        }
    }
    Ok(())
}

/// Merges a UInt64Value into the number so far.
fn merge_wrapped(so_far: &mut u64, message: &[u8]) -> Result<(), DecodeError> {
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        if field.number == WRAPPED {
            *so_far = field.varint()?;
        }
    }
    Ok(())
}

/// The lower half, as protobuf reads a number of 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "protobuf truncates such numbers")]
fn truncated(number: u64) -> u32 {
    number as u32
}

impl<'m> Fields<'m> {
    /// The next field; `None` at the end of the message.
    pub(crate) fn next(&mut self) -> Result<Option<Field<'m>>, DecodeError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = decode_key(&mut self.0)?;
        let before = self.0;
        skip_field(wire_type, number, &mut self.0, DecodeContext::default())?;
        Ok(Some(Field { number, wire_type, encoded: &before[..before.len() - self.0.len()] }))
    }
}

impl<'m> Field<'m> {
    /// The content of a text or a message.
    pub(crate) fn bytes(self) -> Result<&'m [u8], DecodeError> {
        check_wire_type(WireType::LengthDelimited, self.wire_type)?;
        let mut content = self.encoded;
        decode_varint(&mut content)?;
        Ok(content)
    }

    pub(crate) fn varint(mut self) -> Result<u64, DecodeError> {
        check_wire_type(WireType::Varint, self.wire_type)?;
        decode_varint(&mut self.encoded)
    }
}

#[cfg(test)]
mod tests;
