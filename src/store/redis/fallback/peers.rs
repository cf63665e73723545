//! The replicas of which heartbeats were received, and the share that follows. No clock, no
//! connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::base::time::{Span, Time};
use crate::limit::Share;

/// Processes that share the limits on one Redis.
// bound replicas_max: the others are not counted, so shares are larger; tollgate_replicas
pub(crate) const REPLICAS_MAX: usize = 1_000;
/// The interval of heartbeats. Each process receives all of them, so it grows by as much for every
/// [`REPLICAS_PER_INTERVAL`].
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
const REPLICAS_PER_INTERVAL: usize = 100;
/// Heartbeats that a replica may miss. A failover or a paused process misses fewer.
// bound heartbeats_missed_max: the replica is gone; tollgate_replicas
const HEARTBEATS_MISSED_MAX: u32 = 10;
/// Heartbeat intervals of all peers to await before the membership is used.
const HEARTBEATS_AWAITED: u32 = 2;
/// Precedes the name of a process that leaves.
pub(crate) const LEAVE: char = '-';
/// Precedes the name of a process that asks for heartbeats. Earlier versions ignore it.
pub(crate) const ASK: char = '?';
/// Precedes the key of the hashes of values. Earlier versions ignore it.
const KEY: char = '~';

/// Messages of the heartbeat channel. Public for fuzzing.
#[derive(Debug, Default)]
pub struct Peers {
    /// By name.
    pub(crate) heartbeats: BTreeMap<String, Heartbeat>,
    /// No peer is missed for heartbeats before this time.
    pub subscribed_at: Option<Time>,
    /// Processes that received the question of this one, itself included.
    pub(crate) asked: Option<usize>,
    pub(crate) known: Option<Share>,
    /// `None` if the processes agree on none.
    pub key: Option<FleetKey>,
}

/// A key that processes agree on: the oldest one that they know, so that one that starts takes over
/// that of the others. Public for fuzzing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FleetKey {
    /// When its process made it.
    pub made_at: Time,
    /// Random.
    pub key: u128,
}

/// The last heartbeat of a process.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    pub(crate) at: Time,
    pub(crate) admin: Option<SocketAddr>,
}

impl FleetKey {
    pub(crate) fn message(&self) -> String {
        format!("{KEY}{}:{:032x}", self.made_at.as_micros(), self.key)
    }

    /// `None` for another message.
    fn read(message: &str) -> Option<Self> {
        let (made_at, key) = message.strip_prefix(KEY)?.split_once(':')?;
        Some(Self {
            made_at: Time::from_micros(made_at.parse().ok()?),
            key: u128::from_str_radix(key, 16).ok()?,
        })
    }
}

impl Peers {
    /// [`HEARTBEAT_INTERVAL`]s between two heartbeats of a process.
    pub(crate) fn intervals(&self) -> u32 {
        u32::try_from(1 + self.heartbeats.len() / REPLICAS_PER_INTERVAL).unwrap_or(u32::MAX)
    }

    /// The time that this number of heartbeats takes.
    pub(crate) fn time_of(&self, heartbeats: u32) -> Span {
        Span::from(HEARTBEAT_INTERVAL * self.intervals() * heartbeats)
    }

    /// Returns whether another process asks for heartbeats. Unknown messages are ignored.
    pub fn on_message(&mut self, message: &str, own: &str, now: Time) -> bool {
        if let Some(known) = &mut self.key
            && let Some(received) = FleetKey::read(message)
        {
            *known = received.min(*known);
            return false;
        }
        let asker = message.strip_prefix(ASK);
        if asker.is_none() {
            self.on_heartbeat(message, now);
        }
        asker.is_some_and(|asker| asker != own)
    }

    pub(crate) fn on_heartbeat(&mut self, message: &str, now: Time) {
        let is_name = message.len() == 16 && message.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(name) = message.strip_prefix(LEAVE) {
            self.heartbeats.remove(name);
        } else if let Some((name, admin)) = message.split_once(' ') {
            if let Some(heartbeat) = self.heartbeats.get_mut(name) {
                heartbeat.admin = admin.parse().ok();
            }
        } else if is_name
            && (self.heartbeats.len() < REPLICAS_MAX || self.heartbeats.contains_key(message))
        {
            self.heartbeats.entry(message.to_owned()).or_default().at = now;
        }
    }

    /// Whether the process does not receive its own heartbeats.
    pub(crate) fn is_isolated(&self, own: &str, now: Time) -> bool {
        let last = self.heartbeats.get(own).map(|heartbeat| heartbeat.at);
        let last = last.max(self.subscribed_at);
        last.is_some_and(|last| now.since(last) > self.time_of(HEARTBEATS_MISSED_MAX))
    }

    /// Removes peers that are gone, and returns the known share. Until all peers had the time for a
    /// heartbeat, it only changes for more replicas than before. The own heartbeat must be among
    /// them.
    pub fn update(&mut self, own: &str, configured: Share, now: Time) -> Option<Share> {
        let Some(since) = self.subscribed_at else {
            return self.known;
        };
        let mut replicas_min = self.known.unwrap_or(configured).replicas().get();
        if now.since(since) >= self.time_of(HEARTBEATS_AWAITED) {
            let silent_max = self.time_of(HEARTBEATS_MISSED_MAX);
            self.heartbeats
                .retain(|_, last| now.since(last.at.max(since)) <= silent_max);
            replicas_min = 1;
        }
        let rank = self.heartbeats.keys().position(|name| name == own);
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let replicas = number(self.heartbeats.len());
        if let Some(rank) = rank.filter(|_| replicas >= replicas_min)
            && let Some(replicas) = NonZeroU32::new(replicas)
        {
            self.known = Some(Share::ranked(replicas, number(rank)));
        }
        self.known
    }

    /// Whether heartbeats of as many processes have arrived as have received the question.
    pub(crate) fn have_answered(&self) -> bool {
        self.asked
            .is_some_and(|asked| self.heartbeats.len() >= asked.min(REPLICAS_MAX))
    }

    /// Returns whether the own heartbeat was received.
    pub(crate) fn unsubscribe(&mut self, own: &str) -> bool {
        let since = self.subscribed_at.take();
        let last = self.heartbeats.get(own).map(|heartbeat| heartbeat.at);
        since.is_some_and(|since| last.is_some_and(|last| last >= since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "5000000000000000";

    fn at(second: u64) -> Time {
        Time::from_micros(1_700_000_000_000_000).plus(Span::from_secs(second))
    }

    fn name(number: u64) -> String {
        format!("{number}{}", &OWN[1..])
    }

    fn subscribed() -> Peers {
        Peers {
            subscribed_at: Some(at(0)),
            ..Peers::default()
        }
    }

    /// Replica count and rank after heartbeats of these peers.
    fn after(peers: &mut Peers, second: u64, numbers: &[u64]) -> Option<(u32, u32)> {
        for number in numbers {
            peers.on_heartbeat(&name(*number), at(second));
        }
        let share = peers.update(OWN, Share::one_of(NonZeroU32::MIN), at(second))?;
        let is_own = |rank: &u32| share == Share::ranked(share.replicas(), *rank);
        Some((share.replicas().get(), (0..9).find(is_own).expect("a rank")))
    }

    #[test]
    fn new_peers_count_at_once_and_silent_ones_for_ten_heartbeats() {
        let mut peers = subscribed();
        assert_eq!(after(&mut peers, 0, &[7]), None, "the own one is missing");
        assert_eq!(after(&mut peers, 0, &[5]), Some((2, 0)));
        assert_eq!(after(&mut peers, 2, &[5, 7, 3]), Some((3, 1)));
        assert_eq!(after(&mut peers, 3, &[5, 7, 1]), Some((4, 2)));
        for second in 4..=12 {
            assert_eq!(after(&mut peers, second, &[5, 7]), Some((4, 2)), "{second}");
        }
        assert_eq!(after(&mut peers, 13, &[5, 7]), Some((3, 1)));
        assert_eq!(after(&mut peers, 14, &[5, 7]), Some((2, 0)));
        peers.on_heartbeat(&format!("-{}", name(7)), at(14));
        assert_eq!(after(&mut peers, 14, &[5]), Some((1, 0)), "it left");
    }

    #[test]
    fn processes_agree_on_the_oldest_key_in_any_order() {
        let key = |made_at: u64, key| FleetKey {
            made_at: at(made_at),
            key,
        };
        let keys = [key(3, 7), key(1, u128::MAX), key(1, 5), key(2, 0)];
        for own in keys {
            for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
                let mut peers = Peers {
                    key: Some(own),
                    ..subscribed()
                };
                for index in order {
                    assert!(!peers.on_message(&keys[index].message(), OWN, at(4)));
                }
                assert_eq!(peers.key, Some(key(1, 5)));
                assert!(peers.heartbeats.is_empty(), "a key is no heartbeat");
            }
        }
        for invalid in ["~", "~1", "~:5", "~x:5", "~1:g", "~-1:5", "~1:5 x"] {
            let mut peers = Peers {
                key: Some(keys[0]),
                ..subscribed()
            };
            peers.on_message(invalid, OWN, at(4));
            assert_eq!(peers.key, Some(keys[0]), "{invalid}");
        }
        let mut configured = subscribed();
        configured.on_message(&keys[2].message(), OWN, at(4));
        assert_eq!(configured.key, None);
    }

    #[test]
    fn known_share_stays_until_all_peers_had_the_time_for_a_heartbeat() {
        let mut peers = subscribed();
        assert_eq!(after(&mut peers, 5, &[5, 7, 3]), Some((3, 1)));
        peers.subscribed_at = None;
        assert_eq!(after(&mut peers, 100, &[]), Some((3, 1)));
        peers.subscribed_at = Some(at(200));
        for second in 200..=210 {
            assert_eq!(after(&mut peers, second, &[5]), Some((3, 1)), "{second}");
        }
        assert_eq!(after(&mut peers, 211, &[5]), Some((1, 0)));
    }

    #[test]
    fn admin_address_follows_the_heartbeat_of_its_process() {
        let mut peers = subscribed();
        let admin = "10.0.0.7:6070";
        peers.on_heartbeat(&format!("{OWN} {admin}"), at(1));
        assert_eq!(peers.heartbeats.len(), 0, "the heartbeat comes first");
        for (message, expected) in [
            (OWN.to_owned(), None),
            (format!("{OWN} {admin}"), Some(admin)),
            (OWN.to_owned(), Some(admin)),
            (format!("{OWN} [::1]:80"), Some("[::1]:80")),
            (format!("{OWN} localhost:80"), None),
        ] {
            peers.on_heartbeat(&message, at(1));
            let expected = expected.map(|admin| admin.parse().expect("an address"));
            assert_eq!(peers.heartbeats[OWN].admin, expected, "{message}");
        }
    }

    #[test]
    fn foreign_messages_are_ignored_and_names_are_bounded() {
        let mut peers = subscribed();
        for message in ["", "-", "hello", "zzzzzzzzzzzzzzzz", "00000000000000000"] {
            peers.on_heartbeat(message, at(1));
        }
        assert_eq!(peers.heartbeats.len(), 0);
        for number in 0..2 * REPLICAS_MAX {
            peers.on_heartbeat(&format!("{number:016x}"), at(1));
        }
        assert_eq!(
            (peers.heartbeats.len(), peers.intervals()),
            (REPLICAS_MAX, 11)
        );
    }
}
