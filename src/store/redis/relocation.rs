//! When to leave a connection because its server is no longer the one to count on.
//!
//! A server that was demoted replies READONLY and keeps its connections open, while its name may
//! already lead to the new master. Only a new connection finds that out. While the fault lasts,
//! about one connection a second is made anew for each server; as soon as one of them counts again,
//! all older ones are left when they reply with such an error.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::backoff::jittered;
use crate::time::{Span, Time};

/// At most how often a connection to one server is made anew because of such replies.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// What a server replies that takes no writes: it is a replica, it is reading its file, or it is a
/// replica without a master.
const CODES: [&str; 3] = ["READONLY", "LOADING", "MASTERDOWN"];

/// Whether the name of one server may lead to another one now.
#[derive(Debug, Default)]
pub struct Relocation {
    /// A connection has replied so, and none has counted since.
    is_suspected: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the next connection may be made anew.
    next: Option<Time>,
    /// The newest connection that has counted after another one was left.
    counts: ConnectionId,
}

/// Orders connections of this process by when they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ConnectionId(pub u64);

/// Whether an error says that another server should be asked.
pub fn is_misplaced(error: &str) -> bool {
    CODES.iter().any(|code| error.contains(code))
}

impl Relocation {
    /// Whether to leave a connection that has replied so.
    pub fn leaves(&self, connection: ConnectionId, now: Time) -> bool {
        self.is_suspected.store(true, Relaxed);
        let mut state = self.state();
        connection < state.counts || state.take_turn(now)
    }

    /// Whether to make a connection for something that no caller waits for.
    pub fn may_connect(&self, now: Time) -> bool {
        !self.is_suspected() || self.state().take_turn(now)
    }

    /// Whether connections have replied so, and none has counted since.
    pub fn is_suspected(&self) -> bool {
        self.is_suspected.load(Relaxed)
    }

    /// A connection has counted.
    pub fn counted(&self, connection: ConnectionId) {
        if self.is_suspected() {
            let mut state = self.state();
            state.counts = state.counts.max(connection);
            self.is_suspected.store(false, Relaxed);
        }
    }

    /// Whether a newer connection has counted since servers have replied so.
    pub fn is_outdated(&self, connection: ConnectionId) -> bool {
        connection < self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn take_turn(&mut self, now: Time) -> bool {
        let is_due = self.next.is_none_or(|next| now >= next);
        if is_due {
            self.next = Some(now.plus(Span::from(jittered(RECONNECT_INTERVAL))));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_micros(1_700_000_000_000_000);

    #[test]
    fn one_connection_a_second_is_left_until_one_counts_and_then_all_older_ones() {
        let relocation = Relocation::default();
        let [first, second, third] = [1, 2, 3].map(ConnectionId);
        assert!(relocation.may_connect(START));
        assert!(relocation.leaves(first, START), "the first one at once");
        assert!(!relocation.leaves(second, START) && !relocation.may_connect(START));
        let later = START.plus(Span::from_secs(1));
        assert!(relocation.leaves(second, later));
        assert!(!relocation.leaves(first, later));
        relocation.counted(third);
        assert!(
            relocation.leaves(first, later) && relocation.leaves(second, later),
            "they are older than one that counts"
        );
        assert!(!relocation.leaves(third, later));
        assert!(relocation.is_outdated(second) && !relocation.is_outdated(third));
    }

    #[test]
    fn a_connection_that_counts_changes_nothing_while_none_is_suspected() {
        let relocation = Relocation::default();
        relocation.counted(ConnectionId(9));
        assert!(!relocation.is_outdated(ConnectionId(1)) && relocation.may_connect(START));
    }
}
