//! What a client gets over an outage, in pure Rust: replicas that decide locally, a model of Redis
//! that they write back to, any traffic, and outages of any length. Time is an argument.

use std::num::NonZeroU32;

use proptest::prelude::*;
use tokio::runtime;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::algorithm::charge::Charge;
use tollgate::limits::check::{Call, Check, CheckError, Effect, Hits, Key, Verdict};
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Share, Terms, Unit};
use tollgate::rules::config::calendar::utc_months;
use tollgate::store::redis::fallback::local::{
    LocalFallback, Undecided, WriteBack, WriteBackTarget,
};
use tollgate::telemetry::metric::Metrics;

/// 2023-11-14, which is on no edge of any unit.
const START: Time = Time::from_micros(1_700_000_000_123_456);
const FOR_EVER: Span = Span::from_secs(u64::MAX);

/// Redis, as far as one counter goes.
#[derive(Clone)]
struct Server {
    limit: Limit,
    counter: Counter,
}

/// One process.
struct Replica {
    local: LocalFallback,
    share: Share,
    /// The last known usage, and when that was.
    seen: Option<(u64, Time)>,
    away: bool,
    epoch: u64,
}

/// All of them, and one client that calls any of them.
struct World {
    server: Server,
    replicas: Vec<Replica>,
    now: Time,
    passed: Vec<(Time, u64)>,
    refunded: u64,
}

/// A server that one replica writes back to.
struct Returned<'w> {
    server: &'w mut Server,
    seen: &'w mut Option<(u64, Time)>,
    now: Time,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    /// Hits at a replica.
    Ask(usize, u64),
    /// A refund at a replica that is away, of at most the hits that passed.
    Refund(usize, u64),
    /// Redis goes away for a replica, or for all of them, or comes back.
    Turn(usize),
    TurnAll,
}

/// How long after the one before, in 256ths of a period and µs, and what.
type Later = ((u64, u64), Act);

impl Server {
    fn new(limit: Limit) -> Self {
        Self { limit, counter: Counter::new(&limit) }
    }

    fn ask(&mut self, hits: Hits, now: Time) -> Verdict {
        let (counter, verdict) = std::mem::take(&mut self.counter).decide(&self.limit, now, hits);
        self.counter = counter;
        verdict
    }

    /// As the script does it.
    fn charge(&mut self, call: Call<'_>, charge: Charge, now: Time) {
        self.counter.apply(&self.limit, now, call, charge);
    }
}

impl WriteBackTarget for Returned<'_> {
    async fn connect(&mut self) -> bool {
        true
    }

    fn owns(&self, _: &Key, _: &Limit) -> bool {
        true
    }

    fn now(&self) -> Time {
        self.now
    }

    async fn send(&mut self, write_backs: &[WriteBack]) -> Vec<Result<u64, CheckError>> {
        let write_back = |WriteBack { check, charge }: &WriteBack| {
            self.server.charge(check.call(), *charge, self.now);
            *self.seen = Some((self.server.ask(Hits::Peek, self.now).used, self.now));
            Ok(self.server.counter.spent_at(&self.server.limit, self.now))
        };
        write_backs.iter().map(write_back).collect()
    }
}

impl Replica {
    fn new(share: Share) -> Self {
        Self {
            local: LocalFallback::new(&Metrics::new()),
            share,
            seen: None,
            away: false,
            epoch: 0,
        }
    }

    fn count(&mut self, check: &Check, now: Time) -> Verdict {
        let undecided =
            Undecided { check, effect: Effect::None, seen: self.seen, epoch: self.epoch };
        self.local.decide(&[undecided], self.share, now)[0]
    }

    fn write_back(&mut self, server: &mut Server, now: Time) -> bool {
        let mut returned = Returned { server, seen: &mut self.seen, now };
        runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime can be built")
            .block_on(self.local.write_back(&mut returned, FOR_EVER))
    }
}

impl World {
    fn new(limit: Limit, replicas: u32) -> Self {
        let all = NonZeroU32::new(replicas).expect("there is one");
        let replicas = (0..replicas).map(|rank| Replica::new(Share::ranked(all, rank))).collect();
        Self { server: Server::new(limit), replicas, now: START, passed: Vec::new(), refunded: 0 }
    }

    fn act(&mut self, act: Act) {
        let count = self.replicas.len();
        match act {
            Act::Ask(at, hits) => _ = self.ask(at % count, hits),
            Act::Refund(at, hits) => self.refund(at % count, hits),
            Act::Turn(at) => self.turn(at % count),
            Act::TurnAll => {
                // All replicas received the last heartbeats.
                self.exchange_heartbeats();
                (0..count).for_each(|at| self.turn(at));
            }
        }
    }

    /// Asks, and notes what passed.
    fn ask(&mut self, at: usize, hits: u64) -> Verdict {
        let replica = &mut self.replicas[at];
        let verdict = if replica.away {
            replica.count(&check(self.server.limit, Hits::Add(hits)), self.now)
        } else {
            let verdict = self.server.ask(Hits::Add(hits), self.now);
            replica.seen = Some((verdict.used, self.now));
            verdict
        };
        if !verdict.over {
            self.passed.push((self.now, hits));
        }
        verdict
    }

    fn refund(&mut self, at: usize, hits: u64) {
        let hits = hits.min(self.left());
        if self.replicas[at].away {
            self.replicas[at].count(&check(self.server.limit, Hits::Refund(hits)), self.now);
            self.refunded += hits;
        }
    }

    /// Hits that passed, less those refunded.
    fn left(&self) -> u64 {
        let passed: u64 = self.passed.iter().map(|(_, hits)| hits).sum();
        passed - self.refunded
    }

    fn exchange_heartbeats(&mut self) {
        let used = self.server.ask(Hits::Peek, self.now).used;
        for replica in self.replicas.iter_mut().filter(|replica| !replica.away) {
            replica.seen = Some((used, self.now));
        }
    }

    fn turn(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        if replica.away {
            assert!(replica.write_back(&mut self.server, self.now));
            replica.epoch += 1;
        }
        replica.away = !replica.away;
    }

    fn play(&mut self, acts: &[Later]) {
        for &((parts, micros), act) in acts {
            self.now = self.now.plus(Span::from_micros(
                self.server.limit.period.as_micros() / 256 * parts + micros,
            ));
            self.act(act);
        }
    }

    /// Whether more passed anywhere than `most` says, in so many hits, and so many times what flows
    /// back meanwhile.
    fn exceeds(&self, (at_once, rates): (u64, u64)) -> Option<String> {
        let limit = &self.server.limit;
        let passed = &self.passed;
        let period = limit.period.as_micros();
        let complaint = |from: usize, to: usize, sum: u64, most: u64| {
            (sum > most).then(|| {
                format!(
                    "{sum} hits from {:?} to {:?}, and not {most}: {passed:?}",
                    passed[from].0, passed[to].0
                )
            })
        };
        (0..passed.len()).find_map(|from| {
            let mut sum = 0;
            (from..passed.len()).find_map(|to| {
                let ((began, _), (at, hits)) = (passed[from], passed[to]);
                let is_within = match limit.algorithm {
                    Algorithm::FixedWindow | Algorithm::SlidingWindow if limit.buckets == 0 => {
                        limit.window(began) == limit.window(at)
                    }
                    Algorithm::TokenBucket | Algorithm::LeakyBucket => true,
                    _ => at.since(began) < limit.period,
                };
                if !is_within {
                    return None;
                }
                sum += hits;
                let flowed = if limit.algorithm.is_bucket() {
                    // In whole hits, of a time that is a tick longer at either end.
                    let time = at.since(began).as_micros() + 2 * limit.tick.span().as_micros();
                    u64::try_from(
                        u128::from(time) * u128::from(limit.requests) / u128::from(period),
                    )
                    .expect("few")
                        + 1
                } else {
                    0
                };
                complaint(from, to, sum, at_once + rates * flowed)
            })
        })
    }
}

fn check(limit: Limit, hits: Hits) -> Check {
    Check::new(Key::from("k"), limit, hits)
}

fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(&Terms::new(requests.into(), Unit::Minute, algorithm)).expect("a limit")
}

/// Algorithms whose hits are written back.
const COUNTING: [Algorithm; 5] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

fn limits() -> impl Strategy<Value = Limit> {
    let algorithm = prop::sample::select(&COUNTING[..]);
    let burst = prop::option::of(1..60_u32);
    let buckets = prop::option::of(1..9_u32);
    let over_limit_hits = prop::option::of(prop::sample::select(&OverLimitHits::ALL[..]));
    let unit = prop::sample::select(&[Unit::Second, Unit::Minute, Unit::Day, Unit::Month][..]);
    (algorithm, 0..40_u32, unit, burst, buckets, over_limit_hits).prop_map(
        |(algorithm, requests, unit, burst, buckets, over_limit_hits)| {
            let windows = utc_months();
            let burst = burst.filter(|_| algorithm.is_bucket());
            let buckets = buckets.filter(|_| algorithm == Algorithm::SlidingWindow);
            Limit::new(&Terms {
                windows,
                burst,
                buckets,
                over_limit_hits,
                ..Terms::new(requests.into(), unit, algorithm)
            })
            .expect("a limit")
        },
    )
}

fn acts(turns: impl Strategy<Value = Act> + 'static) -> impl Strategy<Value = Vec<Later>> {
    let parts = prop_oneof![6 => Just(0_u64), 6 => 0..20_u64, 2 => 0..600_u64, 1 => 0..5_000_u64];
    let micros = prop_oneof![3 => Just(0), 1 => 0..3_u64, 1 => 0..2_000_000_u64];
    let ask = (0..8_usize, prop_oneof![8 => Just(1_u64), 2 => 1..6_u64, 1 => 1..50_u64])
        .prop_map(|(at, hits)| Act::Ask(at, hits));
    prop::collection::vec(((parts, micros), prop_oneof![20 => ask, 1 => turns]), 0..250)
}

/// The limit, or one for each replica if that is more; as many as fit at once where it is a bucket.
fn once(limit: &Limit, replicas: u32) -> u64 {
    if limit.capacity == 0 { 0 } else { limit.capacity.max(replicas.into()) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Redis goes for all of them at once, with everybody knowing what it last said, and is back for all of them at once.
    #[test]
    fn over_an_outage_that_all_see_alike_a_client_gets_its_limit_and_no_more(
        limit in limits(), replicas in 1..6_u32, acts in acts(Just(Act::TurnAll)),
    ) {
        let mut world = World::new(limit, replicas);
        world.play(&acts);
        // A bucket's parts are cut to whole hits: one more or less for each of them.
        let parts = if limit.algorithm.is_bucket() { u64::from(replicas) } else { 0 };
        let exceeded = world.exceeds((once(&limit, replicas) + parts, 1));
        prop_assert!(exceeded.is_none(), "{}", exceeded.unwrap_or_default());
    }

    /// Redis becomes unavailable and available for each of them at any time, and no usage of others is known.
    #[test]
    fn over_any_outages_a_client_gets_its_limit_once_more(
        limit in limits(), replicas in 1..6_u32, acts in acts((0..8_usize).prop_map(Act::Turn)),
    ) {
        let mut world = World::new(limit, replicas);
        world.play(&acts);
        let exceeded = world.exceeds((limit.capacity + once(&limit, replicas), 2));
        prop_assert!(exceeded.is_none(), "{}", exceeded.unwrap_or_default());
    }
}

proptest! {
    /// In any order of recovery, also if another replica refunds hits than the one that admitted them.
    #[test]
    fn hits_less_refunds_are_in_redis_once_all_are_back(
        algorithm in prop::sample::select(&COUNTING[..]),
        replicas in 2..5_u32,
        acts in prop::collection::vec(prop_oneof![
            4 => (0..8_usize, 1..6_u64).prop_map(|(at, hits)| Act::Ask(at, hits)),
            3 => (0..8_usize, 1..9_u64).prop_map(|(at, hits)| Act::Refund(at, hits)),
            2 => (0..8_usize).prop_map(Act::Turn),
        ], 0..60),
    ) {
        // A bucket holds one burst of debt, which must not be reached.
        let burst = algorithm.is_bucket().then_some(10_000);
        let terms = Terms { burst, ..Terms::new(100_000, Unit::Minute, algorithm) };
        let mut world = World::new(Limit::new(&terms).expect("a limit"), replicas);
        world.act(Act::TurnAll);
        for act in acts {
            world.act(act);
        }
        for _ in 0..2 {
            for replica in &mut world.replicas {
                prop_assert!(replica.write_back(&mut world.server, world.now));
            }
        }
        let used = world.server.ask(Hits::Peek, world.now).used;
        prop_assert_eq!(used, world.left());
    }
}

#[test]
fn the_part_of_what_was_used_that_flowed_back_has_flowed_back_once() {
    for replicas in [1, 2, 3, 7] {
        let mut world = World::new(limit(Algorithm::TokenBucket, 60), replicas);
        for _ in 0..60 {
            assert!(!world.ask(0, 1).over);
        }
        world.act(Act::TurnAll);
        let mut passed = 0;
        // One a second flows back; everybody is asked for more than that, for a minute and a half.
        for _ in 0..90 {
            world.now = world.now.plus(Span::from_secs(1));
            passed += (0..replicas as usize)
                .flat_map(|at| [at, at])
                .filter(|at| !world.ask(*at, 1).over)
                .count();
        }
        assert!((90 - replicas as usize..=90).contains(&passed), "{passed} with {replicas}");
        world.act(Act::TurnAll);
        let used = world.server.ask(Hits::Peek, world.now).used;
        assert!(
            used >= 60 - u64::from(replicas),
            "no full bucket waits at the end: {used} with {replicas}"
        );
    }
}

#[test]
fn every_replica_lets_one_through_however_many_there_are() {
    let mut world = World::new(limit(Algorithm::FixedWindow, 2), 5);
    world.act(Act::TurnAll);
    let passed = |world: &mut World| {
        (0..5).flat_map(|at| [at; 3]).filter(|at| !world.ask(*at, 1).over).count()
    };
    assert_eq!(passed(&mut world), 5, "a client of one replica is not locked out");
    world.act(Act::TurnAll);
    assert_eq!(passed(&mut world), 0, "Redis knows of them");
    assert_eq!(world.server.ask(Hits::Peek, world.now).used, 5 + 15);
}

#[test]
fn no_slot_is_booked() {
    let max_wait = Span::from_secs(5);
    let terms =
        Terms { max_wait: Some(max_wait), ..Terms::new(10, Unit::Second, Algorithm::LeakyBucket) };
    let check =
        Check { book_ahead: max_wait, ..check(Limit::new(&terms).expect("a limit"), Hits::Add(1)) };
    let mut replica = Replica::new(Share::one_of(NonZeroU32::MIN));
    assert!(!replica.count(&check, START).over);
    let verdict = replica.count(&check, START);
    assert_eq!((verdict.over, verdict.start_after), (true, Span::ZERO));
}
