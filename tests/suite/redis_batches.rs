//! Many checks go to Redis in one call: how many calls there are, and what each check gets from a
//! real Redis. When a call goes out, and with which others, is tested in `in_process/batches.rs`.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tollgate::base::time::{Clock, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::check::{Check, CheckError, Hits, Key, StoreError, Verdict};
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};

use crate::support::kept::redis_key;
use crate::support::remote::{Bench, all_at_once, atomic_request, request_of};

const START: Time = Time::from_micros(1_700_000_000_123_456);

fn limit(algorithm: Algorithm, requests: u32, over_limit_hits: OverLimitHits) -> Limit {
    let terms = all_at_once(requests, Unit::Day, algorithm);
    let over_limit_hits = Some(over_limit_hits).filter(|_| algorithm != Algorithm::Concurrency);
    Limit::new(&Terms { over_limit_hits, ..terms }).expect("a limit")
}

/// A limit whose checks take Redis much time.
fn wide() -> Limit {
    let terms = Terms::new(9, Unit::Day, Algorithm::SlidingWindow);
    Limit::new(&Terms { buckets: Some(100), ..terms }).expect("a limit")
}

/// Hits that are dropped over this limit, which may be leased.
fn leased(requests: u32, hits: Hits) -> Check {
    let limit = limit(Algorithm::FixedWindow, requests, OverLimitHits::Drop);
    Check { lease: Some(Arc::default()), ..check("leased:", limit, hits) }
}

/// The first of all holders, where it matters who holds.
fn check(key: &str, limit: Limit, hits: Hits) -> Check {
    Check { holder: Some(b"first".to_vec().into()), ..Check::new(Key::from(key), limit, hits) }
}

/// Checks of all kinds, each of a counter of its own.
fn checks(count: usize) -> Vec<Check> {
    let kinds = Algorithm::ALL.into_iter().flat_map(|algorithm| {
        OverLimitHits::ALL.map(|over_limit_hits| (algorithm, over_limit_hits))
    });
    let kinds: Vec<_> = kinds.collect();
    let check = |number: usize| {
        let (algorithm, over_limit_hits) = kinds[number % kinds.len()];
        let requests = u32::try_from(number % 5).expect("it is small") + 1;
        check(
            &format!("key{number}:"),
            limit(algorithm, requests, over_limit_hits),
            Hits::Add(number as u64 % 3 + 1),
        )
    };
    (0..count).map(check).collect()
}

/// A store that knows the clock of Redis, which knows its script. Its calls are counted from now on.
async fn bench(clock: Clock) -> Bench {
    let now = clock.now();
    let bench = Bench::start(clock);
    let peek = |algorithm| check("peeked", limit(algorithm, 1, OverLimitHits::Drop), Hits::Peek);
    let request = request_of([Algorithm::TokenBucket, Algorithm::FixedWindow].map(peek));
    bench.remote.decide(&request, now, None).await;
    bench.count_anew();
    bench
}

async fn bench_at_start() -> Bench {
    bench(Clock::manual(START).0).await
}

#[tokio::test]
async fn time_is_read_once_per_call() {
    let clock = Clock::system();
    let bench = bench(clock.clone()).await;
    bench.remote.decide(&request_of(checks(24)), clock.now(), None).await;
    assert_eq!((bench.calls("evalsha"), bench.calls("time")), (1, 1));
    bench.remote.decide(&atomic_request(checks(24)), clock.now(), None).await;
    assert_eq!((bench.calls("evalsha"), bench.calls("time")), (2, 2));
}

#[tokio::test]
async fn a_request_of_256_windows_or_64_buckets_is_one_round_trip() {
    let bench = bench_at_start().await;
    let each = |limit: Limit, count: usize| {
        let check = |number| check(&format!("each{number}:"), limit, Hits::Add(1));
        (0..count).map(check).collect::<Vec<_>>()
    };
    let windows = |count| each(limit(Algorithm::FixedWindow, 9, OverLimitHits::Count), count);
    let buckets = |count| each(limit(Algorithm::TokenBucket, 9, OverLimitHits::Drop), count);
    // How many batches, and how many of them call the script.
    for (request, expected) in [
        (request_of(windows(1)), (1, 0)),
        (request_of(windows(256)), (1, 0)),
        (request_of(windows(257)), (2, 0)),
        (request_of(buckets(64)), (1, 1)),
        (request_of(buckets(65)), (2, 2)),
        (request_of(buckets(129)), (3, 3)),
        (request_of([windows(192), buckets(16)].concat()), (1, 1)),
        (request_of([windows(192), buckets(17)].concat()), (2, 2)),
        // All or nothing is one call.
        (atomic_request(checks(64)), (1, 1)),
        (atomic_request(checks(100)), (1, 1)),
    ] {
        let count = request.checks.len();
        bench.count_anew();
        let before = bench.batches();
        assert_eq!(bench.remote.decide(&request, START, None).await.len(), count);
        assert_eq!(
            (bench.batches() - before, bench.calls("evalsha")),
            expected,
            "{count} checks, in group {}",
            request.checks[0].group
        );
    }
}

/// By what Redis takes for them: a call of the script decides less than what takes 10 ms.
#[tokio::test]
async fn calls_of_the_script_are_bounded_by_the_work_of_their_checks() {
    let bench = bench_at_start().await;
    let wide = wide();
    let of = |algorithm| limit(algorithm, 9, OverLimitHits::Drop);
    // How many checks are sent alone with one call, and how many all or nothing.
    for (name, limit, alone, together) in [
        ("bucket", of(Algorithm::TokenBucket), 64, 1_000),
        ("window", of(Algorithm::FixedWindow), 64, 1_000),
        ("fading", of(Algorithm::SlidingWindow), 51, 819),
        ("log", of(Algorithm::SlidingLog), 12, 204),
        ("holders", of(Algorithm::Concurrency), 12, 204),
        ("wide", wide, 8, 132),
    ] {
        let calls = async |count: usize, group: &str, hits: u64| {
            let key = |number| format!("{name} {group} {count} {number}:");
            let mut checks: Vec<Check> =
                (0..count).map(|number| check(&key(number), limit, Hits::Add(1))).collect();
            checks[0].hits = Hits::Add(hits);
            let request = match group {
                "alone" => request_of(checks),
                _ => atomic_request(checks),
            };
            bench.count_anew();
            let decisions = bench.remote.decide(&request, START, None).await;
            let used = decisions.iter().map(|decision| decision.expect("Redis").used);
            (bench.calls("evalsha"), used.sum::<u64>())
        };
        let used = |count: usize| count as u64;
        assert_eq!(calls(alone, "alone", 1).await, (1, used(alone)), "{name}");
        let more = alone + 1;
        assert_eq!(calls(more, "alone", 1).await, (2, used(more)), "{name}");
        let one = calls(together, "together", 1).await;
        assert_eq!(one, (1, used(together)), "{name}");
        if together < 1_000 {
            // A dry run, then the charge: none of them has more than those alone.
            let both = |count: usize| 2 * count.div_ceil(alone) as u64;
            let more = together + 1;
            let split = calls(more, "together", 1).await;
            assert_eq!(split, (both(more), used(more)), "{name}");
            let most = calls(1_000, "together", 1).await;
            assert_eq!(most, (both(1_000), 1_000), "{name}");
        }
    }
}

/// Nothing is consumed for a request of more checks than one call may have, either.
#[tokio::test]
async fn all_or_nothing_of_several_calls_consumes_nothing_over_limit() {
    let bench = bench_at_start().await;
    let wide = wide();
    for (last, is_over) in [(10, true), (9, false), (1, true)] {
        let checks = (0..200).map(|number| {
            let hits = if number == 199 { last } else { 1 };
            check(&format!("{number}:"), wide, Hits::Add(hits))
        });
        let request = atomic_request(checks);
        let decisions = bench.remote.decide(&request, START, None).await;
        let decided = decisions.iter().map(|decision| decision.expect("Redis is there"));
        let (used, over): (Vec<_>, Vec<_>) =
            decided.map(|verdict| (verdict.used, verdict.over)).unzip();
        assert_eq!(over, [vec![false; 199], vec![is_over]].concat());
        assert_eq!(used[0], u64::from(last != 10), "{last}");
        let keys = bench.server.command::<usize>(&["DBSIZE"]);
        let was_admitted = last != 10;
        assert_eq!(keys, if was_admitted { 200 } else { 0 }, "{last}");
    }
}

#[tokio::test]
async fn hits_of_a_batch_on_one_window_are_one_command() {
    let bench = bench_at_start().await;
    let limit = limit(Algorithm::FixedWindow, 9, OverLimitHits::Count);
    let hits = [1, 4, 2, 3, 1];
    let hit = |key: &str, hits| check(key, limit, Hits::Add(hits));
    let request = hits.into_iter().flat_map(|hits| [hit("one:", hits), hit("other:", 1)]);
    let request = request_of(request.collect::<Vec<_>>());
    let key = String::from_utf8(redis_key(&hit("one:", 1), START)).expect("it is text");
    for before in [None, Some(0), Some(3), Some(-5)] {
        bench.server.command::<()>(&["FLUSHDB"]);
        if let Some(before) = before {
            bench.server.command::<()>(&["SET", &key, &before.to_string(), "EX", "86400"]);
        }
        bench.count_anew();
        let decisions = bench.remote.decide(&request, START, None).await;
        assert_eq!(bench.calls("incr") + bench.calls("incrby"), 2, "{before:?}");
        let mut used = u64::try_from(before.unwrap_or(0)).unwrap_or(0);
        for (hits, decisions) in hits.into_iter().zip(decisions.chunks(2)) {
            used += hits;
            let verdict = decisions[0].expect("Redis is there");
            assert_eq!((verdict.used, verdict.over), (used, used > 9), "{before:?}");
        }
        bench.lifetimes_are_set().await;
        assert_eq!(bench.server.command::<u64>(&["GET", &key]), used, "{before:?}");
    }
}

#[tokio::test]
async fn leased_windows_drop_hits_over_the_limit_by_one_command() {
    let bench = bench_at_start().await;
    let checks: Vec<Check> = [1, 4, 2, 3, 1, 9].map(|hits| leased(9, Hits::Add(hits))).into();
    let limit = checks[0].limit;
    let key = String::from_utf8(redis_key(&checks[0], START)).expect("it is text");
    for (before, is_known) in [None, Some(0), Some(3), Some(9), Some(12), Some(-5)]
        .into_iter()
        .flat_map(|before| [(before, true), (before, false)])
    {
        bench.server.command::<()>(&["FLUSHDB"]);
        if !is_known {
            bench.server.command::<()>(&["SCRIPT", "FLUSH"]);
        }
        if let Some(before) = before {
            let text = before.to_string();
            let set = ["SET", &key, &text, "EX", "86400"];
            bench.server.command::<()>(&set);
        }
        bench.count_anew();
        let request = request_of(checks.clone());
        let decisions = bench.remote.decide(&request, START, None).await;
        assert_eq!(bench.calls("incrby"), 1, "{before:?}");
        let used = u64::try_from(before.unwrap_or(0)).unwrap_or(0);
        let mut counter = Counter::of(&limit, START, used);
        for (check, decision) in checks.iter().zip(decisions) {
            let (after, verdict) = counter.decide(&limit, START, check.call());
            assert_eq!(decision, Ok(verdict), "{before:?}");
            counter = after;
        }
        // What was dropped is given back when nobody asks.
        let used = counter.spent_at(&limit, START);
        while bench.server.command::<u64>(&["GET", &key]) != used {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        bench.lifetimes_are_set().await;
        // The script decides the same.
        let request = request_of([check("leased:", limit, Hits::Peek)]);
        let peek = bench.remote.decide(&request, START, None).await[0];
        assert_eq!(peek.map(|verdict| verdict.used), Ok(used), "{before:?}");
    }
}

#[tokio::test]
async fn leased_windows_are_charged_in_order_by_commands_and_script() {
    let bench = bench_at_start().await;
    let hits = [
        Hits::Add(4),
        Hits::Peek,
        Hits::Add(3),
        Hits::Add(3),
        Hits::Refund(1),
        Hits::Add(3),
        Hits::Add(1),
    ];
    let request = request_of(hits.map(|hits| leased(9, hits)));
    let limit = request.checks[0].limit;
    let decisions = bench.remote.decide(&request, START, None).await;
    let mut counter = Counter::new(&limit);
    for (hits, decision) in hits.into_iter().zip(decisions) {
        let (after, verdict) = counter.decide(&limit, START, hits);
        assert_eq!(decision, Ok(verdict), "{hits:?}");
        counter = after;
    }
}

/// Those that are over limit are given back first in the next batch.
#[tokio::test]
async fn concurrent_leased_hits_use_all_of_a_window() {
    let bench = bench_at_start().await;
    let hit = || leased(40, Hits::Add(1));
    let key = String::from_utf8(redis_key(&hit(), START)).expect("it is text");
    let mut admitted = 0;
    for _ in 0..20 {
        let answers = bench.ask_each(&[(); 9].map(|()| hit()), START).await;
        let passes = |answer: &&Result<Verdict, CheckError>| answer.is_ok_and(|it| !it.over);
        admitted += answers.iter().filter(passes).count();
    }
    assert_eq!(admitted, 40);
    while bench.server.command::<u64>(&["GET", &key]) != 40 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn leased_hits_that_never_fit_change_nothing() {
    let bench = bench_at_start().await;
    for (hits, over) in [(Hits::Add(10), true), (Hits::Peek, false)] {
        bench.count_anew();
        let request = request_of([leased(9, hits)]);
        let verdict = bench.remote.decide(&request, START, None).await[0];
        assert_eq!(verdict.map(|verdict| verdict.over), Ok(over));
        let counts = ["evalsha", "incr", "incrby"].map(|name| bench.calls(name));
        assert_eq!(counts, [1, 0, 0]);
        assert_eq!(bench.server.command::<u64>(&["DBSIZE"]), 0);
    }
}

#[tokio::test]
async fn the_key_of_a_new_window_has_a_lifetime_when_it_is_answered() {
    let bench = bench_at_start().await;
    let limit = limit(Algorithm::FixedWindow, 9, OverLimitHits::Count);
    for hits in [Hits::Peek, Hits::Add(1), Hits::Add(2)] {
        let check = check("lives:", limit, hits);
        let key = String::from_utf8(redis_key(&check, START)).expect("it is text");
        bench.count_anew();
        assert!(bench.remote.decide(&request_of([check]), START, None).await[0].is_ok());
        let life: i64 = bench.server.command(&["TTL", &key]);
        match hits {
            // It creates no key.
            Hits::Peek => assert_eq!(life, -2),
            _ => assert!((86_400 - 30..=86_400).contains(&life), "{life} s"),
        }
        // A key that was seen in the window has one.
        let is_first = hits == Hits::Add(1);
        assert_eq!(bench.calls("expire"), u64::from(is_first), "{hits:?}");
    }
}

#[tokio::test]
async fn repeated_keys_are_charged_in_order() {
    let bench = bench_at_start().await;
    for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let limit = limit(algorithm, 8, OverLimitHits::Drop);
        let caller = |caller: u8| Check {
            holder: Some([caller].into()),
            ..check(&format!("same{number}:"), limit, Hits::Add(1))
        };
        let same: Vec<Check> = (0..12).map(caller).collect();
        bench.count_anew();
        let answers = bench.ask_each(&same, START).await;
        assert_eq!(bench.calls("evalsha"), 1);
        let used: Vec<_> = answers
            .iter()
            .map(|answer| answer.map(|verdict| (verdict.used, verdict.over)))
            .collect();
        let expected: Vec<_> = (1..=12).map(|number| Ok((number.min(8), number > 8))).collect();
        assert_eq!(used, expected, "{algorithm}");
        // In one request, and in one that takes several calls.
        let again: Vec<Check> =
            (0..100).map(caller).map(|check| Check { key: Key::from("again:"), ..check }).collect();
        bench.server.command::<()>(&["FLUSHDB"]);
        let answers = bench.remote.decide(&request_of(again), START, None).await;
        assert_eq!(
            answers.iter().filter(|answer| answer.is_ok_and(|verdict| !verdict.over)).count(),
            8
        );
    }
}

#[tokio::test]
async fn windows_need_one_command_whatever_their_key_has() {
    let bench = bench_at_start().await;
    let window =
        |hits| check("seen:", limit(Algorithm::FixedWindow, 9, OverLimitHits::Count), hits);
    let key = String::from_utf8(redis_key(&window(Hits::Peek), START)).expect("it is text");
    let cases: [(&[&str], Result<u64, CheckError>); 7] = [
        (&["SET", &key, "3", "EX", "86400"], Ok(5)),
        // There is none, or somebody has given back more than there was.
        (&["DEL", &key], Ok(2)),
        (&["SET", &key, "-7"], Ok(2)),
        (&["SET", &key, "9007199254740991", "EX", "86400"], Ok((1 << 53) - 1)),
        (&["SET", &key, "9223372036854775807", "EX", "86400"], Ok((1 << 53) - 1)),
        (&["SET", &key, "text", "EX", "86400"], Err(StoreError::Rejected.not_counted())),
        (&["HSET", &key, "field", "1"], Err(StoreError::Rejected.not_counted())),
    ];
    for (words, expected) in cases {
        for (hits, command) in [(1, "incr"), (2, "incrby")] {
            let _: Value = bench.server.command(&["DEL", &key]);
            let _: Value = bench.server.command(words);
            bench.count_anew();
            let request = request_of([window(Hits::Add(hits))]);
            let answer = bench.remote.decide(&request, START, None).await[0];
            let used = expected.map(|used| if used < 1 << 52 { used + hits - 2 } else { used });
            assert_eq!(answer.map(|verdict| verdict.used), used, "{words:?}");
            let calls = ["incr", "incrby", "evalsha"].map(|name| bench.calls(name));
            let called = ["incr", "incrby", "evalsha"].map(|name| u64::from(name == command));
            assert_eq!(calls, called, "{words:?}");
            if expected.is_ok() {
                bench.lifetimes_are_set().await;
                let life: i64 = bench.server.command(&["TTL", &key]);
                let day = 86_400 - 30..=86_400;
                assert!(day.contains(&life), "{words:?}: it lives {life} s");
            }
        }
    }
}

#[tokio::test]
async fn windows_are_charged_in_order_by_commands_and_script() {
    let bench = bench_at_start().await;
    let window =
        |hits| check("seen:", limit(Algorithm::FixedWindow, 9, OverLimitHits::Count), hits);
    let hits = [
        Hits::Add(1),
        Hits::Peek,
        Hits::Add(2),
        Hits::Refund(2),
        Hits::Add(4),
        Hits::Add(1),
        Hits::Peek,
    ];
    let expected = [1, 1, 3, 1, 5, 6, 6];
    for round in 0..3 {
        let in_one_request = bench.remote.decide(&request_of(hits.map(window)), START, None).await;
        let apart = bench.ask_each(&hits.map(window), START).await;
        for (turn, answers) in [in_one_request.as_slice(), &apart].into_iter().enumerate() {
            let used: Vec<_> =
                answers.iter().map(|answer| answer.map(|verdict| verdict.used)).collect();
            assert_eq!(used, expected.map(|used| Ok(used + 12 * round + 6 * turn as u64)));
        }
    }
}
