//! Documentation and deployment samples: links resolve, and values that several files state are the
//! same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::api::convert;
use tollgate::base::time::Time;

use crate::support::{read_sample, sample, tollgate};

const ALERTS: &str = "deploy/prometheus/tollgate-alerts.yaml";
const DASHBOARD: &str = "deploy/grafana/tollgate.json";
/// Users replace it with the URL where they publish the page.
const RUNBOOK: &str = "https://git.example.com/tollgate/blob/main/docs/operations.md";
/// Every file that sets how long a caller waits for an answer, and how. over-limit.yaml has a queue
/// rule, so it needs a longer one.
const TIMEOUTS: [(&str, &str); 15] = [
    ("deploy/envoy/concurrency.yaml", "timeout: 0.15s"),
    ("deploy/envoy/costs.yaml", "timeout: 0.15s"),
    ("deploy/envoy/envoy.yaml", "timeout: 0.15s"),
    ("deploy/envoy/llm.yaml", "timeout: 0.15s"),
    ("deploy/envoy/network-filter.yaml", "timeout: 0.15s"),
    ("deploy/envoy/over-limit.yaml", "timeout: 3s"),
    ("deploy/envoy/second-filter.yaml", "timeout: 0.15s"),
    ("deploy/istio/envoy-filter.yaml", "timeout: 0.15s"),
    ("deploy/istio/waypoint.yaml", "timeout: 0.15s"),
    ("deploy/kgateway/rate-limits.yaml", "timeout: 150ms"),
    ("deploy/contour/rate-limits.yaml", "response: 150ms"),
    ("deploy/envoy-gateway/envoy-gateway.yaml", "timeout: 150ms"),
    ("deploy/envoy-gateway/overlay.yaml", "timeout: 150ms"),
    ("docs/envoy.md", "timeout: 0.15s"),
    ("helm/tollgate/values.yaml", "timeout: 0.15s"),
];

#[test]
fn every_alert_links_to_its_anchor_in_the_runbook() {
    let text = read_sample(ALERTS);
    let anchors = anchors(&read_sample("docs/operations.md"));
    let alerts: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let urls: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(alerts.len(), urls.len(), "each alert has one runbook_url");
    for (alert, url) in alerts.iter().zip(urls) {
        let anchor = alert.to_lowercase();
        assert_eq!(url, format!("{RUNBOOK}#{anchor}"));
        assert!(anchors.contains(&anchor), "docs/operations.md has no anchor {anchor}");
    }
}

#[test]
fn the_dashboard_links_to_sections_of_the_runbook() {
    let anchors = anchors(&read_sample("docs/operations.md"));
    let dashboard = read_sample(DASHBOARD);
    let links = dashboard.split(RUNBOOK).skip(1);
    let sections: Vec<&str> =
        links.filter_map(|after| after.split('"').next()?.strip_prefix('#')).collect();
    assert!(sections.len() > 10, "{sections:?}");
    for section in sections {
        let is_known = anchors.iter().any(|anchor| anchor == section);
        assert!(is_known, "docs/operations.md has no anchor {section}");
    }
}

/// Prometheus adds `job` and `instance` everywhere; other labels of targets must be optional.
#[test]
fn the_dashboard_needs_no_kubernetes() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read_sample(DASHBOARD)).expect("the dashboard is JSON");
    let variables = dashboard["templating"]["list"].as_array();
    let variables = variables.expect("it has variables").iter();
    let by_name: BTreeMap<_, _> = variables
        .map(|variable| (variable["name"].as_str().unwrap_or_default(), variable))
        .collect();
    for name in ["job", "domain", "rule"] {
        assert!(by_name.contains_key(name), "no variable {name}");
    }
    // `.*` also matches series without the label.
    for name in ["namespace", "instance", "domain", "rule"] {
        assert_eq!(by_name[name]["allValue"], ".*", "{name}");
        assert_eq!(by_name[name]["current"]["value"][0], "$__all", "{name}");
    }
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]).into_iter();
    let targets = panels.flat_map(|panel| list(&panel["targets"]));
    let queries = targets.chain(list(&dashboard["annotations"]["list"]));
    for query in queries {
        let expr = query["expr"].as_str().expect("a query has an expression");
        let is_ours = expr.contains("tollgate_") || expr.contains("ratelimit_service_");
        assert!(!is_ours || expr.contains(r#"job=~"$job""#) && !expr.contains("pod="), "{expr}");
    }
}

#[test]
fn every_link_between_pages_resolves() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&read_sample(&page)) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                PathBuf::from(&page)
            } else {
                Path::new(&page).with_file_name(file)
            };
            let is_page = target.extension().is_some_and(|extension| extension == "md");
            let leads_there = Path::new(&sample(&target.to_string_lossy())).exists()
                && (anchor.is_empty()
                    || !is_page
                    || anchors(&read_sample(&target.to_string_lossy()))
                        .iter()
                        .any(|known| known == anchor));
            if !leads_there {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A row behind an empty line, or without a head, is a paragraph with bars.
#[test]
fn every_row_belongs_to_a_table() {
    for page in pages() {
        let text = read_sample(&page);
        let mut is_code = false;
        let mut table: Vec<&str> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let is_row = !is_code && line.starts_with('|');
            if is_row {
                table.push(line);
            } else {
                table.clear();
            }
            let is_head = |row: &str| row.chars().all(|each| "|-: ".contains(each));
            let is_table = table.len() != 2 || is_head(table[1]);
            assert!(is_table, "{page}:{}: no head of a table above", number + 1);
            let is_alone = table.len() == 1 && !text.lines().nth(number + 1).is_some_and(is_head);
            assert!(!is_alone, "{page}:{}: a row without a table", number + 1);
        }
    }
}

/// `docs/metrics.md` is generated from the metrics of running processes.
#[test]
fn every_metric_that_a_page_names_is_in_the_list_of_metrics() {
    let list = read_sample("docs/metrics.md");
    let all = pages().into_iter().chain([ALERTS, DASHBOARD].map(str::to_owned));
    for page in all.filter(|page| !page.starts_with("tests/") && !page.starts_with("benches/")) {
        let text = read_sample(&page);
        let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        let is_metric = |word: &&str| {
            let is_ours =
                ["tollgate_", "ratelimit_service_"].iter().any(|begin| word.starts_with(begin));
            is_ours && !word.ends_with('_')
        };
        for name in words.filter(is_metric) {
            let of_histogram = ["_bucket", "_count", "_sum"];
            let family = of_histogram.iter().find_map(|end| name.strip_suffix(end));
            let mut names = [Some(name), family].into_iter().flatten();
            let is_listed = names.any(|name| list.contains(&format!("`{name}`")));
            assert!(is_listed, "{page} names {name}");
        }
    }
}

#[test]
fn every_file_sets_the_recommended_timeout() {
    for (file, expected) in TIMEOUTS {
        let text = read_sample(file);
        let (key, _) = expected.split_once(' ').expect("it is a key and a value");
        // `route: {timeout: …}` is another setting, and so is `connect_timeout`.
        let mut found: Vec<&str> =
            text.lines().map(str::trim).filter(|line| line.starts_with(key)).collect();
        // Of each filter.
        found.dedup();
        assert_eq!(found, [expected], "{file}");
    }
    let folders = ["deploy/envoy", "deploy/istio", "deploy/kgateway", "deploy/envoy-gateway"];
    for name in folders.into_iter().flat_map(files) {
        let is_listed = TIMEOUTS.iter().any(|(listed, _)| *listed == name);
        assert!(
            is_listed || !read_sample(&name).contains("timeout:"),
            "{name} sets a timeout: add it to TIMEOUTS"
        );
    }
}

/// Then Envoy receives the fallback answer before it gives up, whatever Redis does.
#[test]
fn the_recommended_timeout_is_longer_than_tollgate_waits_for_the_store() {
    let help = tollgate(&["--help"]).stdout;
    let (_, after) = help.split_once("[env: STORE_TIMEOUT=]").expect("it is listed");
    assert!(
        after.trim_start().starts_with("[default: 100ms]"),
        "the default of STORE_TIMEOUT: {after}"
    );
    let now = Time::from_micros(0);
    let deadline = convert::timeout("150m").expect("it is a grpc-timeout");
    let deadline = convert::deadline_after(deadline, now);
    assert!(deadline >= now.plus(Duration::from_millis(100).into()), "{deadline:?}");
}

#[test]
fn every_sample_names_the_same_envoy_version() {
    let page = read_sample("docs/envoy.md");
    let (_, section) =
        page.split_once("\n## What each sample needs\n").expect("it is a section of the page");
    let section = section.split("\n## ").next().expect("there is always a first");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let stated: BTreeMap<&str, &str> = rows
        .map(|(file, rest)| (file, rest.split([' ', ',']).next().expect("there is always a first")))
        .collect();
    let mut found = BTreeMap::new();
    let texts: BTreeMap<_, _> = TIMEOUTS
        .iter()
        .filter_map(|(file, _)| Some((file.strip_prefix("deploy/envoy/")?, read_sample(file))))
        .collect();
    for (file, text) in &texts {
        let (_, rest) = text
            .split_once("Needs Envoy ")
            .unwrap_or_else(|| panic!("{file} does not state `Needs Envoy …`"));
        found.insert(
            *file,
            rest.split([',', ' ', '\n'])
                .next()
                .expect("there is always a first")
                .trim_end_matches('.'),
        );
    }
    assert_eq!(found, stated);
}

/// Markdown files that users read.
fn pages() -> Vec<String> {
    let is_page = |file: &String| Path::new(file).extension().is_some_and(|end| end == "md");
    let docs = files("docs").into_iter().filter(is_page);
    let others = ["CONTRIBUTING.md", "helm/tollgate/README.md", "benches/README.md"];
    let others = others.into_iter().chain(["README.md", "tests/README.md"]);
    docs.chain(others.map(str::to_owned)).collect()
}

/// The files of a folder of this repository.
fn files(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(sample(folder)).expect("it is a folder");
    let entries = entries.map(|entry| entry.expect("it can be read"));
    let files = entries.filter(|entry| entry.path().is_file());
    files.map(|entry| format!("{folder}/{}", entry.file_name().display())).collect()
}

/// Relative links of a page.
fn links(page: &str) -> Vec<String> {
    let targets =
        page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
        .map(str::to_owned)
        .collect()
}

/// Anchors of a page: its headings as GitHub names them, and `<a id>`.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#')).map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|each| each.is_alphanumeric() || "-_ ".contains(*each))
            .collect::<String>()
            .replace(' ', "-")
    });
    let named = page
        .split("<a id=\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(name, _)| name.to_owned());
    headings.chain(named).collect()
}
