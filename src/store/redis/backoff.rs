//! Pauses between attempts: they grow while a fault lasts, and have jitter, so that hundreds of
//! processes do not act in step.

use std::time::Duration;

use crate::chance;

/// The next pause. The first one is `min`, and each is twice the one before.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `min` on.
    pub fn new(min: Duration) -> Self {
        Self { min, next: min }
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// The next pause, with jitter; at most `max`.
    pub fn pause(&mut self, max: Duration) -> Duration {
        let pause = self.next.min(max);
        self.next = self.next.saturating_mul(2);
        jittered(pause)
    }
}

/// This time less up to a quarter of it.
pub fn jittered(time: Duration) -> Duration {
    let micros = u64::try_from((time / 4).as_micros()).unwrap_or(u64::MAX - 1);
    time.saturating_sub(Duration::from_micros(chance::any() % (micros + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new(200 * MS);
        let expected = [200, 400, 800, 1_000, 1_000];
        for longest in expected.map(|millis| millis * MS) {
            let pause = backoff.pause(1_000 * MS);
            assert!(
                (longest * 3 / 4..=longest).contains(&pause),
                "{pause:?} of {longest:?}"
            );
        }
        backoff.reset();
        assert!(backoff.pause(1_000 * MS) <= 200 * MS);
    }

    #[test]
    fn processes_pause_for_different_times() {
        let pauses: Vec<_> = (0..100).map(|_| jittered(1_000 * MS)).collect();
        assert!(
            pauses.iter().any(|pause| *pause < 850 * MS)
                && pauses.iter().any(|pause| *pause > 900 * MS),
            "{pauses:?}"
        );
    }
}
