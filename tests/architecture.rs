//! Holds the source against the plan of the house: who may import whom, and what is absent where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room and the rooms it may import. What stands lower in the house stands earlier here.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("time", &[]),
    ("backoff", &[]),
    ("sampling", &[]),
    ("text", &[]),
    ("proto", &[]),
    ("runtime", &[]),
    ("setting", &["time"]),
    ("shutdown", &[]),
    ("tls", &[]),
    ("file_watch", &[]),
    ("telemetry", &["sampling", "setting", "time", "tls"]),
    ("http", &["shutdown", "telemetry"]),
    ("limit", &["time"]),
    ("check", &["limit", "text", "time"]),
    ("algorithm", &["check", "limit", "time"]),
    ("rules", &["check", "limit", "telemetry", "text", "time"]),
    (
        "config",
        &["limit", "rules", "setting", "telemetry", "time"],
    ),
    (
        "store",
        &[
            "algorithm",
            "backoff",
            "check",
            "limit",
            "setting",
            "shutdown",
            "telemetry",
            "time",
            "tls",
            "file_watch",
        ],
    ),
    (
        "limiter",
        &[
            "check",
            "limit",
            "rules",
            "sampling",
            "setting",
            "store",
            "telemetry",
            "text",
            "time",
        ],
    ),
    (
        "rule_source",
        &[
            "backoff",
            "config",
            "limit",
            "proto",
            "rules",
            "runtime",
            "setting",
            "shutdown",
            "telemetry",
            "text",
            "time",
            "tls",
            "file_watch",
        ],
    ),
    (
        "api",
        &[
            "check",
            "http",
            "limit",
            "limiter",
            "proto",
            "rules",
            "runtime",
            "setting",
            "shutdown",
            "telemetry",
            "time",
            "tls",
            "file_watch",
        ],
    ),
    (
        "admin",
        &[
            "api",
            "http",
            "limiter",
            "rules",
            "setting",
            "shutdown",
            "telemetry",
        ],
    ),
    (
        "settings",
        &[
            "admin",
            "api",
            "limiter",
            "rule_source",
            "store",
            "telemetry",
        ],
    ),
    (
        "app",
        &[
            "admin",
            "api",
            "config",
            "http",
            "limiter",
            "rule_source",
            "rules",
            "runtime",
            "settings",
            "shutdown",
            "store",
            "telemetry",
            "time",
            "file_watch",
        ],
    ),
    (
        "cli",
        &[
            "api",
            "app",
            "check",
            "config",
            "limit",
            "limiter",
            "rule_source",
            "rules",
            "setting",
            "settings",
            "store",
            "telemetry",
            "time",
        ],
    ),
];

/// What must not be found where. The reason is printed with the failure.
const ABSENT: &[(&[&str], &[&str], &str)] = &[
    (
        &["limit", "check", "algorithm"],
        PURE,
        "these decide: no clock, no I/O, no lock, no async, no protobuf",
    ),
    (
        &[
            "rules.rs",
            "rules/dump.rs",
            "rules/explain.rs",
            "rules/key.rs",
            "rules/lookup.rs",
            "rules/metric_name.rs",
            "rules/overrides.rs",
            "rules/plan.rs",
            "rules/query.rs",
            "rules/tree.rs",
        ],
        PURE,
        "matching is pure; only rules/live.rs and rules/stats.rs are shared by threads",
    ),
    (
        &[
            "limiter/combine.rs",
            "limiter/headers.rs",
            "limiter/metadata.rs",
            "limiter/response.rs",
        ],
        PURE,
        "what verdicts come to is pure",
    ),
    (
        &["store/redis/client/batcher.rs"],
        &["tokio::time", "sleep", "interval"],
        "what comes alone goes at once, and batches form without a timer",
    ),
    (
        &["store"],
        &["rules::", "Rule", "domain"],
        "a store never sees a rule or a domain",
    ),
    (
        &[
            "time",
            "limit",
            "check",
            "algorithm",
            "rules",
            "config",
            "store",
            "limiter",
            "rule_source.rs",
            "rule_source/files.rs",
            "rule_source/publisher.rs",
            "rule_source/loader.rs",
            "rule_source/settings.rs",
        ],
        &["prost", "tonic"],
        "only api and rule_source/xds know protobuf",
    ),
    (
        &[
            "time",
            "limit",
            "check",
            "algorithm",
            "rules",
            "config",
            "store",
            "limiter",
            "rule_source",
            "api",
            "admin",
            "telemetry",
            "app",
        ],
        &["std::env", "env::var"],
        "settings are read in one place",
    ),
];

const PURE: &[&str] = &[
    "Clock",
    "SystemTime",
    "Instant",
    "std::fs",
    "std::net",
    "Mutex",
    "RwLock",
    "async ",
    ".await",
    "prost",
    "tonic",
];

#[test]
fn rooms_import_only_what_lies_below_them() {
    let allowed: BTreeMap<_, BTreeSet<_>> = MAY_IMPORT
        .iter()
        .map(|(room, below)| (*room, below.iter().copied().collect()))
        .collect();
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        let room = room_of(&file);
        if ["lib", "main"].contains(&&*room) {
            continue;
        }
        let Some(below) = allowed.get(&*room) else {
            wrong.push(format!(
                "src/{file}: room `{room}` is not in the plan of the house"
            ));
            continue;
        };
        for other in imports(&code)
            .into_iter()
            .map(|path| path[0].clone())
            .filter(|other| *other != room && !below.contains(&**other))
        {
            wrong.push(format!("src/{file}: `{room}` may not import `{other}`"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_plan_has_no_circle_and_no_arrow_that_nobody_uses() {
    let mut seen = BTreeSet::new();
    for (room, below) in MAY_IMPORT {
        for other in *below {
            assert!(
                seen.contains(other),
                "`{room}` imports `{other}`, which does not lie below it"
            );
        }
        seen.insert(*room);
    }
    let mut used = BTreeSet::new();
    for (file, code) in sources() {
        used.extend(
            imports(&code)
                .into_iter()
                .map(|path| (room_of(&file), path[0].clone())),
        );
    }
    for (room, below) in MAY_IMPORT {
        for other in *below {
            assert!(
                used.contains(&((*room).to_owned(), (*other).to_owned())),
                "the plan lets `{room}` import `{other}`, which it does not"
            );
        }
    }
}

#[test]
fn files_of_a_room_do_not_import_each_other_in_a_circle() {
    let files: BTreeSet<String> = sources().into_iter().map(|(file, _)| file).collect();
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, code) in sources() {
        let targets = imports(&code)
            .into_iter()
            .filter_map(|path| file_of(&path, &files));
        // A room's own file and those inside it belong together: the one is the contract of the
        // others.
        let others = targets.filter(|target| {
            *target != file && !is_contract_of(target, &file) && !is_contract_of(&file, target)
        });
        arrows.entry(file.clone()).or_default().extend(others);
    }
    for start in arrows.keys() {
        let mut ways = vec![vec![start.clone()]];
        let mut reached = BTreeSet::new();
        while let Some(way) = ways.pop() {
            for next in &arrows[&way[way.len() - 1]] {
                assert!(next != start, "a circle: {} -> {start}", way.join(" -> "));
                if reached.insert(next.clone()) {
                    ways.push(way.iter().cloned().chain([next.clone()]).collect());
                }
            }
        }
    }
}

#[test]
fn what_must_be_absent_is_absent() {
    let mut wrong = Vec::new();
    for (places, words, reason) in ABSENT {
        for (file, code) in sources().into_iter().filter(|(file, _)| {
            places
                .iter()
                .any(|place| *place == file || *place == room_of(file))
        }) {
            for (number, line) in code.lines().enumerate() {
                wrong.extend(
                    words
                        .iter()
                        .filter(|word| line.contains(*word))
                        .map(|word| format!("src/{file}:{}: `{word}`: {reason}", number + 1)),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every file below src, by its path there, without comments and without its tests.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    collect(&root, &mut found);
    assert!(
        found.len() > 40,
        "only {} files in {}",
        found.len(),
        root.display()
    );
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file can be read");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: Vec<&str> = code
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .collect();
        (
            path.strip_prefix(&root)
                .expect("it lies below src")
                .to_string_lossy()
                .into_owned(),
            code.join("\n"),
        )
    };
    found.into_iter().map(read).collect()
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("src can be listed") {
        let path = entry.expect("src can be listed").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The room of a file: its first folder, or its own name.
fn room_of(file: &str) -> String {
    file.split(['/', '.']).next().unwrap_or_default().to_owned()
}

/// The paths behind every `crate::`, as far as they are names; of a list in braces each.
fn imports(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let end = rest
            .find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':'))
            .unwrap_or(rest.len());
        let path: Vec<String> = rest[..end]
            .split("::")
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        if rest[end..].starts_with('{') {
            let list = rest[end + 1..].split('}').next().unwrap_or_default();
            for item in list.split(',') {
                let item = item.trim().split(' ').next().unwrap_or_default();
                let item = item
                    .split("::")
                    .filter(|part| !part.is_empty())
                    .map(str::to_owned);
                paths.push(path.iter().cloned().chain(item).collect());
            }
        } else {
            paths.push(path);
        }
    }
    paths.retain(|path: &Vec<String>| !path.is_empty());
    paths
}

/// The file that a path leads to: the deepest that there is.
fn file_of(path: &[String], files: &BTreeSet<String>) -> Option<String> {
    (1..=path.len())
        .rev()
        .map(|len| format!("{}.rs", path[..len].join("/")))
        .find(|file| files.contains(file))
}

/// `a.rs` is the contract of whatever lies in `a/`.
fn is_contract_of(contract: &str, file: &str) -> bool {
    contract.strip_suffix(".rs").is_some_and(|room| {
        file.strip_prefix(room)
            .is_some_and(|rest| rest.starts_with('/'))
    })
}
