//! `tollgate diff`: which rules differ, and which counters restart.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::repository::Repository;
use crate::support::{tollgate, tollgate_with_env};

const OLD: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 2}
  - key: path
    value: /api/*
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: gone
    rate_limit: {unit: minute, requests_per_unit: 5}
";
const NEW: &str = "\
domain: shop
metadata: {tollgate: {defaults: {algorithm: token_bucket}}}
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 3}
    metadata: {tollgate: {algorithm: fixed_window}}
  - key: path
    value: /api/*
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: new
    rate_limit: {unlimited: true}
";

/// Files to compare.
fn folder() -> Folder {
    Folder::with(&[("old/shop.yaml", OLD), ("new/shop.yaml", NEW)])
}

#[test]
fn text_names_rules_options_their_sources_and_counters_that_restart() {
    let folder = folder();
    let old = folder.path("old/shop.yaml");
    let new = folder.path("new/shop.yaml");
    let expected = format!(
        "\
rules: 1 added, 1 removed, 2 changed; the counters of 1 rule restart

removed shop.gone: 5 per minute, fixed_window at {old}:8

added shop.new: unlimited at {new}:10

changed shop.path_/api/*, its counters restart
  algorithm: fixed_window ({old}:5) -> token_bucket (by the domain's defaults, {new}:2)
  burst: not set -> 5 ({new}:7)
  over_limit_hits: count ({old}:5) -> drop ({new}:7)

changed shop.user
  requests_per_unit: 2 ({old}:3) -> 3 ({new}:4)
"
    );
    let ran = tollgate(&["diff", &folder.path("old"), &folder.path("new")]);
    assert_eq!((ran.code, ran.stdout), (Some(0), expected));
}

#[test]
fn exit_code_is_1_for_differences_and_78_for_errors() {
    let folder = folder();
    let old = folder.path("old");
    let new = folder.path("new");
    let invalid = folder.write("invalid.yaml", "domain: d\ndescriptor: []\n");
    for (arguments, code, printed) in [
        (&["diff", &*old, &*new][..], 0, "rules: 1 added"),
        (&["diff", &old, &new, "--exit-code"], 1, "rules: 1 added"),
        (&["diff", &old, &old, "--exit-code"], 0, "the rules are the same\n"),
        (&["diff", &old, &invalid, "--exit-code"], 78, "unknown key 'descriptor'"),
        (&["diff", &old, "/no/such/folder"], 78, "read /no/such/folder: "),
        (&["diff", &old, "http://127.0.0.1:1"], 64, "`tollgate replay FILE OLD --compare NEW`"),
        (
            &["diff", &old, &new, "--traffic", "/no/such/log"],
            64,
            "`tollgate replay FILE OLD --compare NEW`",
        ),
        (&["diff", &old], 64, "<NEW>"),
    ] {
        let ran = tollgate(arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(all.contains(printed), "{arguments:?}: {all}");
    }
}

#[test]
fn git_revisions_are_read_without_a_checkout() {
    let rules = OLD.replace('\n', "\n    ");
    let manifest = format!("apiVersion: v1\nkind: ConfigMap\ndata:\n  shop.yaml: |\n    {rules}");
    let repository = Repository::with(&[
        ("config/shop.yaml", OLD),
        ("config/.ignored", "not rules"),
        ("new/shop.yaml", NEW),
        ("manifest.yaml", &manifest),
    ]);
    repository.0.write("config/shop.yaml", NEW);
    let in_folder = |arguments: &[&str]| {
        let ran = repository.run("tollgate", arguments, &HashMap::new());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is UTF-8");
        (ran.status.code(), text(ran.stdout), text(ran.stderr))
    };
    let (code, printed, errors) = in_folder(&["diff", "git:HEAD:config", "config"]);
    assert_eq!((code, &*errors), (Some(0), ""), "{printed}");
    let change = "requests_per_unit: 2 (git:HEAD:config/shop.yaml:3) -> 3 (config/shop.yaml:4)";
    assert!(printed.contains(change), "{printed}");
    let file = "git:HEAD:new/shop.yaml";
    let (_, printed, _) = in_folder(&["diff", file, "config"]);
    assert_eq!(printed, "the rules are the same\n");
    let (_, printed, _) = in_folder(&["diff", "git:HEAD:manifest.yaml", "config"]);
    assert!(printed.contains("(git:HEAD:manifest.yaml:7) -> 3 "), "{printed}");
    for (name, expected) in [
        ("git:none:config", "Not a valid object name none"),
        ("git:HEAD:none", "git:HEAD:none: no files"),
        ("git:HEAD", "write it as git:REV:PATH"),
        ("git:--output=x:config", "Not a valid object name --output=x"),
        ("git::config", "Not a valid object name"),
        ("git:HEAD:--name-only", "git:HEAD:--name-only: no files"),
    ] {
        let (code, _, errors) = in_folder(&["diff", name, "config"]);
        assert_eq!(code, Some(78), "{errors}");
        assert!(errors.contains(expected), "{name}: {errors}");
    }
}

#[test]
fn on_a_cluster_parents_restart_the_counters_of_their_levels() {
    let rules = |block: &str| {
        format!(
            "domain: shop\ndescriptors:\n- key: org\n  rate_limit: {{unit: hour, requests_per_unit: 9}}\n  descriptors:\n  - key: user\n    rate_limit: {{unit: hour, requests_per_unit: 5}}\n{block}"
        )
    };
    let parents = rules("    metadata: {tollgate: {parents: true}}\n");
    let files = [("old.yaml", &*rules("")), ("new.yaml", &*parents)];
    let folder = Folder::with(&files);
    let restarts = |redis_type| {
        let old = folder.path("old.yaml");
        let new = folder.path("new.yaml");
        let arguments = ["diff", &old, &new, "--format", "json"];
        let ran = tollgate_with_env(&arguments, &[("REDIS_TYPE", redis_type)]);
        let printed = ran.json();
        let rules = printed["rules"].as_array().cloned().unwrap_or_default();
        let restarting = rules.iter().filter(|rule| rule["counter_restarts"] == json!(true));
        restarting.map(|rule| rule["rule"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(restarts("SINGLE"), Vec::<Value>::new());
    assert_eq!(restarts("cluster"), ["shop.org", "shop.org.user"]);
}
