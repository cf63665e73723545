//! Requests that rules files are loaded again, and reports what was loaded last.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::rules::config::Source;

/// Shared by a loader and the writers of its files. Clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Reload {
    requested: Arc<Notify>,
    last: watch::Sender<LastLoad>,
}

/// The files that were published or rejected last.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastLoad {
    pub(crate) sources: Vec<Source>,
    /// Why they were rejected; empty if they are in force.
    pub(crate) problems: Vec<String>,
}

impl Default for Reload {
    fn default() -> Self {
        Self { requested: Arc::default(), last: watch::Sender::new(LastLoad::default()) }
    }
}

impl Reload {
    /// Wakes the watch of the files.
    pub(crate) fn requested(&self) -> Arc<Notify> {
        self.requested.clone()
    }

    /// Requests a load now, which also finds changes on file systems without events.
    pub(crate) fn request(&self) {
        self.requested.notify_one();
    }

    pub(crate) fn report(&self, load: LastLoad) {
        self.last.send_replace(load);
    }

    /// Waits until a file was loaded with this text. Returns why those rules were rejected; nothing
    /// if they are in force.
    pub(crate) async fn loaded(&self, path: &str, text: &str) -> Vec<String> {
        let has_it = |load: &LastLoad| {
            let mut sources = load.sources.iter();
            sources.any(|source| *source.path == *path && *source.text == *text)
        };
        let mut last = self.last.subscribe();
        let load = last.wait_for(has_it).await;
        load.expect("self has a sender").problems.clone()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn load(text: &str, problems: &[&str]) -> LastLoad {
        let source =
            Source { name: "a.yaml".into(), path: "/rules/a.yaml".into(), text: text.into() };
        LastLoad {
            sources: vec![source],
            problems: problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_load_of_this_text_is_awaited() {
        let reload = Reload::default();
        let mut loaded = Box::pin(reload.loaded("/rules/a.yaml", "new"));
        assert_eq!((&mut loaded).now_or_never(), None);
        reload.report(load("old", &[]));
        assert_eq!((&mut loaded).now_or_never(), None);
        reload.report(load("new", &["rejected"]));
        assert_eq!((&mut loaded).now_or_never(), Some(vec!["rejected".into()]));
        reload.report(load("new", &[]));
        let again = reload.loaded("/rules/a.yaml", "new");
        assert_eq!(again.now_or_never(), Some(vec![]), "it is loaded already");
    }
}
