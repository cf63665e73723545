//! Istio's `samples/ratelimit`, with our image: the Deployment, its ConfigMap, and the EnvoyFilters
//! that ask it.

use std::net::SocketAddr;

use crate::e2e::env::envoy::{self, Envoy};
use crate::e2e::system::deployments::machine::{self, Machine};
use crate::e2e::system::deployments::pod::{Pod, at, get};
use crate::e2e::system::deployments::sample::{Sample, indented};
use crate::support::http::{self, Reply};
use crate::support::process::look_until;
use crate::support::redis::RedisProcess;
use crate::support::volume::Volume;

/// Of the sample, to the letter.
const ENVIRONMENT: [(&str, &str); 10] = [
    ("LOG_LEVEL", "debug"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis:6379"),
    ("USE_STATSD", "false"),
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("HOST", "::"),
    ("GRPC_HOST", "::"),
];
const COMMAND: &str = r#"command: ["/bin/ratelimit"]"#;
const RULES_DIRECTORY: &str = "/data/ratelimit/config";
const RULES_FILE: &str = "config.yaml";
/// As the EnvoyFilters call the Service.
const SERVICE: &str = "ratelimit.default.svc.cluster.local";
/// The same, where its cluster has IPv6 alone.
const SERVICE_BY_IPV6: &str = "ratelimit.default.svc.ipv6.local";
const NAMES: [(&str, &str); 3] =
    [("redis", "127.0.0.1"), (SERVICE, "127.0.0.1"), (SERVICE_BY_IPV6, "::1")];

/// What the test says is Istio's is what users are told to apply.
#[test]
fn the_sample_that_users_apply_is_istios() {
    let sample = Sample::read("istio/rate-limit-service.yaml");
    assert_eq!(
        sample.environment(COMMAND),
        ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    assert_eq!(
        sample.below(COMMAND, "volumeMounts:"),
        format!("- name: config-volume\n  mountPath: {RULES_DIRECTORY}\n")
    );
}

#[test]
fn a_gateway_is_limited_by_the_sample_with_another_image() {
    machine::on_its_own(&NAMES, |machine| {
        let _redis = RedisProcess::builder().start_at(6379);
        let rules = Sample::read("istio/rate-limit-service.yaml").below("data:", "config.yaml: |");
        let config = Volume::new(machine.directory("config"), &[(RULES_FILE, &rules)]);
        let mut pod = Pod::start(machine, &ENVIRONMENT, &[(RULES_DIRECTORY, &config)]);
        pod.wait_until_started();
        pod.is_confined();

        // Three requests each, since a minute may end between two of them. Once a minute means once
        // for all Envoys.
        let gateway = Gateway::start(machine, SERVICE);
        let statuses: Vec<u16> = (0..3).map(|_| gateway.get("/").status).collect();
        assert!(
            statuses[0] == 200 && statuses.contains(&429),
            "once a minute is answered with {statuses:?}"
        );
        assert_eq!(gateway.get("/productpage").status, 200, "any other path has a hundred");
        drop(gateway);
        let gateway = Gateway::start(machine, SERVICE_BY_IPV6);
        let statuses: Vec<u16> = (0..3).map(|_| gateway.get("/").status).collect();
        assert!(statuses.contains(&429), "and by IPv6 with {statuses:?}");
        assert_eq!(gateway.get("/productpage").status, 200);

        assert_eq!(
            limits(),
            [
                "echo-ratelimit.PATH: unit=MINUTE requests_per_unit=100",
                "echo-ratelimit.PATH_/: unit=MINUTE requests_per_unit=1"
            ]
        );
        config.replace(&[(
            RULES_FILE,
            &rules.replace("requests_per_unit: 1\n", "requests_per_unit: 1000\n"),
        )]);
        look_until("the new ConfigMap is in force", || limits()[1].ends_with("=1000"));
        assert_eq!(gateway.get("/").status, 200, "a thousand a minute");

        let _ = http::post(at(8080), "/json", "no request");
        look_until("LOG_LEVEL is debug", || pod.log().contains(" DEBUG invalid body of /json"));
        assert!(!pod.log().contains("frame="), "frames of the wire are not logged: {}", pod.log());
        pod.terminate();
        assert!(pod.wait_until_ended().success());
        assert_eq!(
            pod.complaints(),
            [""; 0],
            "no warnings with the default settings of the sample"
        );
    });
}

/// An Envoy with what Istio makes of the EnvoyFilters.
struct Gateway {
    ingress: SocketAddr,
    _envoy: Envoy,
}

impl Gateway {
    const ADMIN: u16 = 15_000;
    const INGRESS: u16 = 8_088;

    /// Starts it, asking the service of that name.
    fn start(machine: &Machine, service: &str) -> Self {
        let filters = Sample::read("istio/envoy-filter.yaml");
        let [filter, cluster, virtual_host] = ["HTTP_FILTER", "CLUSTER", "VIRTUAL_HOST"]
            .map(|what| filters.below(&format!("applyTo: {what}"), "value:"));
        let config = include_str!("istio.yaml");
        let config = [
            ("# HTTP_FILTER", as_item(&filter)),
            ("# CLUSTER", as_item(&cluster)),
            ("# VIRTUAL_HOST", virtual_host),
        ]
        .iter()
        .fold(config.to_owned(), |config, (mark, text)| spliced(&config, mark, text));
        let config = envoy::patient(&envoy::replaced(&config, SERVICE, service));
        Self {
            ingress: at(Self::INGRESS),
            _envoy: Envoy::start_with(&config, at(Self::ADMIN), &machine.home),
        }
    }

    /// A request from outside of the mesh.
    fn get(&self, path: &str) -> Reply {
        http::get(self.ingress, path)
    }
}

/// What `/rlconfig` says, without the flags, in order.
fn limits() -> Vec<String> {
    let mut limits: Vec<String> = get(6070, "/rlconfig")
        .body
        .lines()
        .map(|line| line.split(',').next().unwrap_or(line).to_owned())
        .collect();
    limits.sort();
    limits
}

/// A block as an item of a list.
fn as_item(block: &str) -> String {
    format!("- {}", indented(block, 2).trim_start())
}

/// The text with a block in place of the line that is `mark`, as deep as that.
fn spliced(text: &str, mark: &str, block: &str) -> String {
    let line = text
        .lines()
        .find(|line| line.trim() == mark)
        .unwrap_or_else(|| panic!("there is no `{mark}`"));
    let depth = line.len() - line.trim_start().len();
    text.replace(&format!("{line}\n"), &indented(block, depth))
}
