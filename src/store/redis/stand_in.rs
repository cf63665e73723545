//! Counts in this process while a server is away, and hands back to it what it missed.
//!
//! A counter begins with this replica's part of what the server last said, and is held against this replica's share of the limit. What is
//! let through like that is remembered as a debt (`ledger.rs`); when the server is back, and before it is asked again, each replica pays
//! its debts: they are charged there, whatever the limit says, so that the server goes on from what all of them have let through, and no
//! full bucket waits at the end of an outage.
//!
//! ```text
//!   asked   |  away: counted here   | back |  asked
//!  ---------|-----------------------|------|----------> time
//!       what it last said       debts are paid
//! ```
//!
//! A check whose reply never came may have been counted by the server. It counts here as well, and makes no debt: nothing is counted twice
//! there.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;

use crate::algorithm::Counter;
use crate::algorithm::charge::Charge;
use crate::check::{Check, Hits, Verdicts};
use crate::limit::{Algorithm, Limit, Share};
use crate::store::memory::Counters;
use crate::store::redis::stand_in::ledger::{Before, Holding, Ledger};
use crate::telemetry::metric::{self, Metrics};
use crate::time::{Clock, Span, Time};

mod ledger;

pub use ledger::{HAND_BACK_MAX, Parcel};

/// How much memory counting in place of a server may take.
const FALLBACK_BYTES_MAX: u64 = 64 << 20;
/// How many debts are paid with one call: as many checks as any call has, so that nobody waits longer for it than for one.
const PARCELS_MAX: usize = 64;
/// How long handing back may keep a server from being asked: the rest is handed back while it serves.
pub const HAND_BACK_TIME_MAX: Span = Span::from_micros(300_000);
/// How often the ledger is gone through at once: debts are made while others are paid.
const ROUNDS_MAX: u32 = 3;

/// What counts instead.
#[derive(Debug)]
pub struct StandIn {
    counters: Counters,
    ledger: Ledger,
    /// A limit that is smaller than there are replicas is worth one line.
    small_limits: Once,
    /// The epoch in which `counters` was last emptied.
    emptied: AtomicU64,
    handed_back: metric::Counter,
}

/// A check that the server has no verdict on.
#[derive(Debug, Clone, Copy)]
pub struct Undecided<'c> {
    /// What was asked.
    pub check: &'c Check,
    /// Whether the server may have counted it all the same.
    pub may_be_counted: bool,
    /// How many hits were in use, and when by the server's clock, as far as it last said.
    pub seen: Option<(u64, Time)>,
    /// How often the server has come back so far. Nothing that was counted here is taken into another epoch.
    pub epoch: u64,
}

/// A server that is back.
pub trait Creditor {
    /// Whether a check's counter is one of its own.
    fn owns(&self, check: &Check) -> bool;

    /// What time it is there.
    fn now(&self) -> Time;

    /// Charges all of them, and says what became of each.
    fn charge(&mut self, parcels: &[Parcel]) -> impl Future<Output = Vec<Fate>> + Send;
}

/// What became of a debt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is paid.
    Charged,
    /// The server would not count it: out of memory, read-only, something else at the key. It is still owed.
    Refused,
    /// It was never sent, and is still owed.
    Unsent,
    /// It was sent, and nobody knows what became of it: it is not sent again.
    Lost,
}

/// How handing back ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Everything was paid that the server takes.
    Paid,
    /// Its time was over: there is more.
    Cut,
    /// The server takes nothing.
    Refused,
    /// It has gone again.
    Gone,
}

impl StandIn {
    /// Nothing is counted, and nothing owed.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            counters: Counters::new(FALLBACK_BYTES_MAX, "fallback", metrics),
            ledger: Ledger::new(metrics),
            small_limits: Once::new(),
            emptied: AtomicU64::new(0),
            handed_back: metrics.counter(
                "tollgate_handed_back_hits_total",
                "Hits that this process let through while Redis was away, and charged there when it was back.",
            ),
        }
    }

    /// Decides what a server has no verdict on. `now` is by its clock, which windows are cut by.
    pub fn count(&self, undecided: &[Undecided<'_>], share: Share, together: bool, now: Time) -> Verdicts {
        let own: SmallVec<[Check; 2]> = undecided.iter().map(|undecided| self.own(undecided, share)).collect();
        let mut debts = self.ledger.lock(own.iter().map(|check| &check.key));
        // What counters were before the first check of this ask.
        let before: RefCell<SmallVec<[(usize, Before); 2]>> = RefCell::default();
        let verdicts = self.counters.decide_from(&own, together, now, |check, known| {
            let index = own.iter().position(|one| std::ptr::eq(one, check)).expect("it is one of them");
            let seen = undecided[index].seen.map(|(used, at)| part_of(&undecided[index].check.limit, &check.limit, share, used, at));
            let counter = match known {
                // What it owes is in it, and in nothing that the server says.
                Some(known) if debts.owe(check) => known,
                // Whichever is more: some calls may still reach the server.
                known => known
                    .into_iter()
                    .chain(seen)
                    .max_by_key(|counter| counter.spent_at(&check.limit, now))
                    .unwrap_or_else(|| Counter::untouched(&check.limit)),
            };
            before.borrow_mut().push((index, Before::of(&counter, &check.limit, now)));
            counter
        });
        let before = before.into_inner();
        let vetoed = together && own.len() > 1 && own.iter().zip(&verdicts).any(|(check, verdict)| check.veto && verdict.over);
        for ((index, check), verdict) in own.iter().enumerate().zip(&verdicts) {
            let charge = Counter::charge(&check.limit, check.call());
            let has_counted = if verdict.over { !charge.drops } else { !vetoed };
            if undecided[index].may_be_counted || !has_counted {
                continue;
            }
            let before = before.iter().find(|(first, _)| own[*first].key == check.key);
            let before = before.map_or(Before::Anything, |(_, before)| before.clone());
            debts.add(check, undecided[index].check, charge, before, now);
        }
        verdicts
    }

    /// Whether anything is owed to anybody.
    pub fn owes(&self) -> bool {
        self.ledger.len() > 0
    }

    /// Pays a server's debts, those first that are the largest part of their limit; for about `within` at most.
    pub async fn hand_back(&self, to: &mut impl Creditor, within: Span) -> Ended {
        let began = to.now();
        for _ in 0..ROUNDS_MAX {
            let due = self.ledger.due(|check| to.owns(check), to.now());
            let mut paid = false;
            for some in due.chunks(PARCELS_MAX) {
                if to.now().since(began) >= within {
                    return Ended::Cut;
                }
                let taken: Vec<_> = some.iter().filter_map(|key| self.ledger.take(&self.counters, key, to.now())).collect();
                let parcels: Vec<Parcel> = taken.iter().map(|taken| taken.parcel.clone()).collect();
                if parcels.is_empty() {
                    continue;
                }
                let fates = to.charge(&parcels).await;
                // Whatever has no fate was lost.
                let fates = fates.into_iter().chain(std::iter::repeat(Fate::Lost));
                let (mut some_paid, mut gone) = (false, false);
                for (taken, fate) in taken.into_iter().zip(fates) {
                    if fate == Fate::Charged {
                        some_paid = true;
                        self.handed_back.inc_by(taken.parcel.hits());
                    }
                    gone |= matches!(fate, Fate::Unsent | Fate::Lost);
                    self.ledger.settle(&self.counters, taken, fate);
                }
                if gone {
                    return Ended::Gone;
                }
                if !some_paid {
                    return Ended::Refused;
                }
                paid = true;
            }
            if !paid {
                break;
            }
        }
        Ended::Paid
    }

    /// Everything that is counted here is of an earlier epoch, and nobody is away: unless something is owed, it is forgotten.
    pub fn forget_before(&self, epoch: u64) {
        if !self.owes() && self.emptied.swap(epoch, Relaxed) != epoch {
            self.counters.clear();
        }
    }

    /// Removes what has expired, for as long as the process lives.
    pub async fn look_after(&self, clock: Clock) {
        self.counters.sweep_on(clock).await;
    }

    /// A check against this replica's share.
    fn own(&self, undecided: &Undecided<'_>, share: Share) -> Check {
        let Undecided { check, epoch, .. } = undecided;
        let (whole, replicas) = (check.limit.requests(), share.replicas().get());
        if whole > 0 && whole < replicas && !check.limit.algorithm().is_bucket() {
            self.small_limits.call_once(|| {
                tracing::warn!(
                    whole,
                    replicas,
                    "a limit is less than the number of replicas: while the store is gone each of them lets one through"
                );
            });
        }
        // A bucket's state is in units of its share. Whoever's share is another counts anew.
        let mut key = check.key.clone();
        key.push(&replicas.to_le_bytes());
        key.push(&epoch.to_le_bytes());
        // No slot is booked where others book theirs without being seen.
        Check { key, limit: check.limit.share(share), book_ahead: Span::ZERO, ..(*check).clone() }
    }
}

/// This replica's part of what all of them had used at that time.
fn part_of(whole: &Limit, own: &Limit, share: Share, used: u64, at: Time) -> Counter {
    let spent = if !own.algorithm().is_bucket() {
        share.of_used(used)
    } else if credits_of_one(whole, own) == 1 {
        share.of_used(used).saturating_mul(own.period_ticks())
    } else {
        // In credits of a share that is filled more slowly, what is spent of the whole is this one's part.
        used.saturating_mul(whole.period_ticks())
    };
    Counter::of(own, at, spent)
}

/// How many credits of a share are one of the whole.
const fn credits_of_one(whole: &Limit, own: &Limit) -> u64 {
    let credits = own.period_ticks() / whole.period_ticks();
    if credits == 0 { 1 } else { credits }
}

/// What is to be charged of the whole limit for so much of a share.
fn charge_for(whole: &Limit, own: &Limit, spent: u64) -> Charge {
    let cost = if whole.algorithm().is_bucket() { spent.div_ceil(credits_of_one(whole, own)) } else { spent };
    Charge { cost: i64::try_from(cost).unwrap_or(i64::MAX), drops: false, ..Counter::charge(whole, Hits::Add(1)) }
}

/// What a holder did last is what is handed back.
const fn holding(check: &Check) -> Option<Holding> {
    match (check.limit.algorithm(), check.hits) {
        (Algorithm::Concurrency, Hits::Add(_)) => Some(Holding::Taken),
        (Algorithm::Concurrency, Hits::GiveBack(_)) => Some(Holding::GivenBack),
        _ => None,
    }
}
