//! One counter of any kind. The only file that knows all algorithms.

use crate::algorithm::bucket::Bucket;
use crate::algorithm::charge::Charge;
use crate::algorithm::concurrency::{self, Concurrency};
use crate::algorithm::decide::Decide;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::sub_windows::SubWindows;
use crate::check::{Call, Verdict};
use crate::limit::{Algorithm, LOG_ENTRIES_MAX, Limit};
use crate::time::Time;

/// Lua code without its comment lines: Redis keeps the whole text of a script.
pub fn without_comments(lua: &str) -> String {
    let lines = lua.split_inclusive('\n');
    lines
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect()
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
    /// See [`fixed_window`](crate::algorithm::fixed_window).
    FixedWindow(FixedWindow),
    /// See [`bucket`](crate::algorithm::bucket).
    Bucket(Bucket),
    /// See [`sliding_window`](crate::algorithm::sliding_window).
    SlidingWindow(SlidingWindow),
    /// See [`sub_windows`](crate::algorithm::sub_windows).
    SubWindows(Box<SubWindows>),
    /// See [`sliding_log`](crate::algorithm::sliding_log).
    SlidingLog(Box<SlidingLog>),
    /// See [`concurrency`].
    Concurrency(Box<Concurrency>),
}

/// Runs the same expression for every kind of counter.
macro_rules! with_each {
    ($counter:expr, $state:ident => $run:expr) => {
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

/// Runs the same expression with the kind of counter of a limit.
macro_rules! of_kind {
    ($limit:expr, $state:ident => $run:expr) => {
        match Kind::of($limit) {
            Kind::FixedWindow => {
                type $state = FixedWindow;
                $run
            }
            Kind::Bucket => {
                type $state = Bucket;
                $run
            }
            Kind::SlidingWindow => {
                type $state = SlidingWindow;
                $run
            }
            Kind::SubWindows => {
                type $state = Box<SubWindows>;
                $run
            }
            Kind::SlidingLog => {
                type $state = Box<SlidingLog>;
                $run
            }
            Kind::Concurrency => {
                type $state = Box<Concurrency>;
                $run
            }
        }
    };
}

/// The kinds of counters: some algorithms share one, and one has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One integer at a key that ends with the window's start.
    FixedWindow,
    /// What is spent, and as of when.
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
        match limit.algorithm() {
            Algorithm::FixedWindow => Self::FixedWindow,
            Algorithm::SlidingWindow if limit.buckets() == 0 => Self::SlidingWindow,
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
        of_kind!(limit, State => State::default().into())
    }

    /// A counter with `spent` of its units at `now`. For concurrency it is empty, because there are
    /// no names.
    pub fn of(limit: &Limit, now: Time, spent: u64) -> Self {
        of_kind!(limit, State => State::of(limit, now, spent).into())
    }

    /// What is spent as of `now`, in its units.
    pub fn spent_at(&self, limit: &Limit, now: Time) -> u64 {
        with_each!(self, state => state.spent_at(limit, now))
    }

    /// Whether it equals a new counter, and need not be kept.
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
        of_kind!(limit, State => State::charge(limit, call))
    }

    /// The verdict of the call that left the counter in this state, which is as of now.
    pub fn verdict<'c>(
        &self,
        limit: &Limit,
        now: Time,
        call: impl Into<Call<'c>>,
        over: bool,
    ) -> Verdict {
        let call = call.into();
        with_each!(self, state => state.verdict(limit, now, call, over))
    }

    /// Builds the verdict as of `now` from the twin's reply: `spent` as of `at`, plus the
    /// algorithm's `extra` values.
    pub fn verdict_of_reply(
        limit: &Limit,
        (at, now): (Time, Time),
        call: Call<'_>,
        over: bool,
        spent: u64,
        extra: &[u64],
    ) -> Verdict {
        if Kind::of(limit) == Kind::Concurrency {
            return concurrency::verdict_of_reply(limit, now, over, spent, extra);
        }
        of_kind!(limit, State => State::from_reply(limit, at, spent, extra).verdict(limit, now, call, over))
    }

    /// Decides one call. A state of another kind than the limit's counts as new; keys contain the
    /// algorithm, so there should be none.
    pub fn decide<'c>(
        self,
        limit: &Limit,
        now: Time,
        call: impl Into<Call<'c>>,
    ) -> (Self, Verdict) {
        let call = call.into();
        let counter = if self.kind() == Kind::of(limit) {
            self
        } else {
            Self::new(limit)
        };
        with_each!(counter, state => {
            let (state, verdict) = state.decide(limit, now, call);
            (state.into(), verdict)
        })
    }

    const fn kind(&self) -> Kind {
        match self {
            Self::FixedWindow(_) => Kind::FixedWindow,
            Self::Bucket(_) => Kind::Bucket,
            Self::SlidingWindow(_) => Kind::SlidingWindow,
            Self::SubWindows(_) => Kind::SubWindows,
            Self::SlidingLog(_) => Kind::SlidingLog,
            Self::Concurrency(_) => Kind::Concurrency,
        }
    }
}

/// A placeholder while a counter is moved out.
impl Default for Counter {
    fn default() -> Self {
        Self::FixedWindow(FixedWindow::default())
    }
}

impl From<FixedWindow> for Counter {
    fn from(state: FixedWindow) -> Self {
        Self::FixedWindow(state)
    }
}

impl From<Bucket> for Counter {
    fn from(state: Bucket) -> Self {
        Self::Bucket(state)
    }
}

impl From<SlidingWindow> for Counter {
    fn from(state: SlidingWindow) -> Self {
        Self::SlidingWindow(state)
    }
}

impl From<Box<SubWindows>> for Counter {
    fn from(state: Box<SubWindows>) -> Self {
        Self::SubWindows(state)
    }
}

impl From<Box<SlidingLog>> for Counter {
    fn from(state: Box<SlidingLog>) -> Self {
        Self::SlidingLog(state)
    }
}

impl From<Box<Concurrency>> for Counter {
    fn from(state: Box<Concurrency>) -> Self {
        Self::Concurrency(state)
    }
}
