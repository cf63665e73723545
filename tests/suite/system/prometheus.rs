//! Prometheus' own tool reads the metrics page.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::metrics::as_when_recorded;
use crate::support::redis::RedisProcess;

#[tokio::test]
async fn promtool_accepts_tollgate_metrics() {
    let redis = RedisProcess::start();
    let server = as_when_recorded(&redis, None).await;
    // The reference's names break the rules: counters without _total, capitals. Dashboards query
    // them as they are.
    let page = server.admin("/metrics");
    let is_ours = |line: &&str| {
        ["# HELP tollgate_", "# TYPE tollgate_", "tollgate_"]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let ours: Vec<&str> = page.lines().filter(is_ours).collect();
    assert!(ours.len() > 50, "{page}");
    for (text, what) in [(ours.join("\n") + "\n", "ours"), (page.clone(), "all")] {
        let child = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap_or_else(|error| {
            panic!(
                "promtool: {error}; get it by `apt-get install --no-install-recommends prometheus`"
            )
        });
        child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if what == "ours" {
            assert!(output.status.success() && said.is_empty(), "{said}");
        } else {
            // It can be read, at least, and nothing is said of any but the reference's.
            let others: Vec<&str> =
                said.lines().filter(|line| !line.starts_with("ratelimit_")).collect();
            assert!(others.is_empty(), "{others:?}");
        }
    }
}
