//! What docs/operations.md tells people to do, done to the letter.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::TestServer;
use crate::support::redis::RedisProcess;

/// A rule of each kind of counter there is in Redis, whose failures show.
const EVERY_ALGORITHM: &str = "
domain: d
metadata: {tollgate: {defaults: {on_store_error: error}}}
descriptors:
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: dropping, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {refused_hits: drop}}}
  - {key: sliding, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: sliding_window}}}
  - {key: cut, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: sliding_window, buckets: 4}}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: sliding_log}}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: even, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: leaky_bucket, burst: 2}}}
  - key: at_once
    descriptors:
      - {key: id, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: concurrency, lease_by: id, lease: 1h}}}
";
const KEYS: [&str; 7] = ["fixed", "dropping", "sliding", "cut", "log", "bucket", "even"];

#[test]
fn a_user_who_may_do_what_the_page_says_can_count_in_every_way() {
    let redis = RedisProcess::start();
    allow(&redis, &words_after("ACL SETUSER tollgate"));
    // What was not sent yet has to be sent whole, which takes another permission than the rest.
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    let server =
        TestServer::with_rules(EVERY_ALGORITHM).with_env("REDIS_URL", &redis.address()).with_env("REDIS_AUTH", "tollgate:s3cret").start();
    for (what, status) in ask_for_everything(&server) {
        assert!([200, 429].contains(&status), "{what}: {status}");
    }
    assert_eq!(redis.command::<Vec<String>>(&["ACL", "LOG"]), Vec::<String>::new(), "what it was not allowed to do");
}

#[test]
fn the_page_names_every_command_that_is_sent_and_no_other() {
    let page: BTreeSet<String> = words_after("ACL SETUSER tollgate").iter().filter_map(|word| word.strip_prefix('+')).map(base).collect();
    // PING is sent by the library, and the script by either of two names, which are no constants of a command.
    let mut sent: BTreeSet<String> = ["ping", "eval", "evalsha"].map(str::to_owned).into();
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&file).expect("it is there");
        let code = text.split("#[cfg(test)]").next().expect("there is always a first");
        for beginning in ["redis.call('", "redis.pcall('", ".cmd(\""] {
            sent.extend(
                code.split(beginning).skip(1).map(|rest| rest.split(['\'', '"']).next().expect("there is always a first")).map(base),
            );
        }
    }
    // What sentinels are asked is for a user of theirs.
    sent.remove("sentinel");
    assert_eq!(page, sent);
}

/// The command that a permission is for, or that is sent.
fn base(name: &str) -> String {
    name.split('|').next().expect("there is always a first").to_lowercase()
}

/// All files of Rust and Lua in a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it can be read").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs" || extension == "lua");
    files.into_iter().filter(is_source).chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

fn allow(redis: &RedisProcess, words: &[String]) {
    let words = words.iter().map(|word| if word == ">PASSWORD" { ">s3cret" } else { word });
    let command: Vec<&str> = ["ACL", "SETUSER", "tollgate"].into_iter().chain(words).collect();
    redis.command::<()>(&command);
}

/// The words of a block of the page that begins like this, behind that.
fn words_after(beginning: &str) -> Vec<String> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md")).expect("it is there");
    let start = page.find(beginning).unwrap_or_else(|| panic!("docs/operations.md has no {beginning}")) + beginning.len();
    let block = page[start..].split("```").next().expect("there is always a first");
    block.split_whitespace().map(str::to_owned).collect()
}

/// Calls that use every algorithm in every way, and the status of each.
fn ask_for_everything(server: &TestServer) -> Vec<(String, u16)> {
    let hits = |descriptor: &serde_json::Value, hits: u64, is_negative: bool| {
        let mut descriptor = descriptor.clone();
        descriptor["hitsAddend"] = json!(hits);
        descriptor["isNegativeHits"] = json!(is_negative);
        descriptor
    };
    let holder = |name: usize| json!({"entries": [{"key": "at_once"}, {"key": "id", "value": name.to_string()}]});
    let mut descriptors: Vec<serde_json::Value> = KEYS.iter().map(|key| json!({"entries": [{"key": key}]})).collect();
    descriptors.extend((0..4).map(holder));
    let mut told = Vec::new();
    for descriptor in &descriptors {
        // Hits until it is over, a look, some that are given back, more than there is room for, and one that finds what it left.
        for (count, is_negative) in [(1, false), (1, false), (1, false), (1, false), (0, false), (1, true), (5, false), (1, false)] {
            let body = json!({"domain": "d", "descriptors": [hits(descriptor, count, is_negative)]}).to_string();
            told.push((body.clone(), server.json(&body).status));
        }
    }
    told
}
