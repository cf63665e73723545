//! Options for rules that another system writes: the overlay by domain and path, and
//! the algorithm of those who name none.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::{
    TestServer, assert_settings_rejected, look_until, tollgate, tollgate_with_env, write,
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

/// A file of its own, gone with it.
struct OverlayFile {
    directory: TempDir,
}

impl OverlayFile {
    fn new(text: &str) -> Self {
        let file = Self { directory: TempDir::new().expect("a temporary directory can be made") };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("overlay.yaml")
    }

    fn text(&self) -> String {
        self.path().display().to_string()
    }

    fn write(&self, text: &str) {
        write(&self.path(), text);
    }
}

/// What `explain` says of a descriptor, in a directory of rules with one file.
fn explained(rules: &Path, overlay: &str, algorithm: &str, entries: &[&str]) -> String {
    let rules = rules.display().to_string();
    explained_in(&rules, "default/eg/http", overlay, algorithm, entries)
}

fn explained_in(
    rules: &str,
    domain: &str,
    overlay: &str,
    algorithm: &str,
    entries: &[&str],
) -> String {
    let variables = [("TOLLGATE_OVERLAY", overlay), ("DEFAULT_ALGORITHM", algorithm)];
    let ran = tollgate_with_env(&[&["explain", rules, domain], entries].concat(), &variables);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

fn rules() -> TempDir {
    let directory = TempDir::new().expect("a temporary directory can be made");
    fs::write(directory.path().join("eg.yaml"), RULES).expect("a file can be written");
    directory
}

const ROUTE: &str = "default/route/rule/0=default/route/rule/0";

#[test]
fn explain_says_where_each_word_comes_from_and_the_strongest_counts() {
    let rules = rules();
    let overlay = OverlayFile::new(OVERLAY);
    let file = overlay.text();
    let rules_file = rules.path().join("eg.yaml");
    let rules_file = rules_file.display();
    let address: &[&str] = &[ROUTE, "masked_remote_address=0.0.0.0/0"];
    let header: &[&str] = &[ROUTE, "rule-0-match-0=one"];
    for (overlay, algorithm, entries, words) in [
        (
            &*file,
            "",
            address,
            vec![
                format!("algorithm: leaky_bucket (by the overlay's rules, {file}:7)"),
                format!("burst: 2 (by the overlay's rules, {file}:7)"),
                format!("on_store_error: deny (by the overlay's defaults, {file}:4)"),
            ],
        ),
        (
            &file,
            "sliding_window",
            header,
            vec![
                format!("algorithm: token_bucket (by the overlay's defaults, {file}:4)"),
                format!("burst: 3 (by the overlay's defaults, {file}:4)"),
            ],
        ),
        (
            &file,
            "sliding_window",
            &["own=x"],
            vec![
                format!("algorithm: sliding_log (by the rule, {rules_file}:15)"),
                format!("on_store_error: allow (by the overlay's rules, {file}:9)"),
            ],
        ),
        (
            "",
            "sliding_window",
            header,
            vec!["algorithm: sliding_window (by the setting, DEFAULT_ALGORITHM)".to_owned()],
        ),
    ] {
        let said = explained(rules.path(), overlay, algorithm, entries);
        for word in words {
            assert!(said.contains(&format!("\n     {word}\n")), "{word}: {said}");
        }
        // A burst is not for a log.
        assert!(!said.contains("sliding_log") || !said.contains("burst"), "{said}");
    }
    let none = explained(rules.path(), "", "", header);
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
        let directory = TempDir::new().expect("a temporary directory can be made");
        let rules =
            format!("domain: shop\ndescriptors:\n- {path}\n- {{key: user, {LIMIT}}}{more}\n");
        write(&directory.path().join("shop.yaml"), &rules);
        let overlay = OverlayFile::new(&format!(
            "overlays: [{{domain: '*', rules: [{{path: '{overlay_path}', tollgate: {{algorithm: token_bucket}}}}]}}]"
        ));
        let folder = directory.path().display().to_string();
        let said = explained_in(&folder, "shop", &overlay.text(), "", entries);
        let case = format!("{overlay_path} for {entries:?}{more}: {said}");
        assert_eq!(said.contains("token_bucket"), is_meant, "{case}");
        let checked = tollgate(&["check", &folder, "--tollgate-overlay", &overlay.text()]);
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

#[test]
fn consistency_has_the_precedence_of_algorithm() {
    let rules = rules();
    let (header, log): (&[&str], &[&str]) = (&[ROUTE, "rule-0-match-0=one"], &["own=x"]);
    let held = "at most 10 of 100 hits held, given back after";
    for (overlay, setting, entries, expected) in [
        ("[]", "", header, None),
        (
            "[]",
            "leased",
            header,
            Some(format!("leased (by the setting, DEFAULT_CONSISTENCY): {held} 2 s")),
        ),
        (
            "[{domain: '*', rules: [{path: '*', tollgate: {consistency: leased, lease: 5s}}]}]",
            "exact",
            header,
            Some(format!("leased (by the overlay's rules, FILE:1): {held} 5 s")),
        ),
        (
            "[{domain: '*', tollgate: {defaults: {lease: 5s}}, rules: [{path: '*', tollgate: {consistency: leased}}]}]",
            "",
            header,
            Some(format!("leased (by the overlay's rules, FILE:1): {held} 2 s")),
        ),
        (
            "[{domain: '*', tollgate: {defaults: {consistency: exact}}}]",
            "leased",
            header,
            Some("exact (by the overlay's defaults, FILE:1)".to_owned()),
        ),
        // Its hits have times.
        ("[{domain: '*', tollgate: {defaults: {consistency: leased}}}]", "leased", log, None),
    ] {
        let file = OverlayFile::new(&format!("overlays: {overlay}\n"));
        let rules = rules.path().display().to_string();
        let path = file.text();
        let variables = [("TOLLGATE_OVERLAY", &*path), ("DEFAULT_CONSISTENCY", setting)];
        let arguments = [&["explain", &rules, "default/eg/http"], entries].concat();
        let said = tollgate_with_env(&arguments, &variables).stdout;
        let shown = said.lines().find_map(|line| line.trim().strip_prefix("consistency: "));
        let expected = expected.map(|text| text.replace("FILE", &path));
        assert_eq!(shown, expected.as_deref(), "{overlay} {setting}: {said}");
    }
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
    let overlay = OverlayFile::new(
        "overlays: [{domain: '*', tollgate: {defaults: {algorithm: token_bucket}}}]\n",
    );
    let server =
        TestServer::with_rules(RULES).with_env("TOLLGATE_OVERLAY", &overlay.text()).start();
    let page = || {
        server.admin(&format!(
            "/explain?domain=default/eg/http&descriptor={ROUTE}&descriptor=rule-0-match-0%3Done"
        ))
    };
    assert!(page().contains("algorithm: token_bucket"), "{}", page());

    overlay.write("overlays: [{domain: '*', tollgate: {defaults: {algorithm: sliding_window}}}]\n");
    look_until("the new overlay counts", || page().contains("algorithm: sliding_window"));

    overlay.write("overlays: [{domain: '*', tollgate: {defaults: {algorithm: sliding_widow}}}]\n");
    look_until("the invalid overlay is logged", || {
        server.metric("tollgate_rules_rejected") == Some(1.0)
    });
    server.assert_logged("did you mean `sliding_window`?");
    server.assert_logged(&format!("{}:1:", overlay.text()));
    assert!(page().contains("algorithm: sliding_window"), "the last good one counts");

    fs::remove_file(overlay.path()).expect("it exists");
    look_until("its removal is logged", || server.log().contains("TOLLGATE_OVERLAY: read "));
    assert!(page().contains("algorithm: sliding_window"), "the last good one counts");

    overlay.write("overlays: []\n");
    look_until("an empty one counts", || !page().contains("algorithm:"));
    look_until("no rules are rejected", || server.metric("tollgate_rules_rejected") == Some(0.0));
}

#[test]
fn requests_of_a_domain_are_all_or_nothing_if_the_overlay_says_so() {
    let rules = rules();
    let overlay = OverlayFile::new(OVERLAY);
    let request = r#"{"domain":"default/eg/http","descriptors":[
        {"entries":[{"key":"own","value":"x"}]},
        {"entries":[{"key":"own","value":"y"}]}
    ]}"#;
    let arguments = ["explain", &rules.path().display().to_string(), "--json", request];
    let is_applied = |variables: &[(&str, &str)]| {
        tollgate_with_env(&arguments, variables).stdout.contains("all or nothing")
    };
    assert!(is_applied(&[("TOLLGATE_OVERLAY", &overlay.text())]) && !is_applied(&[]));
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
    let rules = rules();
    let check = |text: &str, expected: &str| {
        let overlay = OverlayFile::new(text);
        let rules = rules.path().display().to_string();
        let ran = tollgate(&["check", &rules, "--tollgate-overlay", &overlay.text()]);
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
