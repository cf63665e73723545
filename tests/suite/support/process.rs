//! Processes that belong to a test and end with it, and waiting for what they do.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, getpgid};

/// How long anything may take that should happen at once. It only bounds a hang: the machine may be
/// busy with anything else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How often to look meanwhile.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A running process. Dropped, it is killed; in a test that fails, its log is shown.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// Sets a flag when it goes out of scope, also when a test fails: threads that run until then end.
pub(crate) struct StoreOnDrop<'f>(pub(crate) &'f AtomicBool);

impl Process {
    /// Starts it, with what it prints in `log`.
    ///
    /// Envoy asks the kernel to be ended with the thread that started it (PR_SET_PDEATHSIG), so
    /// that must be the test's own.
    pub(crate) fn start(name: &'static str, mut command: Command, log: PathBuf) -> Self {
        let output = File::create(&log).expect("the directory exists");
        let errors = output.try_clone().expect("a file can be had twice");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", command.get_program().display()));
        Self::of(name, child, log)
    }

    /// One that writes this log.
    pub(crate) fn of(name: &'static str, child: Child, log: PathBuf) -> Self {
        Self { name, child, log }
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits until it is ready.
    pub(crate) fn wait_until_ready(&mut self, is_ready: impl Fn() -> bool) {
        look_until(&format!("{} is ready", self.name), || {
            let ended = self.ended();
            assert!(ended.is_none(), "{} ended instead: {ended:?}", self.name);
            is_ready()
        });
    }

    /// Waits until it has ended.
    pub(crate) fn wait_until_ended(&mut self) -> ExitStatus {
        look_until(&format!("{} ends", self.name), || self.ended().is_some());
        self.ended().expect("it has ended")
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `TERM`. A process that is stopped has a process group of its own: the
    /// kernel ends a whole group in which one is stopped when it loses its last parent outside, as
    /// the group of tests in the background does.
    pub(crate) fn signal(&self, name: &str) {
        let pid = Pid::from_child(&self.child);
        assert!(
            name != "STOP" || getpgid(Some(pid)) == Ok(pid),
            "start {} with in_own_group() to stop it",
            self.name
        );
        // It was not waited for, so its id is not reused.
        let sent =
            Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status();
        assert!(sent.expect("there is a shell").success(), "send SIG{name}");
        if name == "STOP" {
            // The kernel stops one thread after the other.
            look_until(&format!("{} is stopped", self.name), || self.is_stopped());
        }
    }

    /// Whether each of its threads is stopped.
    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it is our child");
        threads.flatten().all(|thread| {
            let state = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // Behind the name, which is in parentheses.
            state.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("the log of {}:\n{log}", self.name);
        }
    }
}

impl Drop for StoreOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Looks until something is so, and fails when it takes too long.
pub(crate) fn look_until(what: &str, mut is_so: impl FnMut() -> bool) {
    look_for(what, || is_so().then_some(()));
}

/// Looks until there is something.
pub(crate) fn look_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let looks = PATIENCE.as_millis() / LOOK_INTERVAL.as_millis();
    for _ in 0..looks {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    panic!("in {PATIENCE:?} it did not happen that {what}");
}
