//! Rules in force on a service: `/rlconfig?format=json` as rules files, for the compiler that serves.
//!
//! The page has every option that is in force, so no defaults are applied to it. It does not say who set
//! an option.

use std::collections::HashMap;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::config::{self, CompileOptions, Source};
use crate::rules::{OnStoreError, Origin, RuleSet};

/// Options of a `tollgate` block that have the same name and value in the page.
const OPTIONS: [&str; 11] = [
    "algorithm",
    "burst",
    "buckets",
    "over_limit_hits",
    "on_limit",
    "max_wait",
    "request_headers",
    "response_body",
    "enforce_percent",
    "lease_by",
    "lease",
];
/// Keys of a descriptor with a `rate_limit` that have the same name and value in the page.
const FLAGS: [&str; 3] = ["shadow_mode", "quota_mode", "detailed_metric"];

/// Compiles the page of the service `name`.
///
/// # Errors
/// It is no such page.
pub(super) fn rules(page: &str, name: &str, options: CompileOptions) -> anyhow::Result<RuleSet> {
    let read = || format!("read the rules of {name}");
    let page: Value = serde_json::from_str(page).with_context(read)?;
    let domains = page["domains"].as_array();
    let domains = domains.context("it has no `domains`").with_context(read)?;
    let options = CompileOptions {
        default_algorithm: None,
        overlay: None,
        ..options
    };
    let mut sources = Vec::new();
    let mut origins = HashMap::new();
    for domain in domains {
        let descriptors = domain["descriptors"].as_array();
        let descriptors = descriptors.map_or(&[][..], Vec::as_slice);
        let path = format!("{name} {}", domain["domain"]);
        sources.push(Source {
            name: path.as_str().into(),
            path: path.as_str().into(),
            text: as_yaml(&rules_file(domain, descriptors).with_context(read)?).into(),
        });
        for descriptor in descriptors {
            let limit = &descriptor["limit"];
            let policy = limit["on_store_error"].as_str();
            let policy: Option<OnStoreError> = policy.and_then(|name| name.parse().ok());
            let path = descriptor["path"].as_str().unwrap_or_default();
            origins.insert(path, (origin(&limit["source"]), policy));
        }
    }
    let loaded = config::load(&sources, &options);
    let mut rules = match loaded {
        Ok(loaded) => loaded.rules,
        Err(problems) => bail!("{}: {}", read(), problems[0]),
    };
    rules.change_rules(|rule, _| {
        rule.options = Box::default();
        if let Some((origin, policy)) = origins.get(&*rule.path) {
            rule.origin = origin.clone();
            rule.on_store_error = *policy;
        }
    });
    Ok(rules)
}

/// The rules file of a domain. Each descriptor is listed before those inside it.
fn rules_file(domain: &Value, descriptors: &[Value]) -> anyhow::Result<Value> {
    let mut file = json!({
        "domain": domain["domain"],
        "metadata": {"tollgate": {"all_or_nothing": domain["all_or_nothing"]}},
        "descriptors": [],
    });
    for descriptor in descriptors {
        let entries = descriptor["entries"].as_array();
        let entries = entries.context("a descriptor has no `entries`")?;
        let (last, around) = entries.split_last().context("a descriptor is empty")?;
        let mut level = &mut file["descriptors"];
        for _ in around {
            let siblings = level.as_array_mut();
            let parent = siblings.and_then(|siblings| siblings.last_mut());
            level = &mut parent.context("a descriptor is not in its parent")?["descriptors"];
        }
        let node = node(descriptor, last);
        match level {
            Value::Array(siblings) => siblings.push(node),
            level => *level = json!([node]),
        }
    }
    Ok(file)
}

fn node(descriptor: &Value, entry: &Value) -> Value {
    let mut node = entry.clone();
    for name in ["share_threshold", "value_to_metric"] {
        node[name] = descriptor[name].clone();
    }
    let limit = &descriptor["limit"];
    if limit.is_null() {
        return node;
    }
    for name in FLAGS {
        node[name] = limit[name].clone();
    }
    let replaces = limit["replaces"].as_array().into_iter().flatten();
    let replaces: Vec<Value> = replaces.map(|name| json!({"name": name})).collect();
    let mut rate_limit = json!({"name": limit["name"], "replaces": replaces});
    if let Some(metadata) = limit.get("metadata") {
        node["metadata"] = metadata.clone();
    }
    if limit["unlimited"] == true {
        rate_limit["unlimited"] = true.into();
    } else {
        rate_limit["requests_per_unit"] = limit["requests_per_unit"].clone();
        // Concurrency has no unit, but a rules file has to name one.
        rate_limit["unit"] = limit.get("unit").cloned().unwrap_or("second".into());
        node["metadata"]["tollgate"] = block(limit);
    }
    node["rate_limit"] = rate_limit;
    node
}

fn block(limit: &Value) -> Value {
    let mut block = json!({});
    for name in OPTIONS {
        if let Some(value) = limit.get(name) {
            block[name] = value.clone();
        }
    }
    if let Some(multiplier) = limit.get("unit_multiplier") {
        block["unit_multiplier"] = multiplier.clone();
    }
    // Of a limit of 0; a rules file cannot name it.
    if limit["burst"] == 0
        && let Some(block) = block.as_object_mut()
    {
        block.remove("burst");
    }
    block
}

fn origin(source: &Value) -> Origin {
    let file = source["file"].as_str().or(source["resource"].as_str());
    let number = |name: &str| {
        source[name]
            .as_u64()
            .and_then(|number| number.try_into().ok())
    };
    Origin {
        file: file.unwrap_or_default().into(),
        line: number("line").unwrap_or_default(),
        column: number("column").unwrap_or_default(),
    }
}

/// JSON is YAML but for some characters.
fn as_yaml(json: &Value) -> String {
    let text = json.to_string();
    let escaped = text.chars().map(|letter| match letter {
        '\u{feff}' | '\u{fffe}' | '\u{ffff}' => format!("\\u{:04x}", u32::from(letter)),
        _ if letter.is_control() => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.to_string(),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::diff::diff;
    use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
    use crate::telemetry::metric::Metrics;

    const RULES: &str = r#"
domain: d
metadata: {tollgate: {all_or_nothing: true}}
descriptors:
  - {key: plain, value: "no", rate_limit: {unit: Minute, requests_per_unit: 3, name: n, replaces: [{name: m}]}, metadata: {owner: "\x7f", n: [1, null]}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: days, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 60}}}
  - {key: denied, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {on_store_error: deny, over_limit_hits: drop}}}
  - {key: partly, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {enforce_percent: 25, response_body: "no\nmore"}}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 0}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 10}, metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1500us}}}
  - {key: cut, rate_limit: {unit: hour, requests_per_unit: 7}, metadata: {tollgate: {algorithm: sliding_window, buckets: 4, on_limit: degrade, request_headers: {X-Degraded: yes please}}}}
  - key: path
    value: /a/*
    share_threshold: true
    descriptors:
      - {key: id, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 8}, metadata: {tollgate: {algorithm: concurrency, lease_by: id, lease: 90s}}}
      - {key: none, value_to_metric: true}
"#;

    #[test]
    fn the_page_of_rules_compiles_to_the_same_rules() {
        let options = CompileOptions::new(StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()));
        let source = Source {
            name: "d".into(),
            path: "d.yaml".into(),
            text: RULES.into(),
        };
        let rules_read = config::load(&[source], &options).expect("valid").rules;
        let page = rules_read.dump_json(OnStoreError::Allow);
        let served = rules(&page, "http://service", options).expect("it is the page");
        let found = diff(&rules_read, &served, OnStoreError::Allow);
        assert!(found.is_empty(), "{found:#?}");
        let origins = |rules: &RuleSet| -> Vec<String> {
            let all = rules.rules();
            all.iter().map(|rule| rule.origin.to_string()).collect()
        };
        assert_eq!(origins(&rules_read), origins(&served));
    }

    #[test]
    fn other_pages_are_rejected() {
        for page in [
            "",
            "{}",
            r#"{"domains": [{"domain": "d", "descriptors": [{"entries": []}]}]}"#,
            r#"{"domains": [{"domain": "d", "descriptors": [{"entries": [{"key": "a"}, {"key": "b"}]}]}]}"#,
        ] {
            let options = CompileOptions::new(StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()));
            assert!(rules(page, "http://service", options).is_err(), "{page}");
        }
    }
}
