//! Loads rules for the first time.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::app::banner::InitialRules;
use crate::app::core::Core;
use crate::config::CompileOptions;
use crate::observe::history::History;
use crate::observe::redact::DescriptorView;
use crate::rule_source::edit::RuleFiles;
use crate::rule_source::edit::change::{RulesWriter, Writing};
use crate::rule_source::edit::compile::Compiler;
use crate::rule_source::findings::LastFindings;
use crate::rule_source::publisher::RulePublisher;
use crate::rule_source::{Origin, RuleSource};
use crate::rules::stats::gauges::{RULE_GAUGES_MAX, RuleGauges};
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::rules::{KeyFormat, LiveRules};
use crate::settings::Settings;
use crate::store::Backend;
use crate::what_if::check::RuleCheck;

/// The live rules and what loads them.
pub(super) struct Rules {
    /// The source, as text.
    pub(super) origin: String,
    pub(super) live: Arc<LiveRules>,
    pub(super) source: RuleSource,
    /// `None` where rules come from a control plane.
    pub(super) files: Option<Arc<RuleFiles>>,
    /// The same.
    pub(super) writer: Option<Arc<RulesWriter>>,
    /// Findings about the newest rules.
    pub(super) findings: LastFindings,
    pub(super) initial: InitialRules,
    pub(super) stats: Arc<StatsTable>,
    pub(super) history: History,
}

impl Rules {
    pub(super) fn load(origin: Origin, core: &Core) -> Self {
        let (settings, clock, metrics) = (&core.settings, &core.clock, &core.metrics);
        let origin_text = origin.to_string();
        let stats = StatsTable::new(METRIC_SERIES_MAX, metrics);
        let options = options(core, stats.clone());
        let directory = match &origin {
            Origin::Files(directory) => Some(directory.clone()),
            Origin::Xds(_) => None,
        };
        let files = directory.map(|directory| {
            let compiler = Compiler {
                directory,
                options: options.clone(),
                overlay: settings.rules.reading.tollgate_overlay.clone(),
            };
            Arc::new(RuleFiles::new(compiler, metrics))
        });
        let live = Arc::new(LiveRules::default());
        let gauges = RuleGauges::new(live.clone(), clock.clone(), RULE_GAUGES_MAX, metrics);
        metrics.add_source(Arc::new(gauges));
        let publisher = RulePublisher::new(
            options,
            settings.rules.clone(),
            live.clone(),
            core.lifecycle.clone(),
            metrics,
        );
        let findings = publisher.findings().clone();
        let source = RuleSource::open(origin, publisher, clock.clone(), metrics);
        let initial = match (&*live.load(), &source) {
            (Some(rules), _) => InitialRules::Loaded {
                limits: rules.rule_count(),
                domains: rules.domain_count(),
            },
            (None, RuleSource::Files(_)) => InitialRules::Rejected,
            (None, RuleSource::Xds(_)) => InitialRules::Pending,
        };
        let writer = files.clone().zip(source.reload()).map(|(files, reload)| {
            let writing = if settings.rules.rules_writable {
                Writing::Enabled
            } else {
                Writing::Disabled
            };
            let (reload, live) = (reload.clone(), live.clone());
            let writer = RulesWriter::new(files, reload, live, clock.clone(), writing, metrics);
            Arc::new(writer)
        });
        let history = History::new(live.clone(), stats.clone(), clock.clone(), metrics);
        Self {
            origin: origin_text,
            live,
            source,
            files,
            findings,
            writer,
            initial,
            stats,
            history,
        }
    }

    /// The folder of rules files.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        let files = self.files.as_ref()?;
        Some(files.compiler.directory.path.clone())
    }

    /// How pages of the admin listener, which is bound to `admin`, show descriptors.
    pub(super) fn view(&self, core: &Core, admin: SocketAddr) -> DescriptorView {
        DescriptorView {
            values: core.settings.admin.values(admin),
            rules: self.live.clone(),
        }
    }

    /// Tries changes of the rules in force.
    pub(super) fn check(&self, settings: &Settings) -> RuleCheck {
        RuleCheck {
            files: self.files.clone(),
            rules: self.live.clone(),
            modes: settings.limiter.modes(),
            on_store_error: settings.limiter.on_store_error,
        }
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
