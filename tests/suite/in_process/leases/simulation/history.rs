//! Random histories: what clients, operators and the network do.

use fastrand::Rng;
use tollgate::base::time::{Span, Time};
use tollgate::limits::{Algorithm, LeaseTerms, Limit, OverLimitHits, Terms, Unit};

/// The beginning of a day, and so of a window of every limit here.
pub(super) const DAY: u64 = 1_700_006_400_000_000;

#[derive(Debug, Clone)]
pub(super) struct History {
    /// Of the network's delays and losses.
    pub(super) seed: u64,
    /// The first is in force at the beginning.
    pub(super) limits: Vec<Limit>,
    pub(super) replicas: usize,
    pub(super) network: Network,
    /// In the order of their times.
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(super) struct Network {
    /// The usual delay of one way in microseconds.
    pub(super) delay: u64,
    /// After which a request has failed.
    pub(super) timeout: Span,
    /// Requests in a thousand that are lost on the way.
    pub(super) lost: u64,
    /// Requests in a thousand whose replies are lost.
    pub(super) unanswered: u64,
    /// Requests in a thousand that are not sent.
    pub(super) unsent: u64,
    /// No request or reply arrives.
    pub(super) outage: Option<(Time, Time)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) at: Time,
    pub(super) replica: usize,
    pub(super) act: Act,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Call(u64, Caller),
    Peek,
    Refund(u64),
    /// The replica is killed, and starts again.
    Crash,
    /// The error of its estimate of the store's clock, in microseconds.
    Clock(i64),
    /// Another limit is in force on the replica.
    Reload(usize),
    /// An operator deletes the counter. Replicas are told later.
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    Waits,
    /// Disconnects after this time, in microseconds.
    Leaves(u32),
    /// All or nothing, with another check.
    Admits,
    /// The same, and the other check is over limit.
    Vetoes,
}

impl History {
    /// Anything may happen.
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let rng = &mut rng;
        let replicas = rng.u32(1..=16);
        let most = rng.choice([60, 300, 3_000]).unwrap_or(60);
        let requests = 30 * replicas + rng.u32(0..most);
        let terms = random_terms(rng, requests);
        let mut limits = vec![limit_of(&terms)];
        if rng.u8(0..4) == 0 {
            let requests = requests / 2 + rng.u32(0..requests);
            let burst = terms.burst.map(|_| requests);
            limits.push(limit_of(&Terms { requests: requests.into(), burst, ..terms }));
        }
        let limit = limits[0];
        let horizon = LeaseTerms::new(&limit, None).expect("it can have leases").horizon;
        let period = horizon.as_micros();
        let calls = rng.u64(20..=160);
        let lasts = (period * rng.u64(4..=48) / 16).max(1_000);
        let begin = DAY + period - rng.u64(0..lasts.min(period));
        // From a third of the limit to five times as much.
        let offered = limit.capacity * rng.u64(1..=15) * lasts.div_ceil(period) / 3;
        let hits = (offered / calls).max(1) * 2;
        let chaos = Chaos::random(rng, limits.len() > 1);
        let mut times: Vec<u64> = (0..calls).map(|_| begin + rng.u64(0..lasts)).collect();
        times.sort_unstable();
        let favorite = rng.usize(..replicas as usize);
        let is_skewed = rng.u8(0..3) == 0;
        let steps = times.into_iter().map(|at| Step {
            at: Time::from_micros(at),
            replica: if is_skewed && rng.u8(0..5) > 0 {
                favorite
            } else {
                rng.usize(..replicas as usize)
            },
            act: chaos.act(rng, hits),
        });
        let steps = steps.collect();
        let mut rate = |most| if rng.bool() { 0 } else { rng.u64(0..most) };
        let lost = rate(150);
        let unanswered = rate(150);
        let unsent = rate(100);
        let network = Network {
            delay: rng.choice([200, 2_000, 20_000, 100_000]).unwrap_or(200),
            timeout: Span::from_micros(rng.choice([100_000, 500_000]).unwrap_or(0)),
            lost,
            unanswered,
            unsent,
            outage: (rng.u8(0..8) == 0).then(|| {
                let from = begin + rng.u64(0..lasts);
                let until = from + rng.u64(0..lasts);
                (Time::from_micros(from), Time::from_micros(until))
            }),
        };
        Self { seed, limits, replicas: replicas as usize, network, steps }
    }

    /// The shortest part of the history that fails as well.
    pub(super) fn shortened(mut self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut part = self.steps.len().div_ceil(2);
        while part > 0 {
            let mut from = 0;
            while from < self.steps.len() {
                let until = (from + part).min(self.steps.len());
                let mut less = self.clone();
                less.steps.drain(from..until);
                if fails(&less) {
                    self = less;
                } else {
                    from = until;
                }
            }
            part /= 2;
        }
        self
    }
}

/// What happens beside calls, each in a thousand steps.
struct Chaos {
    peeks: u64,
    refunds: u64,
    crashes: u64,
    clocks: u64,
    reloads: u64,
    resets: u64,
}

impl Chaos {
    fn random(rng: &mut Rng, reloads: bool) -> Self {
        let mut often = |most| if rng.bool() { 0 } else { rng.u64(0..=most) };
        Self {
            peeks: often(40),
            refunds: often(40),
            crashes: often(20),
            clocks: often(20),
            reloads: if reloads { 50 } else { 0 },
            resets: often(15),
        }
    }

    fn act(&self, rng: &mut Rng, hits: u64) -> Act {
        let mut which = rng.u64(0..1_000);
        let mut is = |share: u64| {
            let is_it = which < share;
            which = which.wrapping_sub(share);
            is_it
        };
        if is(self.peeks) {
            Act::Peek
        } else if is(self.refunds) {
            Act::Refund(rng.u64(1..=hits))
        } else if is(self.crashes) {
            Act::Crash
        } else if is(self.clocks) {
            let most = rng.choice([2_000, 50_000, 300_000]).unwrap_or(0);
            Act::Clock(rng.i64(-most..=most))
        } else if is(self.reloads) {
            Act::Reload(rng.usize(..2))
        } else if is(self.resets) {
            Act::Reset
        } else {
            let caller = match rng.u8(0..16) {
                0 => Caller::Leaves(rng.u32(0..200_000)),
                1 => Caller::Admits,
                2 => Caller::Vetoes,
                _ => Caller::Waits,
            };
            Act::Call(rng.u64(1..=hits), caller)
        }
    }
}

fn random_terms(rng: &mut Rng, requests: u32) -> Terms {
    let which = rng.u8(0..4);
    let algorithm = match which {
        0 => Algorithm::FixedWindow,
        1 | 2 => Algorithm::SlidingWindow,
        _ => Algorithm::TokenBucket,
    };
    let (unit, most) = rng
        .choice([(Unit::Second, 12), (Unit::Minute, 3), (Unit::Hour, 1)])
        .unwrap_or((Unit::Second, 1));
    let unit_multiplier = rng.u32(1..=most);
    let seconds = if unit == Unit::Second { unit_multiplier } else { 60 };
    Terms {
        unit_multiplier,
        burst: (which == 3 && rng.bool()).then(|| requests * rng.u32(1..=3)),
        buckets: (which == 2).then(|| rng.u32(1..=seconds.min(6))),
        over_limit_hits: Some(OverLimitHits::Drop),
        ..Terms::new(requests.into(), unit, algorithm)
    }
}

pub(super) fn limit_of(terms: &Terms) -> Limit {
    Limit::new(terms).expect("a limit")
}
