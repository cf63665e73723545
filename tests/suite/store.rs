//! The memory store: exact for any number of threads, equal to a list of counters, and bounded.
//! `parity.rs` and `races.rs` show that Redis counts alike.

use std::thread;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::{Counter, decide_all_or_nothing};
use tollgate::limits::check::{Check, CheckRequest, Hits, Key, Verdicts, runs};
use tollgate::limits::{Algorithm, Limit, Terms, Unit};
use tollgate::store::memory::Counters;
use tollgate::telemetry::metric::Metrics;

use crate::support::counted;
use crate::support::remote::{all_at_once, atomic_request, request_of};

const START: Time = Time::from_micros(1_700_000_000_123_456);
const ROOM: u64 = 64 << 20;

fn limit(algorithm: Algorithm, requests: u32, unit: Unit) -> Limit {
    Limit::new(&all_at_once(requests, unit, algorithm)).expect("a limit")
}

fn check(key: &str, limit: Limit, hits: Hits) -> Check {
    Check::new(Key::from(key), limit, hits)
}

/// What the store should do, with nothing but a list.
#[derive(Default)]
struct Model(Vec<(Vec<u8>, Counter)>);

impl Model {
    fn decide(&mut self, request: &CheckRequest, now: Time) -> Verdicts {
        let slots: Vec<usize> = request.checks.iter().map(|check| self.slot(check)).collect();
        let mut counters: Vec<Counter> =
            self.0.iter().map(|(_, counter)| counter.clone()).collect();
        let mut verdicts = Verdicts::new();
        for group in runs(&request.checks, |check| check.group) {
            let slots = &slots[verdicts.len()..][..group.len()];
            if let ([check], [slot]) = (group, slots) {
                let counter = counters[*slot].clone();
                let (counter, verdict) = counter.decide(&check.limit, now, check.call());
                counters[*slot] = counter;
                verdicts.push(verdict);
            } else {
                verdicts.extend(decide_all_or_nothing(group, slots, &mut counters, now));
            }
        }
        for ((_, kept), counter) in self.0.iter_mut().zip(counters) {
            *kept = counter;
        }
        verdicts
    }

    fn slot(&mut self, check: &Check) -> usize {
        let key = check.key.as_bytes();
        self.0.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
            self.0.push((key.to_vec(), Counter::new(&check.limit)));
            self.0.len() - 1
        })
    }
}

/// A check in the histories: its limit, which has a key of its own, its hits, who holds, and
/// whether it is enforcing.
type Draw = (usize, u64, u8, bool, u16);

fn memory() -> Counters {
    Counters::new(ROOM, "store", &Metrics::new())
}

#[test]
fn threads_together_are_admitted_exactly_the_limit() {
    let counters = memory();
    for algorithm in Algorithm::ALL {
        for round in 0..200 {
            let limit = limit(algorithm, 100 + round, Unit::Year);
            let check = check(&format!("{algorithm} {round}:"), limit, Hits::Add(1));
            let admitted: usize = eight_threads(|number| {
                let request = |call: u8| {
                    request_of([Check {
                        holder: Some([u8::try_from(number).expect("there are eight"), call].into()),
                        ..check.clone()
                    }])
                };
                (0..100).filter(|&call| !counters.decide(&request(call), START)[0].over).count()
            });
            assert_eq!(admitted, (100 + round) as usize, "{algorithm}, round {round}");
        }
    }
}

/// Whatever order they name the same counters in.
#[test]
fn all_or_nothing_requests_are_admitted_whole() {
    let counters = memory();
    let limit = limit(Algorithm::FixedWindow, 1_000, Unit::Year);
    let admitted = eight_threads(|number| {
        let mut keys: Vec<String> = (0..20).map(|key| format!("k{key}:")).collect();
        keys.rotate_left(number * 2);
        let request = atomic_request(keys.iter().map(|key| check(key, limit, Hits::Add(1))));
        (0..300)
            .filter(|_| counters.decide(&request, START).iter().all(|verdict| !verdict.over))
            .count()
    });
    assert_eq!(admitted, 1_000);
}

fn eight_threads(work: impl Fn(usize) -> usize + Sync) -> usize {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

#[test]
fn verdicts_equal_those_of_a_list_of_counters() {
    let counters = memory();
    let limits = [
        limit(Algorithm::FixedWindow, 3, Unit::Minute),
        limit(Algorithm::FixedWindow, 5, Unit::Hour),
        limit(Algorithm::TokenBucket, 3, Unit::Minute),
        limit(Algorithm::TokenBucket, 5, Unit::Hour),
        limit(Algorithm::FixedWindow, 0, Unit::Second),
        limit(Algorithm::TokenBucket, 2, Unit::Day),
        limit(Algorithm::SlidingWindow, 4, Unit::Minute),
        Limit::new(&Terms {
            buckets: Some(3),
            ..Terms::new(4, Unit::Minute, Algorithm::SlidingWindow)
        })
        .expect("a limit"),
        limit(Algorithm::SlidingLog, 4, Unit::Minute),
        limit(Algorithm::Concurrency, 2, Unit::Minute),
    ];
    let groups = prop_oneof![2 => Just(0), 1 => Just(1), 1 => Just(2)];
    let checks =
        prop::collection::vec((0..limits.len(), 0..6_u64, 0..4_u8, any::<bool>(), groups), 1..6);
    let asks = prop::collection::vec((checks, 0..90_u64), 1..40);
    let play = |asks: Vec<(Vec<Draw>, u64)>| {
        counters.clear();
        let mut model = Model::default();
        let mut now = START;
        for (checks, gap) in asks {
            now = now.plus(Span::from_secs(gap));
            let checks = checks.into_iter().map(|(key, hits, holder, enforcing, group)| {
                let hits = match hits {
                    0 => Hits::Peek,
                    1..4 => Hits::Add(hits),
                    more => Hits::Refund(more - 3),
                };
                Check {
                    enforcing,
                    group,
                    holder: Some([holder].into()),
                    ..check(&format!("k{key}:"), limits[key], hits)
                }
            });
            let request = request_of(checks);
            prop_assert_eq!(counters.decide(&request, now), model.decide(&request, now));
            if gap > 45 {
                counters.sweep(now);
            }
        }
        Ok(())
    };
    let config = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::default() };
    TestRunner::new(config).run(&asks, play).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn expired_counters_are_swept() {
    let metrics = Metrics::new();
    let counters = Counters::new(ROOM, "store", &metrics);
    let limits = [
        limit(Algorithm::FixedWindow, 9, Unit::Minute),
        limit(Algorithm::TokenBucket, 9, Unit::Minute),
    ];
    for key in 0..20_000 {
        counters
            .decide(&request_of([check(&format!("k{key}"), limits[key % 2], Hits::Add(9))]), START);
    }
    counters.sweep(START.plus(Span::from_secs(1)));
    assert_eq!(counters.len(), 20_000, "none has expired");
    counters.sweep(START.plus(Span::from_secs(61)));
    assert!(counters.is_empty(), "{} are left", counters.len());
    assert_eq!(counted(&metrics, "tollgate_memory_keys{use=\"store\"}"), 0);
    assert_eq!(counted(&metrics, "tollgate_memory_expired_total{use=\"store\"}"), 20_000);
}

#[test]
fn peeked_and_fully_refunded_counters_take_no_memory() {
    let counters = Counters::new(ROOM, "store", &Metrics::new());
    let limit = limit(Algorithm::TokenBucket, 9, Unit::Minute);
    counters.decide(&request_of([check("a", limit, Hits::Peek)]), START);
    counters.decide(&request_of([check("b", limit, Hits::Add(2))]), START);
    assert_eq!(counters.len(), 1);
    counters.decide(&request_of([check("b", limit, Hits::Refund(2))]), START);
    assert!(counters.is_empty());
}

#[test]
fn full_stores_evict_counters_closest_to_their_reset() {
    let metrics = Metrics::new();
    let counters = Counters::new(1 << 20, "store", &metrics);
    let year = limit(Algorithm::FixedWindow, 9, Unit::Year);
    let second = limit(Algorithm::FixedWindow, 9, Unit::Second);
    for key in 0..4_000 {
        counters.decide(&request_of([check(&format!("year{key}"), year, Hits::Add(9))]), START);
    }
    for key in 0..100_000 {
        counters.decide(&request_of([check(&format!("second{key}"), second, Hits::Add(1))]), START);
    }
    let kept = (0..4_000).filter(|key| {
        counters.decide(&request_of([check(&format!("year{key}"), year, Hits::Peek)]), START)[0]
            .remaining
            == 0
    });
    let kept = kept.count();
    assert!(
        kept > 3_900,
        "a flood of short windows must not push out the long ones: {kept} of 4000 are left"
    );
    assert!(counters.len() <= (1 << 20) / 72, "{} counters", counters.len());
    assert_eq!(
        counted(&metrics, "tollgate_memory_evicted_total{use=\"store\"}"),
        104_000 - counters.len() as u64
    );
    assert_eq!(counted(&metrics, "tollgate_memory_keys{use=\"store\"}"), counters.len() as u64);
}
