//! The used shares of a limit that are reported before it is used up.

use std::fmt;

use smallvec::SmallVec;

/// Used shares of one limit.
pub const WARN_AT_MAX: usize = 4;

/// Percentages of a limit, ascending: the values of `warn_at`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WarnAt(SmallVec<[u8; WARN_AT_MAX]>);

impl WarnAt {
    /// Without warnings.
    pub const NEVER: Self = Self(SmallVec::new_const());

    /// `None` unless there are 1 to [`WARN_AT_MAX`] different ones from 1 to 100.
    pub fn new(percents: &[u8]) -> Option<Self> {
        let mut sorted: SmallVec<[u8; WARN_AT_MAX]> = percents.into();
        sorted.sort_unstable();
        sorted.dedup();
        let is_valid = sorted.len() == percents.len()
            && (1..=WARN_AT_MAX).contains(&sorted.len())
            && sorted.iter().all(|percent| (1..=100).contains(percent));
        is_valid.then_some(Self(sorted))
    }

    /// In percent, ascending.
    pub fn percents(&self) -> &[u8] {
        &self.0
    }

    /// The highest that is reached by `used` hits of `limit`.
    pub fn reached(&self, limit: u64, used: u64) -> Option<u8> {
        let mut percents = self.0.iter().copied();
        percents.rfind(|&percent| is_reached(percent, limit, used))
    }

    /// Those that hits have crossed which changed what is used of `limit` from `before` to `after`.
    /// 100 % is always one if there are any.
    pub fn crossed(&self, limit: u64, before: u64, after: u64) -> impl Iterator<Item = u8> {
        let full = (self.0.last().is_some_and(|&last| last < 100)).then_some(100);
        let percents = self.0.iter().copied().chain(full);
        percents.filter(move |&percent| {
            !is_reached(percent, limit, before) && is_reached(percent, limit, after)
        })
    }
}

/// What is used of a limit, in percent, rounded down; all of a limit of 0.
pub fn used_percent(limit: u64, used: u64) -> u64 {
    let percent = (u128::from(used) * 100).checked_div(limit.into());
    percent.map_or(100, |percent| u64::try_from(percent).unwrap_or(u64::MAX))
}

fn is_reached(percent: u8, limit: u64, used: u64) -> bool {
    u128::from(used) * 100 >= u128::from(limit) * u128::from(percent)
}

impl fmt::Display for WarnAt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percents = self.0.iter().map(|percent| format!("{percent}%"));
        formatter.write_str(&percents.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_crossed_by_the_hits_that_reach_it() {
        let warn_at = WarnAt::new(&[80, 50]).expect("two percentages");
        let crossed = |before, after| warn_at.crossed(10, before, after).collect::<Vec<_>>();
        assert_eq!(crossed(0, 4), [0; 0]);
        assert_eq!(crossed(4, 5), [50]);
        assert_eq!(crossed(5, 7), [0; 0]);
        assert_eq!(crossed(4, 10), [50, 80, 100]);
        assert_eq!(crossed(10, 12), [0; 0]);
        assert_eq!(warn_at.reached(10, 7), Some(50));
        assert_eq!(warn_at.reached(10, 4), None);
        // Two thirds of three are not 67 %.
        let exact = WarnAt::new(&[67]).expect("a percentage");
        assert_eq!(exact.crossed(3, 1, 2).next(), None);
        let most = crate::limits::AMOUNT_MAX;
        assert_eq!(exact.crossed(most, 0, most).collect::<Vec<_>>(), [67, 100]);
        assert_eq!(WarnAt::NEVER.crossed(1, 0, 1).next(), None);
    }

    #[test]
    fn percentages_are_different_and_in_range() {
        for invalid in [&[][..], &[0], &[101], &[5, 5], &[1, 2, 3, 4, 5]] {
            assert_eq!(WarnAt::new(invalid), None, "{invalid:?}");
        }
        let shown = WarnAt::new(&[100, 1]).map(|warn_at| warn_at.to_string());
        assert_eq!(shown.as_deref(), Some("1%, 100%"));
    }

    #[test]
    fn used_percent_is_rounded_down() {
        let percent = [(3, 2), (10, 10), (10, 25), (0, 0)];
        let percent = percent.map(|(limit, used)| used_percent(limit, used));
        assert_eq!(percent, [66, 100, 250, 100]);
    }
}
