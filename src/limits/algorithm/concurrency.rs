//! Concurrency: at most N holders at once, each known by name.
//!
//! A number alone would be wrong: callers release slots that they were not given (Envoy does for
//! requests over the limit), and others never release theirs. So the state is a set of names with
//! the end of their leases: a second release of a name has no effect, a slot that is not released
//! expires with its lease, and a request of a present holder renews its lease.

use std::collections::{BTreeSet, HashMap};

use ring::digest::{SHA256, digest};

use crate::base::time::Time;
use crate::limits::algorithm::charge::Charge;
use crate::limits::algorithm::decide::Decide;
use crate::limits::check::{Call, Hits, Verdict};
use crate::limits::{Limit, OverLimitHits};

/// The holders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Concurrency {
    /// The end of each lease.
    leases: HashMap<Name, Time>,
    /// The leases by their ends.
    order: BTreeSet<(Time, Name)>,
}

/// 128 bits of SHA-256: collision-free in practice, and of one size whatever clients send.
type Name = u128;

/// Memory of a holder in both collections, which have spare capacity.
const HOLDER_BYTES: usize = 2 * (size_of::<(Name, Time)>() + size_of::<(Time, Name)>());

/// The first half of the SHA-256 of a name.
fn hashed(name: &[u8]) -> Name {
    u128::from_be_bytes(*digest(&SHA256, name).as_ref().first_chunk().expect("it has 32 bytes"))
}

impl Decide for Concurrency {
    const LUA: &'static str = include_str!("concurrency.lua");

    /// A call is one holder, however many hits it has.
    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        Charge::new(
            call.hits,
            call.hits.count().min(1),
            OverLimitHits::Drop,
            limit.requests,
            limit.requests,
        )
    }

    fn charge_here(&self, limit: &Limit, call: Call<'_>) -> Charge {
        let charge = Self::charge(limit, call);
        match call.hits {
            // It has its place.
            Hits::Add(_) if self.holds(call.holder) => Charge { cost: 0, full: u64::MAX, ..charge },
            Hits::Refund(_) if !self.holds(call.holder) => Charge { cost: 0, ..charge },
            Hits::Add(_) | Hits::Refund(_) | Hits::Peek => charge,
        }
    }

    /// A number has no names that could be released: a grant is a refund of its holder.
    fn granted(&self, _: &Limit, _: Time, grant: Charge) -> Charge {
        Charge { drops: false, ..grant }
    }

    /// A lease that ends later than one that begins now means that the clock went back, or that
    /// leases were longer: it ends as if it began now.
    fn advance(&mut self, limit: &Limit, now: Time) {
        while let Some((_, name)) = self.order.first().copied().filter(|(until, _)| *until <= now) {
            self.remove(name);
        }
        let latest = now.plus(limit.period);
        while let Some((_, name)) = self.order.last().copied().filter(|(until, _)| *until > latest)
        {
            self.insert(name, latest);
        }
    }

    fn spent(&self, _: &Limit, _: Time) -> u64 {
        self.leases.len() as u64
    }

    fn apply(&mut self, limit: &Limit, now: Time, call: Call<'_>, _: Charge) {
        match call.hits {
            Hits::Peek => {}
            Hits::Add(_) => self.insert(hashed(call.holder), now.plus(limit.period)),
            Hits::Refund(_) => self.remove(hashed(call.holder)),
        }
    }

    /// Empty: a number has no names that could be released.
    fn fill(&mut self, _: &Limit, _: Time, _: u64) {}

    fn is_new(&self) -> bool {
        self.leases.is_empty()
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.leases.len() * HOLDER_BYTES
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        let count = self.leases.len() as u64;
        let leaving = (count + Self::charge(limit, call).wanted()).saturating_sub(limit.requests);
        let until = |lease: Option<&(Time, Name)>| lease.map_or(now, |(until, _)| *until);
        let nth = usize::try_from(leaving)
            .ok()
            .and_then(|leaving| self.order.iter().nth(leaving.checked_sub(1)?));
        verdict(limit, now, over, count, until(nth), until(self.order.last()))
    }
}

impl Concurrency {
    /// When the leases run out, first to last.
    pub fn leases(&self) -> impl DoubleEndedIterator<Item = Time> {
        self.order.iter().map(|(until, _)| *until)
    }

    fn holds(&self, holder: &[u8]) -> bool {
        self.leases.contains_key(&hashed(holder))
    }

    fn insert(&mut self, name: Name, until: Time) {
        self.remove(name);
        self.leases.insert(name, until);
        self.order.insert((until, name));
    }

    fn remove(&mut self, name: Name) {
        if let Some(until) = self.leases.remove(&name) {
            self.order.remove(&(until, name));
        }
    }
}

/// The verdict of a reply: `extra` is when a slot is free for one more at the latest, and when the
/// last lease ends.
pub(crate) fn verdict_of_reply(
    limit: &Limit,
    now: Time,
    over: bool,
    count: u64,
    extra: &[u64],
) -> Verdict {
    let time = |at: usize| extra.get(at).map_or(now, |&at| Time::from_micros(at));
    verdict(limit, now, over, count, time(0), time(1))
}

fn verdict(limit: &Limit, now: Time, over: bool, count: u64, free_at: Time, last: Time) -> Verdict {
    let is_nothing = limit.requests == 0;
    // At the latest; others may give back before.
    let retry_after = (over && !is_nothing).then(|| free_at.since(now));
    let reset_after = if is_nothing && count == 0 { limit.period } else { last.since(now) };
    Verdict::of_hits(limit, count, over, retry_after, reset_after)
}
