//! Every view, in the states that operators meet, as axe checks it: in light and dark colors, and as
//! narrow as a telephone.

use std::fs;

use super::{RULES, ask, url};
use crate::support::browser::Browser;
use crate::support::redis::RedisProcess;
use crate::support::tools::axe;
use crate::support::{TestServer, sample};
const RULE: &str = "/console/rule?domain=shop&rule=shop.user";
/// Width and colors.
const LOOKS: [(u32, &str); 4] = [(1_280, "light"), (1_280, "dark"), (390, "light"), (390, "dark")];
/// What axe found, one line for each element.
const FINDINGS: &str = "
    const { violations } = await axe.run({ resultTypes: ['violations'] });
    return violations.flatMap(({ id, help, nodes }) => nodes.map(({ target, failureSummary }) =>
        `${id}: ${help}: ${target.join(' ')}: ${failureSummary.replace(/\\s+/g, ' ')}`)).join('\\n')";

/// Opens a page and waits for a text of it.
fn assert_accessible(browser: &Browser, address: &str, text: &str) {
    browser.open(address);
    browser.wait_for(text);
    assert_shown_accessible(browser);
}

fn assert_shown_accessible(browser: &Browser) {
    let script = fs::read_to_string(axe()).expect("the script of axe");
    for (width, colors) in LOOKS {
        browser.emulate(width, colors);
        browser.run(&script);
        let found = browser.run(&format!("return (async () => {{ {FINDINGS} }})()"));
        let found = found.as_str().expect("lines");
        let page = browser.url();
        assert!(found.is_empty(), "{page}, {width} pixels, {colors}:\n{found}");
        let widths = browser.run("return [document.documentElement.scrollWidth, innerWidth]");
        assert_eq!(widths[0], width, "{page} is wider than its window");
        // The current view is in sight.
        let tab = browser.run(
            "const { left, right } = document.querySelector('nav [aria-current=page]').getBoundingClientRect();
             return left >= 0 && right <= innerWidth",
        );
        assert_eq!(tab, true, "{page}, {width} pixels");
    }
}

#[tokio::test]
async fn views_of_a_service_with_over_limit_keys() {
    let server = TestServer::with_rules(RULES)
        .with_envs(&[
            ("ADMIN_TOKEN", "open-sesame"),
            ("RULES_WRITABLE", "true"),
            ("ADMIN_REDACT", "none"),
        ])
        .start();
    let long = "long".repeat(175);
    ask(&server, &long, 4).await;
    let browser = Browser::start(1_280, 844);
    let key = format!("/console/key?domain=shop&e=user%3D{long}");
    for (path, text) in [
        ("/", "Most over limit"),
        ("/console/rules", "shop.user"),
        (RULE, "longlong"),
        (&key, "Reset"),
        ("/console/files", "rules.yaml"),
        ("/console/file?name=rules.yaml", "Rules of rules.yaml"),
        ("/console/store", "in this process"),
        ("/console/trial", "TRIAL_UPSTREAM"),
    ] {
        assert_accessible(&browser, &url(&server, path), text);
    }
    browser.open(&url(&server, "/console/over-limit"));
    browser.wait_for("Connected.");
    ask(&server, &long, 1).await;
    browser.wait_for("user=longlong");
    assert_shown_accessible(&browser);
}

/// The titles of the columns that are whole inside the window, of the only table of a page.
fn columns_inside(browser: &Browser) -> String {
    let inside = "const scroll = document.querySelector('main .scroll:has(tbody tr)');
        if (scroll.scrollWidth > scroll.clientWidth)
            return `the table has ${scroll.scrollWidth} of ${scroll.clientWidth} pixels`;
        return [...scroll.querySelectorAll('thead th')].filter((th) => {
            const { left, right, width } = th.getBoundingClientRect();
            return width > 0 && left >= 0 && right <= innerWidth;
        }).map((th) => th.textContent.replace(/ . .*/, '')).join(', ')";
    browser.run(inside).as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn key_limit_and_over_limit_are_inside_a_narrow_window() {
    let server = TestServer::with_directory(sample("config").as_ref())
        .with_env("ADMIN_REDACT", "none")
        .start();
    let browser = Browser::start(390, 844);
    browser.open(&url(&server, "/console/over-limit"));
    browser.emulate(390, "light");
    browser.wait_for("Connected.");
    ask(&server, &"0123456789".repeat(4), 60).await;
    browser.wait_for("user=0123");
    assert_eq!(columns_inside(&browser), "Rule, Key, Limit, Retry after");
    for (path, text, columns) in [
        ("/console/rules", "shop.user", "Rule, Limit, Hits, Over limit"),
        (RULE, "0123", "Key, Over limit, Hits, Share over limit"),
        ("/", "Most over limit", "Rule, Over limit, Hits, Share"),
    ] {
        browser.open(&url(&server, path));
        browser.wait_for(text);
        assert_eq!(columns_inside(&browser), columns, "{path}");
    }
}

#[tokio::test]
async fn views_without_redis() {
    let mut redis = RedisProcess::start();
    let server = TestServer::with_rules(RULES).with_env("REDIS_URL", &redis.url()).start();
    ask(&server, "ann", 3).await;
    let browser = Browser::start(1_280, 844);
    assert_accessible(&browser, &url(&server, "/console/store"), "reachable");
    redis.kill();
    browser.wait_for("unreachable");
    ask(&server, "ann", 3).await;
    for path in ["/", "/console/store", "/console/over-limit"] {
        assert_accessible(&browser, &url(&server, path), "store unreachable");
    }
    let path = "/console/key?domain=shop&e=user%3Dann";
    assert_accessible(&browser, &url(&server, path), "Reset and Grant are off");
}

#[tokio::test]
async fn views_of_rejected_rules() {
    let server = TestServer::with_rules(RULES).start();
    server.write("rules.yaml", &RULES.replacen("year", "yaer", 1));
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    let browser = Browser::start(1_280, 844);
    for (path, text) in [
        ("/", "New rules are rejected"),
        ("/console/files", "Rejected"),
        ("/console/file?name=rules.yaml", "Rejected"),
    ] {
        assert_accessible(&browser, &url(&server, path), text);
    }
}

#[tokio::test]
async fn view_of_a_trial() {
    let upstream =
        TestServer::with_rules(&RULES.replace("requests_per_unit: 2", "requests_per_unit: 1"));
    let upstream = upstream.start();
    let server = TestServer::with_rules(RULES)
        .with_env("TRIAL_UPSTREAM", &upstream.grpc.to_string())
        .with_env("ADMIN_REDACT", "none")
        .start();
    ask(&server, &"long".repeat(175), 3).await;
    let browser = Browser::start(1_280, 844);
    assert_accessible(&browser, &url(&server, "/console/trial"), "limit differs");
}
