//! The interface of all algorithms: from a counter's state, a call and the time to the new state
//! and a verdict.

use crate::base::time::Time;
use crate::limits::Limit;
use crate::limits::algorithm::charge::Charge;
use crate::limits::check::{Call, Verdict};

/// The state of one counter. `Default` is the state of a new counter; `limit` must be one of its
/// algorithm.
pub trait Decide: Default {
    /// The twin in Lua: a table with `load` and `keep`, and with `price`, `granted`, `charged` and
    /// `extra_reply` where the driver's defaults do not fit.
    const LUA: &'static str;

    /// The charge of a call, in the counter's units, independent of its state.
    fn charge(limit: &Limit, call: Call<'_>) -> Charge;

    /// The charge of a call to this counter, which is as of now.
    fn charge_here(&self, limit: &Limit, call: Call<'_>) -> Charge {
        Self::charge(limit, call)
    }

    /// The refund of a grant to this counter, which is as of now.
    fn granted(&self, limit: &Limit, now: Time, grant: Charge) -> Charge {
        grant.granted(self.spent(limit, now))
    }

    /// Brings this counter to `now`.
    fn advance(&mut self, limit: &Limit, now: Time);

    /// The units spent of this counter, which is as of now.
    fn spent(&self, limit: &Limit, now: Time) -> u64;

    /// Charges this counter, which is as of now, whatever its limit is.
    fn apply(&mut self, limit: &Limit, now: Time, call: Call<'_>, charge: Charge);

    /// Makes a new counter one with these units spent at `now`.
    fn fill(&mut self, limit: &Limit, now: Time, spent: u64) {
        self.advance(limit, now);
        self.apply(limit, now, Call::PEEK, Charge::taking(spent));
    }

    /// Makes a new counter that of a reply of the twin; `extra` is what its algorithm needs for a
    /// verdict.
    fn fill_from_reply(&mut self, limit: &Limit, now: Time, spent: u64, _extra: &[u64]) {
        self.fill(limit, now, spent);
    }

    /// Whether the counter equals a new one, and need not be kept.
    fn is_new(&self) -> bool;

    /// Memory in addition to that of a [`Counter`](crate::limits::algorithm::Counter).
    fn heap_bytes(&self) -> usize {
        0
    }

    /// The verdict of the call that left the counter in this state, which is as of now.
    fn verdict(&self, limit: &Limit, now: Time, call: Call<'_>, over: bool) -> Verdict;

    /// Decides one call.
    fn decide(&mut self, limit: &Limit, now: Time, call: Call<'_>) -> Verdict {
        self.advance(limit, now);
        let charge = self.charge_here(limit, call);
        let over = charge.is_over(self.spent(limit, now));
        if !over || !charge.drops {
            self.apply(limit, now, call, charge);
        }
        self.verdict(limit, now, call, over)
    }

    /// Gives back the hits of a refund, and all units over the limit: an exhausted counter admits
    /// that many hits afterwards.
    fn grant(&mut self, limit: &Limit, now: Time, refund: Call<'_>) -> Verdict {
        self.advance(limit, now);
        let charge = self.charge_here(limit, refund).granting();
        let charge = if charge.drops { self.granted(limit, now, charge) } else { charge };
        let over = charge.is_over(self.spent(limit, now));
        self.apply(limit, now, refund, charge);
        self.verdict(limit, now, refund, over)
    }
}
