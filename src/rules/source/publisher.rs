//! Compiles rules and publishes or rejects them; reports the result to health, log and metrics.

use std::path::Path;
use std::sync::Arc;

use ring::digest::{Context, SHA256};

use crate::base::shutdown::Lifecycle;
use crate::limits::{Consistency, Windows};
use crate::report;
use crate::rules::LiveRules;
use crate::rules::config::error::{Finding, reported};
use crate::rules::config::{self, CompileOptions, Input, Source};
use crate::rules::source::files::read_overlay;
use crate::rules::source::findings::LastFindings;
use crate::rules::source::settings::Settings;
use crate::telemetry::metric::{Counter, Gauge, Metrics, gauged};

/// Publishes rules to [`LiveRules`].
#[derive(Debug)]
pub(crate) struct RulePublisher {
    options: CompileOptions,
    /// Which rules make the process healthy, and the path of the overlay.
    settings: Settings,
    live: Arc<LiveRules>,
    findings: LastFindings,
    lifecycle: Lifecycle,
    rules: Gauge,
    rejected: Gauge,
    load_success: Counter,
    load_error: Counter,
    domains: Gauge,
    hash: Gauge,
}

/// The beginning of errors in the log, as in envoyproxy/ratelimit.
const ERROR: &str = "Error loading new configuration";

impl RulePublisher {
    /// Registers the metrics.
    pub(crate) fn new(
        options: CompileOptions,
        settings: Settings,
        live: Arc<LiveRules>,
        lifecycle: Lifecycle,
        metrics: &Metrics,
    ) -> Self {
        let publisher = Self {
            options,
            settings,
            live,
            findings: LastFindings::default(),
            lifecycle,
            rules: metrics.gauge("tollgate_rules", "Limits in the rules in force."),
            rejected: metrics.gauge(
                "tollgate_rules_rejected",
                "1 while the newest rules are invalid and the last good configuration, if any, serves.",
            ),
            load_success: metrics.reference_counter(
                "ratelimit.service.config_load_success",
                "ratelimit_service_config_load_success",
                "Loads of rules that took effect.",
                &[],
            ),
            load_error: metrics.reference_counter(
                "ratelimit.service.config_load_error",
                "ratelimit_service_config_load_error",
                "Loads of rules that were rejected.",
                &[],
            ),
            domains: metrics.gauge("tollgate_rule_domains", "Domains in the rules in force."),
            hash: metrics.gauge(
                "tollgate_rules_hash",
                "A hash of the rules in force; 0 before the first.",
            ),
        };
        publisher.update_health();
        publisher
    }

    /// Findings about the newest rules.
    pub(crate) fn findings(&self) -> &LastFindings {
        &self.findings
    }

    /// TOLLGATE_OVERLAY
    pub(crate) fn overlay(&self) -> Option<&Path> {
        self.settings.reading.tollgate_overlay.as_deref()
    }

    /// Reads the overlay, if there is one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read_overlay(&self) -> anyhow::Result<Option<Source>> {
        self.overlay().map(read_overlay).transpose()
    }

    /// Compiles rules with an overlay and publishes them. `texts` are the rules for the hash.
    ///
    /// # Errors
    /// All errors, which are logged. The last good configuration stays.
    pub(crate) fn publish(
        &self,
        inputs: &[impl Input],
        texts: Vec<(&str, &[u8])>,
        overlay: Option<Source>,
    ) -> Result<(), Vec<String>> {
        let hash = self.hash(texts, overlay.as_ref());
        let options = CompileOptions { overlay, ..self.options.clone() };
        let loaded = config::load_inputs(inputs, &options)
            .map_err(|findings| self.reject_findings(findings))?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        self.findings.set(Vec::new(), reported(loaded.warnings));
        let (rules, domains) = (loaded.rules.rule_count(), loaded.rules.domain_count());
        let event = match (&*self.live.load(), self.live.last_error()) {
            (None, _) => "loaded",
            (Some(_), None) => "reloaded",
            (Some(_), Some(_)) => "valid again",
        };
        self.live.replace(loaded.rules);
        self.options.stats.forget_retired();
        // At the level of envoyproxy/ratelimit's "Successfully loaded new configuration".
        tracing::info!(rules, domains, sources = inputs.len(), hash, "rules {event}");
        self.update_health();
        // Last: a reader that sees these finds the rules in force.
        self.rules.set(gauged(rules));
        self.domains.set(gauged(domains));
        self.hash.set(gauged(hash));
        self.rejected.set(0);
        self.load_success.inc();
        Ok(())
    }

    /// The hash of the rules and of the settings for them, equal in every process that has these.
    fn hash(&self, texts: Vec<(&str, &[u8])>, overlay: Option<&Source>) -> u64 {
        let overlay = overlay.map(|source| ("TOLLGATE_OVERLAY", source.text.as_bytes()));
        let algorithm = self.options.default_algorithm;
        let algorithm = algorithm.map(|one| ("DEFAULT_ALGORITHM", one.name().as_bytes()));
        let consistency = (self.options.default_consistency == Consistency::Leased)
            .then_some(("DEFAULT_CONSISTENCY", "leased".as_bytes()));
        let months = (self.options.windows != Windows::Aligned)
            .then_some(("USE_CALENDAR_MONTH_RATE_LIMIT", "true".as_bytes()));
        hash_of(texts.into_iter().chain(overlay).chain(algorithm).chain(consistency).chain(months))
    }

    /// Rejects rules for what the compiler found, which it logs and returns.
    fn reject_findings(&self, findings: Vec<Finding>) -> Vec<String> {
        let in_force = self.left_in_force();
        for finding in &findings {
            let headline = finding.headline();
            let at = finding.source_location();
            let hint = finding.hint.as_deref();
            tracing::error!(at, hint, in_force, "{ERROR}: {headline}");
        }
        let problems = findings.iter().map(ToString::to_string).collect();
        self.findings.set(reported(findings), Vec::new());
        self.record_rejection(problems)
    }

    /// Rejects rules that cannot be compiled, and logs the problems, which it returns.
    pub(crate) fn reject(&self, problems: Vec<String>) -> Vec<String> {
        let in_force = self.left_in_force();
        for problem in &problems {
            tracing::error!(in_force, "{ERROR}: {problem}");
        }
        let errors = problems.iter().map(report::Finding::unread);
        self.findings.set(errors.collect(), Vec::new());
        self.record_rejection(problems)
    }

    fn record_rejection(&self, problems: Vec<String>) -> Vec<String> {
        self.live.reject(problems.join("\n"));
        self.update_health();
        self.rejected.set(1);
        self.load_error.inc();
        problems
    }

    /// The configuration that stays in force after a rejection, for the log.
    fn left_in_force(&self) -> &'static str {
        if self.live.load().is_some() { "last good configuration" } else { "none" }
    }

    /// The errors of the newest rules; `None` if they are in force.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.live.last_error()
    }

    /// Reports to health whether the rules are good enough to serve.
    fn update_health(&self) {
        let current = self.live.load();
        let domains = current.as_ref().map(|rules| rules.domain_count());
        let needs_a_domain = self.settings.healthy_with_at_least_one_config_loaded;
        let ready = match domains {
            None | Some(0) if needs_a_domain => false,
            None => self.settings.force_start_without_initial_config,
            Some(_) => true,
        };
        let note = match (domains, self.live.last_error()) {
            (None, None) => "waiting for the first rules".to_owned(),
            (None, Some(error)) => format!("none: the first rules are invalid\n{error}"),
            (Some(0), None) if needs_a_domain => "no domain".to_owned(),
            (Some(_), None) => "ok".to_owned(),
            (Some(_), Some(error)) => {
                format!("the newest are invalid, the last good configuration serves\n{error}")
            }
        };
        self.lifecycle.set_rules(ready, note);
    }
}

/// A hash of texts with their names, in any order, below 2^53.
pub(crate) fn hash_of<'t>(texts: impl IntoIterator<Item = (&'t str, &'t [u8])>) -> u64 {
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_unstable();
    let mut hasher = Context::new(&SHA256);
    for part in texts.into_iter().flat_map(|(name, text)| [name.as_bytes(), text]) {
        // With lengths, different lists of texts are never the same bytes.
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    // As many bits as a double holds exactly, which is what Prometheus stores.
    let hash = hasher.finish();
    u64::from_be_bytes(*hash.as_ref().first_chunk().expect("it has 32 bytes")) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_names_and_texts_and_not_on_their_order() {
        let of = |texts: &[(&str, &str)]| {
            hash_of(texts.iter().map(|(name, text)| (*name, text.as_bytes())))
        };
        let a = ("a", "text");
        let b = ("b", "more");
        let hash = of(&[a, b]);
        assert_eq!(hash, of(&[b, a]));
        assert!(hash > 0 && hash < 1 << 53);
        for other in [&[a][..], &[a, ("b", "else")], &[a, ("c", "more")], &[("at", "ext"), b], &[]]
        {
            assert_ne!(hash, of(other), "{other:?}");
        }
    }
}
