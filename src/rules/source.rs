//! Loads rules at startup and whenever they change. Invalid rules never replace valid ones.

use crate::base::file_watch::{FileWatch, Watched as _};
use crate::base::time::Clock;
use crate::rules::source::loader::Loader;
use crate::rules::source::publisher::RulePublisher;
use crate::rules::source::reload::Reload;
use crate::rules::source::xds::client::{Client, Subscription};
use crate::telemetry::metric::Metrics;

pub use settings::Origin;

pub(crate) mod edit;
pub(crate) mod files;
pub(crate) mod findings;
mod loader;
pub(crate) mod publisher;
pub(crate) mod reload;
pub(crate) mod settings;
pub mod xds;

/// A source of rules that does not follow changes yet.
#[derive(Debug)]
pub(crate) enum RuleSource {
    /// A directory, loaded once.
    Files(Box<Loader>),
    /// A control plane, not connected yet.
    Xds(Box<Client>),
}

impl RuleSource {
    /// Loads files for the first time. A control plane is connected by [`Self::start`].
    pub(crate) fn open(
        origin: Origin,
        publisher: RulePublisher,
        clock: Clock,
        metrics: &Metrics,
    ) -> Self {
        match origin {
            Origin::Files(directory) => {
                let mut loader = Box::new(Loader::new(directory, publisher));
                loader.load();
                Self::Files(loader)
            }
            Origin::Xds(options) => {
                Self::Xds(Box::new(Client::new(*options, publisher, clock, metrics)))
            }
        }
    }

    /// Requests and reports loads of files; `None` for a control plane.
    pub(crate) fn reload(&self) -> Option<&Reload> {
        match self {
            Self::Files(loader) => Some(loader.reload()),
            Self::Xds(_) => None,
        }
    }

    /// Follows changes on a thread of its own. Returns what loads the rules again, as on SIGHUP;
    /// dropping that stops the thread without waiting for it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(self) -> anyhow::Result<Box<dyn Fn()>> {
        Ok(match self {
            Self::Files(loader) => {
                let load = loader.reload().requested();
                let watch = FileWatch::start_with(*loader, load)?;
                Box::new(move || watch.load())
            }
            Self::Xds(client) => {
                let subscription = Subscription::start(*client)?;
                Box::new(move || subscription.refresh())
            }
        })
    }
}
