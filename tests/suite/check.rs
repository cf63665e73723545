//! `tollgate check` in a pull request: what it reads, in which formats it reports, and when it fails.
//! `cli.rs` has what it reports about a folder.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::support::repository::Repository;
use crate::support::{
    limit_of, sample, tollgate, tollgate_on_a_terminal, tollgate_with_env, tollgate_with_stdin,
    write,
};

const INVALID: &str = "domain: shop\ndescriptors: [{kee: user}]\n";
/// A stream of manifests: the third has a mistake.
const MANIFESTS: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: tollgate}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: rules}
data:
  shop.yaml: |
    # the shop
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 3}
  envoy.yaml: |
    static_resources: {}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other-rules}
data:
  shop.yaml: |
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minutes, requests_per_unit: 3}
";

const AMBIGUOUS: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: user_agent
    rate_limit: {unit: minute, requests_per_unit: 5}
";

fn path(folder: &TempDir, name: &str) -> String {
    let path = folder.path().join(name);
    path.to_str().expect("a plain name").to_owned()
}

fn written(folder: &TempDir, name: &str, text: &str) -> String {
    let path = path(folder, name);
    write(Path::new(&path), text);
    path
}

#[test]
fn config_maps_on_stdin_are_checked_with_their_positions() {
    let ran = tollgate_with_stdin(&["check", "-"], MANIFESTS);
    let mistake = "
  --> stdin:26:28 (domain shop > descriptors[0].rate_limit)
    |
 26 |         rate_limit: {unit: minutes, requests_per_unit: 3}
    |                            ^^^^^^^
";
    ran.assert_failed(78, &["tollgate: 1 problem in stdin\n", mistake]);
    let ran = tollgate_with_stdin(&["check", "-"], &MANIFESTS.replace("minutes", "minute"));
    // Each ConfigMap is a folder of its own, so both may have the domain.
    let expected = "stdin: ok, 2 limits in 2 domains of 2 files\n";
    assert_eq!((ran.code, &*ran.stdout), (Some(0), expected), "{ran:?}");
}

#[test]
fn files_and_folders_are_one_set_of_rules() {
    let folder = TempDir::new().expect("a temporary directory");
    let one = written(&folder, "one.yaml", &limit_of(1));
    written(&folder, "rules/two.yaml", "domain: two\n");
    let rules = path(&folder, "rules");
    let ran = tollgate(&["check", &one, &rules]);
    let expected = format!("{one} and 1 other path: ok, 1 limit in 2 domains of 2 files\n");
    assert_eq!((ran.code, ran.stdout), (Some(0), expected));
    written(&folder, "rules/two.yaml", &limit_of(2));
    let ran = tollgate(&["check", &one, &rules]);
    ran.assert_failed(78, &["two.yaml: duplicate domain"]);
}

#[test]
fn missing_files_are_named() {
    let ran = tollgate(&["check", "/no/such/rules.yaml"]);
    let expected = "tollgate: read /no/such/rules.yaml: No such file or directory (os error 2)\n";
    assert_eq!((ran.code, &*ran.stderr), (Some(78), expected));
}

#[test]
fn manifests_without_rules_are_a_warning() {
    let text = "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n";
    let ran = tollgate_with_stdin(&["check", "-"], text);
    ran.assert_printed(0, &["nothing would be limited"]);
}

#[test]
fn json_has_every_finding_and_its_place() {
    let ran = tollgate_with_stdin(&["check", "-", "--format", "json"], MANIFESTS);
    assert_eq!(ran.code, Some(78));
    let report = ran.json();
    let expected = json!({
        "valid": false, "files": 2, "domains": 1, "limits": 1,
        "findings": [{
            "severity": "error", "file": "stdin", "line": 26, "column": 28, "end_column": 35,
            "line_within": null, "place": "domain shop > descriptors[0].rate_limit",
            "message": "invalid rate limit unit 'minutes'",
            "hint": "write one of second, minute, hour, day, week, month, year",
        }],
    });
    assert_eq!(report, expected);
}

#[test]
fn a_mistake_in_quoted_data_is_reported_at_the_data() {
    let manifest = json!({
        "apiVersion": "v1", "kind": "List",
        "items": [{"apiVersion": "v1", "kind": "ConfigMap", "data": {
            "shop.yaml": "domain: shop\ndescriptors:\n  - kee: user\n",
        }}],
    });
    let ran = tollgate_with_stdin(&["check", "-", "--format", "json"], &manifest.to_string());
    let finding = &ran.json()["findings"][0];
    let place = ["file", "line", "line_within"].map(|name| &finding[name]);
    assert_eq!(json!(place), json!(["stdin", 1, 3]));
}

#[test]
fn annotations_of_github_are_one_line_each() {
    let folder = TempDir::new().expect("a temporary directory");
    let file = written(&folder, "50%,rules.yaml", AMBIGUOUS);
    let escaped = file.replace('%', "%25").replace(',', "%2C");
    let ran = tollgate(&["check", &file, "--format", "github"]);
    let expected = format!(
        "::warning file={escaped},line=3,col=5,endColumn=5::user=agent_x and user_agent=x share a counter on Redis%0A\
         set CACHE_KEY_FORMAT=safe (every counter starts again, once), or rename a key\n"
    );
    assert_eq!((ran.code, ran.stdout), (Some(0), expected));
}

#[test]
fn warnings_fail_if_they_are_denied_and_notes_do_not() {
    let folder = TempDir::new().expect("a temporary directory");
    let file = written(&folder, "rules.yaml", AMBIGUOUS);
    for format in ["text", "json", "github"] {
        let ran = tollgate(&["check", &file, "--format", format]);
        assert_eq!(ran.code, Some(0), "{format}");
        let denied = tollgate(&["check", &file, "--format", format, "--deny-warnings"]);
        assert_eq!(denied.code, Some(78), "{format}");
        assert_eq!(denied.stdout, ran.stdout, "{format}");
        assert!(denied.stderr.contains("1 warning in "), "{denied:?}");
    }
    let safe = tollgate(&["check", &file, "--deny-warnings", "--cache-key-format", "safe"]);
    assert_eq!(safe.code, Some(0), "{safe:?}");
    for rules in ["config", "deploy/envoy/rules"] {
        let ran = tollgate(&["check", &sample(rules), "--deny-warnings"]);
        ran.assert_printed(0, &["note: "]);
    }
}

#[test]
fn leased_rules_and_long_periods_have_one_note_each_if_one_process_counts() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: daily, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: monthly, rate_limit: {unit: month, requests_per_unit: 100}}
  - {key: exact, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 100}, metadata: {tollgate: {consistency: leased}}}
  - {key: two, rate_limit: {unit: hour, requests_per_unit: 100}, metadata: {tollgate: {consistency: leased}}}
";
    const NOTES: [&str; 2] = [
        "consistency: leased has no effect with BACKEND_TYPE=memory: one process is always exact",
        "with BACKEND_TYPE=memory a restart loses the counters of limits of a day or more",
    ];
    let folder = TempDir::new().expect("a temporary directory");
    let file = written(&folder, "rules.yaml", RULES);
    for (backend, notes) in [("memory", 1), ("redis", 0), ("", 0)] {
        let ran = tollgate_with_env(&["check", &file], &[("BACKEND_TYPE", backend)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for note in NOTES {
            assert_eq!(ran.stdout.matches(note).count(), notes, "{ran:?}");
        }
    }
}

#[test]
fn what_envoyproxy_ratelimit_does_instead_of_several_limits_is_noted() {
    const RULES: &str = "
domain: d
descriptors:
  - key: team
    rate_limit: {unlimited: true}
    metadata: {tollgate: {limits: [{requests: 9, unit: month, calendar: Europe/Berlin}]}}
    descriptors:
      - key: user
        rate_limit: {unit: second, requests_per_unit: 3}
        metadata: {tollgate: {parents: true, limits: [{requests: 5, unit: day}]}}
";
    let folder = TempDir::new().expect("a temporary directory");
    let file = written(&folder, "rules.yaml", RULES);
    let ran = tollgate(&["check", &file, "--deny-warnings"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (line, note) in [
        (4, "`limits`: it limits nothing here"),
        (4, "`calendar`: it has windows of UTC, and months of 30 days"),
        (8, "`limits`: it has the rate_limit alone"),
        (8, "`parents`: it counts this rule alone, and none above"),
    ] {
        let note = format!("rules.yaml: envoyproxy/ratelimit ignores {note}\n");
        let place = format!("rules.yaml:{line}:5 (rule d.team");
        let place = if line == 8 { place.replace(":5", ":9") } else { place };
        let found = ran.stdout.split_once(&note).expect(&note).1;
        let first = found.lines().next().unwrap_or_default();
        assert!(first.contains(&place), "{note}{place}: {ran:?}");
    }
}

#[test]
fn text_has_colors_on_a_terminal_unless_no_color_is_set() {
    let folder = TempDir::new().expect("a temporary directory");
    let file = written(&folder, "rules.yaml", AMBIGUOUS);
    let colored = tollgate_on_a_terminal(&["check", &file], &[]);
    assert!(colored.starts_with("\x1b[1;33mwarning: rules.yaml: "), "{colored}");
    let plain = tollgate(&["check", &file]).stdout;
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let shown = tollgate_on_a_terminal(&["check", &file], &[variable]);
        assert_eq!(shown, plain, "{variable:?}");
    }
}

#[test]
fn the_sample_hook_rejects_a_commit_of_invalid_rules() {
    let repository = Repository::with(&[]);
    let hook = sample("deploy/ci/pre-commit");
    fs::copy(hook, repository.0.path(".git/hooks/pre-commit")).expect("a hook can be installed");
    let rejected = repository.try_commit(&[("config/rules.yaml", INVALID)]);
    let printed = String::from_utf8_lossy(&rejected.stderr);
    assert!(!rejected.status.success() && printed.contains("unknown key 'kee'"), "{printed}");
    repository.commit(&[("config/rules.yaml", &limit_of(1))]);
}

/// With the sample of a configuration, by the real pre-commit.
#[test]
fn hooks_of_pre_commit_reject_a_commit_of_invalid_rules_and_of_failing_tests() {
    let hooks = fs::read_to_string(sample(".pre-commit-hooks.yaml")).expect("a text");
    let published = Repository::with(&[(".pre-commit-hooks.yaml", &hooks)]);
    published.git(&["tag", "v0.1.0"]);
    let configuration = fs::read_to_string(sample("deploy/ci/pre-commit-config.yaml"));
    let address = "https://git.example.com/tollgate";
    let published = published.0.path("");
    let configuration = configuration.expect("a text").replace(address, &published);
    assert!(configuration.contains(&published), "{configuration}");

    let repository = Repository::with(&[(".pre-commit-config.yaml", &configuration)]);
    let pre_commit = sample(".tools/pre-commit/bin/pre-commit");
    let installed = repository.run(&pre_commit, &["install"], &HashMap::new());
    assert!(installed.status.success(), "{installed:?}");
    let test = |code| {
        format!(
            "tests: [{{name: one, steps: [{{request: {{domain: d, descriptors: [{{k: a}}]}}, expect: {{code: {code}}}}}]}}]\n"
        )
    };
    for (rules, code, expected) in [
        (INVALID, "OK", "unknown key 'kee'"),
        (&*limit_of(1), "OVER_LIMIT", "code: expected OVER_LIMIT, found OK"),
    ] {
        let rejected = repository
            .try_commit(&[("config/rules.yaml", rules), ("tests/one.test.yaml", &test(code))]);
        let printed = String::from_utf8_lossy(&rejected.stderr);
        assert!(!rejected.status.success() && printed.contains(expected), "{printed}");
    }
    repository.commit(&[("tests/one.test.yaml", &test("OK"))]);
}
