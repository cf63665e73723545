//! Brings rules: loads them once at the start, and again whenever they change. What is broken never takes the place of what serves.

use std::path::Path;
use std::sync::Arc;

use crate::config::{self, Options, Source};
use crate::rule_source::files::{Directory, Signature};
use crate::rule_source::overlay::OverlayFile;
use crate::rules::LiveRules;
use crate::shutdown::Lifecycle;
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::watch::FileFacts;

pub mod files;
pub mod overlay;
pub mod settings;
pub mod watch;

/// Loads rules from a directory into [`LiveRules`].
#[derive(Debug)]
pub struct RuleSource {
    directory: Directory,
    overlay: Option<OverlayFile>,
    options: Options,
    health: HealthPolicy,
    live: Arc<LiveRules>,
    lifecycle: Lifecycle,
    metrics: SourceMetrics,
    last: Option<Vec<Source>>,
}

/// When rules allow to serve.
#[derive(Debug, Clone, Copy)]
pub struct HealthPolicy {
    /// FORCE_START_WITHOUT_INITIAL_CONFIG
    pub without_rules: bool,
    /// HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
    pub needs_a_domain: bool,
}

#[derive(Debug)]
struct SourceMetrics {
    load_success: Counter,
    load_error: Counter,
    rules: Gauge,
    domains: Gauge,
    refused: Gauge,
}

impl RuleSource {
    /// A source that has not loaded anything yet.
    pub fn new(
        directory: Directory,
        overlay: Option<OverlayFile>,
        options: Options,
        health: HealthPolicy,
        live: Arc<LiveRules>,
        lifecycle: Lifecycle,
        metrics: &Metrics,
    ) -> Self {
        let metrics = SourceMetrics {
            load_success: metrics.reference_counter(
                "ratelimit.service.config_load_success",
                "ratelimit_service_config_load_success",
                "Loads of rules that took effect.",
                &[],
            ),
            load_error: metrics.reference_counter(
                "ratelimit.service.config_load_error",
                "ratelimit_service_config_load_error",
                "Loads of rules that were refused; those before them went on serving.",
                &[],
            ),
            rules: metrics.gauge("tollgate_rules", "Limits in force."),
            domains: metrics.gauge("tollgate_rule_domains", "Domains in force."),
            refused: metrics.gauge("tollgate_rules_refused", "1 while the newest rules are refused and older ones, or none, serve."),
        };
        let source = Self { directory, overlay, options, health, live, lifecycle, metrics, last: None };
        source.tell();
        source
    }

    /// Where the rules come from.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// What the rules look like from outside: see [`Directory::signature`].
    pub fn signature(&self) -> (Signature, Option<FileFacts>) {
        (self.directory.signature(), self.overlay.as_ref().and_then(OverlayFile::facts))
    }

    /// Directories in which something happens when rules change, of which the first is to be watched with all below.
    pub fn watched(&self) -> Vec<&Path> {
        let mut watched = self.directory.watched();
        watched.extend(self.overlay.as_ref().map(OverlayFile::watched));
        watched
    }

    /// Loads the rules if they are not those that were loaded, or refused, last. Says whether it did.
    pub fn load(&mut self) -> bool {
        let overlay = self.overlay.as_ref().map(OverlayFile::read).transpose();
        let (sources, overlay) = match self.directory.read().and_then(|sources| Ok((sources, overlay?))) {
            Ok(read) => read,
            Err(error) => {
                let error = format!("{error:#}");
                // Told once, not at every look.
                if self.live.last_error().as_ref() != Some(&error) {
                    self.last = None;
                    self.refuse(&[error]);
                }
                return false;
            }
        };
        if self.last.as_ref() == Some(&sources) && self.options.overlay == overlay {
            return false;
        }
        self.options.overlay = overlay;
        if sources.is_empty() {
            tracing::warn!(directory = %self.directory.path().display(), "no rules files: nothing is limited");
        }
        match config::load(&sources, &self.options) {
            Ok(loaded) => {
                for warning in &loaded.warnings {
                    tracing::warn!("{warning}");
                }
                let (rules, domains) = (loaded.rules.rule_count(), loaded.rules.domain_count());
                self.live.replace(loaded.rules);
                self.options.stats.forget_retired();
                tracing::info!(rules, domains, files = sources.len(), "rules loaded");
                self.tell();
                // Last, so that whoever sees it here finds it so everywhere.
                self.metrics.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
                self.metrics.domains.set(i64::try_from(domains).unwrap_or(i64::MAX));
                self.metrics.load_success.inc();
                self.metrics.refused.set(0);
            }
            Err(problems) => self.refuse(&problems.iter().map(ToString::to_string).collect::<Vec<_>>()),
        }
        self.last = Some(sources);
        true
    }

    /// Whether the last try could not read the files. It may not be their fault, so nothing need change for the next try to do better.
    pub fn is_unread(&self) -> bool {
        self.last.is_none()
    }

    fn refuse(&self, problems: &[String]) {
        for problem in problems {
            tracing::error!("Error loading new configuration: {problem}");
        }
        self.live.refuse(problems.join("\n"));
        self.tell();
        self.metrics.load_error.inc();
        self.metrics.refused.set(1);
    }

    /// Tells whether the rules allow to serve.
    fn tell(&self) {
        let current = self.live.load();
        let domains = current.as_ref().map(|rules| rules.domain_count());
        let ready = match domains {
            None | Some(0) if self.health.needs_a_domain => false,
            None => self.health.without_rules,
            Some(_) => true,
        };
        let note = match (domains, self.live.last_error()) {
            (None, None) => "waiting for the first rules".to_owned(),
            (None, Some(error)) => format!("none: the first rules were refused\n{error}"),
            (Some(0), None) if self.health.needs_a_domain => "no domain".to_owned(),
            (Some(_), None) => "ok".to_owned(),
            (Some(_), Some(error)) => format!("the newest were refused, older ones serve\n{error}"),
        };
        self.lifecycle.set_rules(ready, note);
    }
}
