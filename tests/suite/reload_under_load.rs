//! Rules are reloaded a thousand times while clients call: no request is lost, no counter is reset,
//! and nothing leaks.

use std::fs;

use crate::reload::has_limit;
use crate::support::traffic::{Calls, Traffic};
use crate::support::{TestServer, limit_of, look_until, resident_peak_kib};

/// Reloads before memory is compared: enough for what is allocated once and kept.
const WARM_UP: u32 = 200;
const RELOADS: u32 = 1_000;
const LIMIT: u32 = 1_000_000;
/// Memory that an allocator may keep of them.
const GROWTH_MAX_KIB: u64 = 4 * 1024;

#[test]
fn a_thousand_reloads_lose_no_request_reset_no_counter_and_leak_nothing() {
    let server = TestServer::with_rules(&limit_of(LIMIT)).start();
    // Each file is written as an editor does, and loaded on SIGHUP.
    let reload = |number: u32| {
        server.write("rules.yaml", &format!("{}# {number}\n", limit_of(LIMIT + number)));
        server.signal("HUP");
        look_until("the newest rules serve", || has_limit(&server, "d.k", LIMIT + number));
    };
    let count = |what: &str| {
        fs::read_dir(format!("/proc/{}/{what}", server.pid())).expect("the process runs").count()
    };
    let metric_lines = || server.admin("/metrics").lines().count();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"VALUE"}]}]}"#;
    let used_before = |value: &str, limit: u32| {
        let answer = server.json(&body.replace("VALUE", value)).json();
        let remaining =
            answer["statuses"][0]["limitRemaining"].as_u64().expect("a limit has a remainder");
        u64::from(limit) - remaining - 1
    };

    (1..=WARM_UP).for_each(reload);
    // The metrics of the rule exist from now on.
    assert_eq!(used_before("another", LIMIT + WARM_UP), 0);
    let (descriptors, threads, lines, resident) =
        (count("fd"), count("task"), metric_lines(), resident_peak_kib(server.pid()));

    let traffic = Traffic::start(&server, [Calls { key: "k", values: 1, deadline: None }]);
    let last = WARM_UP + RELOADS;
    (WARM_UP + 1..=last).for_each(reload);
    traffic.wait_for_answers(1);
    let [answers] = traffic.finish();
    assert!(answers.errors.is_empty() && answers.over_limit() == 0, "{answers:?}");

    for limits in &answers.limits {
        assert!(limits.len() > 1 && limits.is_sorted(), "old rules after new ones: {limits:?}");
    }

    let loads = server.metric("ratelimit_service_config_load_success");
    assert!(loads >= Some(f64::from(last)), "{loads:?}");
    let total = server.metric(r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k"}"#);
    let total = total.map(|total| total.to_string());
    assert_eq!(total, Some((answers.ok() + 1).to_string()), "every call is counted once");
    let used = used_before("0", LIMIT + last);
    assert_eq!(used, answers.ok(), "one counter from the first call to the last");

    look_until("the process has no more descriptors and threads", || {
        count("fd") <= descriptors && count("task") <= threads
    });
    assert_eq!(metric_lines(), lines);
    let grown = resident_peak_kib(server.pid()).saturating_sub(resident);
    let before = format!("{resident} KiB before {RELOADS} reloads");
    assert!(grown < GROWTH_MAX_KIB, "{grown} KiB more than the {before}");
}
