//! Lifetimes of keys that Redis has not confirmed.
//!
//! INCR creates a key without a lifetime. The EXPIRE that follows may be lost with its connection,
//! and so may the reply that shows that it is needed; later hits do not show it. So such lifetimes
//! are kept here until a server has confirmed them.
//!
//! ```text
//!   add -> due -> EXPIRE replies 1: removed
//!           ^             replies 0: there is no key, but TCP may still deliver INCR
//!           +-------------+ after twice the time, until LATE_MAX
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bb8_redis::redis::Value;
use parking_lot::Mutex;

use crate::base::time::{Span, Time};
use crate::limits::check::Key;
use crate::telemetry::metric::Counter;

/// Bytes of keys without a confirmed expiry: about 40,000 of usual length. They come from the few
/// pipelines that fail before a breaker opens: one of each worker and three more, with at most 256
/// new keys each, so that eight workers have 2,816 for each server.
// bound lifetimes_bytes_max: such a key may stay without expiry;
// tollgate_store_expiries_unconfirmed_total
const LIFETIMES_BYTES_MAX: usize = 4 << 20;
/// For how long Linux sends again what was written to a connection that is closed: 8 times, first
/// after 0.2 s, with backoff.
const LATE_MAX: Span = Span::from_secs(120);

/// How long a key of Redis lives from when this is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) key: Key,
    pub(crate) secs: u64,
}

/// The unconfirmed lifetimes of one deployment.
#[derive(Debug)]
pub(crate) struct UnconfirmedLifetimes {
    lifetimes: Mutex<Lifetimes>,
    lost: Counter,
}

/// A lifetime to send.
#[derive(Debug)]
pub(crate) struct DueLifetime {
    pub(crate) lifetime: Lifetime,
    addition: u64,
}

#[derive(Debug, Default)]
struct Lifetimes {
    by_key: HashMap<Key, Unconfirmed>,
    bytes: usize,
    additions: u64,
}

#[derive(Debug, Clone, Copy)]
struct Unconfirmed {
    secs: u64,
    /// A key may be created again while its EXPIRE is in flight. A reply is for one addition.
    addition: u64,
    /// When it was due first.
    since: Option<Time>,
    due: Time,
}

impl UnconfirmedLifetimes {
    /// `lost` counts those of all deployments beyond the bound.
    pub(crate) fn new(lost: Counter) -> Self {
        Self { lifetimes: Mutex::default(), lost }
    }

    pub(crate) fn add(&self, unconfirmed: impl IntoIterator<Item = Lifetime>) {
        let mut lifetimes = self.lifetimes.lock();
        for Lifetime { key, secs } in unconfirmed {
            lifetimes.additions += 1;
            let unconfirmed = Unconfirmed {
                secs,
                addition: lifetimes.additions,
                since: None,
                due: Time::default(),
            };
            let bytes = lifetimes.bytes + bytes_of(&key);
            match lifetimes.by_key.entry(key) {
                Entry::Occupied(mut known) => *known.get_mut() = unconfirmed,
                Entry::Vacant(new) if bytes <= LIFETIMES_BYTES_MAX => {
                    new.insert(unconfirmed);
                    lifetimes.bytes = bytes;
                }
                Entry::Vacant(_) => self.lost.inc(),
            }
        }
    }

    /// Lifetimes to send now, for the keys that a server has.
    pub(crate) fn due(&self, now: Time, has: impl Fn(&Key) -> bool) -> Vec<DueLifetime> {
        let mut lifetimes = self.lifetimes.lock();
        let unconfirmed = lifetimes.by_key.iter_mut();
        let due = unconfirmed.filter(|(key, unconfirmed)| unconfirmed.due <= now && has(key));
        let due = due.map(|(key, unconfirmed)| {
            unconfirmed.since.get_or_insert(now);
            let key = key.clone();
            let secs = unconfirmed.secs;
            DueLifetime { lifetime: Lifetime { key, secs }, addition: unconfirmed.addition }
        });
        due.collect()
    }

    /// Records the replies to EXPIRE. Those with an error stay due.
    pub(crate) fn record<'l>(
        &self,
        replies: impl IntoIterator<Item = (&'l DueLifetime, &'l Value)>,
        now: Time,
    ) {
        let mut lifetimes = self.lifetimes.lock();
        for (sent, reply) in replies {
            let key = &sent.lifetime.key;
            let known = lifetimes.by_key.get_mut(key);
            let Some(known) = known.filter(|known| known.addition == sent.addition) else {
                continue;
            };
            let age = known.since.map_or(Span::ZERO, |since| now.since(since));
            match reply {
                Value::Int(0) if age < LATE_MAX => known.due = now.plus(age),
                Value::Int(_) => {
                    lifetimes.by_key.remove(key);
                    lifetimes.bytes -= bytes_of(key);
                }
                _ => {}
            }
        }
    }
}

/// With its place in the table.
fn bytes_of(key: &Key) -> usize {
    key.len() + size_of::<(Key, Unconfirmed)>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metric::Metrics;

    fn lifetimes() -> UnconfirmedLifetimes {
        UnconfirmedLifetimes::new(Metrics::new().counter("lost", "Lost."))
    }

    fn lifetime(key: &str) -> Lifetime {
        Lifetime { key: Key::from(key), secs: 60 }
    }

    fn at(secs: u64) -> Time {
        Time::from_micros(0).plus(Span::from_secs(secs))
    }

    #[test]
    fn absent_keys_are_tried_with_backoff_for_two_minutes() {
        let lifetimes = lifetimes();
        lifetimes.add([lifetime("a")]);
        let mut tried = Vec::new();
        for second in 1..=600 {
            let due = lifetimes.due(at(second), |_| true);
            tried.extend(due.iter().map(|_| second));
            lifetimes.record(due.iter().map(|due| (due, &Value::Int(0))), at(second));
        }
        assert_eq!(tried, [1, 2, 3, 5, 9, 17, 33, 65, 129]);
        assert_eq!(lifetimes.lifetimes.lock().bytes, 0);
    }

    #[test]
    fn replies_confirm_only_what_was_sent() {
        let lifetimes = lifetimes();
        lifetimes.add([lifetime("a"), lifetime("b"), lifetime("c")]);
        let due = lifetimes.due(at(0), |key| *key != Key::from("c"));
        assert_eq!(due.len(), 2);
        lifetimes.add([lifetime("a")]);
        lifetimes.record(due.iter().map(|due| (due, &Value::Int(1))), at(1));
        let mut left = lifetimes.due(at(1), |_| true);
        left.sort_by_key(|due| due.lifetime.key.to_string());
        let left = left.iter().map(|due| due.lifetime.key.to_string());
        assert_eq!(left.collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn keys_beyond_the_bound_are_counted() {
        let lifetimes = lifetimes();
        let fit = LIFETIMES_BYTES_MAX / bytes_of(&Key::from("0000000"));
        lifetimes.add((0..fit + 3).map(|number| lifetime(&format!("{number:07}"))));
        assert_eq!(lifetimes.due(at(0), |_| true).len(), fit);
        assert_eq!(lifetimes.lost.get(), 3);
    }
}
