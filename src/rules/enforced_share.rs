//! The share of a rule's keys for which over limit is enforced: `enforce_percent`.
//!
//! A key has a fixed position from 0 to 9,999, by a hash of its domain and the entries it is
//! counted by. It is enforced if its position is below the share, so raising the share only adds
//! keys. Replicas, versions and stores agree on positions: neither CACHE_KEY_PREFIX nor the format
//! of keys, nor the limit, is part of the hash.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::rules::query::Entry;

/// Positions of keys: a hundredth of a percent each.
const POSITIONS: u64 = 10_000;
/// Changing them changes which keys are enforced in every installation.
const HASH_KEYS: (u64, u64) = (0x746f_6c6c_6761_7465, 0x656e_666f_7263_6564);

/// A percentage of keys, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnforcedShare {
    percent: u8,
}

impl EnforcedShare {
    /// Every key.
    pub const ALL: Self = Self { percent: 100 };

    /// `None` above 100.
    pub fn from_percent(percent: u64) -> Option<Self> {
        let percent = u8::try_from(percent).ok()?;
        (percent <= 100).then_some(Self { percent })
    }

    /// 0 to 100.
    pub const fn percent(self) -> u8 {
        self.percent
    }

    /// Whether over limit is enforced for the key of these entries.
    pub(crate) fn includes<'e>(
        self,
        domain: &str,
        entries: impl Iterator<Item = Entry<'e>>,
    ) -> bool {
        match self.percent {
            0 => false,
            100.. => true,
            percent => position(domain, entries) < u64::from(percent) * (POSITIONS / 100),
        }
    }
}

fn position<'e>(domain: &str, entries: impl Iterator<Item = Entry<'e>>) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(HASH_KEYS.0, HASH_KEYS.1);
    // With their lengths, so that different entries are different texts.
    let mut write = |part: &[u8]| {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    };
    write(domain.as_bytes());
    for entry in entries {
        write(entry.key);
        write(entry.value);
    }
    hasher.finish() % POSITIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position_of(domain: &str, entries: &[(&str, &str)]) -> u64 {
        let entries = entries.iter().map(|(key, value)| Entry::new(*key, *value));
        position(domain, entries)
    }

    fn is_enforced(percent: u64, user: u32) -> bool {
        let share = EnforcedShare::from_percent(percent).expect("it is a percentage");
        let user = user.to_string();
        share.includes("d", [Entry::new("user", &user)].into_iter())
    }

    #[test]
    fn positions_are_the_same_in_every_version() {
        assert_eq!(position_of("shop", &[("user", "42")]), 1_900);
        assert_eq!(position_of("shop", &[("tenant", "acme"), ("path", "/a")]), 6_057);
        assert_eq!(position_of("", &[]), 5_139);
    }

    #[test]
    fn entries_that_are_joined_differently_have_different_positions() {
        assert_ne!(position_of("d", &[("ab", "c")]), position_of("d", &[("a", "bc")]));
        assert_ne!(
            position_of("d", &[("a", "b"), ("c", "d")]),
            position_of("d", &[("c", "d"), ("a", "b")])
        );
    }

    #[test]
    fn raising_the_share_releases_no_key() {
        for user in 0..200 {
            let enforced: Vec<bool> = (0..=100).map(|percent| is_enforced(percent, user)).collect();
            assert!(enforced.is_sorted(), "user {user}");
            assert_eq!((enforced[0], enforced[100]), (false, true));
        }
    }

    #[test]
    fn the_share_of_keys_is_the_percentage() {
        for percent in [1, 10, 50, 90] {
            let enforced = (0..10_000).filter(|&user| is_enforced(percent, user)).count();
            let expected = usize::try_from(percent).expect("it is small") * 100;
            assert!(enforced.abs_diff(expected) < 150, "{enforced} of 10,000 at {percent} percent");
        }
    }

    #[test]
    fn a_share_is_0_to_100_percent() {
        assert_eq!(EnforcedShare::from_percent(101), None);
        assert_eq!(EnforcedShare::from_percent(256), None);
        assert_eq!(EnforcedShare::from_percent(100), Some(EnforcedShare::ALL));
    }
}
