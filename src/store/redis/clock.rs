//! What time it is at Redis. One clock decides for all replicas; this one follows it, for what has
//! to be known before Redis is asked: which window a hit falls into.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::time::Time;

/// How far Redis' clock is ahead of ours, in µs.
#[derive(Debug, Default)]
pub struct RedisClock(AtomicI64);

impl RedisClock {
    /// Redis read its clock at some moment between `sent` and `received`, so the truth lies between
    /// two bounds. What is known changes only if it lies outside of them, and then no further
    /// than it must (Cristian, 1989): a slow reply teaches little.
    pub fn observe(&self, redis_now: Time, sent: Time, received: Time) {
        let (least, most) = (ahead(redis_now, received), ahead(redis_now, sent));
        let known = self.0.load(Relaxed);
        let better = known.clamp(least, most.max(least));
        if better != known {
            self.0.store(better, Relaxed);
        }
    }

    /// Redis' time when it is `now` here.
    pub fn at(&self, now: Time) -> Time {
        Time::from_micros(now.as_micros().saturating_add_signed(self.0.load(Relaxed)))
    }
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

    #[test]
    fn it_moves_no_further_than_it_must() {
        let clock = RedisClock::default();
        clock.observe(at(1_000), at(900), at(1_100));
        assert_eq!(
            clock.at(at(1_000)),
            at(1_000),
            "the same clock, as far as anybody can tell"
        );
        clock.observe(at(5_000), at(900), at(1_100));
        assert_eq!(clock.at(at(1_000)), at(4_900));
        clock.observe(at(5_000), at(900), at(200_000));
        assert_eq!(
            clock.at(at(1_000)),
            at(4_900),
            "a slow reply teaches nothing new"
        );
        clock.observe(at(500), at(900), at(1_100));
        assert_eq!(clock.at(at(1_000)), at(600), "it also goes back");
    }
}
