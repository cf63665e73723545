//! Limits on what is held at once know their holders by name.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate::base::time::{Span, Time};
use tollgate::limits::check::{Call, Hits, Verdict};
use tollgate::limits::{Algorithm, Limit, Terms, Unit};

use super::Bench;

const LEASE: Span = Span::from_secs(30);

/// What a caller of that name does, and how many µs after the one before.
type Act = (u64, u8, Doing);

#[derive(Debug, Clone, Copy)]
enum Doing {
    Take,
    GiveBack,
    Look,
}

fn limit(requests: u32) -> Limit {
    let lease = Some(LEASE);
    super::limit(Terms {
        lease,
        ..Terms::new(requests.into(), Unit::Second, Algorithm::Concurrency)
    })
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let lease = LEASE.as_micros();
    let gap = prop_oneof![Just(0), 0..lease, (lease - 1..=lease + 1), 0..3_u64];
    let doing =
        prop_oneof![6 => Just(Doing::Take), 3 => Just(Doing::GiveBack), 1 => Just(Doing::Look)];
    prop::collection::vec((gap, 0..6_u8, doing), 0..60)
}

fn act(bench: &mut Bench, name: u8, doing: Doing) -> Verdict {
    let hits = match doing {
        Doing::Take => Hits::Add(1),
        Doing::GiveBack => Hits::Refund(1),
        Doing::Look => Hits::Peek,
    };
    bench.ask(Call { hits, holder: &[name], ..Call::PEEK })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn it_is_a_set_of_names_with_leases(requests in 0..5_u32, acts in acts()) {
        let mut bench = Bench::new(limit(requests));
        let mut holders: BTreeMap<u8, Time> = BTreeMap::new();
        for (gap, name, doing) in acts {
            bench.pass(Span::from_micros(gap));
            holders.retain(|_, until| *until > bench.now);
            let verdict = act(&mut bench, name, doing);
            let has_room = holders.len() < requests as usize || holders.contains_key(&name);
            match doing {
                Doing::Take if has_room => _ = holders.insert(name, bench.now.plus(LEASE)),
                Doing::GiveBack => _ = holders.remove(&name),
                Doing::Take | Doing::Look => {}
            }
            prop_assert!(holders.len() <= requests as usize);
            prop_assert_eq!(verdict.over, matches!(doing, Doing::Take) && !has_room);
            prop_assert_eq!((verdict.used, verdict.remaining), (holders.len() as u64, u64::from(requests) - holders.len() as u64));
            let last = holders.values().max().map_or(Span::ZERO, |until| until.since(bench.now));
            prop_assert!(requests == 0 || verdict.reset_after == last);
            if verdict.over && requests > 0 {
                let first = holders.values().min().map(|until| until.since(bench.now));
                prop_assert_eq!(verdict.retry_after, first, "when the first lease runs out");
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_admits_nobody_and_holds_at_most_a_lease(
        requests in 1..5_u32, acts in acts(), back in 0..7_200_000_000_u64,
    ) {
        let mut bench = Bench::new(limit(requests));
        for (gap, name, doing) in acts {
            bench.pass(Span::from_micros(gap));
            act(&mut bench, name, doing);
        }
        let earlier = Bench { now: Time::from_micros(bench.now.as_micros() - back), ..bench.clone() };
        prop_assert!(earlier.look().remaining <= bench.look().remaining);
        prop_assert!(earlier.look().reset_after <= LEASE);
    }
}

#[test]
fn a_name_given_back_twice_frees_one_place_and_hits_do_not_matter() {
    let mut bench = Bench::new(limit(3));
    for name in 0..3 {
        assert!(!bench.ask(Call { hits: Hits::Add(7), holder: &[name], ..Call::PEEK }).over);
    }
    assert!(act(&mut bench, 3, Doing::Take).over);
    for _ in 0..2 {
        assert_eq!(bench.ask(Call { hits: Hits::Refund(5), holder: &[0], ..Call::PEEK }).used, 2);
    }
    assert!(!act(&mut bench, 3, Doing::Take).over && act(&mut bench, 0, Doing::Take).over);
    // A holder that was rejected releases a slot it does not have.
    assert_eq!(act(&mut bench, 9, Doing::GiveBack).used, 3);
}

#[test]
fn a_lowered_limit_keeps_its_holders_and_reports_when_a_slot_is_free() {
    let mut bench = Bench::new(limit(4));
    for name in 0..4 {
        assert!(!act(&mut bench, name, Doing::Take).over);
        bench.pass(Span::from_secs(1));
    }
    bench.limit = limit(2);
    assert!(!act(&mut bench, 3, Doing::Take).over, "it has its place, and a new lease");
    assert!(bench.look().over);
    let rejected = act(&mut bench, 5, Doing::Take);
    assert!(rejected.over);
    // Three of the four have to go: the third of them came two seconds ago.
    assert_eq!(rejected.retry_after, Some(Span::from_secs(28)));
    bench.pass(Span::from_secs(28));
    assert!(!act(&mut bench, 5, Doing::Take).over);
}
