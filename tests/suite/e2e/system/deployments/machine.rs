//! A machine of a test's own, as far as a test can tell: a network with nobody else in it, mounts
//! that end with it, and its own names.
//!
//! So every port and every name of a deployment is the real one, whatever runs beside it. The test
//! starts itself once more, in new namespaces: what is inside is an ordinary test, whose clients
//! and servers find each other as always, and when it ends, or is killed, the kernel ends
//! everything in there.

use std::any;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::system::namespaces::unshare;

/// Where the test that is inside keeps its files. Set by the one outside, so that it is gone when
/// the mounts are.
const HOME: &str = "TOLLGATE_TEST_MACHINE";
const NAMESPACES: [&str; 6] =
    ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// The inside of it.
pub(crate) struct Machine {
    /// A directory of the test's own.
    pub(crate) home: PathBuf,
    /// Whether there is more than one user, as there is for root. In a user namespace of somebody
    /// else's there is only one.
    pub(crate) has_other_users: bool,
}

/// Lets a test's story happen on a machine of its own, where these names lead to these addresses.
pub(crate) fn on_its_own<F: Fn(&Machine)>(names: &[(&str, &str)], story: F) {
    if let Some(home) = env::var_os(HOME) {
        story(&Machine::prepared(home.into(), names));
        return;
    }
    let home = TempDir::new().expect("a temporary directory can be made");
    // The story is a closure of the test.
    let (_, name) = any::type_name::<F>().split_once("::").expect("it is in a crate");
    let name = name.strip_suffix("::{{closure}}").expect("it is a closure");
    // If this test is killed, so is that.
    let mut again = Command::new("setpriv");
    again
        .args(["--pdeathsig", "KILL"])
        .args(unshare(&NAMESPACES))
        .arg(env::current_exe().expect("it runs"))
        .args([name, "--exact", "--nocapture"]);
    let ran = again.env(HOME, home.path()).stdin(Stdio::null()).output();
    let ran = ran.unwrap_or_else(|error| panic!("setpriv: {error}; it comes with util-linux"));
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{name}, on a machine of its own:\n{said}"
    );
}

impl Machine {
    fn prepared(home: PathBuf, names: &[(&str, &str)]) -> Self {
        let lines = names.iter().map(|(name, addr)| format!("{addr} {name}\n"));
        let hosts = home.join("hosts");
        fs::write(
            &hosts,
            format!("127.0.0.1 localhost\n::1 localhost\n{}", lines.collect::<String>()),
        )
        .expect("it is the test's own");
        // Others than who made it look names up.
        fs::set_permissions(&hosts, fs::Permissions::from_mode(0o644)).expect("it is ours");
        run(
            Command::new("ip").args(["link", "set", "lo", "up"]),
            "it comes with iproute2 (Debian: apt-get install iproute2)",
        );
        run(
            Command::new("mount").arg("--bind").arg(&hosts).arg("/etc/hosts"),
            "it comes with util-linux",
        );
        let users = fs::read_to_string("/proc/self/uid_map").expect("Linux has it");
        Self { home, has_other_users: users.split_whitespace().nth(2) != Some("1") }
    }

    /// What /etc/hosts says.
    pub(crate) fn hosts(&self) -> String {
        fs::read_to_string(self.home.join("hosts")).expect("it was written")
    }

    /// A new directory, which everybody may look into.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.home.join(name);
        fs::create_dir(&path).expect("its name is new");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command, how_to_get_it: &str) -> String {
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.unwrap_or_else(|error| {
        panic!("{}: {error}; {how_to_get_it}", command.get_program().display())
    });
    assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}
