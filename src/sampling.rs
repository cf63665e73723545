//! Sampling: whether an event belongs to a random part of all events.

/// The part of events that is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRate {
    /// Events whose 63-bit number is below this are sampled.
    below: u64,
}

const ALL: u64 = 1 << 63;

impl SampleRate {
    /// Nothing is sampled.
    pub(crate) const NEVER: Self = Self { below: 0 };

    /// `None` unless `part` is from 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "from 0 to 2^63, which a double holds"
    )]
    pub(crate) fn of(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then_some(Self {
            below: (part * ALL as f64) as u64,
        })
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

    pub(crate) const fn is_never(self) -> bool {
        self.below == 0
    }

    /// Whether the event with this random number is sampled. For a trace that is the lower half of its
    /// id, so that other OpenTelemetry programs decide alike.
    pub(crate) const fn includes(self, number: u64) -> bool {
        number >> 1 < self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_rate_includes_its_part_of_all_numbers() {
        let [never, half, always] =
            [0.0, 0.5, 1.0].map(|part| SampleRate::of(part).expect("it is a part"));
        assert!(never.is_never() && !never.includes(0));
        assert!(always.includes(0) && always.includes(u64::MAX));
        assert!(half.includes(u64::MAX / 2) && !half.includes(u64::MAX / 2 + 1));
        let met = (0..10_000)
            .filter(|_| half.includes(fastrand::u64(..)))
            .count();
        assert!((4_500..5_500).contains(&met), "{met} of 10,000");
        for wrong in ["-0.1", "1.1", "NaN", "half", ""] {
            assert!(SampleRate::read(wrong).is_err(), "{wrong}");
        }
    }
}
