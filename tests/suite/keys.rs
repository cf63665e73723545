//! Under which key a counter is found: the reference's, which an instance of the reference beside
//! us counts on, and our own.

use percent_encoding::percent_decode;
use proptest::prelude::*;
use tollgate::base::time::Time;
use tollgate::limits::check::{Check, KEY_BYTES_MAX, Key};
use tollgate::limits::{Algorithm, Consistency, Unit, Windows};
use tollgate::rules::config::calendar::utc_months;
use tollgate::rules::config::{self, CompileOptions, Source};
use tollgate::rules::explain::explain;
use tollgate::rules::key::HOLDER_BYTES_MAX;
use tollgate::rules::plan::{Modes, plan};
use tollgate::rules::query::{Descriptor, Entry, Override};
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::rules::{KeyFormat, Query, RuleSet};
use tollgate::telemetry::metric::Metrics;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, value: bob, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: files, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: path, value: '/a*', rate_limit: {unit: day, requests_per_unit: 5}, descriptors: [
      {key: ip, rate_limit: {unit: day, requests_per_unit: 5}}]}
  - {key: five, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 5}}}
  - {key: sixty, rate_limit: {unit: second, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 60}}}
  - {key: one, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 1, over_limit_hits: count}}}
  - {key: drop, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {over_limit_hits: drop}}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 5}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: leaky, rate_limit: {unit: second, requests_per_unit: 5}, metadata: {tollgate: {algorithm: leaky_bucket}}}
  - {key: fading, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {algorithm: sliding_window}}}
  - {key: strict, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {algorithm: sliding_window, buckets: 6}}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {algorithm: sliding_log}}}
  - {key: id, rate_limit: {unit: hour, requests_per_unit: 5}, metadata: {tollgate: {algorithm: concurrency, lease_by: id, lease: 30s}}}
  - {key: api, descriptors: [
      {key: id, rate_limit: {unit: hour, requests_per_unit: 5}, metadata: {tollgate: {algorithm: concurrency, lease_by: id, lease: 9s}}},
      {key: call, rate_limit: {unit: hour, requests_per_unit: 5}, metadata: {tollgate: {algorithm: concurrency, lease_by: call, lease: 9s}}}]}
";

/// A descriptor, its key in the reference form (without a time, which a store writes behind it),
/// and its key in the safe form. No value leaves two underscores, and no character is escaped. What
/// the reference cannot count has the safe form in either case. Holders are not part of a key, and
/// neither is their lease; but the key that names them is.
const KEYS: &str = "
user=1 | shop_user_1_ | tg:shop:user:1:fixed_window:60:s:
user=bob | shop_user_bob_ | tg:shop:user:bob:fixed_window:1:s:
user= | shop_user__ | tg:shop:user::fixed_window:60:s:
user=a b_%:{} | shop_user_a b_%:{}_ | tg:shop:user:a%20b_%25%3A%7B%7D:fixed_window:60:s:
files=files/x | shop_files_files/*_ | tg:shop:files:files/*:fixed_window:3600:s:
path=/a1 | shop_path_/a1_ | tg:shop:path:/a1:fixed_window:86400:s:
path=/a1,ip=::1 | shop_path_/a1_ip_::1_ | tg:shop:path:/a1:ip:%3A%3A1:fixed_window:86400:s:
one=1 | shop_one_1_ | tg:shop:one:1:fixed_window:60:s:
five=1 | tg:shop:five:1:fixed_window:300:s: | tg:shop:five:1:fixed_window:300:s:
sixty=1 | tg:shop:sixty:1:fixed_window:60:s: | tg:shop:sixty:1:fixed_window:60:s:
drop=1 | tg:shop:drop:1:fixed_window:60:s: | tg:shop:drop:1:fixed_window:60:s:
bucket=1 | tg:shop:bucket:1:token_bucket:1000000:us | tg:shop:bucket:1:token_bucket:1000000:us
leaky=1 | tg:shop:leaky:1:leaky_bucket:1000000:us | tg:shop:leaky:1:leaky_bucket:1000000:us
fading=1 | tg:shop:fading:1:sliding_window:60000000:us | tg:shop:fading:1:sliding_window:60000000:us
strict=1 | tg:shop:strict:1:sliding_window-6:60000000:us | tg:shop:strict:1:sliding_window-6:60000000:us
log=1 | tg:shop:log:1:sliding_log:60000000:us | tg:shop:log:1:sliding_log:60000000:us
id=ann | tg:shop:id::concurrency:0:us | tg:shop:id::concurrency:0:us
api=pay,id=ann | tg:shop:api:pay:id::concurrency:0:us | tg:shop:api:pay:id::concurrency:0:us
api=pay,call=ann | tg:shop:api:pay:call::concurrency:0:us | tg:shop:api:pay:call::concurrency:0:us
";

#[test]
fn key_formats_are_as_documented() {
    for line in KEYS.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        for (format, key) in [KeyFormat::Reference, KeyFormat::Safe].into_iter().zip(&cells[1..]) {
            assert_eq!(key_of(&rules("", format), &query(cells[0])), *key, "{line}");
        }
    }
}

/// So counts survive a change of it in both directions, and envoyproxy/ratelimit finds them.
#[test]
fn keys_do_not_depend_on_consistency() {
    for format in KeyFormat::ALL {
        let exact = rules("", format);
        let leased = loaded(RULES, |options| {
            (options.key_format, options.default_consistency) = (format, Consistency::Leased);
        });
        let mut of_leased = Vec::new();
        for line in KEYS.trim().lines() {
            let (descriptor, _) = line.split_once(" | ").expect("a descriptor and keys");
            for query in [query(descriptor), limited(descriptor, Unit::Hour)] {
                assert_eq!(key_of(&leased, &query), key_of(&exact, &query), "{line}");
                let check = check(&leased, &query);
                if check.lease.is_some() {
                    of_leased.push((descriptor, check.limit.algorithm));
                }
            }
        }
        for (descriptor, algorithm) in [
            ("user=1", Algorithm::FixedWindow),
            ("drop=1", Algorithm::FixedWindow),
            ("fading=1", Algorithm::SlidingWindow),
            ("strict=1", Algorithm::SlidingWindow),
            ("bucket=1", Algorithm::TokenBucket),
        ] {
            let of_both = of_leased.iter().filter(|one| **one == (descriptor, algorithm));
            assert_eq!(of_both.count(), 2, "{descriptor}: {of_leased:?}");
        }
    }
}

#[test]
fn key_prefix_is_first_and_unchanged() {
    assert_eq!(key_of(&rules("a_b:", KeyFormat::Reference), &query("user=1")), "a_b:shop_user_1_");
    assert_eq!(
        key_of(&rules("a_b:", KeyFormat::Safe), &query("user=1")),
        "a_b:tg:shop:user:1:fixed_window:60:s:"
    );
}

#[test]
fn request_limits_share_the_counter_of_an_equal_window() {
    for format in KeyFormat::ALL {
        let rules = rules("", format);
        let own = limited("path=/a1,ip=::1", Unit::Day);
        assert_eq!(key_of(&rules, &own), key_of(&rules, &query("path=/a1,ip=::1")), "{format:?}");
        // For a period that no unit names there is none to share.
        let own = limited("five=1", Unit::Minute);
        assert_ne!(key_of(&rules, &own), key_of(&rules, &query("five=1")), "{format:?}");
    }
}

#[test]
fn calendar_months_change_safe_keys_only() {
    const MONTHS: &str = "
domain: shop
descriptors:
  - {key: one, rate_limit: {unit: month, requests_per_unit: 5}}
  - {key: drop, rate_limit: {unit: month, requests_per_unit: 5}, metadata: {tollgate: {over_limit_hits: drop}}}
  - {key: two, rate_limit: {unit: month, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 2}}}
  - {key: fading, rate_limit: {unit: month, requests_per_unit: 5}, metadata: {tollgate: {algorithm: sliding_window}}}
";
    let keys = |months: Windows, format: KeyFormat| {
        let rules = loaded(MONTHS, |options| {
            (options.windows, options.key_format) = (months, format);
        });
        ["one=1", "drop=1", "two=1", "fading=1"]
            .map(|descriptor| key_of(&rules, &query(descriptor)))
    };
    let [one, drop, two, fading] = keys(utc_months(), KeyFormat::Safe);
    assert_eq!(one, "tg:shop:one:1:fixed_window:month:s:");
    assert_eq!(drop, "tg:shop:drop:1:fixed_window:month:s:");
    assert_eq!(two, "tg:shop:two:1:fixed_window:5184000:s:");
    assert_eq!(fading, "tg:shop:fading:1:sliding_window:2592000000000:us");
    assert_eq!(keys(utc_months(), KeyFormat::Reference), ["shop_one_1_", &drop, &two, &fading]);
    assert_eq!(
        keys(Windows::Aligned, KeyFormat::Safe)[..2],
        ["tg:shop:one:1:fixed_window:2592000:s:", "tg:shop:drop:1:fixed_window:2592000:s:"]
    );
}

#[test]
fn request_limits_of_other_algorithms_have_safe_keys() {
    for format in KeyFormat::ALL {
        let rules = rules("", format);
        let key = |descriptor, unit| key_of(&rules, &limited(descriptor, unit));
        for (descriptor, unit) in [
            ("bucket=1", Unit::Second),
            ("leaky=1", Unit::Second),
            ("fading=1", Unit::Minute),
            ("strict=1", Unit::Minute),
            ("log=1", Unit::Minute),
        ] {
            assert_eq!(key(descriptor, unit), key_of(&rules, &query(descriptor)), "{format:?}");
        }
        for (descriptor, unit, expected) in [
            ("bucket=1", Unit::Hour, "tg:shop:bucket:1:token_bucket:3600000000:us"),
            ("drop=1", Unit::Hour, "tg:shop:drop:1:fixed_window:3600:s:"),
            // The holder is not part of the key, and the unit has no meaning.
            ("api=pay,id=ann", Unit::Year, "tg:shop:api:pay:id::concurrency:0:us"),
        ] {
            assert_eq!(key(descriptor, unit), expected, "{format:?}");
        }
    }
}

#[test]
fn explain_names_the_rule_of_a_request_limit() {
    let check = |descriptor: &str, change: fn(&mut CompileOptions), parts: &str| {
        let own = limited(descriptor, Unit::Hour);
        let text = explain(&loaded(RULES, change), &own, Modes::default()).text;
        for part in parts.lines() {
            assert!(text.contains(part.trim_start()), "{part}: {text}");
        }
    };
    check(
        "leaky=1",
        |_| {},
        "rule shop.leaky at shop.yaml:
        number and unit are stated by the request, everything else by rule shop.leaky
        => limit 9 per hour, leaky_bucket, burst 1, over-limit hits drop
        key   tg:shop:leaky:1:leaky_bucket:3600000000:us (safe form)
        algorithm: leaky_bucket (by the rule, shop.yaml:",
    );
    check(
        "user=1",
        |_| {},
        "stated by the request, and no tollgate block applies: a fixed window, as in envoyproxy/ratelimit
        key   shop_user_1_ (reference form; on Redis the window's start in seconds follows)",
    );
    check(
        "user=1",
        |options| options.default_consistency = Consistency::Leased,
        "everything else by rule shop.user
        => limit 9 per hour, fixed_window, over-limit hits drop
        key   shop_user_1_ (reference form;
        consistency: leased (by the setting, DEFAULT_CONSISTENCY): at most 0 of 9 hits held, given back after 2 s",
    );
    check(
        "nobody=1",
        |options| options.default_algorithm = Some(Algorithm::TokenBucket),
        "counted by DEFAULT_ALGORITHM: token_bucket
        => limit 9 per hour, token_bucket, burst 9",
    );
}

#[test]
fn request_limits_without_entries_are_keyed_by_domain() {
    let mut query = limited("user=1", Unit::Day);
    query.descriptors[0].entries.clear();

    assert_eq!(key_of(&rules("", KeyFormat::Reference), &query), "shop_");
    assert_eq!(key_of(&rules("", KeyFormat::Safe), &query), "tg:shop:fixed_window:86400:s:");
}

#[test]
fn only_safe_keys_are_truncated() {
    let descriptor = format!("user={}", "x".repeat(10_000));
    let reference = key_of(&rules("", KeyFormat::Reference), &query(&descriptor));
    assert_eq!(reference.len(), "shop_user__".len() + 10_000);
    let safe = key_of(&rules("", KeyFormat::Safe), &query(&descriptor));
    assert!(
        safe.len() < KEY_BYTES_MAX
            && safe.starts_with("tg:shop:#")
            && safe.ends_with(":fixed_window:60:s:"),
        "{safe}"
    );
}

#[test]
fn holders_are_named_by_the_last_value_or_its_hash() {
    let holder = |value: &str| {
        let descriptor = format!("api=pay,id={value}");
        let check = check(&rules("", KeyFormat::Safe), &query(&descriptor));
        String::from_utf8(check.holder.expect("it has one").into()).expect("it is text")
    };
    assert_eq!(holder("a b:{}"), "a b:{}");
    let longest = "x".repeat(HOLDER_BYTES_MAX);
    assert_eq!(holder(&longest), longest);
    let one = holder(&format!("{longest}1"));
    let other = holder(&format!("{longest}2"));
    assert!(one.len() == 33 && one.starts_with('#') && one != other, "{one} {other}");
}

proptest! {
    /// Of text, as before requests could have anything else; of any other bytes, by the same rule.
    #[test]
    fn keys_contain_the_bytes_of_the_request(user in bytes(), ip in bytes()) {
        let path = [b"/a", &*user].concat();
        let reference = key_of_bytes(&rules("p:", KeyFormat::Reference), &path, &ip);
        prop_assert_eq!(reference.as_bytes(), [b"p:shop_path_", &*path, b"_ip_", &*ip, b"_"].concat());
        if let (Ok(path), Ok(ip)) = (str::from_utf8(&path), str::from_utf8(&ip)) {
            prop_assert_eq!(reference.to_string(), format!("p:shop_path_{path}_ip_{ip}_"));
        }
        let safe = key_of_bytes(&rules("p:", KeyFormat::Safe), &path, &ip);
        let head = "p:tg:shop:".len();
        let tail = ":fixed_window:86400:s:".len();
        let parts = safe.as_bytes()[head..safe.as_bytes().len() - tail].split(|&byte| byte == b':');
        let read_back: Vec<Vec<u8>> = parts.map(|part| percent_decode(part).collect()).collect();
        prop_assert_eq!(read_back, [b"path", &*path, b"ip", &*ip]);
    }

    #[test]
    fn safe_keys_are_unique(one in (bytes(), bytes()), other in (bytes(), bytes())) {
        let rules = rules("", KeyFormat::Safe);
        let key = |(user, ip): &(Vec<u8>, Vec<u8>)| key_of_bytes(&rules, &[b"/a", &**user].concat(), ip);
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }
}

/// Bytes of which many are no text, and among which the marks of keys are frequent.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let letter = prop_oneof![any::<u8>(), prop::sample::select(&b"a_:%F\xff\xfe\xc3\xbc"[..])];
    prop::collection::vec(letter, 0..6)
}

/// Below a rule with a star, one that takes any value.
fn key_of_bytes(rules: &RuleSet, path: &[u8], ip: &[u8]) -> Key {
    let descriptor = Descriptor::new([Entry::new("path", path), Entry::new("ip", ip)]);
    let query = Query {
        domain: b"shop",
        descriptors: [descriptor].into_iter().collect(),
        ..Query::default()
    };
    check(rules, &query).key
}

fn query(descriptor: &str) -> Query<'_> {
    Query::of_entries("shop", descriptor.split(',')).expect("it can be read")
}

/// A query that brings a limit of its own.
fn limited(descriptor: &str, unit: Unit) -> Query<'_> {
    let mut query = query(descriptor);
    query.descriptors[0].limit =
        Some(Override { requests_per_unit: 9, unit: Some(unit), wire_unit: 0 });
    query
}

/// The first check of a request.
fn check(rules: &RuleSet, query: &Query<'_>) -> Check {
    let plan = plan(rules, query, Modes::default(), Time::default()).expect("its unit is one");
    plan.request.checks[0].clone()
}

fn key_of(rules: &RuleSet, query: &Query<'_>) -> String {
    check(rules, query).key.to_string()
}

fn rules(prefix: &str, key_format: KeyFormat) -> RuleSet {
    loaded(RULES, |options| {
        (options.key_prefix, options.key_format) = (prefix.into(), key_format);
    })
}

fn loaded(text: &str, set: impl FnOnce(&mut CompileOptions)) -> RuleSet {
    let mut options = CompileOptions::new(StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()));
    set(&mut options);
    let source = Source { name: "shop.yaml".into(), path: "shop.yaml".into(), text: text.into() };
    config::load(&[source], &options).expect("these rules are right").rules
}
