//! Decides checks in this process while Redis is unavailable, against this replica's share of each
//! limit.
//!
//! A counter starts from this replica's share of the last known usage. What it admits is pending
//! (`pending.rs`) until Redis is back; then each replica writes its part back, whatever the limit
//! says, so that Redis goes on from what all of them admitted, and no full bucket waits at the end
//! of an outage. Holders are not written back: their leases expire.
//!
//! Counters stay when Redis is back: hits whose outcome is unknown are known only here, and the
//! next outage of the same window goes on from them.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Once;

use smallvec::SmallVec;

use crate::base::time::{Span, Time};
use crate::limits::algorithm::Counter;
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::counter::Kind;
use crate::limits::check::{Blocked, Check, CheckError, Effect, Hits, Key, StoreError, Verdicts};
use crate::limits::{Limit, Share};
use crate::store::memory::Counters;
use crate::store::redis::fallback::pending::{LocalChange, Pending, PendingHits};
use crate::telemetry::metric::{self, Metrics};

/// Bytes of the counters of an outage.
// bound fallback_bytes_max: counters closest to their reset are evicted;
// tollgate_memory_evicted_total{use="fallback"}
const FALLBACK_BYTES_MAX: u64 = 64 << 20;
/// Counters that are written back with one call: as many checks as any call has, so that no caller
/// waits longer than for one.
const WRITE_BACKS_MAX: usize = 64;
/// Time that write-back may delay the use of a server that is back.
// bound write_back_time_max: the rest while it serves; tollgate_write_back_hits_total
pub const WRITE_BACK_TIME_MAX: Span = Span::from_micros(300_000);

/// Local counters, and what of them Redis does not have.
#[derive(Debug)]
pub struct LocalFallback {
    pub(crate) counters: Counters,
    pending: PendingHits,
    /// A limit that is smaller than the number of replicas is logged once.
    small_limits: Once,
    written_back: metric::Counter,
}

/// A check on which Redis gave no verdict.
#[derive(Debug, Clone, Copy)]
pub struct Undecided<'c> {
    /// The check.
    pub check: &'c Check,
    /// Whether Redis may have counted it all the same.
    pub effect: Effect,
    /// The last known usage in hits, and when that was by the server's clock.
    pub seen: Option<(u64, Time)>,
    /// The number of recoveries of the server. Slots that are held locally do not outlive their
    /// epoch, because Redis gets their releases.
    pub epoch: u64,
}

/// A server that is back.
pub trait WriteBackTarget {
    /// Whether the server has the counter with that key and limit.
    fn owns(&self, key: &Key, limit: &Limit) -> bool;

    /// The time of the decision.
    fn now(&self) -> Time;

    /// Connects to it, unless it is connected. `false` if that failed.
    fn connect(&mut self) -> impl Future<Output = bool> + Send;

    /// Sends all of them at once, in order. Returns for each the units in use after it, or why it
    /// is not counted: those that certainly are not stay pending.
    fn send(
        &mut self,
        write_backs: &[WriteBack],
    ) -> impl Future<Output = Vec<Result<u64, CheckError>>> + Send;
}

/// A pending change as it is sent.
#[derive(Debug, Clone)]
pub struct WriteBack {
    /// The counter, as a check.
    pub check: Check,
    /// The charge, whatever the limit; negative for a refund.
    pub charge: Charge,
}

/// Hits of one counter that are being written back.
struct Sent {
    key: Key,
    /// Sent as a peek, whose reply has the units in use, and the refund.
    refund: u64,
    hits: u64,
    /// Whether what cannot be given back stays pending.
    keeps_refund: bool,
    /// See [`Pending::at`].
    at: Time,
}

impl LocalFallback {
    /// Nothing is counted, and nothing pending.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            counters: Counters::new(FALLBACK_BYTES_MAX, "fallback", metrics),
            pending: PendingHits::new(metrics),
            small_limits: Once::new(),
            written_back: metrics.counter(
                "tollgate_write_back_hits_total",
                "Hits that this process admitted while Redis was unavailable, and wrote back to it afterwards.",
            ),
        }
    }

    /// Decides checks without Redis. `now` is by the server's clock, which windows go by.
    pub fn decide(&self, undecided: &[Undecided<'_>], share: Share, now: Time) -> Verdicts {
        let own: SmallVec<[Check; 2]> =
            undecided.iter().map(|undecided| self.own(undecided, share)).collect();
        let verdicts = self.counters.decide_from(&own, now, |index, known| {
            let (own, Undecided { check, seen, .. }) = (&own[index], undecided[index]);
            // What Redis replied has none of what is pending; some checks may still reach it.
            let seen = seen.map(|(used, at)| {
                let pending = self.pending.get(&own.key, now);
                let spent = part_of(&check.limit, &own.limit, share, used)
                    .saturating_add(pending.map_or(0, |pending| pending.hits))
                    .saturating_sub(pending.map_or(0, |pending| pending.refund));
                Counter::of(&own.limit, at, spent)
            });
            // Of equal ones the local one: it knows when its hits came.
            seen.into_iter()
                .chain(known)
                .max_by_key(|counter| counter.spent_at(&own.limit, now))
                .unwrap_or_else(|| Counter::new(&own.limit))
        });
        let over = verdicts.iter().map(|verdict| verdict.over);
        let blocked = Blocked::of(own.iter().zip(over));
        for ((own, verdict), Undecided { check, effect, .. }) in
            own.iter().zip(&verdicts).zip(undecided)
        {
            // Redis needs no hits over a local share, unless they are usage.
            let is_usage = !verdict.over || check.settles || !matches!(check.hits, Hits::Add(_));
            let has_changed = own.is_charged(verdict.over, blocked.has(own));
            if has_changed
                && is_usage
                && *effect == Effect::None
                && Kind::of(&own.limit) != Kind::Concurrency
            {
                self.pending.add(
                    &own.key,
                    change(own),
                    Pending::none(&check.limit, &own.limit, share.replicas().get() > 1, now),
                );
            }
        }
        verdicts
    }

    /// Writes back what is pending for a server, for about `within` at most. What the server
    /// rejects, and what becomes pending meanwhile, stays pending. `false` if the server is
    /// unreachable again.
    pub async fn write_back(&self, to: &mut impl WriteBackTarget, within: Span) -> bool {
        if self.pending.is_empty() {
            return true;
        }
        let began = to.now();
        let keys = self.pending.keys(|key, pending| to.owns(&whole_key(key), &pending.whole));
        for keys in keys.chunks(WRITE_BACKS_MAX) {
            if to.now().since(began) >= within {
                break;
            }
            // Connecting takes time, in which a window may end whose hits were already taken.
            if !to.connect().await {
                return false;
            }
            let mut write_backs = Vec::new();
            let sent: Vec<Sent> =
                keys.iter().filter_map(|key| self.take(key, to.now(), &mut write_backs)).collect();
            if sent.is_empty() {
                continue;
            }
            let outcomes = to.send(&write_backs).await;
            let mut arrived = write_backs.iter().zip(outcomes.iter().copied());
            for sent in &sent {
                self.settle(sent, &mut arrived);
            }
            let mut errors = outcomes.iter().filter_map(|outcome| outcome.err());
            if errors.any(|failed| failed.error == StoreError::Unreachable) {
                return false;
            }
            if outcomes.iter().all(Result::is_err) {
                break;
            }
        }
        true
    }

    /// Takes what is pending of one counter: a refund, then hits.
    fn take(&self, key: &Key, now: Time, write_backs: &mut Vec<WriteBack>) -> Option<Sent> {
        let pending = self.pending.take(key)?;
        let Pending { whole, own, at, .. } = pending;
        let (refund, hits) = match Kind::of(&own) {
            _ if !pending.is_current(now) => (0, 0),
            Kind::FixedWindow | Kind::SlidingWindow => (pending.refund, pending.hits),
            // What the counter no longer holds has leaked or expired in Redis as well.
            _ => (pending.refund, pending.hits.min(self.counters.spent_at(key, &own, now))),
        };
        if refund == 0 && hits == 0 {
            self.pending.settle(key, 0, 0, at);
            return None;
        }
        let mut add = |one: Hits, cost: i64| {
            let charge = Charge { cost, drops: false, ..Counter::charge(&whole, one) };
            write_backs.push(WriteBack { check: Check::new(whole_key(key), whole, one), charge });
        };
        if refund > 0 {
            add(Hits::Peek, 0);
            add(Hits::Refund(1), -cost_of(&whole, &own, refund));
        }
        if hits > 0 {
            add(Hits::Add(1), cost_of(&whole, &own, hits));
        }
        Some(Sent {
            key: key.clone(),
            refund,
            hits,
            // A bucket is full again after a while, and has no window that ends.
            keeps_refund: pending.has_peers && now.since(at) < whole.period,
            at,
        })
    }

    /// Keeps pending what did not arrive, and what a refund could not give back because another
    /// replica admitted the hits and has not written them back yet. `arrived` has the outcomes of
    /// what was sent of this counter next.
    fn settle<'w>(
        &self,
        sent: &Sent,
        arrived: &mut impl Iterator<Item = (&'w WriteBack, Result<u64, CheckError>)>,
    ) {
        let is_lost = |failed: CheckError| failed.effect != Effect::None;
        let mut next = |part: u64| (part > 0).then(|| arrived.next()).flatten();
        let found = next(sent.refund).map(|(_, found)| found);
        let refund = match (next(sent.refund), found) {
            (Some((refund, Ok(_))), Some(Ok(found))) if sent.keeps_refund => {
                refund.missing_of(sent.refund, found)
            }
            (Some((_, Err(failed))), _) if !is_lost(failed) => sent.refund,
            _ => 0,
        };
        let hits = match next(sent.hits) {
            Some((write_back, Ok(_))) => {
                self.written_back.inc_by(write_back.hits());
                0
            }
            Some((_, Err(failed))) if !is_lost(failed) => sent.hits,
            _ => 0,
        };
        self.pending.settle(&sent.key, refund, hits, sent.at);
    }

    /// A check against this replica's share.
    fn own(&self, undecided: &Undecided<'_>, share: Share) -> Check {
        let Undecided { check, epoch, .. } = undecided;
        let whole = check.limit.requests;
        let replicas = u64::from(share.replicas().get());
        if whole > 0 && whole < replicas && !check.limit.algorithm.is_bucket() {
            self.small_limits.call_once(|| {
                tracing::warn!(whole, replicas, "limit is lower than the replica count; each replica admits 1 during a store outage");
            });
        }
        let epoch = match Kind::of(&check.limit) {
            Kind::Concurrency => *epoch,
            _ => 0,
        };
        let key = local_key(&check.key, share.replicas(), epoch);
        // No slot is booked where the bookings of other replicas are unknown.
        Check { key, limit: check.limit.share(share), book_ahead: Span::ZERO, ..(*check).clone() }
    }
}

impl WriteBack {
    /// The part of `refund`, which is sent as this one, that a counter of `found` units does not
    /// have.
    fn missing_of(&self, refund: u64, found: u64) -> u64 {
        let cost = self.charge.cost.unsigned_abs();
        let missing = u128::from(cost.saturating_sub(found));
        let part = u128::from(refund) * missing / u128::from(cost.max(1));
        u64::try_from(part).unwrap_or(refund)
    }

    /// Hits charged, rounded up; 0 for a refund.
    fn hits(&self) -> u64 {
        let one = Counter::charge(&self.check.limit, Hits::Add(1)).wanted().max(1);
        self.charge.wanted().div_ceil(one)
    }
}

/// The length of what [`local_key`] appends.
const SUFFIX_LEN: usize = size_of::<u32>() + size_of::<u64>();

/// The key of a counter in this process. A bucket's state is in units of its share, so another
/// share is another counter.
fn local_key(key: &Key, replicas: NonZeroU32, epoch: u64) -> Key {
    let mut local = key.clone();
    local.push(&replicas.get().to_le_bytes());
    local.push(&epoch.to_le_bytes());
    local
}

/// The key that [`local_key`] was made of.
fn whole_key(local: &Key) -> Key {
    let mut key = local.clone();
    key.truncate(key.len().saturating_sub(SUFFIX_LEN));
    key
}

/// The effect of an admitted check on its counter.
fn change(own: &Check) -> LocalChange {
    let charge = Counter::charge(&own.limit, own.call());
    match own.hits {
        Hits::Refund(_) => LocalChange::Refund(charge.cost.unsigned_abs()),
        Hits::Add(_) | Hits::Peek => LocalChange::Hits(charge.wanted()),
    }
}

/// This replica's part of what all of them have used, in units of its share.
fn part_of(whole: &Limit, own: &Limit, share: Share, used: u64) -> u64 {
    if !own.algorithm.is_bucket() {
        share.of_used(used)
    } else if credits_of_one(whole, own) == 1 {
        share.of_used(used).saturating_mul(own.period_ticks())
    } else {
        // A share is filled more slowly, so usage of the whole limit in credits of the share is
        // already this replica's part.
        used.saturating_mul(whole.period_ticks())
    }
}

/// Credits of the share that equal one credit of the whole limit.
const fn credits_of_one(whole: &Limit, own: &Limit) -> u64 {
    let credits = own.period_ticks() / whole.period_ticks();
    if credits == 0 { 1 } else { credits }
}

/// Converts spent units of this replica's share to units of the whole limit.
fn cost_of(whole: &Limit, own: &Limit, spent: u64) -> i64 {
    let cost = if whole.algorithm.is_bucket() {
        spent.div_ceil(credits_of_one(whole, own))
    } else {
        spent
    };
    i64::try_from(cost).unwrap_or(i64::MAX)
}
