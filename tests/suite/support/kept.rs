//! The state of each kind of counter in Redis: how it is read, what is read, and how long it
//! lives.

use redis::{Cmd, Value};
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::check::{Check, Hits};
use tollgate::limits::{Limit, Windows};

/// The longest lifetime that Redis accepts, in ms.
pub(crate) const LIFE_MAX: u64 = 1 << 52;
/// What expiry may be late by: it goes by whole ms, of a clock that Redis read a little earlier.
const SPARE: u64 = 2;
/// Sums of a log start over here.
pub(crate) const SUM_END: u64 = 1 << 52;

/// The key at which Redis has the counter of a check.
pub(crate) fn redis_key(check: &Check, now: Time) -> Vec<u8> {
    let mut key = check.key.clone();
    if let Counter::FixedWindow(_) = Counter::new(&check.limit) {
        let start = check.limit.window(now).start.as_micros() / 1_000_000;
        let end = match check.limit.windows {
            Windows::Calendar(calendar) => {
                calendar.period(now).date.expect("a calendar has dates").to_string()
            }
            _ => start.to_string(),
        };
        key.push(end.as_bytes());
    }
    key.as_bytes().to_vec()
}

/// What reads the whole of a counter.
pub(crate) fn reading(counter: &Counter, key: &[u8]) -> Cmd {
    let mut command = match counter {
        Counter::SlidingLog(_) => redis::cmd("LRANGE"),
        Counter::Concurrency(_) => redis::cmd("ZRANGE"),
        _ => redis::cmd("GET"),
    };
    command.arg(key);
    match counter {
        Counter::SlidingLog(_) => command.arg(0).arg(-1),
        Counter::Concurrency(_) => command.arg(0).arg(-1).arg("WITHSCORES"),
        _ => &mut command,
    };
    command
}

/// Compares what was read with the counter that was written then.
pub(crate) fn compare(
    counter: &Counter,
    limit: &Limit,
    written: Time,
    value: &Value,
) -> Result<(), String> {
    let same = match counter {
        Counter::FixedWindow(_) => {
            *value == Value::BulkString(counter.spent_at(limit, written).to_string().into_bytes())
        }
        Counter::Bucket(_) => {
            *value == packed([counter.spent_at(limit, written), limit.tick.since_epoch(written)])
        }
        Counter::SlidingWindow(windows) => {
            let (window, used, before) = windows.parts();
            *value == packed([window, used, before.into()])
        }
        Counter::SubWindows(windows) => {
            let (newest, counts) = windows.parts();
            *value == packed([newest].into_iter().chain(counts.iter().copied()))
        }
        Counter::SlidingLog(log) => entries(value).is_some_and(|entries| {
            let sums_add_up =
                entries.windows(2).all(|pair| (pair[0].2 + pair[1].1) % SUM_END == pair[1].2);
            sums_add_up
                && entries
                    .into_iter()
                    .map(|(at, hits, _)| (Time::from_micros(at), hits))
                    .eq(log.entries())
        }),
        Counter::Concurrency(set) => {
            leases(value).is_some_and(|leases| leases.into_iter().eq(set.leases()))
        }
    };
    if same { Ok(()) } else { Err(format!("found {value:?}, expected {counter:?}")) }
}

/// Whether Redis has to write a counter anew that it finds like this, whatever is asked.
pub(crate) fn is_stale(counter: &Counter, limit: &Limit, written: Time, now: Time) -> bool {
    match counter {
        Counter::FixedWindow(_) => false,
        Counter::Bucket(_) => limit.tick.since_epoch(written) > limit.tick.since_epoch(now),
        Counter::SlidingWindow(windows) => {
            windows.parts().0 > limit.tick.since_epoch(now) / limit.period_ticks()
        }
        Counter::SubWindows(windows) => {
            windows.parts().0 > now.as_micros() / limit.sub_window().as_micros()
        }
        Counter::SlidingLog(log) => {
            log.entries().any(|(at, _)| at > now || now.since(at) >= limit.period)
        }
        Counter::Concurrency(set) => {
            set.leases().any(|until| until <= now || until > now.plus(limit.period))
        }
    }
}

/// How many ms a counter lives that is written now; `None` if nothing is left of it. A fixed window
/// only begins to live when it is fresh.
pub(crate) fn life(counter: &Counter, limit: &Limit, now: Time, jitter: Span) -> Option<u64> {
    let ms = |micros: u64| micros.div_ceil(1_000) + SPARE;
    match counter {
        Counter::FixedWindow(_) => {
            let left = match limit.windows {
                Windows::Aligned => limit.period,
                Windows::UtcMonths(_) | Windows::Calendar(_) => limit.window(now).end.since(now),
            };
            Some((left.ceil_secs() + jitter.ceil_secs()) * 1_000)
        }
        _ if counter.is_new() => None,
        Counter::Bucket(_) => {
            let ticks = counter.spent_at(limit, now).div_ceil(limit.requests);
            Some(ms(ticks.saturating_mul(limit.tick.span().as_micros())).min(LIFE_MAX))
        }
        Counter::SlidingWindow(windows) => {
            let period = limit.period_ticks();
            let left = period - limit.tick.since_epoch(now) % period;
            let ticks = if windows.parts().1 > 0 { left + period } else { left };
            Some(ms(ticks * limit.tick.span().as_micros()))
        }
        Counter::SubWindows(_) | Counter::SlidingLog(_) | Counter::Concurrency(_) => {
            let (_, look) = counter.clone().decide(limit, now, Hits::Peek);
            Some(ms(look.reset_after.as_micros()))
        }
    }
}

/// Numbers as scripts pack them.
#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 lose nothing")]
pub(crate) fn packed(numbers: impl IntoIterator<Item = u64>) -> Value {
    Value::BulkString(
        numbers.into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect(),
    )
}

/// The numbers of a text that has so many.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "only numbers above 0 are cast, and the largest saturate"
)]
pub(crate) fn unpacked<const N: usize>(text: &[u8]) -> Option<[u64; N]> {
    let (numbers, []) = text.as_chunks::<8>() else {
        return None;
    };
    let numbers: [[u8; 8]; N] = numbers.try_into().ok()?;
    let numbers = numbers.map(f64::from_le_bytes);
    numbers.iter().all(|&number| number >= 0.0).then(|| numbers.map(|number| number as u64))
}

/// The entries of a log: when they came, their hits, and all hits so far.
fn entries(value: &Value) -> Option<Vec<(u64, u64, u64)>> {
    let Value::Array(entries) = value else {
        return None;
    };
    let entry = |entry: &Value| {
        let Value::BulkString(text) = entry else {
            return None;
        };
        unpacked(text).map(|[at, hits, sum]| (at, hits, sum))
    };
    entries.iter().map(entry).collect()
}

/// When the leases of a set run out.
fn leases(value: &Value) -> Option<Vec<Time>> {
    let Value::Array(names_and_scores) = value else {
        return None;
    };
    let score = |pair: &[Value]| {
        let [Value::BulkString(name), Value::BulkString(score)] = pair else {
            return None;
        };
        let is_a_name = name.strip_prefix(b"holder ").is_some_and(|number| number.len() == 1);
        std::str::from_utf8(score).ok()?.parse::<f64>().ok().filter(|_| is_a_name)
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time is below 2^53"
    )]
    names_and_scores
        .chunks(2)
        .map(|pair| score(pair).map(|score| Time::from_micros(score as u64)))
        .collect()
}
