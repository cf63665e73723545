//! `tollgate test`: which cases pass, how failures are shown, and which files are invalid.

use std::path::Path;

use crate::support::folder::Folder;
use crate::support::{Ran, TestServer, tollgate, tollgate_with_env};

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: path
    value: /api/*
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: internal
    rate_limit: {unlimited: true}
  - key: cheap
    rate_limit: {unit: hour, requests_per_unit: 0}
    metadata: {tollgate: {on_limit: degrade, request_headers: {x-degraded: yes}}}
";

/// Rules in `rules`, and other files beside them.
fn folder_with(files: &[(&str, &str)]) -> Folder {
    Folder::with(&[&[("rules/shop.yaml", RULES)], files].concat())
}

/// With these steps, as the only test.
fn folder_with_steps(steps: &str) -> Folder {
    let cases = format!("tests:\n  - name: a test\n    steps:\n{steps}\n");
    folder_with(&[("tests/shop.test.yaml", &cases)])
}

fn test(folder: &Folder, arguments: &[&str]) -> Ran {
    test_with(folder, arguments, &[])
}

fn test_with(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let rules = folder.path("rules");
    tollgate_with_env(&[&["test", &*rules], arguments].concat(), variables)
}

/// The sample rules do what their comments promise, and every one has a test.
#[test]
fn sample_rules_pass_their_tests() {
    for rules in ["config", "deploy/budgets"] {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join(rules);
        let ran = tollgate(&["test", rules.to_str().expect("a plain name"), "--coverage"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(!ran.stdout.contains("no test reaches"), "{}", ran.stdout);
    }
}

const RETRY_AFTER: &str = r#"
      - request: {domain: shop, descriptors: [{user: "42"}]}
        times: 10
        expect: {code: OK}
      - request: {domain: shop, descriptors: [{user: "42"}], hits_addend: 1}
        expect: {code: OVER_LIMIT, statuses: [{remaining: 0, rule: user, reset: 1s}], headers: {retry-after: "1"}}
      - after: 1s
        request: {domain: shop, descriptors: [{user: "42"}]}
        expect: {code: OK}"#;

#[test]
fn cases_are_decided_with_the_settings_of_serve() {
    let folder = folder_with_steps(RETRY_AFTER);
    let header = ("RETRY_AFTER_HEADER_ENABLED", "true");
    let ran = test_with(&folder, &[], &[header]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = test(&folder, &[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let absent = "headers.retry-after: expected 1, found null";
    assert!(ran.stdout.contains(absent), "{ran:?}");
    let ran = test_with(&folder, &[], &[header, ("SHADOW_MODE", "true")]);
    let shadow = "code: expected OVER_LIMIT, found OK";
    assert!(ran.stdout.contains(shadow), "{ran:?}");
}

#[test]
fn failure_has_a_caret_at_the_expectation_and_the_response() {
    let folder = folder_with_steps(
        "      - request: {domain: shop, descriptors: [{user: ann}, {internal: }]}\n        \
                 times: 2\n        \
                 expect: {code: OK, statuses: [{remaining: 9, rule: shop.user}, {rule: internal}]}",
    );
    let ran = test(&folder, &[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expected = format!(
        "\
{0}
  failed  a test

failed: a test
shop.test.yaml: statuses[0].remaining: expected 9, found 8
  --> {0}:6:51 (tests[0].steps[0].expect.statuses[0].remaining)
   |
 6 |         expect: {{code: OK, statuses: [{{remaining: 9, rule: shop.user}}, {{rule: internal}}]}}
   |                                                   ^
   - remaining: 9
   + remaining: 8

request 2 of 2, at 2026-01-01T00:00:00Z: {{code: OK, statuses: [\
{{code: OK, rule: user, limit: 10 per second, remaining: 8, reset: 1s}}, \
{{code: OK, rule: internal, remaining: 4294967295}}]}}

1 test: 0 passed, 1 failed
",
        folder.path("tests/shop.test.yaml")
    );
    assert_eq!(ran.stdout, expected);
}

/// What is expected of a response with two statuses => the difference; none if it passes.
const EXPECTATIONS: &str = r"
{code: OVER_LIMIT} => code: expected OVER_LIMIT, found OK
{statuses: [{code: OVER_LIMIT}, {}]} => statuses[0].code: expected OVER_LIMIT, found OK
{statuses: [{remaining: 3}, {}]} => statuses[0].remaining: expected 3, found 9
{statuses: [{limit: 9}, {}]} => statuses[0].limit: expected 9, found 10
{statuses: [{limit: 10 per minute}, {}]} => statuses[0].limit: expected 10 per minute, found 10 per second
{statuses: [{limit: 10 per second}, {limit: null}]} => none
{statuses: [{limit: null}, {}]} => statuses[0].limit: expected null, found 10 per second
{statuses: [{reset: 2s}, {reset: null}]} => statuses[0].reset: expected 2s, found 1s
{statuses: [{reset: 1000ms}, {}]} => none
{statuses: [{}, {reset: 1s}]} => statuses[1].reset: expected 1s, found null
{statuses: [{rule: path_/api/*}, {}]} => statuses[0].rule: expected path_/api/*, found user
{statuses: [{rule: shop.path}, {}]} => statuses[0].rule: expected shop.path, found user
{statuses: [{rule: null}, {}]} => statuses[0].rule: expected null, found user
{statuses: [{rule: user}, {rule: null}]} => none
{headers: {X-RateLimit-Limit: 10}} => none
{headers: {x-ratelimit-limit: 11}} => headers.x-ratelimit-limit: expected 11, found 10
{headers: {x-ratelimit-limit: null}} => headers.x-ratelimit-limit: expected null, found 10
{headers: {x-other: null}} => none
{request_headers: {x-degraded: yes}} => request_headers.x-degraded: expected yes, found null
";

fn expectations() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXPECTATIONS.lines().filter_map(|line| line.split_once(" => "))
}

/// A test for each row.
fn file_of_expectations() -> String {
    let mut cases = "tests:\n".to_owned();
    for (index, (expect, _)) in expectations().enumerate() {
        let request = "{domain: shop, descriptors: [{user: ann}, {unknown: x}]}";
        cases +=
            &format!("- {{name: n{index}, steps: [{{request: {request}, expect: {expect}}}]}}\n");
    }
    cases
}

/// Valid files, of all forms.
pub(crate) fn valid_files() -> [String; 3] {
    let steps = format!("tests:\n  - name: a test\n    steps:\n{FORMS}\n");
    [file_of_expectations(), steps, PASSES.to_owned()]
}

#[test]
fn each_expectation_finds_a_difference() {
    let cases = file_of_expectations();
    let folder = folder_with(&[("tests/shop.test.yaml", &cases)]);
    let variables =
        [("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_LIMIT_HEADER", "X-RateLimit-Limit")];
    let ran = test_with(&folder, &["--format", "json"], &variables);
    let report = ran.json();
    for (index, (expect, expected)) in expectations().enumerate() {
        let test = &report["tests"][index];
        let failure = &test["failure"]["mismatches"][0];
        let found = match failure.as_object() {
            None => "none".to_owned(),
            Some(_) => {
                let of = |name: &str| failure[name].as_str().unwrap_or("null");
                let (_, name) = of("place").split_once(".expect.").expect("it has one");
                format!("{name}: expected {}, found {}", of("expected"), of("found"))
            }
        };
        assert_eq!(found, expected, "{expect}");
        assert_eq!(test["passed"], expected == "none", "{expect}");
    }
}

const FORMS: &str = r#"
      - request: {domain: shop, descriptors: [{user: 42}], hits_addend: 3}
        expect: {statuses: [{remaining: 7}]}
      - request: {domain: shop, descriptors: [[[user, "42"]]]}
        expect: {statuses: [{remaining: 6}]}
      - request: {domain: shop, descriptors: [{entries: [{key: user, value: "42"}], hits_addend: 2}]}
        expect: {statuses: [{remaining: 4}]}
      - request: {domain: shop, descriptors: [{entries: {user: "42"}, hits_addend: 3, is_negative_hits: true}]}
        expect: {statuses: [{remaining: 7}]}
      - request: {domain: shop, descriptors: [{entries: {user: "42"}, hits_addend: 0}]}
        expect: {statuses: [{remaining: 7}]}
      - request: {domain: shop, descriptors: [{entries: {user: "42"}, limit: {requests_per_unit: 5, unit: hour}}]}
        expect: {statuses: [{limit: 5 per hour, remaining: 4, rule: null}]}
      - request: {domain: shop, descriptors: [{entries: x}, [[entries]]]}
        expect: {statuses: [{rule: null}, {rule: null}]}"#;

#[test]
fn descriptors_have_three_forms_and_all_fields() {
    let folder = folder_with_steps(FORMS);
    let ran = test(&folder, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn cases_begin_without_counters_and_years_pass_at_once() {
    let case = |name| {
        format!(
            "- name: {name}
  steps:
    - request: {{domain: shop, descriptors: [{{user: ann}}]}}
      times: 10
      expect: {{code: OK}}
    - after: 100y
      request: {{domain: shop, descriptors: [{{user: ann}}]}}
      times: 10
      expect: {{code: OK}}
    - request: {{domain: shop, descriptors: [{{user: ann}}]}}
      expect: {{code: OVER_LIMIT}}
    - at: 2255-01-01T00:00:00+00:00
      request: {{domain: shop, descriptors: [{{user: ann}}]}}
      expect: {{code: OK}}
"
        )
    };
    let cases = format!("tests:\n{}{}", case("one"), case("two"));
    let ran = test(&folder_with(&[("tests/shop.test.yaml", &cases)]), &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// A line of a step, a test or a file => the place and the problem.
const INVALID: &str = r"
{request: REQUEST, times: 0, expect: {code: OK}} => 2:61 `times` must be a whole number from 1 to 1000000, without quotes
{request: REQUEST, times: 1000001, expect: {code: OK}} => 2:61 `times` must be a whole number from 1 to 1000000, without quotes
{request: REQUEST, at: 2026-01-01T00:00:00Z, after: 1s, expect: {code: OK}} => 2:87 a step has `at` or `after`, not both
{request: REQUEST, at: noon, expect: {code: OK}} => 2:58 `at` must be a time of RFC 3339 from 1970 on
{request: REQUEST, at: 2256-01-01T00:00:00Z, expect: {code: OK}} => 2:58 the step is after the year 2255, up to which times are exact
{request: REQUEST, after: 1, expect: {code: OK}} => 2:61 `after`: time unit needed, for example 1sec or 1ms; write a number and a unit, such as 10s, 150ms or 1h
{request: REQUEST, after: -1s, expect: {code: OK}} => 2:61 `after`: expected number at 0; write a number and a unit, such as 10s, 150ms or 1h
{request: REQUEST, expects: {code: OK}} => 2:54 unknown key 'expects'
{after: 1s, expect: {code: OK}} => 2:2 the step has no `request`
{request: REQUEST, expect: {}} => 2:62 `expect` expects nothing
{request: REQUEST} => 1:9 the test expects nothing
{request: {descriptors: [{user: a}]}, expect: {code: OK}} => 2:12 rate limit domain must not be empty
{request: {domain: shop}, expect: {code: OK}} => 2:12 rate limit descriptor list must not be empty
{request: {domain: shop, descriptors: [user]}, expect: {code: OK}} => 2:41 expected a map of entries, or a list of [key, value] pairs
{request: {domain: shop, descriptors: [[[user, a, b]]]}, expect: {code: OK}} => 2:42 an entry is a pair of a key and a value
{request: {domain: shop, descriptors: [{user: a, user: b}]}, expect: {code: OK}} => 2:51 the key `user` is on line 2 already: only this one counts
{request: {domain: shop, descriptors: [{user: [a]}]}, expect: {code: OK}} => 2:48 `value` must be a text
{request: {domain: shop, descriptors: [{entries: {user: a}, limit: {unit: eon}}]}, expect: {code: OK}} => 2:76 `EON` is no unit
{request: {domain: shop, descriptors: [{user: a}], hits_addend: 4294967296}, expect: {code: OK}} => 2:66 `hits_addend` must be a whole number from 0 to 4294967295, without quotes
{request: REQUEST, expect: {code: DENIED}} => 2:69 'DENIED' is no value of `code`
{request: REQUEST, expect: {statuses: [{}, {}]}} => 2:73 2 statuses for 1 descriptor: a response has one for each
{request: REQUEST, expect: {statuses: {remaining: 1}}} => 2:73 expected a list of statuses
{request: REQUEST, expect: {statuses: [{left: 1}]}} => 2:75 unknown key 'left'
{request: REQUEST, expect: {statuses: [{remaining: few}]}} => 2:86 `remaining` must be a whole number from 0 to 4294967295, without quotes
{request: REQUEST, expect: {statuses: [{reset: 500ms}]}} => 2:82 `reset` is in whole seconds, as in responses
{request: REQUEST, expect: {headers: [a]}} => 2:72 expected a map of headers
";

/// A file => the place and the problem.
const INVALID_FILES: &str = r#"
 => 1:1 the file has no tests
tests: [] => 1:8 the file has no tests
tests: {} => 1:8 expected a list
test: [] => 1:1 unknown key 'test'
[] => 1:1 expected a map of options
tests: [{steps: [{request: REQUEST, expect: {code: OK}}]}] => 1:9 the test has no `name`
tests: [{name: "", steps: [{request: REQUEST, expect: {code: OK}}]}] => 1:9 the test has no `name`
tests: [{name: a}] => 1:9 the test has no `steps`
tests: [{name: a, steps: []}] => 1:26 the test has no step
tests: [{name: a, steps: [{request: REQUEST, expect: {code: OK}}]}, {name: a, steps: [{request: REQUEST, expect: {code: OK}}]}] => 1:109 the test of line 1 has this name
tests: [{name: a, steps: [{at: 2026-01-01T00:00:02Z, request: REQUEST, expect: {code: OK}}, {at: 2026-01-01T00:00:01Z, request: REQUEST}]}] => 1:131 time goes back: the step before is at 2026-01-01T00:00:02Z
tests: [ => 1:8 parsing a node, did not find expected node content
"#;

/// Invalid files, each with the place and the problem.
pub(crate) fn invalid_files() -> Vec<(String, &'static str)> {
    let rows = |table: &'static str| table.lines().filter_map(|line| line.split_once(" => "));
    let of_step = |step: &str| format!("tests: [{{name: a, steps: [\n {step}\n ]}}]\n");
    let of_steps = rows(INVALID).map(|(step, expected)| (of_step(step), expected));
    let of_files = rows(INVALID_FILES).map(|(text, expected)| (text.to_owned(), expected));
    let request = "{domain: shop, descriptors: [{user: a}]}";
    let with_request = |(text, expected): (String, _)| (text.replace("REQUEST", request), expected);
    of_steps.chain(of_files).map(with_request).collect()
}

#[test]
fn impossible_steps_are_errors_with_line_and_column() {
    let mut wrong = String::new();
    for (cases, expected) in invalid_files() {
        let folder = folder_with(&[("tests/shop.test.yaml", &cases)]);
        let ran = test(&folder, &[]);
        assert_eq!(ran.code, Some(78), "{cases}: {ran:?}");
        let (place, problem) = expected.split_once(' ').expect("two parts");
        let problem = format!("shop.test.yaml: {problem}\n  --> ");
        let place = format!("shop.test.yaml:{place}");
        if !ran.stderr.contains(&problem) || !ran.stderr.contains(&place) {
            wrong += &format!("{cases}\n  expected {expected}\n  found {}\n", ran.stderr);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

const PASSES: &str = "tests: [{name: passes, steps: [{request: {domain: shop, descriptors: [{user: a}]}, expect: {code: OK}}]}]\n";

#[test]
fn cases_are_beside_the_rules_or_in_tests_or_where_an_argument_says() {
    let folder = folder_with(&[
        ("rules/below/one.test.yaml", PASSES),
        ("tests/below/two.test.yml", PASSES),
        ("tests/other.yaml", "no cases"),
        ("elsewhere/three.test.yaml", PASSES),
        ("elsewhere/.hidden/four.test.yaml", PASSES),
    ]);
    let [rules, elsewhere] = ["rules/shop.yaml", "elsewhere"].map(|name| folder.path(name));
    let [three, below] = ["elsewhere/three.test.yaml", "tests/below"].map(|name| folder.path(name));
    for (ran, found) in [
        (test(&folder, &[]), "2 tests: 2"),
        (tollgate(&["test", &rules]), "2 tests: 2"),
        (test(&folder, &["--cases", &elsewhere]), "1 test: 1"),
        (test(&folder, &["--cases", &three, "--cases", &below]), "2 tests: 2"),
    ] {
        assert!(ran.stdout.ends_with(&format!("\n{found} passed, 0 failed\n")), "{ran:?}");
    }
    for (arguments, expected) in [
        (&["--cases", &*folder.path("missing")][..], "No such file"),
        (&["--cases", &folder.path("tests/other.yaml")], "expected a map"),
        (&["--filter", "fails"], "no test whose name contains `fails`"),
    ] {
        let ran = test(&folder, arguments);
        assert_eq!(ran.code, Some(78), "{ran:?}");
        assert!(ran.stderr.contains(expected), "{expected}: {ran:?}");
    }
    let empty = test(&folder_with(&[]), &[]);
    assert_eq!(empty.code, Some(78), "{empty:?}");
    assert!(empty.stderr.contains("no test in *.test.yaml of "), "{empty:?}");
}

#[tokio::test]
async fn files_of_cases_are_no_rules() {
    let files = [("shop.yaml", RULES), ("shop.test.yaml", PASSES)];
    let server = TestServer::with_files(files).start();
    server.assert_metric("tollgate_rules_rejected", 0.0);
    server.assert_metric("tollgate_rules", 4.0);
    let rules = server.path("");
    let ran = tollgate(&["check", rules.to_str().expect("a plain name")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("4 limits in 1 domain of 1 file"), "{ran:?}");
}

#[test]
fn filter_selects_and_coverage_lists_what_no_test_reaches() {
    let fails = PASSES.replace("passes", "fails").replace("code: OK", "code: OVER_LIMIT");
    let folder = folder_with(&[("tests/one.test.yaml", PASSES), ("tests/two.test.yaml", &fails)]);
    let ran = test(&folder, &["--filter", "pass", "--coverage"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stdout.contains("two.test.yaml"), "{ran:?}");
    let rules = folder.path("rules/shop.yaml");
    let expected = format!(
        "\n1 of 4 rules reached\n  \
           no test reaches shop.cheap at {rules}:10\n  \
           no test reaches shop.internal at {rules}:8\n  \
           no test reaches shop.path_/api/* at {rules}:5\n\n\
         1 test: 1 passed, 0 failed\n"
    );
    assert!(ran.stdout.ends_with(&expected), "{}", ran.stdout);
    let ran = test(&folder, &["--coverage", "--format", "json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report = ran.json();
    assert_eq!((&report["passed"], &report["failed"]), (&1.into(), &1.into()));
    assert_eq!(report["coverage"]["reached"], 1);
    assert_eq!(report["coverage"]["unreached"][0]["rule"], "shop.cheap");
    assert_eq!(report["coverage"]["unreached"][0]["line"], 10);
}

#[test]
fn junit_has_a_suite_for_each_file() {
    let fails = PASSES.replace("passes", "<fails>").replace("code: OK", "code: OVER_LIMIT");
    let folder = folder_with(&[("tests/one.test.yaml", PASSES), ("tests/two.test.yaml", &fails)]);
    let ran = test(&folder, &["--format", "junit"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let one = folder.path("tests/one.test.yaml");
    let two = folder.path("tests/two.test.yaml");
    for expected in [
        "<testsuites tests=\"2\" failures=\"1\">",
        &format!("<testsuite name=\"{one}\" tests=\"1\" failures=\"0\">"),
        &format!("<testcase classname=\"{one}\" name=\"passes\" file=\"{one}\" line=\"1\"/>"),
        &format!("<testcase classname=\"{two}\" name=\"&lt;fails&gt;\" file=\"{two}\" line=\"1\">"),
        "<failure message=\"code: expected OVER_LIMIT, found OK\">failed: &lt;fails&gt;\n",
        "   + code: OK\n",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}: {}", ran.stdout);
    }
    assert!(ran.stdout.ends_with("</testsuites>\n"), "{}", ran.stdout);
}
