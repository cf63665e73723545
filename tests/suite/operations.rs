//! Runs the commands of docs/redis.md and docs/operations.md, and checks the figures of the soak in
//! benches/README.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use redis::Value;
use tollgate::limiter::fallback::failed_calls;
use tollgate::telemetry::metric::Metrics;

use crate::support::cluster::ClusterProcess;
use crate::support::counting::{ALGORITHMS, answered_by_redis, rules};
use crate::support::process::look_for;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::{Options, SentinelProcess};
use crate::support::{Builder, TestServer, limit_of, look_until, request};

/// Callers, of which more hold a place than may.
const CALLERS: [&str; 4] = ["a", "b", "c", "d"];
/// Who asks the sentinels; the last word is all that it may do.
const OF_SENTINELS: &str = "tollgate on >s3cret ~* &* -@all +sentinel|get-master-addr-by-name";

#[tokio::test]
async fn redis_acl_of_the_page_suffices_to_count() {
    let redis = RedisProcess::start();
    allow(&redis);
    // What was not sent yet has to be sent whole, which takes another permission than the rest.
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    let server = as_user(&redis.address()).start();
    count_in_every_way(&server).await;
    refused_nothing(&redis);
}

#[tokio::test]
async fn redis_acl_of_the_page_suffices_on_a_cluster() {
    let cluster = ClusterProcess::start();
    cluster.living().for_each(allow);
    let server = as_user(&cluster.url()).with_env("REDIS_TYPE", "cluster").start();
    count_in_every_way(&server).await;
    let key = cluster.keys("*:log:*").pop().expect("a log was written");
    let slot = cluster.slot_of(&key);
    let migration = cluster.begin_to_migrate(slot);
    migration.move_keys();
    count_in_every_way(&server).await;
    migration.finish();
    count_in_every_way(&server).await;
    let redirected = |kind: &str| {
        server
            .metric(&format!("tollgate_store_redirects_total{{kind=\"{kind}\"}}"))
            .unwrap_or_default()
    };
    assert!(
        redirected("ask") > 0.0 && redirected("moved") > 0.0,
        "it has to be sent elsewhere to be allowed to go there"
    );
    cluster.living().for_each(refused_nothing);
}

#[tokio::test]
async fn redis_acl_of_the_page_suffices_with_sentinels() {
    let deployment =
        SentinelProcess::with(Options { sentinel_user: Some(OF_SENTINELS), ..Options::default() });
    let permission = OF_SENTINELS.split_whitespace().last().expect("there is one");
    assert!(
        redis_page().contains(&format!("needs `{permission}`")),
        "the page names what a user of the sentinels needs"
    );
    allow(deployment.master());
    let server = as_user(&deployment.url())
        .with_env("REDIS_TYPE", "sentinel")
        .with_env("REDIS_SENTINEL_AUTH", "tollgate:s3cret")
        .start();
    count_in_every_way(&server).await;
    refused_nothing(deployment.master());
}

#[test]
fn page_names_every_redis_command_that_is_sent() {
    let page: BTreeSet<String> = words_after("ACL SETUSER tollgate")
        .iter()
        .filter_map(|word| word.strip_prefix('+'))
        .map(base)
        .collect();
    // PING and SUBSCRIBE are sent by the library, and the script by either of two names, which are
    // no constants of a command.
    let mut sent: BTreeSet<String> =
        ["ping", "subscribe", "eval", "evalsha"].map(str::to_owned).into();
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&file).expect("a file of the page");
        let code = text.split("#[cfg(test)]").next().expect("there is always a first");
        for beginning in ["redis.call('", "redis.pcall('", "cmd(\""] {
            sent.extend(
                code.split(beginning)
                    .skip(1)
                    .map(|rest| rest.split(['\'', '"']).next().expect("there is always a first"))
                    .map(base),
            );
        }
    }
    // What sentinels are asked is for a user of theirs.
    sent.remove("sentinel");
    assert_eq!(page, sent);
}

#[test]
fn page_and_help_define_the_error_counter_alike() {
    let metric = "ratelimit_service_should_rate_limit_error";
    let metrics = Metrics::new();
    failed_calls("redis_error", &metrics);
    let exposed = metrics.page();
    let help = exposed
        .lines()
        .find_map(|line| line.strip_prefix(&format!("# HELP {metric} ")))
        .expect("it has a help");
    let page = page();
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{metric}{{err_type}}` |")))
        .expect("the page has a row");
    let definition = row.split('|').nth(3).expect("a third column").trim().replace('`', "");
    assert_eq!(help.to_lowercase(), definition.to_lowercase() + ".");
}

#[test]
fn figures_of_the_soak_match_its_picture() {
    let page = read("benches/README.md");
    let picture = read("docs/images/soak.svg");
    let between = |text: &str, begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("there is no {begin}"));
        let (inner, _) = rest.split_once(end).unwrap_or_else(|| panic!("there is no {end}"));
        inner.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let figures = between(
        &page,
        "<!-- figures of the soak, written by benches/soak_picture.py -->",
        "<!-- end of the figures -->",
    );
    assert_eq!(figures, between(&picture, "<desc>", "</desc>"));
    // What a reader sees in the picture.
    let shown = between(&picture, "something broken every ten: ", " requests answered");
    let (answered, sent) = shown.split_once(" of ").expect("it is a part of a whole");
    let (before, _) = picture
        .split_once(" after 20 ms</text>")
        .expect("the picture has the number of late answers");
    let (_, late) = before.rsplit_once('>').expect("a text begins with its tag");
    for words in [
        format!("{sent} requests sent, {answered} answered"),
        format!("{late} answers came after 20 ms"),
    ] {
        assert!(figures.contains(&words), "{words} is not in: {figures}");
    }
}

/// What the page looks for with `grep`: in the log of a Deployment, or on a page of the admin port.
fn looked_for() -> (BTreeSet<String>, BTreeSet<(String, String)>) {
    let page = page().replace("\\|", "|");
    let (mut of_log, mut of_pages) = (BTreeSet::new(), BTreeSet::new());
    for line in page.lines() {
        let Some((source, rest)) = line.split_once(" | grep ") else {
            continue;
        };
        let grep = rest.split("   ").next().unwrap_or_default().split('`').next();
        let grep = grep.unwrap_or_default().split(" #").next().unwrap_or_default().trim();
        if source.ends_with("kubectl logs $D") {
            of_log.insert(grep.to_owned());
        } else if let Some((_, path)) = source.rsplit_once("localhost:6070") {
            of_pages.insert((path.to_owned(), grep.to_owned()));
        }
    }
    (of_log, of_pages)
}

/// What `grep` finds in a text, with arguments as a shell reads them.
fn found(grep: &str, text: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("printf %s \"$TEXT\" | grep {grep}")]).env("TEXT", text);
    let output = command.output().expect("there is a shell");
    String::from_utf8(output.stdout).expect("it is text")
}

#[tokio::test]
async fn commands_of_the_page_find_what_they_look_for() {
    let unreachable = TestServer::with_rules(&limit_of(1)).with_env("REDIS_URL", "127.0.0.1:1");
    let undiscovered = TestServer::with_rules(&limit_of(1))
        .with_env("REDIS_URL", "mymaster,127.0.0.1:1")
        .with_env("REDIS_TYPE", "sentinel");
    let redis = RedisProcess::start();
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let failing = TestServer::with_rules(&limit_of(9)).with_env("REDIS_URL", &redis.url());
    let warning = "
domain: llm
descriptors:
  - {key: team, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {warn_at: 50%}}}
";
    let servers = [unreachable, undiscovered, failing, TestServer::with_rules(warning)];
    let servers = servers.map(Builder::start);
    let (of_log, of_pages) = looked_for();
    assert!(of_log.len() > 3 && of_pages.len() > 4, "{of_log:?} {of_pages:?}");
    for grep in of_log {
        look_for(&format!("grep {grep} finds a line of a log"), || {
            for server in &servers {
                server.json(r#"{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}"#);
                server.json(r#"{"domain":"llm","descriptors":[{"entries":[{"key":"team","value":"search"}]}]}"#);
            }
            servers.iter().any(|server| !found(&grep, &server.log()).is_empty()).then_some(())
        });
    }
    let mut client = servers[3].client().await;
    client.ask("llm", &[("team", "search")]).await;
    for (path, grep) in of_pages {
        let page = servers[3].admin(&path);
        assert!(!found(&grep, &page).is_empty(), "grep {grep} finds nothing in {path}:\n{page}");
    }
}

/// The command that a permission is for, or that is sent.
fn base(name: &str) -> String {
    name.split('|').next().expect("there is always a first").to_lowercase()
}

/// All files of Rust and Lua in a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .expect("a file of the page")
        .map(|entry| entry.expect("it can be read").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_source = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "rs" || extension == "lua")
    };
    files
        .into_iter()
        .filter(is_source)
        .chain(folders.iter().flat_map(|folder| sources(folder)))
        .collect()
}

/// Makes the user of the page.
fn allow(redis: &RedisProcess) {
    let words = words_after("ACL SETUSER tollgate");
    let words = words.iter().map(|word| if word == ">PASSWORD" { ">s3cret" } else { word });
    let command: Vec<&str> = ["ACL", "SETUSER", "tollgate"].into_iter().chain(words).collect();
    redis.command::<()>(&command);
}

/// The log lists every rejected command.
fn refused_nothing(redis: &RedisProcess) {
    assert_eq!(
        redis.command::<Value>(&["ACL", "LOG"]),
        Value::Array(Vec::new()),
        "what it was not allowed to do"
    );
}

/// A service that counts as that user.
fn as_user(url: &str) -> Builder {
    let settings = [("REDIS_URL", url.to_owned()), ("REDIS_AUTH", "tollgate:s3cret".to_owned())];
    answered_by_redis(TestServer::with_rules(&rules(2, "")), &settings)
}

fn page() -> String {
    read("docs/operations.md")
}

fn redis_page() -> String {
    read("docs/redis.md")
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words of a block of the page that begins like this, behind that.
fn words_after(beginning: &str) -> Vec<String> {
    let page = redis_page();
    let (_, rest) =
        page.split_once(beginning).unwrap_or_else(|| panic!("docs/redis.md has no {beginning}"));
    let block = rest.split("```").next().expect("there is always a first");
    block.split_whitespace().map(str::to_owned).collect()
}

async fn count_in_every_way(server: &TestServer) {
    look_until("it knows its servers", || {
        server.metric("tollgate_store_nodes").unwrap_or_default() > 0.0
    });
    look_until("it has read INFO", || {
        let not_durable = server.metric("tollgate_store_not_durable{reason=\"no_aof\"}");
        not_durable.unwrap_or_default() > 0.0
    });
    let mut client = server.client().await;
    for (key, caller) in ALGORITHMS.into_iter().flat_map(|(key, _)| CALLERS.map(|it| (key, it))) {
        // Hits until it is over, a look, some that are given back, more than there is room for, and
        // one that finds what it left.
        for hits in [1_i64, 1, 1, 1, 0, -1, 5, 1] {
            let mut request = request("d", &[&[(key, "v"), ("caller", caller)]]);
            request.descriptors[0].hits_addend = Some(hits.unsigned_abs());
            request.descriptors[0].is_negative_hits = hits < 0;
            let answer = client.call(request).await;
            assert!(answer.is_ok(), "{key} {hits}: {answer:?}");
        }
    }
}
