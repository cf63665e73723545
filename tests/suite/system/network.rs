//! The process in a network of its own, with a DNS server of the test's: Linux network and mount
//! namespaces, as root or with user namespaces.

use std::fs;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::{TestServer, limit_of, look_until};
use crate::system::namespaces::unshare_shell;

/// Runs a program with a DNS server that takes queries and never responds. The server ends with the
/// program, which has the shell's number.
const WITH_A_SILENT_DNS_SERVER: &str = "\
ip link set lo up && mount --bind resolv.conf /etc/resolv.conf || exit
setpriv --pdeathsig KILL python3 -c '
import signal, socket
silent = socket.socket(type=socket.SOCK_DGRAM)
silent.bind((\"127.0.0.1\", 53))
signal.pause()' &
until grep -q ':0035 ' /proc/net/udp; do sleep 0.1; done
exec \"$0\" \"$@\"";
/// Longer than the test waits.
const RESOLV_CONF: &str = "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n";

#[tokio::test]
async fn a_dns_server_that_does_not_respond_does_not_delay_the_end() {
    let server = TestServer::with_rules(&limit_of(1)).with_env("REDIS_URL", "redis.test:6379");
    let server = server.with_env("USE_STATSD", "true").with_env("STATSD_HOST", "statsd.test");
    let server = server
        .with_env("DRAIN_PERIOD", "0s")
        .with_env("SHUTDOWN_TIMEOUT", "3s")
        .run_by(&unshare_shell(&["--net", "--mount"], WITH_A_SILENT_DNS_SERVER));
    fs::write(server.rules().with_file_name("resolv.conf"), RESOLV_CONF)
        .expect("a file can be written");
    let mut server = server.start();
    let tasks = format!("/proc/{}/task", server.pid());
    look_until("the store and the exporter look names up", || {
        let names = fs::read_dir(&tasks)
            .expect("it runs")
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name == "main-blocking\n").count() >= 2
    });

    let begun = Instant::now();
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0), "{}", server.log());
    let taken = begun.elapsed();
    let bound = Duration::from_secs(15);
    assert!(taken < bound, "it ended after {taken:?}; a look-up takes two minutes and a half");
}
