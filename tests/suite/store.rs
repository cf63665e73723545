//! What every store promises. Today there is one; another one runs through the same functions.

use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use tollgate::algorithm::{Counter, decide_together};
use tollgate::check::{Ask, Check, Hits, Key, Verdicts};
use tollgate::limit::{Algorithm, Limit, Terms, Unit};
use tollgate::store::memory::Counters;
use tollgate::telemetry::metric::Metrics;
use tollgate::time::{Span, Time};

const START: Time = Time::from_micros(1_700_000_000_123_456);
const ROOM: u64 = 64 << 20;

fn limit(algorithm: Algorithm, requests: u32, unit: Unit) -> Limit {
    Limit::new(&Terms { requests, unit, unit_multiplier: 1, algorithm, burst: None, refused_hits: None }).expect("a limit")
}

fn check(key: &str, limit: Limit, hits: Hits) -> Check {
    Check { key: Key::from(key), limit, hits, veto: true }
}

fn ask(checks: impl IntoIterator<Item = Check>) -> Ask {
    Ask { checks: checks.into_iter().collect(), together: false, deadline: None }
}

fn metric(metrics: &Metrics, name: &str) -> u64 {
    let page = metrics.page();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("{use=\"store\"} "));
    line.unwrap_or_else(|| panic!("{name} is not on the page")).parse().expect("a number")
}

#[test]
fn eight_threads_on_one_key_admit_exactly_the_limit_200_times_over() {
    for algorithm in Algorithm::ALL {
        for round in 0..200 {
            let counters = Arc::new(Counters::new(ROOM, "store", &Metrics::new()));
            let limit = limit(algorithm, 100 + round, Unit::Year);
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let counters = counters.clone();
                    thread::spawn(move || {
                        let ask = ask([check("k", limit, Hits::Add(1))]);
                        (0..100).filter(|_| !counters.decide(&ask, START)[0].over).count()
                    })
                })
                .collect();
            let admitted: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
            assert_eq!(admitted, (100 + round) as usize, "{algorithm}, round {round}");
        }
    }
}

#[test]
fn asks_that_lock_the_same_shards_in_other_orders_never_wait_for_each_other() {
    let counters = Arc::new(Counters::new(ROOM, "store", &Metrics::new()));
    let limit = limit(Algorithm::FixedWindow, 1_000, Unit::Year);
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let counters = counters.clone();
            thread::spawn(move || {
                let mut keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
                keys.rotate_left(number * 2);
                let ask = Ask { checks: keys.iter().map(|key| check(key, limit, Hits::Add(1))).collect(), together: true, deadline: None };
                (0..300).filter(|_| counters.decide(&ask, START).iter().all(|verdict| !verdict.over)).count()
            })
        })
        .collect();
    let admitted: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert_eq!(admitted, 1_000, "whole asks, and never a part of one");
}

#[test]
fn counters_of_which_nothing_is_left_are_swept() {
    let metrics = Metrics::new();
    let counters = Counters::new(ROOM, "store", &metrics);
    let limits = [limit(Algorithm::FixedWindow, 9, Unit::Minute), limit(Algorithm::TokenBucket, 9, Unit::Minute)];
    for key in 0..20_000 {
        counters.decide(&ask([check(&format!("k{key}"), limits[key % 2], Hits::Add(9))]), START);
    }
    counters.sweep(START.plus(Span::from_secs(1)));
    assert_eq!(counters.len(), 20_000, "none has expired");
    counters.sweep(START.plus(Span::from_secs(61)));
    assert!(counters.is_empty(), "{} are left", counters.len());
    assert_eq!(metric(&metrics, "tollgate_memory_keys"), 0);
    assert_eq!(metric(&metrics, "tollgate_memory_expired_total"), 20_000);
}

#[test]
fn looks_and_counters_given_back_whole_take_no_room() {
    let counters = Counters::new(ROOM, "store", &Metrics::new());
    let limit = limit(Algorithm::TokenBucket, 9, Unit::Minute);
    counters.decide(&ask([check("a", limit, Hits::Look)]), START);
    counters.decide(&ask([check("b", limit, Hits::Add(2))]), START);
    assert_eq!(counters.len(), 1);
    counters.decide(&ask([check("b", limit, Hits::GiveBack(2))]), START);
    assert!(counters.is_empty());
}

#[test]
fn a_full_store_evicts_those_closest_to_their_reset() {
    let metrics = Metrics::new();
    let counters = Counters::new(1 << 20, "store", &metrics);
    let year = limit(Algorithm::FixedWindow, 9, Unit::Year);
    let second = limit(Algorithm::FixedWindow, 9, Unit::Second);
    for key in 0..4_000 {
        counters.decide(&ask([check(&format!("year{key}"), year, Hits::Add(9))]), START);
    }
    for key in 0..100_000 {
        counters.decide(&ask([check(&format!("second{key}"), second, Hits::Add(1))]), START);
    }
    let kept = (0..4_000).filter(|key| counters.decide(&ask([check(&format!("year{key}"), year, Hits::Look)]), START)[0].remaining == 0);
    let kept = kept.count();
    assert!(kept > 3_900, "a flood of short windows must not push out the long ones: {kept} of 4000 are left");
    assert!(counters.len() <= (1 << 20) / 72, "{} counters", counters.len());
    assert_eq!(metric(&metrics, "tollgate_memory_evicted_total"), 104_000 - counters.len() as u64);
    assert_eq!(metric(&metrics, "tollgate_memory_keys"), counters.len() as u64);
}

/// What the store should do, with nothing but a list.
#[derive(Default)]
struct Model(Vec<(Vec<u8>, Counter)>);

impl Model {
    fn decide(&mut self, ask: &Ask, now: Time) -> Verdicts {
        let slots: Vec<usize> = ask.checks.iter().map(|check| self.slot(check)).collect();
        let mut counters: Vec<Counter> = self.0.iter().map(|(_, counter)| *counter).collect();
        let verdicts = if ask.together {
            decide_together(&ask.checks, &slots, &mut counters, now)
        } else {
            let one = |(check, slot): (&Check, &usize)| {
                let (counter, verdict) = counters[*slot].decide(&check.limit, now, check.hits);
                counters[*slot] = counter;
                verdict
            };
            ask.checks.iter().zip(&slots).map(one).collect()
        };
        for ((_, kept), counter) in self.0.iter_mut().zip(counters) {
            *kept = counter;
        }
        verdicts
    }

    fn slot(&mut self, check: &Check) -> usize {
        let key = check.key.as_bytes();
        self.0.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
            self.0.push((key.to_vec(), Counter::untouched(check.limit.algorithm())));
            self.0.len() - 1
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn it_answers_as_a_list_of_counters_would_whatever_it_sweeps(
        asks in prop::collection::vec((prop::collection::vec((0..6_usize, 0..4_u64, any::<bool>()), 1..6), any::<bool>(), 0..90_u64), 1..40),
    ) {
        let counters = Counters::new(ROOM, "store", &Metrics::new());
        let mut model = Model::default();
        let limits = [
            limit(Algorithm::FixedWindow, 3, Unit::Minute), limit(Algorithm::FixedWindow, 5, Unit::Hour),
            limit(Algorithm::TokenBucket, 3, Unit::Minute), limit(Algorithm::TokenBucket, 5, Unit::Hour),
            limit(Algorithm::FixedWindow, 0, Unit::Second), limit(Algorithm::TokenBucket, 2, Unit::Second),
        ];
        let mut now = START;
        for (checks, together, gap) in asks {
            now = now.plus(Span::from_secs(gap));
            let checks = checks.into_iter().map(|(key, hits, veto)| {
                let hits = if hits == 0 { Hits::Look } else { Hits::Add(hits) };
                Check { veto, ..check(&format!("k{key}"), limits[key], hits) }
            });
            let ask = Ask { checks: checks.collect(), together, deadline: None };
            prop_assert_eq!(counters.decide(&ask, now), model.decide(&ask, now));
            if gap > 45 {
                counters.sweep(now);
            }
        }
    }
}
