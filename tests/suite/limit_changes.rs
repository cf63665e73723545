//! A limit that changes while it counts, as docs/algorithms.md states it: a counter goes on under
//! its new limit as long as its algorithm, its period, and how that is cut stay what they were;
//! else it starts anew.

use crate::support::redis::RedisProcess;
use crate::support::{Client, Code, TestServer, eventually, request};

/// A case a line: its name, the rule at first (requests/unit and its `tollgate` block), of which 6
/// hits are used, the rule later, and what remains then.
const CHANGES: &str = "
fixed window raised | 10/year | 20/year | 14
fixed window lowered | 10/year | 4/year | 0
fixed window of another unit | 10/year | 10/month | 10
fixed window of two units | 10/year | 10/year unit_multiplier: 2 | 10
fixed window that drops | 10/year unit_multiplier: 2 | 10/year unit_multiplier: 2, over_limit_hits: drop | 4
fixed window that becomes a bucket | 10/year | 10/year algorithm: token_bucket | 10
sliding window raised | 10/year algorithm: sliding_window | 20/year algorithm: sliding_window | 14
sliding window lowered | 10/year algorithm: sliding_window | 4/year algorithm: sliding_window | 0
sliding window of another unit | 10/year algorithm: sliding_window | 10/month algorithm: sliding_window | 10
sliding window that is cut | 10/year algorithm: sliding_window | 10/year algorithm: sliding_window, buckets: 4 | 10
cut window raised | 10/year algorithm: sliding_window, buckets: 4 | 20/year algorithm: sliding_window, buckets: 4 | 14
cut window lowered | 10/year algorithm: sliding_window, buckets: 4 | 4/year algorithm: sliding_window, buckets: 4 | 0
cut window that is cut again | 10/year algorithm: sliding_window, buckets: 4 | 10/year algorithm: sliding_window, buckets: 5 | 10
cut window of another unit | 10/year algorithm: sliding_window, buckets: 4 | 10/month algorithm: sliding_window, buckets: 4 | 10
log raised | 10/year algorithm: sliding_log | 20/year algorithm: sliding_log | 14
log lowered | 10/year algorithm: sliding_log | 4/year algorithm: sliding_log | 0
log of another unit | 10/year algorithm: sliding_log | 10/month algorithm: sliding_log | 10
log that becomes a window | 10/year algorithm: sliding_log | 10/year algorithm: sliding_window | 10
bucket raised | 10/year algorithm: token_bucket | 20/year algorithm: token_bucket | 14
bucket lowered | 10/year algorithm: token_bucket | 4/year algorithm: token_bucket | 0
bucket made deeper | 10/year algorithm: token_bucket | 10/year algorithm: token_bucket, burst: 15 | 9
bucket made flatter | 10/year algorithm: token_bucket | 10/year algorithm: token_bucket, burst: 8 | 2
bucket made much deeper | 10/year algorithm: token_bucket | 10/year algorithm: token_bucket, burst: 1000 | 1000
bucket of another unit | 10/year algorithm: token_bucket | 10/month algorithm: token_bucket | 10
bucket that counts | 10/year algorithm: token_bucket | 10/year algorithm: token_bucket, over_limit_hits: count | 4
bucket that queues | 10/year algorithm: token_bucket | 10/year algorithm: token_bucket, on_limit: queue, max_wait: 1s | 4
bucket that becomes leaky | 10/year algorithm: token_bucket | 10/year algorithm: leaky_bucket, burst: 10 | 10
leaky bucket raised | 10/year algorithm: leaky_bucket, burst: 10 | 20/year algorithm: leaky_bucket, burst: 10 | 4
leaky bucket made deeper | 10/year algorithm: leaky_bucket, burst: 10 | 10/year algorithm: leaky_bucket, burst: 12 | 6
window that gets a calendar | 10/year | 10/year calendar: UTC | 10
window of another zone | 10/year calendar: UTC | 10/year calendar: {time_zone: Europe/Berlin, at: '06:00'} | 4
window of a zone raised | 10/year calendar: UTC | 20/year calendar: UTC | 14
month that begins on another day | 10/month calendar: UTC | 10/month calendar: {time_zone: UTC, first_day: 28} | 10
week that begins on another day | 10/week calendar: UTC | 10/week calendar: {time_zone: UTC, first_weekday: thursday} | 10
window with another limit beside it | 10/year | 10/year limits: [{requests: 50, unit: month, unit_multiplier: 5}] | 4
window that keeps its limit only | 10/year limits: [{requests: 50, unit: month, unit_multiplier: 5}] | 10/year | 4
bucket with another limit beside it | 10/year algorithm: token_bucket | 10/year algorithm: token_bucket, limits: [{requests: 50, unit: month}] | 4
window that warns | 10/year | 10/year warn_at: 50% | 4
holders raised | 10/year algorithm: concurrency, lease_by: holder, lease: 1h | 20/year algorithm: concurrency, lease_by: holder, lease: 1h | 14
holders lowered | 10/year algorithm: concurrency, lease_by: holder, lease: 1h | 4/year algorithm: concurrency, lease_by: holder, lease: 1h | 0
holders of another unit | 10/year algorithm: concurrency, lease_by: holder, lease: 1h | 10/day algorithm: concurrency, lease_by: holder, lease: 1h | 4
holders with another lease | 10/year algorithm: concurrency, lease_by: holder, lease: 1h | 10/year algorithm: concurrency, lease_by: holder, lease: 2h | 4
holders that are no longer known by name | 10/year algorithm: concurrency, lease_by: holder, lease: 1h | 10/year algorithm: token_bucket | 10
";

/// A line of [`CHANGES`].
struct Change {
    name: &'static str,
    before: &'static str,
    after: &'static str,
    remaining: u32,
}

const HITS: u32 = 6;

fn changes() -> impl Iterator<Item = Change> {
    CHANGES.trim().lines().map(|line| {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [name, before, after, remaining] = cells[..] else { panic!("four cells, not {line}") };
        Change { name, before, after, remaining: remaining.parse().expect("a number") }
    })
}

fn rules(said: impl Fn(&Change) -> &'static str) -> String {
    let rule = |change: Change| {
        let (limit, block) = said(&change).split_once(' ').unwrap_or((said(&change), ""));
        let (requests, unit) = limit.split_once('/').expect("requests/unit");
        // Those that are held are known by the last entry, and the others counted by all of them.
        format!(
            "  - key: case\n    value: {}\n    descriptors:\n      - key: holder\n        rate_limit: {{unit: {unit}, requests_per_unit: {requests}}}\n        metadata: {{tollgate: {{{block}}}}}\n",
            change.name
        )
    };
    format!("domain: d\ndescriptors:\n{}", changes().map(rule).collect::<String>())
}

async fn ask(client: &mut Client, change: &Change, holder: u32, hits: u64) -> (Code, u32) {
    // Each holder is another one; every other algorithm counts one value.
    let is_held = change.before.contains("concurrency");
    let holder = if is_held { holder.to_string() } else { String::new() };
    let mut request = request("d", &[&[("case", change.name), ("holder", &holder)]]);
    request.descriptors[0].hits_addend = Some(hits);
    let response = client.answer(request).await;
    let status = &response.statuses[0];
    (status.code(), status.limit_remaining)
}

async fn goes_on_or_starts_anew(server: TestServer) {
    let mut client = server.client().await;
    for change in changes() {
        for number in 1..=HITS {
            let answer = ask(&mut client, &change, number, 1).await;
            assert_eq!(answer, (Code::Ok, 10 - number), "{}", change.name);
        }
    }
    let loads = || server.metric("ratelimit_service_config_load_success");
    let before = loads();
    server.write("rules.yaml", &rules(|change| change.after));
    eventually("the new limits are in force", async || loads() > before).await;
    for change in changes() {
        let name = change.name;
        let remaining = change.remaining;
        let (_, left) = ask(&mut client, &change, HITS + 1, 0).await;
        assert_eq!(left, remaining, "{name}");
        let (code, _) = ask(&mut client, &change, HITS + 1, 1).await;
        assert_eq!(code == Code::Ok, remaining > 0, "{name}");
    }
}

#[tokio::test]
async fn changed_limits_keep_or_reset_their_counters_in_memory() {
    goes_on_or_starts_anew(TestServer::with_rules(&rules(|change| change.before)).start()).await;
}

#[tokio::test]
async fn changed_limits_keep_or_reset_their_counters_in_redis() {
    let redis = RedisProcess::start();
    let builder = TestServer::with_rules(&rules(|change| change.before))
        .with_env("REDIS_URL", &redis.url())
        .with_env("ON_STORE_ERROR", "error");
    goes_on_or_starts_anew(builder.start()).await;
}
