//! The two languages agree: whatever is asked, the script in Redis and the algorithms in Rust say
//! the same and leave the same.
//!
//! The script is the one that serves. Calls come in batches as it gets them: several asks, decided
//! together or one by one, of mixed algorithms, with keys that come again. Gaps between them are
//! aimed at where mistakes are: at the ends of windows, at the tick at which a bucket is full, has
//! fits, or expires; and clocks go back.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Value;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::check::{Check, CheckRequest, Hits, Key};
use tollgate::limits::{
    Algorithm, CalendarSpec, EXACT_MAX, LOG_ENTRIES_MAX, Limit, OverLimitHits, Terms, Unit, Windows,
};
use tollgate::rules::config::calendar::{calendar, utc_months};
use tollgate::store::redis::client::decode::ScriptReply;
use tollgate::store::redis::client::encode::{EncodedCheck, Mode};
use tollgate::store::redis::client::script::{Form, Script};

use crate::support::redis::RedisProcess;
use crate::support::twins::{Ask, Found, Marks, Twins, Writes};

/// 2024-03-10, which is on no edge of any unit. This day has 23 hours in New York, and 24 March has
/// 25 in Asuncion.
const START: Time = Time::from_micros(1_710_050_321_123_456);
const ZONES: [&str; 2] = ["America/New_York", "America/Asuncion"];
const CALENDAR_PERIODS: [(Unit, u32); 5] =
    [(Unit::Day, 1), (Unit::Week, 1), (Unit::Month, 1), (Unit::Month, 3), (Unit::Year, 1)];
/// No clock goes back further than here, in µs.
const EARLIEST: u64 = 1_000_000_000_000_000;
/// How many counters a history has.
const KEYS: usize = 4;
/// As many histories as take a few seconds.
const HISTORIES: u32 = 1_500;

/// Some counters, and what happens to them.
#[derive(Debug, Clone)]
pub(crate) struct History {
    counters: [Terms2; KEYS],
    jitter: Span,
    batches: Vec<Batch>,
}

/// A counter's limit, the one after a reload, and what is stored at the key of its first
/// window.
#[derive(Debug, Clone)]
struct Terms2 {
    limits: [Limit; 2],
    found: Option<Found>,
}

/// Modes, and the group of all checks.
const MANNERS: [(Mode, u16); 5] = [
    (Mode::Independent, 0),
    (Mode::Independent, 1),
    (Mode::DryRun, 0),
    (Mode::Reset, 0),
    (Mode::Grant, 0),
];

/// What goes out in one call.
#[derive(Debug, Clone)]
struct Batch {
    gap: Gap,
    /// Which of its limits each counter has.
    reloaded: [bool; KEYS],
    asks: Vec<Group>,
    writes: Writes,
}

#[derive(Debug, Clone)]
struct Group {
    mode: Mode,
    calls: Vec<Call>,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    counter: usize,
    size: Size,
    enforcing: bool,
    /// Who calls, for those that want to know.
    holder: u8,
    /// The longest wait, in quarters of what its rule allows.
    patience: u64,
    ahead: Option<(u64, u64)>,
    /// When the call begins to change nothing, in µs after or before it comes.
    until: Option<i64>,
    /// Neighbors with one number consume all or nothing; 0 is alone.
    group: u16,
}

#[derive(Debug, Clone, Copy)]
enum Size {
    Add(Amount),
    Look,
    GiveBack(Amount),
}

#[derive(Debug, Clone, Copy)]
enum Amount {
    Hits(u64),
    /// In eighths of the capacity, plus or minus hits.
    Capacity(u64, i64),
}

/// How long after the call before it a call comes. What has a counter means one of its times.
#[derive(Debug, Clone, Copy)]
enum Gap {
    Micros(u64),
    /// In ticks, plus or minus µs.
    Ticks(usize, u64, i64),
    /// In 256ths of a period, plus or minus µs.
    Period(usize, u64, i64),
    /// Until the window ends.
    WindowEnd(usize, i64),
    /// Until the last rejected call to it would pass, plus or minus ticks.
    Retry(usize, i64),
    /// Until it equals a new counter, plus or minus ticks.
    Reset(usize, i64),
    /// The clock goes back.
    Back(u64),
    /// The clock goes back by 256ths of a period.
    BackPeriod(usize, u64),
}

impl History {
    /// Plays it to both.
    pub(crate) fn play(&self, twins: &mut Twins<'_>) -> Result<(), String> {
        twins.start_over(self.jitter).map_err(|error| error.to_string())?;
        let mut now = START;
        let mut retries = [Span::ZERO; KEYS];
        let mut resets = [Span::ZERO; KEYS];
        for (number, counter) in self.counters.iter().enumerate() {
            if let Some(found) = &counter.found {
                twins
                    .put(&check(number, counter.limits[0], Hits::Peek), found, now)
                    .map_err(|error| error.to_string())?;
            }
        }
        for (index, batch) in self.batches.iter().enumerate() {
            let limits: [Limit; KEYS] = std::array::from_fn(|number| {
                self.counters[number].limits[usize::from(batch.reloaded[number])]
            });
            now = batch.gap.after(now, &limits, &retries, &resets);
            let calls = batch.asks.iter().flat_map(|ask| &ask.calls);
            let asks = batch.asks.iter().map(|group| group.ask(&limits, now));
            let asks: Vec<Ask> = asks.collect();
            let verdicts = twins
                .ask(&asks, batch.writes, now)
                .map_err(|error| format!("batch {index}: {error}"))?;
            for (call, verdict) in calls.zip(verdicts) {
                let Ok(verdict) = verdict else { continue };
                resets[call.counter] = verdict.reset_after;
                retries[call.counter] = verdict.retry_after.unwrap_or(retries[call.counter]);
            }
        }
        Ok(())
    }
}

impl Group {
    fn ask(&self, limits: &[Limit; KEYS], now: Time) -> Ask {
        let calls = || self.calls.iter().map(|call| (call, &limits[call.counter]));
        Ask {
            mode: self.mode,
            request: CheckRequest {
                checks: calls().map(|(call, limit)| call.check(limit)).collect(),
                deadline: None,
            },
            marks: calls().map(|(call, limit)| call.marks(self.mode, limit, now)).collect(),
        }
    }
}

impl Call {
    fn check(&self, limit: &Limit) -> Check {
        let holder = (limit.algorithm == Algorithm::Concurrency)
            .then(|| format!("holder {}", self.holder).into_bytes().into());
        let book_ahead = Span::from_micros(limit.max_wait.as_micros() / 4 * self.patience);
        Check {
            enforcing: self.enforcing,
            holder,
            book_ahead,
            lease: self.takes(limit).then(Arc::default),
            group: self.group,
            ..check(self.counter, *limit, self.size.hits(limit))
        }
    }

    /// Whether hits can be taken ahead after it.
    fn takes(&self, limit: &Limit) -> bool {
        let is_leased = match limit.algorithm {
            Algorithm::FixedWindow => limit.over_limit_hits == OverLimitHits::Drop,
            Algorithm::SlidingWindow | Algorithm::TokenBucket | Algorithm::LeakyBucket => true,
            Algorithm::SlidingLog | Algorithm::Concurrency => false,
        };
        is_leased && self.ahead.is_some() && !matches!(self.size, Size::GiveBack(_))
    }

    fn marks(&self, mode: Mode, limit: &Limit, now: Time) -> Marks {
        let until = |after| Time::from_micros(now.as_micros().saturating_add_signed(after));
        let has_end = self.group == 0 && matches!(mode, Mode::Independent | Mode::Grant);
        Marks {
            ahead: self.ahead.filter(|_| self.group == 0 && self.takes(limit)),
            until: self.until.filter(|_| has_end).map(until),
        }
    }
}

impl Size {
    fn hits(self, limit: &Limit) -> Hits {
        match self {
            Self::Add(amount) => Hits::Add(amount.hits(limit)),
            Self::Look => Hits::Peek,
            Self::GiveBack(amount) => Hits::Refund(amount.hits(limit)),
        }
    }
}

impl Amount {
    fn hits(self, limit: &Limit) -> u64 {
        match self {
            Self::Hits(hits) => hits,
            Self::Capacity(eighths, more) => {
                (limit.capacity * eighths / 8).saturating_add_signed(more).max(1)
            }
        }
    }
}

impl Gap {
    fn after(
        self,
        now: Time,
        limits: &[Limit; KEYS],
        retries: &[Span; KEYS],
        resets: &[Span; KEYS],
    ) -> Time {
        let micros = now.as_micros();
        let tick = |counter: usize| limits[counter].tick.span().as_micros();
        let period = |counter: usize| limits[counter].period.as_micros();
        let ticks = |counter: usize, ticks: i64| ticks * tick(counter).cast_signed();
        let later = match self {
            Self::Micros(gap) => micros + gap,
            Self::Ticks(counter, gap, more) => {
                (micros + gap * tick(counter)).saturating_add_signed(more)
            }
            Self::Period(counter, parts, more) => {
                (micros + period(counter) / 256 * parts).saturating_add_signed(more)
            }
            Self::WindowEnd(counter, more) => {
                limits[counter].window(now).end.as_micros().saturating_add_signed(more)
            }
            Self::Retry(counter, more) => micros
                .saturating_add(retries[counter].as_micros())
                .saturating_add_signed(ticks(counter, more)),
            Self::Reset(counter, more) => micros
                .saturating_add(resets[counter].as_micros())
                .saturating_add_signed(ticks(counter, more)),
            Self::Back(gap) => micros.saturating_sub(gap),
            Self::BackPeriod(counter, parts) => {
                micros.saturating_sub(period(counter) / 256 * parts)
            }
        };
        // A number that Lua has exactly, too.
        Time::from_micros(later.clamp(EARLIEST, EXACT_MAX / 2))
    }
}

fn check(number: usize, limit: Limit, hits: Hits) -> Check {
    let end = if limit.algorithm == Algorithm::FixedWindow { ":" } else { "" };
    let key = format!("{}{number}{end}", limit.algorithm);
    Check::new(Key::from(key.as_str()), limit, hits)
}

/// What other programs, or none of ours, may leave at a counter's key.
fn finds(limit: &Limit) -> Vec<Found> {
    let text = |text: &str| Found::Text(text.as_bytes().to_vec());
    let mut finds = vec![
        Found::List("item"),
        Found::List("an item of more than 24 letters"),
        text(""),
        text("7"),
    ];
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let numbers = "0 1 9007199250445311 9007199250445312 9007199250445313 \
                9007199254740990 9007199254740991 9007199254740992 9223372036854775807 \
                -1 -7 -4294967296 -4294967297 -9223372036854775808 \
                9999999999999999999 -9999999999999999999 99999999999999999999 \
                - text 12.5 x5 +5 0x10 1e3 nan";
            finds.extend(numbers.split_whitespace().map(text));
            finds.extend([" 5", "5 "].map(text));
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let price = double(limit.period_ticks());
            let at = double(limit.tick.since_epoch(START));
            let full = price * double(limit.capacity);
            let far = double(EXACT_MAX - 1);
            let infinity = f64::INFINITY;
            let nan = f64::NAN;
            let spent = [0.0, price, full, full + price, 2.0 * full, far, infinity, -1.0, nan];
            let ats = [0.0, at + 1.0, at + price, far, infinity];
            let buckets = spent.map(|spent| (spent, at)).into_iter();
            let buckets = buckets.chain(ats.map(|at| (full, at))).chain([
                (price, at - 1.0),
                (infinity, 0.0),
                (1.0, -1.0),
                (1.0, nan),
            ]);
            finds.extend(
                buckets.map(|(spent, at)| {
                    Found::Text([spent.to_le_bytes(), at.to_le_bytes()].concat())
                }),
            );
            let texts = ["fifteen letters", "sixteen letters!", "seventeen letters"];
            finds.extend(texts.map(text));
        }
        Algorithm::SlidingWindow => {
            let numbers = if limit.buckets > 0 { limit.buckets as usize + 2 } else { 3 };
            let windows = |numbers: usize| Found::Text([0; 8].repeat(numbers));
            finds.extend([windows(numbers - 1), windows(numbers + 1)]);
        }
        Algorithm::SlidingLog => finds.extend([1, 2, 7].map(Found::Log)),
        Algorithm::Concurrency => {}
    }
    finds
}

#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 lose nothing")]
fn double(number: u64) -> f64 {
    number as f64
}

/// Limits of every tick: large ones, or long ones, have coarse ones.
fn limits(algorithm: Algorithm) -> impl Strategy<Value = Limit> {
    let over_limit_hits = prop::sample::select(&OverLimitHits::ALL[..]).prop_map(Some);
    let unit = prop::sample::select(&Unit::ALL[..]);
    let burst = prop_oneof![
        3 => Just(None),
        6 => (1..40_u32).prop_map(Some),
        1 => (104_000..1_000_000_u32).prop_map(Some),
        1 => (100_000_000..=u32::MAX).prop_map(Some),
    ];
    let requests = prop_oneof![1 => Just(0_u32), 8 => 1..=30_u32, 1 => 1_000..2_000_000_u32, 1 => Just(u32::MAX)];
    let max_wait = prop_oneof![Just(None), (1_000..5_000_000_u64).prop_map(Some)];
    let buckets = prop_oneof![Just(None), (1..12_u32).prop_map(Some)];
    let particular = (burst, max_wait, buckets, 1_000..100_000_000_u64);
    let period = prop_oneof![
        5 => (unit, 1..8_u32).prop_map(|(unit, unit_multiplier)| (unit, unit_multiplier, Windows::Aligned)),
        1 => Just((Unit::Month, 1, utc_months())),
        1 => (prop::sample::select(&ZONES[..]), prop::sample::select(&CALENDAR_PERIODS[..]))
            .prop_map(|(zone, (unit, count))| (unit, count, calendar_windows(zone, unit, count))),
    ];
    (requests, period, particular, over_limit_hits).prop_filter_map(
        "countable",
        move |(
            requests,
            (unit, unit_multiplier, windows),
            (burst, max_wait, buckets, lease),
            over_limit_hits,
        )| {
            // There are five callers.
            let requests =
                if algorithm == Algorithm::Concurrency { requests % 5 } else { requests };
            let terms = Terms {
                unit_multiplier,
                windows,
                burst,
                buckets,
                over_limit_hits,
                ..Terms::new(requests.into(), unit, algorithm)
            };
            let terms = Terms {
                max_wait: max_wait.map(Span::from_micros),
                lease: Some(Span::from_micros(lease)),
                ..terms
            };
            Limit::new(&fitting(terms)).ok()
        },
    )
}

fn calendar_windows(zone: &str, unit: Unit, months: u32) -> Windows {
    let found = calendar(&CalendarSpec::of(zone), unit, months, usize::MAX);
    Windows::Calendar(found.expect("a calendar"))
}

/// The same without what its algorithm has not.
fn fitting(terms: Terms) -> Terms {
    let (algorithm, is_held) = (terms.algorithm, terms.algorithm == Algorithm::Concurrency);
    Terms {
        burst: terms.burst.filter(|_| algorithm.is_bucket()),
        max_wait: terms.max_wait.filter(|_| algorithm.is_bucket()),
        buckets: terms.buckets.filter(|_| algorithm == Algorithm::SlidingWindow),
        lease: terms.lease.filter(|_| is_held),
        over_limit_hits: terms.over_limit_hits.filter(|_| !is_held),
        ..terms
    }
}

/// A limit, and another one that counts at the same key.
fn counters(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Terms2> {
    let limits = prop::sample::select(algorithms).prop_flat_map(limits);
    let other = (any::<u32>(), 0..40_u32, 0..40_u32, any::<bool>());
    let found = (0..5_usize, any::<prop::sample::Index>());
    (limits, found, other).prop_map(
        |(limit, (is_found, found), (large, requests, burst, is_large))| {
            let requests = if is_large { large } else { requests };
            let burst = if limit.tick == tollgate::limits::Tick::Micro { burst } else { large };
            let measures = |limit: &Limit| (limit.period, limit.tick, limit.windows);
            let same_key = |other: &Limit| {
                limit.algorithm == Algorithm::Concurrency || measures(other) == measures(&limit)
            };
            let seconds = u32::try_from(limit.period.ceil_secs()).unwrap_or(1);
            let terms = Terms {
                unit_multiplier: seconds,
                burst: Some(burst),
                buckets: Some(limit.buckets).filter(|&buckets| buckets > 0),
                over_limit_hits: Some(limit.over_limit_hits),
                max_wait: Some(limit.max_wait).filter(|&wait| wait > Span::ZERO),
                lease: Some(Span::from_micros(1 + u64::from(large) / 100)),
                ..Terms::new(
                    if limit.algorithm == Algorithm::Concurrency {
                        (large % 5).into()
                    } else {
                        requests.into()
                    },
                    Unit::Second,
                    limit.algorithm,
                )
            };
            let other = Limit::new(&fitting(terms)).ok().filter(same_key).unwrap_or(limit);
            Terms2 {
                limits: [limit, other],
                found: (is_found == 0).then(|| found.get(&finds(&limit)).clone()),
            }
        },
    )
}

fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![
        4 => (1..4_u64).prop_map(Amount::Hits),
        6 => (0..18_u64, -1..2_i64).prop_map(|(eighths, more)| Amount::Capacity(eighths, more)),
        1 => prop_oneof![Just(u64::MAX), Just(u64::from(u32::MAX)), Just(1 << 32), Just((1 << 32) + 1), Just(1 << 53)].prop_map(Amount::Hits),
    ]
}

fn calls() -> impl Strategy<Value = Call> {
    let size = prop_oneof![8 => amounts().prop_map(Size::Add), 2 => Just(Size::Look), 3 => amounts().prop_map(Size::GiveBack)];
    let caller = (any::<bool>(), 0..5_u8, 0..5_u64);
    let wanted = prop_oneof![8 => 0..20_u64, 1 => Just(1 << 32)];
    let parts = prop_oneof![2 => Just(1_u64), 2 => 2..5_u64, 1 => 30..33_u64];
    let ahead = prop::option::weighted(0.25, (wanted, parts));
    let until = prop::option::weighted(0.1, prop_oneof![Just(-1), Just(0), Just(1)]);
    let group = prop_oneof![2 => Just(0), 2 => Just(1), 1 => Just(2)];
    (0..KEYS, size, caller, (ahead, until), group).prop_map(
        |(counter, size, (enforcing, holder, patience), (ahead, until), group)| Call {
            counter,
            size,
            enforcing,
            holder,
            patience,
            ahead,
            until,
            group,
        },
    )
}

fn gaps() -> impl Strategy<Value = Gap> {
    let edge = -1..2_i64;
    prop_oneof![
        2 => Just(Gap::Micros(0)),
        1 => (0..4_000_000_u64).prop_map(Gap::Micros),
        2 => (0..KEYS, 0..3_u64, edge.clone()).prop_map(|(counter, ticks, more)| Gap::Ticks(counter, ticks, more)),
        1 => (0..KEYS, 0..600_u64, edge.clone()).prop_map(|(counter, parts, more)| Gap::Period(counter, parts, more)),
        1 => (0..KEYS, edge.clone()).prop_map(|(counter, more)| Gap::Period(counter, 256, more)),
        2 => (0..KEYS, edge.clone()).prop_map(|(counter, more)| Gap::WindowEnd(counter, more)),
        3 => (0..KEYS, edge.clone()).prop_map(|(counter, more)| Gap::Retry(counter, more)),
        2 => (0..KEYS, edge).prop_map(|(counter, more)| Gap::Reset(counter, more)),
        1 => (0..3_000_000_u64).prop_map(Gap::Back),
        1 => (0..KEYS, 0..600_u64).prop_map(|(counter, parts)| Gap::BackPeriod(counter, parts)),
    ]
}

fn batches() -> impl Strategy<Value = Batch> {
    let manners = prop_oneof![
        12 => Just(Mode::Independent),
        2 => Just(Mode::DryRun),
        1 => Just(Mode::Reset),
        2 => Just(Mode::Grant),
    ];
    let group = (manners, prop::collection::vec(calls(), 1..7)).prop_map(|(mode, mut calls)| {
        if mode != Mode::Independent {
            for call in &mut calls {
                call.group = 0;
            }
        }
        Group { mode, calls }
    });
    let reloaded = prop_oneof![2 => Just([false; KEYS]), 1 => any::<[bool; KEYS]>()];
    let writes = prop_oneof![6 => Just(Writes::Taken), 1 => Just(Writes::Rejected)];
    (gaps(), reloaded, prop::collection::vec(group, 1..4), writes)
        .prop_map(|(gap, reloaded, asks, writes)| Batch { gap, reloaded, asks, writes })
}

/// Histories of counters of these algorithms.
pub(crate) fn histories(algorithms: &'static [Algorithm]) -> impl Strategy<Value = History> {
    let jitter =
        prop_oneof![Just(Span::ZERO), Just(Span::from_secs(1)), Just(Span::from_secs(299))];
    let counters = std::array::from_fn(|_| counters(algorithms));
    (counters, jitter, prop::collection::vec(batches(), 1..16))
        .prop_map(|(counters, jitter, batches)| History { counters, jitter, batches })
}

/// Every find at a key of every kind of limit of these algorithms, and every kind of call to it,
/// alone and with a neighbour: four finds a history.
pub(crate) fn table(algorithms: &[Algorithm]) -> Vec<History> {
    let full = Size::Add(Amount::Capacity(8, 0));
    let sizes = [add(1), add(1 << 32), full, Size::Look, give_back(1), give_back(1 << 32)];
    let mut histories = Vec::new();
    for limit in table_limits().into_iter().filter(|limit| algorithms.contains(&limit.algorithm)) {
        let mut finds: Vec<Option<Found>> = finds(&limit).into_iter().map(Some).collect();
        finds.resize(finds.len().next_multiple_of(KEYS) + KEYS, None);
        for finds in finds.chunks(KEYS) {
            for (size, (mode, group)) in
                sizes.into_iter().flat_map(|size| MANNERS.map(|manner| (size, manner)))
            {
                let batch = |gap, size, writes| {
                    let call = |counter, size| Call { size, group, ..hit(counter) };
                    let ask = |counter| {
                        let mut calls = vec![call(counter, size)];
                        if (mode, group) != MANNERS[0] {
                            calls.push(call((counter + 1) % KEYS, Size::Look));
                        }
                        Group { mode, calls }
                    };
                    Batch { writes, ..Batch::of(gap, (0..KEYS).map(ask).collect()) }
                };
                let batches = vec![
                    batch(Gap::Micros(0), size, Writes::Rejected),
                    batch(Gap::Micros(0), size, Writes::Taken),
                    batch(Gap::Ticks(0, 1, 0), add(1), Writes::Taken),
                ];
                let mut history = History::of([limit; 2], batches);
                for (counter, found) in history.counters.iter_mut().zip(finds) {
                    counter.found.clone_from(found);
                }
                histories.push(history);
            }
        }
        histories.extend([give_backs_beside_a_veto(limit), soft_hits_beside_a_veto(limit)]);
    }
    if algorithms.contains(&Algorithm::SlidingLog) {
        histories.push(full_logs());
    }
    if algorithms.contains(&Algorithm::SlidingWindow) {
        histories.push(grant_of_the_present_window());
    }
    if algorithms.contains(&Algorithm::Concurrency) {
        histories.push(fewer_places());
        histories.push(over_limit_behind_other_leases());
        histories.push(lease_given_back_beside_a_veto());
    }
    histories
}

impl History {
    /// Of counters that are empty at first.
    fn of(limits: [Limit; 2], batches: Vec<Batch>) -> Self {
        let counters = std::array::from_fn(|_| Terms2 { limits, found: None });
        Self { counters, jitter: Span::ZERO, batches }
    }
}

impl Batch {
    /// Before the reload.
    fn of(gap: Gap, asks: Vec<Group>) -> Self {
        Self { gap, reloaded: [false; KEYS], asks, writes: Writes::Taken }
    }
}

impl Group {
    fn of(calls: Vec<Call>) -> Self {
        Self { mode: Mode::Independent, calls }
    }
}

fn add(hits: u64) -> Size {
    Size::Add(Amount::Hits(hits))
}

fn give_back(hits: u64) -> Size {
    Size::GiveBack(Amount::Hits(hits))
}

fn limit(terms: Terms) -> Limit {
    Limit::new(&terms).expect("a limit")
}

/// Places that are leased for 30 s.
fn held(places: u64) -> Limit {
    let lease = Some(Span::from_secs(30));
    limit(Terms { lease, ..Terms::new(places, Unit::Second, Algorithm::Concurrency) })
}

/// Logs with nearly as many entries as there may be, with as many, and with as many of which some
/// have left.
fn full_logs() -> History {
    let most = u64::from(LOG_ENTRIES_MAX);
    let batch = |gap, sizes: [Size; KEYS]| {
        let ask = |(counter, size)| Group::of(vec![Call { size, ..hit(counter) }]);
        Batch::of(gap, sizes.into_iter().enumerate().map(ask).collect())
    };
    let batches = vec![
        batch(Gap::Micros(1), [add(1); KEYS]),
        batch(Gap::Micros(1), [add(1); KEYS]),
        batch(Gap::Micros(1), [add(20_000), Size::Look, give_back(3), add(1)]),
        batch(Gap::Micros(1), [add(1); KEYS]),
        // By then the oldest 5,000 or so have left.
        batch(Gap::Micros(1_000_000 - 5_000), [add(1); KEYS]),
        batch(Gap::Micros(1), [add(1); KEYS]),
        batch(Gap::Back(2_000), [add(1); KEYS]),
        // Back at the time of an entry of two hits.
        batch(Gap::Micros(10_000), [add(2); KEYS]),
        batch(Gap::Micros(5), [add(1); KEYS]),
        batch(Gap::Back(5), [add(1); KEYS]),
    ];
    let limit = limit(Terms::new(20_000, Unit::Second, Algorithm::SlidingLog));
    let mut history = History::of([limit; 2], batches);
    for (counter, entries) in history.counters.iter_mut().zip([most - 1, most, most, 1]) {
        counter.found = Some(Found::Log(entries));
    }
    history
}

/// A grant of exactly the hits of the present window, when little is left of the window before.
fn grant_of_the_present_window() -> History {
    let limit = limit(Terms::new(10, Unit::Minute, Algorithm::SlidingWindow));
    let batch = |gap, mode, size| {
        Batch::of(gap, vec![Group { mode, calls: vec![Call { size, ..hit(0) }] }])
    };
    let batches = vec![
        batch(Gap::Micros(0), Mode::Independent, add(3)),
        batch(Gap::WindowEnd(0, 0), Mode::Independent, Size::Look),
        batch(Gap::Period(0, 240, 0), Mode::Independent, add(2)),
        batch(Gap::Micros(0), Mode::Grant, give_back(2)),
    ];
    History::of([limit; 2], batches)
}

/// Over limit until a lease ends that is behind another one: behind one that has ended, and behind one
/// that the same request renews.
fn over_limit_behind_other_leases() -> History {
    let batch = |seconds: u64, reloaded, calls: &[(usize, u8)]| {
        let calls = calls.iter().map(|&(counter, holder)| Call { holder, ..hit(counter) });
        let asks = vec![Group::of(joined(calls.collect()))];
        let gap = Gap::Micros(seconds * 1_000_000);
        Batch { reloaded: [reloaded; KEYS], ..Batch::of(gap, asks) }
    };
    let batches = vec![
        batch(0, false, &[(0, 0)]),
        batch(20, false, &[(0, 1), (1, 0)]),
        batch(5, false, &[(1, 1)]),
        batch(5, false, &[(1, 0), (1, 2)]),
        batch(1, true, &[(0, 2)]),
    ];
    History::of([2, 1].map(held), batches)
}

/// Hits that do not enforce, after others of their request on the same key: of one that is undone,
/// which alone makes them over limit, and of one that stays.
fn soft_hits_beside_a_veto(limit: Limit) -> History {
    let call = |counter, enforcing, eighths, more| Call {
        size: Size::Add(Amount::Capacity(eighths, more)),
        enforcing,
        ..hit(counter)
    };
    let batch = |calls| Batch::of(Gap::Micros(1), vec![Group::of(joined(calls))]);
    let full = |counter| call(counter, false, 8, 0);
    let over = |counter| call(counter, true, 8, 1);
    let one = call(2, false, 0, 1);
    let batches = vec![batch(vec![full(0), full(0), over(1)]), batch(vec![over(2), one])];
    History::of([limit; 2], batches)
}

/// A refund to a counter in debt, in a request that another check rejects: the counter is
/// unchanged, and the reply has its present state.
fn give_backs_beside_a_veto(limit: Limit) -> History {
    let call = |counter, size| Call { size, ..hit(counter) };
    let batch = |micros, asks| Batch::of(Gap::Micros(micros), asks);
    let alone = |size| -> Vec<Group> {
        (0..KEYS).map(|counter| Group::of(vec![call(counter, size)])).collect()
    };
    let together = |calls| vec![Group::of(joined(calls))];
    let blocked = |hits| together(vec![hit(0), call(1, give_back(hits)), call(2, Size::Look)]);
    let batches = vec![
        batch(0, alone(Size::Add(Amount::Capacity(8, 0)))),
        batch(1, alone(add(1))),
        batch(1, alone(add(3))),
        batch(1, blocked(1)),
        batch(1, blocked(3)),
        // Equal arguments before and after those of the request.
        batch(1, [alone(add(1)), blocked(2), alone(add(1))].concat()),
        // In debt, as much is spent after it as before, but at other times.
        batch(1_000_000, together(vec![call(0, give_back(1)), hit(0)])),
        // The reply to the refund has what the rejected call was charged for, of a counter that was
        // not over limit.
        batch(1, alone(give_back(1_000))),
        batch(1, together(vec![call(0, add(30)), call(0, give_back(40))])),
    ];
    History::of([limit; 2], batches)
}

/// One holder releases a slot and another one asks for one, in one call, where there are fewer
/// places than leases: more than one of them has to end first, and not all.
fn fewer_places() -> History {
    let call = |counter, holder| Call { holder, ..hit(counter) };
    let batch = |reloaded, calls: &dyn Fn(usize) -> Vec<Call>| {
        let asks = (0..KEYS).map(|counter| Group::of(calls(counter)));
        let batch = Batch::of(Gap::Micros(1_000_000), asks.collect());
        Batch { reloaded: [reloaded; KEYS], ..batch }
    };
    let mut batches: Vec<Batch> =
        (0..4).map(|holder| batch(false, &|counter| vec![call(counter, holder)])).collect();
    batches.push(batch(true, &|counter| {
        vec![Call { size: give_back(1), ..call(counter, 3) }, call(counter, 4)]
    }));
    let mut history = History::of([4, 1].map(held), batches);
    for counter in history.counters.iter_mut().skip(1).step_by(2) {
        counter.limits = [4, 2].map(held);
    }
    history
}

/// There are fewer places than leases, and one of them is given back in a request that another
/// check vetoes: it is given back all the same.
fn lease_given_back_beside_a_veto() -> History {
    let call = |holder, size| Call { size, holder, ..hit(0) };
    let batch = |reloaded, calls| Batch {
        reloaded: [reloaded; KEYS],
        ..Batch::of(Gap::Micros(1_000), vec![Group::of(calls)])
    };
    let batches = vec![
        batch(false, (0..4).map(|holder| call(holder, add(1))).collect()),
        batch(true, joined(vec![call(3, give_back(1)), call(4, add(1))])),
    ];
    History::of([4, 1].map(held), batches)
}

/// All or nothing.
fn joined(calls: Vec<Call>) -> Vec<Call> {
    let joined = |call| Call { group: 1, ..call };
    calls.into_iter().map(joined).collect()
}

fn hit(counter: usize) -> Call {
    Call {
        counter,
        size: Size::Add(Amount::Hits(1)),
        enforcing: true,
        holder: 0,
        patience: 4,
        ahead: None,
        until: None,
        group: 0,
    }
}

/// A limit of each kind, of each tick, and of nothing.
fn table_limits() -> Vec<Limit> {
    let bucket = |requests, unit, burst| Terms {
        burst: Some(burst),
        ..Terms::new(requests, unit, Algorithm::TokenBucket)
    };
    let second = Unit::Second;
    let minute = Unit::Minute;
    let day = Unit::Day;
    let kinds = [
        Terms::new(10, minute, Algorithm::FixedWindow),
        bucket(10, minute, 5),
        bucket(3, day, 200_000),
        bucket(1, day, u32::MAX),
        Terms::new(0, minute, Algorithm::FixedWindow),
        Terms::new(0, second, Algorithm::TokenBucket),
        Terms {
            max_wait: Some(Span::from_secs(7)),
            ..Terms::new(10, minute, Algorithm::LeakyBucket)
        },
        Terms::new(10, minute, Algorithm::SlidingWindow),
        Terms { buckets: Some(4), ..Terms::new(10, minute, Algorithm::SlidingWindow) },
        Terms::new(10, minute, Algorithm::SlidingLog),
    ];
    let both = kinds.into_iter().flat_map(|terms| {
        OverLimitHits::ALL
            .map(|over_limit_hits| Terms { over_limit_hits: Some(over_limit_hits), ..terms })
    });
    both.map(limit).chain([held(2)]).collect()
}

/// Whether a script without a time argument uses the clock of Redis.
pub(crate) fn goes_by_the_servers_clock(
    script: &Script,
    server: &RedisProcess,
) -> Result<(), String> {
    let mut connection = server.connection();
    let limit = table_limits()[0];
    let check = check(0, limit, Hits::Add(1));
    let mut line = EncodedCheck::new(
        &check,
        Counter::charge(&check.limit, check.call()),
        0,
        START,
        Mode::Independent,
        Span::ZERO,
    );
    line.use_script();
    let lines = [line];
    let mut call = redis::pipe();
    call.cmd("TIME")
        .add_command(script.command(
            [(Mode::Independent, &lines[..])].into_iter(),
            None,
            Form::Text,
        ))
        .cmd("TIME");
    let values: Vec<Value> = call.query(&mut connection).map_err(|error| error.to_string())?;
    let time = |value: &Value| {
        redis::from_redis_value::<(u64, u64)>(value.clone())
            .map(|(seconds, micros)| seconds * 1_000_000 + micros)
    };
    let (before, after) = (
        time(&values[0]).map_err(|error| error.to_string())?,
        time(&values[2]).map_err(|error| error.to_string())?,
    );
    let replies = ScriptReply::read(values[1].clone(), 1).map_err(|error| error.to_string())?;
    let is_between = (before..=after).contains(&replies.now.as_micros());
    let text = || format!("between {before} and {after} it says that it is {:?}", replies.now);
    is_between.then_some(()).ok_or_else(text)
}

#[test]
fn redis_says_and_leaves_what_the_algorithms_do_whatever_is_asked() {
    let server = RedisProcess::start();
    let twins = RefCell::new(Twins::new(&server, Script::serving()).expect("it is a script"));
    let config = ProptestConfig {
        cases: HISTORIES,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    let played = TestRunner::new(config).run(&histories(&Algorithm::ALL), |history| {
        history.play(&mut twins.borrow_mut()).map_err(TestCaseError::fail)
    });
    played.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn redis_says_and_leaves_what_the_algorithms_do_whatever_is_found() {
    let server = RedisProcess::start();
    let mut twins = Twins::new(&server, Script::serving()).expect("it is a script");
    for history in table(&Algorithm::ALL) {
        history.play(&mut twins).unwrap_or_else(|error| panic!("{error}\n{history:?}"));
    }
}

#[test]
fn redis_goes_by_its_own_clock_unless_it_is_told_the_time() {
    goes_by_the_servers_clock(Script::serving(), &RedisProcess::start())
        .unwrap_or_else(|error| panic!("{error}"));
}
