//! The request to a store and its result: checks in, verdicts out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;

use crate::base::named_enum::named_enum;
use crate::base::time::{Span, Time};
use crate::limits::{EXACT_MAX, Limit, OverLimitHits};

pub use key::{KEY_BYTES_MAX, Key};

mod key;

/// Hits of one call that windows and metrics count of limits below it. More is a mistake or an
/// attack. Hits that are reduced to it are over any such limit; see also [`hits_max`].
pub const HITS_MAX: u64 = 1 << 32;

/// The checks of one request, in order.
#[derive(Debug, Clone, Default)]
pub struct CheckRequest {
    /// A key may occur twice: the second check sees what the first one did.
    pub checks: SmallVec<[Check; 2]>,
    /// When the caller stops waiting, if that is known.
    pub deadline: Option<Time>,
}

/// A counter to decide.
#[derive(Debug, Clone)]
pub struct Check {
    /// The counter.
    pub key: Key,
    /// The limit of the counter.
    pub limit: Limit,
    /// The hits on the counter.
    pub hits: Hits,
    /// The holder that takes or releases a lease of a concurrency limit.
    pub holder: Option<Box<[u8]>>,
    /// The longest delay of the response if a bucket is full; zero books no slot.
    pub book_ahead: Span,
    /// Whether the request is over limit if this check is. False for shadow and quota rules, and
    /// for refunds.
    pub enforcing: bool,
    /// Whether hits over the limit are usage: of settlements, of rules that say so, and of limits
    /// that do not enforce. Those of other fixed windows are counted as by envoyproxy/ratelimit,
    /// and change no verdict.
    pub settles: bool,
    /// `None` if the store decides each check.
    pub lease: Option<Arc<Leased>>,
    /// Neighbors with the same number consume all or nothing; 0 is alone.
    pub group: u16,
}

/// Groups with an enforcing check that is over limit: their others consume nothing.
#[derive(Debug, Default)]
pub(crate) struct Blocked(SmallVec<[u16; 4]>);

/// Hits of a counter may be taken ahead: `consistency: leased`.
#[derive(Debug, Default)]
pub struct Leased {
    /// Time until unused hits are given back, if it is stated.
    pub lifetime: Option<Span>,
    /// What became of the hits.
    pub hits: Arc<LeaseHits>,
}

/// Hits that were taken ahead for one rule, by [`LeaseEvent`].
#[derive(Debug, Default)]
pub struct LeaseHits([AtomicU64; LeaseEvent::ALL.len()]);

named_enum! {
    /// What happens to hits that are taken ahead.
    pub enum LeaseEvent {
        /// Charged ahead.
        Taken = "taken",
        /// Handed out to calls.
        Used = "used",
        /// Refunded without being used.
        GivenBack = "given_back",
        /// Charged, and not usable any more.
        Stranded = "stranded",
    }
}

/// The effect of a check on its counter: a [`Check`] without its key and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'c> {
    /// See [`Check::hits`].
    pub hits: Hits,
    /// See [`Check::holder`]; empty without one.
    pub holder: &'c [u8],
    /// See [`Check::book_ahead`].
    pub book_ahead: Span,
}

/// The effect of a check on a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// Consumes hits if the limit admits them.
    Add(u64),
    /// Reads without consuming.
    Peek,
    /// Gives hits back. Usage never falls below 0.
    Refund(u64),
}

/// The result of one [`Check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Whether the hits were over limit; for a peek or a refund, whether the counter is.
    pub over: bool,
    /// Hits in use after the check.
    pub used: u64,
    /// Hits that would be admitted now.
    pub remaining: u64,
    /// Time until the slot begins that was booked for this check; zero is now.
    pub start_after: Span,
    /// When over limit: time until the same hits would be admitted. `None` is never: they exceed
    /// the capacity.
    pub retry_after: Option<Span>,
    /// Time until the counter is unused again.
    pub reset_after: Span,
    /// What decided it.
    pub source: Source,
}

named_enum! {
    /// What decided a check.
    #[derive(Default)]
    pub enum Source {
        /// The store.
        #[default]
        Store = "store",
        /// The over-limit cache.
        OverLimitCache = "over_limit_cache",
        /// Hits that were taken ahead, or their lack.
        Lease = "lease",
        /// The rule's `on_store_error`, because the store gave no verdict.
        Fallback = "fallback",
    }
}

/// A counter as an operator reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The verdict of a peek.
    pub verdict: Verdict,
    /// Whether one more hit would be over limit.
    pub is_exhausted: bool,
}

/// A verdict for each check, in order.
pub type Verdicts = SmallVec<[Verdict; 2]>;

/// A store's result: one verdict per check, or why there is none.
pub type Decisions = SmallVec<[Result<Verdict, CheckError>; 2]>;

/// Why a store gave no verdict on a check, and what it did to the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckError {
    /// The cause.
    pub error: StoreError,
    /// The effect on the counter.
    pub effect: Effect,
}

/// The effect of a check without a verdict on its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the check was never sent, or the store rejected it.
    None,
    /// The check was sent and no reply came: it was counted or it was not.
    Unknown,
}

named_enum! {
    /// Why a store gave no verdict, by its label in metrics. Details are logged where they are
    /// known.
    #[derive(thiserror::Error)]
    pub enum StoreError {
        /// No reply in time, although the caller left the store its normal time.
        #[error("the store did not reply in time")]
        TimedOut = "late",
        /// No reply in time: the caller left the store less than its normal time.
        #[error("the caller's deadline is shorter than the normal time of the store")]
        ShortDeadline = "short_deadline",
        /// No connection.
        #[error("the store is unreachable")]
        Unreachable = "unreachable",
        /// An error reply: out of memory, read-only, or another type at the key.
        #[error("the store rejected the check")]
        Rejected = "refused",
        /// Too many requests wait for it.
        #[error("too many requests wait for the store")]
        QueueFull = "crowded",
    }
}

/// Hits of one call that are counted: over the limit, and exact.
pub const fn hits_max(limit: &Limit) -> u64 {
    if limit.requests < HITS_MAX { HITS_MAX } else { EXACT_MAX - 1 }
}

impl Check {
    /// An enforcing check that books no slot.
    pub const fn new(key: Key, limit: Limit, hits: Hits) -> Self {
        Self {
            key,
            limit,
            hits,
            holder: None,
            book_ahead: Span::ZERO,
            enforcing: true,
            settles: false,
            lease: None,
            group: 0,
        }
    }

    /// This check of its counter for other hits.
    #[must_use]
    pub fn with_hits(&self, hits: Hits) -> Self {
        Self { hits, ..self.clone() }
    }

    /// Reads its counter only, whatever becomes of its group.
    pub(crate) fn as_peek_alone(&self) -> Self {
        let mut peek = self.with_hits(Hits::Peek);
        peek.group = 0;
        peek
    }

    /// Whether it changes its counter, if it is over limit or not, and in a group that is blocked
    /// or not. The one predicate of that: over limit does not mean that nothing is consumed.
    pub(crate) fn is_charged(&self, over: bool, is_blocked: bool) -> bool {
        let counts = self.limit.over_limit_hits == OverLimitHits::Count;
        match self.hits {
            Hits::Peek => false,
            Hits::Refund(_) => over || !is_blocked,
            Hits::Add(_) if over => counts && (self.enforcing || !is_blocked),
            Hits::Add(_) => !is_blocked,
        }
    }

    /// The hits that are counted, at most [`hits_max`].
    pub(crate) fn counted_hits(&self) -> u64 {
        self.hits.count().min(hits_max(&self.limit))
    }

    /// The effect on its counter.
    pub fn call(&self) -> Call<'_> {
        Call {
            hits: self.hits,
            holder: self.holder.as_deref().unwrap_or_default(),
            book_ahead: self.book_ahead,
        }
    }
}

impl LeaseHits {
    /// Adds hits.
    pub fn add(&self, event: LeaseEvent, hits: u64) {
        self.0[event as usize].fetch_add(hits, Relaxed);
    }

    /// Hits so far.
    pub fn get(&self, event: LeaseEvent) -> u64 {
        self.0[event as usize].load(Relaxed)
    }

    /// Hits that were taken, and neither used, given back nor stranded.
    pub(crate) fn held(&self) -> u64 {
        let ended = [LeaseEvent::Used, LeaseEvent::GivenBack, LeaseEvent::Stranded];
        let ended = ended.map(|event| self.get(event)).iter().sum();
        self.get(LeaseEvent::Taken).saturating_sub(ended)
    }
}

impl Reading {
    /// A reading by a peek. `one_more` is the verdict of a hit that may book a slot, which passes
    /// although nothing remains.
    pub fn new(peek: Verdict, one_more: Option<Verdict>) -> Self {
        let one_more = one_more.filter(|_| peek.remaining == 0);
        Self { verdict: peek, is_exhausted: one_more.map_or(peek.remaining == 0, |hit| hit.over) }
    }
}

impl Call<'_> {
    /// Changes nothing.
    pub const PEEK: Self = Self { hits: Hits::Peek, holder: &[], book_ahead: Span::ZERO };
}

impl From<Hits> for Call<'_> {
    fn from(hits: Hits) -> Self {
        Self { hits, holder: &[], book_ahead: Span::ZERO }
    }
}

impl Verdict {
    /// The verdict of a counter whose units are hits.
    pub fn of_hits(
        limit: &Limit,
        used: u64,
        over: bool,
        retry_after: Option<Span>,
        reset_after: Span,
    ) -> Self {
        let remaining = limit.requests.saturating_sub(used);
        Self { over, used, remaining, retry_after, reset_after, ..Self::default() }
    }
}

impl Hits {
    /// The number of hits.
    pub const fn count(self) -> u64 {
        match self {
            Self::Add(hits) | Self::Refund(hits) => hits,
            Self::Peek => 0,
        }
    }
}

impl Blocked {
    /// Of checks, and whether each is over limit.
    pub(crate) fn of<'c>(decided: impl Iterator<Item = (&'c Check, bool)>) -> Self {
        let vetoes = decided.filter(|(check, over)| check.group > 0 && check.enforcing && *over);
        Self(vetoes.map(|(check, _)| check.group).collect())
    }

    /// Of the checks that are decided.
    pub(crate) fn of_decided(checks: &[Check], decisions: &Decisions) -> Self {
        let over = decisions.iter().map(|decision| decision.is_ok_and(|verdict| verdict.over));
        Self::of(checks.iter().zip(over))
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a check is in such a group.
    pub(crate) fn has(&self, check: &Check) -> bool {
        self.0.contains(&check.group)
    }
}

/// The groups of checks in order: each that is alone, and each run of neighbors with one number.
pub fn runs<T>(items: &[T], group: impl Fn(&T) -> u16) -> impl Iterator<Item = &[T]> {
    items.chunk_by(move |item, next| group(item) > 0 && group(item) == group(next))
}

impl StoreError {
    /// An error that left the counter unchanged.
    pub const fn not_counted(self) -> CheckError {
        CheckError { error: self, effect: Effect::None }
    }

    /// An error after the check was sent.
    pub const fn maybe_counted(self) -> CheckError {
        CheckError { error: self, effect: Effect::Unknown }
    }
}
