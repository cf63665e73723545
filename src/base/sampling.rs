//! Sampling: whether an event belongs to a random part of all events, or to the first of its
//! second.

use crate::base::time::{MICROS_PER_SECOND, Time};

/// The part of events that is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRate {
    /// Events whose 63-bit number is below this are sampled.
    below: u64,
}

/// The events of the current second.
#[derive(Debug, Default)]
pub(crate) struct PerSecond {
    number: u64,
    admitted: u32,
    /// Events dropped since the last admitted one.
    dropped: u64,
}

const ALL: u64 = 1 << 63;

impl SampleRate {
    /// `None` unless `part` is from 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "from 0 to 2^63, which a double holds"
    )]
    pub(crate) fn of(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then_some(Self { below: (part * ALL as f64) as u64 })
    }

    /// Parses the value of a setting.
    ///
    /// # Errors
    /// Not a number from 0 to 1.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        text.parse()
            .ok()
            .and_then(Self::of)
            .ok_or_else(|| "write a number from 0 to 1, such as 0.01".to_owned())
    }

    /// From 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "from 0 to 2^63, which a double holds")]
    pub(crate) const fn ratio(self) -> f64 {
        self.below as f64 / ALL as f64
    }

    pub(crate) const fn is_never(self) -> bool {
        self.below == 0
    }

    /// Whether the event with this random number is sampled. For a trace that is the lower half of
    /// its id, so that other OpenTelemetry programs decide alike.
    pub(crate) const fn includes(self, number: u64) -> bool {
        number >> 1 < self.below
    }
}

impl PerSecond {
    /// Whether an event is one of the first `events_max` of its second; if so, how many were
    /// dropped since the last one.
    pub(crate) fn admit(&mut self, now: Time, events_max: u32) -> Option<u64> {
        let number = now.as_micros() / MICROS_PER_SECOND;
        if number != self.number {
            (self.number, self.admitted) = (number, 0);
        }
        if self.admitted >= events_max {
            self.dropped += 1;
            return None;
        }
        self.admitted += 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_per_second_are_bounded_and_the_next_event_counts_the_dropped() {
        let first = Time::from_micros(5_000_000);
        let next = Time::from_micros(6_000_000);
        let mut second = PerSecond::default();
        let admitted: Vec<_> = (0..5).map(|_| second.admit(first, 2)).collect();
        assert_eq!(admitted, [Some(0), Some(0), None, None, None]);
        assert_eq!([second.admit(next, 2), second.admit(next, 2)], [Some(3), Some(0)]);
    }

    #[test]
    fn sample_rate_includes_its_part_of_all_numbers() {
        let [never, half, always] =
            [0.0, 0.5, 1.0].map(|part| SampleRate::of(part).expect("it is a part"));
        assert!(never.is_never() && !never.includes(0));
        assert!(always.includes(0) && always.includes(u64::MAX));
        assert!(half.includes(u64::MAX / 2) && !half.includes(u64::MAX / 2 + 1));
        let met = (0..10_000).filter(|_| half.includes(fastrand::u64(..))).count();
        assert!((4_500..5_500).contains(&met), "{met} of 10,000");
        for wrong in ["-0.1", "1.1", "NaN", "half", ""] {
            assert!(SampleRate::read(wrong).is_err(), "{wrong}");
        }
    }
}
