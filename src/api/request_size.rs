//! The number of descriptors and entries of a request, which is bounded.
//!
//! Two bytes of a message can encode an empty descriptor, which takes 250 in memory: a message of
//! 4 MiB would become half a gigabyte.

use crate::rules::query::Query;

/// Descriptors of one request, counted before decoding. Envoys send a handful; a thousand take a
/// millisecond.
// bound descriptors_max: INVALID_ARGUMENT; 400; tollgate_invalid_requests_total
pub const DESCRIPTORS_MAX: usize = 1_000;
/// Entries of all descriptors of one request: ten for each of a thousand descriptors.
// bound entries_max: INVALID_ARGUMENT; 400; tollgate_invalid_requests_total
pub const ENTRIES_MAX: usize = 10_000;
/// Bytes of a message, decompressed if it was compressed, and of a body of `/json`. As in the
/// reference, whose gRPC library has this default.
// bound message_bytes_max: RESOURCE_EXHAUSTED; 413; tollgate_oversized_requests_total
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
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

/// Which of its parts a request has too many of: INVALID_ARGUMENT, or 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestTooLarge {
    /// More than [`DESCRIPTORS_MAX`].
    #[error(
        "more than the {DESCRIPTORS_MAX} descriptors that one request may have (descriptors_max)"
    )]
    Descriptors,
    /// More than [`ENTRIES_MAX`].
    #[error("more than the {ENTRIES_MAX} entries that one request may have (entries_max)")]
    Entries,
}

impl RequestSize {
    /// Counts a request that was not decoded from a message.
    pub(crate) fn of(query: &Query<'_>) -> Result<Self, RequestTooLarge> {
        let descriptors = query.descriptors.iter();
        Self {
            descriptors: descriptors.len(),
            entries: descriptors.map(|one| one.entries.len()).sum(),
        }
        .bounded()
    }

    /// Counts a request in JSON before it is decoded, by the depth of its objects: descriptors are
    /// in the request, entries in a descriptor. The text need not be JSON.
    pub(crate) fn of_json(body: &[u8]) -> Result<Self, RequestTooLarge> {
        let mut size = Self::default();
        let mut depth = 0_usize;
        let mut in_string = false;
        let mut is_escaped = false;
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

    pub(crate) fn add_descriptor(&mut self) -> Result<(), RequestTooLarge> {
        self.descriptors += 1;
        self.bounded().map(drop)
    }

    pub(crate) fn add_entry(&mut self) -> Result<(), RequestTooLarge> {
        self.entries += 1;
        self.bounded().map(drop)
    }

    fn bounded(self) -> Result<Self, RequestTooLarge> {
        match self {
            _ if self.descriptors > DESCRIPTORS_MAX => Err(RequestTooLarge::Descriptors),
            _ if self.entries > ENTRIES_MAX => Err(RequestTooLarge::Entries),
            _ => Ok(self),
        }
    }

    pub(crate) fn descriptors(self) -> usize {
        self.descriptors
    }

    /// Memory of the decoded request besides its strings.
    pub(crate) fn bytes(self) -> usize {
        self.descriptors * DESCRIPTOR_BYTES + self.entries * ENTRY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            Err(RequestTooLarge::Descriptors)
        );
        assert_eq!(
            counted(&format!(r#"{{"descriptors":[{{"entries":[{}"#, "{},".repeat(20_000))),
            Err(RequestTooLarge::Entries)
        );
        assert_eq!(counted("}}{"), Ok((0, 0)));
    }
}
