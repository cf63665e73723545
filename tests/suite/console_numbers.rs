//! The numbers of each view of the console: those of `/metrics` and of the API at the same moment.

use std::collections::BTreeMap;

use crate::support::TestServer;
use crate::support::html::text;

/// A rule of each kind. The largest windows, so that a change of one loses nothing.
const RULES: &str = "
domain: shop
descriptors:
  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 1004}}
  - {key: path, value: /api/*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: beta, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: cheap, rate_limit: {unit: year, requests_per_unit: 1}, metadata: {tollgate: {on_limit: degrade}}}
  - {key: plan, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: team, rate_limit: {unit: year, requests_per_unit: 5000000}, metadata: {tollgate: {calendar: Europe/Berlin}}}
  - {key: internal, rate_limit: {unlimited: true}}
";
/// Entries, and how often they are sent: each kind of rule, then none.
const CALLS: [(&[(&str, &str)], usize); 9] = [
    (&[("path", "/login")], 2),
    (&[("path", "/api/orders")], 5),
    (&[("user", "annabelle")], 6),
    (&[("beta", "b")], 5),
    (&[("cheap", "c")], 4),
    (&[("plan", "free")], 4),
    (&[("team", "search")], 3),
    (&[("internal", "i")], 3),
    (&[("usr", "annabelle")], 2),
];
/// Of `path=/api/orders`, `user` and `plan`, whose only quota is used up.
const OVER_LIMIT: usize = 2 + 4 + 3;

/// The content of each element with this name, without its opening tag.
fn elements<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let [start, end] = [format!("<{name}"), format!("</{name}>")];
    let parts = page.split(&start).skip(1);
    let inner = parts.filter_map(|part| {
        let (attributes, content) = part.split_once('>')?;
        // `td` is no `tdx`.
        let is_name = attributes.is_empty() || attributes.starts_with(' ');
        is_name.then(|| content.split(&end).next().unwrap_or_default())
    });
    inner.collect()
}

/// The figures of a page by name, each with its note.
fn figures(page: &str) -> BTreeMap<String, Vec<String>> {
    let parts = page.split("<dt").skip(1);
    let figures = parts.map(|part| {
        let (_, content) = part.split_once('>').expect("a tag ends");
        let (name, values) = content.split_once("</dt>").expect("an element ends");
        let values = elements(values.split("<dt").next().unwrap_or_default(), "dd");
        (text(name), values.into_iter().map(text).collect())
    });
    // A list of options may have a name again.
    figures.fold(BTreeMap::new(), |mut first, (name, values)| {
        first.entry(name).or_insert(values);
        first
    })
}

/// The rows of the tables of a page: the texts of their cells.
fn rows(page: &str) -> Vec<Vec<String>> {
    let bodies = elements(page, "tbody").into_iter();
    let rows = bodies.flat_map(|body| elements(body, "tr"));
    let cells = rows.map(|row| {
        let row = row.replace("<th", "<td").replace("</th>", "</td>");
        elements(&row, "td").into_iter().map(text).collect()
    });
    cells.collect()
}

/// The sum of the series of a metric that have these labels.
fn metric(page: &str, name: &str, labels: &str) -> u64 {
    let lines = page.lines().filter_map(|line| line.rsplit_once(' '));
    let of_name = lines.filter(|(series, _)| {
        let (of, its) = series.split_once('{').unwrap_or((series, ""));
        of == name && its.contains(labels)
    });
    of_name.map(|(_, value)| value.parse::<u64>().expect("a whole number")).sum()
}

/// A number of a page, without its separators.
fn number(text: &str) -> u64 {
    let digits = text.replace(',', "");
    digits.parse().unwrap_or_else(|_| panic!("a number, not {text}"))
}

/// A share as the console shows it.
fn share(part: u64, whole: u64) -> String {
    let tenths = part * 1_000 / whole;
    format!("{}.{} %", tenths / 10, tenths % 10)
}

async fn server() -> TestServer {
    let server = TestServer::with_rules(RULES).start();
    let mut client = server.client().await;
    for (entries, times) in CALLS {
        for _ in 0..times {
            client.ask("shop", entries).await;
        }
    }
    client.ask("shopp", &[("user", "annabelle")]).await;
    server
}

fn calls() -> usize {
    CALLS.iter().map(|(_, times)| times).sum::<usize>() + 1
}

#[tokio::test]
async fn overview_has_what_callers_got() {
    let server = server().await;
    let page = server.admin("/");
    let metrics = server.admin("/metrics");
    let figures = figures(&page);
    let figure = |name: &str| -> &[String] {
        figures.get(name).unwrap_or_else(|| panic!("no {name}: {figures:?}"))
    };
    let [ok, over] = ["OK", "OVER_LIMIT"]
        .map(|code| metric(&metrics, "tollgate_responses_total", &format!("code=\"{code}\"")));
    assert_eq!([ok + over, over], [calls() as u64, OVER_LIMIT as u64]);
    let admitted = ["shadow", "degrade"].map(|by| {
        let labels = format!("by=\"{by}\"");
        metric(&metrics, "tollgate_responses_admitted_total", &labels)
    });
    assert_eq!(admitted, [4, 3]);
    let tags = format!("admitted over a limit: shadow {} degrade {}", admitted[0], admitted[1]);
    let note = format!("{over} of {} calls; this replica, last minute; {tags}", ok + over);
    assert_eq!(figure("Over limit"), [share(over, ok + over), note]);
    let mut seen = 0;
    // The names of metrics are in the tooltips.
    for part in page.split("<dt title=\"").skip(1) {
        let (title, rest) = part.split_once("\">").expect("a tag ends");
        let series = title.split(' ').rfind(|word| word.contains('_') && !word.contains("__"));
        let Some(name) = series.filter(|_| !title.contains(", code")) else {
            continue;
        };
        let shown = elements(rest, "dd")[0];
        let shown = number(text(shown).trim_end_matches(" MiB"));
        let value = metric(&metrics, name, "");
        match name {
            // It changes all the time.
            "process_resident_memory_bytes" => {
                assert!(shown > 0 && shown.abs_diff(value >> 20) <= 8, "{shown} MiB, {value}");
            }
            _ => assert_eq!(shown, value, "{name}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 8, "{page}");
    assert_eq!(figure("Calls over limit")[0], format!("{over}; {tags}"));
    assert_eq!(number(&figure("Rules")[0]), metric(&metrics, "tollgate_rules", ""));
    let hour = text(elements(&page, "figcaption")[0]);
    let legend = format!("{} calls {over} over limit 7 admitted over a limit", ok + over);
    assert!(hour.starts_with(&legend), "{hour}");
}

#[tokio::test]
async fn lists_of_the_overview_are_those_of_metrics() {
    let server = server().await;
    let page = server.admin("/");
    let metrics = server.admin("/metrics");
    let unmatched = |domain: &str| {
        let labels = format!("domain=\"{domain}\"");
        metric(&metrics, "tollgate_unmatched_descriptors_total", &labels)
    };
    let hits = |kind: &str, key: &str| {
        let name = format!("ratelimit_service_rate_limit_{kind}");
        metric(&metrics, &name, &format!("key1=\"{key}\""))
    };
    let row = |path: &str, key: &str, tag: &str| {
        let admitted =
            metric(&metrics, "tollgate_rule_admitted_hits_total", &format!("key1=\"{key}\""));
        let (all, over) = (hits("total_hits", key), hits("over_limit", key) - admitted);
        let tag = if admitted > 0 { format!("{tag} {admitted} ") } else { String::new() };
        [path.to_owned(), format!("{tag}{over}"), all.to_string(), share(over, all)].to_vec()
    };
    let without_rule = |domain: &str, key: &str, reason: &str| {
        [domain, key, reason, &unmatched(domain).to_string()].map(str::to_owned).to_vec()
    };
    let expected = [
        without_rule("shop", "usr", "no rule for key usr, nearest is user"),
        without_rule("shopp", "user", "no rule: unknown domain, nearest is shop"),
        row("shop.user", "user", ""),
        row("shop.plan", "plan", ""),
        row("shop.path_/api/*", "path_/api/*", ""),
        row("shop.beta", "beta", "shadow"),
        row("shop.cheap", "cheap", "degrade"),
    ];
    assert_eq!(rows(&page), expected, "{metrics}");
    assert_eq!(unmatched("shop"), 2);
    assert!(!page.contains("annabelle"), "no value of a client: {page}");
}

#[tokio::test]
async fn rules_and_keys_have_the_numbers_of_their_counters() {
    let server = server().await;
    let counter = |query: &str| server.admin_json(&format!("/api/v1/counters?domain=shop&{query}"));
    let listed = rows(&server.admin("/console/rules"));
    for (path, query, tag) in [
        ("shop.path_/login", "e=path%3D/login", ""),
        ("shop.path_/api/*", "e=path%3D/api/orders", ""),
        ("shop.user", "e=user%3Dannabelle", ""),
        ("shop.beta", "e=beta%3Db", "shadow"),
        ("shop.cheap", "e=cheap%3Dc", "degrade"),
        ("shop.plan", "e=plan%3Dfree", ""),
        ("shop.team", "e=team%3Dsearch", ""),
    ] {
        let counter = counter(query);
        let used = counter["used"].as_u64().expect("a number");
        let limit = counter["limit"]["requests"].as_u64().expect("a number");
        let row = listed.iter().find(|row| row[0].split(' ').next() == Some(path));
        let row = row.unwrap_or_else(|| panic!("{path}: {listed:?}"));
        let more = used.saturating_sub(limit);
        let over = if tag.is_empty() { more.to_string() } else { format!("{tag} {more} 0") };
        assert_eq!([&row[3], &row[4]], [&used.to_string(), &over], "{path}");
        if path.contains("path_") {
            let words: Vec<&str> =
                row[2].split([' ', ',']).filter(|word| !word.is_empty()).collect();
            let within = used.min(limit);
            assert_eq!(number(words[0]), within, "{row:?}");
            assert_eq!(row[2].contains("more over limit"), more > 0, "{row:?}");
        }
        let page = server.admin(&format!("/console/key?domain=shop&{query}"));
        let figures = figures(&page);
        assert_eq!(number(&figures["Used"][0]), used, "{path}");
        assert_eq!(counter["remaining"], number(&figures["Remaining"][0]), "{path}");
        let state = if counter["over_limit"] == true { "over limit" } else { "within limit" };
        assert_eq!(figures["State"][0], state, "{path}");
        let hour = text(elements(&page, "figcaption")[0]);
        let [rejected, admitted] = if tag.is_empty() { [more, 0] } else { [0, more] };
        let admitted = if admitted > 0 { format!(" {admitted} admitted") } else { String::new() };
        let legend = format!("{used} hits {rejected} over limit{admitted}");
        assert!(hour.starts_with(&legend), "{path}: {hour}");
    }
    let page = server.admin("/console/rule?domain=shop&rule=shop.beta");
    let figures = figures(&page);
    assert_eq!([&figures["Hits"][0], &figures["Over limit"][0]], ["5", "0 shadow 4"]);
}

#[tokio::test]
async fn budgets_have_the_numbers_of_their_usage_in_utc() {
    let server = server().await;
    let usage = server.admin_json("/api/v1/usage?domain=shop&e=team%3Dsearch");
    let limit = &usage["limits"][0];
    let page = server.admin("/console/budgets");
    let listed = rows(&page);
    let row = listed.iter().find(|row| row[0] == "search");
    let row = row.unwrap_or_else(|| panic!("{listed:?}"));
    assert_eq!(row[2], "3 of 5,000,000");
    assert_eq!(limit["remaining"], number(&row[6]));
    assert!(!row[3].contains('+') && row[3].ends_with("-12-31 23:00:00 UTC"), "{row:?}");
    for row in &listed {
        assert!(number(&row[5]) <= 100 && row[3].ends_with(" UTC"), "{row:?}");
    }
}

#[tokio::test]
async fn store_has_one_state_and_the_numbers_of_metrics() {
    let server = server().await;
    let metrics = server.admin("/metrics");
    let page = server.admin("/console/store");
    let figures = figures(&page);
    let keys = metric(&metrics, "tollgate_memory_keys", "use=\"store\"");
    assert_eq!(number(&figures["Counters"][0]), keys);
    assert_eq!(figures["State"][0], "counts in this process only");
    let state = |page: &str| {
        let span = page.split("<span class=\"state ").skip(1);
        let mut found = span.filter_map(|rest| Some(rest.split_once("</span>")?.0.to_owned()));
        found.next()
    };
    assert_eq!(state(&server.admin("/")), state(&page), "one state has one color and one sentence");
}
