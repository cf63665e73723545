//! While a fleet moves over from the reference, old and new replicas count together on one Redis:
//! each sees what the other has counted.
//!
//! What the reference does is replayed by its own commands: INCRBY and EXPIRE on every request.

use redis::{Commands as _, Connection};
use tollgate::base::time::{Clock, Span, Time};
use tollgate::limits::check::{Check, Hits, Key};
use tollgate::limits::{Algorithm, Limit, Terms, Unit};
use tollgate::rules::config::calendar::utc_months;

use crate::support::remote::{Bench, atomic_request, request_of};

const START: Time = Time::from_micros(1_700_000_000_123_456);
/// The window of a day that this time lies in, in seconds.
const WINDOW: u64 = 1_699_920_000;
const DAY: i64 = 86_400;

/// A replica of the reference, by what it sends. EXPIRATION_JITTER_MAX_SECONDS is 0 here and there.
struct OldReplica(Connection);

impl OldReplica {
    /// Counts hits, and says how many there are now.
    fn count(&mut self, key: &str, hits: i64) -> i64 {
        let (used, ()): (i64, ()) = redis::pipe()
            .cmd("INCRBY")
            .arg(key)
            .arg(hits)
            .cmd("EXPIRE")
            .arg(key)
            .arg(DAY)
            .query(&mut self.0)
            .expect("it answers");
        used
    }

    /// Everything that there is: keys, values, and how many seconds they live.
    fn all(&mut self) -> Vec<(String, String, i64)> {
        let mut keys: Vec<String> = self.0.keys("*").expect("it answers");
        keys.sort();
        let look = |key: String| {
            let (value, life) =
                redis::pipe().get(&key).ttl(&key).query(&mut self.0).expect("it answers");
            (key, value, life)
        };
        keys.into_iter().map(look).collect()
    }
}

fn limit(requests: u32) -> Limit {
    let terms = Terms::new(requests.into(), Unit::Day, Algorithm::FixedWindow);
    Limit::new(&terms).expect("a limit")
}

/// As long as a day, but for what the test has taken.
fn is_a_fresh_day(life: i64) -> bool {
    (DAY - 3..=DAY).contains(&life)
}

#[tokio::test]
async fn both_services_see_each_others_hits() {
    let bench = Bench::start(Clock::manual(START).0);
    let mut old = OldReplica(bench.server.connection());
    let check = |hits| Check::new(Key::from("shop_user_1_"), limit(10), hits);
    let key = format!("shop_user_1_{WINDOW}");
    let verdict_of = async |hits| {
        let verdict =
            bench.remote.decide(&request_of([check(hits)]), START, None).await[0].expect("a value");
        (verdict.used, verdict.over)
    };
    // New before old, and old before new.
    for old_first in [false, true] {
        bench.server.command::<()>(&["FLUSHALL"]);
        let mut used = 0;
        if old_first {
            used += 2;
            assert_eq!(old.count(&key, 2), 2);
        }
        for round in 0..3 {
            used += 1;
            assert_eq!(verdict_of(Hits::Add(1)).await, (used, false), "round {round}");
            used += 1;
            assert_eq!(old.count(&key, 1).cast_unsigned(), used, "round {round}");
            assert_eq!(verdict_of(Hits::Peek).await, (used, false), "round {round}");
        }
        assert_eq!(
            verdict_of(Hits::Add(20)).await,
            (used + 20, true),
            "over-limit hits count, as in the reference"
        );
        assert_eq!(old.count(&key, 1).cast_unsigned(), used + 21);
        assert_eq!(verdict_of(Hits::Refund(used + 20)).await, (1, false));
        assert_eq!(old.count(&key, 1), 2);
        assert_eq!(verdict_of(Hits::Refund(5)).await, (0, false));
        // Where hits are given back as the reference would, by a negative number, less than nothing
        // is nothing.
        assert_eq!(old.count(&key, -3), -3);
        assert_eq!(verdict_of(Hits::Peek).await, (0, false));
        assert_eq!(verdict_of(Hits::Add(2)).await, (2, false));
        assert_eq!(old.count(&key, 1), 3);
        let all_or_nothing = atomic_request([
            check(Hits::Add(1)),
            Check { key: Key::from("shop_user_2_"), ..check(Hits::Add(1)) },
        ]);
        let verdicts = bench.remote.decide(&all_or_nothing, START, None).await;
        assert_eq!(verdicts[0].map(|verdict| verdict.used), Ok(4));
        assert_eq!(old.count(&key, 1), 5);
        let all = old.all();
        assert!(all.iter().all(|(_, _, life)| is_a_fresh_day(*life)), "{all:?}");
        let values: Vec<_> =
            all.iter().map(|(key, value, _)| (key.as_str(), value.as_str())).collect();
        assert_eq!(values, [(key.as_str(), "5"), (&*format!("shop_user_2_{WINDOW}"), "1")]);
    }
    // The next day is another key to both.
    let tomorrow = START.plus(Span::from_secs(86_400));
    let verdict = bench.remote.decide(&request_of([check(Hits::Add(1))]), tomorrow, None).await[0]
        .expect("a value");
    assert_eq!(verdict.used, 1);
    assert_eq!(old.count(&format!("shop_user_1_{}", WINDOW + 86_400), 1), 2);
}

#[tokio::test]
async fn calendar_months_have_the_reference_key_until_their_end() {
    let terms =
        Terms { windows: utc_months(), ..Terms::new(10, Unit::Month, Algorithm::FixedWindow) };
    let limit = Limit::new(&terms).expect("a limit");
    let (clock, hand) = Clock::manual(START);
    let bench = Bench::start(clock);
    let mut old = OldReplica(bench.server.connection());
    let check = Check::new(Key::from("shop_user_1_"), limit, Hits::Add(1));
    // A time, and the month that it lies in: within November, at either end of December, and on a
    // leap day.
    for (now, start, end) in [
        (1_700_000_000, 1_698_796_800, 1_701_388_800),
        (1_701_388_800, 1_701_388_800, 1_704_067_200),
        (1_704_000_000, 1_701_388_800, 1_704_067_200),
        (1_704_067_200, 1_704_067_200, 1_706_745_600),
        (1_709_164_800, 1_706_745_600, 1_709_251_200),
    ] {
        bench.server.command::<()>(&["FLUSHALL"]);
        let time = Time::from_micros(now * 1_000_000);
        hand.set(time);
        let key = format!("shop_user_1_{start}");
        let verdict_of = async || {
            bench.remote.decide(&request_of([check.clone()]), time, None).await[0].expect("a value")
        };
        let verdict = verdict_of().await;
        assert_eq!((verdict.used, verdict.reset_after), (1, Span::from_secs(end - now)), "{now}");
        bench.lifetimes_are_set().await;
        let all = old.all();
        let [(only, value, life)] = &all[..] else { panic!("{now}: {all:?}") };
        assert_eq!((only, value.as_str()), (&key, "1"), "{now}");
        let left = (end - now).cast_signed();
        assert!((left - 60..=left).contains(life), "{now}: {all:?}");
        // Either counts what the other has counted, and so does the command that this process sends
        // for a key that it has seen.
        assert_eq!(old.count(&key, 2), 3);
        assert_eq!(verdict_of().await.used, 4, "{now}");
    }
}

#[tokio::test]
async fn existing_keys_get_a_whole_lifetime_at_most() {
    let bench = Bench::start(Clock::manual(START).0);
    let mut old = OldReplica(bench.server.connection());
    let key = format!("shop_user_1_{WINDOW}");
    old.count(&key, 1);
    let () = old.0.expire(&key, 500).expect("it answers");
    for hits in [Hits::Add(1), Hits::Peek, Hits::Refund(1), Hits::Add(50)] {
        let check = Check::new(Key::from("shop_user_1_"), limit(10), hits);
        bench.remote.decide(&request_of([check]), START, None).await;
        let all = old.all();
        assert!(
            // The first hit of a replica sets it, as each hit of envoyproxy/ratelimit does.
            all.len() == 1 && (400..=DAY).contains(&all[0].2),
            "{hits:?}: {all:?}"
        );
    }
}
