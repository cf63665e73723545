//! Clients that ask for large pages and rules files without reading the responses.

use crate::support::http;
use crate::support::{Builder, TestServer};
use crate::system::hostile::UnderAttack;
use crate::system::hostile::admin::{Attack, assert_live};

/// Connections, and the addresses that they come from.
const CROWDS: [(usize, u8); 2] = [(30, 1), (120, 8)];
/// Requests that a connection sends at once.
const PIPELINED: usize = 5;

/// Pages whose size depends on the rules.
const PAGES: [&str; 9] = [
    "/console/file?name=rules.yaml",
    "/console/file?name=rules.yaml&text=no",
    "/api/v1/rules/rules.yaml",
    "/api/v1/rules",
    "/rlconfig?format=json",
    "/rlconfig",
    "/metrics",
    "/stats",
    "/console/rules?q=limited",
];

/// A domain with the limit of the client beside the attack, and this number of others.
fn rules(count: usize) -> String {
    let rule = |number| {
        format!(
            "  - key: client\n    value: \"limited-{number:08}\"\n    rate_limit: {{unit: hour, requests_per_unit: 100}}\n"
        )
    };
    let rules: String = (0..count).map(rule).collect();
    format!(
        "domain: d\ndescriptors:\n  - {{key: k, rate_limit: {{unit: second, requests_per_unit: 1000000000}}}}\n{rules}"
    )
}

fn server(rules: &str) -> Builder {
    TestServer::with_rules(rules).with_envs(&[("WORKERS", "1"), ("DRAIN_PERIOD", "0s")])
}

/// Has crowds ask for each page. An operator gets it, or the reason why not, and probes are answered.
async fn attack(attacked: UnderAttack, pages: &[&'static str]) {
    let admin = attacked.server.admin;
    for page in pages {
        for (connections, addresses) in CROWDS {
            let attack = Attack::Pipelined(page, PIPELINED);
            let _unread = attack.start_few(admin, connections, addresses);
            let status = http::get(admin, page).status;
            assert!(matches!(status, 200 | 503), "{page}: {status}");
            assert_live(&attacked.server, page);
            assert_eq!(http::get(admin, "/metrics").status, 200, "beside {page}");
        }
    }
    attacked.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_four_thousand_rules_use_little_memory() {
    attack(UnderAttack::start(server(&rules(4_000))), &PAGES).await;
}

/// The pages that grow with every rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_33_thousand_rules_use_little_memory() {
    let attacked = UnderAttack::beside(server(&rules(33_000)).start());
    attack(attacked, &[PAGES[0], PAGES[2], PAGES[4]]).await;
}

/// With quotes, which take six times the bytes in HTML.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_large_files_use_little_memory() {
    for bytes in [1 << 20, 8 << 20] {
        let mut text = rules(1);
        let comments = "# \"\"\"\"\"\"\"\"\"\"\"\"\n".repeat(bytes / 15);
        text += &comments[..bytes - text.len()];
        attack(UnderAttack::start(server(&text)), &PAGES[..4]).await;
    }
}
