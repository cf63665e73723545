//! Holds `src` against the architecture: which component may import which, no cycle between files,
//! what must not occur where, how long files and functions may be, and how large the whole is.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each component and the components it may import, lowest first. A component is a file of `src`
/// and the folder of the same name.
const MAY_IMPORT: &str = "
base:
base/proto:
base/net: base
telemetry: base base/net
base/file_watch: base telemetry
base/http: base telemetry
limits: base
limits/check: base limits
limits/algorithm: base limits/check limits
rules: base limits/check limits telemetry
report: base limits/check limits rules
rules/config: base limits report rules telemetry
store: limits/algorithm base limits/check base/file_watch limits base/net telemetry
operator/observe: base limits/check report rules telemetry
limiter: base limits/check limits operator/observe report rules store telemetry
rules/source: base rules/config base/file_watch limits base/net base/proto report rules telemetry
trial: base limits/check base/file_watch base/net operator/observe report rules telemetry
api: base limits/check base/file_watch base/http limits limiter base/net operator/observe base/proto report rules telemetry trial
what_if: api base limits/check rules/config limits limiter base/proto report rules store telemetry
operator/admin: api base limits/check base/file_watch base/http limits limiter base/net operator/observe report rules/source rules
    store telemetry trial
operator/console: operator/admin base limits/check limits limiter operator/observe report rules/source rules store telemetry trial
app/settings: operator/admin api base limiter rules/source store telemetry trial
app: operator/admin api base rules/config operator/console base/file_watch base/http limiter operator/observe rules/source rules
    app/settings store telemetry trial
cli: api app base rules/config limits limiter base/net operator/observe report rules/source rules app/settings store telemetry
    what_if
";

/// Places, exceptions, words that must not occur there, and why.
type Absence =
    (&'static [&'static str], &'static [&'static str], &'static [&'static str], &'static str);

/// What must not occur in which files, by component or path without `.rs`; those of the second list
/// excepted.
const ABSENT: &[Absence] = &[
    (
        &["limits", "limits/check", "limits/algorithm"],
        &[],
        PURE,
        "these decide: no clock, I/O, lock, async or protobuf",
    ),
    (
        &["rules"],
        &["rules/config", "rules/live", "rules/source", "rules/stats"],
        PURE,
        "matching is pure; only rules/live.rs and rules/stats.rs are shared by threads",
    ),
    (
        &["limiter/combine", "limiter/headers", "limiter/metadata"],
        &[],
        PURE,
        "combining verdicts is pure",
    ),
    (
        &["store/redis/client/batcher"],
        &[],
        &["tokio::time", "sleep", "interval"],
        "a batch is sent at once, and batches form without a timer",
    ),
    (&["store"], &[], &["rules::", "Rule", "domain"], "a store never sees a rule or a domain"),
    (
        &[
            "base",
            "limits",
            "limits/check",
            "limits/algorithm",
            "rules",
            "rules/config",
            "store",
            "limiter",
            "rules/source",
        ],
        &["base/proto", "rules/source/xds"],
        &["prost", "tonic"],
        "only api and rule_source/xds use protobuf",
    ),
    (
        &[""],
        &[],
        &[
            "grpc-status",
            "GRPC_STATUS",
            "grpc-message",
            "HEADER_SIZE",
            "put_u8",
            "put_u32",
            "h2::server",
        ],
        "tonic writes statuses and the five bytes before a message, and hyper the frames of HTTP/2",
    ),
    (
        &[""],
        &["trial/upstream"],
        &["h2::"],
        "only a trial has a client of h2, which writes a call by one system call",
    ),
    (
        &[""],
        &[],
        &["UnaryService", "NamedService", "server::Grpc"],
        "a gRPC service implements the trait that is generated for it",
    ),
    (
        &[""],
        &["base/environment", "cli", "main"],
        &["std::env", "env::var"],
        "base/environment.rs reads the environment",
    ),
];

/// The packages that the service is known by, each with a path that shows its use.
const KNOWN_BY: &[(&str, &str)] = &[
    ("tonic", "tonic::"),
    ("prost", "prost::"),
    ("tokio", "tokio::"),
    ("bb8-redis", "bb8_redis::bb8::"),
    ("tonic-prost-build", "tonic_prost_build::configure()"),
    ("tracing-subscriber", "tracing_subscriber::"),
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

/// Lines of a file without its unit tests.
const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;

/// Columns of a line. A string may be longer.
const COLUMNS_MAX: usize = 100;

/// Names side by side in `src`: a file and its folder are one. Without `main` and `lib`.
const NAMES_MAX: usize = 13;

/// The operator tools: everything that only operators use. All else is the core, which serves
/// requests.
const OPERATOR_TOOLS: &[&str] = &[
    "report",
    "operator/observe",
    "what_if",
    "trial",
    "api/trial",
    "operator/admin",
    "operator/console",
    "rules/source/edit",
    "cli",
];
/// Commands that are not tools: the service itself, and what all commands share.
const CORE_COMMANDS: &[&str] = &["cli/serve", "cli/shell"];

/// Lines of code: without comments, blank lines and unit tests. A change that raises one of these
/// says why in its commit message.
const CORE_LINES_MAX: usize = 29_793;
const OPERATOR_TOOLS_LINES_MAX: usize = 13_984;

/// Files and functions that may be longer, each with its reason.
const LONGER: &[(&str, &str)] = &[];

/// A file of `src`.
struct Source {
    /// Its path below `src`.
    file: String,
    /// Without unit tests.
    lines: Vec<String>,
    /// The same without comments.
    code: String,
}

#[test]
fn components_import_only_what_is_below_them() {
    let sources = sources();
    let files = names(&sources);
    report(sources.iter().flat_map(|source| {
        let component = component_of(&source.file);
        let below =
            may_import().into_iter().find(|(name, _)| *name == component).map(|(_, below)| below);
        let imported: BTreeSet<_> =
            imports(source, &files).iter().map(|file| component_of(file)).collect();
        let wrong = imported.into_iter().filter(|other| {
            *other != component && below.as_ref().is_none_or(|below| !below.contains(&&**other))
        });
        let wrong: Vec<_> = wrong
            .filter(|_| !["lib", "main"].contains(&&*component))
            .map(|other| format!("src/{}: `{component}` must not import `{other}`", source.file))
            .collect();
        wrong
    }));
}

#[test]
fn the_import_table_has_no_cycle_and_nothing_unused() {
    let sources = sources();
    let files = names(&sources);
    let used: BTreeSet<_> = sources
        .iter()
        .flat_map(|source| {
            let component = component_of(&source.file);
            imports(source, &files)
                .into_iter()
                .map(move |file| (component.clone(), component_of(&file)))
        })
        .collect();
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (component, below) in may_import() {
        for other in below {
            if !seen.contains(other) {
                wrong.push(format!(
                    "the table lets `{component}` import `{other}`, which is not below it"
                ));
            }
            if !used.contains(&(component.to_owned(), other.to_owned())) {
                wrong.push(format!(
                    "the table lets `{component}` import `{other}`, which it does not"
                ));
            }
        }
        seen.insert(component);
    }
    report(wrong);
}

#[test]
fn files_do_not_import_each_other_in_a_cycle() {
    let sources = sources();
    let files = names(&sources);
    let edges: BTreeMap<_, _> =
        sources.iter().map(|source| (source.file.clone(), imports(source, &files))).collect();
    let reachable = |start: &String| {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&String> = edges[start].iter().collect();
        while let Some(file) = next.pop() {
            if reached.insert(file.clone()) {
                next.extend(&edges[file]);
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = edges.keys().map(|file| (file, reachable(file))).collect();
    report(edges.iter().flat_map(|(file, imported)| {
        let back = imported.iter().filter(|other| reached[*other].contains(file));
        let back: Vec<_> = back
            .map(|other| format!("src/{file}: imports {other}, which leads back to it"))
            .collect();
        back
    }));
}

#[test]
fn what_must_be_absent_is_absent() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (places, exceptions, words, reason) in ABSENT {
            if !is_in(&source.file, places) || is_in(&source.file, exceptions) {
                continue;
            }
            for (number, line) in source.code.lines().enumerate() {
                let found = words.iter().filter(|word| line.contains(*word));
                wrong.extend(
                    found.map(|word| {
                        format!("src/{}:{}: `{word}`: {reason}", source.file, number + 1)
                    }),
                );
            }
        }
    }
    report(wrong);
}

/// A server that is generated is given what implements its trait. Reflection is tonic's own.
#[test]
fn grpc_services_implement_generated_traits() {
    let sources = sources();
    let mut served = BTreeSet::new();
    for source in &sources {
        for (at, _) in source.code.match_indices("Server::new(") {
            let before = &source.code[..at];
            let name = before.rsplit(|letter: char| !letter.is_alphanumeric());
            served.extend(name.take(1).map(str::to_owned));
        }
    }
    assert_eq!(served, ["Health", "RateLimitService"].map(str::to_owned).into());
    report(served.iter().filter_map(|service| {
        let is_implemented = sources.iter().any(|source| {
            let mut lines = source.code.lines();
            lines.any(|line| {
                line.starts_with("impl")
                    && (line.contains(&format!(" {service} for "))
                        || line.contains(&format!("::{service} for ")))
            })
        });
        (!is_implemented).then(|| format!("no file of src implements the trait `{service}`"))
    }));
}

#[test]
fn packages_that_the_service_is_known_by_are_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).expect("a file of the package");
    let manifest = read("Cargo.toml");
    let build = read("build.rs");
    let sources = sources();
    report(KNOWN_BY.iter().filter_map(|(package, used)| {
        let is_dependency = manifest.lines().any(|line| {
            let name = line.strip_prefix(package);
            name.is_some_and(|rest| rest.starts_with(" = "))
        });
        let is_used =
            build.contains(used) || sources.iter().any(|source| source.code.contains(used));
        (!is_dependency || !is_used)
            .then(|| format!("{package} is not in Cargo.toml, or `{used}` is not used"))
    }));
}

#[test]
fn files_and_functions_are_short() {
    let mut wrong = Vec::new();
    let mut needed = HashSet::new();
    let mut add = |name: String, lines: usize, max: usize| {
        if lines <= max {
            return;
        }
        match LONGER.iter().find(|(known, _)| *known == name) {
            Some((known, _)) => {
                needed.insert(*known);
            }
            None => wrong.push(format!("src/{name}: {lines} lines, {max} at most")),
        }
    };
    for source in sources() {
        add(source.file.clone(), source.lines.len(), FILE_LINES_MAX);
        for (function, lines) in functions(&source.lines) {
            add(format!("{}: {function}", source.file), lines, FUNCTION_LINES_MAX);
        }
    }
    let unneeded = LONGER.iter().filter(|(known, _)| !needed.contains(known));
    wrong.extend(unneeded.map(|(known, _)| format!("src/{known}: needs no exception any more")));
    report(wrong);
}

#[test]
fn the_core_and_the_operator_tools_do_not_grow() {
    let mut core = 0;
    let mut tools = 0;
    for Source { file, lines, .. } in sources() {
        let lines = lines.iter().map(|line| line.trim_start());
        let counted = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        if is_in(&file, OPERATOR_TOOLS) && !is_in(&file, CORE_COMMANDS) {
            tools += counted.count();
        } else {
            core += counted.count();
        }
    }
    assert!(
        core <= CORE_LINES_MAX && tools <= OPERATOR_TOOLS_LINES_MAX,
        "lines of code: core {core}, at most {CORE_LINES_MAX}; operator tools {tools}, at most {OPERATOR_TOOLS_LINES_MAX}"
    );
}

#[test]
fn the_top_of_src_has_few_names() {
    let names: BTreeSet<_> = sources()
        .iter()
        .filter_map(|source| {
            let name = source.file.split(['/', '.']).next()?;
            (!["lib", "main"].contains(&name)).then(|| name.to_owned())
        })
        .collect();
    assert!(names.len() <= NAMES_MAX, "{} names: {names:?}", names.len());
}

#[test]
fn lines_are_narrow() {
    report(sources().iter().flat_map(|source| {
        let wide = source.lines.iter().filter(|line| {
            line.chars().count() > COLUMNS_MAX && !line.contains('"') && !line.ends_with('\\')
        });
        let wide: Vec<_> = wide.map(|line| format!("src/{}: {line}", source.file)).collect();
        wide
    }));
}

/// The rows of [`MAY_IMPORT`].
fn may_import() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut rows: Vec<(&str, Vec<&str>)> = Vec::new();
    for word in MAY_IMPORT.split_whitespace() {
        match (word.strip_suffix(':'), rows.last_mut()) {
            (Some(component), _) => rows.push((component, Vec::new())),
            (None, Some((_, below))) => below.push(word),
            (None, None) => panic!("`{word}` is in no row"),
        }
    }
    rows
}

/// Fails with all violations.
fn report(violations: impl IntoIterator<Item = String>) {
    let violations: Vec<String> = violations.into_iter().collect();
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

/// Every file below `src` except those of unit tests.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    assert!(paths.len() > 40, "only {} files in {}", paths.len(), root.display());
    let source = |path: PathBuf| {
        let file =
            path.strip_prefix(&root).expect("a path below src").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a source file");
        let lines = without_tests(&text);
        let code: Vec<&str> =
            lines.iter().map(|line| line.split("//").next().unwrap_or_default()).collect();
        Source {
            file,
            code: code.join("\n"),
            lines: lines.iter().map(ToString::to_string).collect(),
        }
    };
    let mut sources: Vec<Source> = paths.into_iter().map(source).collect();
    sources.retain(|source| !source.file.ends_with("tests.rs") && !source.file.contains("/tests/"));
    sources.sort_by(|one, other| one.file.cmp(&other.file));
    sources
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a folder of src") {
        let path = entry.expect("an entry of src").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The lines without items under `#[cfg(test)]`, by how rustfmt indents them.
fn without_tests(text: &str) -> Vec<&str> {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() != "#[cfg(test)]" {
            kept.push(line);
            continue;
        }
        let end = format!("{}}}", indent_of(line));
        let first = lines.by_ref().find(|line| !line.trim_start().starts_with("#["));
        if first.is_some_and(|line| !line.ends_with([';', '}'])) {
            lines.by_ref().find(|line| *line == end);
        }
    }
    kept
}

/// Each function with its number of lines, nested ones as a part of the outer.
fn functions(lines: &[String]) -> Vec<(String, usize)> {
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some((before, rest)) = line.trim_start().split_once("fn ") else {
            continue;
        };
        let is_item = before.split_whitespace().all(|word| {
            ["pub", "const", "async", "pub(crate)", "pub(super)", "unsafe", "extern"]
                .contains(&word)
        });
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        if !is_item || line.ends_with(';') {
            continue;
        }
        let end = format!("{}}}", indent_of(line));
        let length = lines[start..]
            .iter()
            .position(|line| *line == end || line.starts_with(&end) && line.ends_with(';'));
        functions.extend(length.map(|length| (name.to_owned(), length + 1)));
    }
    functions
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

fn names(sources: &[Source]) -> BTreeSet<String> {
    sources.iter().map(|source| source.file.clone()).collect()
}

/// The component of a file: the longest name of the table that its path begins with.
fn component_of(file: &str) -> String {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let named =
        may_import().into_iter().map(|(name, _)| name).filter(|name| is_or_is_below(path, name));
    named
        .max_by_key(|name| name.len())
        .map_or_else(|| path.split('/').next().unwrap_or_default().to_owned(), str::to_owned)
}

fn is_in(file: &str, places: &[&str]) -> bool {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    places.iter().any(|place| is_or_is_below(path, place))
}

fn is_or_is_below(path: &str, place: &str) -> bool {
    place.is_empty()
        || path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The files that a file imports from, by `crate::`, `super::` and the names of its own modules.
fn imports(source: &Source, files: &BTreeSet<String>) -> BTreeSet<String> {
    let own: Vec<String> =
        source.file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let mut paths = Vec::new();
    for (prefix, base) in [("crate::", vec![]), ("super::", own[..own.len() - 1].to_vec())] {
        for (at, _) in source.code.match_indices(prefix) {
            if begins_a_path(&source.code[..at]) {
                paths_of(&source.code[at + prefix.len()..], &base, &mut paths);
            }
        }
    }
    for line in source.code.lines() {
        let Some((_, module)) = line.split_once("mod ") else {
            continue;
        };
        let Some(module) = module.strip_suffix(';') else {
            continue;
        };
        let name = format!("{module}::");
        let mut places = source.code.match_indices(&name).map(|(at, _)| at);
        let is_used = places.any(|at| begins_a_path(&source.code[..at]));
        if is_used {
            paths.push(own.iter().cloned().chain([module.to_owned()]).collect());
        }
    }
    let mut imported: BTreeSet<String> =
        paths.iter().filter_map(|path| file_of(path, files)).collect();
    imported.remove(&source.file);
    imported
}

/// Whether a name behind this text is the first one of its path.
fn begins_a_path(before: &str) -> bool {
    !before.ends_with(|last: char| last.is_alphanumeric() || "_:".contains(last))
}

/// Adds the paths at the start of `rest`, each behind `base`; of a list in braces each.
fn paths_of<'a>(rest: &'a str, base: &[String], paths: &mut Vec<Vec<String>>) -> &'a str {
    let end = rest
        .find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':'))
        .unwrap_or(rest.len());
    let names = rest[..end].split("::").filter(|name| !name.is_empty() && *name != "self");
    let path: Vec<String> = base.iter().cloned().chain(names.map(str::to_owned)).collect();
    let Some(mut list) = rest[end..]
        .strip_prefix('{')
        .filter(|_| rest[..end].is_empty() || rest[..end].ends_with("::"))
    else {
        if !path.is_empty() {
            paths.push(path);
        }
        return &rest[end..];
    };
    loop {
        list = list.trim_start_matches([',', ' ', '\n']);
        if let Some(rest) = list.strip_prefix('}') {
            return rest;
        }
        if list.is_empty() {
            return list;
        }
        list = paths_of(list, &path, paths);
        // ` as other`
        list = &list[list.find([',', '}']).unwrap_or(list.len())..];
    }
}

/// The file that a path leads to: the deepest that exists.
fn file_of(path: &[String], files: &BTreeSet<String>) -> Option<String> {
    (1..=path.len())
        .rev()
        .map(|len| format!("{}.rs", path[..len].join("/")))
        .find(|file| files.contains(file))
}
