//! Points in time and spans in whole microseconds, and the clock.
//!
//! Nothing below the limiter reads a clock: time is an argument. Only this file reads that of the
//! system (`clippy.toml` bans it elsewhere), so that tests choose the time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, Interval, MissedTickBehavior};

/// Microseconds in a second.
pub const MICROS_PER_SECOND: u64 = 1_000_000;

/// The last microsecond of the year 9999, up to which humantime formats.
const RFC3339_MAX_MICROS: u64 = 253_402_300_799_999_999;

/// A point in time: microseconds since the Unix epoch. Below 2^53 until the year 2255, so a Lua
/// number holds it exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// A duration in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// The source of time.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The monotonic clock from a start time: never steps back.
    System {
        /// Tokio's, which follows the paused clock of a test.
        started: Instant,
        /// The time then.
        at: Time,
    },
    /// Set by a test.
    Manual(ManualClock),
}

/// Ticks from now on, each at least this long after the one before: after a suspension there is one
/// for all that were missed.
pub(crate) fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// See [`Clock::Manual`]. Clones share the time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl Time {
    /// Microseconds since the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Saturating addition.
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Reads a time of RFC 3339, in UTC or with an offset, from 1970 on; also what else jiff reads
    /// as a timestamp.
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let time: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(time.as_microsecond()).ok().map(Self)
    }

    /// The time in RFC 3339 in UTC: with microseconds unless it is a whole second.
    pub fn to_rfc3339(self) -> String {
        let time = self.system_time();
        if self.0.is_multiple_of(MICROS_PER_SECOND) {
            humantime::format_rfc3339_seconds(time).to_string()
        } else {
            humantime::format_rfc3339_micros(time).to_string()
        }
    }

    /// The time in RFC 3339 in UTC, to a second.
    pub(crate) fn to_rfc3339_secs(self) -> String {
        humantime::format_rfc3339_seconds(self.system_time()).to_string()
    }

    /// The time of day in UTC, to a minute.
    pub(crate) fn to_minute_of_day(self) -> String {
        let minutes = self.as_micros() / 60_000_000;
        format!("{:02}:{:02} UTC", minutes / 60 % 24, minutes % 60)
    }

    /// The time in RFC 3339 in UTC, to a millisecond.
    pub(crate) fn to_rfc3339_millis(self) -> String {
        humantime::format_rfc3339_millis(self.system_time()).to_string()
    }

    /// At most the last that humantime formats.
    fn system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.min(RFC3339_MAX_MICROS))
    }

    /// The span since `earlier`; zero if this is not later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// Reads an hour and a minute: `05:30`.
pub(crate) fn hour_and_minute(text: &str) -> Option<(u8, u8)> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, max: u8| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok();
        number.filter(|number| is_number && *number <= max)
    };
    Some((number(hour, 23)?, number(minute, 59)?))
}

impl Span {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Seconds, saturating.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(MICROS_PER_SECOND))
    }

    /// Microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Seconds with fractions, for metrics.
    pub fn as_secs_f64(self) -> f64 {
        Duration::from(self).as_secs_f64()
    }

    /// Saturating subtraction.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Whole seconds, rounded up.
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
        // In the largest unit without a remainder. Windows and years have no fixed length.
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
    #[expect(clippy::disallowed_methods, reason = "the only file that reads the system clock")]
    pub fn system() -> Self {
        // A clock before 1970 starts at zero; windows are then aligned to the start.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(Time(Span::from(since_epoch).0))
    }

    /// A clock that starts at `at`. Exact under tokio's paused clock.
    pub fn starting_at(at: Time) -> Self {
        let started = Instant::now();
        Self::System { started, at }
    }

    /// A clock that only its handle moves.
    pub fn manual(time: Time) -> (Self, ManualClock) {
        let clock = ManualClock(Arc::new(AtomicU64::new(time.0)));
        (Self::Manual(clock.clone()), clock)
    }

    /// Whether a test sets it.
    pub const fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// The current time.
    pub fn now(&self) -> Time {
        match self {
            Self::System { started, at } => at.plus(started.elapsed().into()),
            Self::Manual(clock) => Time(clock.0.load(Ordering::Relaxed)),
        }
    }
}

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, span: Span) {
        self.0.fetch_add(span.0, Ordering::Relaxed);
    }

    /// Moves the clock to any time.
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
    fn times_are_read_and_written_as_rfc_3339() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-08-01T12:00:00Z", 1_785_585_600_000_000),
            ("2026-08-01T12:00:00.25Z", 1_785_585_600_250_000),
            ("2026-08-01T14:00:00+02:00", 1_785_585_600_000_000),
            ("2026-08-01T06:30:00.000001-05:30", 1_785_585_600_000_001),
        ] {
            let time = Time::from_rfc3339(text);
            assert_eq!(time, Some(Time::from_micros(micros)), "{text}");
        }
        for invalid in [
            "",
            "Z",
            "now",
            "2026-08-01",
            "2026-08-01T12:00:00",
            "2026-13-01T12:00:00Z",
            "2026-08-01T12:00:00+2:00",
            "2026-08-01T12:00:00+02:60",
            "2026-08-01T12:00:00++1:00",
            "1970-01-01T00:00:00+00:01",
            "1969-12-31T23:59:59Z",
            "ü6-08-01T12:00:00+02:00",
        ] {
            assert_eq!(Time::from_rfc3339(invalid), None, "{invalid}");
        }
        let written = |micros| Time::from_micros(micros).to_rfc3339();
        assert_eq!(written(1_785_585_600_000_000), "2026-08-01T12:00:00Z");
        assert_eq!(written(250_000), "1970-01-01T00:00:00.250000Z");
        assert_eq!(written(u64::MAX), "9999-12-31T23:59:59.999999Z");
    }

    #[test]
    fn system_clock_starts_at_the_current_time() {
        let now = Clock::system().now();
        assert!(now > Time::from_micros(1_700_000_000 * MICROS_PER_SECOND), "{now:?}");
    }

    #[test]
    fn manual_clock_moves_only_when_set() {
        let (clock, handle) = Clock::manual(Time::from_micros(5));
        assert_eq!(clock.now(), Time::from_micros(5));
        handle.advance(Span::from_micros(2));
        assert_eq!(clock.now(), Time::from_micros(7));
        handle.set(Time::from_micros(1));
        assert_eq!(clock.now(), Time::from_micros(1));
    }
}
