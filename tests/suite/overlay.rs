//! Options for rules that another system writes: the overlay by domain and path, and
//! the algorithm of those who name none.

use std::fs;

use crate::support::folder::Folder;
use crate::support::{
    TestServer, assert_settings_rejected, look_until, tollgate, tollgate_with_env,
};

/// As Envoy Gateway writes them, but for the last one.
const RULES: &str = "
domain: default/eg/http
descriptors:
  - key: default/route/rule/0
    value: default/route/rule/0
    descriptors:
      - key: rule-0-match-0
        value: one
        rate_limit: {unit: hour, requests_per_unit: 100}
      - key: masked_remote_address
        value: 0.0.0.0/0
        rate_limit: {unit: hour, requests_per_unit: 100}
  - key: own
    rate_limit: {unit: hour, requests_per_unit: 100}
    metadata: {tollgate: {algorithm: sliding_log}}
";

const OVERLAY: &str = "
overlays:
  - domain: '*/eg/*'
    tollgate: {all_or_nothing: true, defaults: {on_store_error: deny, algorithm: token_bucket, burst: 3}}
    rules:
      - path: '*.masked_remote_address_*'
        tollgate: {algorithm: leaky_bucket, burst: 2}
      - path: own
        tollgate: {on_store_error: allow}
";

const ROUTE: &str = "default/route/rule/0=default/route/rule/0";
const HEADER: &[&str] = &[ROUTE, "rule-0-match-0=one"];

/// The rules, and an overlay.
fn folder(overlay: &str) -> Folder {
    Folder::with(&[("rules/eg.yaml", RULES), ("overlay.yaml", overlay)])
}

/// What `explain` says of a descriptor.
fn explained(
    folder: &Folder,
    domain: &str,
    entries: &[&str],
    variables: &[(&str, &str)],
) -> String {
    let rules = folder.path("rules");
    let words = [&["explain", &rules, domain], entries].concat();
    let ran = tollgate_with_env(&words, variables);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

/// With these settings: TOLLGATE_OVERLAY, if it is to be used, and DEFAULT_ALGORITHM.
fn explained_by(folder: &Folder, has_overlay: bool, algorithm: &str, entries: &[&str]) -> String {
    let overlay = if has_overlay { folder.path("overlay.yaml") } else { String::new() };
    let variables = [("TOLLGATE_OVERLAY", &*overlay), ("DEFAULT_ALGORITHM", algorithm)];
    explained(folder, "default/eg/http", entries, &variables)
}

#[test]
fn explain_says_where_each_word_comes_from_and_the_strongest_counts() {
    let folder = folder(OVERLAY);
    let address: &[&str] = &[ROUTE, "masked_remote_address=0.0.0.0/0"];
    for (has_overlay, algorithm, entries, words) in [
        (
            true,
            "",
            address,
            "algorithm: leaky_bucket (by the overlay's rules, OVERLAY:7)
             burst: 2 (by the overlay's rules, OVERLAY:7)
             on_store_error: deny (by the overlay's defaults, OVERLAY:4)",
        ),
        (
            true,
            "sliding_window",
            HEADER,
            "algorithm: token_bucket (by the overlay's defaults, OVERLAY:4)
             burst: 3 (by the overlay's defaults, OVERLAY:4)",
        ),
        (
            true,
            "sliding_window",
            &["own=x"],
            "algorithm: sliding_log (by the rule, RULES:15)
             on_store_error: allow (by the overlay's rules, OVERLAY:9)",
        ),
        (
            false,
            "sliding_window",
            HEADER,
            "algorithm: sliding_window (by the setting, DEFAULT_ALGORITHM)",
        ),
    ] {
        let said = explained_by(&folder, has_overlay, algorithm, entries);
        let words = words.replace("OVERLAY", &folder.path("overlay.yaml"));
        for word in words.replace("RULES", &folder.path("rules/eg.yaml")).lines() {
            assert!(said.contains(&format!("\n     {}\n", word.trim())), "{word}: {said}");
        }
        // A burst is not for a log.
        assert!(!said.contains("sliding_log") || !said.contains("burst"), "{said}");
    }
    let none = explained_by(&folder, false, "", HEADER);
    assert!(!none.contains("algorithm:") && none.contains("fixed_window"), "{none}");
}

/// `explain` prints paths with their domain. A domain with a key of its own name has such paths
/// itself: there an overlay keeps its meaning.
#[test]
fn overlay_accepts_the_path_that_explain_prints() {
    const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 9}";
    let own_name = format!("\n- {{key: shop, descriptors: [{{key: user, {LIMIT}}}]}}");
    let user: &[&str] = &["user=1"];
    let path = format!("{{key: path, value: /a*, {LIMIT}}}");
    for (more, overlay_path, entries, is_meant) in [
        ("", "user", user, true),
        ("", "shop.user", user, true),
        ("", "sho*.user", user, false),
        ("", "shop.us*", user, true),
        ("", "shop.path_/a*", &["path=/ab"], true),
        ("", "web.user", user, false),
        (&*own_name, "shop.user", user, false),
        (&own_name, "shop.user", &["shop=1", "user=1"], true),
        (&own_name, "shop.shop.user", &["shop=1", "user=1"], false),
        (&own_name, "user", user, true),
    ] {
        let rules =
            format!("domain: shop\ndescriptors:\n- {path}\n- {{key: user, {LIMIT}}}{more}\n");
        let overlay = format!(
            "overlays: [{{domain: '*', rules: [{{path: '{overlay_path}', tollgate: {{algorithm: token_bucket}}}}]}}]"
        );
        let folder = Folder::with(&[("rules/shop.yaml", &rules), ("overlay.yaml", &overlay)]);
        let overlay = folder.path("overlay.yaml");
        let said = explained(&folder, "shop", entries, &[("TOLLGATE_OVERLAY", &overlay)]);
        let case = format!("{overlay_path} for {entries:?}{more}: {said}");
        assert_eq!(said.contains("token_bucket"), is_meant, "{case}");
        let checked = tollgate(&["check", &folder.path("rules"), "--tollgate-overlay", &overlay]);
        let is_idle = checked.stdout.contains("there is no such rule");
        assert!(!is_meant || !is_idle, "{case}: {checked:?}");
    }
}

#[test]
fn default_algorithm_is_how_rules_count_that_say_nothing() {
    let server =
        TestServer::with_rules(RULES).with_env("DEFAULT_ALGORITHM", "leaky_bucket").start();
    let body =
        r#"{"domain":"default/eg/http","descriptors":[{"entries":[{"key":"KEY","value":"v"}]}]}"#;
    let own = body.replace("KEY", "own");
    assert_eq!((server.json(&own).status, server.json(&own).status), (200, 200), "a log of 100");
    let route = r#"{"key":"default/route/rule/0","value":"default/route/rule/0"},{"key":"rule-0-match-0","value":"one"}"#;
    let route = body.replace(r#"{"key":"KEY","value":"v"}"#, route);
    assert_eq!(
        (server.json(&route).status, server.json(&route).status),
        (200, 429),
        "one at a time"
    );
}

/// An overlay | DEFAULT_CONSISTENCY | what `explain` says of it for the rule of a header.
const CONSISTENCIES: &str = "
[] | | none
[] | leased | leased (by the setting, DEFAULT_CONSISTENCY): at most 10 of 100 hits held, given back after 2 s
[{domain: '*', rules: [{path: '*', tollgate: {consistency: leased, lease: 5s}}]}] | exact | leased (by the overlay's rules, FILE:1): at most 10 of 100 hits held, given back after 5 s
[{domain: '*', tollgate: {defaults: {lease: 5s}}, rules: [{path: '*', tollgate: {consistency: leased}}]}] | | leased (by the overlay's rules, FILE:1): at most 10 of 100 hits held, given back after 2 s
[{domain: '*', tollgate: {defaults: {consistency: exact}}}] | leased | exact (by the overlay's defaults, FILE:1)
";

#[test]
fn consistency_has_the_precedence_of_algorithm() {
    let check = |overlay: &str, setting: &str, entries: &[&str], expected: &str| {
        let folder = folder(&format!("overlays: {overlay}\n"));
        let path = folder.path("overlay.yaml");
        let variables = [("TOLLGATE_OVERLAY", &*path), ("DEFAULT_CONSISTENCY", setting)];
        let said = explained(&folder, "default/eg/http", entries, &variables);
        let shown = said.lines().find_map(|line| line.trim().strip_prefix("consistency: "));
        let expected = expected.replace("FILE", &path);
        assert_eq!(shown.unwrap_or("none"), expected, "{overlay} {setting}: {said}");
    };
    for line in CONSISTENCIES.trim().lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [overlay, setting, expected] = cells[..] else { panic!("three cells, not {line}") };
        check(overlay, setting, HEADER, expected);
    }
    // Hits of a log have times.
    let leased = "[{domain: '*', tollgate: {defaults: {consistency: leased}}}]";
    check(leased, "leased", &["own=x"], "none");
}

#[test]
fn defaults_of_the_process_must_need_no_more_than_their_names() {
    assert_settings_rejected(
        || TestServer::with_rules(RULES),
        "
DEFAULT_CONSISTENCY=foo => write one of exact, leased
DEFAULT_ALGORITHM=concurrency => DEFAULT_ALGORITHM
DEFAULT_ALGORITHM=gcra => write one of fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket",
    );
}

#[test]
fn overlay_is_reloaded_and_an_invalid_one_changes_nothing() {
    let folder = Folder::with(&[]);
    let write = |overlays: &str| folder.write("overlay.yaml", &format!("overlays: {overlays}\n"));
    let default_to = |algorithm: &str| {
        write(&format!("[{{domain: '*', tollgate: {{defaults: {{algorithm: {algorithm}}}}}}}]"))
    };
    let overlay = default_to("token_bucket");
    let server = TestServer::with_rules(RULES).with_env("TOLLGATE_OVERLAY", &overlay).start();
    let page = || {
        server.admin(&format!(
            "/explain?domain=default/eg/http&descriptor={ROUTE}&descriptor=rule-0-match-0%3Done"
        ))
    };
    assert!(page().contains("algorithm: token_bucket"), "{}", page());

    default_to("sliding_window");
    look_until("the new overlay counts", || page().contains("algorithm: sliding_window"));

    default_to("sliding_widow");
    look_until("the invalid overlay is logged", || {
        server.metric("tollgate_rules_rejected") == Some(1.0)
    });
    server.assert_logged("did you mean `sliding_window`?");
    server.assert_logged(&format!("{overlay}:1:"));
    assert!(page().contains("algorithm: sliding_window"), "the last good one counts");

    fs::remove_file(&overlay).expect("it exists");
    look_until("its removal is logged", || server.log().contains("TOLLGATE_OVERLAY: read "));
    assert!(page().contains("algorithm: sliding_window"), "the last good one counts");

    write("[]");
    look_until("an empty one counts", || !page().contains("algorithm:"));
    look_until("no rules are rejected", || server.metric("tollgate_rules_rejected") == Some(0.0));
}

#[test]
fn requests_of_a_domain_are_all_or_nothing_if_the_overlay_says_so() {
    let folder = folder(OVERLAY);
    let request = r#"{"domain":"default/eg/http","descriptors":[
        {"entries":[{"key":"own","value":"x"}]},
        {"entries":[{"key":"own","value":"y"}]}
    ]}"#;
    let arguments = ["explain", &folder.path("rules"), "--json", request];
    let is_applied = |variables: &[(&str, &str)]| {
        tollgate_with_env(&arguments, variables).stdout.contains("all or nothing")
    };
    let overlay = folder.path("overlay.yaml");
    assert!(is_applied(&[("TOLLGATE_OVERLAY", &overlay)]) && !is_applied(&[]));
}

/// Overlays, and what the check of rules says of them: the first line that has to be there.
/// Conflicts are reported at the rule, with the source of each option.
pub(crate) const FINDINGS: &str = "
[{domain: shop, tollgate: {all_or_nothing: true}}] => warning: overlay.yaml: there is no such domain
[{domain: '*', rules: [{path: user, tollgate: {burst: 1}}]}] => warning: overlay.yaml: there is no such rule
[{domain: '*', rules: [{path: '*', tollgate: {burst: 1}}]}] => warning: overlay.yaml: `burst` has no effect on any matching rule: it does not apply, or a block with higher precedence sets it
[{domain: '*', rules: [{path: own, tollgate: {algorithm: token_bucket}}]}] => warning: overlay.yaml: `algorithm` has no effect on any matching rule
[{domain: '*', rules: [{path: own, tollgate: {consistency: leased}}]}] => warning: overlay.yaml: `consistency` has no effect on any matching rule
[{domain: '*', rules: [{path: '*', tollgate: {lease: 5s}}]}] => warning: overlay.yaml: `lease` has no effect on any matching rule
[{domain: '*', rules: [{path: '*', tollgate: {consistency: fast}}]}] => overlay.yaml: 'fast' is no value of `consistency`
[{tollgate: {}}] => overlay.yaml: an overlay without `domain`
[{domain: '*', rules: [{path: own}]}] => overlay.yaml: rules of an overlay need `path` and `tollgate`
{domain: '*'} => overlay.yaml: expected a list
[{domain: '*', tollgate: {algorithm: token_bucket}}] => overlay.yaml: unknown key 'algorithm'
[ => overlay.yaml:
[{domain: '*', tollgate: {defaults: {limits: [{requests: 9, unit: day}]}}}] => overlay.yaml: `limits` for many rules
[{domain: '*', tollgate: {defaults: {calendar: Europe/Berln}}}] => overlay.yaml: unknown time zone 'Europe/Berln'; did you mean `Europe/Berlin`?
[{domain: '*', rules: [{path: own, tollgate: {warn_at: 101%}}]}] => overlay.yaml: `warn_at` has 1 to 4 different shares from 1% to 100%
[{domain: '*', rules: [{path: own, tollgate: {calendar: UTC}}]}] => warning: overlay.yaml: `calendar` has no effect on any matching rule
[{domain: '*', rules: [{path: own, tollgate: {parents: true}}]}] => warning: overlay.yaml: `parents` has no effect on any matching rule
[{domain: '*', rules: [{path: own, tollgate: {limits: [{requests: 9, unit: day, burst: 3}]}}]}] => set elsewhere: limits: [{requests: 9, unit: day, burst: 3}] (by the overlay's rules,
[{domain: '*', rules: [{path: own, tollgate: {limits: [{requests: 9, unit: day}, {requests: 8, unit: day}]}}]}] => write a `name` that no other limit has; set elsewhere: limits: [
[{domain: '*', tollgate: {defaults: {algorithm: token_bucket, on_limit: queue}}}] => set elsewhere: algorithm: token_bucket (by the overlay's defaults,
";

#[test]
fn check_tells_what_is_wrong_with_an_overlay_and_what_of_it_is_idle() {
    let check = |text: &str, expected: &str| {
        let folder = folder(text);
        let overlay = folder.path("overlay.yaml");
        let ran = tollgate(&["check", &folder.path("rules"), "--tollgate-overlay", &overlay]);
        let is_warned = expected.starts_with("warning");
        assert_eq!(ran.code, Some(if is_warned { 0 } else { 78 }), "{text}: {ran:?}");
        let said = if is_warned { &ran.stdout } else { &ran.stderr };
        assert!(said.contains(expected), "{text}: {ran:?}");
    };
    for line in FINDINGS.trim().lines() {
        let (overlays, expected) = line.split_once(" => ").expect("overlays => a text");
        check(&format!("overlays: {overlays}"), expected.trim_end());
    }
    check("overlay: []", "overlay.yaml: unknown key 'overlay'");
    let many = "\n  - {domain: d}".repeat(1_001);
    check(&format!("overlays:{many}\n"), "1001 blocks, more than the 1000 of overlay_blocks_max");
}
