//! What one counter may hold, and what its clients may have been told, whatever happens to Redis.
//! See `outages.rs` for the invariants.

use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::algorithm::charge::Charge;
use tollgate::limits::algorithm::counter::Kind;
use tollgate::limits::check::{Call, Hits};
use tollgate::limits::{Limit, OverLimitHits};

/// One counter.
pub(super) struct Model {
    pub(super) limit: Limit,
    /// Redis holds at most this: all that was admitted or counted there, less all that was
    /// refunded and can be known to be.
    most: Counter,
    /// Redis holds at least this, once hits are written back.
    least: Counter,
    /// The same if they never are.
    least_without_pending: Counter,
    /// What clients were admitted, less what they refunded.
    admitted: Counter,
    /// Units that clients may have been admitted beyond the limit, since `admitted` was last
    /// untouched.
    beyond: u64,
    /// The part of them whose result is unknown.
    unknown: u64,
    /// Hits that Redis did not receive and is to be told.
    pending: u64,
    /// Hits with an unknown result that Redis may be told of.
    maybe_pending: u64,
    /// When the first of them was admitted.
    pending_since: Time,
    /// Since when it is not known what Redis holds.
    unsettled_since: Option<Time>,
    /// Holders that are, while hits are pending.
    holders: Vec<Vec<u8>>,
    /// Units refunded that Redis did not receive and is to be told.
    refunds: u64,
    /// They may have been sent, and lost.
    refunds_in_doubt: bool,
    /// Units refunded since it was last known what Redis holds, that Redis may not know of. What
    /// they take away depends on when it learns of them.
    unsure: u64,
    /// There were such refunds, so `least` says nothing.
    least_in_doubt: bool,
    /// The same of `admitted`.
    admitted_in_doubt: bool,
    /// Units that a server may receive when it reads again.
    late: u64,
    /// Units that Redis may hold beyond `most`, and until when.
    excess: (u64, Time),
    /// When it was last brought up to date.
    at: Time,
}

/// One check that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checked<'c> {
    pub(super) call: Call<'c>,
    pub(super) over: bool,
    /// The request was all or nothing, and nothing.
    pub(super) blocked: bool,
}

/// What is known of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Redis decided.
    Served,
    /// Redis never received it: it was decided here.
    NotSent,
    /// Redis may have received it, and the answer may be its own or be from here.
    Unknown,
    /// The same, and Redis may receive it later.
    MayArriveLater,
}

impl Model {
    pub(super) fn new(limit: Limit, now: Time) -> Self {
        let untouched = || Counter::new(&limit);
        Self {
            limit,
            most: untouched(),
            least: untouched(),
            least_without_pending: untouched(),
            admitted: untouched(),
            beyond: 0,
            unknown: 0,
            pending: 0,
            maybe_pending: 0,
            pending_since: now,
            unsettled_since: None,
            holders: Vec::new(),
            refunds: 0,
            refunds_in_doubt: false,
            unsure: 0,
            least_in_doubt: false,
            admitted_in_doubt: false,
            late: 0,
            excess: (0, now),
            at: now,
        }
    }

    /// Brings it up to date. What is pending of a window that is over is not written back.
    pub(super) fn pass(&mut self, now: Time) {
        let window = |time| self.limit.window(time).id;
        if matches!(self.kind(), Kind::FixedWindow | Kind::SlidingWindow)
            && window(self.at) != window(now)
        {
            if self.kind() == Kind::SlidingWindow {
                self.beyond += self.pending;
                self.excess = (self.excess_at(now) + self.refunds, now.plus(self.two_periods()));
            }
            self.least = self.least_without_pending.clone();
            (self.pending, self.refunds, self.unsure) = (0, 0, 0);
        }
        // What is pending may be written back at any time, and counts from then on.
        let pending = (self.pending + self.maybe_pending).cast_signed();
        if matches!(self.kind(), Kind::SubWindows | Kind::SlidingLog) && pending > 0 {
            self.most = charged(&self.most, &self.limit, Call::PEEK, -pending, self.at);
            self.most = charged(&self.most, &self.limit, Call::PEEK, pending, now);
        }
        // Of sub-windows, what became pending a period ago is not either.
        if self.kind() == Kind::SubWindows && now.since(self.pending_since) >= self.limit.period {
            self.lose_pending();
        }
        self.at = now;
        if self.unsure == 0 && self.admitted.spent_at(&self.limit, now) == 0 {
            (self.beyond, self.unknown, self.admitted_in_doubt) = (0, 0, false);
        }
    }

    /// Whether everything is known of it.
    pub(super) fn is_exact(&self, now: Time) -> bool {
        let up_to_date = |counter: &Counter| counter.clone().decide(&self.limit, now, Call::PEEK).0;
        let is_settled = self.pending == 0
            && self.refunds == 0
            && self.unsure == 0
            && self.late == 0
            && self.excess_at(now) == 0;
        is_settled && up_to_date(&self.most) == up_to_date(&self.least)
    }

    /// What it is if everything is known.
    pub(super) fn counter(&self) -> &Counter {
        &self.most
    }

    /// A check was answered.
    pub(super) fn answered(&mut self, checked: Checked<'_>, outcome: Outcome, now: Time) {
        let Checked { call, over, blocked } = checked;
        let charge = Counter::charge(&self.limit, call);
        let is_dropped = if over { charge.drops } else { blocked };
        if outcome != Outcome::Served {
            self.unsettled_since = self.unsettled_since.or(Some(now));
        }
        match (call.hits, outcome) {
            (Hits::Peek, _) => {}
            // Nothing says whether it left the counter over its limit, and so whether it did
            // anything. Another check of the same counter may have seen it all the same.
            (Hits::Refund(_), _) if blocked => {
                self.doubt(charge.cost);
                self.least_refunded(call, charge.cost, now);
            }
            (Hits::Refund(_), Outcome::Served) => {
                // While Redis does not know of the pending hits, it may floor too early.
                if self.pending + self.maybe_pending == 0 {
                    self.charge_most(call, charge.cost, now);
                }
                self.least_refunded(call, charge.cost, now);
                self.admit(call, charge.cost, now);
            }
            (Hits::Refund(_), Outcome::NotSent) => self.refund_here(call, charge.cost, now),
            (Hits::Refund(_), _) => {
                self.doubt(charge.cost);
                self.least_refunded(call, charge.cost, now);
                self.admit(call, charge.cost, now);
            }
            (Hits::Add(hits), Outcome::Served) => {
                if !is_dropped {
                    self.charge_most(call, charge.cost, now);
                    for counter in [&mut self.least, &mut self.least_without_pending] {
                        *counter = charged(counter, &self.limit, call, charge.cost, now);
                    }
                }
                if !over && !blocked {
                    self.beyond += if self.pending > 0 { self.units(hits) } else { 0 };
                    self.admit(call, charge.cost, now);
                }
            }
            (Hits::Add(hits), Outcome::NotSent) => {
                if !over && !blocked {
                    self.charge_here(call, hits, charge.cost, now);
                    self.admit(call, charge.cost, now);
                } else if !is_dropped && self.settles() {
                    self.charge_here(call, hits, charge.cost, now);
                }
            }
            (Hits::Add(hits), outcome) => {
                self.maybe_pending += self.units(hits);
                if outcome == Outcome::MayArriveLater {
                    self.late += self.units(hits);
                } else {
                    self.charge_most(call, charge.cost, now);
                }
                if self.kind() == Kind::Concurrency && outcome == Outcome::MayArriveLater {
                    self.holders.push(call.holder.to_vec());
                }
                if !over && !blocked {
                    self.unknown += self.units(hits);
                    self.admit(call, charge.cost, now);
                }
            }
        }
    }

    /// Charged without Redis, for certain.
    fn charge_here(&mut self, call: Call<'_>, hits: u64, cost: i64, now: Time) {
        self.charge_most(call, cost, now);
        if self.pending == 0 {
            self.pending_since = now;
        }
        self.pending += self.units(hits);
        if self.is_written_back() {
            self.least = charged(&self.least, &self.limit, call, cost, now);
        } else {
            self.beyond += self.units(hits);
            self.holders.push(call.holder.to_vec());
        }
    }

    /// Refunded without Redis, for certain.
    fn refund_here(&mut self, call: Call<'_>, cost: i64, now: Time) {
        if self.is_written_back() {
            self.charge_most(call, cost, now);
            self.refunds += cost.unsigned_abs();
        }
        self.doubt(cost);
        self.least_refunded(call, cost, now);
        self.admit(call, cost, now);
    }

    /// Redis may not know of a refund.
    fn doubt(&mut self, cost: i64) {
        self.unsure += cost.unsigned_abs();
        (self.least_in_doubt, self.admitted_in_doubt) = (true, true);
    }

    fn least_refunded(&mut self, call: Call<'_>, cost: i64, now: Time) {
        for counter in [&mut self.least, &mut self.least_without_pending] {
            *counter = charged(counter, &self.limit, call, cost, now);
        }
    }

    fn charge_most(&mut self, call: Call<'_>, cost: i64, now: Time) {
        let deepest = Counter::charge(&self.limit, Hits::Add(1)).deepest;
        let above = self
            .most
            .spent_at(&self.limit, now)
            .saturating_add_signed(cost)
            .saturating_sub(deepest);
        // Redis is charged for a part of it later, when there is room for that.
        if self.kind() == Kind::Bucket && above > 0 {
            self.excess = (self.excess_at(now) + above, now.plus(self.two_periods()));
        }
        self.most = charged(&self.most, &self.limit, call, cost, now);
    }

    fn admit(&mut self, call: Call<'_>, cost: i64, now: Time) {
        self.admitted = charged(&self.admitted, &self.limit, call, cost, now);
    }

    /// What was pending may have been sent, and its reply lost.
    pub(super) fn lose_pending(&mut self) {
        self.refunds_in_doubt |= self.refunds > 0;
        if self.least != self.least_without_pending {
            self.beyond += self.pending;
            self.least = self.least_without_pending.clone();
        }
    }

    /// A server is there again, and reads what it did not.
    pub(super) fn arrive(&mut self, now: Time) {
        let late = std::mem::take(&mut self.late);
        if late > 0 && self.kind() != Kind::Concurrency {
            self.charge_most(Call::PEEK, late.cast_signed(), now);
        }
        self.renew_holders(now);
    }

    /// Another server has taken over, with `found` instead of `before` units.
    pub(super) fn fail_over(&mut self, before: u64, found: &Counter, now: Time) {
        let after = found.spent_at(&self.limit, now);
        self.beyond += before.saturating_sub(after);
        // It may have lost refunds, and get what is pending besides.
        let excess = (after + self.pending + self.maybe_pending).max(self.excess_at(now));
        self.excess = (excess, now.plus(self.two_periods()));
        self.least_without_pending = found.clone();
        self.least = self.least_without_pending.clone();
    }

    /// Redis was there for long enough: nothing is pending any more, and it holds `found`.
    pub(super) fn settle(&mut self, found: Counter) {
        (self.pending, self.refunds, self.unsure, self.excess.0) = (0, 0, 0, 0);
        (self.least_in_doubt, self.refunds_in_doubt) = (false, false);
        (self.maybe_pending, self.unsettled_since) = (0, None);
        self.most = found.clone();
        self.least_without_pending = found.clone();
        self.least = found;
    }

    fn renew_holders(&mut self, now: Time) {
        for holder in std::mem::take(&mut self.holders) {
            if self.kind() == Kind::Concurrency {
                let call = Call { hits: Hits::Add(1), holder: &holder, book_ahead: Span::ZERO };
                self.most = charged(&self.most, &self.limit, call, 1, now);
            }
        }
    }

    /// Redis holds so many units.
    ///
    /// # Errors
    /// It holds more than it may.
    pub(super) fn holds_at_most(&self, held: u64, now: Time) -> Result<(), String> {
        let most = self.most.spent_at(&self.limit, now) + self.refunds + self.excess_at(now);
        if held <= most {
            Ok(())
        } else {
            Err(format!(
                "Redis holds {held} units, and at most {most} may be counted: {:?}",
                self.most
            ))
        }
    }

    /// Redis was there for long enough, and holds so many units.
    ///
    /// # Errors
    /// It holds more or less than it may.
    pub(super) fn holds_all(&mut self, held: u64, now: Time) -> Result<(), String> {
        self.renew_holders(now);
        let refunds = if self.refunds_in_doubt { self.refunds } else { 0 };
        let most = self.most.spent_at(&self.limit, now) + refunds + self.excess_at(now);
        let least = self.least.spent_at(&self.limit, now).saturating_sub(self.leaked(now));
        if held <= most && (least <= held || self.least_in_doubt) {
            return Ok(());
        }
        Err(format!(
            "Redis holds {held} units after the outage, and {least} to {most} were admitted: {:?}",
            self.most
        ))
    }

    /// Clients were admitted no more than they may.
    ///
    /// # Errors
    /// They were.
    pub(super) fn admits_at_most(&self, now: Time) -> Result<(), String> {
        let (admitted, full) = (
            self.admitted.spent_at(&self.limit, now),
            Counter::charge(&self.limit, Hits::Add(1)).full,
        );
        // The replica counts what it admitted by itself until the window ends.
        let unknown = match self.kind() {
            Kind::FixedWindow | Kind::SlidingLog => self.unknown.min(full),
            _ => self.unknown,
        };
        let beyond = self.beyond + unknown;
        if admitted <= full + beyond || self.admitted_in_doubt {
            return Ok(());
        }
        Err(format!(
            "{admitted} units were admitted of {full}, and {beyond} beyond are accounted for: {:?}",
            self.admitted
        ))
    }

    pub(super) fn kind(&self) -> Kind {
        Kind::of(&self.limit)
    }

    /// Whether hits over the limit are usage, because its rule says so. Those of other fixed windows
    /// are counted as by envoyproxy/ratelimit.
    fn settles(&self) -> bool {
        self.kind() != Kind::FixedWindow && self.limit.over_limit_hits == OverLimitHits::Count
    }

    /// Whether hits that were decided here are written back.
    fn is_written_back(&self) -> bool {
        self.kind() != Kind::Concurrency
    }

    fn units(&self, hits: u64) -> u64 {
        Counter::charge(&self.limit, Hits::Add(hits)).wanted()
    }

    fn excess_at(&self, now: Time) -> u64 {
        let excess = if now < self.excess.1 { self.excess.0 } else { 0 };
        excess + self.leaked(now)
    }

    /// What may have leaked from a bucket here and not in Redis, which is told later.
    fn leaked(&self, now: Time) -> u64 {
        let Some(since) = self.unsettled_since.filter(|_| self.kind() == Kind::Bucket) else {
            return 0;
        };
        let ticks = now.since(since).as_micros() / self.limit.tick.span().as_micros();
        (ticks * self.limit.requests).min(self.pending + self.maybe_pending + self.unsure)
    }

    fn two_periods(&self) -> Span {
        Span::from_micros(2 * self.limit.period.as_micros())
    }
}

/// A counter after a call that takes or gives back so much, whatever the limit says.
pub(super) fn charged(
    counter: &Counter,
    limit: &Limit,
    call: Call<'_>,
    cost: i64,
    now: Time,
) -> Counter {
    let charge =
        Charge { cost, drops: false, full: u64::MAX, ..Counter::charge(limit, Hits::Add(1)) };
    let mut counter = counter.clone();
    counter.apply(limit, now, call, charge);
    counter
}
