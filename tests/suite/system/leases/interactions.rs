//! Everything else that a rule or a request may have, leased beside exact: the same calls get the
//! same answers and counts.

use std::collections::BTreeMap;

use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::base::proto::envoy::r#type::v3::RateLimitUnit;

use super::GIVEN_BACK_AFTER;
use super::fleet::Fleet;
use crate::support::{Client, Code, descriptor, eventually};

/// The limit of all rules.
const LIMIT: u64 = 200;
/// What all processes may hold of it.
const HELD_MAX: u64 = LIMIT / 10;

/// Rows of rules whose requests pass over the limit, and are counted there: no lease admits those.
const EXACT: [&str; 4] =
    ["shadow_mode", "enforce_percent, no key", "quota_mode", "on_limit: degrade"];
/// A row a feature: its name, its domain, and its calls.
///
/// `220 k hits 5` is 220 calls, `a + b` a call with two descriptors, `refund 5` gives back,
/// `limit 80` is a limit in the request. `other` calls the other process, and `until` calls until
/// one is admitted.
const ROWS: &str = "
more than one hit | d | 40 many; 10 many hits 5; 7 many hits 3; 100 many hits 2
more hits than are left | d | 190 most; 1 most hits 30; 15 most
no hits | d | 40 none; 3 none hits 0; 180 none; 3 none hits 0
a refund here | d | 40 back; 1 back refund 10; 200 back; 1 back refund 10; 20 back
a refund through another process | d | 40 away; other 1 away refund 10; 200 away; other 1 away refund 30; until away; 40 away
a limit in the request | d | 100 own limit 80; 90 own
shadow_mode | d | 230 shadow
enforce_percent, no key | d | 230 nobody
enforce_percent, every key | d | 230 everybody
quota_mode | d | 120 quota hits 2 + bigger; 120 bigger
a rule that is replaced | d | 60 base; 60 base + vip; 190 base; 150 base + vip
no limit | d | 20 free; 60 free + beside; 180 free + beside
values that share a counter | d | 60 path=a1; 60 path=a2; 110 path=a1 + path=a3
on_limit: degrade | d | 230 cheap
one key twice in a request | d | 60 twice + twice; 10 twice hits 3 + twice; 60 twice + twice
detailed_metric | d | 230 detailed=x
value_to_metric | d | 230 metric=x
unit_multiplier | d | 230 multiple
a calendar month | d | 230 month
a sliding window | d | 100 sliding hits 2; 20 sliding
sub-windows | d | 100 cut hits 2; 20 cut
a token bucket | d | 100 bucket hits 2; 20 bucket
all or nothing, both have hits left | a | 60 first + second; 3 first + second hits 5
all or nothing, the leased limit vetoes | a | 195 first; 20 first + second; 20 second
all or nothing, the exact limit vetoes | a | 60 third; 120 third + exact hits 2; 20 third
all or nothing, near the limit | a | 180 fifth; 2 fifth hits 18 + sixth; 5 fifth
all or nothing, one key twice | a | 60 fourth + fourth; 60 fourth + fourth
";

const RULES: &str = "
domain: d
metadata: {tollgate: {defaults: {over_limit_hits: drop, response_body: over}}}
descriptors:
  - {key: many, rate_limit: LIMIT}
  - {key: most, rate_limit: LIMIT}
  - {key: none, rate_limit: LIMIT}
  - {key: back, rate_limit: LIMIT}
  - {key: away, rate_limit: LIMIT}
  - {key: own, rate_limit: LIMIT}
  - {key: shadow, shadow_mode: true, rate_limit: LIMIT}
  - {key: nobody, rate_limit: LIMIT, metadata: {tollgate: {enforce_percent: 0}}}
  - {key: everybody, rate_limit: LIMIT, metadata: {tollgate: {enforce_percent: 100}}}
  - {key: quota, quota_mode: true, rate_limit: LIMIT}
  - {key: bigger, quota_mode: true, rate_limit: LIMIT}
  - {key: base, rate_limit: {unit: year, requests_per_unit: 200, name: base}}
  - {key: vip, rate_limit: {unit: year, requests_per_unit: 200, replaces: [{name: base}]}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: beside, rate_limit: LIMIT}
  - {key: path, value: a*, share_threshold: true, rate_limit: LIMIT}
  - {key: cheap, rate_limit: LIMIT, metadata: {tollgate: {on_limit: degrade, request_headers: {x-cheap: '1'}}}}
  - {key: twice, rate_limit: LIMIT}
  - {key: detailed, detailed_metric: true, rate_limit: LIMIT}
  - {key: metric, value_to_metric: true, rate_limit: LIMIT}
  - {key: multiple, rate_limit: LIMIT, metadata: {tollgate: {unit_multiplier: 3}}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 200}}
  - {key: sliding, rate_limit: LIMIT, metadata: {tollgate: {algorithm: sliding_window}}}
  - {key: cut, rate_limit: LIMIT, metadata: {tollgate: {algorithm: sliding_window, buckets: 6}}}
  - {key: bucket, rate_limit: LIMIT, metadata: {tollgate: {algorithm: token_bucket}}}
";

const ALL_OR_NOTHING: &str = "
domain: a
metadata: {tollgate: {all_or_nothing: true, defaults: {over_limit_hits: drop, response_body: over}}}
descriptors:
  - {key: first, rate_limit: LIMIT}
  - {key: second, rate_limit: LIMIT}
  - {key: third, rate_limit: LIMIT}
  - {key: fourth, rate_limit: LIMIT}
  - {key: fifth, rate_limit: LIMIT}
  - {key: sixth, rate_limit: LIMIT}
  - {key: exact, rate_limit: LIMIT, metadata: {tollgate: {consistency: exact}}}
";

/// Two processes with all rules.
async fn fleet(consistency: &str) -> Fleet {
    let limit = format!("{{unit: year, requests_per_unit: {LIMIT}}}");
    let files = [("d.yaml", RULES), ("a.yaml", ALL_OR_NOTHING)];
    let files = files.map(|(name, text)| (name, text.replace("LIMIT", &limit)));
    let set = [
        ("DEFAULT_CONSISTENCY", consistency),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("RETRY_AFTER_HEADER_ENABLED", "true"),
        ("USE_CALENDAR_MONTH_RATE_LIMIT", "true"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
    ];
    Fleet::with_files(2, &files, &set).await
}

/// Calls of one kind.
struct Step<'s> {
    process: usize,
    is_until: bool,
    calls: u64,
    descriptors: Vec<&'s str>,
}

impl<'s> Step<'s> {
    fn read(text: &'s str) -> Self {
        let (process, rest) = text.strip_prefix("other ").map_or((0, text), |rest| (1, rest));
        let until = rest.strip_prefix("until ");
        let (calls, rest) = match until {
            Some(rest) => ("1", rest),
            None => rest.split_once(' ').expect("calls and descriptors"),
        };
        Self {
            process,
            is_until: until.is_some(),
            calls: calls.parse().expect("a number of calls"),
            descriptors: rest.split(" + ").collect(),
        }
    }

    fn request(&self, domain: &str) -> RateLimitRequest {
        let descriptors = self.descriptors.iter().map(|text| {
            let mut words = text.split(' ');
            let entry = words.next().expect("an entry");
            let mut descriptor = descriptor(&[entry.split_once('=').unwrap_or((entry, ""))]);
            while let Some(word) = words.next() {
                let number = words.next().and_then(|word| word.parse().ok());
                let number: u32 = number.expect("a number");
                match word {
                    "hits" => descriptor.hits_addend = Some(number.into()),
                    "refund" => {
                        descriptor.hits_addend = Some(number.into());
                        descriptor.is_negative_hits = true;
                    }
                    "limit" => {
                        descriptor.limit = Some(RateLimitOverride {
                            requests_per_unit: number,
                            unit: RateLimitUnit::Year.into(),
                        });
                    }
                    word => panic!("{word} in {text}"),
                }
            }
            descriptor
        });
        RateLimitRequest {
            domain: domain.into(),
            descriptors: descriptors.collect(),
            hits_addend: 0,
        }
    }
}

async fn clients(fleet: &Fleet) -> [Client; 2] {
    [fleet.services[0].client().await, fleet.services[1].client().await]
}

#[tokio::test]
async fn leased_rules_answer_and_count_as_exact_ones() {
    let (leased, exact) = tokio::join!(fleet("leased"), fleet("exact"));
    let mut leased_clients = clients(&leased).await;
    let mut exact_clients = clients(&exact).await;
    for line in ROWS.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [name, domain, steps] = cells[..] else { panic!("three cells, not {line}") };
        let before = leased.hits("used");
        for text in steps.split("; ") {
            let step = Step::read(text);
            let leased = &mut leased_clients[step.process];
            let exact = &mut exact_clients[step.process];
            for call in 0..step.calls {
                let what = format!("{name}, {text}, call {call}");
                let request = step.request(domain);
                let expected = exact.answer(request.clone()).await;
                let mut answer = leased.answer(request.clone()).await;
                if step.is_until {
                    // Over limit for as long as the hold lasts: it does not learn from the other.
                    eventually(&what, async || {
                        let is_over = answer.overall_code() == Code::OverLimit;
                        if is_over {
                            answer = leased.answer(request.clone()).await;
                        }
                        !is_over
                    })
                    .await;
                }
                assert_equal(answer, expected, HELD_MAX, &what);
            }
        }
        assert_eq!(
            leased.hits("used") > before,
            !EXACT.contains(&name),
            "{name}: whether leases were used"
        );
    }
    leased.give_back(GIVEN_BACK_AFTER).await;
    assert_equal_counters(&leased, &exact);
    assert_equal_metrics(&leased, &exact);
}

/// Asserts that answers are equal, but what remains may differ by so much, and seconds by one,
/// since a second may begin between two calls.
#[track_caller]
fn assert_equal(
    leased: RateLimitResponse,
    exact: RateLimitResponse,
    remaining_within: u64,
    what: &str,
) {
    let what = format!("{what}: {leased:?} instead of {exact:?}");
    let (leased_numbers, leased) = take_numbers(leased);
    let (exact_numbers, exact) = take_numbers(exact);
    assert_eq!(leased, exact, "{what}");
    for (name, exact) in exact_numbers {
        let differs_by = leased_numbers[&name].abs_diff(exact);
        let is_remaining = name.ends_with("emaining");
        let most = if is_remaining { remaining_within } else { 1 };
        assert!(differs_by <= most, "{what}: {name}");
    }
}

/// Takes the numbers out of a response that may differ.
fn take_numbers(mut response: RateLimitResponse) -> (BTreeMap<String, u64>, RateLimitResponse) {
    let mut numbers = BTreeMap::new();
    for header in &mut response.response_headers_to_add {
        if let Ok(number) = header.value.parse() {
            numbers.insert(header.key.clone(), number);
            header.value.clear();
        }
    }
    for (index, status) in response.statuses.iter_mut().enumerate() {
        let remaining = std::mem::take(&mut status.limit_remaining);
        numbers.insert(format!("{index} remaining"), remaining.into());
        if let Some(reset) = status.duration_until_reset.take() {
            let seconds = u64::try_from(reset.seconds).expect("it is not negative");
            numbers.insert(format!("{index} reset"), seconds);
        }
    }
    (numbers, response)
}

/// Redis has the same counters of fixed windows.
fn assert_equal_counters(leased: &Fleet, exact: &Fleet) {
    let counters = |fleet: &Fleet| {
        let keys: Vec<String> = fleet.redis.command(&["KEYS", "*"]);
        let is_text = |key: &String| fleet.redis.text(&["TYPE", key]) == "string";
        let keys = keys.into_iter().filter(is_text);
        let counters = keys.map(|key| {
            let value: Vec<u8> = fleet.redis.command(&["GET", &key]);
            (key, String::from_utf8_lossy(&value).parse::<u64>().ok())
        });
        counters.collect::<BTreeMap<_, _>>()
    };
    let leased = counters(leased);
    let exact = counters(exact);
    assert!(exact.len() > 20, "{exact:?}");
    assert_eq!(leased, exact);
}

/// Both count the same hits.
fn assert_equal_metrics(leased: &Fleet, exact: &Fleet) {
    let series = |fleet: &Fleet| {
        let page = fleet.services[0].admin("/metrics");
        let lines = page.lines().filter_map(|line| {
            let line = line.strip_prefix("ratelimit_service_rate_limit_")?;
            let (series, value) = line.rsplit_once(' ')?;
            // Answers of a hold count as those of the over-limit cache, and one row waits for the
            // end of a hold.
            let is_other = series.contains("with_local_cache") || series.contains("away");
            (!is_other).then(|| (series.to_owned(), value.parse::<f64>().expect("a number")))
        });
        lines.collect::<BTreeMap<String, f64>>()
    };
    let leased = series(leased);
    let exact = series(exact);
    for (name, count) in &exact {
        let most = if name.contains("near_limit") {
            // As old as the last reply.
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let held = HELD_MAX as f64;
            held
        } else {
            0.0
        };
        let leased = leased.get(name).copied().unwrap_or_default();
        assert!((leased - count).abs() <= most, "{name}: {leased}, not {count}");
    }
    assert_eq!(leased.len(), exact.len());
}
