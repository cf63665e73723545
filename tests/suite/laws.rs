//! What each algorithm promises its users, in pure Rust: no clock, no store, no server.
//!
//! Two implementations of one algorithm can agree and both be wrong; these say what right is. Gaps between calls are drawn around the
//! edges, where mistakes are: a period less one, a period, a period and one, one tick.

use proptest::prelude::*;
use tollgate::algorithm::{Counter, decide_together};
use tollgate::check::{Check, Hits, Key, Verdict};
use tollgate::limit::{Algorithm, EXACT_MAX, Limit, RefusedHits, Terms, Unit};
use tollgate::time::{Span, Time};

/// 2023-11-14, which is on no edge of any unit.
const START: Time = Time::from_micros(1_700_000_000_123_456);

/// One counter and the time, so that a law reads as a sentence.
#[derive(Debug, Clone, Copy)]
struct Bench {
    limit: Limit,
    counter: Counter,
    now: Time,
}

impl Bench {
    fn new(limit: Limit) -> Self {
        Self { limit, counter: Counter::untouched(limit.algorithm()), now: START }
    }

    fn ask(&mut self, hits: Hits) -> Verdict {
        let (counter, verdict) = self.counter.decide(&self.limit, self.now, hits);
        self.counter = counter;
        verdict
    }

    fn look(mut self) -> Verdict {
        self.ask(Hits::Look)
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    fn after(mut self, span: Span) -> Self {
        self.pass(span);
        self
    }

    /// Hits of one at this time that pass before the first that does not.
    fn room(mut self) -> u64 {
        (0..=EXACT_MAX).find(|_| self.ask(Hits::Add(1)).over).expect("every limit is reached")
    }
}

/// A call, and how long after the one before it comes.
#[derive(Debug, Clone, Copy)]
struct Call {
    gap: Gap,
    hits: Hits,
}

#[derive(Debug, Clone, Copy)]
enum Gap {
    Micros(u64),
    /// That many 256ths of a period, and so many microseconds more or less.
    AroundPeriod(u64, i64),
}

impl Gap {
    fn span(self, limit: &Limit) -> Span {
        match self {
            Self::Micros(micros) => Span::from_micros(micros),
            Self::AroundPeriod(parts, micros) => {
                Span::from_micros((limit.period().as_micros() / 256 * parts).saturating_add_signed(micros))
            }
        }
    }
}

fn limits(algorithm: Algorithm, requests: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = Limit> {
    let refused_hits = prop_oneof![Just(None), Just(Some(RefusedHits::Count)), Just(Some(RefusedHits::Drop))];
    let unit = prop::sample::select(&Unit::ALL[..]);
    let burst = prop_oneof![Just(None), (1..40_u32).prop_map(Some)];
    (requests, unit, 1..8_u32, burst, refused_hits).prop_map(move |(requests, unit, unit_multiplier, burst, refused_hits)| {
        let burst = burst.filter(|_| algorithm == Algorithm::TokenBucket);
        Limit::new(&Terms { unit_multiplier, burst, refused_hits, ..Terms::new(requests, unit, algorithm) }).expect("a limit")
    })
}

fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![limits(Algorithm::FixedWindow, 0..=30), limits(Algorithm::TokenBucket, 0..=30)]
}

fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        Just(Gap::Micros(0)),
        (0..5_u64).prop_map(Gap::Micros),
        (0..4_000_000_u64).prop_map(Gap::Micros),
        (0..600_u64, -2..3_i64).prop_map(|(parts, micros)| Gap::AroundPeriod(parts, micros)),
        (prop::sample::select(&[256_u64, 512][..]), -2..3_i64).prop_map(|(parts, micros)| Gap::AroundPeriod(parts, micros)),
    ]
}

fn hits() -> impl Strategy<Value = Hits> {
    prop_oneof![
        6 => Just(Hits::Add(1)),
        3 => (1..12_u64).prop_map(Hits::Add),
        1 => prop_oneof![Just(u64::MAX), Just(u64::from(u32::MAX))].prop_map(Hits::Add),
        1 => Just(Hits::Look),
        1 => (1..6_u64).prop_map(Hits::GiveBack),
        1 => Just(Hits::GiveBack(u64::MAX)),
    ]
}

fn history() -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec((gaps(), hits()).prop_map(|(gap, hits)| Call { gap, hits }), 0..40)
}

/// The same without give-backs: who returns hits is not limited by what it took.
fn one_way_history() -> impl Strategy<Value = Vec<Call>> {
    history().prop_map(|mut calls| {
        calls.retain(|call| !matches!(call.hits, Hits::GiveBack(_)));
        calls
    })
}

fn played(limit: Limit, calls: &[Call]) -> Bench {
    let mut bench = Bench::new(limit);
    for call in calls {
        bench.pass(call.gap.span(&limit));
        bench.ask(call.hits);
    }
    bench
}

/// When each hit of a history passed.
fn admitted(limit: Limit, calls: &[Call]) -> Vec<(Time, u64)> {
    let mut bench = Bench::new(limit);
    let mut passed = Vec::new();
    for call in calls {
        bench.pass(call.gap.span(&limit));
        if let (Hits::Add(hits), false) = (call.hits, bench.ask(call.hits).over) {
            passed.push((bench.now, hits));
        }
    }
    passed
}

/// A limit whose refusals change nothing.
fn dropping(limit: &Limit) -> bool {
    limit.refused_hits() == RefusedHits::Drop
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_remains_passes_and_not_one_more(limit in any_limit(), calls in history()) {
        let bench = played(limit, &calls);
        prop_assert_eq!(bench.room(), u64::from(bench.look().remaining));
    }

    #[test]
    fn after_a_refusal_the_same_call_passes_at_retry_after_and_not_a_tick_sooner(
        limit in any_limit(), calls in history(), hits in 1..50_u64,
    ) {
        let mut bench = played(limit, &calls);
        let verdict = bench.ask(Hits::Add(hits));
        if verdict.over {
            match verdict.retry_after {
                Some(wait) => {
                    prop_assert!(wait > Span::ZERO);
                    prop_assert!(!bench.after(wait).ask(Hits::Add(hits)).over, "at retry_after {:?}", wait);
                    let sooner = Span::from_micros(wait.as_micros() - 1);
                    prop_assert!(bench.after(sooner).ask(Hits::Add(hits)).over, "before retry_after {:?}", wait);
                }
                None => prop_assert!(hits > u64::from(limit.capacity())),
            }
        } else {
            prop_assert_eq!(verdict.retry_after, None);
        }
    }

    #[test]
    fn at_reset_after_the_counter_is_as_if_untouched(limit in any_limit(), calls in history()) {
        let bench = played(limit, &calls);
        let later = bench.after(bench.look().reset_after);
        prop_assert_eq!(later.room(), u64::from(limit.capacity()));
        prop_assert_eq!(later.look().used, 0);
    }

    #[test]
    fn a_look_changes_nothing(limit in any_limit(), calls in history(), hits in hits(), gap in gaps()) {
        let (mut looked, mut other) = (played(limit, &calls), played(limit, &calls));
        looked.ask(Hits::Look);
        for bench in [&mut looked, &mut other] {
            bench.pass(gap.span(&limit));
        }
        prop_assert_eq!(looked.ask(hits), other.ask(hits));
    }

    #[test]
    fn a_refused_call_changes_nothing_where_refused_hits_drop(
        limit in any_limit().prop_filter("drops", dropping), calls in history(), hits in 1..50_u64, gap in gaps(), then in hits(),
    ) {
        let (mut refused, mut other) = (played(limit, &calls), played(limit, &calls));
        prop_assume!(refused.ask(Hits::Add(hits)).over);
        for bench in [&mut refused, &mut other] {
            bench.pass(gap.span(&limit));
        }
        prop_assert_eq!(refused.ask(then), other.ask(then));
    }

    #[test]
    fn a_refused_call_costs_exactly_its_hits_where_they_count(
        limit in any_limit().prop_filter("counts", |limit| !dropping(limit)), calls in one_way_history(), hits in 1..50_u64,
    ) {
        let mut bench = played(limit, &calls);
        let before = bench.look().used;
        let verdict = bench.ask(Hits::Add(hits));
        prop_assume!(verdict.over);
        match limit.algorithm() {
            Algorithm::FixedWindow => prop_assert_eq!(verdict.used, before + hits),
            Algorithm::TokenBucket => {
                // A bucket is never deeper in debt than one burst, and one hit more than fits is as good as any number more.
                let capacity = u64::from(limit.capacity());
                prop_assert_eq!(verdict.used, (before + hits.min(capacity + 1)).min(2 * capacity));
            }
        }
    }

    #[test]
    fn given_back_hits_never_lift_anyone_above_capacity(limit in any_limit(), calls in history(), hits in 1..u64::MAX) {
        let mut bench = played(limit, &calls);
        let before = bench.look();
        let verdict = bench.ask(Hits::GiveBack(hits));
        prop_assert!(verdict.remaining <= limit.capacity());
        prop_assert!(verdict.remaining >= before.remaining);
        prop_assert!(bench.room() <= u64::from(limit.capacity()));
        prop_assert!(before.used - verdict.used <= hits);
    }

    #[test]
    fn what_is_taken_and_given_back_was_never_there(limit in any_limit(), calls in history(), hits in 1..30_u64) {
        let mut bench = played(limit, &calls);
        let before = bench.look();
        prop_assume!(!bench.ask(Hits::Add(hits)).over);
        let after = bench.ask(Hits::GiveBack(hits));
        prop_assert_eq!((after.used, after.remaining), (before.used, before.remaining));
    }

    #[test]
    fn a_fixed_window_admits_at_most_its_requests(limit in limits(Algorithm::FixedWindow, 0..=30), calls in one_way_history()) {
        let period = limit.period().as_micros();
        let mut windows = std::collections::HashMap::new();
        let passed = admitted(limit, &calls);
        for (at, hits) in &passed {
            *windows.entry(at.as_micros() / period).or_insert(0) += hits;
        }
        prop_assert!(windows.values().all(|&hits| hits <= u64::from(limit.requests())), "{windows:?}");
        for (index, (from, _)) in passed.iter().enumerate() {
            let within: u64 = passed[index..].iter().take_while(|(at, _)| at.since(*from) < limit.period()).map(|(_, hits)| hits).sum();
            prop_assert!(within <= 2 * u64::from(limit.requests()), "in any period");
        }
    }

    #[test]
    fn a_bucket_admits_at_most_its_burst_and_its_rate_in_any_interval(
        limit in limits(Algorithm::TokenBucket, 0..=30), calls in one_way_history(),
    ) {
        let passed = admitted(limit, &calls);
        for (index, (from, _)) in passed.iter().enumerate() {
            let mut sum = 0_u128;
            for (at, hits) in &passed[index..] {
                sum += u128::from(*hits);
                // hits ≤ burst + t·requests/period, without the division; a state in ticks may be early by one of them.
                let elapsed = u128::from(at.since(*from).as_micros() + limit.tick().span().as_micros() - 1);
                let period = u128::from(limit.period().as_micros());
                prop_assert!(sum * period <= u128::from(limit.capacity()) * period + elapsed * u128::from(limit.requests()));
            }
        }
    }

    #[test]
    fn an_idle_bucket_saves_up_to_its_burst_and_no_more(limit in limits(Algorithm::TokenBucket, 1..=30), calls in history()) {
        let bench = played(limit, &calls);
        // From the deepest debt it takes up to 2 × 40 × 7 of them.
        let years = Span::from_secs(600 * 365 * 86_400);
        prop_assert_eq!(bench.after(years).room(), u64::from(limit.capacity()));
    }

    #[test]
    fn steady_traffic_at_the_rate_passes_whole(requests in 1..30_u32, unit in prop::sample::select(&Unit::ALL[..])) {
        let terms = Terms { burst: Some(1), ..Terms::new(requests, unit, Algorithm::TokenBucket) };
        let limit = Limit::new(&terms).expect("a limit");
        let mut bench = Bench::new(limit);
        for _ in 0..200 {
            prop_assert!(!bench.ask(Hits::Add(1)).over);
            bench.pass(Span::from_micros(limit.period().as_micros().div_ceil(u64::from(requests))));
        }
    }

    #[test]
    fn a_clock_that_goes_back_lets_nobody_in_sooner_nor_out_later_than_one_fill(
        limit in any_limit(), calls in one_way_history(), back in 0..7_200_000_000_u64,
    ) {
        let bench = played(limit, &calls);
        let mut earlier = bench;
        earlier.now = Time::from_micros(bench.now.as_micros() - back);
        prop_assert!(earlier.look().remaining <= bench.look().remaining, "not sooner");
        // From the deepest debt it takes two bursts to be untouched again, from anywhere else one.
        let fill = match limit.algorithm() {
            Algorithm::FixedWindow => limit.period(),
            Algorithm::TokenBucket => {
                let credits = 2 * u64::from(limit.capacity()) * limit.period_ticks();
                let ticks = credits.div_ceil(u64::from(limit.requests()).max(1)) + 1;
                Span::from_micros(ticks * limit.tick().span().as_micros()).max(limit.period())
            }
        };
        prop_assert!(earlier.look().reset_after <= fill, "not later");
    }

    #[test]
    fn together_is_all_or_nothing(
        limits in prop::collection::vec(any_limit(), 1..5), calls in history(), hits in prop::collection::vec(hits(), 5),
        vetoes in prop::collection::vec(any::<bool>(), 5),
    ) {
        let mut counters: Vec<Counter> = limits.iter().map(|limit| played(*limit, &calls).counter).collect();
        let before = counters.clone();
        let checks: Vec<Check> = limits.iter().zip(&hits).zip(&vetoes)
            .map(|((limit, hits), veto)| Check { veto: *veto, ..Check::new(Key::from("k"), *limit, *hits) }).collect();
        let slots: Vec<usize> = (0..checks.len()).collect();
        let now = START.plus(Span::from_secs(3));
        let verdicts = decide_together(&checks, &slots, &mut counters, now);
        let alone: Vec<_> = checks.iter().zip(&before).map(|(check, counter)| counter.decide(&check.limit, now, check.hits)).collect();
        let vetoed = checks.iter().zip(&alone).any(|(check, (_, verdict))| check.veto && verdict.over);
        for (index, (check, (counter, verdict))) in checks.iter().zip(&alone).enumerate() {
            prop_assert_eq!(verdicts[index].over, verdict.over || (vetoed && before[index].decide(&check.limit, now, Hits::Look).1.over));
            if !vetoed {
                prop_assert_eq!(counters[index], *counter);
                prop_assert_eq!(verdicts[index], *verdict);
            } else if verdict.over && check.limit.refused_hits() == RefusedHits::Count {
                prop_assert_eq!(counters[index], *counter);
            } else {
                prop_assert_eq!(counters[index], before[index], "it stood still");
            }
        }
    }
}

/// The well-known check of a token bucket.
#[test]
fn a_bucket_of_ten_per_second_refuses_half_of_twenty_per_second() {
    let terms =
        Terms::new(10, Unit::Second, Algorithm::TokenBucket);
    let mut bench = Bench::new(Limit::new(&terms).expect("a limit"));
    let mut refused = 0;
    for _ in 0..10_000 {
        refused += u32::from(bench.ask(Hits::Add(1)).over);
        bench.pass(Span::from_micros(50_000));
    }
    assert_eq!(refused, 4_991, "half, less the nine that the full bucket of the start lets in beyond");
}

#[test]
fn a_limit_of_zero_refuses_every_hit_and_lets_looks_pass() {
    for algorithm in Algorithm::ALL {
        let terms = Terms::new(0, Unit::Minute, algorithm);
        let mut bench = Bench::new(Limit::new(&terms).expect("a limit"));
        assert!(!bench.ask(Hits::Look).over, "{algorithm}");
        for _ in 0..3 {
            let verdict = bench.ask(Hits::Add(1));
            assert!(verdict.over && verdict.retry_after.is_none() && verdict.remaining == 0, "{algorithm}: {verdict:?}");
        }
    }
}

#[test]
fn a_key_that_comes_twice_sees_what_it_did_first() {
    let terms =
        Terms::new(3, Unit::Hour, Algorithm::FixedWindow);
    let limit = Limit::new(&terms).expect("a limit");
    let check = Check::new(Key::from("k"), limit, Hits::Add(2));
    let mut counters = [Counter::untouched(Algorithm::FixedWindow)];
    let verdicts = decide_together(&[check.clone(), check], &[0, 0], &mut counters, START);
    assert_eq!([verdicts[0].over, verdicts[1].over], [false, true]);
    let (_, look) = counters[0].decide(&limit, START, Hits::Look);
    assert_eq!(look.used, 2, "the first only looked in the end, and the second counts what it was refused");
}

/// Counters of which so much is used, charged together with a neighbour that refuses everything.
fn vetoed<const N: usize>(limit: Limit, used: u64, hits: [Hits; N]) -> (Counter, Vec<Verdict>) {
    let nothing =
        Terms::new(0, Unit::Hour, Algorithm::FixedWindow);
    let nothing = Limit::new(&nothing).expect("a limit");
    let check = |limit, hits, veto| Check { veto, ..Check::new(Key::from("k"), limit, hits) };
    let mut checks: Vec<Check> = hits.into_iter().map(|hits| check(limit, hits, false)).collect();
    checks.push(check(nothing, Hits::Add(1), true));
    let price = if limit.algorithm() == Algorithm::FixedWindow { 1 } else { limit.period_ticks() };
    let mut counters = [Counter::spent(&limit, START, used * price), Counter::untouched(nothing.algorithm())];
    let slots: Vec<usize> = (0..=N).map(|index| usize::from(index == N)).collect();
    let verdicts = decide_together(&checks, &slots, &mut counters, START);
    (counters[0], verdicts.into_vec())
}

#[test]
fn a_bucket_whose_rule_drops_refused_hits_is_in_no_debt_whatever_the_rule_before_it_did() {
    let limit = |refused_hits| {
        let (unit, unit_multiplier, algorithm) = (Unit::Hour, 1, Algorithm::TokenBucket);
        Limit::new(&Terms { unit_multiplier, refused_hits: Some(refused_hits), ..Terms::new(3, unit, algorithm) })
            .expect("a limit")
    };
    let mut bench = Bench::new(limit(RefusedHits::Count));
    bench.ask(Hits::Add(4));
    assert_eq!(bench.ask(Hits::Add(4)).used, 6);
    bench.limit = limit(RefusedHits::Drop);
    assert_eq!(bench.look().used, 3);
}

#[test]
fn what_is_given_back_stays_so_where_it_still_is_over_even_if_a_neighbour_refuses() {
    // All that can be over: a bucket that drops refused hits cannot.
    let kinds = [
        (Algorithm::FixedWindow, RefusedHits::Count),
        (Algorithm::FixedWindow, RefusedHits::Drop),
        (Algorithm::TokenBucket, RefusedHits::Count),
    ];
    for (algorithm, refused_hits) in kinds {
        let terms = Terms { refused_hits: Some(refused_hits), ..Terms::new(3, Unit::Hour, algorithm) };
        let limit = Limit::new(&terms).expect("a limit");
        let (counter, verdicts) = vetoed(limit, 6, [Hits::GiveBack(2)]);
        let (_, look) = counter.decide(&limit, START, Hits::Look);
        assert_eq!((verdicts[0].over, verdicts[0].used, look.used), (true, 4, 4), "{limit}");
    }
}

#[test]
fn retry_after_is_of_the_checks_own_hits_even_if_a_neighbour_refuses() {
    let terms = Terms {
        requests: 2,
        unit: Unit::Hour,
        unit_multiplier: 2,
        algorithm: Algorithm::TokenBucket,
        burst: None,
        refused_hits: Some(RefusedHits::Count),
    };
    // Three of two are used. What is given back would make room, but a neighbour refuses.
    let (_, verdicts) = vetoed(Limit::new(&terms).expect("a limit"), 3, [Hits::GiveBack(2), Hits::Add(1)]);
    let retries: Vec<_> = verdicts.iter().map(|verdict| verdict.retry_after).collect();
    assert_eq!(retries, [Some(Span::from_secs(3_600)), Some(Span::from_secs(7_200)), None]);
}
