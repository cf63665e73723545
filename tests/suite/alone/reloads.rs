//! Rules come a thousand times over while clients call, and nobody notices.

use std::fs;

use crate::load::process::Memory;
use crate::reload::has_limit;
use crate::support::traffic::Traffic;
use crate::support::{TestServer, alone, limit_of, look_until};

/// Each is written as an editor does, asked for by SIGHUP, and waited for.
#[test]
fn a_thousand_reloads_under_load_lose_no_request_reset_no_counter_and_leak_nothing() {
    /// Enough for whatever is allocated once and kept.
    const WARM: u32 = 200;
    const RELOADS: u32 = 1_000;
    const LIMIT: u32 = 1_000_000;
    let _alone = alone();
    let server = TestServer::with_rules(&limit_of(LIMIT)).start();
    let reload = |number: u32| {
        server.write("rules.yaml", &format!("{}# {number}\n", limit_of(LIMIT + number)));
        server.signal("HUP");
        look_until("the newest rules serve", || has_limit(&server, "d.k", LIMIT + number));
    };
    let held = || {
        let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", server.pid())).expect("it runs").count();
        let resident = Memory::of(&server.pid().to_string()).expect("it runs").resident_kib;
        (count("fd"), count("task"), server.admin("/metrics").lines().count(), resident)
    };
    let only_v0 = ["--domain=d", "--key=k", "--keys=1", "--value-prefix=v"];
    let options = [&only_v0[..], &["--rate=200", "--connections=2", "--duration=4s", "--timeout=60s"]].concat();
    let options: Vec<String> = options.into_iter().map(str::to_owned).collect();

    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"VALUE"}]}]}"#;
    let used = |value: &str, reloads: u32| {
        let answer: serde_json::Value = serde_json::from_str(&server.json(&body.replace("VALUE", value)).body).expect("it is JSON");
        let remaining = answer["statuses"][0]["limitRemaining"].as_u64().expect("something remains");
        u64::from(LIMIT + reloads) - remaining - 1
    };

    (1..=WARM).for_each(reload);
    assert_eq!(used("another", WARM), 0, "and its metrics are there from now on");
    let before = held();
    let mut sent = 0;
    let mut reloads = WARM;
    // As long as it takes on this machine.
    while reloads < WARM + RELOADS {
        let traffic = Traffic::to(&server, std::array::from_ref(&options));
        let until = (reloads + RELOADS / 4).min(WARM + RELOADS);
        (reloads + 1..=until).for_each(reload);
        reloads = until;
        let [seen] = traffic.finish();
        seen.is_complete();
        seen.has_no_error_but(&[]);
        assert_eq!((seen.ok, seen.over_limit), (seen.sent, 0), "{seen:?}");
        sent += seen.sent;
    }
    assert!(server.metric("ratelimit_service_config_load_success").is_some_and(|loads| loads >= f64::from(WARM + RELOADS)));
    let total = server.metric(r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k"}"#);
    assert_eq!(total.map(|total| total.to_string()), Some((sent + 1).to_string()), "every call was counted, and none twice");
    assert_eq!(used("v0", reloads), sent, "one counter from the first call to the last");

    // A connection of this test's own may take a moment to go.
    look_until("it has no more file descriptors and threads than before", || held().0 <= before.0 && held().1 <= before.1);
    let after = held();
    assert_eq!(after.2, before.2, "lines of metrics");
    assert!(after.3 < before.3 + 4 * 1024, "{} KiB after {RELOADS} reloads, {} before", after.3, before.3);
}
