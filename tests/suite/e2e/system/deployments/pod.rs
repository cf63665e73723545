//! A pod with our image: its root, read-only, its mounts, its user without any right, and the
//! environment that Kubernetes gives it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::e2e::system::deployments::machine::{Machine, run};
use crate::support::http::{self, Reply};
use crate::support::process::Process;
use crate::support::volume::Volume;

/// Of the deployments; the image's own is another.
const UID: &str = "65534";
/// What distroless says and how a kubelet names a pod. Beside them there are links to the Services
/// of the namespace, of which some look like settings.
const OF_ANY_POD: [(&str, &str); 11] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"),
    ("HOSTNAME", "ratelimit-7d4b9c6f5-x2x9k"),
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
    ("REDIS_SERVICE_HOST", "10.96.0.12"),
    ("REDIS_PORT", "tcp://10.96.0.12:6379"),
    ("REDIS_PORT_6379_TCP_ADDR", "10.96.0.12"),
    ("RATELIMIT_SERVICE_HOST", "10.96.0.13"),
    ("RATELIMIT_SERVICE_PORT_GRPC_PORT", "8081"),
    ("RATELIMIT_PORT", "tcp://10.96.0.13:8080"),
];
/// Binds the root `$1` to itself, then each `$2` of the host to `$3` of the root, and nobody may
/// write to any of it.
const MOUNTS: &str = r#"
root=$1
shift
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
while [ $# -gt 0 ]; do
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done
mount -o remount,bind,ro "$root"
"#;

/// A running container. Dropped, it is killed.
pub(crate) struct Pod {
    process: Process,
    log: PathBuf,
    http: SocketAddr,
    has_user_of_its_own: bool,
}

impl Pod {
    /// Starts `/bin/ratelimit` with this environment and these mounts.
    pub(crate) fn start(
        machine: &Machine,
        environment: &[(&str, &str)],
        mounts: &[(&str, &Volume)],
    ) -> Self {
        let root = lay_out(machine, mounts);
        let mut command = Command::new("setpriv");
        command
            .env_clear()
            .envs(OF_ANY_POD)
            .envs(environment.iter().copied())
            .arg("--no-new-privs");
        if machine.has_other_users {
            // What chroot needs is what it gives up when it changes the user.
            command.args([
                "--bounding-set=-all,+setuid,+setgid,+sys_chroot",
                "chroot",
                &format!("--userspec={UID}:{UID}"),
                "--groups=",
            ]);
        } else {
            command.args([
                "unshare",
                "--user",
                &format!("--map-user={UID}"),
                &format!("--map-group={UID}"),
                "--root",
            ]);
        }
        command.arg(root).arg("/bin/ratelimit");
        let log = machine.home.join("tollgate.log");
        let process = Process::start("tollgate", command, log.clone());
        Self { process, log, http: at(8080), has_user_of_its_own: machine.has_other_users }
    }

    /// Waits until `/healthcheck` is a 200, as a startup probe does.
    pub(crate) fn wait_until_started(&mut self) {
        let http = self.http;
        self.process.wait_until_ready(|| probe(http) == Some(200));
    }

    /// What a probe gets now; `None` where nobody listens.
    pub(crate) fn health(&self) -> Option<u16> {
        probe(self.http)
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("it was started")
    }

    /// The lines of its log that are warnings or worse; without those of a machine that is busy.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let is_one = |line: &&str| {
            let is_loud = [" WARN ", " ERROR ", "panicked"].iter().any(|sign| line.contains(sign));
            is_loud && !line.contains("too little CPU")
        };
        self.log().lines().filter(is_one).map(ToOwned::to_owned).collect()
    }

    /// Fails if it may do or write anything that the deployment does not let it.
    pub(crate) fn is_confined(&self) {
        let proc = PathBuf::from(format!("/proc/{}", self.process.pid()));
        let status = fs::read_to_string(proc.join("status")).expect("it runs");
        let fields = |name: &str| -> Vec<String> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_else(|| panic!("{name}: {status}"))
                .split_whitespace()
                .map(ToOwned::to_owned)
                .collect()
        };
        if self.has_user_of_its_own {
            assert_eq!(
                [fields("Uid"), fields("Gid")],
                [[UID; 4], [UID; 4]],
                "real, effective, saved and of files"
            );
            assert_eq!(fields("Groups"), [""; 0]);
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(fields(set), ["0000000000000000"], "{set}");
        }
        assert_eq!(fields("NoNewPrivs"), ["1"]);
        let mounts = fs::read_to_string(proc.join("mountinfo")).expect("it runs");
        // Below /dev and /proc are the kernel's own.
        let own = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let own: Vec<_> = own
            .filter(|mount| !["/dev", "/proc"].iter().any(|kernel| mount[4].starts_with(kernel)))
            .collect();
        assert!(own.iter().any(|mount| mount[4] == "/"), "{mounts}");
        for mount in own {
            assert!(mount[5].split(',').any(|option| option == "ro"), "{mount:?}");
        }
    }

    /// Sends SIGTERM, as a kubelet that wants the pod gone.
    pub(crate) fn terminate(&self) {
        self.process.signal("TERM");
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait_until_ended(&mut self) -> ExitStatus {
        self.process.wait_until_ended()
    }
}

/// What the deployments' probes ask for.
fn probe(http: SocketAddr) -> Option<u16> {
    Some(http::try_get(http, "/healthcheck").ok()?.status)
}

/// GET of one of the pod's pages.
pub(crate) fn get(port: u16, path: &str) -> Reply {
    http::get(at(port), path)
}

/// Where everything is on a machine of its own.
pub(crate) fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Makes a root with what the image has, what its base has of that which we need, and the mounts.
fn lay_out(machine: &Machine, mounts: &[(&str, &Volume)]) -> PathBuf {
    let built = machine.directory("built");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tollgate"), built.join("tollgate"))
        .expect("its name is new");
    // Of no use to the binary, which is all that runs here.
    fs::write(built.join("tollgate.cdx.json"), "{}").expect("it is the test's own");
    let root = machine.directory("image");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut assemble = Command::new("deploy/image/assemble.sh");
    run(assemble.arg(built).arg(&root).current_dir(repository), "it is a shell script");

    let needed =
        run(Command::new("ldd").arg(env!("CARGO_BIN_EXE_tollgate")), "it comes with the C library");
    for library in needed.split_whitespace().filter(|word| word.starts_with('/')) {
        let there = inside(&root, library);
        fs::create_dir_all(there.parent().expect("it is a file")).expect("it is the test's own");
        fs::copy(library, there).expect("a library can be read");
    }
    for directory in ["dev", "proc", "etc"] {
        fs::create_dir(root.join(directory)).expect("the image has none");
    }
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n").expect("it is the test's own");
    fs::write(root.join("etc/hosts"), machine.hosts()).expect("it is the test's own");

    let mut mount = Command::new("sh");
    mount.args(["-euc", MOUNTS, "sh"]).arg(&root);
    for (target, volume) in mounts {
        fs::create_dir_all(inside(&root, target)).expect("it is the test's own");
        mount.arg(volume.path()).arg(target);
    }
    // As in an image, whatever this user's umask is.
    let mut open = Command::new("chmod");
    run(open.args(["-R", "a+rX"]).arg(&root), "it comes with coreutils");
    run(&mut mount, "it is a shell");
    root
}

/// Where a path of the container's is on the host.
fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
