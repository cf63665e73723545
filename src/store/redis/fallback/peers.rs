//! The replicas of which heartbeats were received, and the share that follows. No clock, no
//! connection.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::base::time::{Span, Time};
use crate::limits::Share;

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

/// Messages of the heartbeat channel. Public for fuzzing.
#[derive(Debug, Default)]
pub struct Peers {
    /// The last of each process, by its name.
    pub(crate) heartbeats: BTreeMap<String, Time>,
    /// No peer is missed for heartbeats before this time.
    pub subscribed_at: Option<Time>,
    /// Processes that received the question of this one, itself included.
    pub(crate) asked: Option<usize>,
    pub(crate) known: Option<Share>,
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
        } else if is_name
            && (self.heartbeats.len() < REPLICAS_MAX || self.heartbeats.contains_key(message))
        {
            self.heartbeats.insert(message.to_owned(), now);
        }
    }

    /// Whether the process does not receive its own heartbeats.
    pub(crate) fn is_isolated(&self, own: &str, now: Time) -> bool {
        let last = self.heartbeats.get(own).copied().max(self.subscribed_at);
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
            self.heartbeats.retain(|_, last| now.since((*last).max(since)) <= silent_max);
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
        self.asked.is_some_and(|asked| self.heartbeats.len() >= asked.min(REPLICAS_MAX))
    }

    /// Returns whether the own heartbeat was received.
    pub(crate) fn unsubscribe(&mut self, own: &str) -> bool {
        let since = self.subscribed_at.take();
        let last = self.heartbeats.get(own);
        since.is_some_and(|since| last.is_some_and(|last| *last >= since))
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
        Peers { subscribed_at: Some(at(0)), ..Peers::default() }
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
    fn foreign_messages_are_ignored_and_names_are_bounded() {
        let mut peers = subscribed();
        let of_earlier_versions = [&format!("{OWN} 10.0.0.7:6070"), "~1:5"];
        let foreign = ["", "-", "hello", "zzzzzzzzzzzzzzzz", "00000000000000000"];
        for message in foreign.into_iter().chain(of_earlier_versions) {
            peers.on_heartbeat(message, at(1));
        }
        assert_eq!(peers.heartbeats.len(), 0);
        for number in 0..2 * REPLICAS_MAX {
            peers.on_heartbeat(&format!("{number:016x}"), at(1));
        }
        assert_eq!((peers.heartbeats.len(), peers.intervals()), (REPLICAS_MAX, 11));
    }
}
