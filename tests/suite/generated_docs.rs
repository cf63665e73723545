//! `docs/settings.md`, `docs/metrics.md`, the tables of bounds in `docs/guarantees.md` and `docs/schema` are generated
//! from the definitions. `make generated-docs` rewrites them; these tests fail while they are out of date.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use clap::{Args as _, Command};
use serde_json::Value;
use tempfile::TempDir;
use tollgate::app::settings::Settings;

use crate::support::certificates::{Authority, KeyForm};
use crate::support::redis::RedisProcess;
use crate::support::{TestServer, eventually, read_sample, sample, tollgate, write};

mod bounds;

const SETTINGS: &str = "# Settings

Every setting is an environment variable and a flag of the same name: `GRPC_PORT` is `--grpc-port`. Flags take precedence. A
variable that is set to nothing is not set. What differs from envoyproxy/ratelimit is in [compatibility.md](compatibility.md#settings).

<!-- Generated from the definitions by `make generated-docs`. -->
";

const METRICS: &str = "# Metrics

Everything on `/metrics` of the admin port. Metrics named `ratelimit_*` are those of envoyproxy/ratelimit, also sent to statsd;
their names change with PROMETHEUS_MAPPER_YAML. Histograms have the series `_bucket`, `_sum` and `_count`.
[operations.md](operations.md) explains what to do about them.

<!-- Generated from the definitions by `make generated-docs`. -->
";

#[test]
fn settings_page_is_current() {
    let command = Settings::augment_args(Command::new("tollgate"));
    let mut headings: Vec<&str> = Vec::new();
    let mut rows: BTreeMap<&str, String> = BTreeMap::new();
    for argument in command.get_arguments() {
        let Some(name) = argument.get_env().and_then(|name| name.to_str()) else {
            continue;
        };
        let heading = argument.get_help_heading().expect("settings have a heading");
        if !headings.contains(&heading) {
            headings.push(heading);
        }
        let help = argument.get_help().expect("settings have a help text").to_string();
        // A default that depends on something else is described in the help.
        let (help, described) = match help.split_once(" [default: ") {
            Some((help, default)) => {
                (help.to_owned(), Some(default.trim_end_matches(']').to_owned()))
            }
            None => (help, None),
        };
        let default: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match described {
            Some(text) => text,
            None if default.concat().is_empty() => String::new(),
            None => format!("`{}`", default.concat()),
        };
        let value = argument.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
        let row = rows.entry(heading).or_default();
        let _ = writeln!(row, "| `{name}` | {value} | {} | {} |", cell(&default), cell(&help));
    }
    let mut page = SETTINGS.to_owned();
    for heading in headings {
        let _ = write!(
            page,
            "\n## {heading}\n\n| setting | value | default | description |\n|---|---|---|---|\n{}",
            rows[heading]
        );
    }
    assert_current("docs/settings.md", &page);
}

/// Metrics of rules exist from the first request.
const RULES: &str = "
domain: d
descriptors:
  - key: turn
    rate_limit: {unit: second, requests_per_unit: 100}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 10s, warn_at: 1%}}
  - key: cheap
    value: fixed
    rate_limit: {unit: year, requests_per_unit: 0}
    metadata: {tollgate: {on_limit: degrade}}
  - key: hot
    rate_limit: {unit: hour, requests_per_unit: 1000}
    metadata: {tollgate: {consistency: leased}}
";

/// One process with files, the memory store and a trial, one with Redis, xDS, TLS and traces: together they
/// register every metric but those of leases, which one on a Redis has. Nothing answers at the other addresses.
#[tokio::test]
async fn metrics_page_is_current() {
    let authority = Authority::new();
    let identity = authority.sign("server", "DNS:localhost", KeyForm::Pkcs8);
    let secrets = TempDir::new().expect("a temporary directory");
    let local = TestServer::with_rules(RULES)
        .with_env("TRIAL_UPSTREAM", "127.0.0.1:9")
        .with_env("TRIAL_ENFORCE_PERCENT", "100")
        .start();
    local.client().await.ask("d", &[("cheap", "fixed")]).await;
    eventually("a decision of the trial is compared", async || {
        local.admin("/metrics").contains("tollgate_trial_decisions_total")
    })
    .await;
    let turn = r#"{"entries":[{"key":"turn"}]}"#;
    // Of three at once two have to wait, however slow the machine is.
    for (domain, descriptors) in [
        ("d", [turn; 3].join(",")),
        ("d", r#"{"entries":[{"key":"cheap","value":"fixed"}]}"#.to_owned()),
        ("nowhere", turn.to_owned()),
    ] {
        let body = format!(r#"{{"domain":"{domain}","descriptors":[{descriptors}]}}"#);
        assert_eq!(local.json(&body).status, 200);
    }
    let password = secrets.path().join("password");
    write(&password, "s3cret\n");
    let remote = TestServer::with_xds("127.0.0.1:9")
        .with_env("REDIS_URL", "127.0.0.1:9")
        .with_env("REDIS_AUTH_FILE", &password.display().to_string())
        .with_env("LOCAL_CACHE_SIZE_IN_BYTES", "100000")
        .with_env("TRACING_ENABLED", "true")
        .with_env("GRPC_SERVER_USE_TLS", "true")
        .with_env("GRPC_SERVER_TLS_CERT", &identity.cert.display().to_string())
        .with_env("GRPC_SERVER_TLS_KEY", &identity.key.display().to_string())
        .start();
    let redis = RedisProcess::start();
    let leased = TestServer::with_rules(RULES).with_env("REDIS_URL", &redis.url()).start();
    let mut client = leased.client().await;
    eventually("hits are taken ahead", async || {
        client.ask("d", &[("hot", "")]).await;
        let page = leased.admin("/metrics");
        page.contains("tollgate_rule_lease_hits_total")
    })
    .await;
    let mut rows = BTreeMap::new();
    for server in [local, remote, leased] {
        rows.append(&mut families(&server.admin("/metrics")));
    }
    let mut page = METRICS.to_owned();
    page += "\n| metric | type | labels | description |\n|---|---|---|---|\n";
    for (name, (kind, labels, help)) in rows {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {} |", labels.join(", "), cell(&help));
    }
    assert_current("docs/metrics.md", &page);
}

#[test]
fn schemas_are_current_and_describe_keys_as_the_pages_do() {
    for (kind, page, rows) in [
        ("rules", "docs/rules.md", 28),
        ("tests", "docs/testing.md", 13),
        ("overlay", "docs/rules.md", 0),
    ] {
        let ran = tollgate(&["schema", kind]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_current(&format!("docs/schema/{kind}.json"), &ran.stdout);
        let keys = described(&ran.json());
        let text = read_sample(page);
        let tables = text.split("\n\n").filter(|part| part.starts_with("| key"));
        let described: Vec<&str> = tables.flat_map(|table| table.lines().skip(2)).collect();
        let differing = described.iter().filter(|row| {
            let name = row.split('`').nth(1).unwrap_or_default();
            let row = row.to_lowercase();
            let key = name.rsplit('.').next();
            let mut meanings = keys.iter().filter(|(name, _)| Some(&**name) == key);
            !meanings.any(|(_, meaning)| row.contains(&meaning.to_lowercase()))
        });
        let differing: Vec<_> = differing.collect();
        assert!(rows == 0 || differing.is_empty(), "{page}: {differing:#?}");
        assert!(described.len() >= rows, "{page}: {}", described.len());
    }
}

/// Keys and their descriptions in a schema.
fn described(schema: &Value) -> Vec<(String, String)> {
    let below = match schema {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    let keys = schema["properties"].as_object().into_iter().flatten();
    let keys = keys
        .filter_map(|(key, value)| Some((key.clone(), value["description"].as_str()?.to_owned())));
    keys.chain(below.into_iter().flat_map(described)).collect()
}

/// The type, label names and help text of each metric of a page.
fn families(page: &str) -> BTreeMap<String, (String, BTreeSet<String>, String)> {
    let mut families: BTreeMap<String, (String, BTreeSet<String>, String)> = BTreeMap::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            name.clone_into(&mut current);
            help.clone_into(&mut families.entry(current.clone()).or_default().2);
        } else if let Some((_, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            kind.clone_into(&mut families.entry(current.clone()).or_default().0);
        } else if let Some((_, labels)) = line.split_once('{') {
            let names = labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0));
            let names = names.filter(|name| *name != "le").map(str::to_owned);
            families.entry(current.clone()).or_default().1.extend(names);
        }
    }
    families
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn assert_current(path: &str, page: &str) {
    if std::env::var_os("REWRITE").is_some() {
        fs::write(sample(path), page).expect("a page that can be written");
    }
    assert!(read_sample(path) == page, "{path} is out of date: run `make generated-docs`");
}
