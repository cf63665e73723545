//! What Envoy Gateway 1.9 deploys, with our image: its environment, its certificates, rules by xDS
//! from the server that it is made of, and an Envoy as it configures it.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::e2e::env::envoy::{self, Envoy};
use crate::e2e::env::http::Request;
use crate::e2e::system::deployments::machine::{self, Machine};
use crate::e2e::system::deployments::pod::{Pod, at, get};
use crate::e2e::system::deployments::sample::Sample;
use crate::support::certificates::{Authority, Identity, KeyForm};
use crate::support::http::{Connection, Reply};
use crate::support::process::look_until;
use crate::support::redis::RedisProcess;
use crate::support::volume::Volume;
use crate::support::xds::{ControlPlane, NODE};

/// In every one of its deployments, to the letter, with metrics on as they are unless they are
/// switched off.
const ENVIRONMENT: [(&str, &str); 23] = [
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("LOG_LEVEL", "info"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
    ("CONFIG_GRPC_XDS_NODE_ID", NODE),
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis.redis.svc.cluster.local:6379"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_ADDR", ":19001"),
    ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
];
const NAMES: [(&str, &str); 3] = [
    ("envoy-gateway", "127.0.0.1"),
    ("redis.redis.svc.cluster.local", "127.0.0.1"),
    ("envoy-ratelimit.envoy-gateway-system.svc.cluster.local", "127.0.0.1"),
];

#[test]
fn a_gateway_is_limited_as_its_policies_say_with_the_image_changed() {
    machine::on_its_own(&NAMES, |machine| {
        let mut env = Env::start(machine, &ENVIRONMENT, &[]);
        assert_eq!(
            env.pod.health(),
            Some(200),
            "before there is any rule, as FORCE_START_WITHOUT_INITIAL_CONFIG has it"
        );
        env.pod.is_confined();
        env.serve(&rules());

        // Three a year, and all clients are one. Envoy tells how many are left, and not that it was
        // a limit that refused.
        for remaining in [2, 1, 0] {
            let passed = env.get("/cidr");
            assert_eq!((passed.status, passed.number("x-ratelimit-remaining")), (200, remaining));
        }
        let refused = env.get("/cidr");
        assert_eq!((refused.status, refused.header("x-envoy-ratelimited")), (429, None));
        assert_eq!(refused.header("x-ratelimit-limit"), Some("3, 3;w=31536000"));
        for (path, statuses, why) in [
            ("/elsewhere", [200, 200, 429], "all but 192.0.2.0/24"),
            ("/shadow", [200; 3], "one a year, in shadow mode"),
            ("/cost", [200, 200, 429], "twelve a year, at five each"),
            ("/own", [200, 200, 429], "the client's own limit stands for the rule's hundred"),
        ] {
            assert_eq!(env.statuses(path, 3), statuses, "{path}: {why}");
        }

        let as_user = |user, organization| {
            let headers = [("x-user-id", user), ("x-org-id", organization)];
            env.send(Request::get("/headers").with(&headers)).status
        };
        let statuses = ["a", "b", "a"].map(|organization| as_user("one", organization));
        assert_eq!(statuses, [200, 200, 429]);
        let statuses = ["a"; 3].map(|organization| as_user("two", organization));
        assert_eq!(statuses, [200; 3], "nobody else is meant");
        assert_eq!(
            env.get("/tokens").status,
            200,
            "five bytes a year: the first request has not sent any yet"
        );
        look_until("three bytes, and three more, are more than five", || {
            env.get("/tokens").status == 429
        });

        // One limit for two routes, and for each user; the second route has one of its own besides,
        // and its filter asks first.
        for (path, status) in [
            ("/shared?user=ann", 200),
            ("/shared/too?user=ann", 200),
            ("/shared?user=ann", 429),
            ("/shared?user=bob", 200),
            ("/shared/too?user=bob", 429),
        ] {
            assert_eq!(env.get(path).status, status, "{path}");
        }

        for key2 in [
            "masked_remote_address_0_0_0_0/0",
            "masked_remote_address_invert_192_0_2_0/24",
            "header_x-user-id_one",
            "user",
        ] {
            assert_eq!(refusals_of(key2), 1, "{key2}");
        }

        // What `egctl config envoy-ratelimit` shows, through a forwarded port.
        let limits = get(6070, "/rlconfig").body;
        let route = "httproute/default/cidr/rule/0/match/0/*";
        let limit = format!(
            "default/eg/http.{route}_{route}.masked_remote_address_0.0.0.0/0: unit=YEAR requests_per_unit=3, shadow_mode: false"
        );
        assert!(limits.lines().any(|line| line.starts_with(&limit)), "{limits}");
        assert!(
            limits
                .lines()
                .any(|line| line.contains("/shadow/") && line.contains("shadow_mode: true")),
            "{limits}"
        );

        env.ends_in_order();
        assert_eq!(
            env.pod.complaints(),
            [""; 0],
            "who changes the image alone has nothing to look into"
        );
    });
}

#[test]
fn the_sample_overlay_chooses_the_algorithm_of_generated_rules() {
    machine::on_its_own(&NAMES, |machine| {
        let sample = Sample::read("envoy-gateway/overlay.yaml");
        let overlay = Volume::new(
            machine.directory("overlay"),
            &[("overlay.yaml", &sample.below("name: tollgate-overlay", "overlay.yaml: |"))],
        );
        let more = sample.environment("container:");
        let environment: Vec<_> = ENVIRONMENT
            .into_iter()
            .chain(more.iter().map(|(name, value)| (&**name, &**value)))
            .collect();
        assert!(
            sample
                .below("container:", "volumeMounts:")
                .contains("mountPath: /etc/tollgate/overlay\n")
        );
        let env = Env::start(machine, &environment, &[("/etc/tollgate/overlay", &overlay)]);
        env.serve(&rules());
        // The policy allows two a year. The overlay makes that a token bucket for twenty at once.
        assert_eq!(env.statuses("/elsewhere", 10), [200; 10]);
        assert_eq!(env.pod.complaints(), [""; 0], "the sample needs no other setting");
    });
}

/// A cluster in which Envoy Gateway runs.
struct Env {
    pod: Pod,
    control_plane: ControlPlane,
    envoy: Envoy,
    ingress: SocketAddr,
    _redis: Option<RedisProcess>,
    _authority: Authority,
}

impl Env {
    const ADMIN: u16 = 19_000;
    const INGRESS: u16 = 10_080;
    const CONTROL_PLANE: u16 = 18_001;

    /// Starts all of it, with more mounts than those of the deployment. There are no rules yet.
    fn start(machine: &Machine, environment: &[(&str, &str)], mounts: &[(&str, &Volume)]) -> Self {
        let authority = Authority::with_key(KeyForm::Pkcs1);
        let [gateway, service] = ["envoy-gateway", "envoy-ratelimit"].map(|name| {
            let domains = [
                "",
                ".envoy-gateway-system",
                ".envoy-gateway-system.svc",
                ".envoy-gateway-system.svc.cluster.local",
            ];
            authority.sign(
                name,
                &domains.map(|domain| format!("DNS:{name}{domain}")).join(","),
                KeyForm::Pkcs1,
            )
        });
        let envoy = authority.sign("envoy", "DNS:*.envoy-gateway-system", KeyForm::Pkcs1);

        let control_plane = ControlPlane::start_with_tls_at(at(Self::CONTROL_PLANE), &gateway);
        // Limits of a year on a Redis without AOF are a warning.
        let redis = RedisProcess::builder().with_arguments(&["--appendonly", "yes"]).start_at(6379);
        // That ConfigMap is optional: where there is none, an empty directory is mounted.
        let [certs, mapping] = [
            secret(machine, "rate-limit-certs", &service),
            Volume::new(machine.directory("mapping"), &[]),
        ];
        let mut pod = Pod::start(
            machine,
            environment,
            &[&[("/certs", &certs), ("/etc/statsd-exporter", &mapping)], mounts].concat(),
        );
        pod.wait_until_started();

        let certs = secret(machine, "envoy-certs", &envoy);
        let config = envoy::replaced(
            include_str!("envoy_gateway.yaml"),
            "CERTS",
            certs.path().to_str().expect("a plain name"),
        );
        let envoy = Envoy::start_with(&config, at(Self::ADMIN), &machine.home);
        Self {
            pod,
            control_plane,
            envoy,
            ingress: at(Self::INGRESS),
            _redis: redis,
            _authority: authority,
        }
    }

    /// Gives out rules, and waits until they are taken.
    fn serve(&self, rules: &Value) {
        self.control_plane.serve("1", rules);
        look_until("the rules are taken", || self.control_plane.newest()["version"] == "1");
        assert_eq!(self.control_plane.newest()["error"], "");
    }

    /// A client's request.
    fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path))
    }

    /// Any request of a client's.
    fn send(&self, request: Request<'_>) -> Reply {
        let mut connection = Connection::open(self.ingress);
        request.send(&mut connection).expect("Envoy answers")
    }

    /// What so many requests, one after the other, are answered with.
    fn statuses(&self, path: &str, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.get(path).status).collect()
    }

    /// The pod is told to end: its probes say so at once, calls are answered meanwhile, and it is
    /// gone long before the 300 s are over that it is given. Envoy has had a verdict on every
    /// request.
    fn ends_in_order(&mut self) {
        self.pod.terminate();
        look_until("the probes say so", || self.pod.health() == Some(500));
        assert_eq!(self.get("/elsewhere").status, 429, "Envoys still ask");
        assert!(self.pod.wait_until_ended().success());
        let errors = self.envoy.stats().get("cluster.backend.ratelimit.error").copied();
        assert_eq!(errors.unwrap_or(0), 0, "requests without a verdict");
    }
}

/// How many hits were refused of rules with this second key, as Envoy Gateway's own tests ask
/// Prometheus for it.
fn refusals_of(key2: &str) -> u64 {
    let page = get(19_001, "/metrics").body;
    assert!(page.contains("# TYPE ratelimit_service_rate_limit_over_limit counter"), "{page}");
    let label = format!(r#"key2="{key2}""#);
    let is_it = |line: &&str| {
        line.starts_with("ratelimit_service_rate_limit_over_limit{") && line.contains(&label)
    };
    let counted = page.lines().find(is_it).and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
    counted.unwrap_or_else(|| panic!("no over_limit of {key2}: {page}"))
}

/// The Secret with a certificate, as the job of Envoy Gateway's that makes them has it.
fn secret(machine: &Machine, name: &str, identity: &Identity) -> Volume {
    let read = |path| fs::read_to_string(path).expect("openssl has written it");
    let key = read(&identity.key);
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"), "PKCS#1");
    Volume::new(
        machine.directory(name),
        &[("tls.crt", &read(&identity.cert)), ("tls.key", &key), ("ca.crt", &read(&identity.ca))],
    )
}

/// As Envoy Gateway makes them of policies: a domain for the listener and one for each policy that
/// is shared; below a route's name (or the shared rule's) a chain with the limit at its end, and
/// shadow mode on every link.
fn rules() -> Value {
    let route = |name: &str, chain: Value| {
        let name = format!("httproute/default/{name}/match/0/*");
        json!({"key": name, "value": name, "descriptors": [chain]})
    };
    let a_year = |requests: u32| json!({"unit": "YEAR", "requests_per_unit": requests});
    let everything = |requests| json!({"key": "rule-0-match--1", "value": "rule-0-match--1", "rate_limit": a_year(requests)});
    let shadow = json!({"key": "rule-0-match--1", "value": "rule-0-match--1", "rate_limit": a_year(1), "shadow_mode": true});
    let organizations = json!({"key": "rule-0-match-1", "rate_limit": a_year(1)});
    json!([
        {"name": "default/eg/http", "domain": "default/eg/http", "descriptors": [
            route("cidr/rule/0", json!({"key": "masked_remote_address", "value": "0.0.0.0/0", "rate_limit": a_year(3)})),
            route("elsewhere/rule/0", json!({"key": "masked_remote_address", "value": "invert:192.0.2.0/24", "rate_limit": a_year(2)})),
            route("headers/rule/0", json!({"key": "header_x-user-id", "value": "one", "descriptors": [organizations]})),
            route("shadow/rule/0", shadow),
            route("cost/rule/0", everything(12)),
            route("tokens/rule/0", everything(5)),
            route("own/rule/0", everything(100)),
            route("shared/rule/1", everything(1)),
        ]},
        {"name": "default/everybody", "domain": "default/everybody", "descriptors": [
            {"key": "default/everybody/rule/0", "value": "default/everybody/rule/0", "descriptors": [{"key": "user", "rate_limit": a_year(2)}]},
        ]},
    ])
}
