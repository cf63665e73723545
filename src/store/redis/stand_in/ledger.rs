//! What was let through without a server: for each counter what it is owed, until it is charged there.
//!
//! What is owed is what the server does not know and what still counts. Of windows that are the hits of the present one, and as far as an
//! algorithm looks back, of the one before; of a bucket it is what it holds less what it would hold had nothing been let through here, so
//! that whatever has flowed back meanwhile has flowed back once.
//!
//! ```text
//!  bucket |          /\
//!         |    /\   /  \ ____ spent here   ]
//!         |\  /  \_/     .                 ] is owed
//!         | \/ .  .  .  .  .  as the server has it
//!         +---------------------- time
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::algorithm::Counter;
use crate::algorithm::charge::Charge;
use crate::algorithm::counter::Kind;
use crate::check::{Check, HITS_MAX, Hits, Key};
use crate::limit::Limit;
use crate::store::memory::Counters;
use crate::store::redis::stand_in::{Fate, charge_for, holding};
use crate::telemetry::metric::{self, Metrics};
use crate::time::{Span, Time};

/// How many counters may owe something, and how many holders. One takes about 400 bytes.
pub const HAND_BACK_MAX: usize = 65_536;
/// How many parts the debts are in, each behind a lock of its own.
const SHARDS: usize = 64;

/// All debts.
#[derive(Debug)]
pub struct Ledger {
    shards: Box<[Mutex<Debts>]>,
    seed: RandomState,
    count: AtomicUsize,
    full: metric::Counter,
}

type Debts = HashMap<DebtKey, Debt>;

/// The counter's key here, and who holds a place of it, if it is that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DebtKey {
    counter: Key,
    holder: Box<[u8]>,
}

/// What one counter owes.
#[derive(Debug)]
struct Debt {
    /// What the server is to be charged for: its key and its whole limit.
    check: Check,
    /// This replica's share.
    own: Limit,
    owed: Owed,
    /// How often something of it has been taken and is not settled: while its slot moves, the node that had it and the one that has it may
    /// be told at the same time.
    under_way: usize,
}

#[derive(Debug, Clone)]
enum Owed {
    /// Of a bucket: so many credits were taken, and without them it would be like this.
    Bucket { credits: u64, without: Counter },
    /// Of anything that counts hits.
    Hits(Recent),
    /// A place that somebody took or gave back at that time; nothing once that is told.
    Place(Option<(Holding, Time)>),
}

/// Hits of a window of one period, and of the one before.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    window: u64,
    used: u64,
    before: u64,
}

/// What somebody did last who takes places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// Took one.
    Taken,
    /// Gave it back.
    GivenBack,
}

/// What has to be known of a counter before something is let through.
#[derive(Debug, Clone)]
pub enum Before {
    /// A bucket's state.
    Bucket(Counter),
    /// How many hits there was room for, where those that are refused count.
    Room(u64),
    /// Nothing: only what passes counts.
    Anything,
}

/// What is handed back of one counter.
#[derive(Debug, Clone)]
pub struct Parcel {
    /// Which one, of which limit, and who holds it.
    pub check: Check,
    /// What is charged, whatever the limit says.
    pub charge: Charge,
}

/// A debt that is about to be paid.
#[derive(Debug)]
pub struct Taken {
    /// What is sent.
    pub parcel: Parcel,
    key: DebtKey,
    owed: Owed,
}

/// The debts of some counters, while they are counted.
pub struct Locked<'l> {
    ledger: &'l Ledger,
    shards: SmallVec<[(usize, MutexGuard<'l, Debts>); 4]>,
}

impl Ledger {
    /// Nobody owes anything.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seed: RandomState::new(),
            count: AtomicUsize::new(0),
            full: metrics.counter(
                "tollgate_hand_back_full_total",
                "Checks let through while Redis was away that it will not be told of, because as many counters owed it hits as may (hand_back_max).",
            ),
        }
    }

    /// How many owe something, or did a moment ago.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Locks what is known of these counters: each part once and in one order for everybody, so that two never wait for each other.
    pub fn lock<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Locked<'_> {
        let mut wanted: SmallVec<[usize; 4]> = keys.map(|key| self.shard_of(key)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        Locked { ledger: self, shards: wanted.into_iter().map(|index| (index, lock(&self.shards[index]))).collect() }
    }

    /// Those who owe something of what `belongs`, the largest part of a limit first: where there is time for a part of them only, for those.
    pub fn due(&self, belongs: impl Fn(&Check) -> bool, now: Time) -> Vec<DebtKey> {
        let mut due = Vec::new();
        for shard in &self.shards {
            let debts = lock(shard);
            let belonging = debts.iter().filter(|(_, debt)| belongs(&debt.check));
            due.extend(belonging.map(|(key, debt)| (debt.weight(now), key.clone())));
        }
        due.sort_by(|(one, _), (other, _)| other.cmp(one));
        due.into_iter().map(|(_, key)| key).collect()
    }

    /// Takes a debt to be paid; `None` if nothing is left of it. What is let through from now on is another one.
    pub fn take(&self, counters: &Counters, key: &DebtKey, now: Time) -> Option<Taken> {
        let mut debts = lock(&self.shards[self.shard_of(&key.counter)]);
        let debt = debts.get_mut(key)?;
        let Some(parcel) = debt.parcel(counters, key, now) else {
            // What is under way may yet be owed again.
            if debt.under_way == 0 {
                debts.remove(key);
                self.count.fetch_sub(1, Relaxed);
                forget(counters, key);
            }
            return None;
        };
        debt.under_way += 1;
        let spent = counters.spent_at(&key.counter, &debt.own, now);
        let none = debt.owed.none(|| Counter::of(&debt.own, now, spent));
        let owed = std::mem::replace(&mut debt.owed, none);
        Some(Taken { parcel, key: key.clone(), owed })
    }

    /// What was taken has come to this.
    pub fn settle(&self, counters: &Counters, taken: Taken, fate: Fate) {
        let Taken { key, owed, .. } = taken;
        let mut debts = lock(&self.shards[self.shard_of(&key.counter)]);
        // Whatever is under way keeps it there.
        let Some(debt) = debts.get_mut(&key) else { return };
        debt.under_way -= 1;
        if matches!(fate, Fate::Refused | Fate::Unsent) {
            debt.owed.add(owed);
        } else if debt.owed.is_none() && debt.under_way == 0 {
            debts.remove(&key);
            self.count.fetch_sub(1, Relaxed);
            // It goes on from what the server says. Where nobody knows what the server has, this process' own count is the better one.
            if fate == Fate::Charged {
                forget(counters, &key);
            }
        }
    }

    fn shard_of(&self, key: &Key) -> usize {
        usize::try_from(self.seed.hash_one(key) % SHARDS as u64).unwrap_or(0)
    }
}

impl Locked<'_> {
    /// Whether that counter owes anything.
    pub fn owe(&self, own: &Check) -> bool {
        self.shards[self.place(own)].1.contains_key(&DebtKey::of(own))
    }

    /// A check was counted here. `own` is it against this replica's share, `whole` as it was asked.
    pub fn add(&mut self, own: &Check, whole: &Check, charge: Charge, before: Before, now: Time) {
        let held = holding(own);
        let wanted = match before {
            // Refused hits may count here, where a share is used up, and not there, where others may have left something.
            Before::Room(room) => charge.wanted().min(room),
            Before::Bucket(_) | Before::Anything => charge.wanted(),
        };
        if held.is_none() && wanted == 0 {
            return;
        }
        let place = self.place(own);
        let key = DebtKey::of(own);
        let debt = match self.shards[place].1.entry(key) {
            Entry::Occupied(debt) => debt.into_mut(),
            Entry::Vacant(_) if self.ledger.len() >= HAND_BACK_MAX => {
                self.ledger.full.inc();
                return;
            }
            Entry::Vacant(vacant) => {
                self.ledger.count.fetch_add(1, Relaxed);
                let owed = match Kind::of(&own.limit) {
                    Kind::Bucket => Owed::Bucket {
                        credits: 0,
                        without: if let Before::Bucket(bucket) = before { bucket } else { Counter::untouched(&own.limit) },
                    },
                    Kind::Concurrency => Owed::Place(None),
                    Kind::FixedWindow | Kind::SlidingWindow | Kind::SubWindows | Kind::SlidingLog => Owed::Hits(Recent::default()),
                };
                vacant.insert(Debt { check: whole.clone(), own: own.limit, owed, under_way: 0 })
            }
        };
        match &mut debt.owed {
            Owed::Bucket { credits, .. } => *credits = credits.saturating_add(wanted),
            Owed::Hits(recent) => recent.add(&own.limit, wanted, now),
            Owed::Place(place) => *place = held.map(|held| (held, now)),
        }
    }

    fn place(&self, own: &Check) -> usize {
        let wanted = self.ledger.shard_of(&own.key);
        self.shards.iter().position(|(index, _)| *index == wanted).expect("every part was locked")
    }
}

impl Before {
    /// Of a counter of that limit.
    pub fn of(counter: &Counter, limit: &Limit, now: Time) -> Self {
        let charge = Counter::charge(limit, Hits::Add(1));
        if limit.algorithm().is_bucket() {
            Self::Bucket(counter.clone())
        } else if charge.drops {
            Self::Anything
        } else {
            Self::Room(charge.full.saturating_sub(counter.spent_at(limit, now)))
        }
    }
}

impl DebtKey {
    fn of(own: &Check) -> Self {
        Self { counter: own.key.clone(), holder: own.holder.clone().unwrap_or_default() }
    }
}

impl Debt {
    /// What to charge; `None` if nothing is owed that still counts.
    fn parcel(&self, counters: &Counters, key: &DebtKey, now: Time) -> Option<Parcel> {
        if let Owed::Place(place) = &self.owed {
            let (held, _) = (*place).filter(|(held, at)| *held == Holding::GivenBack || now.since(*at) < self.own.period())?;
            let hits = if held == Holding::Taken { Hits::Add(1) } else { Hits::GiveBack(1) };
            let charge = Charge { drops: false, ..Counter::charge(&self.check.limit, hits) };
            return Some(Parcel { check: Check { hits, book_ahead: Span::ZERO, ..self.check.clone() }, charge });
        }
        let amount = self.amount(counters, key, now);
        let charge = charge_for(&self.check.limit, &self.own, amount);
        (amount > 0).then(|| Parcel { check: Check { hits: Hits::Add(1), book_ahead: Span::ZERO, ..self.check.clone() }, charge })
    }

    /// What is owed as of now, in the units of the share.
    fn amount(&self, counters: &Counters, key: &DebtKey, now: Time) -> u64 {
        let spent = || counters.spent_at(&key.counter, &self.own, now);
        match &self.owed {
            Owed::Bucket { credits, without } => spent().saturating_sub(without.spent_at(&self.own, now)).min(*credits),
            Owed::Hits(recent) => {
                let owed = recent.weighed(&self.own, now).min(self.own.requests().into());
                // Whatever has left a log or a sub-window meanwhile is not to come back.
                if matches!(Kind::of(&self.own), Kind::SubWindows | Kind::SlidingLog) { owed.min(spent()) } else { owed }
            }
            Owed::Place(place) => place.is_some().into(),
        }
    }

    /// How much of its limit is owed at most, in 65,536ths: whoever has many debts is not to wait for the exact one of each.
    fn weight(&self, now: Time) -> u128 {
        let all = Counter::charge(&self.own, Hits::Add(1)).full.max(1);
        let owed = match &self.owed {
            Owed::Bucket { credits, .. } => *credits,
            Owed::Hits(recent) => recent.weighed(&self.own, now),
            Owed::Place(place) => place.map_or(0, |_| all),
        };
        (u128::from(owed.min(all)) << 16) / u128::from(all)
    }
}

impl Owed {
    /// Nothing. `now` is what a bucket is at this moment.
    fn none(&self, now: impl FnOnce() -> Counter) -> Self {
        match self {
            Self::Bucket { .. } => Self::Bucket { credits: 0, without: now() },
            Self::Hits(_) => Self::Hits(Recent::default()),
            Self::Place(_) => Self::Place(None),
        }
    }

    fn is_none(&self) -> bool {
        match self {
            Self::Bucket { credits, .. } => *credits == 0,
            Self::Hits(recent) => recent.used == 0 && recent.before == 0,
            Self::Place(place) => place.is_none(),
        }
    }

    /// Owes again what was owed before.
    fn add(&mut self, earlier: Self) {
        match (self, earlier) {
            (Self::Bucket { credits, without }, Self::Bucket { credits: more, without: earlier }) => {
                *credits = credits.saturating_add(more);
                *without = earlier;
            }
            (Self::Hits(recent), Self::Hits(earlier)) => recent.merge(earlier),
            (Self::Place(place), Self::Place(earlier)) => *place = place.or(earlier),
            // One debt is of one kind.
            _ => {}
        }
    }
}

impl Recent {
    fn add(&mut self, limit: &Limit, hits: u64, now: Time) {
        *self = self.at(limit, now);
        self.used = self.used.saturating_add(hits.min(HITS_MAX));
    }

    /// A window that has not begun yet means that the clock went back: its hits are kept as those of the present one.
    fn at(self, limit: &Limit, now: Time) -> Self {
        let window = limit.window(now).index;
        let (used, before) = match window.checked_sub(self.window) {
            None => (self.used.saturating_add(self.before), 0),
            Some(0) => (self.used, self.before),
            Some(1) => (0, self.used),
            Some(_) => (0, 0),
        };
        Self { window, used, before }
    }

    /// What of them still counts, at most.
    fn weighed(self, limit: &Limit, now: Time) -> u64 {
        let Self { used, before, .. } = self.at(limit, now);
        match Kind::of(limit) {
            Kind::SlidingWindow => {
                let period = limit.period_ticks();
                let left = period - limit.tick().since_epoch(now) % period;
                used.saturating_add((before.min(limit.requests().into()) * left).div_ceil(period))
            }
            Kind::SubWindows | Kind::SlidingLog => used.saturating_add(before),
            Kind::FixedWindow | Kind::Bucket | Kind::Concurrency => used,
        }
    }

    fn merge(&mut self, earlier: Self) {
        let newest = self.window.max(earlier.window);
        let moved = |recent: Self| match newest - recent.window {
            0 => (recent.used, recent.before),
            1 => (0, recent.used),
            _ => (0, 0),
        };
        let ((used, before), (more, more_before)) = (moved(*self), moved(earlier));
        *self = Self { window: newest, used: used.saturating_add(more), before: before.saturating_add(more_before) };
    }
}

impl Parcel {
    /// How many hits are handed back, in whole ones.
    pub fn hits(&self) -> u64 {
        let one = Counter::charge(&self.check.limit, Hits::Add(1)).wanted().max(1);
        self.charge.wanted().div_ceil(one)
    }
}

/// Names of holders are many to a counter: those that are told stay here until they are given back or their lease runs out.
fn forget(counters: &Counters, key: &DebtKey) {
    if key.holder.is_empty() {
        counters.forget(&key.counter);
    }
}

/// A part whose last holder panicked is whole all the same: nothing between two changes of it can panic.
fn lock(shard: &Mutex<Debts>) -> MutexGuard<'_, Debts> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
