//! The whole conversation between rules and counters: a question per counter, and a verdict per
//! question.

use std::fmt;

use smallvec::SmallVec;

use crate::limit::Limit;
use crate::text::Text;
use crate::time::{Span, Time};

/// Windows and metrics count any hits up to this many in one call: more is no number of requests
/// but a mistake, or mischief. It is one more than the greatest limit, so that what is cut down to
/// it is refused whatever the limit.
pub const HITS_MAX: u64 = 1 << 32;

/// Keys up to this many bytes are written without touching the heap.
const KEY_BYTES_INLINE: usize = 96;

/// One request's questions, in order.
#[derive(Debug, Clone, Default)]
pub struct CheckRequest {
    /// One for each counter to be charged or looked at. The same key may come twice: the second
    /// sees what the first did.
    pub checks: SmallVec<[Check; 2]>,
    /// All or nothing: if an enforcing check is over, the others only look.
    pub all_or_nothing: bool,
    /// When the caller has no use for an answer any more, if that is known.
    pub deadline: Option<Time>,
}

/// May these hits pass?
#[derive(Debug, Clone)]
pub struct Check {
    /// Which counter.
    pub key: Key,
    /// How it is counted.
    pub limit: Limit,
    /// How many.
    pub hits: Hits,
    /// Who takes a place, or gives it back. Only for limits on what is held at once.
    pub holder: Option<Box<[u8]>>,
    /// How long the call may be held back if a bucket has no room for it yet; zero if it may not.
    pub book_ahead: Span,
    /// Whether being over refuses the request. False for shadow and quota rules.
    pub enforcing: bool,
}

/// What a call does to the counter of its key: a [`Check`] without its key and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'c> {
    /// See [`Check::hits`].
    pub hits: Hits,
    /// See [`Check::holder`]; empty where nobody holds anything.
    pub holder: &'c [u8],
    /// See [`Check::book_ahead`].
    pub book_ahead: Span,
}

/// Names a counter. It never holds a time: whether a window is over is read from the state.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Key(SmallVec<[u8; KEY_BYTES_INLINE]>);

/// What a call does to a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// Charge that many, if there is room.
    Add(u64),
    /// Only look: an explicit zero.
    Peek,
    /// Take that many back, never below nothing used.
    Refund(u64),
}

/// The answer to one [`Check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the hits were refused; for a look or a give-back, whether the counter stands beyond
    /// its limit.
    pub over: bool,
    /// Hits in use after this call.
    pub used: u64,
    /// How many more hits would pass now.
    pub remaining: u32,
    /// After how long the slot begins that was booked for this call; zero is now.
    pub start_after: Span,
    /// When over: after how long this same call would pass. `None` is never: it asks for more than
    /// there ever is.
    pub retry_after: Option<Span>,
    /// After how long the counter is as if untouched.
    pub reset_after: Span,
    /// It was known to be over, and nobody was asked.
    pub from_cache: bool,
}

/// One verdict per check, in order.
pub type Verdicts = SmallVec<[Verdict; 2]>;

/// A store's reply: one verdict per check, or why there is none.
pub type Decisions = SmallVec<[Result<Verdict, CheckError>; 2]>;

/// Why a store has no verdict on a check, and what it did to the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckError {
    /// The cause.
    pub error: StoreError,
    /// What is known of the counter.
    pub effect: Effect,
}

/// What a check without a verdict did to its counter. It is known where a request is sent, and
/// nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// None: the check was never sent, or the store rejected it.
    None,
    /// The check was sent and no reply came: it was counted or it was not.
    Unknown,
}

/// Why a store has no verdict. Details are logged where they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StoreError {
    /// No reply in time.
    #[error("the store did not answer in time")]
    TimedOut,
    /// It cannot be reached.
    #[error("the store cannot be reached")]
    Unreachable,
    /// It answered, but not with a verdict: it is out of memory or read-only, or something else
    /// stands at the key.
    #[error("the store refused to count")]
    Rejected,
    /// Too many wait for it already.
    #[error("too many calls wait for the store")]
    QueueFull,
}

impl CheckRequest {
    /// Whether an enforcing check of an all-or-nothing request is over limit: then the checks that are
    /// not over limit have consumed nothing.
    pub(crate) fn is_blocked(&self, verdicts: &[Verdict]) -> bool {
        let mut checks = self.checks.iter().zip(verdicts);
        self.all_or_nothing && checks.any(|(check, verdict)| check.enforcing && verdict.over)
    }
}

impl Check {
    /// Hits on a counter, which refuse the request if there is no room for them.
    pub const fn new(key: Key, limit: Limit, hits: Hits) -> Self {
        Self {
            key,
            limit,
            hits,
            holder: None,
            book_ahead: Span::ZERO,
            enforcing: true,
        }
    }

    /// What it does.
    pub fn call(&self) -> Call<'_> {
        Call {
            hits: self.hits,
            holder: self.holder.as_deref().unwrap_or_default(),
            book_ahead: self.book_ahead,
        }
    }
}

impl Call<'_> {
    /// One that changes nothing.
    pub const PEEK: Self = Self {
        hits: Hits::Peek,
        holder: &[],
        book_ahead: Span::ZERO,
    };
}

impl From<Hits> for Call<'_> {
    fn from(hits: Hits) -> Self {
        Self {
            hits,
            holder: &[],
            book_ahead: Span::ZERO,
        }
    }
}

impl Verdict {
    /// Of a counter of which so many hits are used, and each is one of the limit's.
    pub fn of_hits(
        limit: &Limit,
        used: u64,
        over: bool,
        retry_after: Option<Span>,
        reset_after: Span,
    ) -> Self {
        let remaining =
            u32::try_from(u64::from(limit.requests()).saturating_sub(used)).unwrap_or(u32::MAX);
        Self {
            over,
            used,
            remaining,
            start_after: Span::ZERO,
            retry_after,
            reset_after,
            from_cache: false,
        }
    }
}

impl Key {
    /// An empty key, to be written to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes away all but the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

impl Hits {
    /// The number, whatever is done with it.
    pub const fn count(self) -> u64 {
        match self {
            Self::Add(hits) | Self::Refund(hits) => hits,
            Self::Peek => 0,
        }
    }
}

impl StoreError {
    /// A failure that left the counter as it was.
    pub const fn not_counted(self) -> CheckError {
        CheckError {
            error: self,
            effect: Effect::None,
        }
    }

    /// A failure after the check was sent.
    pub const fn maybe_counted(self) -> CheckError {
        CheckError {
            error: self,
            effect: Effect::Unknown,
        }
    }

    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::TimedOut,
        Self::Unreachable,
        Self::Rejected,
        Self::QueueFull,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "late",
            Self::Unreachable => "unreachable",
            Self::Rejected => "refused",
            Self::QueueFull => "crowded",
        }
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(SmallVec::from_slice(text.as_bytes()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", Text(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({self})")
    }
}
