use super::*;
use crate::base::time::MICROS_PER_SECOND;
use crate::rules::config::calendar::utc_months;

fn bucket(unit: Unit, requests: u64, burst: u32) -> Result<Limit, LimitError> {
    let algorithm = Algorithm::TokenBucket;
    Limit::new(&Terms { burst: Some(burst), ..Terms::new(requests, unit, algorithm) })
}

#[test]
fn the_tick_is_the_finest_that_stays_exact() {
    let tick = |unit, burst| bucket(unit, 1, burst).expect("countable").tick;
    assert_eq!(tick(Unit::Second, u32::MAX), Tick::Micro);
    assert_eq!(tick(Unit::Day, 104_248), Tick::Micro);
    assert_eq!(tick(Unit::Day, 104_250), Tick::Milli);
    assert_eq!(tick(Unit::Day, u32::MAX), Tick::Second);
    assert_eq!(tick(Unit::Year, 285), Tick::Milli);
    assert_eq!(tick(Unit::Year, 284), Tick::Micro);
}

#[test]
fn inexact_limits_are_rejected_with_the_largest_exact_one() {
    let Err(LimitError::BurstTooLarge { burst_max, .. }) = bucket(Unit::Year, 1, u32::MAX) else {
        panic!("it fits")
    };
    assert_eq!(burst_max, 285_616_413);
    assert!(bucket(Unit::Year, 1, 285_616_413).is_ok());
}

fn ranked(replicas: u32, rank: u32) -> Share {
    Share::ranked(NonZeroU32::new(replicas).expect("there is one"), rank)
}

#[test]
fn shares_add_up_to_the_limit_or_to_one_each() {
    for (requests, replicas) in
        [(0, 3), (1, 3), (2, 5), (7, 3), (9, 3), (1_000, 7), (u32::MAX, 1_000)]
    {
        let whole = Limit::new(&Terms::new(requests.into(), Unit::Minute, Algorithm::FixedWindow))
            .expect("countable");
        let parts = (0..replicas).map(|rank| whole.share(ranked(replicas, rank)).requests);
        let all = if requests == 0 { 0 } else { requests.max(replicas) };
        assert_eq!(parts.sum::<u64>(), u64::from(all), "{requests} of {replicas}");
        let used = (0..replicas).map(|rank| ranked(replicas, rank).of_used(requests.into()));
        assert_eq!(used.sum::<u64>(), u64::from(requests), "{requests} of {replicas}");
    }
    let unknown = Share::one_of(NonZeroU32::new(4).expect("four is not zero"));
    assert_eq!((unknown.of_allowed(10), unknown.of_used(10)), (2, 3));
}

#[test]
fn shares_of_a_bucket_keep_its_rate_and_divide_its_depth() {
    let whole = bucket(Unit::Second, 1, 10).expect("countable");
    let parts = [0, 1, 2].map(|rank| whole.share(ranked(3, rank)));
    assert_eq!(
        parts.map(|part| (part.capacity, part.requests, part.period)),
        [(4, 1, Span::from_secs(3)), (3, 1, Span::from_secs(3)), (3, 1, Span::from_secs(3)),]
    );
    // The most that any limit can have, and more replicas than there ever are: what cannot be
    // made slower is divided.
    let deepest = bucket(Unit::Year, u32::MAX.into(), 285_000_000)
        .expect("countable")
        .share(Share::one_of(NonZeroU32::MAX));
    assert_eq!((deepest.capacity, deepest.requests, deepest.period), (1, 1, Unit::Year.span()));
}

#[test]
fn a_period_of_one_unit_has_that_unit() {
    assert_eq!(Unit::of(Span::from_secs(60)), Some(Unit::Minute));
    assert_eq!(Unit::of(Span::from_secs(300)), None);
}

#[test]
fn only_a_fixed_window_of_one_month_is_a_calendar_month() {
    let months = |unit, unit_multiplier, algorithm| {
        let terms =
            Terms { unit_multiplier, windows: utc_months(), ..Terms::new(5, unit, algorithm) };
        Limit::new(&terms).expect("countable").windows
    };
    assert_eq!(months(Unit::Month, 1, Algorithm::FixedWindow), utc_months());
    assert_eq!(months(Unit::Month, 2, Algorithm::FixedWindow), Windows::Aligned);
    assert_eq!(months(Unit::Day, 30, Algorithm::FixedWindow), Windows::Aligned);
    assert_eq!(months(Unit::Year, 1, Algorithm::FixedWindow), Windows::Aligned);
    for algorithm in [
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ] {
        assert_eq!(months(Unit::Month, 1, algorithm), Windows::Aligned, "{algorithm}");
    }
}

#[test]
fn windows_are_aligned_to_the_epoch_or_calendar_months() {
    let window = |windows: Windows, secs: u64| {
        let terms = Terms { windows, ..Terms::new(5, Unit::Month, Algorithm::FixedWindow) };
        let Window { id, start, end, .. } = Limit::new(&terms)
            .expect("countable")
            .window(Time::from_micros(secs * MICROS_PER_SECOND + 7));
        (
            id.as_micros() / MICROS_PER_SECOND,
            start.as_micros() / MICROS_PER_SECOND,
            end.as_micros() / MICROS_PER_SECOND,
        )
    };
    // 2024-02-29T23:59:59Z, the last second of a leap day.
    assert_eq!(window(utc_months(), 1_709_251_199), (1_706_745_600, 1_706_745_600, 1_709_251_200));
    assert_eq!(
        window(Windows::Aligned, 1_709_251_199),
        (1_708_128_000, 1_708_128_000, 1_710_720_000)
    );
}

#[test]
fn with_rate_keeps_the_proportion_of_a_stated_burst() {
    let burst = |stated: Option<u32>, from: u64, to: u64| {
        let terms = Terms {
            burst: stated,
            unit_multiplier: 5,
            ..Terms::new(from, Unit::Minute, Algorithm::TokenBucket)
        };
        terms.with_rate(to, Unit::Hour).expect("countable").capacity
    };
    assert_eq!(burst(Some(20), 10, 50), 100);
    assert_eq!(burst(Some(20), 10, 1), 2);
    // Half of a hit is rounded up, less is rounded down, and nothing is rounded to none.
    assert_eq!((burst(Some(3), 2, 1), burst(Some(4), 3, 1), burst(Some(1), 100, 1)), (2, 1, 1));
    // Without a stated burst the algorithm's default holds.
    assert_eq!(burst(None, 10, 50), 50);
    // A burst is in no proportion to zero requests; and with zero requests there is none.
    assert_eq!((burst(Some(20), 0, 50), burst(Some(20), 10, 0)), (20, 0));
    let most = u64::from(u32::MAX);
    assert_eq!(burst(Some(u32::MAX), 1, most), most);
}

#[test]
fn with_rate_cuts_an_inexact_burst_to_the_largest_exact_one() {
    let terms = Terms { burst: Some(2), ..Terms::new(1, Unit::Second, Algorithm::TokenBucket) };
    let limit = terms.with_rate(u32::MAX.into(), Unit::Year).expect("cut");
    assert_eq!((limit.requests, limit.tick), (u32::MAX.into(), Tick::Second));
    assert!((285_000_000..286_000_000).contains(&limit.capacity), "{limit}");
}

#[test]
fn with_rate_changes_nothing_else() {
    let terms = Terms {
        unit_multiplier: 5,
        burst: Some(10),
        over_limit_hits: Some(OverLimitHits::Count),
        max_wait: Some(Span::from_secs(1)),
        ..Terms::new(10, Unit::Minute, Algorithm::LeakyBucket)
    };
    let limit = terms.with_rate(20, Unit::Hour).expect("countable");
    assert_eq!(
        limit.to_string(),
        "20 per hour, leaky_bucket, burst 20, queue up to 1 s, over-limit hits count"
    );
    let held = Terms {
        lease: Some(Span::from_secs(30)),
        ..Terms::new(2, Unit::Second, Algorithm::Concurrency)
    };
    assert_eq!(
        held.with_rate(7, Unit::Year).expect("countable").to_string(),
        "7 at once, concurrency, lease 30 s"
    );
    assert_eq!(
        held.with_rate(HOLDERS_MAX + 1, Unit::Year),
        Err(LimitError::TooManyHolders(HOLDERS_MAX + 1))
    );
}
