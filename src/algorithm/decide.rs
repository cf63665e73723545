//! The interface of all algorithms: from a counter's state, a call and the time to the new state and
//! a verdict.

use crate::algorithm::charge::Charge;
use crate::check::{Call, Verdict};
use crate::limit::Limit;
use crate::time::Time;

/// The state of one counter. `Default` is the state of a new counter; `limit` must be one of its
/// algorithm.
pub trait Decide: Sized + Clone + Default {
    /// The twin in Lua: a table with `load` and `keep`, and with `price`, `charged` and `told` where
    /// the driver's defaults do not fit.
    const LUA: &'static str;

    /// The charge of a call, in the counter's units, independent of its state.
    fn charge(limit: &Limit, call: Call<'_>) -> Charge;

    /// The charge of a call to this counter, which is as of now.
    fn charge_here(&self, limit: &Limit, call: Call<'_>) -> Charge {
        Self::charge(limit, call)
    }

    /// This counter as of `now`.
    #[must_use]
    fn at(self, limit: &Limit, now: Time) -> Self;

    /// The units spent of this counter, which is as of now.
    fn spent(&self, limit: &Limit, now: Time) -> u64;

    /// The units spent as of `now`.
    fn spent_at(&self, limit: &Limit, now: Time) -> u64 {
        self.clone().at(limit, now).spent(limit, now)
    }

    /// This counter, which is as of now, after a charge.
    #[must_use]
    fn charged(self, limit: &Limit, now: Time, call: Call<'_>, charge: Charge) -> Self;

    /// A counter with these units spent at `now`.
    fn of(limit: &Limit, now: Time, spent: u64) -> Self {
        Self::default()
            .at(limit, now)
            .charged(limit, now, Call::PEEK, Charge::taking(spent))
    }

    /// A counter from a reply of the twin; `extra` is what its algorithm needs for a verdict.
    fn from_reply(limit: &Limit, now: Time, spent: u64, _extra: &[u64]) -> Self {
        Self::of(limit, now, spent)
    }

    /// Whether it equals a new counter, and need not be kept.
    fn is_new(&self) -> bool;

    /// Memory in addition to its own size.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// The verdict of the call that left the counter in this state, which is as of now.
    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict;

    /// Decides one call.
    fn decide(self, limit: &Limit, now: Time, call: Call<'_>) -> (Self, Verdict) {
        let counter = self.at(limit, now);
        let charge = counter.charge_here(limit, call);
        let over = charge.is_over(counter.spent(limit, now));
        let next = if over && charge.drops {
            counter
        } else {
            counter.charged(limit, now, call, charge)
        };
        let verdict = next.verdict(limit, now, call, over);
        (next, verdict)
    }
}

/// On the heap, so that counters with a long state do not make all others large.
impl<D: Decide> Decide for Box<D> {
    const LUA: &'static str = D::LUA;

    fn charge(limit: &Limit, call: Call<'_>) -> Charge {
        D::charge(limit, call)
    }

    fn charge_here(&self, limit: &Limit, call: Call<'_>) -> Charge {
        D::charge_here(self, limit, call)
    }

    fn at(mut self, limit: &Limit, now: Time) -> Self {
        *self = std::mem::take(&mut *self).at(limit, now);
        self
    }

    fn spent(&self, limit: &Limit, now: Time) -> u64 {
        D::spent(self, limit, now)
    }

    fn charged(mut self, limit: &Limit, now: Time, call: Call<'_>, charge: Charge) -> Self {
        *self = std::mem::take(&mut *self).charged(limit, now, call, charge);
        self
    }

    fn of(limit: &Limit, now: Time, spent: u64) -> Self {
        Self::new(D::of(limit, now, spent))
    }

    fn from_reply(limit: &Limit, now: Time, spent: u64, extra: &[u64]) -> Self {
        Self::new(D::from_reply(limit, now, spent, extra))
    }

    fn is_new(&self) -> bool {
        D::is_new(self)
    }

    fn heap_bytes(&self) -> usize {
        size_of::<D>() + D::heap_bytes(self)
    }

    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict {
        D::verdict(self, limit, now, call, over)
    }
}
