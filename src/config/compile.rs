//! From the shape of rules to rules that can serve.
//!
//! Inside one descriptor the checks come in the reference's order, with its words: an operator who
//! knows them knows where to look.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::config::error::{Draft, SourceFindings};
use crate::config::overlay::{DomainOverlay, Overlay};
use crate::config::resolve::{Layer, Layers, ResolvedOptions};
use crate::config::schema::{DescriptorSpec, RateLimitSpec, RulesFile};
use crate::config::tollgate::Block;
use crate::config::yaml::Location;
use crate::config::{CompileOptions, Located, Source};
use crate::limit::{Algorithm, LOG_ENTRIES_MAX, Limit, Terms, Unit};
use crate::rules::key::{KeyHead, KeyTail};
use crate::rules::tree::{Domain, Level, Node, OverrideDefaults, RuleSet};
use crate::rules::{Allowance, Naming, Origin, Provenance, Rule, metric_name};

const UNITS_HINT: &str = "write one of second, minute, hour, day, week, month, year";

/// Takes files one after the other, and makes one set of them.
#[derive(Debug)]
pub struct Compiler<'o> {
    options: &'o CompileOptions,
    overlay: &'o Overlay,
    /// What DEFAULT_ALGORITHM says, as a block.
    setting: Option<(Block, Arc<str>)>,
    domains: HashMap<String, Building>,
}

/// A domain of which more files may be to come.
#[derive(Debug)]
struct Building {
    domain: Domain,
    labels: HashSet<String>,
    block_from: Option<Arc<str>>,
    /// What its own files say.
    all_or_nothing: Option<bool>,
}

/// Where in the rules a descriptor stands, and what applies there.
#[derive(Clone, Copy)]
struct Context<'c> {
    /// `domain.key_value…`, without the descriptor itself.
    path: &'c str,
    /// The same as the name of metrics.
    metric_path: &'c str,
    domain: &'c str,
    defaults: Option<&'c Block>,
    overlay: &'c DomainOverlay<'c>,
    setting: Option<&'c (Block, Arc<str>)>,
    /// `value_to_metric` on a descriptor above.
    by_value: bool,
    source: &'c Source,
    options: &'c CompileOptions,
}

impl<'o> Compiler<'o> {
    /// Nothing yet.
    pub fn new(options: &'o CompileOptions, overlay: &'o Overlay) -> Self {
        let setting = options.default_algorithm.map(|value| {
            let algorithm = Some(Located {
                value,
                location: Location::default(),
            });
            (
                Block {
                    algorithm,
                    ..Block::default()
                },
                "DEFAULT_ALGORITHM".into(),
            )
        });
        Self {
            options,
            overlay,
            setting,
            domains: HashMap::new(),
        }
    }

    /// Adds a file.
    pub fn add(&mut self, source: &Source, file: RulesFile, findings: &mut SourceFindings<'_>) {
        let name = file.domain.value;
        if name.is_empty() {
            let hint = Some("write `domain: NAME` at the top: the domain that Envoy's filter is configured with".to_owned());
            findings.problem(Draft {
                location: file.domain.location,
                place: "",
                text: "config file cannot have empty domain".to_owned(),
                hint,
            });
            return;
        }
        let building = match self.domains.entry(name.clone()) {
            Slot::Occupied(entry) if !self.options.merge_domains => {
                let text = format!("duplicate domain '{}' in config file", entry.key());
                let hint = Some(
                    "set MERGE_DOMAIN_CONFIG=true to read a domain from several files".to_owned(),
                );
                findings.problem(Draft {
                    location: file.domain.location,
                    place: "",
                    text,
                    hint,
                });
                return;
            }
            Slot::Occupied(entry) => entry.into_mut(),
            Slot::Vacant(entry) => entry.insert(Building::new(&name, self.options)),
        };
        let overlay = self.overlay.in_domain(&name);
        let own = file.block.as_ref().and_then(|block| block.all_or_nothing);
        building.all_or_nothing = building.all_or_nothing.or(own);
        building.domain.all_or_nothing = building
            .all_or_nothing
            .or(overlay.all_or_nothing())
            .unwrap_or(false);
        if let Some(block) = &file.block
            && let Some(other) = building.block_from.replace(source.path.clone())
        {
            let text = format!("the domain '{name}' has a tollgate block already, in {other}");
            let hint = Some("keep one of them: it speaks for the whole domain".to_owned());
            findings.problem(Draft {
                location: block.location,
                place: "metadata.tollgate",
                text,
                hint,
            });
        }
        let defaults = file
            .block
            .as_ref()
            .and_then(|block| block.defaults.as_ref());
        let context = Context {
            path: &name,
            metric_path: &name,
            domain: &name,
            defaults,
            overlay: &overlay,
            setting: self.setting.as_ref(),
            by_value: false,
            source,
            options: self.options,
        };
        context.add_level(
            &mut building.domain.root,
            &mut building.labels,
            file.descriptors,
            &format!("domain {name} > "),
            findings,
        );
    }

    /// The set.
    pub fn finish(self) -> RuleSet {
        RuleSet::new(self.domains.into_values().map(|building| building.domain))
    }
}

impl Building {
    fn new(name: &str, options: &CompileOptions) -> Self {
        let key_head = KeyHead::new(options.key_format, &options.key_prefix, name);
        let algorithm = options.default_algorithm.unwrap_or(Algorithm::FixedWindow);
        let override_defaults = OverrideDefaults {
            algorithm,
            months: options.months,
        };
        let metric_dots = options.metric_dots;
        let domain = Domain {
            name: name.into(),
            key_head,
            all_or_nothing: false,
            metric_dots,
            override_defaults,
            root: Level::default(),
        };
        Self {
            domain,
            labels: HashSet::new(),
            block_from: None,
            all_or_nothing: None,
        }
    }
}

impl Context<'_> {
    fn add_level(
        self,
        level: &mut Level,
        labels: &mut HashSet<String>,
        specs: Vec<DescriptorSpec>,
        place: &str,
        findings: &mut SourceFindings<'_>,
    ) {
        for (index, spec) in specs.into_iter().enumerate() {
            let place = format!("{place}descriptors[{index}]");
            let mut problem = |location: Location, text: String, hint: &str| {
                findings.problem(Draft {
                    location,
                    place: &place,
                    text,
                    hint: Some(hint.to_owned()),
                });
            };
            if spec.key.value.is_empty() {
                problem(
                    spec.key.location,
                    "descriptor has empty key".to_owned(),
                    "write `key: NAME`, the key of an entry that Envoy sends",
                );
                continue;
            }
            let label = label(&spec.key.value, &spec.value.value);
            let path = format!("{}.{label}", self.path);
            let metric_path = format!(
                "{}.{}",
                self.metric_path,
                self.options.metric_dots.part(&label)
            );
            if !labels.insert(label.clone()) {
                let hint = "keep one of them; the reference joins key and value with an underscore before it compares them";
                problem(
                    spec.key.location,
                    format!("duplicate descriptor composite key '{path}'"),
                    hint,
                );
                continue;
            }
            let by_value = self.by_value || spec.value_to_metric;
            level.insert(
                Context {
                    path: &path,
                    metric_path: &metric_path,
                    by_value,
                    ..self
                }
                .node(label.into(), spec, &place, findings),
            );
        }
    }

    fn node(
        self,
        label: Box<str>,
        spec: DescriptorSpec,
        place: &str,
        findings: &mut SourceFindings<'_>,
    ) -> Node {
        let rule = self.rule(&spec, place, findings).map(Box::new);
        if spec.share_threshold.value && !label.contains('*') {
            let text = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but found key '{label}'"
            );
            let hint = Some("remove it, or write a value with a *".to_owned());
            findings.problem(Draft {
                location: spec.share_threshold.location,
                place,
                text,
                hint,
            });
        }
        let below = (!spec.descriptors.is_empty()).then(|| {
            let mut level = Level::default();
            self.add_level(
                &mut level,
                &mut HashSet::new(),
                spec.descriptors,
                &format!("{place}."),
                findings,
            );
            Box::new(level)
        });
        Node {
            key: spec.key.value.into(),
            value: spec.value.value.into(),
            label,
            share_threshold: spec.share_threshold.value,
            value_to_metric: spec.value_to_metric,
            rule,
            below,
        }
    }

    fn rule(
        self,
        spec: &DescriptorSpec,
        place: &str,
        findings: &mut SourceFindings<'_>,
    ) -> Option<Rule> {
        let Some(rate_limit) = &spec.rate_limit else {
            report_orphans(spec, place, findings);
            return None;
        };
        let place = &format!("{place}.rate_limit");
        let options = ResolvedOptions::new(self.layers(spec));
        let effective = options.effective();
        self.overlay.note(self.path_in_domain(), &effective);
        let terms = self.terms(rate_limit, &options);
        let allowance = allowance(spec, rate_limit, &options, terms, place, findings);
        for name in &rate_limit.replaces {
            let text = if name.value.is_empty() {
                "should not have an empty replaces entry"
            } else if name.value == rate_limit.name {
                "replaces should not contain name of same descriptor"
            } else {
                continue;
            };
            let hint = Some("name a rule that this one takes the place of".to_owned());
            findings.problem(Draft {
                location: name.location,
                place,
                text: text.to_owned(),
                hint,
            });
        }
        let naming = match (spec.detailed_metric, self.by_value) {
            (true, _) => Naming::Detailed,
            (false, true) => Naming::ByValue,
            (false, false) => Naming::Fixed,
        };
        let allowance = allowance?;
        warn_about_surprises(spec, &allowance, &options, place, findings);
        let stats = self
            .options
            .stats
            .of_rule(&metric_name::sanitized(self.metric_path.to_owned()));
        Some(Rule {
            path: self.path.into(),
            name: rate_limit.name.as_str().into(),
            replaces: rate_limit
                .replaces
                .iter()
                .map(|name| name.value.as_str().into())
                .collect(),
            shadow_mode: spec.shadow_mode,
            quota_mode: spec.quota_mode,
            metadata: spec
                .metadata
                .clone()
                .filter(|metadata| !metadata.is_empty()),
            naming,
            stats,
            key_tail: match &allowance {
                Allowance::Limited(limit) => {
                    KeyTail::new(self.options.key_format, limit, options.unit_multiplier())
                }
                Allowance::Unlimited { .. } => KeyTail::none(),
            },
            on_limit: options.on_limit(),
            on_store_error: options.on_store_error(),
            override_terms: terms.filter(|_| !effective.is_empty()).map(Box::new),
            options: effective,
            origin: Origin {
                file: self.source.path.clone(),
                line: spec.location.line,
                column: spec.location.column,
            },
            allowance,
        })
    }

    /// The terms of a limit; `None` without a unit.
    fn terms(self, rate_limit: &RateLimitSpec, options: &ResolvedOptions<'_>) -> Option<Terms> {
        let unit = Unit::from_name(&rate_limit.unit.value)?;
        let rate = Terms::new(rate_limit.requests_per_unit, unit, Algorithm::FixedWindow);
        Some(options.terms(Terms {
            months: self.options.months,
            ..rate
        }))
    }

    /// Who has a say in what a rule means.
    fn layers<'l>(&'l self, spec: &'l DescriptorSpec) -> Layers<'l> {
        let in_file = [
            (spec.block.as_ref(), Provenance::Rule),
            (self.defaults, Provenance::Defaults),
        ];
        let file = &self.source.path;
        let mut layers: Layers<'l> = in_file
            .into_iter()
            .filter_map(|(block, by)| {
                Some(Layer {
                    block: block?,
                    by,
                    file,
                })
            })
            .collect();
        self.overlay.add_layers(self.path_in_domain(), &mut layers);
        layers.extend(self.setting.map(|(block, file)| Layer {
            block,
            by: Provenance::Setting,
            file,
        }));
        layers
    }

    fn path_in_domain(&self) -> &str {
        self.path.get(self.domain.len() + 1..).unwrap_or_default()
    }
}

/// What a rate_limit and all that is said besides come to; `None` if that makes no rule, which is
/// told.
fn allowance(
    descriptor: &DescriptorSpec,
    spec: &RateLimitSpec,
    options: &ResolvedOptions<'_>,
    terms: Option<Terms>,
    place: &str,
    findings: &mut SourceFindings<'_>,
) -> Option<Allowance> {
    let mut problem = |location: Location, text: String, hint: &str| {
        findings.problem(Draft {
            location,
            place,
            text,
            hint: Some(hint.to_owned()),
        });
        None
    };
    if spec.unlimited {
        if terms.is_some() {
            return problem(
                spec.unit.location,
                "should not specify rate limit unit when unlimited".to_owned(),
                "remove unit, or unlimited",
            );
        }
        if let Some(block) = &descriptor.block {
            return problem(
                block.location,
                "metadata.tollgate of an unlimited rule".to_owned(),
                "remove it: nothing is counted here",
            );
        }
        return Some(Allowance::Unlimited {
            requests_per_unit: spec.requests_per_unit,
        });
    }
    let Some(terms) = terms else {
        if spec.unit_misspelled && spec.unit.value.is_empty() {
            return None;
        }
        return problem(
            spec.unit.location,
            format!("invalid rate limit unit '{}'", spec.unit.value),
            UNITS_HINT,
        );
    };
    if options.is_faulty() {
        return None;
    }
    let conflicts = options.conflicts(descriptor);
    for (location, conflict) in &conflicts {
        findings.problem(Draft {
            location: *location,
            place,
            text: conflict.to_string(),
            hint: options.inherited(),
        });
    }
    match Limit::new(&terms) {
        Ok(limit) => conflicts.is_empty().then_some(Allowance::Limited(limit)),
        Err(error) => {
            let location = options.location_of(&error).unwrap_or(spec.location);
            findings.problem(Draft {
                location,
                place,
                text: error.to_string(),
                hint: options.inherited(),
            });
            None
        }
    }
}

/// What is counted as it says, and may not be what its author thinks.
fn warn_about_surprises(
    spec: &DescriptorSpec,
    allowance: &Allowance,
    options: &ResolvedOptions<'_>,
    place: &str,
    findings: &mut SourceFindings<'_>,
) {
    let Allowance::Limited(limit) = allowance else {
        return;
    };
    if limit.algorithm() == Algorithm::SlidingLog && limit.requests() > LOG_ENTRIES_MAX {
        let text = format!(
            "a sliding_log of {} remembers {LOG_ENTRIES_MAX} calls (log_entries_max), and may let fewer pass than it says",
            limit.requests()
        );
        let hint = Some("write algorithm: sliding_window with buckets: 10, which takes no more room for more calls".to_owned());
        findings.warning(Draft {
            location: options.algorithm_location().unwrap_or(spec.location),
            place,
            text,
            hint,
        });
    }
    if let Some(location) = options.own_queue().filter(|_| spec.shadow_mode) {
        let text = "a rule in shadow_mode holds nobody back: its queue is not made".to_owned();
        findings.warning(Draft {
            location,
            place,
            text,
            hint: None,
        });
    }
}

/// What stands beside no rate_limit: the reference passes over its own, and what is ours would be
/// relied upon.
fn report_orphans(spec: &DescriptorSpec, place: &str, findings: &mut SourceFindings<'_>) {
    let flags = [
        ("shadow_mode", spec.shadow_mode),
        ("quota_mode", spec.quota_mode),
        ("detailed_metric", spec.detailed_metric),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, set)| *set) {
        let text = format!("`{flag}` has no effect without rate_limit beside it");
        findings.warning(Draft {
            location: spec.location,
            place,
            text,
            hint: None,
        });
    }
    if let Some(block) = &spec.block {
        let text = "metadata.tollgate without rate_limit beside it".to_owned();
        let hint = Some("move it to the descriptor that has the rate_limit".to_owned());
        findings.problem(Draft {
            location: block.location,
            place,
            text,
            hint,
        });
    }
}

/// `key`, or `key_value`: how the reference names a descriptor.
fn label(key: &str, value: &str) -> String {
    if value.is_empty() {
        key.to_owned()
    } else {
        format!("{key}_{value}")
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{self, CompileOptions, Source};
    use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
    use crate::rules::{KeyFormat, OnLimit, OnStoreError, RuleSet};
    use crate::telemetry::metric::Metrics;
    use crate::time::Span;

    const POLICIES: &str = "
domain: d
metadata: {tollgate: {defaults: {on_store_error: deny}}}
descriptors:
  - {key: local, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {on_store_error: local}}}
  - {key: error, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {on_store_error: error}}}
  - {key: silent, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: above, descriptors: [{key: below, rate_limit: {unit: day, requests_per_unit: 1}}]}
";
    const NO_POLICIES: &str = "
domain: e
descriptors:
  - {key: allow, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {on_store_error: allow}}}
  - {key: silent, rate_limit: {unit: day, requests_per_unit: 1}}
";

    const BEYOND_THE_LIMIT: &str = "
domain: d
metadata: {tollgate: {defaults: {on_limit: queue, max_wait: 5ms, request_headers: {X-Slow: 'Yes', x-by: d}, response_body: later}}}
descriptors:
  - {key: bucket, rate_limit: &one {unit: day, requests_per_unit: 1}, metadata: {tollgate: {algorithm: leaky_bucket}}}
  - {key: longer, rate_limit: *one, metadata: {tollgate: {algorithm: token_bucket, max_wait: 1s}}}
  - {key: hard, rate_limit: *one, metadata: {tollgate: {algorithm: token_bucket, on_limit: reject, response_body: \"no\\nnever\"}}}
  - {key: window, rate_limit: *one}
  - {key: cheap, rate_limit: *one, metadata: {tollgate: {on_limit: degrade}}}
  - {key: cheaper, rate_limit: *one, metadata: {tollgate: {on_limit: degrade, request_headers: {}}}}
";

    #[test]
    fn what_happens_beyond_a_limit_is_the_rules_own_then_its_domains_as_far_as_it_fits() {
        let rules = loaded(&[("d.yaml", BEYOND_THE_LIMIT)]);
        let told = |key: &str| {
            let rules = rules.rules();
            let rule = rules
                .iter()
                .find(|rule| *rule.path == *format!("d.{key}"))
                .expect("it is there");
            (
                rule.on_limit.clone(),
                rule.limit().expect("it has one").max_wait(),
            )
        };
        let reject = |body: &str| OnLimit::Reject {
            body: Some(body.into()),
        };
        let degrade = |headers: &[(&str, &str)]| OnLimit::Degrade {
            request_headers: headers
                .iter()
                .map(|&(name, value)| (name.into(), value.into()))
                .collect(),
        };
        assert_eq!(told("bucket"), (OnLimit::Queue, Span::from_micros(5_000)));
        assert_eq!(told("longer"), (OnLimit::Queue, Span::from_secs(1)));
        assert_eq!(told("hard"), (reject("no\nnever"), Span::ZERO));
        assert_eq!(told("window"), (reject("later"), Span::ZERO));
        assert_eq!(
            told("cheap"),
            (degrade(&[("x-slow", "Yes"), ("x-by", "d")]), Span::ZERO)
        );
        assert_eq!(told("cheaper"), (degrade(&[]), Span::ZERO));
    }

    #[test]
    fn the_policy_is_the_rules_own_then_its_domains_and_else_none() {
        let rules = loaded(&[("d.yaml", POLICIES), ("e.yaml", NO_POLICIES)]);
        let policies: Vec<_> = rules
            .rules()
            .into_iter()
            .map(|rule| (&*rule.path, rule.on_store_error))
            .collect();
        let expected = [
            ("d.above.below", Some(OnStoreError::Deny)),
            ("d.error", Some(OnStoreError::Error)),
            ("d.local", Some(OnStoreError::Local)),
            ("d.silent", Some(OnStoreError::Deny)),
            ("e.allow", Some(OnStoreError::Allow)),
            ("e.silent", None),
        ];
        assert_eq!(policies, expected);
    }

    fn loaded(files: &[(&str, &str)]) -> RuleSet {
        let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
        let options = CompileOptions {
            key_format: KeyFormat::Safe,
            ..CompileOptions::new(stats)
        };
        let source = |&(name, text): &(&str, &str)| Source {
            name: name.into(),
            path: name.into(),
            text: text.into(),
        };
        let loaded = config::load(&files.iter().map(source).collect::<Vec<_>>(), &options)
            .expect("these rules are right");
        assert_eq!(loaded.warnings, []);
        loaded.rules
    }
}
