//! Exponential backoff with jitter, so that many processes do not retry in step.

use std::time::Duration;

/// The jitter of pauses whose length is not a setting.
const JITTER_DEFAULT: f64 = 0.25;

/// Pauses between attempts: each is `factor` times the one before.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Backoff {
    /// The first pause, and the shortest.
    initial: Duration,
    /// The longest.
    pub(crate) max: Duration,
    /// 1 or less keeps the first pause.
    factor: f64,
    /// The part by which a pause is shortened at random, at most.
    jitter: f64,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(initial: Duration, max: Duration, factor: f64, jitter: f64) -> Self {
        Self { initial, max, factor, jitter, next: initial }
    }

    /// Pauses that double from `initial` up to `max`, less up to a quarter.
    pub(crate) const fn doubling(initial: Duration, max: Duration) -> Self {
        Self::new(initial, max, 2.0, JITTER_DEFAULT)
    }

    /// Starts over, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.initial;
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        self.pause_up_to(self.max)
    }

    /// The next pause, at most `max` as well.
    pub(crate) fn pause_up_to(&mut self, max: Duration) -> Duration {
        let pause = self.next.min(max);
        // A product that no `Duration` can hold exceeds every maximum.
        let longer = Duration::try_from_secs_f64(self.next.as_secs_f64() * self.factor);
        self.next = longer.unwrap_or(self.max).min(self.max).max(self.initial);
        shortened(pause, self.jitter)
    }
}

/// `time` less up to a quarter of it.
pub(crate) fn jittered(time: Duration) -> Duration {
    shortened(time, JITTER_DEFAULT)
}

/// `time` less up to a part of it, at random.
fn shortened(time: Duration, part: f64) -> Duration {
    time.saturating_sub(time.mul_f64(part * fastrand::f64()))
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
            let mut backoff = Backoff::new(100 * MS, 1_000 * MS, factor, 0.0);
            let pauses = [(); 6].map(|()| backoff.pause().as_millis());
            assert_eq!(pauses, expected, "{factor}");
            backoff.reset();
            assert_eq!(backoff.pause_up_to(50 * MS), 50 * MS);
        }
    }

    #[test]
    fn jitter_shortens_by_up_to_its_part() {
        for (jitter, shortest) in [(0.25, 750), (0.5, 500)] {
            let pauses = [(); 100].map(|()| shortened(1_000 * MS, jitter));
            assert!(
                pauses.iter().all(|pause| (shortest * MS..=1_000 * MS).contains(pause)),
                "{pauses:?}"
            );
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
    }
}
