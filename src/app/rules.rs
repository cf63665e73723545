//! Loads rules for the first time.

use std::sync::Arc;

use crate::app::banner::InitialRules;
use crate::app::core::Core;
use crate::rules::config::CompileOptions;
use crate::rules::source::edit::{Access, RuleFiles};
use crate::rules::source::findings::LastFindings;
use crate::rules::source::publisher::RulePublisher;
use crate::rules::source::{Origin, RuleSource};
use crate::rules::stats::gauges::{RULE_GAUGES_MAX, RuleGauges};
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::rules::{KeyFormat, LiveRules};
use crate::store::Backend;

/// The live rules and what loads them.
pub(super) struct Rules {
    pub(super) origin: Origin,
    pub(super) live: Arc<LiveRules>,
    pub(super) source: RuleSource,
    /// `None` where rules come from a control plane.
    pub(super) files: Option<Arc<RuleFiles>>,
    /// Findings about the newest rules.
    pub(super) findings: LastFindings,
    pub(super) initial: InitialRules,
    pub(super) stats: Arc<StatsTable>,
}

impl Rules {
    pub(super) fn load(origin: Origin, core: &Core) -> Self {
        let settings = &core.settings;
        let clock = &core.clock;
        let metrics = &core.metrics;
        let stats = StatsTable::new(METRIC_SERIES_MAX, metrics);
        let options = options(core, stats.clone());
        let directory = match &origin {
            Origin::Files(directory) => Some(directory.clone()),
            Origin::Xds(_) => None,
        };
        let live = Arc::new(LiveRules::default());
        let gauges = RuleGauges::new(live.clone(), clock.clone(), RULE_GAUGES_MAX, metrics);
        metrics.add_source(Arc::new(gauges));
        let publisher = RulePublisher::new(
            options.clone(),
            settings.rules.clone(),
            live.clone(),
            core.lifecycle.clone(),
            metrics,
        );
        let findings = publisher.findings().clone();
        let source = RuleSource::open(origin.clone(), publisher, clock.clone(), metrics);
        let initial = match (&*live.load(), &source) {
            (Some(rules), _) => {
                InitialRules::Loaded { limits: rules.rule_count(), domains: rules.domain_count() }
            }
            (None, RuleSource::Files(_))
                if directory.as_ref().is_some_and(|files| !files.path.exists()) =>
            {
                InitialRules::Missing
            }
            (None, RuleSource::Files(_)) => InitialRules::Rejected,
            (None, RuleSource::Xds(_)) => InitialRules::Pending,
        };
        let files = directory.zip(source.reload()).map(|(directory, reload)| {
            Arc::new(RuleFiles {
                directory,
                options,
                overlay: settings.rules.reading.tollgate_overlay.clone(),
                is_writable: settings.rules.rules_writable,
                reload: reload.clone(),
                access: Access::new(metrics),
            })
        });
        Self { origin, live, source, files, findings, initial, stats }
    }
}

/// The options of the compiler, without the overlay.
fn options(core: &Core, stats: Arc<StatsTable>) -> CompileOptions {
    let settings = &core.settings;
    let mut options = settings.rules.reading.options(stats);
    options.key_prefix = settings.key_prefix().into();
    options.one_slot = core.backend.has_slots();
    if let Backend::Memory(_) = core.backend {
        // No other process reads these keys: no two counters need to share one.
        options.key_format = KeyFormat::Safe;
    }
    options
}
