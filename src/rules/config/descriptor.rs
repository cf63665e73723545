//! Compiles the descriptors of a file to nodes and rules.
//!
//! Inside one descriptor the checks have the order and the messages of envoyproxy/ratelimit.

use std::collections::HashSet;

use crate::limits::{Algorithm, Terms, Unit, WarnAt};
use crate::rules::config::allowance::{allowance, warn_about_limit};
use crate::rules::config::chain;
use crate::rules::config::context::{Above, Context};
use crate::rules::config::error::{Findings, SourceFindings};
use crate::rules::config::source::Source;
use crate::rules::config::spec::{DescriptorSpec, Level, RateLimitSpec};
use crate::rules::config::tollgate::{Layer, Layers, ResolvedOptions, Sourced};
use crate::rules::config::yaml::Diagnostic;
use crate::rules::key::KeyTail;
use crate::rules::tree::{self, Node};
use crate::rules::{EnforcedShare, Naming, Origin, Provenance, Rule, metric_name};

/// How often a path is in memory: in the rule, in its counters and in their table.
const PATH_COPIES: usize = 3;

impl Context<'_> {
    pub(crate) fn add_level(
        self,
        level: &mut tree::Level,
        labels: &mut HashSet<String>,
        specs: &dyn Level,
        findings: &mut SourceFindings<'_>,
    ) {
        for index in 0..specs.len() {
            if findings.is_full() {
                return;
            }
            let findings = &mut findings.at(format_args!("descriptors[{index}]"));
            // What is invalid about it was reported before.
            let Some(spec) = specs.read(index, &mut Findings::default().of(self.source)) else {
                continue;
            };
            if spec.key.value.is_empty() {
                let problem = Diagnostic::new(spec.key.location, "descriptor has empty key");
                findings.problem(
                    problem.hint("write `key: NAME`, the key of an entry that Envoy sends"),
                );
                continue;
            }
            let label = label(&spec.key.value, &spec.value);
            let path_bytes = PATH_COPIES * (self.path.len() + label.len() + 1);
            if !findings.fits(path_bytes, spec.key.location) {
                return;
            }
            let path = format!("{}.{label}", self.path);
            let metric_part = self.options.metric_dots.part(&label);
            let metric_path = format!("{}.{metric_part}", self.metric_path);
            if !labels.insert(label.clone()) {
                let text = format!("duplicate descriptor composite key '{path}'");
                let hint = "keep one of them; key and value are joined with an underscore before they are compared";
                findings.reject(spec.key.location, text, hint);
                continue;
            }
            let context = Context {
                path: &path,
                metric_path: &metric_path,
                by_value: self.by_value || spec.value_to_metric,
                ..self
            };
            level.insert(context.node(label.into(), spec, findings));
        }
    }

    fn node(
        self,
        label: Box<str>,
        spec: DescriptorSpec<'_>,
        findings: &mut SourceFindings<'_>,
    ) -> Node {
        let mut rule = self.rule(&spec, findings).map(Box::new);
        if spec.share_threshold.value && !label.contains('*') {
            let text = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but found key '{label}'"
            );
            let hint = "remove it, or write a value with a *";
            findings.reject(spec.share_threshold.location, text, hint);
        }
        let above = Above::new(self.above, rule.as_deref());
        let below = spec.descriptors.map(|descriptors| {
            let mut level = tree::Level::default();
            let labels = &mut HashSet::new();
            let findings = &mut findings.at(".");
            let context = Context { above: Some(&above), ..self };
            context.add_level(&mut level, labels, &*descriptors, findings);
            Box::new(level)
        });
        let is_chained = below.as_deref().is_some_and(reaches_up);
        if let Some(rule) = rule.as_deref_mut()
            && (is_chained || rule.is_chained())
        {
            let reaches = is_chained || rule.parents;
            chain::join(rule, self.above, reaches, self.options.one_slot);
        }
        Node {
            key: spec.key.value.into(),
            value: spec.value.into(),
            label,
            share_threshold: spec.share_threshold.value,
            value_to_metric: spec.value_to_metric,
            rule,
            below,
        }
    }

    fn rule(self, spec: &DescriptorSpec, findings: &mut SourceFindings<'_>) -> Option<Rule> {
        let Some(rate_limit) = &spec.rate_limit else {
            report_orphans(spec, findings);
            return None;
        };
        let mut resolved = ResolvedOptions::new(self.layers(spec));
        let mut terms = self.terms(rate_limit, &resolved);
        let found = &mut findings.at(".rate_limit");
        let calendars = self.options.calendars_max;
        let allowance = allowance(spec, &mut resolved, &mut terms, calendars, found);
        check_replaces(rate_limit, found);
        let allowance = allowance?;
        let limit = allowance.limit();
        warn_about_limit(spec, limit, &resolved, found);
        let metric_name = metric_name::sanitized(self.metric_path.to_owned());
        let stats = self.options.stats.of_rule(&metric_name);
        let found = &mut findings.at(".metadata.tollgate");
        let (limits, parents) = self.chain(spec, &mut resolved, limit, &stats, found);
        let options = resolved.effective();
        let metadata = spec.metadata.clone().filter(|metadata| !metadata.is_empty());
        let replaces = rate_limit.replaces.iter().map(|name| name.value.as_str().into());
        let lease = limit.filter(|limit| resolved.takes_ahead(limit));
        let lease = lease.map(|_| stats.lease(resolved.hit_lease().map(Sourced::value)));
        let enforced_share = resolved.enforce_percent.map(Sourced::value);
        let rule = Rule {
            path: self.path.into(),
            name: rate_limit.name.as_str().into(),
            replaces: replaces.collect(),
            shadow_mode: spec.shadow_mode,
            enforced_share: enforced_share.unwrap_or(EnforcedShare::ALL),
            quota_mode: spec.quota_mode,
            metadata,
            naming: match (spec.detailed_metric, self.by_value) {
                (true, _) => Naming::Detailed,
                (false, true) => Naming::ByValue,
                (false, false) => Naming::Fixed,
            },
            stats,
            lease,
            key_tail: limit.map_or_else(KeyTail::none, |limit| {
                KeyTail::new(self.options.key_format, limit, resolved.unit_multiplier())
            }),
            on_limit: resolved.on_limit(),
            on_store_error: resolved.on_store_error.map(Sourced::value),
            override_terms: terms.filter(|_| !options.is_empty()).map(Box::new),
            options,
            origin: Origin {
                file: self.source.path.clone(),
                line: spec.location.line,
                column: spec.location.column,
            },
            allowance,
            limits,
            parents,
            over_limit_hits: resolved.own_over_limit_hits(),
            warn_at: resolved.warn_at.map_or(WarnAt::NEVER, Sourced::value),
            tagged_entries: 0,
        };
        self.warn_about_overlaps(&rule, spec.location, &mut findings.at(".metadata.tollgate"));
        Some(rule)
    }

    /// `None` without a valid unit.
    fn terms(self, rate_limit: &RateLimitSpec, options: &ResolvedOptions<'_>) -> Option<Terms> {
        let unit = rate_limit.unit.value.to_ascii_lowercase();
        let unit: Unit = unit.parse().ok()?;
        let rate = Terms::new(rate_limit.requests_per_unit.into(), unit, Algorithm::FixedWindow);
        Some(options.terms(Terms { windows: self.options.windows, ..rate }))
    }

    /// The blocks that apply to a rule, highest precedence first.
    fn layers<'l>(&'l self, spec: &'l DescriptorSpec) -> Layers<'l> {
        let file = &self.source.path;
        let own = spec.block.as_ref();
        let mut layers = Layers::new();
        layers.extend(own.map(Layer::of(Provenance::Rule, file)));
        layers.extend(self.defaults.map(Layer::of(Provenance::Defaults, file)));
        self.overlay.add_layers(self.path, &mut layers);
        for (block, name) in self.settings {
            layers.push(Layer::of(Provenance::Setting, name)(block));
        }
        layers
    }
}

/// Whether the limits above a level apply to a rule in it, too.
fn reaches_up(level: &tree::Level) -> bool {
    level.nodes().iter().any(|node| {
        let reaches = node.rule.as_deref().is_some_and(|rule| rule.parents);
        reaches || node.below.as_deref().is_some_and(reaches_up)
    })
}

fn check_replaces(spec: &RateLimitSpec, findings: &mut SourceFindings<'_>) {
    for name in &spec.replaces {
        let text = if name.value.is_empty() {
            "should not have an empty replaces entry"
        } else if name.value == spec.name {
            "replaces should not contain name of same descriptor"
        } else {
            continue;
        };
        findings.reject(name.location, text, "name a rule that this one replaces");
    }
}

/// Reports what has no effect without a rate_limit: a warning for keys that envoyproxy/ratelimit
/// ignores too, a problem for a `tollgate` block.
fn report_orphans(spec: &DescriptorSpec, findings: &mut SourceFindings<'_>) {
    let flags = [
        ("shadow_mode", spec.shadow_mode),
        ("quota_mode", spec.quota_mode),
        ("detailed_metric", spec.detailed_metric),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, set)| *set) {
        let text = format!("`{flag}` has no effect without rate_limit beside it");
        findings.warning(Diagnostic::new(spec.location, text));
    }
    if let Some(block) = &spec.block {
        let text = "metadata.tollgate without rate_limit beside it";
        findings.reject(block.location, text, "move it to the descriptor that has the rate_limit");
    }
}

/// The labels of a level.
pub(crate) fn labels(specs: &dyn Level, source: &Source) -> impl Iterator<Item = String> {
    (0..specs.len()).filter_map(move |index| {
        let spec = specs.read(index, &mut Findings::default().of(source))?;
        Some(label(&spec.key.value, &spec.value))
    })
}

/// `key`, or `key_value`: how envoyproxy/ratelimit names a descriptor.
fn label(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}
