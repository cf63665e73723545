//! What each algorithm promises its users, in pure Rust: no clock, no store, no server.
//!
//! Two implementations of one algorithm can agree and both be wrong; these say what right is. Gaps
//! between calls are drawn around the edges, where mistakes are: a period less one, a period, a
//! period and one, one tick.

mod grants;
mod holders;
mod queue;

use std::ops::RangeInclusive;

use proptest::prelude::*;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::{Counter, decide_all_or_nothing};
use tollgate::limits::check::{Call, Check, Hits, Key, Verdict};
use tollgate::limits::{Algorithm, EXACT_MAX, Limit, OverLimitHits, Terms, Unit, Windows};
use tollgate::rules::config::calendar::utc_months;

/// 2023-11-14, which is on no edge of any unit.
const START: Time = Time::from_micros(1_700_000_000_123_456);

/// One counter and the time, so that a law reads as a sentence.
#[derive(Debug, Clone)]
struct Bench {
    limit: Limit,
    counter: Counter,
    now: Time,
}

impl Bench {
    fn new(limit: Limit) -> Self {
        Self { limit, counter: Counter::new(&limit), now: START }
    }

    fn ask<'c>(&mut self, call: impl Into<Call<'c>>) -> Verdict {
        let (counter, verdict) =
            std::mem::take(&mut self.counter).decide(&self.limit, self.now, call);
        self.counter = counter;
        verdict
    }

    fn look(&self) -> Verdict {
        self.clone().ask(Hits::Peek)
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    fn after(&self, span: Span) -> Self {
        Self { now: self.now.plus(span), ..self.clone() }
    }

    /// Hits of one at this time that pass before the first that does not.
    fn admitted(&self) -> u64 {
        let mut bench = self.clone();
        (0..=EXACT_MAX).find(|_| bench.ask(Hits::Add(1)).over).expect("every limit is reached")
    }

    /// The hits admitted in a time in which one is sent as soon as it fits.
    fn under_pressure(&mut self, time: Span) -> u64 {
        let end = self.now.plus(time);
        let mut passed = 0;
        while self.now < end {
            match self.ask(Hits::Add(1)) {
                Verdict { over: false, .. } => passed += 1,
                Verdict { retry_after, .. } => {
                    self.pass(retry_after.expect("one hit passes some time"));
                }
            }
        }
        passed
    }
}

/// A call, and how long after the one before it comes.
#[derive(Debug, Clone, Copy)]
struct Later {
    gap: Gap,
    hits: Hits,
}

#[derive(Debug, Clone, Copy)]
enum Gap {
    Micros(u64),
    /// In 256ths of a period, plus or minus microseconds.
    AroundPeriod(u64, i64),
}

impl Gap {
    fn span(self, limit: &Limit) -> Span {
        match self {
            Self::Micros(micros) => Span::from_micros(micros),
            Self::AroundPeriod(parts, micros) => Span::from_micros(
                (limit.period.as_micros() / 256 * parts).saturating_add_signed(micros),
            ),
        }
    }
}

fn limits(algorithm: Algorithm, requests: RangeInclusive<u32>) -> impl Strategy<Value = Limit> {
    limits_in(algorithm, None, requests)
}

/// Sliding windows with this number of sub-windows.
fn cut_limits(requests: RangeInclusive<u32>) -> impl Strategy<Value = Limit> {
    (1..=12_u32).prop_flat_map(move |buckets| {
        limits_in(Algorithm::SlidingWindow, Some(buckets), requests.clone())
    })
}

fn limits_in(
    algorithm: Algorithm,
    buckets: Option<u32>,
    requests: RangeInclusive<u32>,
) -> impl Strategy<Value = Limit> {
    let over_limit_hits =
        prop_oneof![Just(None), Just(Some(OverLimitHits::Count)), Just(Some(OverLimitHits::Drop))];
    let unit = prop::sample::select(&Unit::ALL[..]);
    let burst = prop_oneof![Just(None), (1..40_u32).prop_map(Some)];
    let period = prop_oneof![
        3 => (unit, 1..8_u32).prop_map(|(unit, unit_multiplier)| (unit, unit_multiplier, Windows::Aligned)),
        1 => Just((Unit::Month, 1, utc_months())),
    ];
    (requests, period, burst, over_limit_hits).prop_map(
        move |(requests, (unit, unit_multiplier, windows), burst, over_limit_hits)| {
            let burst = burst.filter(|_| algorithm.is_bucket());
            limit(Terms {
                unit_multiplier,
                windows,
                burst,
                buckets,
                over_limit_hits,
                ..Terms::new(requests.into(), unit, algorithm)
            })
        },
    )
}

/// Any but those that know their holders by name, whose laws are below.
fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        limits(Algorithm::FixedWindow, 0..=30),
        limits(Algorithm::SlidingWindow, 0..=30),
        cut_limits(0..=30),
        limits(Algorithm::SlidingLog, 0..=30),
        limits(Algorithm::TokenBucket, 0..=30),
        limits(Algorithm::LeakyBucket, 0..=30),
    ]
}

/// How long it takes at most until a counter is as if untouched.
fn fill(limit: &Limit) -> Span {
    match limit.algorithm {
        Algorithm::FixedWindow if limit.windows == utc_months() => Span::from_secs(31 * 86_400),
        Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::Concurrency => limit.period,
        Algorithm::SlidingWindow if limit.buckets > 0 => {
            times(limit.sub_window(), u64::from(limit.buckets) + 1)
        }
        Algorithm::SlidingWindow => times(limit.period, 2),
        // From the deepest debt it takes two bursts, from anywhere else one.
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let credits = 2 * limit.capacity * limit.period_ticks();
            times(limit.tick.span(), credits.div_ceil(limit.requests.max(1)) + 1).max(limit.period)
        }
    }
}

fn limit(terms: Terms) -> Limit {
    Limit::new(&terms).expect("a limit")
}

fn times(span: Span, count: u64) -> Span {
    Span::from_micros(span.as_micros() * count)
}

fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        Just(Gap::Micros(0)),
        (0..5_u64).prop_map(Gap::Micros),
        (0..4_000_000_u64).prop_map(Gap::Micros),
        (0..600_u64, -2..3_i64).prop_map(|(parts, micros)| Gap::AroundPeriod(parts, micros)),
        (prop::sample::select(&[256_u64, 512][..]), -2..3_i64)
            .prop_map(|(parts, micros)| Gap::AroundPeriod(parts, micros)),
    ]
}

fn hits() -> impl Strategy<Value = Hits> {
    prop_oneof![
        6 => Just(Hits::Add(1)),
        3 => (1..12_u64).prop_map(Hits::Add),
        1 => prop_oneof![Just(u64::MAX), Just(u64::from(u32::MAX))].prop_map(Hits::Add),
        1 => Just(Hits::Peek),
        1 => (1..6_u64).prop_map(Hits::Refund),
        1 => Just(Hits::Refund(u64::MAX)),
    ]
}

fn history() -> impl Strategy<Value = Vec<Later>> {
    prop::collection::vec((gaps(), hits()).prop_map(|(gap, hits)| Later { gap, hits }), 0..40)
}

/// The same without give-backs: who returns hits is not limited by what it took.
fn one_way_history() -> impl Strategy<Value = Vec<Later>> {
    history().prop_map(|mut calls| {
        calls.retain(|call| !matches!(call.hits, Hits::Refund(_)));
        calls
    })
}

fn played(limit: Limit, calls: &[Later]) -> Bench {
    let mut bench = Bench::new(limit);
    for call in calls {
        bench.pass(call.gap.span(&limit));
        bench.ask(call.hits);
    }
    bench
}

/// When each hit of a history passed.
fn admitted(limit: Limit, calls: &[Later]) -> Vec<(Time, u64)> {
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

/// The most hits that passed within a period, wherever it begins.
fn most_in_any_period(limit: &Limit, passed: &[(Time, u64)]) -> u64 {
    let periods = passed.iter().enumerate().map(|(index, (from, _))| {
        let within = passed[index..].iter().take_while(|(at, _)| at.since(*from) < limit.period);
        within.map(|(_, hits)| hits).sum()
    });
    periods.max().unwrap_or(0)
}

/// That limit, whose over-limit hits change nothing.
fn dropping_too(like: &Limit) -> Limit {
    let seconds = u32::try_from(like.period.ceil_secs()).expect("a period of seconds");
    limit(Terms {
        unit_multiplier: seconds,
        buckets: Some(like.buckets).filter(|&buckets| buckets > 0),
        over_limit_hits: Some(OverLimitHits::Drop),
        ..Terms::new(like.requests, Unit::Second, like.algorithm)
    })
}

fn buckets(requests: RangeInclusive<u32>) -> impl Strategy<Value = Limit> {
    prop_oneof![
        limits(Algorithm::TokenBucket, requests.clone()),
        limits(Algorithm::LeakyBucket, requests)
    ]
}

/// A limit whose over-limit hits change nothing.
fn dropping(limit: &Limit) -> bool {
    limit.over_limit_hits == OverLimitHits::Drop
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_remains_passes_and_not_one_more(limit in any_limit(), calls in history()) {
        let bench = played(limit, &calls);
        prop_assert_eq!(bench.admitted(), bench.look().remaining);
    }

    #[test]
    fn calls_pass_exactly_at_retry_after(
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
                None => prop_assert!(hits > limit.capacity),
            }
        } else {
            prop_assert_eq!(verdict.retry_after, None);
        }
    }

    #[test]
    fn at_reset_after_the_counter_is_as_if_untouched(limit in any_limit(), calls in history()) {
        let bench = played(limit, &calls);
        let later = bench.after(bench.look().reset_after);
        prop_assert_eq!(later.admitted(), limit.capacity);
        prop_assert_eq!(later.look().used, 0);
    }

    #[test]
    fn a_look_changes_nothing(limit in any_limit(), calls in history(), hits in hits(), gap in gaps()) {
        let mut looked = played(limit, &calls);
        let mut other = played(limit, &calls);
        looked.ask(Hits::Peek);
        for bench in [&mut looked, &mut other] {
            bench.pass(gap.span(&limit));
        }
        prop_assert_eq!(looked.ask(hits), other.ask(hits));
    }

    #[test]
    fn a_rejected_call_changes_nothing_where_over_limit_hits_drop(
        limit in any_limit().prop_filter("drops", dropping), calls in history(), hits in 1..50_u64, gap in gaps(), then in hits(),
    ) {
        let mut rejected = played(limit, &calls);
        let mut other = played(limit, &calls);
        prop_assume!(rejected.ask(Hits::Add(hits)).over);
        for bench in [&mut rejected, &mut other] {
            bench.pass(gap.span(&limit));
        }
        prop_assert_eq!(rejected.ask(then), other.ask(then));
    }

    #[test]
    fn a_rejected_call_costs_exactly_its_hits_where_they_count(
        limit in any_limit().prop_filter("counts", |limit| !dropping(limit)), calls in one_way_history(), hits in 1..50_u64,
    ) {
        let mut bench = played(limit, &calls);
        let before = bench.look().used;
        let verdict = bench.ask(Hits::Add(hits));
        prop_assume!(verdict.over);
        let used = if limit.algorithm.is_bucket() {
            // A bucket is never deeper in debt than one burst.
            (before + hits).min(2 * limit.capacity)
        } else {
            before + hits
        };
        prop_assert_eq!(verdict.used, used);
    }

    #[test]
    fn given_back_hits_never_lift_anyone_above_capacity(limit in any_limit(), calls in history(), hits in 1..u64::MAX) {
        let mut bench = played(limit, &calls);
        let before = bench.look();
        let verdict = bench.ask(Hits::Refund(hits));
        prop_assert!(verdict.remaining <= limit.capacity);
        prop_assert!(verdict.remaining >= before.remaining);
        prop_assert!(bench.admitted() <= limit.capacity);
        prop_assert!(before.used - verdict.used <= hits);
    }

    #[test]
    fn what_is_taken_and_given_back_was_never_there(limit in any_limit(), calls in history(), hits in 1..30_u64) {
        let mut bench = played(limit, &calls);
        let before = bench.look();
        prop_assume!(!bench.ask(Hits::Add(hits)).over);
        let after = bench.ask(Hits::Refund(hits));
        prop_assert_eq!((after.used, after.remaining), (before.used, before.remaining));
    }

    #[test]
    fn windows_admit_at_most_their_requests_each_and_twice_that_in_any_period(
        limit in prop_oneof![limits(Algorithm::FixedWindow, 0..=30), limits(Algorithm::SlidingWindow, 0..=30)], calls in one_way_history(),
    ) {
        let mut windows = std::collections::HashMap::new();
        let passed = admitted(limit, &calls);
        for (at, hits) in &passed {
            *windows.entry(limit.window(*at).start).or_insert(0) += hits;
        }
        prop_assert!(windows.values().all(|&hits| hits <= limit.requests), "{windows:?}");
        // 30 days can begin in January and end in March.
        let windows_touched = if limit.windows == utc_months() { 3 } else { 2 };
        prop_assert!(most_in_any_period(&limit, &passed) <= windows_touched * limit.requests);
    }

    #[test]
    fn a_sliding_window_admits_less_than_twice_its_requests_in_any_period(
        limit in limits(Algorithm::SlidingWindow, 1..=30), calls in one_way_history(),
    ) {
        prop_assert!(most_in_any_period(&limit, &admitted(limit, &calls)) < 2 * limit.requests);
    }

    #[test]
    fn logs_and_cut_windows_admit_at_most_their_requests_in_any_period(
        limit in prop_oneof![limits(Algorithm::SlidingLog, 0..=30), cut_limits(0..=30)], calls in one_way_history(),
    ) {
        prop_assert!(most_in_any_period(&limit, &admitted(limit, &calls)) <= limit.requests);
    }

    #[test]
    fn logs_admit_all_under_pressure_and_cut_windows_lose_one_part(
        limit in prop_oneof![limits(Algorithm::SlidingLog, 1..=30), cut_limits(1..=30)], calls in one_way_history(),
    ) {
        let mut bench = played(dropping_too(&limit), &calls);
        // Whatever was before has left.
        bench.pass(fill(&limit));
        let passed = u128::from(bench.under_pressure(times(limit.period, 20)));
        let requests = u128::from(limit.requests);
        let period = u128::from(limit.period.as_micros());
        let again_after = if limit.buckets > 0 { u128::from(limit.sub_window().as_micros()) * u128::from(limit.buckets + 1) } else { period };
        prop_assert!(passed * again_after >= requests * 20 * period, "{passed}");
    }

    #[test]
    fn a_sliding_window_admits_nearly_all_of_what_comes_evenly_at_its_rate(limit in limits(Algorithm::SlidingWindow, 1..=30)) {
        let mut bench = Bench::new(dropping_too(&limit));
        let requests = limit.requests;
        let mut passed = 0;
        for _ in 0..20 * requests {
            passed += u32::from(!bench.ask(Hits::Add(1)).over);
            bench.pass(Span::from_micros(limit.period.as_micros().div_ceil(requests)));
        }
        prop_assert!(u64::from(passed) >= 20 * (requests - 1), "all but one a window, not {passed} of {}", 20 * requests);
    }

    #[test]
    fn a_bucket_admits_at_most_its_burst_and_its_rate_in_any_interval(
        limit in buckets(0..=30), calls in one_way_history(),
    ) {
        let passed = admitted(limit, &calls);
        for (index, (from, _)) in passed.iter().enumerate() {
            let mut sum = 0_u128;
            for (at, hits) in &passed[index..] {
                sum += u128::from(*hits);
                // hits ≤ burst + t·requests/period, without the division; a state in ticks may be early by one of them.
                let elapsed = u128::from(at.since(*from).as_micros() + limit.tick.span().as_micros() - 1);
                let period = u128::from(limit.period.as_micros());
                prop_assert!(sum * period <= u128::from(limit.capacity) * period + elapsed * u128::from(limit.requests));
            }
        }
    }

    #[test]
    fn an_idle_bucket_saves_up_to_its_burst_and_no_more(limit in buckets(1..=30), calls in history()) {
        let bench = played(limit, &calls);
        // From the deepest debt it takes up to 2 × 40 × 7 of them.
        let years = Span::from_secs(600 * 365 * 86_400);
        prop_assert_eq!(bench.after(years).admitted(), limit.capacity);
    }

    #[test]
    fn steady_traffic_at_the_rate_passes_whole(requests in 1..30_u32, unit in prop::sample::select(&Unit::ALL[..])) {
        let limit = limit(Terms { burst: Some(1), ..Terms::new(requests.into(), unit, Algorithm::TokenBucket) });
        let mut bench = Bench::new(limit);
        for _ in 0..200 {
            prop_assert!(!bench.ask(Hits::Add(1)).over);
            bench.pass(Span::from_micros(limit.period.as_micros().div_ceil(u64::from(requests))));
        }
    }

    #[test]
    fn a_clock_that_goes_back_admits_nothing_and_holds_at_most_a_fill(
        limit in any_limit(), calls in one_way_history(), back in 0..7_200_000_000_u64,
    ) {
        let bench = played(limit, &calls);
        let earlier = Bench { now: Time::from_micros(bench.now.as_micros() - back), ..bench.clone() };
        prop_assert!(earlier.look().remaining <= bench.look().remaining, "not sooner");
        prop_assert!(earlier.look().reset_after <= fill(&limit), "not later");
    }

    #[test]
    fn a_clock_that_jumps_on_is_time_that_passed(limit in any_limit(), calls in one_way_history(), on in 0..7_200_000_000_u64) {
        // The most that it admits in addition is what is refilled in that time, up to the whole limit.
        let later = played(limit, &calls).after(Span::from_micros(on));
        prop_assert!(later.admitted() <= limit.capacity);
        prop_assert!(later.look().reset_after <= fill(&limit));
    }

    #[test]
    fn together_is_all_or_nothing(
        limits in prop::collection::vec(any_limit(), 1..5), calls in history(), hits in prop::collection::vec(hits(), 5),
        vetoes in prop::collection::vec(any::<bool>(), 5),
    ) {
        let mut counters: Vec<Counter> = limits.iter().map(|limit| played(*limit, &calls).counter).collect();
        let before = counters.clone();
        let checks: Vec<Check> = limits.iter().zip(&hits).zip(&vetoes)
            .map(|((limit, hits), enforcing)| Check { enforcing: *enforcing, ..Check::new(Key::from("k"), *limit, *hits) }).collect();
        let slots: Vec<usize> = (0..checks.len()).collect();
        let now = START.plus(Span::from_secs(3));
        let verdicts = decide_all_or_nothing(&checks, &slots, &mut counters, now);
        let alone: Vec<_> = checks.iter().zip(&before).map(|(check, counter)| counter.clone().decide(&check.limit, now, check.hits)).collect();
        let blocked = checks.iter().zip(&alone).any(|(check, (_, verdict))| check.enforcing && verdict.over);
        for (index, (check, (counter, verdict))) in checks.iter().zip(&alone).enumerate() {
            prop_assert_eq!(verdicts[index].over, verdict.over || (blocked && before[index].clone().decide(&check.limit, now, Hits::Peek).1.over));
            if !blocked {
                prop_assert_eq!(&counters[index], counter);
                prop_assert_eq!(verdicts[index], *verdict);
            } else if verdict.over && match check.hits {
                Hits::Peek => false,
                Hits::Refund(_) => true,
                Hits::Add(_) => check.enforcing && !Counter::charge(&check.limit, check.hits).drops,
            } {
                prop_assert_eq!(&counters[index], counter);
            } else {
                let looked = before[index].clone().decide(&check.limit, now, Hits::Peek).0;
                let stood_still = counters[index] == before[index] || counters[index] == looked;
                prop_assert!(stood_still, "{:?}", counters[index]);
            }
        }
    }
}

#[test]
fn a_limit_of_zero_refuses_every_hit_and_lets_looks_pass() {
    for algorithm in Algorithm::ALL {
        let lease = (algorithm == Algorithm::Concurrency).then_some(Span::from_secs(60));
        let terms = Terms { lease, ..Terms::new(0, Unit::Minute, algorithm) };
        let mut bench = Bench::new(limit(terms));
        assert!(!bench.ask(Hits::Peek).over, "{algorithm}");
        for _ in 0..3 {
            let verdict = bench.ask(Hits::Add(1));
            assert!(
                verdict.over && verdict.retry_after.is_none() && verdict.remaining == 0,
                "{algorithm}: {verdict:?}"
            );
        }
    }
}

#[test]
fn a_key_that_comes_twice_sees_what_it_did_first() {
    let limit = limit(Terms::new(3, Unit::Hour, Algorithm::FixedWindow));
    let check = Check::new(Key::from("k"), limit, Hits::Add(2));
    let mut counters = [Counter::new(&limit)];
    let verdicts = decide_all_or_nothing(&[check.clone(), check], &[0, 0], &mut counters, START);
    assert_eq!([verdicts[0].over, verdicts[1].over], [false, true]);
    let (_, look) = counters[0].clone().decide(&limit, START, Hits::Peek);
    let why = "the first was a peek in the end, and the second counts its over-limit hits";
    assert_eq!(look.used, 2, "{why}");
}

/// Counters with this usage, charged in one request with a check that rejects everything.
fn blocked<const N: usize>(of: Limit, used: u64, hits: [Hits; N]) -> (Counter, Vec<Verdict>) {
    let nothing = limit(Terms::new(0, Unit::Hour, Algorithm::FixedWindow));
    let check =
        |limit, hits, enforcing| Check { enforcing, ..Check::new(Key::from("k"), limit, hits) };
    let mut checks: Vec<Check> = hits.into_iter().map(|hits| check(of, hits, false)).collect();
    checks.push(check(nothing, Hits::Add(1), true));
    let price = if of.algorithm.is_bucket() { of.period_ticks() } else { 1 };
    let mut counters = [Counter::of(&of, START, used * price), Counter::new(&nothing)];
    let slots: Vec<usize> = (0..=N).map(|index| usize::from(index == N)).collect();
    let verdicts = decide_all_or_nothing(&checks, &slots, &mut counters, START);
    let [counter, _] = counters;
    (counter, verdicts.into_vec())
}

#[test]
fn a_bucket_that_starts_to_drop_over_limit_hits_keeps_its_debt() {
    let of = |over_limit_hits| {
        let over_limit_hits = Some(over_limit_hits);
        limit(Terms { over_limit_hits, ..Terms::new(3, Unit::Hour, Algorithm::TokenBucket) })
    };
    let mut bench = Bench::new(of(OverLimitHits::Count));
    bench.ask(Hits::Add(4));
    assert_eq!(bench.ask(Hits::Add(4)).used, 6);
    bench.limit = of(OverLimitHits::Drop);
    assert_eq!(bench.look().used, 6);
}

#[test]
fn refunds_of_over_limit_counters_hold_if_a_neighbor_rejects() {
    // All that can be over: a bucket that drops over-limit hits cannot.
    let kinds = [
        (Algorithm::FixedWindow, OverLimitHits::Count),
        (Algorithm::FixedWindow, OverLimitHits::Drop),
        (Algorithm::SlidingWindow, OverLimitHits::Count),
        (Algorithm::SlidingLog, OverLimitHits::Count),
        (Algorithm::TokenBucket, OverLimitHits::Count),
    ];
    for (algorithm, over_limit_hits) in kinds {
        let over_limit_hits = Some(over_limit_hits);
        let limit = limit(Terms { over_limit_hits, ..Terms::new(3, Unit::Hour, algorithm) });
        let (counter, verdicts) = blocked(limit, 6, [Hits::Refund(2)]);
        let (_, look) = counter.decide(&limit, START, Hits::Peek);
        assert_eq!((verdicts[0].over, verdicts[0].used, look.used), (true, 4, 4), "{limit}");
    }
}

#[test]
fn retry_after_is_of_the_checks_own_hits_even_if_a_neighbour_refuses() {
    let limit = limit(Terms {
        unit_multiplier: 2,
        over_limit_hits: Some(OverLimitHits::Count),
        ..Terms::new(2, Unit::Hour, Algorithm::TokenBucket)
    });
    // Three of two are used. The refund would free a slot, but another check rejects.
    let (_, verdicts) = blocked(limit, 3, [Hits::Refund(2), Hits::Add(1)]);
    let retries: Vec<_> = verdicts.iter().map(|verdict| verdict.retry_after).collect();
    assert_eq!(retries, [Some(Span::from_secs(3_600)), Some(Span::from_secs(7_200)), None]);
}
