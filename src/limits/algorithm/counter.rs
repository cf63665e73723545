//! A counter of any kind. The only file that knows all algorithms.

use crate::base::time::Time;
use crate::limits::algorithm::bucket::Bucket;
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::concurrency::{self, Concurrency};
use crate::limits::algorithm::decide::Decide;
use crate::limits::algorithm::fixed_window::FixedWindow;
use crate::limits::algorithm::sliding_log::SlidingLog;
use crate::limits::algorithm::sliding_window::SlidingWindow;
use crate::limits::algorithm::sub_windows::SubWindows;
use crate::limits::check::{Call, Hits, Verdict};
use crate::limits::{Algorithm, LOG_ENTRIES_MAX, Limit};

/// Lua code without its comment lines: Redis keeps the whole text of a script.
pub fn without_comments(lua: &str) -> String {
    let lines = lua.split_inclusive('\n');
    lines.filter(|line| !line.trim_start().starts_with("--")).collect()
}

/// Functions that the twins share.
pub const LUA_SHARED: &str = include_str!("charge.lua");

/// The twins by the names of their tables, in the order of [`Kind`].
pub const LUA: [(&str, &str); 6] = [
    ("fixed_window", FixedWindow::LUA),
    ("bucket", Bucket::LUA),
    ("sliding_window", SlidingWindow::LUA),
    ("sub_windows", SubWindows::LUA),
    ("sliding_log", SlidingLog::LUA),
    ("concurrency", Concurrency::LUA),
];

/// The state of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counter {
    /// See [`fixed_window`](crate::limits::algorithm::fixed_window).
    FixedWindow(FixedWindow),
    /// See [`bucket`](crate::limits::algorithm::bucket).
    Bucket(Bucket),
    /// See [`sliding_window`](crate::limits::algorithm::sliding_window).
    SlidingWindow(SlidingWindow),
    /// See [`sub_windows`](crate::limits::algorithm::sub_windows).
    SubWindows(Box<SubWindows>),
    /// See [`sliding_log`](crate::limits::algorithm::sliding_log).
    SlidingLog(Box<SlidingLog>),
    /// See [`concurrency`].
    Concurrency(Box<Concurrency>),
}

/// Runs the same expression for every kind of counter.
macro_rules! with_each {
    ($counter:expr, $state:pat => $run:expr) => {
        match $counter {
            Counter::FixedWindow($state) => $run,
            Counter::Bucket($state) => $run,
            Counter::SlidingWindow($state) => $run,
            Counter::SubWindows($state) => $run,
            Counter::SlidingLog($state) => $run,
            Counter::Concurrency($state) => $run,
        }
    };
}

/// The kinds of counters: some algorithms share one, and one has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An integer at a key that ends with the window's start.
    FixedWindow,
    /// Units spent, and the time they are as of.
    Bucket,
    /// Two counts.
    SlidingWindow,
    /// A count for each sub-window.
    SubWindows,
    /// An entry for each call.
    SlidingLog,
    /// A name for each holder.
    Concurrency,
}

impl Kind {
    /// The kind for a limit.
    pub const fn of(limit: &Limit) -> Self {
        match limit.algorithm {
            Algorithm::FixedWindow => Self::FixedWindow,
            Algorithm::SlidingWindow if limit.buckets == 0 => Self::SlidingWindow,
            Algorithm::SlidingWindow => Self::SubWindows,
            Algorithm::SlidingLog => Self::SlidingLog,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket,
            Algorithm::Concurrency => Self::Concurrency,
        }
    }
}

impl Counter {
    /// A new counter.
    pub fn new(limit: &Limit) -> Self {
        match Kind::of(limit) {
            Kind::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Kind::Bucket => Self::Bucket(Bucket::default()),
            Kind::SlidingWindow => Self::SlidingWindow(SlidingWindow::default()),
            Kind::SubWindows => Self::SubWindows(Box::default()),
            Kind::SlidingLog => Self::SlidingLog(Box::default()),
            Kind::Concurrency => Self::Concurrency(Box::default()),
        }
    }

    /// A counter with `spent` of its units at `now`. For concurrency it is empty, because there are
    /// no names.
    pub fn of(limit: &Limit, now: Time, spent: u64) -> Self {
        let mut counter = Self::new(limit);
        with_each!(&mut counter, state => state.fill(limit, now, spent));
        counter
    }

    /// Units spent as of `now`.
    pub fn spent_at(&self, limit: &Limit, now: Time) -> u64 {
        with_each!(self.clone(), mut state => {
            state.advance(limit, now);
            state.spent(limit, now)
        })
    }

    /// Whether the counter equals a new one, and need not be kept.
    pub fn is_new(&self) -> bool {
        with_each!(self, state => state.is_new())
    }

    /// Whether a log has the most entries.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::SlidingLog(log) if log.len() >= LOG_ENTRIES_MAX as usize)
    }

    /// Memory in addition to its own size.
    pub fn heap_bytes(&self) -> usize {
        with_each!(self, state => state.heap_bytes())
    }

    /// The charge of a call, in the counter's units.
    pub fn charge<'c>(limit: &Limit, call: impl Into<Call<'c>>) -> Charge {
        let call = call.into();
        match Kind::of(limit) {
            Kind::FixedWindow => FixedWindow::charge(limit, call),
            Kind::Bucket => Bucket::charge(limit, call),
            Kind::SlidingWindow => SlidingWindow::charge(limit, call),
            Kind::SubWindows => SubWindows::charge(limit, call),
            Kind::SlidingLog => SlidingLog::charge(limit, call),
            Kind::Concurrency => Concurrency::charge(limit, call),
        }
    }

    /// The verdict of the call that left the counter in this state, which is as of now.
    pub(crate) fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        with_each!(self, state => state.verdict(limit, now, call, over))
    }

    /// Builds the verdict as of `now` from the twin's reply: `spent` as of `at`, plus the
    /// algorithm's `extra` values.
    pub(crate) fn verdict_of_reply(
        limit: &Limit,
        at: Time,
        now: Time,
        call: Call<'_>,
        over: bool,
        spent: u64,
        extra: &[u64],
    ) -> Verdict {
        if Kind::of(limit) == Kind::Concurrency {
            return concurrency::verdict_of_reply(limit, now, over, spent, extra);
        }
        with_each!(Self::new(limit), mut state => {
            state.fill_from_reply(limit, at, spent, extra);
            state.verdict(limit, now, call, over)
        })
    }

    /// The counter that a reply of the twin states: `spent` as of `at`, plus the algorithm's
    /// `extra` values. Not for concurrency, whose replies have no names.
    pub(crate) fn of_reply(limit: &Limit, at: Time, spent: u64, extra: &[u64]) -> Self {
        let mut counter = Self::new(limit);
        with_each!(&mut counter, state => state.fill_from_reply(limit, at, spent, extra));
        counter
    }

    /// Charges the counter as of `now`, whatever its limit is.
    pub fn apply(&mut self, limit: &Limit, now: Time, call: Call<'_>, charge: Charge) {
        with_each!(self, state => {
            state.advance(limit, now);
            state.apply(limit, now, call, charge);
        });
    }

    /// Adds hits that were charged elsewhere, or gives them back, as of `now`.
    pub(crate) fn change(&mut self, limit: &Limit, now: Time, hits: Hits) {
        self.apply(limit, now, Call::PEEK, Self::charge(limit, hits));
    }

    /// Gives the hits of a refund back, and what is spent over the limit.
    pub fn grant(mut self, limit: &Limit, now: Time, refund: Call<'_>) -> (Self, Verdict) {
        let verdict = with_each!(&mut self, state => state.grant(limit, now, refund));
        (self, verdict)
    }

    /// Decides one call. The limit is one of the counter's kind: keys contain the algorithm.
    pub fn decide<'c>(
        mut self,
        limit: &Limit,
        now: Time,
        call: impl Into<Call<'c>>,
    ) -> (Self, Verdict) {
        let verdict = with_each!(&mut self, state => state.decide(limit, now, call.into()));
        (self, verdict)
    }
}

/// A placeholder while a counter is moved out.
impl Default for Counter {
    fn default() -> Self {
        Self::FixedWindow(FixedWindow::default())
    }
}
