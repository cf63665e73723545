//! Estimates a server's clock, for what has to be estimated before a call: which window a hit is
//! in.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use bb8_redis::redis::{self, Value};

use crate::base::time::{Clock, MICROS_PER_SECOND, Span, Time};

/// Age of an estimate of a server's clock that is used without reading it again. Clocks drift by
/// less than 1 µs in this time; a clock that was set is noticed after it.
const ESTIMATE_AGE_MAX: Span = Span::from_micros(10_000);

/// The estimate, which all workers share.
#[derive(Debug)]
pub(crate) struct RedisClock {
    /// The clock of this process.
    here: Clock,
    /// The lead of the server's clock over ours, in µs.
    ahead: AtomicI64,
    /// The time of the last reading by our clock, in µs since the epoch; 0 before the first.
    read_at: AtomicU64,
}

impl RedisClock {
    /// Unknown until it is read, unless a manual clock replaces it.
    pub(crate) fn new(here: Clock) -> Self {
        Self { ahead: AtomicI64::new(0), read_at: AtomicU64::new(here.is_manual().into()), here }
    }

    /// Reads the server's clock no more, because its user may not: ours replaces it.
    pub(crate) fn use_own(&self) {
        self.read_at.store(u64::MAX, Relaxed);
    }

    /// Reads the server's clock again with the next batch.
    pub(crate) fn use_servers(&self) {
        self.read_at.store(1, Relaxed);
    }

    /// Whether the server's clock was ever read. Before that, no key with a window is sent.
    pub(crate) fn is_known(&self) -> bool {
        self.read_at.load(Relaxed) != 0
    }

    /// Reads it by a call that returns the reply to TIME.
    ///
    /// # Errors
    /// The errors of the call.
    pub(crate) async fn read<E>(
        &self,
        call: impl Future<Output = Result<Value, E>>,
    ) -> Result<(), E> {
        let sent = self.here.now();
        if let Some(redis_now) = time(&call.await?) {
            self.observe(redis_now, sent, self.here.now());
        }
        Ok(())
    }

    /// Whether the next batch should read the server's clock.
    pub(crate) fn is_outdated(&self, now: Time) -> bool {
        now.since(Time::from_micros(self.read_at.load(Relaxed))) >= ESTIMATE_AGE_MAX
    }

    /// The server read its clock between `sent` and `received`, which bounds the offset. The
    /// estimate changes only if it is out of bounds, and then no further than it must (Cristian,
    /// 1989): a slow reply has little effect.
    pub(crate) fn observe(&self, redis_now: Time, sent: Time, received: Time) {
        let least = ahead(redis_now, received);
        let most = ahead(redis_now, sent);
        let estimate = self.ahead.load(Relaxed);
        let better = estimate.clamp(least, most.max(least));
        if better != estimate {
            self.ahead.store(better, Relaxed);
        }
        // Not for each batch: all workers read this.
        if self.is_outdated(received) {
            self.read_at.store(received.as_micros(), Relaxed);
        }
    }

    /// The server's time when it is `now` here.
    pub(crate) fn at(&self, now: Time) -> Time {
        Time::from_micros(now.as_micros().saturating_add_signed(self.ahead.load(Relaxed)))
    }
}

/// Reads the reply to TIME.
pub(crate) fn time(reply: &Value) -> Option<Time> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(reply).ok()?;
    let micros = seconds.checked_mul(MICROS_PER_SECOND)?.checked_add(micros)?;
    Some(Time::from_micros(micros))
}

fn ahead(redis: Time, here: Time) -> i64 {
    let signed = |time: Time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    signed(redis).saturating_sub(signed(here))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    fn unread() -> RedisClock {
        RedisClock::new(Clock::starting_at(at(0)))
    }

    #[test]
    fn estimate_moves_no_further_than_it_must() {
        let clock = unread();
        clock.observe(at(1_000), at(900), at(1_100));
        assert_eq!(clock.at(at(1_000)), at(1_000), "the same clock within the bounds");
        clock.observe(at(5_000), at(900), at(1_100));
        assert_eq!(clock.at(at(1_000)), at(4_900));
        clock.observe(at(5_000), at(900), at(200_000));
        assert_eq!(clock.at(at(1_000)), at(4_900), "a slow reply changes nothing");
        clock.observe(at(500), at(900), at(1_100));
        assert_eq!(clock.at(at(1_000)), at(600), "it may also decrease");
    }

    #[test]
    fn clock_is_read_again_after_10_ms() {
        let clock = unread();
        assert!(clock.is_outdated(at(10_000)) && !clock.is_known());
        clock.observe(at(5_000_000), at(10_000), at(10_500));
        assert!(!clock.is_outdated(at(20_499)) && clock.is_known());
        assert!(clock.is_outdated(at(20_500)));
    }
}
