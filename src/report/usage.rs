//! How much is used of the limits that decide a descriptor.

use serde::{Deserialize, Serialize};

use crate::base::time::Time;
use crate::limits::check::{Check, Reading};
use crate::limits::{Limit, Unit, Window, Windows, used_percent};
use crate::report::counter::CountedIn;
use crate::rules::Link;

/// The usage of limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) domain: String,
    /// The limits that decide the descriptor, those of the rules above first
    pub(crate) limits: Vec<LimitUsage>,
}

/// The usage of a limit of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LimitUsage {
    /// The path of its rule
    pub(crate) rule: String,
    /// The name of the limit; may be empty
    pub(crate) name: String,
    /// The depth of its rule, from 0
    pub(crate) level: usize,
    /// Hits per period, the burst of a bucket, or holders
    pub(crate) limit: u64,
    /// May exceed the limit, by settlements and where over-limit hits count
    pub(crate) used: u64,
    /// Hits that would be admitted now
    pub(crate) remaining: u64,
    /// Rounded down
    pub(crate) used_percent: u64,
    /// Whether one more hit would be over this limit
    pub(crate) over_limit: bool,
    /// Used shares from which responses carry a warning, in percent
    pub(crate) warn_at: Vec<u8>,
    pub(crate) period: UsagePeriod,
    /// Until the period ends, or nothing is used any more
    #[serde(default)]
    pub(crate) resets_in_seconds: u64,
    /// If it goes on as from the start of the period until now; only with a calendar
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) projected: Option<Projection>,
    pub(crate) counted_in: CountedIn,
}

/// The current period of a limit: with a calendar its start and end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct UsagePeriod {
    /// Its length, without a calendar
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Unit>,
    /// The IANA name
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_zone: Option<String>,
    /// RFC 3339, with the offset of the zone
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<String>,
    /// The start of the next one
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<String>,
}

/// The usage at the end of a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Projection {
    pub(crate) used_at_end: u64,
    /// When the limit is used up; null if it is already, or not in this period
    pub(crate) exhausted_at: Option<String>,
}

impl LimitUsage {
    /// The usage of a limit that was read `now`.
    pub(crate) fn new(
        link: &Link<'_>,
        check: &Check,
        reading: &Reading,
        counted_in: CountedIn,
        now: Time,
    ) -> Self {
        let verdict = &reading.verdict;
        let limit = &check.limit;
        let warn_at = link.warn_at().map(|warn_at| warn_at.percents().to_vec());
        let (period, projected) = period(limit, verdict.used, now);
        Self {
            rule: link.path().to_string(),
            name: link.name().to_owned(),
            level: link.entries.saturating_sub(1),
            limit: limit.capacity,
            used: verdict.used,
            remaining: verdict.remaining,
            used_percent: used_percent(limit.capacity, verdict.used),
            over_limit: reading.is_exhausted,
            warn_at: warn_at.unwrap_or_default(),
            period,
            resets_in_seconds: verdict.reset_after.ceil_secs(),
            projected,
            counted_in,
        }
    }

    /// When it is used up if it goes on like this: now, or at a time of this period.
    pub(crate) fn used_up(&self) -> Option<&str> {
        if self.over_limit {
            return Some("now");
        }
        self.projected.as_ref()?.exhausted_at.as_deref()
    }
}

/// The period of a limit, and where the usage leads to.
fn period(limit: &Limit, used: u64, now: Time) -> (UsagePeriod, Option<Projection>) {
    let window = limit.window(now);
    let (kind, zone, show): (_, _, &dyn Fn(Time) -> String) = match limit.windows {
        Windows::Aligned => {
            let seconds = limit.period.ceil_secs();
            let period = UsagePeriod {
                seconds: (!limit.algorithm.counts_holders()).then_some(seconds),
                ..UsagePeriod::default()
            };
            return (period, None);
        }
        Windows::UtcMonths(calendar) | Windows::Calendar(calendar) => {
            let zone = &*calendar.spec.time_zone;
            (calendar.unit, zone, &|time| calendar.to_rfc3339(time))
        }
    };
    let period = UsagePeriod {
        seconds: None,
        kind: Some(kind),
        time_zone: Some(zone.to_owned()),
        start: Some(show(window.start)),
        end: Some(show(window.end)),
    };
    (period, projection(limit.capacity, used, window, now, show))
}

/// `None` at the start of the period.
///
/// ```text
/// used_at_end ┤            ·        used_at_end = used × period ÷ elapsed
///       limit ┼────────·───         exhausted_at = start + elapsed × limit ÷ used
///        used ┤   ·
///             └───┬────┬───┬──
///          start now   exhausted_at
/// ```
fn projection(
    limit: u64,
    used: u64,
    window: Window,
    now: Time,
    show: impl Fn(Time) -> String,
) -> Option<Projection> {
    let scaled = |number: u64, by: u64, of: u64| {
        let scaled = (u128::from(number) * u128::from(by)).checked_div(of.into());
        scaled.map(|scaled| u64::try_from(scaled).unwrap_or(u64::MAX))
    };
    let elapsed = now.since(window.start).as_micros();
    let period = window.end.since(window.start).as_micros();
    let until = scaled(elapsed, limit, used).filter(|until| (elapsed + 1..period).contains(until));
    Some(Projection {
        used_at_end: scaled(used, period, elapsed)?,
        exhausted_at: until.map(|until| {
            let start = window.start.as_micros();
            show(Time::from_micros(start.saturating_add(until)))
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        Time::from_rfc3339(text).expect("a time")
    }

    #[test]
    fn usage_is_projected_to_the_end_of_the_period() {
        let window = Window {
            id: at("2026-11-01T00:00:00Z"),
            start: at("2026-11-01T00:00:00Z"),
            end: at("2026-12-01T00:00:00Z"),
            date: None,
        };
        let projected = |limit, used, now| {
            projection(limit, used, window, at(now), Time::to_rfc3339_secs)
                .map(|found| (found.used_at_end, found.exhausted_at))
        };
        let now = "2026-11-25T00:00:00Z";
        let exhausted_at = "2026-11-30T06:26:20Z".to_owned();
        assert_eq!(
            projected(5_000_000_000, 4_100_000_000, now),
            Some((5_125_000_000, Some(exhausted_at)))
        );
        assert_eq!(projected(100, 0, now), Some((0, None)));
        assert_eq!(projected(100, 79, now), Some((98, None)), "not this month");
        assert_eq!(projected(100, 100, now), Some((125, None)), "used up");
        assert_eq!(projected(0, 0, now), Some((0, None)));
        assert_eq!(projected(100, 1, "2026-11-01T00:00:00Z"), None);
        let most = projected(u64::MAX, u64::MAX - 1, now).map(|(at_end, _)| at_end);
        assert_eq!(most, Some(u64::MAX));
    }
}
