//! What an operator has changed, as replicas announce it to each other.

use siphasher::sip128::{Hasher128 as _, SipHasher13};
use std::hash::Hasher as _;

use crate::base::time::Time;
use crate::limits::check::Key;

/// Begins every announcement.
const CHANGE: &str = "!";

/// A change of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Any counter may have been refunded.
    Refunded,
    /// A counter was deleted. Earlier versions ignore it.
    Deleted {
        /// The [hash](key_hash) of its key: a message is short, and keys are not.
        key: u128,
        /// Not later than it was, by the server's clock.
        at: Time,
    },
}

impl Change {
    pub(crate) fn message(self) -> String {
        match self {
            Self::Refunded => CHANGE.to_owned(),
            Self::Deleted { key, at } => format!("{CHANGE} {key:032x} {}", at.as_micros()),
        }
    }

    /// `None` for another message.
    pub(crate) fn read(message: &str) -> Option<Self> {
        let rest = message.strip_prefix(CHANGE)?;
        if rest.is_empty() {
            return Some(Self::Refunded);
        }
        let (key, at) = rest.strip_prefix(' ')?.split_once(' ')?;
        Some(Self::Deleted {
            key: u128::from_str_radix(key, 16).ok()?,
            at: Time::from_micros(at.parse().ok()?),
        })
    }
}

/// The hash of a key, equal in all processes.
pub(crate) fn key_hash(key: &Key) -> u128 {
    let mut hasher = SipHasher13::new();
    hasher.write(key.as_bytes());
    hasher.finish128().as_u128()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_read_as_they_are_written() {
        let deleted = Change::Deleted {
            key: key_hash(&Key::from("tg:d:key:value")),
            at: Time::from_micros(1_700_000_000_000_000),
        };
        for change in [Change::Refunded, deleted] {
            assert_eq!(Change::read(&change.message()), Some(change));
        }
        for other in ["", "a", "!x", "! ", "! 1", "! g 1", "! 1 x", "!  1 1"] {
            assert_eq!(Change::read(other), None, "{other}");
        }
    }
}
