//! A process that belongs to a test, and dies with it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use tollgate::time::Clock;

/// How long anything may take that happens at once on an idle machine. It only bounds a hang.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often to look meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A running process. Dropped, it is killed; in a test that fails, its log is shown.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it, with what it prints in `log`.
    ///
    /// Envoy asks the kernel to be ended with the thread that started it (PR_SET_PDEATHSIG), so
    /// that must be the test's own.
    pub(crate) fn start(name: &'static str, mut command: Command, log: PathBuf) -> Self {
        let output = File::create(&log).expect("the directory exists");
        let errors = output.try_clone().expect("a file can be had twice");
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn();
        let child = child
            .unwrap_or_else(|error| panic!("start {}: {error}", command.get_program().display()));
        Self { name, child, log }
    }

    /// Waits until it answers, as `is_ready` says.
    pub(crate) fn wait_until_ready(&mut self, is_ready: impl Fn() -> bool) {
        let (name, child) = (self.name, &mut self.child);
        eventually(&format!("{name} is ready"), || {
            let ended = child.try_wait().expect("it is our child");
            assert!(ended.is_none(), "{name} ended instead: {ended:?}");
            is_ready().then_some(())
        });
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        // It was not waited for yet, so its id is not reused.
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -{name} {}", self.pid())])
            .status();
        assert!(
            sent.expect("there is a shell").success(),
            "send SIG{name} to {}",
            self.name
        );
    }

    /// Waits until it has ended.
    pub(crate) fn wait_until_ended(&mut self) -> ExitStatus {
        let (name, child) = (self.name, &mut self.child);
        eventually(&format!("{name} ends"), || {
            child.try_wait().expect("it is our child")
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!(
                "what {} said:\n{}",
                self.name,
                fs::read_to_string(&self.log).unwrap_or_default()
            );
        }
    }
}

/// Looks until there is something, and fails when it takes too long.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let clock = Clock::system();
    let give_up_at = clock.now().plus(PATIENCE.into());
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            clock.now() < give_up_at,
            "in {PATIENCE:?} it did not happen that {what}"
        );
        thread::sleep(LOOK_INTERVAL);
    }
}
