//! The GitHub Action `.github/actions/check`: its steps run here as GitHub runs them.

use std::collections::HashMap;
use std::fs;

use serde_json::Value;

use crate::support::repository::Repository;
use crate::support::{assert_has, limit_of, sample};

const ACTION: &str = ".github/actions/check/action.yml";
/// For the rules of `limit_of`.
const TESTS: &str = "tests: [{name: one passes, steps: [{request: {domain: d, descriptors: [{k: a}]}, expect: {code: OK}}]}]\n";

/// What a run of the action leaves.
#[derive(Debug, Default)]
struct Job {
    /// Of the step that failed.
    failed: Option<String>,
    /// Lines of stdout that are workflow commands.
    annotations: Vec<String>,
    summary: String,
    outputs: String,
    log: String,
}

fn yaml(path: &str) -> Value {
    let text = fs::read_to_string(sample(path)).expect("a text");
    crate::schema::parsed(&text).expect("YAML")
}

/// Runs the steps of the action as a job of GitHub.
fn run_action(repository: &Repository, inputs: &[(&str, &str)]) -> Job {
    let action = yaml(ACTION);
    let mut values: HashMap<String, String> = HashMap::new();
    for (name, input) in action["inputs"].as_object().expect("inputs") {
        let default = input["default"].as_str().expect("a text");
        let default = if default.contains("${{") { "" } else { default };
        values.insert(name.clone(), default.to_owned());
    }
    for (name, value) in inputs {
        let known = values.insert((*name).to_owned(), (*value).to_owned());
        assert!(known.is_some(), "no input {name}");
    }
    let files = ["SUMMARY", "OUTPUT"].map(|name| repository.0.write(&format!(".git/{name}"), ""));
    let mut job = Job::default();
    for step in action["runs"]["steps"].as_array().expect("steps") {
        if step["if"].as_str().is_some_and(|condition| !holds(condition, &values)) {
            continue;
        }
        let mut variables = HashMap::from([
            ("GITHUB_STEP_SUMMARY".to_owned(), files[0].clone()),
            ("GITHUB_OUTPUT".to_owned(), files[1].clone()),
            ("RUNNER_TEMP".to_owned(), repository.0.path(".git")),
        ]);
        for (name, value) in step["env"].as_object().into_iter().flatten() {
            let input = value
                .as_str()
                .and_then(|value| value.strip_prefix("${{ inputs.")?.strip_suffix(" }}"));
            variables.insert(name.clone(), values[input.expect("an input")].clone());
        }
        let script = repository.0.write(".git/step.sh", step["run"].as_str().expect("a script"));
        // As GitHub runs `shell: bash`.
        let arguments = ["--noprofile", "--norc", "-eo", "pipefail", &script];
        let ran = repository.run("bash", &arguments, &variables);
        let stdout = String::from_utf8_lossy(&ran.stdout);
        let annotations = stdout.lines().filter(|line| line.starts_with("::"));
        job.annotations.extend(annotations.map(str::to_owned));
        job.log += &format!("{stdout}{}", String::from_utf8_lossy(&ran.stderr));
        if !ran.status.success() {
            job.failed = step["id"].as_str().map(str::to_owned);
            break;
        }
    }
    [job.summary, job.outputs] = files.map(|file| fs::read_to_string(file).expect("a text"));
    job
}

/// A condition of a step: `inputs.NAME == 'VALUE'` or `!=`.
fn holds(condition: &str, inputs: &HashMap<String, String>) -> bool {
    let words: Vec<&str> = condition.split(' ').collect();
    let [input, operator, value] = words[..] else {
        panic!("a condition of another form: {condition}");
    };
    let input = input.strip_prefix("inputs.").expect("an input");
    let is_equal = inputs[input] == value.trim_matches('\'');
    is_equal == (operator == "==")
}

#[test]
fn valid_rules_pass_and_the_summary_has_what_changes() {
    let repository = Repository::with(&[("config/shop.yaml", &limit_of(1))]);
    repository.0.write("tests/shop.test.yaml", TESTS);
    repository.commit(&[("config/shop.yaml", &limit_of(2))]);
    let job = run_action(&repository, &[("base", "HEAD~1")]);
    assert_eq!(job.failed, None, "{job:?}");
    let summed = "::notice::rules: 0 added, 0 removed, 1 changed";
    assert_eq!(job.annotations, [summed], "{job:?}");
    let expected = [
        "### tollgate check\n\n```text\nconfig: ok, 1 limit in 1 domain of 1 file\n```\n",
        "### tollgate diff\n\n",
        "requests_per_unit",
        "### tollgate test\n\n```text\n",
        "1 test: 1 passed, 0 failed\n```\n",
    ];
    assert_has(&job.summary, &expected);
    let changes = job.outputs.trim().strip_prefix("changes=").expect("a file");
    let changes = fs::read_to_string(changes).expect("a text");
    assert!(job.summary.contains(&changes), "{changes}");
}

#[test]
fn problems_are_annotations_of_their_lines() {
    let repository = Repository::with(&[(
        "config/shop.yaml",
        "domain: shop\ndescriptors: [{key: user, valu: a}]\n",
    )]);
    let job = run_action(&repository, &[]);
    assert_eq!(job.failed.as_deref(), Some("check"), "{job:?}");
    let expected = [
        "::error file=config/shop.yaml,line=2,col=27,endColumn=30::config error, unknown key 'valu'%0Adid you mean `value`?",
    ];
    assert_eq!(job.annotations, expected, "{job:?}");
    assert!(job.summary.contains("  --> config/shop.yaml:2:27"), "{}", job.summary);
}

#[test]
fn warnings_fail_the_job_if_they_are_denied() {
    let repository = Repository::with(&[(
        "config/shop.yaml",
        "domain: shop\ndescriptors:\n  - key: user\n    shadow_mode: true\n",
    )]);
    let without_tests = ("tests", "false");
    let job = run_action(&repository, &[without_tests]);
    assert_eq!(job.failed, None, "{job:?}");
    assert!(job.annotations[0].starts_with("::warning file=config/shop.yaml,line=3,"), "{job:?}");
    let job = run_action(&repository, &[without_tests, ("deny-warnings", "true")]);
    assert_eq!(job.failed.as_deref(), Some("check"), "{job:?}");
}

#[test]
fn a_failing_test_is_an_annotation_of_its_expectation() {
    let repository = Repository::with(&[("config/shop.yaml", &limit_of(1))]);
    repository.0.write("tests/shop.test.yaml", &TESTS.replace("OK", "OVER_LIMIT"));
    let job = run_action(&repository, &[]);
    assert_eq!(job.failed.as_deref(), Some("test"), "{job:?}");
    let [annotation] = &job.annotations[..] else {
        panic!("{job:?}");
    };
    let expected =
        "one passes: code: expected OVER_LIMIT, found OK%0Aat 2026-01-01T00:00:00Z: {code: OK";
    assert_has(annotation, &["::error file=tests/shop.test.yaml,line=1,col=", expected]);
    assert_has(&job.summary, &["1 test: 0 passed, 1 failed"]);

    repository.0.write("tests/shop.test.yaml", "tests: [{name: a, step: []}]");
    let job = run_action(&repository, &[]);
    assert_eq!(job.failed.as_deref(), Some("test"), "{job:?}");
    let invalid = "::error file=tests/shop.test.yaml,line=1,col=19,endColumn=19::unknown key 'step'%0Adid you mean `steps`?";
    assert!(job.annotations.iter().any(|line| line == invalid), "{job:?}");
}

/// The change repairs rules that are in force nowhere.
#[test]
fn invalid_rules_of_the_base_are_a_warning() {
    let repository = Repository::with(&[("config/shop.yaml", "domain: [")]);
    repository.commit(&[("config/shop.yaml", &limit_of(1))]);
    let job = run_action(&repository, &[("tests", "false"), ("base", "HEAD~1")]);
    assert_eq!(job.failed, None, "{job:?}");
    assert!(job.annotations[0].starts_with("::warning::not compared with HEAD~1: "), "{job:?}");
    assert_eq!(job.outputs, "");
}

/// The sample workflow states inputs that the action has, which actionlint cannot check in another repository.
#[test]
fn the_sample_workflow_has_inputs_of_the_action() {
    let workflow = yaml("deploy/ci/rules.yaml");
    let action = yaml(ACTION);
    let steps = workflow["jobs"]["check"]["steps"].as_array().expect("steps");
    let uses = |step: &&Value| {
        step["uses"].as_str().is_some_and(|uses| uses.contains("/.github/actions/check@"))
    };
    let step = steps.iter().find(uses).expect("a step");
    for name in step["with"].as_object().expect("inputs").keys() {
        assert!(action["inputs"].get(name).is_some(), "no input {name}");
    }
}
