//! How long to wait before the next try to reach a control plane.

use std::time::Duration;

use crate::chance;

/// How waits grow.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The first wait, and the shortest.
    pub initial: Duration,
    /// The longest.
    pub max: Duration,
    /// Each wait is so many times the one before.
    pub factor: f64,
    /// How waits are spread.
    pub spread: Spread,
}

/// How the waits of many clients differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Each is shortened by chance, by up to half of it: a server that comes back is not met by
    /// everybody at once.
    Half,
    /// Not at all.
    None,
}

/// The wait to come.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: Policy,
    next: Duration,
}

impl Backoff {
    /// The first wait is to come.
    pub fn new(policy: Policy) -> Self {
        let next = policy.initial;
        Self { policy, next }
    }

    /// The longest wait.
    pub const fn max(&self) -> Duration {
        self.policy.max
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.next = self.policy.initial;
    }

    /// The next wait.
    pub fn wait(&mut self) -> Duration {
        let wait = self.next;
        let longer = wait.as_secs_f64() * self.policy.factor;
        // What no duration can hold is more than the longest.
        let longer = Duration::try_from_secs_f64(longer).unwrap_or(self.policy.max);
        self.next = longer.min(self.policy.max).max(self.policy.initial);
        match self.policy.spread {
            Spread::Half => wait.saturating_sub(some_of(wait / 2)),
            Spread::None => wait,
        }
    }
}

/// Any time up to `max`, another one each time.
fn some_of(max: Duration) -> Duration {
    let micros = u64::try_from(max.as_micros()).unwrap_or(u64::MAX - 1);
    Duration::from_micros(chance::any() % (micros + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn policy(factor: f64, spread: Spread) -> Policy {
        Policy {
            initial: 100 * MS,
            max: 1_000 * MS,
            factor,
            spread,
        }
    }

    #[test]
    fn waits_grow_up_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new(policy(2.0, Spread::None));
        let waits: Vec<_> = (0..6).map(|_| backoff.wait().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_000, 1_000]);
        backoff.reset();
        assert_eq!(backoff.wait(), 100 * MS);
    }

    #[test]
    fn a_factor_of_one_or_less_makes_every_wait_the_first() {
        for factor in [0.0, 0.5, 1.0] {
            let mut backoff = Backoff::new(policy(factor, Spread::None));
            assert_eq!(
                [backoff.wait(), backoff.wait(), backoff.wait()],
                [100 * MS; 3],
                "{factor}"
            );
        }
    }

    #[test]
    fn a_factor_beyond_what_a_duration_can_hold_makes_every_wait_the_longest() {
        let mut backoff = Backoff::new(policy(1e30, Spread::None));
        assert_eq!(
            [backoff.wait(), backoff.wait(), backoff.wait()],
            [100 * MS, 1_000 * MS, 1_000 * MS]
        );
    }

    #[test]
    fn waits_that_are_spread_are_shortened_by_up_to_half() {
        let waits: Vec<Duration> = (0..100)
            .map(|_| Backoff::new(policy(2.0, Spread::Half)).wait())
            .collect();
        assert!(
            waits.iter().all(|wait| (50 * MS..=100 * MS).contains(wait)),
            "{waits:?}"
        );
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }
}
