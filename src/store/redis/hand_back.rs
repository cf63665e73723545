//! Hands back to a server what was counted without it: by the script that serves, over a connection of its own.

use redis::RedisError;

use crate::check::Check;
use crate::store::redis::clock::RedisClock;
use crate::store::redis::connection::Link;
use crate::store::redis::last_seen::LastSeen;
use crate::store::redis::script::Line;
use crate::store::redis::stand_in::{Creditor, Fate, Parcel};
use crate::store::redis::trip::{self, Back, Trip};
use crate::time::{Clock, Span, Time};

/// A server that answers again, and has not been asked for anything since.
pub struct Returned<'r, F> {
    /// A connection to it.
    pub link: Link,
    /// Which counters are its own.
    pub owns: F,
    /// Where it is noted what it says.
    pub last_seen: &'r LastSeen,
    /// Our clock, and its.
    pub clock: &'r Clock,
    /// See `clock`.
    pub redis_clock: &'r RedisClock,
    /// By how much keys of windows outlive them.
    pub jitter: Span,
}

impl<F: Fn(&Check) -> bool + Send> Creditor for Returned<'_, F> {
    fn owns(&self, check: &Check) -> bool {
        (self.owns)(check)
    }

    fn now(&self) -> Time {
        self.redis_clock.at(self.clock.now())
    }

    async fn charge(&mut self, parcels: &[Parcel]) -> Vec<Fate> {
        let at = self.now();
        let line = |parcel: &Parcel| {
            let hash = self.last_seen.hash(&parcel.check.key);
            Line::charging(&parcel.check, parcel.charge, hash, at, true, self.jitter)
        };
        let lines: Vec<Line> = parcels.iter().map(line).collect();
        // Somebody may have it and somebody may not: nothing is sent twice.
        let Ok(back) = self.call(&lines).await else { return vec![Fate::Lost; parcels.len()] };
        let now = self.clock.now();
        let fate = |(line, told): (&Line, Result<_, String>)| match told {
            Ok(said) => {
                self.last_seen.remember(line.hash(), line.used(&said), now);
                Fate::Charged
            }
            Err(_) => Fate::Refused,
        };
        lines.iter().zip(back.told).map(fate).collect()
    }
}

impl<F> Returned<'_, F> {
    async fn call(&mut self, lines: &[Line]) -> Result<Back, RedisError> {
        let trip = Trip::new([(false, lines)].into_iter(), self.clock.is_manual().then(|| self.clock.now()));
        let mut values = self.link.call(&trip.commands()).await?;
        if trip::is_forgotten(&values) {
            values.pop();
            values.extend(self.link.call(&trip.script()).await?);
        }
        trip.read(values)
    }
}
