//! Brings rules: at the start, and again whenever they change. What is broken never takes the place
//! of what serves.

use std::fmt;

use crate::rule_source::files::Directory;
use crate::rule_source::loader::Loader;
use crate::rule_source::publisher::RulePublisher;

use crate::file_watch::FileWatch;
use crate::rule_source::xds::{Client, Subscription};
use crate::telemetry::metric::Metrics;
use crate::time::Clock;

pub mod files;
pub mod loader;
pub mod overlay;
pub mod publisher;
pub mod settings;
pub mod watch;
pub mod xds;

/// Where rules come from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A directory.
    Files(Directory),
    /// A control plane.
    Xds(Box<xds::Options>),
}

/// Rules of which nobody knows yet when they change.
#[derive(Debug)]
pub enum RuleSource {
    /// A directory, which was read.
    Files(Box<Loader>),
    /// A control plane, which was not asked yet.
    Xds(Box<Client>),
}

/// Rules that are followed by a thread of their own. Dropping it ends the thread; nobody waits for
/// that.
#[derive(Debug)]
pub enum RunningSource {
    /// A directory.
    Files(FileWatch),
    /// A control plane.
    Xds(Subscription),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(directory) => write!(formatter, "{}", directory.path().display()),
            Self::Xds(options) => write!(formatter, "xDS server {}", options.server.address),
        }
    }
}

impl RuleSource {
    /// Files are loaded for the first time; what a control plane has is asked for later.
    pub fn open(origin: Origin, publisher: RulePublisher, clock: Clock, metrics: &Metrics) -> Self {
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

    /// Begins to follow the rules.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(self) -> anyhow::Result<RunningSource> {
        match self {
            Self::Files(loader) => FileWatch::start(*loader).map(RunningSource::Files),
            Self::Xds(client) => Subscription::start(*client).map(RunningSource::Xds),
        }
    }
}

impl RunningSource {
    /// Brings the rules again, as an operator asks for with SIGHUP.
    pub fn load(&self) {
        match self {
            Self::Files(watch) => watch.load(),
            Self::Xds(subscription) => subscription.ask_again(),
        }
    }
}
