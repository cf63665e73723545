//! Exponential backoff with jitter, so that many processes do not retry in step.

use std::time::Duration;

/// How pauses between attempts grow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BackoffPolicy {
    /// The first pause, and the shortest.
    pub(crate) initial: Duration,
    /// The longest.
    pub(crate) max: Duration,
    /// Each pause is this many times the one before; 1 or less keeps the first.
    pub(crate) factor: f64,
    pub(crate) jitter: Jitter,
}

/// By how much a pause is shortened at random, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jitter {
    None,
    Quarter,
    Half,
}

/// The state of one series of attempts.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    policy: BackoffPolicy,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(policy: BackoffPolicy) -> Self {
        let next = policy.initial;
        Self { policy, next }
    }

    /// Pauses that double from `initial` up to `max`, less up to a quarter.
    pub(crate) fn doubling(initial: Duration, max: Duration) -> Self {
        Self::new(BackoffPolicy {
            initial,
            max,
            factor: 2.0,
            jitter: Jitter::Quarter,
        })
    }

    pub(crate) const fn max(&self) -> Duration {
        self.policy.max
    }

    /// Starts over, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.policy.initial;
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        self.pause_up_to(self.policy.max)
    }

    /// The next pause, at most `max` as well.
    pub(crate) fn pause_up_to(&mut self, max: Duration) -> Duration {
        let pause = self.next.min(max);
        let BackoffPolicy {
            initial,
            max,
            factor,
            jitter,
        } = self.policy;
        // A product that no `Duration` can hold exceeds every maximum.
        let longer = Duration::try_from_secs_f64(self.next.as_secs_f64() * factor).unwrap_or(max);
        self.next = longer.min(max).max(initial);
        jitter.shorten(pause)
    }
}

impl Jitter {
    fn shorten(self, time: Duration) -> Duration {
        let most = match self {
            Self::None => return time,
            Self::Quarter => time / 4,
            Self::Half => time / 2,
        };
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        time.saturating_sub(Duration::from_micros(fastrand::u64(..=micros)))
    }
}

/// `time` less up to a quarter of it.
pub(crate) fn jittered(time: Duration) -> Duration {
    Jitter::Quarter.shorten(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_grow_by_the_factor_up_to_the_maximum() {
        for (factor, expected) in [
            (2.0, [100, 200, 400, 800, 1_000, 1_000]),
            (1.0, [100; 6]),
            (0.0, [100; 6]),
            (1e30, [100, 1_000, 1_000, 1_000, 1_000, 1_000]),
        ] {
            let mut backoff = Backoff::new(BackoffPolicy {
                initial: 100 * MS,
                max: 1_000 * MS,
                factor,
                jitter: Jitter::None,
            });
            let pauses = [(); 6].map(|()| backoff.pause().as_millis());
            assert_eq!(pauses, expected, "{factor}");
            backoff.reset();
            assert_eq!(backoff.pause_up_to(50 * MS), 50 * MS);
        }
    }

    #[test]
    fn jitter_shortens_by_up_to_its_part() {
        for (jitter, shortest) in [(Jitter::Quarter, 750), (Jitter::Half, 500)] {
            let pauses = [(); 100].map(|()| jitter.shorten(1_000 * MS));
            assert!(
                pauses
                    .iter()
                    .all(|pause| (shortest * MS..=1_000 * MS).contains(pause)),
                "{pauses:?}"
            );
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
    }
}
