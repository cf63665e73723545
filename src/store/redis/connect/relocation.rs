//! Whether to leave a connection because its server takes no writes any more.
//!
//! A demoted server replies READONLY and keeps its connections open, while its name may already
//! resolve to the new master. Only a new connection finds out. During the fault, about one
//! connection per second is replaced for each server; as soon as a new one can write, all older
//! ones are left when they reply with such an error.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::backoff::jittered;
use crate::base::time::{Span, Time};

/// The least time between two connections that are replaced for one server.
// bound reconnect_interval: fallback meanwhile; tollgate_store_connections_total
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Errors of a server that takes no writes: it is a Redis replica, it loads its file, or it is a
/// Redis replica without a master.
const CODES: [&str; 3] = ["READONLY", "LOADING", "MASTERDOWN"];

/// Whether the name of one server may resolve to another one now.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    /// A connection has replied so, and none has written since.
    is_suspected: AtomicBool,
    /// Background work was rejected, and none was executed since: the server is out of memory, for
    /// example. Calls keep their connections then; background work has one of its own each time.
    has_rejected: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the next connection may be replaced.
    next: Option<Time>,
    /// The newest connection that has written after another one was left.
    newest_writer: ConnectionId,
}

/// Orders the connections of this process by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// Whether an error says that the server takes no writes.
pub(crate) fn is_unwritable(error: &str) -> bool {
    CODES.iter().any(|code| error.contains(code))
}

impl Relocation {
    /// Whether to leave a connection that has replied so.
    pub(crate) fn should_reconnect(&self, connection: ConnectionId, now: Time) -> bool {
        self.is_suspected.store(true, Relaxed);
        let mut state = self.state.lock();
        connection < state.newest_writer || state.take_turn(now)
    }

    /// Whether to connect for background work.
    pub(crate) fn may_connect(&self, now: Time) -> bool {
        let is_paced = self.is_suspected() || self.has_rejected.load(Relaxed);
        !is_paced || self.state.lock().take_turn(now)
    }

    /// Whether the server has executed some of the background work on a connection, or none.
    pub(crate) fn record_background(&self, is_executed: bool) {
        self.has_rejected.store(!is_executed, Relaxed);
    }

    /// Whether connections have replied so, and none has written since.
    pub(crate) fn is_suspected(&self) -> bool {
        self.is_suspected.load(Relaxed)
    }

    /// A connection has written.
    pub(crate) fn record_write(&self, connection: ConnectionId) {
        if self.is_suspected() {
            let mut state = self.state.lock();
            state.newest_writer = state.newest_writer.max(connection);
            self.is_suspected.store(false, Relaxed);
        }
    }

    /// Whether a newer connection has written since servers have replied so.
    pub(crate) fn is_outdated(&self, connection: ConnectionId) -> bool {
        connection < self.state.lock().newest_writer
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
    fn one_connection_per_second_is_replaced_until_one_writes() {
        let relocation = Relocation::default();
        let [first, second, third] = [1, 2, 3].map(ConnectionId);
        assert!(relocation.may_connect(START));
        assert!(relocation.should_reconnect(first, START), "the first one immediately");
        assert!(!relocation.should_reconnect(second, START) && !relocation.may_connect(START));
        let later = START.plus(Span::from_secs(1));
        assert!(relocation.should_reconnect(second, later));
        assert!(!relocation.should_reconnect(first, later));
        relocation.record_write(third);
        assert!(
            relocation.should_reconnect(first, later) && relocation.should_reconnect(second, later),
            "they are older than one that writes"
        );
        assert!(!relocation.should_reconnect(third, later));
        assert!(relocation.is_outdated(second) && !relocation.is_outdated(third));
    }

    #[test]
    fn writes_change_nothing_without_a_suspicion() {
        let relocation = Relocation::default();
        relocation.record_write(ConnectionId(9));
        assert!(!relocation.is_outdated(ConnectionId(1)) && relocation.may_connect(START));
    }
}
