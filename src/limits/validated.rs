//! A limit that is validated: [`Limit::new`] rejects terms whose numbers would not stay whole and
//! below 2^53, so every `Limit` can be counted exactly, in Rust and in a Lua number.

use std::fmt;
use std::num::NonZeroU32;

use crate::base::time::{Span, Time};
use crate::limits::calendar::{Weekday, Window};
use crate::limits::named_algorithm::{Algorithm, OverLimitHits};
use crate::limits::share::Share;
use crate::limits::terms::{BUCKETS_MAX, HOLDERS_MAX, LimitError, PERIOD_MAX, Terms};
use crate::limits::unit::{Tick, Unit};
use crate::limits::windows::Windows;

/// Whole numbers up to here are exact in a double, which is what a Lua number is.
pub const EXACT_MAX: u64 = 1 << 53;
/// The largest limit, of a fixed window: its count stays exact one above it.
pub const AMOUNT_MAX: u64 = EXACT_MAX - 2;

/// The shortest queue: timers have a resolution of 1 ms.
const MAX_WAIT_MIN: Span = Span::from_micros(1_000);
/// `max_wait` of a queue; no timeout is longer.
const MAX_WAIT_MAX: Span = Span::from_secs(3_600);
/// Entries of a sliding log, per key. Later calls share the newest entry, so that it admits less,
/// never more.
pub const LOG_ENTRIES_MAX: u32 = 10_000;

/// A limit that can be counted exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Per period.
    pub requests: u64,
    /// The most at once: `requests` of a window, the burst of a bucket.
    pub capacity: u64,
    /// The period, or the lease of a concurrency limit; 30 days for a calendar month: see
    /// [`window`](Self::window).
    pub period: Span,
    /// The longest that a request waits in the queue; zero without a queue.
    pub max_wait: Span,
    /// The number of sub-windows of a sliding window; 0 without.
    pub buckets: u32,
    /// See [`Algorithm`].
    pub algorithm: Algorithm,
    /// The resolution of its state.
    pub tick: Tick,
    /// Whether hits over the limit consume quota.
    pub over_limit_hits: OverLimitHits,
    /// Those of the calendar only if its periods are those of the limit.
    pub windows: Windows,
    /// Whether it is decided in one step with other limits, all in the main store.
    pub chained: bool,
}

impl Limit {
    /// Validates terms.
    ///
    /// # Errors
    /// The period is 0 or beyond 100 years, an option is for another algorithm or out of range, or
    /// the numbers would not stay below 2^53 even in seconds.
    pub fn new(terms: &Terms) -> Result<Self, LimitError> {
        let &Terms { requests, algorithm, .. } = terms;
        let requests_max = match algorithm {
            Algorithm::FixedWindow => AMOUNT_MAX,
            _ => u64::from(u32::MAX),
        };
        if requests > requests_max {
            return Err(LimitError::AmountTooLarge { requests, algorithm, requests_max });
        }
        let period = terms.period()?;
        terms.check_options()?;
        let over_limit_hits = terms.over_limit_hits.unwrap_or(algorithm.default_over_limit_hits());
        let limit = Self {
            requests,
            capacity: requests,
            period,
            max_wait: Span::ZERO,
            buckets: terms.buckets.unwrap_or(0),
            algorithm,
            tick: Tick::Micro,
            over_limit_hits,
            windows: Windows::Aligned,
            chained: terms.chained,
        };
        match algorithm {
            // Additions only, so any number is exact, and windows begin at whole seconds.
            Algorithm::FixedWindow => {
                Ok(Self { tick: Tick::Second, windows: terms.windows(), ..limit })
            }
            Algorithm::SlidingLog => Ok(limit),
            Algorithm::SlidingWindow => match terms.buckets {
                None => limit.fading(),
                Some(buckets @ 1..=BUCKETS_MAX) => Ok(Self { buckets, ..limit }),
                Some(buckets) => Err(LimitError::BucketsOutOfRange(buckets)),
            },
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let burst = terms.burst.or(algorithm.default_burst());
                limit.bucket(burst.map_or(requests, u64::from), terms)
            }
            Algorithm::Concurrency => limit.held(terms.lease.ok_or(LimitError::NoLease)?),
        }
    }

    fn bucket(self, burst: u64, terms: &Terms) -> Result<Self, LimitError> {
        if terms.burst == Some(0) {
            return Err(LimitError::BurstZero);
        }
        let max_wait = terms.max_wait.unwrap_or(Span::ZERO);
        if terms.max_wait.is_some_and(|wait| wait < MAX_WAIT_MIN || wait > MAX_WAIT_MAX) {
            return Err(LimitError::MaxWaitOutOfRange(max_wait));
        }
        // Zero requests reject every hit, so there is no burst either.
        let capacity = if self.requests == 0 { 0 } else { burst };
        let limit = Self { capacity, max_wait, ..self };
        let burst_max = limit.burst_max(Tick::Second);
        let tick = finest(burst, |tick| limit.burst_max(tick));
        let tick =
            tick.ok_or(LimitError::BurstTooLarge { burst, period: self.period, burst_max })?;
        Ok(Self { tick, ..limit })
    }

    /// The largest burst whose state stays exact in this tick. The state is what was spent, in
    /// credits of which a hit costs `period`: at most one burst, what is booked ahead, one hit
    /// more, and a second burst of debt if over-limit hits count. A tick returns `requests`.
    fn burst_max(&self, tick: Tick) -> u64 {
        let requests = self.requests;
        let room = EXACT_MAX - 1 - requests;
        let room = room.saturating_sub(
            self.max_wait.as_micros().div_ceil(tick.span().as_micros()).saturating_mul(requests),
        );
        let bursts = match self.over_limit_hits {
            OverLimitHits::Drop => 1,
            OverLimitHits::Count => 2,
        };
        (room / self.ticks(tick)).saturating_sub(1) / bursts
    }

    /// The count of the fading window is multiplied by the ticks left of it.
    fn fading(self) -> Result<Self, LimitError> {
        let Self { requests, period, .. } = self;
        let requests_max = |tick: Tick| (EXACT_MAX - 1) / self.ticks(tick);
        let tick = finest(requests, requests_max);
        let tick = tick.ok_or(LimitError::RequestsTooLarge {
            requests,
            period,
            requests_max: requests_max(Tick::Second),
        })?;
        Ok(Self { tick, ..self })
    }

    /// The period of a concurrency limit is its lease.
    fn held(self, lease: Span) -> Result<Self, LimitError> {
        if self.requests > HOLDERS_MAX {
            return Err(LimitError::TooManyHolders(self.requests));
        }
        if lease == Span::ZERO || lease > PERIOD_MAX {
            return Err(LimitError::LeaseOutOfRange(lease));
        }
        Ok(Self { period: lease, ..self })
    }

    /// The part of a replica in the limit. Unless the limit is 0 it is at least 1, because a client
    /// may always reach the same replica. So all replicas together admit the limit, or one each if
    /// that is more.
    ///
    /// A bucket keeps its rate exactly: its part is refilled slower by the number of replicas.
    #[must_use]
    pub fn share(self, share: Share) -> Self {
        let part = |whole: u64| {
            if whole == 0 { 0 } else { share.of_allowed(whole).max(1) }
        };
        let capacity = part(self.capacity);
        if self.algorithm.is_bucket()
            && let Some(slower) = self.slower(share.replicas(), capacity)
        {
            return slower;
        }
        Self { requests: part(self.requests), capacity, ..self }
    }

    /// This number of requests over a longer period. It is counted in this process only, where
    /// numbers may exceed 2^53.
    fn slower(self, replicas: NonZeroU32, capacity: u64) -> Option<Self> {
        const CREDITS_MAX: u64 = 1 << 62;
        let period = self.period.as_micros().checked_mul(replicas.get().into())?;
        let limit = Self { period: Span::from_micros(period), capacity, ..self };
        let deepest = limit.period_ticks().checked_mul(2 * (capacity + 1))?;
        (deepest <= CREDITS_MAX).then_some(limit)
    }

    /// The window at `now`.
    pub fn window(&self, now: Time) -> Window {
        self.windows.at(self.period, now)
    }

    /// The end of the window with this `id`, which is that of `now` or beside it.
    pub(crate) fn window_end(&self, id: Time, now: Time) -> Time {
        self.windows.end(self.period, id, now)
    }

    /// The windows that its keys end with: counters of other windows are others.
    /// Those of a calendar have a key for each date, whatever the zone is.
    pub(crate) fn key_windows(&self) -> Option<(Span, Option<Windows>)> {
        let has_windows = self.algorithm.has_windows();
        let windows = match self.windows {
            Windows::Calendar(_) => None,
            others => Some(others),
        };
        has_windows.then_some((self.period, windows))
    }

    /// The first days of its calendar's weeks and months: keys have their dates.
    pub(crate) fn first_days(&self) -> Option<(Weekday, u8)> {
        match self.windows {
            Windows::Calendar(calendar) => {
                Some((calendar.spec.first_weekday, calendar.spec.first_day))
            }
            Windows::Aligned | Windows::UtcMonths(_) => None,
        }
    }

    /// The unit of a period of one unit.
    pub fn unit(&self) -> Option<Unit> {
        if self.algorithm.counts_holders() { None } else { Unit::of(self.period) }
    }

    /// Units of a bucket that leak within `time`.
    pub(crate) fn returned_in(&self, time: Span) -> u64 {
        time.as_micros() / self.tick.span().as_micros() * self.requests
    }

    /// The most units of a bucket that can be spent: the capacity and slots booked ahead, and the
    /// capacity again as debt. Whatever a call says of its own hits over the limit: others of the
    /// same counter may settle.
    pub(crate) fn deepest(&self) -> u64 {
        let full = self.capacity * self.period_ticks();
        let booked = full + self.returned_in(self.max_wait);
        // A burst may be exact without its debt.
        (booked + full).min(booked.max(EXACT_MAX - 1))
    }

    /// The period in ticks.
    pub const fn period_ticks(&self) -> u64 {
        self.ticks(self.tick)
    }

    const fn ticks(&self, tick: Tick) -> u64 {
        self.period.as_micros() / tick.span().as_micros()
    }
}

impl Terms {
    /// The windows of a limit with these terms.
    fn windows(&self) -> Windows {
        let period = (self.unit, self.unit_multiplier);
        match self.windows {
            Windows::UtcMonths(calendar) | Windows::Calendar(calendar)
                if period == (calendar.unit, calendar.months) =>
            {
                self.windows
            }
            _ => Windows::Aligned,
        }
    }

    /// The limit of these terms with another number and unit. The period is one unit. A stated
    /// burst keeps its proportion to the number, rounded half up, from 1 to the largest that is
    /// exact.
    ///
    /// # Errors
    /// Those of [`Limit::new`].
    pub fn with_rate(&self, requests: u64, unit: Unit) -> Result<Limit, LimitError> {
        let burst = self.burst.map(|burst| in_proportion(burst, self.requests, requests));
        let terms = Self { requests, unit, unit_multiplier: 1, burst, ..*self };
        match Limit::new(&terms) {
            Err(LimitError::BurstTooLarge { burst_max, .. }) => Limit::new(&Self {
                burst: Some(u32::try_from(burst_max).unwrap_or(u32::MAX)),
                ..terms
            }),
            limit => limit,
        }
    }
}

/// The finest tick in which numbers stay exact.
fn finest(number: u64, max: impl Fn(Tick) -> u64) -> Option<Tick> {
    let mut ticks = Tick::ALL.into_iter();
    ticks.find(|&tick| number <= max(tick))
}

/// A burst for `to` requests where `burst` is for `from`; unchanged if `from` is 0.
fn in_proportion(burst: u32, from: u64, to: u64) -> u32 {
    if from == 0 {
        return burst;
    }
    // Amounts of buckets are below 2^32, so no product saturates.
    let scaled = (u64::from(burst).saturating_mul(to) + from / 2) / from;
    u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.algorithm.counts_holders() {
            return write!(
                formatter,
                "{} at once, {}, lease {}",
                self.requests, self.algorithm, self.period
            );
        }
        write!(formatter, "{} per ", self.requests)?;
        match self.unit() {
            Some(unit) if self.windows != Windows::Aligned => write!(formatter, "calendar {unit}")?,
            Some(unit) => write!(formatter, "{unit}")?,
            None => write!(formatter, "{}", self.period)?,
        }
        write!(formatter, ", {}", self.algorithm)?;
        if self.algorithm.is_bucket() {
            write!(formatter, ", burst {}", self.capacity)?;
        }
        if self.buckets > 0 {
            write!(formatter, ", {} buckets", self.buckets)?;
        }
        if self.max_wait > Span::ZERO {
            write!(formatter, ", queue up to {}", self.max_wait)?;
        }
        write!(formatter, ", over-limit hits {}", self.over_limit_hits.name())
    }
}

#[cfg(test)]
mod tests;
