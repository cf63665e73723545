//! Gives the console the parts of the process that it shows.

use crate::admin::api::Api;
use crate::app::rules::{Candidates, Rules};
use crate::console::Console;
use crate::console::parts::{Parts, RecentReads};
use crate::settings::Settings;
use crate::shutdown::Lifecycle;
use crate::store::Backend;
use crate::telemetry::metric::Metrics;
use crate::time::Clock;
use crate::trial::Trial;

pub(super) fn console(
    settings: &Settings,
    (rules, candidates, trial): (&Rules, &Candidates, Option<&Trial>),
    (backend, clock, lifecycle): (&Backend, &Clock, &Lifecycle),
    api: &Api,
    metrics: &Metrics,
) -> Console {
    Console::new(Parts {
        rules: rules.live.clone(),
        files: rules.files.clone(),
        folder: rules.folder(),
        findings: rules.findings.clone(),
        candidate: candidates.rules.clone(),
        trial: trial.cloned(),
        modes: settings.limiter.modes(),
        backend: backend.clone(),
        api: api.clone(),
        history: rules.history.clone(),
        metrics: metrics.clone(),
        lifecycle: lifecycle.clone(),
        clock: clock.clone(),
        reads: RecentReads::default(),
    })
}
