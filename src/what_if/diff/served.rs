//! Rules in force on a service: `/rlconfig?format=json` for the compiler that serves.
//!
//! The page has every option that is in force, so no defaults are applied to it. It does not say
//! who set an option.

use std::collections::HashMap;

use anyhow::{Context as _, bail, ensure};

use crate::config::error::SourceFindings;
use crate::config::spec::{DescriptorSpec, Level, RateLimitSpec, RulesFile};
use crate::config::tollgate::{Block, Options, RootBlock, read_block};
use crate::config::yaml::{self, Located, Location, Node};
use crate::config::{self, CompileOptions, Input, Source};
use crate::limit::Consistency;
use crate::report::rule::{DescriptorView, DomainView, RuleView, RulesView};
use crate::rules::{OnStoreError, Origin, RuleSet};

/// Levels of descriptors of a page: compiling recurses once a level. A rules file has fewer.
const DEPTH_MAX: usize = yaml::DEPTH_MAX / 2;
/// Concurrency has no unit, but a rate_limit has to name one.
const NO_UNIT: &str = "second";

/// A domain of the page.
struct Served<'p> {
    source: Source,
    domain: &'p DomainView,
}

/// Descriptors of a level, each with those inside it behind it.
#[derive(Debug)]
struct Descriptors<'p>(Vec<&'p [DescriptorView]>);

/// Compiles the page of the service `name`.
///
/// # Errors
/// The text is not the page of rules.
pub(crate) fn rules(page: &str, name: &str, options: CompileOptions) -> anyhow::Result<RuleSet> {
    let read = || format!("read the rules of {name}");
    let page: RulesView = serde_json::from_str(page).with_context(read)?;
    let options = CompileOptions {
        default_algorithm: None,
        default_consistency: Consistency::Exact,
        overlay: None,
        ..options
    };
    let mut inputs = Vec::new();
    let mut origins = HashMap::new();
    for domain in &page.domains {
        check_order(&domain.descriptors).with_context(read)?;
        let path = format!("{name} {:?}", domain.domain);
        let source = Source {
            name: path.as_str().into(),
            path: path.as_str().into(),
            text: "".into(),
        };
        inputs.push(Served { source, domain });
        for descriptor in &domain.descriptors {
            if let Some(rule) = &descriptor.limit {
                let policy = rule.options.get("on_store_error");
                let policy = policy.and_then(|policy| policy.as_str());
                let policy: Option<OnStoreError> = policy.and_then(|name| name.parse().ok());
                origins.insert(&*descriptor.path, (Origin::from(&rule.source), policy));
            }
        }
    }
    let loaded = config::load_inputs(&inputs, &options);
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

/// # Errors
/// A descriptor is not behind the one that it is in.
fn check_order(descriptors: &[DescriptorView]) -> anyhow::Result<()> {
    let mut depth = 0;
    for descriptor in descriptors {
        let entries = descriptor.entries.len();
        ensure!(entries > 0, "a descriptor is empty");
        ensure!(entries <= depth + 1, "a descriptor is not in its parent");
        ensure!(entries <= DEPTH_MAX, "descriptors are nested too deeply");
        depth = entries;
    }
    Ok(())
}

impl Input for Served<'_> {
    fn source(&self) -> &Source {
        &self.source
    }

    fn read(&self, _: &mut SourceFindings<'_>) -> Option<RulesFile<'_>> {
        Some(RulesFile {
            domain: located(&self.domain.domain),
            descriptors: level(&self.domain.descriptors),
            block: Some(RootBlock {
                all_or_nothing: Some(self.domain.all_or_nothing),
                ..RootBlock::default()
            }),
        })
    }
}

impl Level for Descriptors<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, index: usize, findings: &mut SourceFindings<'_>) -> Option<DescriptorSpec<'_>> {
        let (descriptor, inside) = self.0[index].split_first()?;
        Some(spec(descriptor, inside, findings))
    }
}

fn level(descriptors: &[DescriptorView]) -> Option<Box<dyn Level + '_>> {
    let depth = descriptors.first()?.entries.len();
    let groups = descriptors.chunk_by(|_, next| next.entries.len() > depth);
    Some(Box::new(Descriptors(groups.collect())))
}

fn spec<'p>(
    descriptor: &'p DescriptorView,
    inside: &'p [DescriptorView],
    findings: &mut SourceFindings<'_>,
) -> DescriptorSpec<'p> {
    let entry = descriptor.entries.last();
    let mut spec = DescriptorSpec {
        key: entry.map(|entry| located(&entry.key)).unwrap_or_default(),
        value: entry.map(|entry| entry.value.clone()).unwrap_or_default(),
        descriptors: level(inside),
        share_threshold: Located {
            value: descriptor.share_threshold,
            location: Location::default(),
        },
        value_to_metric: descriptor.value_to_metric,
        ..DescriptorSpec::default()
    };
    let Some(rule) = &descriptor.limit else {
        return spec;
    };
    spec.shadow_mode = rule.shadow_mode;
    spec.quota_mode = rule.quota_mode;
    spec.detailed_metric = rule.detailed_metric;
    spec.metadata.clone_from(&rule.metadata);
    let mut rate_limit = RateLimitSpec {
        unlimited: rule.unlimited,
        name: rule.name.clone(),
        replaces: rule.replaces.iter().map(|name| located(name)).collect(),
        ..RateLimitSpec::default()
    };
    if let Some(limit) = &rule.limit {
        let period = limit.period.as_ref();
        rate_limit.requests_per_unit = u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX);
        rate_limit.unit = located(period.map_or(NO_UNIT, |period| &period.unit));
    }
    let counts = !rule.unlimited || rule.options.contains_key("on_limit");
    spec.block = counts.then(|| block(rule, findings)).flatten();
    spec.rate_limit = Some(rate_limit);
    spec
}

/// Options in force as those of the rule itself.
fn block(rule: &RuleView, findings: &mut SourceFindings<'_>) -> Option<Block> {
    let period = rule.limit.as_ref().and_then(|limit| limit.period.as_ref());
    let multiplier = period.map(|period| period.unit_multiplier);
    let multiplier = multiplier.map(|multiplier| ("unit_multiplier", multiplier.into()));
    // A burst of 0 is that of a limit of 0; a rules file cannot name it.
    let options = rule.options.iter().filter(|(key, value)| {
        Options::KEYS.contains(&key.as_str())
            && *key != "on_store_error"
            && (*key != "burst" || **value != 0)
    });
    let options = options.map(|(key, value)| (key.as_str(), value.clone()));
    let block = options.chain(multiplier).collect();
    read_block(&Node::of_json(&block), findings)
}

fn located(text: &str) -> Located<String> {
    Located {
        value: text.to_owned(),
        location: Location::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::change::diff;
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
  - {key: loan, rate_limit: {unit: hour, requests_per_unit: 700}, metadata: {tollgate: {consistency: leased}}}
  - {key: loans, rate_limit: {unit: second, requests_per_unit: 70}, metadata: {tollgate: {algorithm: token_bucket, burst: 700, consistency: leased, lease: 25ms, over_limit_hits: drop}}}
  - key: budget
    rate_limit: {name: b, unlimited: true}
    metadata: {tollgate: {limits: [{requests: 5_000_000_000, unit: month, unit_multiplier: 3, calendar: {time_zone: Europe/Berlin, first_day: 2, at: "06:00"}, warn_at: [80%, 50%]}, {name: burst, requests: 10, unit: second, algorithm: token_bucket, burst: 20}]}}
    descriptors:
      - {key: settle, rate_limit: {unlimited: true}, metadata: {tollgate: {parents: true, over_limit_hits: count}}}
      - {key: strict, rate_limit: {unit: day, requests_per_unit: 2}, metadata: {tollgate: {parents: true, over_limit_hits: drop}}}
  - {key: local, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {calendar: Asia/Kolkata, warn_at: 80%}}}
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

    #[test]
    fn depth_of_a_page_is_bounded() {
        let descriptor = |depth| {
            let entries = vec![r#"{"key":"k"}"#; depth].join(",");
            format!(
                r#"{{"path":"d","entries":[{entries}],"share_threshold":false,"value_to_metric":false,"limit":null}}"#
            )
        };
        let is_valid = |depth| {
            let descriptors: Vec<_> = (1..=depth).map(descriptor).collect();
            let descriptors = descriptors.join(",");
            let page = format!(
                r#"{{"domains":[{{"domain":"d","all_or_nothing":false,"descriptors":[{descriptors}]}}]}}"#
            );
            let options = CompileOptions::new(StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()));
            rules(&page, "http://service", options).is_ok()
        };
        assert_eq!([DEPTH_MAX, DEPTH_MAX + 1].map(is_valid), [true, false]);
    }
}
