//! Time as Tollgate counts it: whole microseconds since the Unix epoch, and the one clock that
//! everything is given.
//!
//! Nothing below the limiter reads a clock: time is an argument. This file is the only one that may
//! ask the system for it (`clippy.toml` bans it elsewhere), so a test can hand out any time it
//! likes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Microseconds in a second.
pub const MICROS_PER_SECOND: u64 = 1_000_000;

/// A point in time: microseconds since the Unix epoch. Below 2^53 until the year 2255, so a Lua
/// number holds it exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// A length of time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// Where the time comes from.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's monotonic clock, tied to the epoch once, so that it neither steps back nor
    /// stands still.
    System(SystemClock),
    /// Set by hand, for tests: nobody sleeps to let a window pass.
    Manual(ManualClock),
}

/// See [`Clock::System`].
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    /// Tokio's, so that it follows the paused clock of a test. Otherwise it is the standard
    /// library's.
    started: Instant,
    started_at: Time,
}

/// See [`Clock::Manual`]. Clones show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl Time {
    /// A point in time so many microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time that much later; it stops at the end of time rather than wrap.
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// A span of seconds; it stops at the longest span rather than wrap.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(MICROS_PER_SECOND))
    }

    /// Microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Seconds, as metrics want them.
    pub fn as_secs_f64(self) -> f64 {
        Duration::from(self).as_secs_f64()
    }

    /// What is left of it after `other`.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Whole seconds, rounded up: whoever waits that long has waited long enough.
    pub const fn ceil_secs(self) -> u64 {
        self.0.div_ceil(MICROS_PER_SECOND)
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In the largest unit that leaves no remainder. Longer units differ in length, and are for
        // people to say.
        const UNITS: [(u64, &str); 6] = [
            (86_400 * MICROS_PER_SECOND, "d"),
            (3_600 * MICROS_PER_SECOND, "h"),
            (60 * MICROS_PER_SECOND, "min"),
            (MICROS_PER_SECOND, "s"),
            (1_000, "ms"),
            (1, "µs"),
        ];
        let (unit, name) = UNITS
            .into_iter()
            .find(|(unit, _)| self.0.is_multiple_of(*unit) && self.0 > 0)
            .unwrap_or((1, "µs"));
        write!(formatter, "{} {name}", self.0 / unit)
    }
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::System(SystemClock::start())
    }

    /// A clock that shows `time` now and runs on from there. A test under tokio's paused clock sees
    /// the same times in each run.
    pub fn starting_at(time: Time) -> Self {
        Self::System(SystemClock::starting_at(time))
    }

    /// A clock that stands at `time` until it is moved.
    pub fn manual(time: Time) -> (Self, ManualClock) {
        let clock = ManualClock(Arc::new(AtomicU64::new(time.0)));
        (Self::Manual(clock.clone()), clock)
    }

    /// Whether it is set by hand.
    pub const fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        match self {
            Self::System(clock) => clock.started_at.plus(clock.started.elapsed().into()),
            Self::Manual(clock) => Time(clock.0.load(Ordering::Relaxed)),
        }
    }
}

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the file that may")]
    fn start() -> Self {
        // A machine that believes itself before 1970 counts from zero: windows are then aligned to
        // its start.
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self::starting_at(Time(Span::from(since_epoch).0))
    }

    fn starting_at(time: Time) -> Self {
        Self {
            started: Instant::now(),
            started_at: time,
        }
    }
}

impl ManualClock {
    /// Moves the clock on.
    pub fn advance(&self, span: Span) {
        self.0.fetch_add(span.0, Ordering::Relaxed);
    }

    /// Puts the clock anywhere, also back.
    pub fn set(&self, time: Time) {
        self.0.store(time.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(Span::from_micros(0).ceil_secs(), 0);
        assert_eq!(Span::from_micros(1).ceil_secs(), 1);
        assert_eq!(Span::from_secs(2).ceil_secs(), 2);
        assert_eq!(Span::from_micros(2_000_001).ceil_secs(), 3);
    }

    #[test]
    fn the_system_clock_is_tied_to_the_epoch() {
        let now = Clock::system().now();
        assert!(
            now > Time::from_micros(1_700_000_000 * MICROS_PER_SECOND),
            "{now:?}"
        );
    }

    #[test]
    fn a_manual_clock_stands_until_it_is_moved() {
        let (clock, hand) = Clock::manual(Time::from_micros(5));
        assert_eq!(clock.now(), Time::from_micros(5));
        hand.advance(Span::from_micros(2));
        assert_eq!(clock.now(), Time::from_micros(7));
        hand.set(Time::from_micros(1));
        assert_eq!(clock.now(), Time::from_micros(1));
    }
}
