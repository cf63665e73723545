//! What an operator grants: of an exhausted counter exactly so many hits pass afterwards.

use proptest::prelude::*;
use tollgate::base::time::Span;
use tollgate::limits::algorithm::Counter;
use tollgate::limits::check::{Call, Hits};
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};

use super::{Bench, limit};

fn limits() -> impl Strategy<Value = Limit> {
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];
    let options = (
        prop::option::of(1..40_u32),
        prop::option::of(1..12_u32),
        prop::sample::select(&OverLimitHits::ALL[..]),
    );
    let unit = prop::sample::select(&[Unit::Second, Unit::Minute, Unit::Day][..]);
    (1..40_u32, unit, prop::sample::select(algorithms.to_vec()), options).prop_map(
        |(requests, unit, algorithm, (burst, buckets, over_limit_hits))| {
            limit(Terms {
                burst: burst.filter(|_| algorithm.is_bucket()),
                buckets: buckets.filter(|_| algorithm == Algorithm::SlidingWindow),
                over_limit_hits: Some(over_limit_hits),
                ..Terms::new(requests.into(), unit, algorithm)
            })
        },
    )
}

impl Bench {
    fn grant(&mut self, hits: u64) {
        let refund = Call::from(Hits::Refund(hits));
        let counter = std::mem::take(&mut self.counter);
        self.counter = Counter::grant(counter, &self.limit, self.now, refund).0;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_048))]

    #[test]
    fn exactly_the_granted_hits_pass_of_an_exhausted_counter(
        limit in limits(), calls in prop::collection::vec((0..300_u64, 1..20_u64), 0..20), share in 0..256_u64, more in 0..5_u64,
    ) {
        let mut bench = Bench::new(limit);
        for (gap, hits) in calls {
            // In 256ths of a period.
            bench.pass(Span::from_micros(limit.period.as_micros() / 256 * gap));
            bench.ask(Hits::Add(hits));
        }
        while !bench.ask(Hits::Add(1)).over {}
        bench.ask(Hits::Add(1 + more));
        let capacity = limit.capacity;
        let granted = 1 + (capacity - 1) * share / 255;
        bench.grant(granted);
        prop_assert_eq!(bench.look().remaining, granted);
        for hit in 0..granted {
            prop_assert!(!bench.ask(Hits::Add(1)).over, "hit {} of {}", hit, granted);
        }
        prop_assert!(bench.ask(Hits::Add(1)).over);
    }

    #[test]
    fn a_grant_gives_no_more_back_than_was_used(limit in limits(), used in 0..60_u64, granted in 1..60_u64) {
        let mut bench = Bench::new(limit);
        bench.ask(Hits::Add(used.max(1)));
        let before = bench.look();
        bench.grant(granted);
        let expected = before.used.min(limit.capacity).saturating_sub(granted);
        prop_assert_eq!(bench.look().used, expected);
    }
}
