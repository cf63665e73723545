//! Compiles files to a rule set: domains, and what applies to a whole domain. `descriptor.rs`
//! compiles what is in them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::limits::{Algorithm, Consistency, Terms, Unit};
use crate::rules::config::context::Context;
use crate::rules::config::descriptor;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::overlay::Overlay;
use crate::rules::config::source::{CompileOptions, Source};
use crate::rules::config::spec::RulesFile;
use crate::rules::config::tollgate::Block;
use crate::rules::config::yaml::{Diagnostic, Located, Location, shortened};
use crate::rules::key::KeyHead;
use crate::rules::tree::{Domain, Level, RuleSet};

/// Compiles files one after the other into one rule set.
#[derive(Debug)]
pub(crate) struct Compiler<'o> {
    options: &'o CompileOptions,
    overlay: &'o Overlay,
    /// DEFAULT_ALGORITHM and DEFAULT_CONSISTENCY as blocks.
    settings: [(Block, Arc<str>); 2],
    domains: HashMap<String, Building>,
}

/// A domain so far; more files may follow.
#[derive(Debug)]
struct Building {
    domain: Domain,
    labels: HashSet<String>,
    block_from: Option<Arc<str>>,
    /// The value in its own files.
    all_or_nothing: Option<bool>,
}

impl<'o> Compiler<'o> {
    pub(crate) fn new(options: &'o CompileOptions, overlay: &'o Overlay) -> Self {
        let nowhere = Location::default();
        let default_algorithm = options.default_algorithm;
        let algorithm = Block {
            algorithm: default_algorithm.map(|value| Located::new(value, nowhere)),
            ..Block::default()
        };
        let is_leased = options.default_consistency == Consistency::Leased;
        let consistency = Block {
            consistency: is_leased.then(|| Located::new(Consistency::Leased, nowhere)),
            ..Block::default()
        };
        Self {
            options,
            overlay,
            settings: [
                (algorithm, "DEFAULT_ALGORITHM".into()),
                (consistency, "DEFAULT_CONSISTENCY".into()),
            ],
            domains: HashMap::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        source: &Source,
        file: RulesFile<'_>,
        findings: &mut SourceFindings<'_>,
    ) {
        let Located { value: name, location } = file.domain;
        if name.is_empty() {
            let problem = Diagnostic::new(location, "config file cannot have empty domain");
            findings.problem(problem.hint("write `domain: NAME` at the top: the domain that Envoy's filter is configured with"));
            return;
        }
        let building = match self.domains.entry(name.clone()) {
            Entry::Occupied(entry) if !self.options.merge_domains => {
                let text = format!("duplicate domain '{}' in config file", entry.key());
                let hint = "set MERGE_DOMAIN_CONFIG=true to read a domain from several files";
                findings.reject(location, text, hint);
                return;
            }
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Building::new(&name, self.options)),
        };
        let descriptors = file.descriptors.as_deref();
        let labels =
            descriptors.into_iter().flat_map(|descriptors| descriptor::labels(descriptors, source));
        let overlay = self.overlay.of_domain(&name, labels);
        let block = file.block.as_ref();
        let own = block.and_then(|block| block.all_or_nothing);
        building.all_or_nothing = building.all_or_nothing.or(own);
        building.domain.all_or_nothing =
            building.all_or_nothing.or(overlay.all_or_nothing()).unwrap_or(false);
        if let Some(block) = block
            && let Some(other) = building.block_from.replace(source.path.clone())
        {
            let text = format!("the domain '{name}' has a tollgate block already, in {other}");
            let hint = "keep one of them: it is for the whole domain";
            findings.at("metadata.tollgate").reject(block.location, text, hint);
        }
        let context = Context {
            path: &name,
            metric_path: &name,
            defaults: block.and_then(|block| block.defaults.as_ref()),
            overlay: &overlay,
            settings: &self.settings,
            by_value: false,
            source,
            options: self.options,
            above: None,
        };
        if let Some(descriptors) = descriptors {
            let place = format!("domain {} > ", shortened(&name));
            context.add_level(
                &mut building.domain.root,
                &mut building.labels,
                descriptors,
                &mut findings.at(place),
            );
        }
    }

    pub(crate) fn finish(self) -> RuleSet {
        RuleSet::new(self.domains.into_values().map(|building| building.domain))
    }
}

impl Building {
    fn new(name: &str, options: &CompileOptions) -> Self {
        Self {
            domain: Domain {
                name: name.into(),
                key_head: KeyHead::new(options.key_format, &options.key_prefix, name),
                all_or_nothing: false,
                metric_dots: options.metric_dots,
                override_terms: Terms {
                    windows: options.windows,
                    ..Terms::new(
                        0,
                        Unit::Second,
                        options.default_algorithm.unwrap_or(Algorithm::FixedWindow),
                    )
                },
                root: Level::default(),
            },
            labels: HashSet::new(),
            block_from: None,
            all_or_nothing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::base::time::Span;
    use crate::rules::config::{self, CompileOptions, Source};
    use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
    use crate::rules::{KeyFormat, OnLimit, OnStoreError, RuleSet};
    use crate::telemetry::metric::Metrics;

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
        let on_limit_of = |key: &str| {
            let rules = rules.rules();
            let rule =
                rules.iter().find(|rule| *rule.path == *format!("d.{key}")).expect("it is there");
            (rule.on_limit.clone(), rule.limit().expect("it has one").max_wait)
        };
        let reject = |body: &str| OnLimit::Reject { body: Some(body.into()) };
        let degrade = |headers: &[(&str, &str)]| OnLimit::Degrade {
            request_headers: headers
                .iter()
                .map(|&(name, value)| (name.into(), value.into()))
                .collect(),
        };
        assert_eq!(on_limit_of("bucket"), (OnLimit::Queue, Span::from_micros(5_000)));
        assert_eq!(on_limit_of("longer"), (OnLimit::Queue, Span::from_secs(1)));
        assert_eq!(on_limit_of("hard"), (reject("no\nnever"), Span::ZERO));
        assert_eq!(on_limit_of("window"), (reject("later"), Span::ZERO));
        assert_eq!(
            on_limit_of("cheap"),
            (degrade(&[("x-slow", "Yes"), ("x-by", "d")]), Span::ZERO)
        );
        assert_eq!(on_limit_of("cheaper"), (degrade(&[]), Span::ZERO));
    }

    #[test]
    fn the_policy_is_the_rules_own_then_its_domains_and_else_none() {
        let rules = loaded(&[("d.yaml", POLICIES), ("e.yaml", NO_POLICIES)]);
        let policies: Vec<_> =
            rules.rules().into_iter().map(|rule| (&*rule.path, rule.on_store_error)).collect();
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

    #[test]
    fn a_hundred_thousand_rules_load() {
        let rules: Vec<_> = (0..100_000)
            .map(|number| {
                format!("- {{\"key\": \"k\", \"value\": \"v{number}\", \"rate_limit\": {{\"unit\": \"hour\", \"requests_per_unit\": 5}}}}\n")
            })
            .collect();
        let text = format!("domain: d\ndescriptors:\n{}", rules.concat());
        assert!(text.len() > 8 << 20);
        assert_eq!(loaded(&[("d.yaml", &text)]).rule_count(), 100_000);
    }

    fn loaded(files: &[(&str, &str)]) -> RuleSet {
        let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
        let options = CompileOptions { key_format: KeyFormat::Safe, ..CompileOptions::new(stats) };
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
