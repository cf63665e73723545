//! Runs the components until a signal, then drains them.
//!
//! ```text
//! SIGTERM        DRAIN_PERIOD            SHUTDOWN_TIMEOUT
//!    |---- NOT_SERVING, still serving ----|---- no new connections; requests in flight, ----|
//!                                              then the last metrics, spans and records
//! ```
//! SIGINT skips the first part, and a second signal ends both.

use std::future::pending;
use std::pin::pin;

use anyhow::bail;

use crate::api;
use crate::app::background::Running;
use crate::app::banner::Summary;
use crate::app::build::App;
use crate::app::core::Core;
use crate::base::shutdown::Phase;
use crate::base::time::Span;
use crate::store::Backend;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM: drain first, so that load balancers notice.
    Terminate,
    /// SIGINT: an operator waits at a terminal.
    Interrupt,
}

impl App {
    /// Starts and announces itself, serves until `stop` returns, then drains; if it returns again,
    /// stops at once.
    ///
    /// Rules, certificates and credentials are reloaded whenever `reload` returns.
    ///
    /// # Errors
    /// A thread or a runtime cannot be started, or Redis was not reached in time.
    pub(crate) async fn run(
        self,
        announce: impl FnOnce(&Summary) -> anyhow::Result<()>,
        mut stop: impl AsyncFnMut() -> Signal,
        mut reload: impl AsyncFnMut(),
    ) -> anyhow::Result<()> {
        let core = self.core;
        let workers = core.settings.api.workers();
        let requests = self.api.start(self.listeners, workers, &core.metrics)?;
        let mut background = self.background.start()?;
        announce(&self.summary)?;

        let startup_timeout = core.settings.store.redis.startup_max();
        let mut unreachable = pin!(unreachable(&core.backend, startup_timeout));
        let signal = loop {
            tokio::select! {
                signal = stop() => break signal,
                () = reload() => background.reload(),
                (within, cause) = &mut unreachable => {
                    bail!("Redis was not reached within {within} (REDIS_STARTUP_MAX_ELAPSED_TIME): {cause}");
                }
            }
        };
        // The kernel takes seconds to close a watch of many files, and the process cannot end
        // before. Begun now, that ends with the drain.
        background.end_reloads();
        tokio::select! {
            () = drain(&core, requests, background, signal) => {}
            _ = stop() => tracing::warn!("second signal: stopping at once"),
        }
        Ok(())
    }
}

async fn drain(core: &Core, requests: api::Running, mut background: Running, signal: Signal) {
    let period = core.settings.api.drain_period;
    let timeout = core.settings.api.shutdown_timeout;
    if signal == Signal::Terminate {
        tracing::info!(%period, "draining: reporting NOT_SERVING, still serving requests");
        core.lifecycle.enter(Phase::Draining);
        tokio::time::sleep(period.into()).await;
    }
    tracing::info!(%timeout, "stopping: waiting for requests in flight");
    core.lifecycle.enter(Phase::Stopping);
    let mut timed_out = pin!(tokio::time::sleep(timeout.into()));
    tokio::select! {
        () = requests.finished() => {}
        () = &mut timed_out => {
            tracing::warn!(%timeout, "requests were still in flight at SHUTDOWN_TIMEOUT");
            return;
        }
    }
    tokio::select! {
        () = background.finish() => {}
        () = timed_out => {
            tracing::warn!(%timeout, "the last metrics and spans were not sent by SHUTDOWN_TIMEOUT");
        }
    }
}

/// Returns when the store was not reached within a time after the start, and why; never otherwise.
async fn unreachable(backend: &Backend, within: Option<Span>) -> (Span, String) {
    let Some(within) = within else {
        return pending().await;
    };
    tokio::time::sleep(within.into()).await;
    match backend.never_reached() {
        Some(cause) => (within, cause),
        None => pending().await,
    }
}
