//! What is allowed: so many requests in a period, counted by one algorithm.
//!
//! [`Limit::new`] refuses whatever could not be counted in whole numbers below 2^53, so that a `Limit` that exists can be counted
//! exactly, here and in a Lua number alike.

use std::fmt;
use std::num::NonZeroU32;

use crate::time::{MICROS_PER_SECOND, Span, Time};

/// Whole numbers up to here are exact in an IEEE double, which is what a Lua number is.
pub const EXACT_MAX: u64 = 1 << 53;

/// The longest period: longer ones are no rate but a mistake in writing.
const PERIOD_MAX: Span = Span::from_secs(100 * 365 * 86_400);

/// The periods that rules name. A month has 30 days and a year 365, and weeks begin on Thursdays: windows are cut from the epoch,
/// as in the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s
    Second,
    /// 60 s
    Minute,
    /// 3,600 s
    Hour,
    /// 86,400 s
    Day,
    /// 7 days
    Week,
    /// 30 days
    Month,
    /// 365 days
    Year,
}

/// How hits are counted. The names are those of the `algorithm` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// At most N per window aligned to the epoch.
    FixedWindow,
    /// At most `burst` + N·t/period in any interval t.
    TokenBucket,
}

/// Whether a call that is refused uses up quota all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusedHits {
    /// It does: what costs that are only known afterwards need.
    Count,
    /// It does not.
    Drop,
}

/// The unit in which a counter's state measures time: the finest in which its numbers stay exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tick {
    /// 1 µs
    Micro,
    /// 1,000 µs
    Milli,
    /// 1,000,000 µs
    Second,
}

/// What a rule says about its limit, before anybody has looked whether it makes sense.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How many in a period. Zero refuses every hit.
    pub requests: u32,
    /// The period's unit.
    pub unit: Unit,
    /// The period is so many units.
    pub unit_multiplier: u32,
    /// How to count.
    pub algorithm: Algorithm,
    /// How deep a bucket is; `requests` if absent. Only for buckets.
    pub burst: Option<u32>,
    /// See [`RefusedHits`]; each algorithm has a default.
    pub refused_hits: Option<RefusedHits>,
}

/// A limit that can be counted exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    requests: u32,
    capacity: u32,
    period: Span,
    algorithm: Algorithm,
    tick: Tick,
    refused_hits: RefusedHits,
}

/// Why terms make no limit. Each says what to write instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A period of nothing.
    #[error("unit_multiplier must be at least 1")]
    PeriodZero,
    /// A period beyond 100 years.
    #[error("a period of {unit_multiplier} × {unit} is longer than 100 years; write a smaller unit_multiplier")]
    PeriodTooLong {
        /// As given.
        unit_multiplier: u32,
        /// As given.
        unit: Unit,
    },
    /// A burst for an algorithm that has none.
    #[error("burst is only for token_bucket, not for {0}; remove it, or write algorithm: token_bucket")]
    BurstWithoutBucket(Algorithm),
    /// A bucket that nothing fits into.
    #[error("a burst of 0 would refuse every request; write at least 1, or requests_per_unit: 0 if that is what you want")]
    BurstZero,
    /// Numbers that would not stay exact.
    #[error("a burst of {burst} over {period} cannot be counted exactly; the largest that can is {burst_max}")]
    BurstTooLarge {
        /// As given.
        burst: u32,
        /// As given.
        period: Span,
        /// The largest that could be counted.
        burst_max: u64,
    },
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 7] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its length.
    pub const fn span(self) -> Span {
        Span::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }

    /// Its name as rules write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit of that name, whatever the case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit that is exactly that long, if there is one.
    pub fn of(period: Span) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.span() == period)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Algorithm {
    /// All that can be counted.
    pub const ALL: [Self; 2] = [Self::FixedWindow, Self::TokenBucket];

    /// Its name as rules and counter keys write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::TokenBucket => "token_bucket",
        }
    }

    /// The algorithm of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// What a rule means that does not say.
    pub const fn default_refused_hits(self) -> RefusedHits {
        match self {
            Self::FixedWindow => RefusedHits::Count,
            Self::TokenBucket => RefusedHits::Drop,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl RefusedHits {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Count, Self::Drop];

    /// Its name as rules write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Drop => "drop",
        }
    }

    /// The value of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.name() == name)
    }
}

impl Tick {
    /// Finest first.
    const ALL: [Self; 3] = [Self::Micro, Self::Milli, Self::Second];

    /// How long one is.
    pub const fn span(self) -> Span {
        Span::from_micros(match self {
            Self::Micro => 1,
            Self::Milli => 1_000,
            Self::Second => MICROS_PER_SECOND,
        })
    }

    /// Its name in counter keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Micro => "us",
            Self::Milli => "ms",
            Self::Second => "s",
        }
    }

    /// Whole ticks since the epoch.
    pub const fn since_epoch(self, time: Time) -> u64 {
        time.as_micros() / self.span().as_micros()
    }

    /// When that tick begins.
    pub const fn begins(self, tick: u64) -> Time {
        Time::from_micros(tick.saturating_mul(self.span().as_micros()))
    }
}

impl Limit {
    /// Checks terms.
    ///
    /// # Errors
    /// [`LimitError`], when the period is nothing or beyond 100 years, when a burst makes no sense, or when the numbers of a bucket
    /// would not stay below 2^53 even in seconds.
    pub fn new(terms: &Terms) -> Result<Self, LimitError> {
        let &Terms { requests, unit, unit_multiplier, algorithm, .. } = terms;
        let period = Span::from_micros(unit.span().as_micros().saturating_mul(u64::from(unit_multiplier)));
        if unit_multiplier == 0 {
            return Err(LimitError::PeriodZero);
        }
        if period > PERIOD_MAX {
            return Err(LimitError::PeriodTooLong { unit_multiplier, unit });
        }
        let refused_hits = terms.refused_hits.unwrap_or(algorithm.default_refused_hits());
        let (capacity, tick) = match algorithm {
            Algorithm::FixedWindow => {
                if terms.burst.is_some() {
                    return Err(LimitError::BurstWithoutBucket(algorithm));
                }
                // A window only adds, so any number is exact; and its start is a whole second.
                (requests, Tick::Second)
            }
            Algorithm::TokenBucket => {
                let burst = terms.burst.unwrap_or(requests);
                if terms.burst == Some(0) {
                    return Err(LimitError::BurstZero);
                }
                let tick = Tick::ALL.into_iter().find(|&tick| u64::from(burst) <= burst_max(requests, period, tick, refused_hits));
                let burst_max = burst_max(requests, period, Tick::Second, refused_hits);
                // Without a refill a burst would be a gift of once: zero requests refuse every hit.
                let capacity = if requests == 0 { 0 } else { burst };
                (capacity, tick.ok_or(LimitError::BurstTooLarge { burst, period, burst_max })?)
            }
        };
        Ok(Self { requests, capacity, period, algorithm, tick, refused_hits })
    }

    /// What one of `replicas` may let through by itself: its part of the limit, rounded down, but at least one where the whole is not
    /// nothing.
    #[must_use]
    pub fn share(self, replicas: NonZeroU32) -> Self {
        let share = |whole: u32| if whole == 0 { 0 } else { (whole / replicas).max(1) };
        Self { requests: share(self.requests), capacity: share(self.capacity), ..self }
    }

    /// How many in a period.
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// How many at once: `requests` of a window, the burst of a bucket.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The period.
    pub const fn period(&self) -> Span {
        self.period
    }

    /// How it is counted.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// What its state measures time in.
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// The period in ticks.
    pub const fn period_ticks(&self) -> u64 {
        self.period.as_micros() / self.tick.span().as_micros()
    }

    /// Whether a refused call uses up quota.
    pub const fn refused_hits(&self) -> RefusedHits {
        self.refused_hits
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} per ", self.requests)?;
        match Unit::of(self.period) {
            Some(unit) => write!(formatter, "{unit}")?,
            None => write!(formatter, "{}", self.period)?,
        }
        write!(formatter, ", {}", self.algorithm)?;
        if self.algorithm == Algorithm::TokenBucket {
            write!(formatter, ", burst {}", self.capacity)?;
        }
        write!(formatter, ", refused hits {}", self.refused_hits.name())
    }
}

/// The largest burst of a bucket whose numbers stay exact in that tick. A bucket's state is what has been spent, in credits of which
/// a hit costs `period`: at most one burst and one hit more, and another burst where refused hits put it into debt; and a refill adds
/// `requests` a tick.
fn burst_max(requests: u32, period: Span, tick: Tick, refused_hits: RefusedHits) -> u64 {
    let period_ticks = period.as_micros() / tick.span().as_micros();
    let room = EXACT_MAX - 1 - u64::from(requests);
    let bursts = match refused_hits {
        RefusedHits::Drop => 1,
        RefusedHits::Count => 2,
    };
    (room / period_ticks).saturating_sub(1) / bursts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(unit: Unit, requests: u32, burst: u32) -> Result<Limit, LimitError> {
        let algorithm = Algorithm::TokenBucket;
        Limit::new(&Terms { requests, unit, unit_multiplier: 1, algorithm, burst: Some(burst), refused_hits: None })
    }

    #[test]
    fn the_finest_tick_that_stays_exact_is_taken() {
        let tick = |unit, burst| bucket(unit, 1, burst).expect("countable").tick();
        assert_eq!(tick(Unit::Second, u32::MAX), Tick::Micro);
        assert_eq!(tick(Unit::Day, 104_248), Tick::Micro);
        assert_eq!(tick(Unit::Day, 104_250), Tick::Milli);
        assert_eq!(tick(Unit::Day, u32::MAX), Tick::Second);
        assert_eq!(tick(Unit::Year, 285), Tick::Milli);
        assert_eq!(tick(Unit::Year, 284), Tick::Micro);
    }

    #[test]
    fn what_cannot_be_counted_is_refused_with_the_largest_that_can() {
        let Err(LimitError::BurstTooLarge { burst_max, .. }) = bucket(Unit::Year, 1, u32::MAX) else { panic!("it fits") };
        assert_eq!(burst_max, 285_616_413);
        assert!(bucket(Unit::Year, 1, 285_616_413).is_ok());
    }

    #[test]
    fn a_period_that_a_unit_names_is_that_unit() {
        assert_eq!(Unit::of(Span::from_secs(60)), Some(Unit::Minute));
        assert_eq!(Unit::of(Span::from_secs(300)), None);
        assert_eq!(Unit::from_name("HoUr"), Some(Unit::Hour));
        assert_eq!(Unit::from_name("hours"), None);
    }
}
