//! The leases of one replica on one counter: what each call, reply and passing time does to them.
//!
//! All times are those of the server that has the counter.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::base::time::{Span, Time};
use crate::limits::algorithm::Counter;
use crate::limits::algorithm::lease::demand::{Demand, HOT, take_size};
use crate::limits::algorithm::lease::held::{Held, Slots};
use crate::limits::algorithm::lease::moves::{
    Answer, Asked, Events, GiveBack, Settled, Take, TakeReply,
};
use crate::limits::check::{Call, Effect, Hits, Verdict};
use crate::limits::{LeaseTerms, Limit};

/// The longest hold of a bucket.
// bound lease_hold_max: one call asks Redis; tollgate_lease_held_answers_total
const HOLD_MAX: Span = Span::from_secs(1);
/// A hold of a bucket lasts at least this part of its horizon: time for some hits to return.
const PART_OF_HORIZON: u64 = 40;
/// The first take of a window is sent this long before it begins, besides two round trips.
const NEXT_WINDOW_LEAD: Span = Span::from_micros(2_000);

/// The leases on one counter.
#[derive(Debug)]
pub struct LeasedCounter {
    limit: Limit,
    terms: LeaseTerms,
    demand: Demand,
    /// The counter as of the last reply, which includes all held hits.
    mirror: Option<Counter>,
    slots: Slots,
    /// The first take of the next window, and that window's counter.
    next: Option<(Held, Counter)>,
    hold: Option<Hold>,
    /// Hits of the last take.
    last_take: u64,
    is_taking: bool,
    /// No take before this time: the last one failed.
    takes_from: Time,
    /// Of the last reply to a take.
    round_trip: Span,
    /// Hits that calls in flight have reserved, and hits of give-backs in flight.
    in_flight: u64,
    events: Events,
}

/// The counter had no hits left: calls are over limit without a call to the store.
#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Time,
    window_ends: Time,
    /// One call asks whether hits have returned; others keep their answer meanwhile.
    is_probing: bool,
}

impl LeasedCounter {
    /// Nothing is held yet.
    pub fn new(limit: Limit, terms: LeaseTerms, demand: Demand) -> Self {
        Self {
            limit,
            terms,
            demand,
            mirror: None,
            slots: Slots::default(),
            next: None,
            hold: None,
            last_take: 0,
            is_taking: false,
            takes_from: Time::default(),
            round_trip: Span::ZERO,
            in_flight: 0,
            events: Events::default(),
        }
    }

    /// Whether as many replicas can hold hits of a limit, or it is too low for that.
    pub fn can_lease(limit: &Limit, replicas: NonZeroU32) -> bool {
        take_size(u64::MAX, u64::MAX, 0, limit.capacity, replicas) > 0
    }

    /// The limit of the counter.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Reserves hits for a call. If not all of them are held, the store decides the others.
    pub fn reserve(&mut self, hits: u64, now: Time) -> Answer {
        self.advance(now);
        self.demand.add(hits, now, self.terms.span());
        let usable = self.usable(now);
        if usable == 0
            && let Some(hold) = self.hold
            && (now < hold.until || hold.is_probing)
        {
            let call = Hits::Add(hits).into();
            return Answer::Over(self.verdict(call, true, now));
        }
        let asked = Asked {
            reserved: self.slots.take_out(hits, now),
            is_probe: usable == 0 && self.hold.is_some(),
        };
        if let Some(hold) = self.hold.as_mut().filter(|_| asked.is_probe) {
            hold.is_probing = true;
        }
        self.in_flight += asked.reserved.hits;
        if asked.reserved.hits == hits { Answer::Reserved(asked) } else { Answer::Ask(asked) }
    }

    /// Ends the reservation of a call.
    #[expect(clippy::needless_pass_by_value, reason = "it is settled once")]
    pub fn settle(&mut self, asked: Asked, settled: Settled, now: Time) {
        let Asked { reserved, is_probe } = asked;
        self.in_flight -= reserved.hits;
        match settled {
            Settled::Used => self.events.used += reserved.hits,
            Settled::Unused | Settled::Failed => self.slots.put_back(reserved, now),
        }
        if is_probe && let Some(hold) = &mut self.hold {
            hold.is_probing = false;
            if settled == Settled::Failed {
                self.hold = None;
            }
        }
    }

    /// The verdict of a peek, if no call to the store is needed for it.
    pub fn peek(&mut self, now: Time) -> Option<Verdict> {
        self.advance(now);
        let is_known = self.usable(now) > 0 || self.hold.is_some_and(|hold| now < hold.until);
        is_known.then(|| self.verdict(Call::PEEK, false, now))
    }

    /// The verdict of a call that was decided here: as of the last reply, less unused hits.
    pub fn verdict(&self, call: Call<'_>, over: bool, now: Time) -> Verdict {
        let mut counter = self.mirror();
        counter.change(&self.limit, now, Hits::Refund(self.usable(now)));
        counter.verdict(&self.limit, now, call, over)
    }

    /// The hits to take now, if any. They are in flight from then on.
    pub fn wanted_take(&mut self, replicas: NonZeroU32, now: Time) -> Option<Take> {
        let demand = self.demand.at(now, self.terms.span());
        if self.is_taking || now < self.takes_from || demand < HOT {
            return None;
        }
        let take = self
            .wanted_now(demand, replicas, now)
            .or_else(|| self.wanted_next(demand, replicas, now))?;
        self.is_taking = true;
        Some(take)
    }

    /// Learns from the reply to a call that asked the store.
    pub fn observe(&mut self, counter: Counter, now: Time) {
        self.advance(now);
        self.mirror = Some(counter);
        self.update_hold(now);
    }

    /// A take has a reply.
    pub fn taken(&mut self, take: Take, reply: TakeReply, now: Time) {
        let TakeReply { granted, charged_at, counter, round_trip } = reply;
        self.advance(now);
        (self.is_taking, self.round_trip) = (false, round_trip);
        self.events.taken += granted;
        let (from, until) = self.limit.usable(charged_at);
        let held = Held { hits: granted, taken_at: now.max(from), from, until };
        if take.next_window.is_some() && now < from {
            self.next = (granted > 0).then_some((held, counter));
            return;
        }
        self.mirror = Some(counter);
        if granted > 0 {
            self.keep(held);
            self.slots.strand(now);
        }
        self.update_hold(now);
    }

    /// A take has no reply.
    pub fn take_failed(&mut self, take: Take, effect: Effect, now: Time) {
        self.is_taking = false;
        self.takes_from = now.plus(self.hold_span());
        if effect == Effect::Unknown {
            self.events.taken += take.hits;
            self.events.unknown += take.hits;
        }
    }

    /// The hits to give back: those that are unused for this long. They are in flight from then on.
    pub fn give_back(&mut self, lifetime: Span, now: Time) -> SmallVec<[GiveBack; 3]> {
        self.advance(now);
        let expired = |held: &Held| held.is_expired(now, lifetime);
        let next = self.next.take_if(|(held, _)| expired(held));
        let expired = self.slots.remove(expired);
        let expired = expired.chain(next.map(|(held, _)| held));
        let expired: SmallVec<_> = expired.map(GiveBack).collect();
        self.in_flight += expired.iter().map(GiveBack::hits).sum::<u64>();
        expired
    }

    /// Give-backs have an outcome: they were executed in their window or after it, or failed.
    pub fn given_back(&mut self, GiveBack(held): GiveBack, outcome: Result<(), Effect>, now: Time) {
        self.in_flight -= held.hits;
        match outcome {
            Ok(()) => {
                self.events.given_back += held.hits;
                if let Some(counter) = &mut self.mirror
                    && held.usable(now) > 0
                {
                    counter.change(&self.limit, now, Hits::Refund(held.hits));
                }
            }
            Err(Effect::None) => self.slots.put_back(held, now),
            Err(Effect::Unknown) => self.events.unknown += held.hits,
        }
    }

    /// The counter may have been refunded: the next call asks the store.
    pub fn end_hold(&mut self) {
        self.hold = None;
    }

    /// The counter was deleted at this time, and what was taken before with it.
    pub fn drop_taken_before(&mut self, at: Time) {
        let dropped = self.slots.remove(|held| held.taken_at < at);
        self.events.dropped += dropped.map(|held| held.hits).sum::<u64>();
        (self.mirror, self.hold) = (None, None);
    }

    /// Hits that can be used now.
    pub fn usable(&self, now: Time) -> u64 {
        self.slots.usable(now)
    }

    /// Hits that are charged, and neither used, given back nor stranded.
    pub fn held(&self) -> u64 {
        let next = self.next.as_ref().map_or(0, |(held, _)| held.hits);
        self.slots.hits() + next + self.in_flight
    }

    /// Whether the state equals that of a new counter, so that it need not be kept.
    pub fn is_idle(&self, now: Time) -> bool {
        let is_holding = self.hold.is_some_and(|hold| now < hold.until || hold.is_probing);
        self.held() == 0
            && !self.is_taking
            && !is_holding
            && self.demand.at(now, self.terms.span()) == 0
    }

    /// The time until unused hits are given back.
    pub fn lifetime(&self) -> Span {
        self.terms.lifetime
    }

    /// The events since the last call.
    pub fn take_events(&mut self) -> Events {
        self.events.window += std::mem::take(&mut self.slots.stranded);
        std::mem::take(&mut self.events)
    }

    /// Ends what has ended by now.
    fn advance(&mut self, now: Time) {
        self.slots.strand(now);
        self.hold.take_if(|hold| now >= hold.window_ends);
        if let Some((held, counter)) = self.next.take_if(|(held, _)| held.from <= now) {
            self.mirror = Some(counter);
            self.keep(held);
            self.slots.strand(now);
        }
    }

    /// Keeps a take.
    fn keep(&mut self, held: Held) {
        self.last_take = held.hits;
        self.slots.keep(held);
    }

    /// A take for the present window.
    fn wanted_now(&self, demand: u64, replicas: NonZeroU32, now: Time) -> Option<Take> {
        if self.mirror.is_none() || self.usable(now) > self.low_water_mark(demand) {
            return None;
        }
        // What arrives after the end of the window cannot be used.
        let (_, window_ends) = self.limit.usable(now);
        if now.plus(self.round_trip) >= window_ends {
            return None;
        }
        // What is left then is stranded.
        let span = self.terms.span();
        let left = window_ends.since(now).min(span).as_micros();
        let demand = demand.saturating_mul(left) / span.as_micros().max(1);
        let (_, look) = self.mirror().decide(&self.limit, now, Hits::Peek);
        let remaining = look.remaining;
        let held = self.slots.hits() + self.in_flight;
        let hits = take_size(demand, remaining, held, self.limit.capacity, replicas);
        (hits > 0).then_some(Take { hits, next_window: None })
    }

    /// The first take of the next window, shortly before it begins.
    fn wanted_next(&self, demand: u64, replicas: NonZeroU32, now: Time) -> Option<Take> {
        if self.next.is_some() || !self.limit.algorithm.has_windows() {
            return None;
        }
        let (_, begins) = self.limit.usable(now);
        let lead = NEXT_WINDOW_LEAD.as_micros() + 2 * self.round_trip.as_micros();
        if now.plus(Span::from_micros(lead)) < begins {
            return None;
        }
        let remaining = self.limit.requests;
        let held = self.slots.from(begins);
        let hits = take_size(demand, remaining, held, self.limit.capacity, replicas);
        (hits > 0).then_some(Take { hits, next_window: Some(begins) })
    }

    /// The counter as of the last reply.
    fn mirror(&self) -> Counter {
        let new = || Counter::new(&self.limit);
        self.mirror.clone().unwrap_or_else(new)
    }

    fn low_water_mark(&self, demand: u64) -> u64 {
        let span = self.terms.span().as_micros();
        let in_two_round_trips =
            demand.saturating_mul(2 * self.round_trip.as_micros()) / span.max(1);
        (self.last_take / 4).max(in_two_round_trips.min(self.last_take / 2))
    }

    /// Half of a span.
    fn hold_span(&self) -> Span {
        Span::from_micros(self.terms.span().as_micros() / 2)
    }

    fn update_hold(&mut self, now: Time) {
        let (counter, look) = self.mirror().decide(&self.limit, now, Hits::Peek);
        if look.remaining > 0 || self.usable(now) > 0 {
            self.hold = None;
            return;
        }
        let (_, window_ends) = self.limit.usable(now);
        let lasts = if self.limit.algorithm.is_bucket() {
            let one = counter.verdict(&self.limit, now, Hits::Add(1).into(), true);
            let part = Span::from_micros(self.terms.horizon.as_micros() / PART_OF_HORIZON);
            let least = self.hold_span().min(part);
            one.retry_after.unwrap_or(least).max(least).min(HOLD_MAX)
        } else {
            self.hold_span()
        };
        self.hold =
            Some(Hold { until: now.plus(lasts).min(window_ends), window_ends, is_probing: false });
    }
}
