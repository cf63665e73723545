//! Gives the console the parts of the process that it shows.

use crate::app::core::Core;
use crate::app::rules::Rules;
use crate::operator::admin::api::Api;
use crate::operator::console::Console;
use crate::operator::console::parts::{Parts, RecentReads};
use crate::operator::observe::history::History;
use crate::operator::observe::redact::Values;
use crate::operator::observe::unmatched::Unmatched;
use crate::trial::Trial;

/// The components that the pages show.
pub(super) struct Shown<'a> {
    pub(super) rules: &'a Rules,
    pub(super) trial: Option<&'a Trial>,
    /// What callers without a token see.
    pub(super) values: Values,
    /// What those of them on this machine see.
    pub(super) local: Values,
}

/// Statistics of decisions that only the console shows.
pub(super) struct Seen {
    pub(super) history: History,
    pub(super) unmatched: Unmatched,
}

pub(super) fn console(core: &Core, shown: &Shown<'_>, api: &Api, seen: Seen) -> Console {
    let rules = shown.rules;
    Console::new(Parts {
        rules: rules.live.clone(),
        files: rules.files.clone(),
        folder: rules.folder(),
        findings: rules.findings.clone(),
        trial: shown.trial.cloned(),
        modes: core.settings.limiter.modes(),
        backend: core.backend.clone(),
        api: api.clone(),
        history: seen.history,
        unmatched: seen.unmatched,
        metrics: core.metrics.clone(),
        watch: core.watch.clone(),
        lifecycle: core.lifecycle.clone(),
        clock: core.clock.clone(),
        reads: RecentReads::default(),
    })
}
