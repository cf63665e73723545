//! The parts of the process that most components are built with.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::app::background::Background;
use crate::app::settings::Settings;
use crate::base::shutdown::Lifecycle;
use crate::base::time::Clock;
use crate::rules::LiveRules;
use crate::rules::config::metric_mapping;
use crate::store::settings::BackendChoice;
use crate::store::watch::StoreWatch;
use crate::store::{Backend, memory, redis};
use crate::telemetry::log::Log;
use crate::telemetry::mapper::Mapping;
use crate::telemetry::metric::Metrics;

pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) lifecycle: Lifecycle,
    pub(super) metrics: Metrics,
    pub(super) backend: Backend,
    pub(super) watch: StoreWatch,
}

impl Core {
    /// Builds the store, which is not connected yet.
    pub(super) fn new(
        settings: Settings,
        choice: BackendChoice,
        log: &Log,
        background: &mut Background,
    ) -> Self {
        let clock = Clock::system();
        let lifecycle = Lifecycle::default();
        let mapping = settings.telemetry.mapping_file();
        let mapping = mapping.and_then(|path| load_mapping(Path::new(path)));
        let metrics = Metrics::named(settings.telemetry.naming(mapping));
        metrics.add_process(clock.now());
        log.register(&metrics);
        let backend = match choice {
            BackendChoice::Memory => {
                let bytes_max = settings.store.memory.memory_bytes_max;
                let counters = memory::Counters::new(bytes_max, "store", &metrics);
                if !settings.store.is_memory_chosen() {
                    lifecycle.set_store_problem(Some(memory::not_chosen()));
                }
                Backend::Memory(Arc::new(counters))
            }
            BackendChoice::Redis(options, credentials) => {
                let redis = redis::Redis::new(*options, clock.clone(), &metrics);
                background.watch(credentials.reloader(&metrics));
                Backend::Redis(Arc::new(redis))
            }
        };
        let info = [("type", backend.type_name())];
        let help = "Where counters are kept; always 1.";
        metrics.info("tollgate_store_info", help, &info);
        lifecycle.set_store(backend.is_ready(), backend.to_string());
        let watch = StoreWatch::new(clock.clone(), &metrics);
        let finish = |backend: Backend| async move { backend.finish().await };
        background.finish(Some(backend.clone()), Ok, finish);
        Self { settings, clock, lifecycle, metrics, backend, watch }
    }

    /// Adds the work of the store, which depends on the periods of the rules in force.
    pub(super) fn maintain_store(&self, rules: Arc<LiveRules>, background: &mut Background) {
        let others = rules.clone();
        let has_long_periods = move || {
            let rules = rules.load();
            rules.as_ref().is_some_and(|rules| rules.has_long_periods())
        };
        let scripted = move || {
            let rules = others.load();
            let rules = rules.as_ref().map(|rules| rules.scripted());
            rules.unwrap_or_default()
        };
        let clock = self.clock.clone();
        let lifecycle = self.lifecycle.clone();
        let store = self.backend.clone();
        background.thread(
            "store",
            store.maintain(clock, lifecycle, self.watch.clone(), has_long_periods, scripted),
        );
    }
}

/// Loads a mapping file. Without a valid one metrics keep their usual names: a page that cannot be
/// read would be worse.
fn load_mapping(path: &Path) -> Option<Mapping> {
    match metric_mapping::load(path) {
        Ok(Ok(loaded)) => {
            for warning in loaded.warnings {
                let at = warning.source_location();
                let hint = warning.hint;
                tracing::warn!(at, hint, "PROMETHEUS_MAPPER_YAML: {}", warning.text);
            }
            return Some(loaded.mapping);
        }
        Ok(Err(problems)) => {
            for problem in problems {
                let at = problem.source_location();
                let hint = problem.hint;
                tracing::error!(
                    at,
                    hint,
                    "PROMETHEUS_MAPPER_YAML: {}; metrics keep their usual names",
                    problem.text
                );
            }
        }
        // Envoy Gateway sets it in every deployment, and mounts a ConfigMap that may not exist.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::info!(path = %path.display(), "PROMETHEUS_MAPPER_YAML: file not found; metrics keep their usual names");
        }
        Err(error) => {
            tracing::error!(path = %path.display(), "PROMETHEUS_MAPPER_YAML: it cannot be read: {error}; metrics keep their usual names");
        }
    }
    None
}
