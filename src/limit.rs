//! What is allowed: so many requests in a period, counted by one algorithm.
//!
//! [`Limit::new`] refuses whatever could not be counted in whole numbers below 2^53, so that a
//! `Limit` that exists can be counted exactly, here and in a Lua number alike.

use std::fmt;
use std::num::NonZeroU32;

use crate::time::{MICROS_PER_SECOND, Span, Time};

pub mod calendar;

/// Whole numbers up to here are exact in an IEEE double, which is what a Lua number is.
pub const EXACT_MAX: u64 = 1 << 53;

/// The longest period: longer ones are no rate but a mistake in writing.
const PERIOD_MAX: Span = Span::from_secs(100 * 365 * 86_400);

/// The periods that rules name. A month has 30 days and a year 365, and weeks begin on Thursdays:
/// windows are cut from the epoch, as in the reference. [`Months::Calendar`] is the exception.
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
    /// 30 days; see [`Months`]
    Month,
    /// 365 days
    Year,
}

/// The month of a fixed window whose period is one [`Unit::Month`]. To every other limit a month is
/// 30 days: sliding windows, logs and buckets count any 30 days, and calendar months of different
/// lengths cannot be multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Months {
    /// 30 days, counted from the epoch.
    #[default]
    ThirtyDays,
    /// A calendar month in UTC.
    Calendar,
}

/// An aligned window: at least its start, and less than its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How many windows have ended since the epoch.
    pub index: u64,
    /// Its first moment.
    pub start: Time,
    /// The first moment of the next window.
    pub end: Time,
}

/// The shortest time that it makes sense to hold a call back for: the timer of an answer goes by
/// whole milliseconds.
const MAX_WAIT_MIN: Span = Span::from_micros(1_000);
/// The longest: nobody's time-out is longer.
const MAX_WAIT_MAX: Span = Span::from_secs(3_600);
/// How many sub-windows a sliding window may be cut into. More would be a log.
pub const BUCKETS_MAX: u32 = 100;
/// How many calls a sliding log remembers one by one. Later ones share the newest entry, so that
/// less is admitted, and never more.
pub const LOG_ENTRIES_MAX: u32 = 10_000;
/// How many holders a concurrency limit may have at once: every one of them is remembered by name,
/// and all of them fit into one part of a memory store of ordinary size.
pub const HOLDERS_MAX: u32 = 30_000;

/// How hits are counted. The names are those of the `algorithm` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// At most N per window aligned to the epoch.
    FixedWindow,
    /// The same, and the window before it fades out. In sub-windows: at most N in any period.
    SlidingWindow,
    /// Exactly at most N in any period.
    SlidingLog,
    /// At most `burst` + N·t/period in any interval t.
    TokenBucket,
    /// The same with a burst of 1 where nothing is said: an even flow.
    LeakyBucket,
    /// At most N at once, each known by name.
    Concurrency,
}

/// Whether a call that is refused uses up quota all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OverLimitHits {
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
    /// What a month is to a fixed window.
    pub months: Months,
    /// How to count.
    pub algorithm: Algorithm,
    /// How deep a bucket is; if absent, `requests` for a token bucket and 1 for a leaky one. Only
    /// for buckets.
    pub burst: Option<u32>,
    /// How many sub-windows a sliding window is cut into. Only for those.
    pub buckets: Option<u32>,
    /// See [`OverLimitHits`]; each algorithm has a default.
    pub over_limit_hits: Option<OverLimitHits>,
    /// How long a call may be held back that a bucket has no room for yet. Only for buckets.
    pub max_wait: Option<Span>,
    /// After how long a holder is forgotten that never came back. Only for concurrency, which
    /// needs it.
    pub lease: Option<Span>,
}

/// A limit that can be counted exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    requests: u32,
    capacity: u32,
    period: Span,
    max_wait: Span,
    buckets: u32,
    algorithm: Algorithm,
    tick: Tick,
    over_limit_hits: OverLimitHits,
    months: Months,
}

/// One replica's part of what several let through without seeing each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    replicas: NonZeroU32,
    /// Its place among them, from 0 on, if it is known.
    rank: Option<u32>,
}

/// Why terms make no limit. Each says what to write instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A period of nothing.
    #[error("unit_multiplier must be at least 1")]
    PeriodZero,
    /// A period beyond 100 years.
    #[error(
        "a period of {unit_multiplier} × {unit} is longer than 100 years; write a smaller unit_multiplier"
    )]
    PeriodTooLong {
        /// As given.
        unit_multiplier: u32,
        /// As given.
        unit: Unit,
    },
    /// A burst for an algorithm that has none.
    #[error("burst is only for buckets, not for {0}; remove it, or write algorithm: token_bucket")]
    BurstWithoutBucket(Algorithm),
    /// A bucket that nothing fits into.
    #[error(
        "a burst of 0 would refuse every request; write at least 1, or requests_per_unit: 0 if that is what you want"
    )]
    BurstZero,
    /// Numbers that would not stay exact.
    #[error(
        "a burst of {burst} over {period} cannot be counted exactly; the largest that can is {burst_max}"
    )]
    BurstTooLarge {
        /// As given.
        burst: u32,
        /// As given.
        period: Span,
        /// The largest that could be counted.
        burst_max: u64,
    },
    /// Numbers that would not stay exact.
    #[error(
        "a sliding_window of {requests} over {period} cannot be counted exactly; the largest that can is {requests_max}"
    )]
    RequestsTooLarge {
        /// As given.
        requests: u32,
        /// As given.
        period: Span,
        /// The largest that could be counted.
        requests_max: u64,
    },
    /// Sub-windows of what is no sliding window.
    #[error(
        "buckets is only for sliding_window, not for {0}; remove it, or write algorithm: sliding_window"
    )]
    BucketsWithoutSlidingWindow(Algorithm),
    /// None, or too many.
    #[error(
        "a sliding_window has from 1 to {BUCKETS_MAX} buckets, not {0}; write algorithm: sliding_log to count every call"
    )]
    BucketsOutOfRange(u32),
    /// Waiting where no slots can be booked.
    #[error(
        "max_wait is only for buckets, not for {0}; write algorithm: leaky_bucket, or on_limit: reject"
    )]
    MaxWaitWithoutBucket(Algorithm),
    /// No time to wait, or too much.
    #[error(
        "a max_wait of {0} makes no queue; write from 1ms to 1h, and give Envoy a longer time-out"
    )]
    MaxWaitOutOfRange(Span),
    /// A lease of what is not held.
    #[error(
        "lease is only for concurrency, not for {0}; remove it, or write algorithm: concurrency"
    )]
    LeaseWithoutConcurrency(Algorithm),
    /// A holder that would never be forgotten.
    #[error(
        "concurrency needs a lease, after which a holder who never came back is forgotten; write one that is longer than any request, such as lease: 30s"
    )]
    NoLease,
    /// A lease of nothing, or of more than 100 years.
    #[error(
        "a lease of {0} makes no sense; write one that is longer than any request, such as lease: 30s"
    )]
    LeaseOutOfRange(Span),
    /// Refused calls that would hold something.
    #[error(
        "over_limit_hits: count is not for concurrency, where a refused call holds nothing; remove it"
    )]
    CountedHolders,
    /// More holders than are kept.
    #[error(
        "a concurrency of {0} is more than the {HOLDERS_MAX} holders that are remembered (holders_max)"
    )]
    TooManyHolders(u32),
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

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
        Self::ALL
            .into_iter()
            .find(|unit| unit.name().eq_ignore_ascii_case(name))
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
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    /// Its name as rules and counter keys write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Concurrency => "concurrency",
        }
    }

    /// Whether it is a bucket: one that has a burst, and in which slots can be booked.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// The algorithm of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
    }

    /// What a rule means that does not say.
    pub const fn default_over_limit_hits(self) -> OverLimitHits {
        match self {
            Self::FixedWindow => OverLimitHits::Count,
            Self::SlidingWindow
            | Self::SlidingLog
            | Self::TokenBucket
            | Self::LeakyBucket
            | Self::Concurrency => OverLimitHits::Drop,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl OverLimitHits {
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

impl Terms {
    /// So many in a unit, and nothing else said.
    pub const fn new(requests: u32, unit: Unit, algorithm: Algorithm) -> Self {
        Self {
            requests,
            unit,
            unit_multiplier: 1,
            months: Months::ThirtyDays,
            algorithm,
            burst: None,
            buckets: None,
            over_limit_hits: None,
            max_wait: None,
            lease: None,
        }
    }

    /// The limit of these terms with another number and unit. The period is one unit. A burst that
    /// is stated keeps its proportion to the number, rounded half up, from 1 to what can be
    /// counted exactly.
    ///
    /// # Errors
    /// As [`Limit::new`].
    pub fn with_rate(&self, requests: u32, unit: Unit) -> Result<Limit, LimitError> {
        let burst = self
            .burst
            .map(|burst| in_proportion(burst, self.requests, requests));
        let terms = Self {
            requests,
            unit,
            unit_multiplier: 1,
            burst,
            ..*self
        };
        match Limit::new(&terms) {
            Err(LimitError::BurstTooLarge { burst_max, .. }) => Limit::new(&Self {
                burst: Some(u32::try_from(burst_max).unwrap_or(u32::MAX)),
                ..terms
            }),
            limit => limit,
        }
    }

    /// The period that they name.
    fn period(&self) -> Result<Span, LimitError> {
        let &Self {
            unit,
            unit_multiplier,
            ..
        } = self;
        let period = Span::from_micros(
            unit.span()
                .as_micros()
                .saturating_mul(u64::from(unit_multiplier)),
        );
        if unit_multiplier == 0 {
            return Err(LimitError::PeriodZero);
        }
        if period > PERIOD_MAX {
            return Err(LimitError::PeriodTooLong {
                unit_multiplier,
                unit,
            });
        }
        Ok(period)
    }

    /// Refuses what is said of another algorithm.
    fn belong_together(&self) -> Result<(), LimitError> {
        let algorithm = self.algorithm;
        if self.burst.is_some() && !algorithm.is_bucket() {
            return Err(LimitError::BurstWithoutBucket(algorithm));
        }
        if self.max_wait.is_some() && !algorithm.is_bucket() {
            return Err(LimitError::MaxWaitWithoutBucket(algorithm));
        }
        if self.buckets.is_some() && algorithm != Algorithm::SlidingWindow {
            return Err(LimitError::BucketsWithoutSlidingWindow(algorithm));
        }
        if self.lease.is_some() && algorithm != Algorithm::Concurrency {
            return Err(LimitError::LeaseWithoutConcurrency(algorithm));
        }
        Ok(())
    }
}

/// A burst for `to` requests where `burst` is for `from`. It is in no proportion to zero requests,
/// and stays then.
fn in_proportion(burst: u32, from: u32, to: u32) -> u32 {
    if from == 0 {
        return burst;
    }
    let (burst, from, to) = (u64::from(burst), u64::from(from), u64::from(to));
    // At most 2^64 - 2^33 + 1, and half of `from`: below 2^64.
    let scaled = (burst * to + from / 2) / from;
    u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
}

impl Share {
    /// One of so many, and nobody knows which.
    pub const fn one_of(replicas: NonZeroU32) -> Self {
        Self {
            replicas,
            rank: None,
        }
    }

    /// The one with that place among so many, from 0 on.
    pub const fn ranked(replicas: NonZeroU32, rank: u32) -> Self {
        Self {
            replicas,
            rank: Some(rank),
        }
    }

    /// Of how many.
    pub const fn replicas(self) -> NonZeroU32 {
        self.replicas
    }

    /// Its part of what is allowed. The parts of all places add up to the whole; without a place it
    /// is rounded down.
    pub fn of_allowed(self, whole: u32) -> u32 {
        whole / self.replicas + u32::from(self.has_one_more(whole.into()))
    }

    /// Its part of what is used up. The parts of all places add up to the whole; without a place it
    /// is rounded up.
    pub fn of_used(self, whole: u64) -> u64 {
        let replicas = u64::from(self.replicas.get());
        if self.rank.is_none() {
            whole.div_ceil(replicas)
        } else {
            whole / replicas + u64::from(self.has_one_more(whole))
        }
    }

    fn has_one_more(self, whole: u64) -> bool {
        self.rank
            .is_some_and(|rank| u64::from(rank) < whole % u64::from(self.replicas.get()))
    }
}

impl Limit {
    /// Checks terms.
    ///
    /// # Errors
    /// [`LimitError`], when the period is nothing or beyond 100 years, when something is said of an
    /// algorithm that has no such thing, or when the numbers would not stay below 2^53 even in
    /// seconds.
    pub fn new(terms: &Terms) -> Result<Self, LimitError> {
        let &Terms {
            requests,
            algorithm,
            ..
        } = terms;
        let period = terms.period()?;
        terms.belong_together()?;
        let over_limit_hits = terms
            .over_limit_hits
            .unwrap_or(algorithm.default_over_limit_hits());
        let limit = Self {
            requests,
            capacity: requests,
            period,
            max_wait: Span::ZERO,
            buckets: terms.buckets.unwrap_or(0),
            algorithm,
            tick: Tick::Micro,
            over_limit_hits,
            months: Months::ThirtyDays,
        };
        match algorithm {
            // It only adds, so any number is exact; and its start is a whole second.
            Algorithm::FixedWindow => {
                let is_one_month = terms.unit == Unit::Month && terms.unit_multiplier == 1;
                let months = if is_one_month {
                    terms.months
                } else {
                    Months::ThirtyDays
                };
                Ok(Self {
                    tick: Tick::Second,
                    months,
                    ..limit
                })
            }
            Algorithm::SlidingLog => Ok(limit),
            Algorithm::SlidingWindow => match terms.buckets {
                None => limit.fading(),
                Some(buckets @ 1..=BUCKETS_MAX) => Ok(Self { buckets, ..limit }),
                Some(buckets) => Err(LimitError::BucketsOutOfRange(buckets)),
            },
            Algorithm::TokenBucket => limit.bucket(terms.burst.unwrap_or(requests), terms),
            Algorithm::LeakyBucket => limit.bucket(terms.burst.unwrap_or(1), terms),
            Algorithm::Concurrency => limit.held(terms.lease.ok_or(LimitError::NoLease)?),
        }
    }

    fn bucket(self, burst: u32, terms: &Terms) -> Result<Self, LimitError> {
        if terms.burst == Some(0) {
            return Err(LimitError::BurstZero);
        }
        let max_wait = terms.max_wait.unwrap_or(Span::ZERO);
        if terms
            .max_wait
            .is_some_and(|wait| wait < MAX_WAIT_MIN || wait > MAX_WAIT_MAX)
        {
            return Err(LimitError::MaxWaitOutOfRange(max_wait));
        }
        // Without a refill a burst would be a gift of once: zero requests refuse every hit.
        let capacity = if self.requests == 0 { 0 } else { burst };
        let limit = Self {
            capacity,
            max_wait,
            ..self
        };
        let tick = Tick::ALL
            .into_iter()
            .find(|&tick| u64::from(burst) <= limit.burst_max(tick));
        let burst_max = limit.burst_max(Tick::Second);
        Ok(Self {
            tick: tick.ok_or(LimitError::BurstTooLarge {
                burst,
                period: self.period,
                burst_max,
            })?,
            ..limit
        })
    }

    /// The largest burst of a bucket whose numbers stay exact in that tick. A bucket's state is
    /// what has been spent, in credits of which a hit costs `period`: at most one burst, what
    /// is booked ahead, and one hit more, and another burst where refused hits put it into
    /// debt; and a refill adds `requests` a tick.
    fn burst_max(&self, tick: Tick) -> u64 {
        let requests = u64::from(self.requests);
        let room = EXACT_MAX - 1 - requests;
        let room = room.saturating_sub(
            self.max_wait
                .as_micros()
                .div_ceil(tick.span().as_micros())
                .saturating_mul(requests),
        );
        let bursts = match self.over_limit_hits {
            OverLimitHits::Drop => 1,
            OverLimitHits::Count => 2,
        };
        (room / self.ticks(tick)).saturating_sub(1) / bursts
    }

    /// A sliding window multiplies the count of the window that fades by what is left of it.
    fn fading(self) -> Result<Self, LimitError> {
        let Self {
            requests, period, ..
        } = self;
        let requests_max = |tick: Tick| (EXACT_MAX - 1) / self.ticks(tick);
        let tick = Tick::ALL
            .into_iter()
            .find(|&tick| u64::from(requests) <= requests_max(tick));
        let requests_max = requests_max(Tick::Second);
        Ok(Self {
            tick: tick.ok_or(LimitError::RequestsTooLarge {
                requests,
                period,
                requests_max,
            })?,
            ..self
        })
    }

    /// What is held has no period but its lease.
    fn held(self, lease: Span) -> Result<Self, LimitError> {
        if self.over_limit_hits == OverLimitHits::Count {
            return Err(LimitError::CountedHolders);
        }
        if self.requests > HOLDERS_MAX {
            return Err(LimitError::TooManyHolders(self.requests));
        }
        if lease == Span::ZERO || lease > PERIOD_MAX {
            return Err(LimitError::LeaseOutOfRange(lease));
        }
        Ok(Self {
            period: lease,
            ..self
        })
    }

    /// What one of several replicas may let through by itself. Where the whole is not nothing it is
    /// at least one, however many there are: whoever always meets the same replica would else
    /// meet one that refuses everything. So all of them together let through the limit, or
    /// one each if that is more.
    ///
    /// A bucket's part is filled exactly as much more slowly as there are replicas, so its rate is
    /// not rounded at all.
    #[must_use]
    pub fn share(self, share: Share) -> Self {
        let part = |whole: u32| {
            if whole == 0 {
                0
            } else {
                share.of_allowed(whole).max(1)
            }
        };
        let capacity = part(self.capacity);
        if self.algorithm.is_bucket()
            && let Some(slower) = self.slower(share.replicas(), capacity)
        {
            return slower;
        }
        Self {
            requests: part(self.requests),
            capacity,
            ..self
        }
    }

    /// The same rate taken over so many periods, if it can be counted: in this process alone, where
    /// numbers may be beyond 2^53.
    fn slower(self, replicas: NonZeroU32, capacity: u32) -> Option<Self> {
        const CREDITS_MAX: u64 = 1 << 62;
        let period = self.period.as_micros().checked_mul(replicas.get().into())?;
        let limit = Self {
            period: Span::from_micros(period),
            capacity,
            ..self
        };
        let deepest = limit
            .period_ticks()
            .checked_mul(2 * (u64::from(capacity) + 1))?;
        (deepest <= CREDITS_MAX).then_some(limit)
    }

    /// How many in a period.
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// How many at once: `requests` of a window, the burst of a bucket.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The period; of what is held at once, the lease. 30 days stand for a calendar month: see
    /// [`window`](Self::window).
    pub const fn period(&self) -> Span {
        self.period
    }

    /// What a month is to it: [`Months::Calendar`] only if its windows are calendar months.
    pub const fn months(&self) -> Months {
        self.months
    }

    /// The aligned window that `now` lies in.
    pub fn window(&self, now: Time) -> Window {
        match self.months {
            Months::ThirtyDays => {
                let period = self.period.as_micros();
                let index = now.as_micros() / period;
                let start = Time::from_micros(index * period);
                Window {
                    index,
                    start,
                    end: start.plus(self.period),
                }
            }
            Months::Calendar => {
                let index = calendar::month_of(now.as_micros() / MICROS_PER_SECOND);
                let begins = |month: u64| {
                    Time::from_micros(calendar::month_start(month) * MICROS_PER_SECOND)
                };
                Window {
                    index,
                    start: begins(index),
                    end: begins(index + 1),
                }
            }
        }
    }

    /// The unit that is the period, if one is.
    pub fn unit(&self) -> Option<Unit> {
        if self.algorithm == Algorithm::Concurrency {
            None
        } else {
            Unit::of(self.period)
        }
    }

    /// Into how many sub-windows a sliding window is cut; zero if it is not.
    pub const fn buckets(&self) -> u32 {
        self.buckets
    }

    /// How long a call may be held back that a bucket has no room for yet; zero if it may not.
    pub const fn max_wait(&self) -> Span {
        self.max_wait
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
        self.ticks(self.tick)
    }

    const fn ticks(&self, tick: Tick) -> u64 {
        self.period.as_micros() / tick.span().as_micros()
    }

    /// Whether a refused call uses up quota.
    pub const fn over_limit_hits(&self) -> OverLimitHits {
        self.over_limit_hits
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.algorithm == Algorithm::Concurrency {
            return write!(
                formatter,
                "{} at once, {}, lease {}",
                self.requests, self.algorithm, self.period
            );
        }
        write!(formatter, "{} per ", self.requests)?;
        match self.unit() {
            Some(unit) if self.months == Months::Calendar => write!(formatter, "calendar {unit}")?,
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
        write!(formatter, ", refused hits {}", self.over_limit_hits.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(unit: Unit, requests: u32, burst: u32) -> Result<Limit, LimitError> {
        let algorithm = Algorithm::TokenBucket;
        Limit::new(&Terms {
            burst: Some(burst),
            ..Terms::new(requests, unit, algorithm)
        })
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
        let Err(LimitError::BurstTooLarge { burst_max, .. }) = bucket(Unit::Year, 1, u32::MAX)
        else {
            panic!("it fits")
        };
        assert_eq!(burst_max, 285_616_413);
        assert!(bucket(Unit::Year, 1, 285_616_413).is_ok());
    }

    fn ranked(replicas: u32, rank: u32) -> Share {
        Share::ranked(NonZeroU32::new(replicas).expect("there is one"), rank)
    }

    #[test]
    fn the_parts_of_all_replicas_add_up_to_the_limit_or_to_one_each() {
        for (requests, replicas) in [
            (0, 3),
            (1, 3),
            (2, 5),
            (7, 3),
            (9, 3),
            (1_000, 7),
            (u32::MAX, 1_000),
        ] {
            let whole = Limit::new(&Terms::new(requests, Unit::Minute, Algorithm::FixedWindow))
                .expect("countable");
            let parts = (0..replicas).map(|rank| whole.share(ranked(replicas, rank)).requests());
            let all = if requests == 0 {
                0
            } else {
                requests.max(replicas)
            };
            assert_eq!(
                parts.map(u64::from).sum::<u64>(),
                u64::from(all),
                "{requests} of {replicas}"
            );
            let used = (0..replicas).map(|rank| ranked(replicas, rank).of_used(requests.into()));
            assert_eq!(
                used.sum::<u64>(),
                u64::from(requests),
                "{requests} of {replicas}"
            );
        }
        let unknown = Share::one_of(NonZeroU32::new(4).expect("four is not zero"));
        assert_eq!((unknown.of_allowed(10), unknown.of_used(10)), (2, 3));
    }

    #[test]
    fn the_parts_of_a_bucket_are_filled_as_fast_as_the_whole_and_share_its_depth() {
        let whole = bucket(Unit::Second, 1, 10).expect("countable");
        let parts = [0, 1, 2].map(|rank| whole.share(ranked(3, rank)));
        assert_eq!(
            parts.map(|part| (part.capacity(), part.requests(), part.period())),
            [
                (4, 1, Span::from_secs(3)),
                (3, 1, Span::from_secs(3)),
                (3, 1, Span::from_secs(3)),
            ]
        );
        // The most that any limit can have, and more replicas than there ever are: what cannot be
        // made slower is divided.
        let deepest = bucket(Unit::Year, u32::MAX, 285_000_000)
            .expect("countable")
            .share(Share::one_of(NonZeroU32::MAX));
        assert_eq!(
            (deepest.capacity(), deepest.requests(), deepest.period()),
            (1, 1, Unit::Year.span())
        );
    }

    #[test]
    fn a_period_that_a_unit_names_is_that_unit() {
        assert_eq!(Unit::of(Span::from_secs(60)), Some(Unit::Minute));
        assert_eq!(Unit::of(Span::from_secs(300)), None);
        assert_eq!(Unit::from_name("HoUr"), Some(Unit::Hour));
        assert_eq!(Unit::from_name("hours"), None);
    }

    #[test]
    fn only_a_fixed_window_of_one_month_is_a_calendar_month() {
        let months = |unit, unit_multiplier, algorithm| {
            let terms = Terms {
                unit_multiplier,
                months: Months::Calendar,
                ..Terms::new(5, unit, algorithm)
            };
            Limit::new(&terms).expect("countable").months()
        };
        assert_eq!(
            months(Unit::Month, 1, Algorithm::FixedWindow),
            Months::Calendar
        );
        assert_eq!(
            months(Unit::Month, 2, Algorithm::FixedWindow),
            Months::ThirtyDays
        );
        assert_eq!(
            months(Unit::Day, 30, Algorithm::FixedWindow),
            Months::ThirtyDays
        );
        assert_eq!(
            months(Unit::Year, 1, Algorithm::FixedWindow),
            Months::ThirtyDays
        );
        for algorithm in [
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
        ] {
            assert_eq!(
                months(Unit::Month, 1, algorithm),
                Months::ThirtyDays,
                "{algorithm}"
            );
        }
    }

    #[test]
    fn a_window_is_a_part_of_the_time_since_the_epoch_or_a_calendar_month() {
        let window = |months: Months, secs: u64| {
            let terms = Terms {
                months,
                ..Terms::new(5, Unit::Month, Algorithm::FixedWindow)
            };
            let Window { index, start, end } = Limit::new(&terms)
                .expect("countable")
                .window(Time::from_micros(secs * MICROS_PER_SECOND + 7));
            (
                index,
                start.as_micros() / MICROS_PER_SECOND,
                end.as_micros() / MICROS_PER_SECOND,
            )
        };
        // 2024-02-29T23:59:59Z, the last second of a leap day.
        assert_eq!(
            window(Months::Calendar, 1_709_251_199),
            (649, 1_706_745_600, 1_709_251_200)
        );
        assert_eq!(
            window(Months::ThirtyDays, 1_709_251_199),
            (659, 1_708_128_000, 1_710_720_000)
        );
    }

    #[test]
    fn a_stated_burst_keeps_its_proportion_to_the_number_within_bounds() {
        let burst = |stated: Option<u32>, from: u32, to: u32| {
            let terms = Terms {
                burst: stated,
                unit_multiplier: 5,
                ..Terms::new(from, Unit::Minute, Algorithm::TokenBucket)
            };
            terms
                .with_rate(to, Unit::Hour)
                .expect("countable")
                .capacity()
        };
        assert_eq!(burst(Some(20), 10, 50), 100);
        assert_eq!(burst(Some(20), 10, 1), 2);
        // Half of a hit is rounded up, less is rounded down, and nothing is rounded to none.
        assert_eq!(
            (
                burst(Some(3), 2, 1),
                burst(Some(4), 3, 1),
                burst(Some(1), 100, 1)
            ),
            (2, 1, 1)
        );
        // Without a stated burst the algorithm's default holds.
        assert_eq!(burst(None, 10, 50), 50);
        // A burst is in no proportion to zero requests; and with zero requests there is none.
        assert_eq!((burst(Some(20), 0, 50), burst(Some(20), 10, 0)), (20, 0));
        assert_eq!(burst(Some(u32::MAX), 1, u32::MAX), u32::MAX);
    }

    #[test]
    fn a_burst_that_cannot_be_counted_is_cut_to_the_largest_that_can() {
        let terms = Terms {
            burst: Some(2),
            ..Terms::new(1, Unit::Second, Algorithm::TokenBucket)
        };
        let limit = terms.with_rate(u32::MAX, Unit::Year).expect("cut");
        assert_eq!((limit.requests(), limit.tick()), (u32::MAX, Tick::Second));
        assert!(
            (285_000_000..286_000_000).contains(&limit.capacity()),
            "{limit}"
        );
    }

    #[test]
    fn another_number_and_unit_change_nothing_else() {
        let terms = Terms {
            unit_multiplier: 5,
            burst: Some(10),
            over_limit_hits: Some(OverLimitHits::Count),
            max_wait: Some(Span::from_secs(1)),
            ..Terms::new(10, Unit::Minute, Algorithm::LeakyBucket)
        };
        let limit = terms.with_rate(20, Unit::Hour).expect("countable");
        assert_eq!(
            limit.to_string(),
            "20 per hour, leaky_bucket, burst 20, queue up to 1 s, refused hits count"
        );
        let held = Terms {
            lease: Some(Span::from_secs(30)),
            ..Terms::new(2, Unit::Second, Algorithm::Concurrency)
        };
        assert_eq!(
            held.with_rate(7, Unit::Year)
                .expect("countable")
                .to_string(),
            "7 at once, concurrency, lease 30 s"
        );
        assert_eq!(
            held.with_rate(HOLDERS_MAX + 1, Unit::Year),
            Err(LimitError::TooManyHolders(HOLDERS_MAX + 1))
        );
    }
}
