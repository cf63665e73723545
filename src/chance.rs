//! Chance, where it decides about nothing that anybody could gain by guessing it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// Any number, another one each time.
pub fn any() -> u64 {
    // The standard library seeds its hashers from the system's random numbers, and no two alike.
    RandomState::new().build_hasher().finish()
}

/// How often something is to happen: a part of all times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// It happens to numbers of 63 bits below this.
    below: u64,
}

/// As many numbers as 63 bits have.
const ALL: u64 = 1 << 63;

impl Rate {
    /// A part of 1; `None` if it is not from 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "from 0 to 2^63, which a double holds"
    )]
    pub fn of(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then_some(Self {
            below: (part * ALL as f64) as u64,
        })
    }

    /// A part of 1, as a setting.
    ///
    /// # Errors
    /// Anything else.
    pub fn read(text: &str) -> Result<Self, String> {
        text.parse()
            .ok()
            .and_then(Self::of)
            .ok_or_else(|| "write a number from 0 to 1, such as 0.01".to_owned())
    }

    /// Whether it never happens.
    pub const fn is_never(self) -> bool {
        self.below == 0
    }

    /// Whether it happens to this number. Of a trace's number it is the lower half that counts, so
    /// that OpenTelemetry's other programs decide alike.
    pub const fn includes(self, number: u64) -> bool {
        number >> 1 < self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_part_of_all_numbers() {
        let [never, half, always] =
            [0.0, 0.5, 1.0].map(|part| Rate::of(part).expect("it is a part"));
        assert!(never.is_never() && !never.includes(0));
        assert!(always.includes(0) && always.includes(u64::MAX));
        assert!(half.includes(u64::MAX / 2) && !half.includes(u64::MAX / 2 + 1));
        let met = (0..10_000).filter(|_| half.includes(any())).count();
        assert!((4_500..5_500).contains(&met), "{met} of 10,000");
        for wrong in ["-0.1", "1.1", "NaN", "half", ""] {
            assert!(Rate::read(wrong).is_err(), "{wrong}");
        }
    }
}
