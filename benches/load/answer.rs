//! Reads answers, as much of them as a count needs: the gRPC status, `overall_code`, and how many
//! statuses there are.
//!
//! By hand and not with prost, which would allocate for every status: the generator shares its
//! cores with what it measures. The self-check reads with it what prost has written.

use std::fmt;

use crate::load::request::FRAME_HEADER_LEN;

/// What a request was told.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Answer {
    Ok,
    OverLimit,
    /// A gRPC status other than OK.
    Grpc(u16),
    /// An HTTP status other than 200 and no gRPC status.
    Http(u16),
    /// An answer that no service should give, and why.
    Malformed(&'static str),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("OK"),
            Self::OverLimit => f.write_str("OVER_LIMIT"),
            Self::Grpc(code) => match GRPC_CODES.get(usize::from(*code)) {
                Some(name) => f.write_str(name),
                None => write!(f, "grpc-status {code}"),
            },
            Self::Http(status) => write!(f, "http {status}"),
            Self::Malformed(why) => write!(f, "malformed: {why}"),
        }
    }
}

/// The names of gRPC's status codes, by number.
const GRPC_CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Field numbers of `RateLimitResponse`.
const OVERALL_CODE: u64 = 1;
const STATUSES: u64 = 2;

/// Reads a body that came with gRPC status OK: one framed `RateLimitResponse` with a status per
/// descriptor.
pub fn read(body: &[u8], descriptors: usize) -> Answer {
    let Some((header, message)) = body.split_first_chunk::<FRAME_HEADER_LEN>() else {
        return Answer::Malformed("no message");
    };
    let [compressed, length @ ..] = *header;
    if compressed != 0 {
        return Answer::Malformed("compressed, unasked");
    }
    if u32::from_be_bytes(length) as usize != message.len() {
        return Answer::Malformed("not exactly one message");
    }
    match scan(message) {
        None => Answer::Malformed("not protobuf"),
        Some((_, statuses)) if statuses != descriptors => {
            Answer::Malformed("statuses do not match descriptors")
        }
        Some((1, _)) => Answer::Ok,
        Some((2, _)) => Answer::OverLimit,
        Some(_) => Answer::Malformed("overall_code is neither OK nor OVER_LIMIT"),
    }
}

/// `overall_code` and the number of `statuses`, or nothing if this is not protobuf.
pub fn scan(mut rest: &[u8]) -> Option<(u64, usize)> {
    let (mut overall_code, mut statuses) = (0, 0);
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        match (tag >> 3, tag & 7) {
            (OVERALL_CODE, 0) => overall_code = varint(&mut rest)?,
            (_, 0) => _ = varint(&mut rest)?,
            (_, 1) => rest = rest.get(8..)?,
            (_, 5) => rest = rest.get(4..)?,
            (field, 2) => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
                statuses += usize::from(field == STATUSES);
            }
            _ => return None,
        }
    }
    Some((overall_code, statuses))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
