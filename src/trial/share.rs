//! The share of callers that get our answer: TRIAL_ENFORCE_PERCENT, and a file that replaces it.
//!
//! A caller has a fixed position by a hash of its domain and entries, so it always gets the answer
//! of the same side, and a larger share only adds callers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::file_watch::{FileSet, Reloaded};
use crate::base::regular_file;
use crate::base::text::Text;
use crate::rules::EnforcedShare;
use crate::rules::query::Query;
use crate::telemetry::metric::{Gauge, Metrics};

/// A share that is reduced because of a problem must be in force at once.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The current percentage, which its gauge holds. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct AnsweredShare {
    percent: Gauge,
}

impl AnsweredShare {
    /// Registers the metric.
    pub(crate) fn new(share: EnforcedShare, metrics: &Metrics) -> Self {
        let percent = metrics.gauge(
            "tollgate_trial_enforce_percent",
            "Percentage of callers that get the answer of this service instead of the upstream's.",
        );
        let new = Self { percent };
        new.set(share);
        new
    }

    /// Whether the caller gets our answer.
    pub(crate) fn includes(&self, query: &Query<'_>) -> bool {
        let share = self.current();
        // Most trials have 0.
        if share.percent() == 0 {
            return false;
        }
        let entries =
            query.descriptors.iter().flat_map(|descriptor| descriptor.entries.iter().copied());
        share.includes(&Text(query.domain).shown(), entries)
    }

    pub(crate) fn current(&self) -> EnforcedShare {
        let percent = u64::try_from(self.percent.get()).ok();
        percent.and_then(EnforcedShare::from_percent).unwrap_or(EnforcedShare::ALL)
    }

    /// Replaces the share by the percentage in a file, now and whenever it changes.
    pub(crate) fn reloaded(&self, path: PathBuf) -> Reloaded {
        let mut reloaded = Reloaded::new("trial-share", "share of answered callers");
        reloaded.poll_interval = POLL_INTERVAL;
        let mut files = FileSet::new(vec![path.clone()]);
        match read(&path) {
            Ok(share) => self.set(share),
            // The first load rejects it.
            Err(_) => files.forget(),
        }
        let share = self.clone();
        let replace = move |next: EnforcedShare| {
            if next != share.current() {
                let percent = next.percent();
                tracing::info!(percent, "share of answered callers changed");
            }
            share.set(next);
        };
        reloaded.add(files, move || read(&path), replace);
        reloaded
    }

    fn set(&self, share: EnforcedShare) {
        self.percent.set(share.percent().into());
    }
}

/// A whole number from 0 to 100.
///
/// # Errors
/// Any other text.
pub(crate) fn parse(text: &str) -> Result<EnforcedShare, String> {
    let percent = text.parse().ok();
    percent
        .and_then(EnforcedShare::from_percent)
        .ok_or_else(|| "write a whole number from 0 to 100".to_owned())
}

fn read(path: &Path) -> Result<EnforcedShare, String> {
    let bytes = regular_file::read(path).map_err(|error| error.to_string());
    bytes
        .and_then(|bytes| parse(String::from_utf8_lossy(&bytes).trim()))
        .map_err(|error| format!("TRIAL_ENFORCE_PERCENT_FILE: {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::base::file_watch::Watched as _;

    use super::*;

    #[test]
    fn the_file_replaces_the_percentage_while_it_is_valid() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("percent");
        let share = AnsweredShare::new(EnforcedShare::ALL, &Metrics::new());
        let mut file = share.reloaded(path.clone());
        let mut percent_of = |content: &str| {
            fs::write(&path, content).expect("it can be written");
            file.load();
            share.current().percent()
        };
        assert_eq!(share.current().percent(), 100, "without a file");
        assert_eq!(percent_of("25\n"), 25);
        for invalid in ["", "101", "-1", "12.5", "all"] {
            assert_eq!(percent_of(invalid), 25, "{invalid:?}");
        }
        assert_eq!(percent_of("0"), 0);
    }

    #[test]
    fn a_caller_is_always_on_the_same_side() {
        let share = AnsweredShare::new(parse("30").expect("it is valid"), &Metrics::new());
        let included = |user: u32| {
            let entry = format!("user={user}");
            let query = Query::of_entries("d", [&*entry]).expect("it is valid");
            share.includes(&query)
        };
        let first: Vec<bool> = (0..1_000).map(included).collect();
        assert_eq!(first, (0..1_000).map(included).collect::<Vec<_>>());
        let count = first.iter().filter(|included| **included).count();
        assert!((250..350).contains(&count), "{count}");
    }
}
