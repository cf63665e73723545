//! Components that work beside requests: started together, reloaded on SIGHUP, finished last.

use futures_util::future::{LocalBoxFuture, join_all};

use crate::base::file_watch::{FileWatch, Watched};
use crate::base::runtime::Thread;

type Start = Box<dyn FnOnce(&mut Running) -> anyhow::Result<()>>;

/// Components that are not started yet.
#[derive(Default)]
pub(super) struct Background(Vec<Start>);

/// Components that were started. Dropping it ends them.
#[derive(Default)]
pub(super) struct Running {
    reloads: Vec<Box<dyn Fn()>>,
    finishes: Vec<LocalBoxFuture<'static, ()>>,
    threads: Vec<Thread>,
}

impl Background {
    /// Adds files that are reloaded when they change, and on SIGHUP.
    pub(super) fn watch(&mut self, files: Option<impl Watched>) {
        self.reload(files, FileWatch::start, FileWatch::load);
    }

    /// Adds a component that is reloaded on SIGHUP.
    pub(super) fn reload<P: 'static, R: 'static>(
        &mut self,
        part: Option<P>,
        start: fn(P) -> anyhow::Result<R>,
        load: fn(&R),
    ) {
        self.add(part, move |part, running| {
            let started = start(part)?;
            running.reloads.push(Box::new(move || load(&started)));
            Ok(())
        });
    }

    /// Adds a component with work to do after the last request.
    pub(super) fn finish<P: 'static, R: 'static, F: Future<Output = ()> + 'static>(
        &mut self,
        part: Option<P>,
        start: fn(P) -> anyhow::Result<R>,
        finish: fn(R) -> F,
    ) {
        self.add(part, move |part, running| {
            running.finishes.push(Box::pin(finish(start(part)?)));
            Ok(())
        });
    }

    /// Adds work for a thread of its own, until the process ends.
    pub(super) fn thread(
        &mut self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        self.add(Some(work), move |work, running| {
            running.threads.push(Thread::spawn(name, Box::pin(work))?);
            Ok(())
        });
    }

    /// # Errors
    /// A thread or its runtime cannot be started.
    pub(super) fn start(self) -> anyhow::Result<Running> {
        let mut running = Running::default();
        for start in self.0 {
            start(&mut running)?;
        }
        Ok(running)
    }

    fn add<P: 'static>(
        &mut self,
        part: Option<P>,
        start: impl FnOnce(P, &mut Running) -> anyhow::Result<()> + 'static,
    ) {
        let start = part.map(|part| -> Start { Box::new(|running| start(part, running)) });
        self.0.extend(start);
    }
}

impl Running {
    pub(super) fn reload(&self) {
        for reload in &self.reloads {
            reload();
        }
    }

    /// Stops to follow changes of files.
    pub(super) fn end_reloads(&mut self) {
        self.reloads.clear();
    }

    /// Waits for the work that is left after the last request.
    pub(super) async fn finish(&mut self) {
        join_all(self.finishes.drain(..)).await;
    }
}
