//! Writes the rules in force, as text and as JSON: what `/rlconfig` returns.
//!
//! A rule that envoyproxy/ratelimit can express has its line, byte for byte, because scripts parse
//! it. Any other rule has the same line with every option in force behind it. The JSON is a stable
//! interface for tools; `docs/rlconfig.md` describes it.

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq, Serializer};
use serde_json::{Value, json};

use crate::limit::{Algorithm, Limit, OverLimitHits, Unit};
use crate::rules::rule::{Allowance, Naming, OnLimit, OnStoreError, Origin, Rule};
use crate::rules::tree::{Domain, Level, Node, RuleSet};
use crate::time::Span;

/// Units for a period that is no single unit. Months and years are left out: 60 days are 60 days,
/// not two months.
const UNITS_OF_MULTIPLES: [Unit; 5] = [
    Unit::Week,
    Unit::Day,
    Unit::Hour,
    Unit::Minute,
    Unit::Second,
];
/// Units of a duration as rules files write it.
const DURATION_UNITS: [(u64, &str); 5] = [
    (3_600_000_000, "h"),
    (60_000_000, "m"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
];

/// The JSON of a rule set.
struct RuleSetJson<'r> {
    rules: &'r RuleSet,
    on_store_error: OnStoreError,
}

struct DomainJson<'r> {
    domain: &'r Domain,
    on_store_error: OnStoreError,
}

/// The descriptors of a domain, depth first, in the order of the file.
struct DescriptorsJson<'r> {
    domain: &'r Domain,
    on_store_error: OnStoreError,
}

impl RuleSet {
    /// One line per limit, sorted by path.
    pub fn dump(&self) -> String {
        let mut lines = Vec::with_capacity(self.rule_count());
        for domain in self.domains() {
            collect_lines(domain, &domain.root, &mut lines);
        }
        lines.sort_unstable();
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// The rules as JSON. `on_store_error` is the policy of rules without one.
    pub fn dump_json(&self, on_store_error: OnStoreError) -> String {
        serde_json::to_string(&RuleSetJson {
            rules: self,
            on_store_error,
        })
        .expect("every key is a string, and a String takes any text")
    }
}

fn collect_lines<'r>(domain: &Domain, level: &'r Level, lines: &mut Vec<(&'r str, String)>) {
    for node in level.nodes() {
        if let Some(rule) = &node.rule {
            lines.push((&rule.path, line(domain, node, rule)));
        }
        if let Some(below) = &node.below {
            collect_lines(domain, below, lines);
        }
    }
}

fn line(domain: &Domain, node: &Node, rule: &Rule) -> String {
    let amount = match &rule.allowance {
        Allowance::Unlimited { requests_per_unit } => {
            format!("unit=UNKNOWN requests_per_unit={requests_per_unit}")
        }
        Allowance::Limited(limit) => amount(limit),
    };
    let Rule {
        path,
        shadow_mode,
        quota_mode,
        ..
    } = rule;
    let mut line =
        format!("{path}: {amount}, shadow_mode: {shadow_mode}, quota_mode: {quota_mode}");
    if let Allowance::Limited(limit) = &rule.allowance
        && !is_expressible(domain, rule, limit)
    {
        for (key, value) in options(node, rule, limit) {
            line += &format!(", {key}: {}", in_line(&value));
        }
        if domain.all_or_nothing {
            line += ", all_or_nothing: true";
        }
    }
    line + "\n"
}

fn amount(limit: &Limit) -> String {
    let requests = limit.requests();
    match period_in_units(limit) {
        None => format!("requests_per_unit={requests}"),
        Some((unit, 1)) => format!(
            "unit={} requests_per_unit={requests}",
            unit.name().to_uppercase()
        ),
        Some((unit, multiplier)) => {
            format!(
                "unit={} unit_multiplier={multiplier} requests_per_unit={requests}",
                unit.name().to_uppercase()
            )
        }
    }
}

/// Whether envoyproxy/ratelimit has the same limit: a fixed window of one unit and no option of a
/// `tollgate` block.
fn is_expressible(domain: &Domain, rule: &Rule, limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::FixedWindow
        && limit.unit().is_some()
        && limit.over_limit_hits() == OverLimitHits::Count
        && rule.on_limit == (OnLimit::Reject { body: None })
        && rule.on_store_error.is_none()
        && !domain.all_or_nothing
}

/// The options in force that apply to the limit, by their keys in rules files.
fn options(node: &Node, rule: &Rule, limit: &Limit) -> Vec<(&'static str, Value)> {
    let algorithm = limit.algorithm();
    let mut options = vec![("algorithm", json!(algorithm.name()))];
    if algorithm.is_bucket() {
        options.push(("burst", json!(limit.capacity())));
    }
    if limit.buckets() > 0 {
        options.push(("buckets", json!(limit.buckets())));
    }
    if algorithm == Algorithm::Concurrency {
        options.push(("lease_by", json!(node.key)));
        options.push(("lease", json!(duration(limit.period()))));
    } else {
        options.push(("over_limit_hits", json!(limit.over_limit_hits().name())));
    }
    match &rule.on_limit {
        OnLimit::Reject { body } => {
            options.push(("on_limit", json!("reject")));
            options.extend(body.as_ref().map(|body| ("response_body", json!(body))));
        }
        OnLimit::Queue => options.extend([
            ("on_limit", json!("queue")),
            ("max_wait", json!(duration(limit.max_wait()))),
        ]),
        OnLimit::Degrade { request_headers } => {
            let headers: serde_json::Map<_, _> = request_headers
                .iter()
                .map(|(name, value)| (name.to_string(), json!(value)))
                .collect();
            options.extend([
                ("on_limit", json!("degrade")),
                ("request_headers", Value::Object(headers)),
            ]);
        }
    }
    options.extend(
        rule.on_store_error
            .map(|policy| ("on_store_error", json!(policy.name()))),
    );
    options
}

/// The unit and how many of it make the period; `None` for concurrency, which has none.
fn period_in_units(limit: &Limit) -> Option<(Unit, u64)> {
    if limit.algorithm() == Algorithm::Concurrency {
        return None;
    }
    let period = limit.period().as_micros();
    let unit = limit.unit().or_else(|| {
        UNITS_OF_MULTIPLES
            .into_iter()
            .find(|unit| period.is_multiple_of(unit.span().as_micros()))
    })?;
    Some((unit, period / unit.span().as_micros()))
}

/// A duration as rules files write it, such as `200ms`.
fn duration(span: Span) -> String {
    let micros = span.as_micros();
    let (unit, name) = DURATION_UNITS
        .into_iter()
        .find(|(unit, _)| micros.is_multiple_of(*unit))
        .unwrap_or((1, "us"));
    format!("{}{name}", micros / unit)
}

/// A word as it is, everything else as JSON, so that a line stays one line.
fn in_line(value: &Value) -> String {
    let is_word = |text: &&str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    value
        .as_str()
        .filter(is_word)
        .map_or_else(|| value.to_string(), str::to_owned)
}

impl Serialize for RuleSetJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let domains = self
            .rules
            .domain_names()
            .into_iter()
            .filter_map(|name| self.rules.domain(name.as_bytes()));
        let domains: Vec<_> = domains
            .map(|domain| DomainJson {
                domain,
                on_store_error: self.on_store_error,
            })
            .collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("domains", &domains)?;
        map.end()
    }
}

impl Serialize for DomainJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &Self {
            domain,
            on_store_error,
        } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("domain", &domain.name)?;
        map.serialize_entry("all_or_nothing", &domain.all_or_nothing)?;
        map.serialize_entry(
            "descriptors",
            &DescriptorsJson {
                domain,
                on_store_error,
            },
        )?;
        map.end()
    }
}

impl Serialize for DescriptorsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut descriptors = serializer.serialize_seq(None)?;
        self.write(&self.domain.root, &mut Vec::new(), &mut descriptors)?;
        descriptors.end()
    }
}

impl<'r> DescriptorsJson<'r> {
    /// One by one, because a tree of JSON values for all rules takes several times the memory of
    /// the text.
    fn write<S: SerializeSeq>(
        &self,
        level: &'r Level,
        nodes: &mut Vec<&'r Node>,
        descriptors: &mut S,
    ) -> Result<(), S::Error> {
        for node in level.nodes() {
            nodes.push(node);
            descriptors.serialize_element(&self.descriptor(node, nodes))?;
            if let Some(below) = &node.below {
                self.write(below, nodes, descriptors)?;
            }
            nodes.pop();
        }
        Ok(())
    }

    /// `nodes` are the descriptor and those around it, from the outermost on.
    fn descriptor(&self, node: &Node, nodes: &[&Node]) -> Value {
        let labels: Vec<&str> = std::iter::once(&*self.domain.name)
            .chain(nodes.iter().map(|node| &*node.label))
            .collect();
        let entries = nodes.iter().map(|node| {
            if node.value.is_empty() {
                json!({"key": node.key})
            } else {
                json!({"key": node.key, "value": node.value})
            }
        });
        json!({
            "path": labels.join("."),
            "entries": entries.collect::<Vec<_>>(),
            "share_threshold": node.share_threshold,
            "value_to_metric": node.value_to_metric,
            "limit": node.rule.as_ref().map(|rule| self.limit(node, rule)),
        })
    }

    fn limit(&self, node: &Node, rule: &Rule) -> Value {
        let mut json = json!({
            "source": source(&rule.origin),
            "name": rule.name,
            "replaces": rule.replaces,
            "unlimited": rule.limit().is_none(),
            "shadow_mode": rule.shadow_mode,
            "quota_mode": rule.quota_mode,
            "detailed_metric": rule.naming == Naming::Detailed,
        });
        if let Some(metadata) = &rule.metadata {
            json["metadata"] = Value::Object(metadata.clone());
        }
        let Allowance::Limited(limit) = &rule.allowance else {
            return json;
        };
        json["requests_per_unit"] = limit.requests().into();
        if let Some((unit, multiplier)) = period_in_units(limit) {
            json["unit"] = unit.name().into();
            json["unit_multiplier"] = multiplier.into();
            json["period_seconds"] = limit.period().ceil_secs().into();
        }
        json["on_store_error"] = self.on_store_error.name().into();
        for (key, value) in options(node, rule, limit) {
            json[key] = value;
        }
        json
    }
}

/// Where a rule is defined. A resource of a control plane has no lines.
fn source(origin: &Origin) -> Value {
    if origin.line == 0 {
        json!({"resource": *origin.file})
    } else {
        json!({"file": *origin.file, "line": origin.line, "column": origin.column})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, CompileOptions, Source};
    use crate::rules::KeyFormat;
    use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
    use crate::telemetry::metric::Metrics;

    const EVERYTHING: &str = r#"
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: Minute, requests_per_unit: 3, name: n, replaces: [{name: m}]}, metadata: {owner: shop}}
  - {key: free, rate_limit: {unlimited: true, requests_per_unit: 4}}
  - {key: minutes, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 5}}}
  - {key: days, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {tollgate: {unit_multiplier: 60}}}
  - {key: a_minute, rate_limit: {unit: second, requests_per_unit: 6}, metadata: {tollgate: {unit_multiplier: 60}}}
  - {key: dropping, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {over_limit_hits: drop}}}
  - {key: denied, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {on_store_error: deny}}}
  - {key: body, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {response_body: "no\nmore"}}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 10}, metadata: {tollgate: {algorithm: token_bucket, burst: 20}}}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1500us}}
  - key: cut
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 7}
    metadata: {tollgate: {algorithm: sliding_window, buckets: 4, on_limit: degrade, request_headers: {X-Degraded: yes please}}}
  - key: path
    value: /a/*
    share_threshold: true
    descriptors:
      - {key: id, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 8}, metadata: {tollgate: {algorithm: concurrency, lease_by: id, lease: 90s}}}
"#;

    /// The line of each rule of [`EVERYTHING`], sorted by path as they are printed.
    const LINES: &str = r#"
d.a_minute: unit=MINUTE requests_per_unit=6, shadow_mode: false, quota_mode: false
d.body: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject, response_body: "no\nmore"
d.bucket: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 20, over_limit_hits: drop, on_limit: reject
d.cut: unit=HOUR requests_per_unit=7, shadow_mode: true, quota_mode: false, algorithm: sliding_window, buckets: 4, over_limit_hits: drop, on_limit: degrade, request_headers: {"x-degraded":"yes please"}
d.days: unit=DAY unit_multiplier=60 requests_per_unit=5, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject
d.denied: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject, on_store_error: deny
d.dropping: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: drop, on_limit: reject
d.free: unit=UNKNOWN requests_per_unit=4, shadow_mode: false, quota_mode: false
d.minutes: unit=MINUTE unit_multiplier=5 requests_per_unit=5, shadow_mode: false, quota_mode: false, algorithm: fixed_window, over_limit_hits: count, on_limit: reject
d.path_/a/*.id: requests_per_unit=8, shadow_mode: false, quota_mode: true, algorithm: concurrency, lease_by: id, lease: 90s, on_limit: reject
d.plain: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false
d.queue: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm: leaky_bucket, burst: 1, over_limit_hits: drop, on_limit: queue, max_wait: 1500us
"#;

    #[test]
    fn rules_of_the_reference_have_its_line_and_all_others_a_complete_one() {
        assert_eq!(rules(EVERYTHING).dump(), LINES.trim_start());
    }

    #[test]
    fn a_line_names_the_domains_all_or_nothing() {
        let lines = rules(
            "domain: d\nmetadata: {tollgate: {all_or_nothing: true}}\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]",
        )
        .dump();
        let expected = "algorithm: fixed_window, over_limit_hits: count, on_limit: reject, all_or_nothing: true\n";
        assert_eq!(
            lines,
            format!(
                "d.k: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false, {expected}"
            )
        );
    }

    #[test]
    fn json_has_every_descriptor_in_file_order_and_the_complete_limit() {
        let json: Value = serde_json::from_str(&rules(EVERYTHING).dump_json(OnStoreError::Allow))
            .expect("it is JSON");
        let domain = &json["domains"][0];
        assert_eq!(
            (&domain["domain"], &domain["all_or_nothing"]),
            (&json!("d"), &json!(false))
        );
        let descriptors = domain["descriptors"].as_array().expect("a list");
        let paths: Vec<&str> = descriptors
            .iter()
            .filter_map(|descriptor| descriptor["path"].as_str())
            .collect();
        let expected = [
            "plain",
            "free",
            "minutes",
            "days",
            "a_minute",
            "dropping",
            "denied",
            "body",
            "bucket",
            "queue",
            "cut",
            "path_/a/*",
            "path_/a/*.id",
        ];
        assert_eq!(paths, expected.map(|path| format!("d.{path}")));

        let limit = |path: &str| {
            &descriptors[paths
                .iter()
                .position(|known| *known == path)
                .expect("it is listed")]["limit"]
        };
        let common = |line: u32| {
            json!({"source": {"file": "rules.yaml", "line": line, "column": 5}, "name": "", "replaces": [], "unlimited": false,
                "shadow_mode": false, "quota_mode": false, "detailed_metric": false, "on_store_error": "allow", "on_limit": "reject"})
        };
        let with = |line: u32, more: Value| {
            let mut limit = common(line);
            for (key, value) in more.as_object().expect("a map") {
                limit[key] = value.clone();
            }
            limit
        };
        let window = json!({"name": "n", "replaces": ["m"], "metadata": {"owner": "shop"}, "algorithm": "fixed_window", "requests_per_unit": 3,
            "unit": "minute", "unit_multiplier": 1, "period_seconds": 60, "over_limit_hits": "count"});
        assert_eq!(limit("d.plain"), &with(4, window));
        let minutes = json!({"algorithm": "fixed_window", "requests_per_unit": 5, "unit": "minute", "unit_multiplier": 5,
            "period_seconds": 300, "over_limit_hits": "count"});
        assert_eq!(limit("d.minutes"), &with(6, minutes));
        let bucket = json!({"algorithm": "token_bucket", "requests_per_unit": 10, "unit": "second", "unit_multiplier": 1, "period_seconds": 1,
            "burst": 20, "over_limit_hits": "drop"});
        assert_eq!(limit("d.bucket"), &with(12, bucket));
        let queue = json!({"algorithm": "leaky_bucket", "requests_per_unit": 10, "unit": "second", "unit_multiplier": 1, "period_seconds": 1,
            "burst": 1, "over_limit_hits": "drop", "on_limit": "queue", "max_wait": "1500us"});
        assert_eq!(limit("d.queue"), &with(13, queue));
        let held = json!({"source": {"file": "rules.yaml", "line": 24, "column": 9}, "quota_mode": true, "algorithm": "concurrency",
            "requests_per_unit": 8, "lease_by": "id", "lease": "90s"});
        assert_eq!(limit("d.path_/a/*.id"), &with(0, held));

        let free = limit("d.free");
        assert_eq!(
            (
                &free["unlimited"],
                &free["requests_per_unit"],
                &free["algorithm"]
            ),
            (&json!(true), &Value::Null, &Value::Null)
        );
        let (around, within) = (
            &descriptors[descriptors.len() - 2],
            &descriptors[descriptors.len() - 1],
        );
        assert_eq!(
            (&around["limit"], &around["share_threshold"]),
            (&Value::Null, &json!(true))
        );
        assert_eq!(
            within["entries"],
            json!([{"key": "path", "value": "/a/*"}, {"key": "id"}])
        );
    }

    fn rules(text: &str) -> RuleSet {
        let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
        let options = CompileOptions {
            key_format: KeyFormat::Safe,
            ..CompileOptions::new(stats)
        };
        let source = Source {
            name: "rules.yaml".into(),
            path: "rules.yaml".into(),
            text: text.into(),
        };
        config::load(&[source], &options)
            .expect("the rules are valid")
            .rules
    }
}
