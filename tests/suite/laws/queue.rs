//! Buckets in which slots can be booked ahead.

use proptest::prelude::*;
use tollgate::base::time::{Span, Time};
use tollgate::limits::check::{Call, Hits, Verdict};
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};

use super::{Bench, limit};

fn limits() -> impl Strategy<Value = Limit> {
    let algorithm = prop::sample::select(&[Algorithm::TokenBucket, Algorithm::LeakyBucket][..]);
    let over_limit_hits = prop::sample::select(&OverLimitHits::ALL[..]).prop_map(Some);
    let wait = (1_000..20_000_000_u64).prop_map(|micros| Some(Span::from_micros(micros)));
    let unit = prop::sample::select(&[Unit::Second, Unit::Minute, Unit::Day][..]);
    (1..30_u32, unit, algorithm, over_limit_hits, wait, prop::option::of(1..20_u32)).prop_map(
        |(requests, unit, algorithm, over_limit_hits, max_wait, burst)| {
            limit(Terms {
                burst,
                max_wait,
                over_limit_hits,
                ..Terms::new(requests.into(), unit, algorithm)
            })
        },
    )
}

fn booking(hits: u64, book_ahead: Span) -> Call<'static> {
    Call { hits: Hits::Add(hits), holder: &[], book_ahead }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn booked_slots_keep_the_bound_in_order_within_max_wait(
        limit in limits(), calls in prop::collection::vec((0..3_000_000_u64, 1..4_u64, 0..5_u64), 0..60),
    ) {
        let mut bench = Bench::new(limit);
        let mut starts: Vec<(Time, u64)> = Vec::new();
        for (gap, hits, quarters) in calls {
            bench.pass(Span::from_micros(gap));
            let patience = Span::from_micros(limit.max_wait.as_micros() / 4 * quarters);
            let verdict = bench.ask(booking(hits, patience));
            // The timer goes by ticks.
            prop_assert!(verdict.start_after.as_micros() <= patience.as_micros() + limit.tick.span().as_micros());
            if verdict.over {
                prop_assert_eq!(verdict.start_after, Span::ZERO);
            } else {
                starts.push((bench.now.plus(verdict.start_after), hits));
            }
        }
        prop_assert!(starts.is_sorted_by_key(|(at, _)| *at), "who comes first goes first");
        for (index, (from, _)) in starts.iter().enumerate() {
            let mut sum = 0_u128;
            for (at, hits) in &starts[index..] {
                sum += u128::from(*hits);
                let elapsed = u128::from(at.since(*from).as_micros() + 2 * limit.tick.span().as_micros());
                let period = u128::from(limit.period.as_micros());
                prop_assert!(sum * period <= u128::from(limit.capacity) * period + elapsed * u128::from(limit.requests));
            }
        }
    }

    #[test]
    fn calls_are_booked_exactly_at_retry_after(
        limit in limits(), before in prop::collection::vec(0..1_000_000_u64, 0..60), hits in 1..30_u64, quarters in 0..5_u64,
    ) {
        let mut bench = Bench::new(limit);
        for gap in before {
            bench.pass(Span::from_micros(gap));
            bench.ask(booking(1, limit.max_wait));
        }
        let call = booking(hits, Span::from_micros(limit.max_wait.as_micros() / 4 * quarters));
        let Verdict { over: true, retry_after, .. } = bench.ask(call) else { return Ok(()) };
        match retry_after {
            None => prop_assert!(hits > limit.capacity),
            Some(wait) => {
                prop_assert!(wait > Span::ZERO && !bench.after(wait).ask(call).over);
                prop_assert!(bench.after(Span::from_micros(wait.as_micros() - 1)).ask(call).over);
            }
        }
    }
}

#[test]
fn answers_of_calls_that_come_at_once_are_evenly_spaced() {
    let max_wait = Some(Span::from_micros(500_000));
    let limit = limit(Terms { max_wait, ..Terms::new(10, Unit::Second, Algorithm::LeakyBucket) });
    let mut bench = Bench::new(limit);
    let verdicts: Vec<Verdict> = (0..8).map(|_| bench.ask(booking(1, limit.max_wait))).collect();
    let booked = verdicts.iter().filter(|verdict| !verdict.over);
    let starts: Vec<u64> = booked.map(|verdict| verdict.start_after.as_micros()).collect();
    assert_eq!(starts, [0, 100_000, 200_000, 300_000, 400_000, 500_000]);
    // A request without time to wait is rejected and books no slot.
    assert!(bench.ask(Hits::Add(1)).over);
    assert_eq!(bench.look().used, 6);
}
