//! Takes rules that came, or refuses them, and tells everybody: who serves, health, the log, the
//! metrics.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::config::{self, CompileOptions, Input, Source};
use crate::limit::Months;
use crate::rule_source::overlay::OverlayFile;
use crate::rules::LiveRules;
use crate::shutdown::Lifecycle;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// The only way of rules into [`LiveRules`].
#[derive(Debug)]
pub struct RulePublisher {
    options: CompileOptions,
    overlay: Option<OverlayFile>,
    health: HealthPolicy,
    live: Arc<LiveRules>,
    lifecycle: Lifecycle,
    metrics: PublisherMetrics,
}

/// When rules allow to serve.
#[derive(Debug, Clone, Copy)]
pub struct HealthPolicy {
    /// FORCE_START_WITHOUT_INITIAL_CONFIG
    pub without_rules: bool,
    /// HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
    pub needs_a_domain: bool,
}

/// A number below 2^53 that is the same wherever the same rules serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RulesHash(u64);

#[derive(Debug)]
struct PublisherMetrics {
    load_success: Counter,
    load_error: Counter,
    rules: Gauge,
    domains: Gauge,
    refused: Gauge,
    hash: Gauge,
}

impl RulePublisher {
    /// Nothing came yet.
    pub fn new(
        options: CompileOptions,
        overlay: Option<OverlayFile>,
        health: HealthPolicy,
        live: Arc<LiveRules>,
        lifecycle: Lifecycle,
        metrics: &Metrics,
    ) -> Self {
        let metrics = PublisherMetrics {
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
            refused: metrics.gauge(
                "tollgate_rules_rejected",
                "1 while the newest rules are refused and older ones, or none, serve.",
            ),
            hash: metrics.gauge(
                "tollgate_rules_hash",
                "A number made from the texts of the rules in force; 0 until the first ones came.",
            ),
        };
        let publisher = Self {
            options,
            overlay,
            health,
            live,
            lifecycle,
            metrics,
        };
        publisher.update_health();
        publisher
    }

    /// The file of blocks for all rules, if there is to be one.
    pub fn overlay(&self) -> Option<&OverlayFile> {
        self.overlay.as_ref()
    }

    /// What that file says now.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_overlay(&self) -> anyhow::Result<Option<Source>> {
        self.overlay.as_ref().map(OverlayFile::read).transpose()
    }

    /// Puts rules in force, with an overlay if there is to be one, if all of it is good.
    ///
    /// # Errors
    /// They were refused, with each problem told.
    pub(crate) fn publish(
        &self,
        inputs: &[impl Input],
        overlay: Option<Source>,
        hash: RulesHash,
    ) -> Result<(), Vec<String>> {
        let hash = hash.and(
            overlay
                .iter()
                .map(|source| ("TOLLGATE_OVERLAY", source.text.as_bytes())),
        );
        let hash = hash.and(
            self.options
                .default_algorithm
                .iter()
                .map(|algorithm| ("DEFAULT_ALGORITHM", algorithm.name().as_bytes())),
        );
        let months = (self.options.months == Months::Calendar)
            .then_some(("USE_CALENDAR_MONTH_RATE_LIMIT", "true".as_bytes()));
        let hash = hash.and(months);
        let loaded = match config::load_inputs(
            inputs,
            &CompileOptions {
                overlay,
                ..self.options.clone()
            },
        ) {
            Ok(loaded) => loaded,
            Err(findings) => {
                let in_force = self.in_force();
                for finding in &findings {
                    let (headline, at, hint) = (
                        finding.headline(),
                        finding.source_location(),
                        finding.hint.as_deref(),
                    );
                    tracing::error!(
                        at,
                        hint,
                        in_force,
                        "Error loading new configuration: {headline}"
                    );
                }
                return Err(
                    self.record_rejection(findings.iter().map(ToString::to_string).collect())
                );
            }
        };
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let (rules, domains) = (loaded.rules.rule_count(), loaded.rules.domain_count());
        let event = match (&*self.live.load(), self.live.last_error()) {
            (None, _) => "rules loaded",
            (Some(_), None) => "rules reloaded",
            (Some(_), Some(_)) => "rules valid again",
        };
        self.live.replace(loaded.rules);
        self.options.stats.forget_retired();
        // At the level of envoyproxy/ratelimit's "Successfully loaded new configuration".
        tracing::info!(
            rules,
            domains,
            sources = inputs.len(),
            hash = hash.0,
            "{event}"
        );
        self.update_health();
        // Last, so that whoever sees it here finds it so everywhere.
        self.metrics.rules.set(gauged(rules));
        self.metrics.domains.set(gauged(domains));
        self.metrics.hash.set(gauged(hash.0));
        self.metrics.load_success.inc();
        self.metrics.refused.set(0);
        Ok(())
    }

    /// Logs what is wrong with rules, one line per problem, and rejects them. Returns the problems.
    pub fn reject(&self, problems: Vec<String>) -> Vec<String> {
        let in_force = self.in_force();
        for problem in &problems {
            tracing::error!(in_force, "Error loading new configuration: {problem}");
        }
        self.record_rejection(problems)
    }

    fn record_rejection(&self, problems: Vec<String>) -> Vec<String> {
        self.live.reject(problems.join("\n"));
        self.update_health();
        self.metrics.load_error.inc();
        self.metrics.refused.set(1);
        problems
    }

    /// Which rules stay in force when others are rejected.
    fn in_force(&self) -> &'static str {
        if self.live.load().is_some() {
            "last good configuration"
        } else {
            "none"
        }
    }

    /// Why the newest rules were refused; `None` if they serve.
    pub fn last_error(&self) -> Option<String> {
        self.live.last_error()
    }

    /// Tells whether the rules allow to serve.
    fn update_health(&self) {
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

impl RulesHash {
    /// Of texts, each with its name. In whatever order they come, and wherever they were, they are
    /// the same rules.
    pub fn of<'t>(texts: impl IntoIterator<Item = (&'t str, &'t [u8])>) -> Self {
        let mut texts: Vec<_> = texts.into_iter().collect();
        texts.sort_unstable();
        let mut hasher = Sha256::new();
        for part in texts
            .into_iter()
            .flat_map(|(name, text)| [name.as_bytes(), text])
        {
            // So that no two lists of texts are the same bytes.
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        Self::first_bits(hasher)
    }

    /// The same with more texts, if there are any.
    fn and<'t>(self, more: impl IntoIterator<Item = (&'t str, &'t [u8])>) -> Self {
        more.into_iter().fold(self, |hash, text| {
            let more = Self::of([text]);
            Self::first_bits(
                Sha256::new()
                    .chain_update(hash.0.to_be_bytes())
                    .chain_update(more.0.to_be_bytes()),
            )
        })
    }

    fn first_bits(hasher: Sha256) -> Self {
        // As many bits as a double holds exactly: all that Prometheus keeps.
        let head = hasher
            .finalize()
            .iter()
            .take(8)
            .fold(0, |head, byte| head << 8 | u64::from(*byte));
        Self(head >> 11)
    }
}

fn gauged(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_the_same_hash_in_any_order_and_another_one_when_a_name_or_a_text_changes() {
        let of = |texts: &[(&str, &str)]| {
            RulesHash::of(texts.iter().map(|(name, text)| (*name, text.as_bytes())))
        };
        let (a, b) = (("a", "text"), ("b", "more"));
        let hash = of(&[a, b]);
        assert_eq!(hash, of(&[b, a]));
        assert!(hash.0 > 0 && hash.0 < 1 << 53);
        for other in [
            &[a][..],
            &[a, ("b", "else")],
            &[a, ("c", "more")],
            &[("at", "ext"), b],
            &[],
        ] {
            assert_ne!(hash, of(other), "{other:?}");
        }
        let text: (&str, &[u8]) = ("overlay", b"text");
        assert_eq!(hash.and([]), hash);
        assert!(
            hash.and([text]) != hash
                && hash.and([text]) == hash.and([text])
                && hash.and([text]).0 < 1 << 53
        );
    }
}
