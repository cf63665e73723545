//! The console in a real browser: names for screen readers, the keyboard, refreshed numbers, dialogs,
//! and an unavailable service.

use crate::support::TestServer;
use crate::support::browser::Browser;

mod accessibility;
mod files;

const RULES: &str = "
domain: shop
descriptors:
  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 4}}
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
";
const VIEWS: [(&str, &str); 6] = [
    ("Overview", "/"),
    ("Rules", "/console/rules"),
    ("Budgets", "/console/budgets"),
    ("Files", "/console/files"),
    ("Over limit", "/console/over-limit"),
    ("Store", "/console/store"),
];
/// WebDriver's key.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

fn url(server: &TestServer, path: &str) -> String {
    format!("http://{}{path}", server.admin)
}

async fn ask(server: &TestServer, user: &str, requests: usize) {
    let mut client = server.client().await;
    for _ in 0..requests {
        client.ask("shop", &[("user", user)]).await;
    }
}

/// Whether nothing but tables reaches beyond the window.
fn assert_fits(browser: &Browser) {
    let fits = browser.run("return document.documentElement.scrollWidth <= innerWidth");
    assert_eq!(fits, true, "{}", browser.url());
}

#[tokio::test]
async fn views_are_reached_by_their_names_without_an_error() {
    let server = TestServer::with_rules(RULES).start();
    ask(&server, "ann", 3).await;
    let browser = Browser::start(1_280, 800);
    browser.open(&url(&server, "/"));
    for (name, path) in VIEWS {
        browser.click("link", name);
        browser.find("heading", name);
        assert_eq!(browser.url(), url(&server, path));
    }
    browser.click("link", "Rules");
    browser.click("link", "shop.user");
    browser.find("heading", "shop.user");
    browser.wait_for("rule shop.user at ");
    assert_fits(&browser);
    let none: Vec<String> = Vec::new();
    assert_eq!(browser.errors(), none);
}

#[tokio::test]
async fn numbers_are_refreshed_and_the_focus_stays() {
    let server = TestServer::with_rules(RULES).start();
    let browser = Browser::start(1_280, 800);
    browser.open(&url(&server, "/console/rules"));
    browser.press(TAB);
    assert_eq!(browser.focus(), "Skip to content");
    let search = browser.find("searchbox", "Search rules");
    browser.type_into(&search, "user");
    browser.wait_for("1 of 2 rules");
    assert!(browser.url().ends_with("?q=user&sort=path"), "{}", browser.url());
    ask(&server, "ann", 5).await;
    browser.wait_for("2 per year\tper key\t5\t3\tfixed_window");
    assert_eq!(browser.focus(), "Search rules");
    browser.run("document.querySelector('[type=search]').blur()");
    let link = browser.find("link", "shop.user");
    browser.type_into(&link, ENTER);
    browser.find("heading", "shop.user");
}

#[tokio::test]
async fn values_of_clients_are_text() {
    let server = TestServer::with_rules(RULES).with_env("ADMIN_REDACT", "none").start();
    let browser = Browser::start(1_280, 800);
    let value = "<img src=x onerror=\"document.title='attacked'\">";
    browser.open(&url(&server, "/console/over-limit"));
    browser.wait_for("Connected.");
    ask(&server, value, 4).await;
    browser.click("link", &format!("user={value}"));
    browser.find("heading", &format!("user={value}"));
    browser.wait_for("over limit");
    let title = browser.run("return document.title");
    assert_eq!(title, format!("user={value} · Tollgate"));
    assert_eq!(browser.run("return document.querySelectorAll('img').length"), 0);
}

#[tokio::test]
async fn feed_shows_what_the_filter_asks_for() {
    let server = TestServer::with_rules(RULES).with_env("ADMIN_REDACT", "none").start();
    let browser = Browser::start(1_280, 800);
    browser.open(&url(&server, "/console/over-limit"));
    let key = browser.find("searchbox", "Key");
    browser.type_into(&key, "user=bob");
    browser.click("button", "Filter");
    browser.find("heading", "Over limit");
    browser.wait_for("Connected.");
    for user in ["ann", "bob"] {
        ask(&server, user, 3).await;
    }
    // An event of ann would have been shown before.
    browser.wait_for("2 per year, fixed_window");
    browser.wait_for(" s\tstore");
    assert!(!browser.shown().contains("ann"), "{}", browser.shown());
    assert!(browser.url().ends_with("key=user%3Dbob"));
    browser.click("link", "Overview");
    browser.wait_for("this replica, last minute");
}

#[tokio::test]
async fn bar_under_the_pointer_is_named() {
    let server = TestServer::with_rules(RULES).start();
    ask(&server, "ann", 3).await;
    let browser = Browser::start(1_280, 800);
    browser.open(&url(&server, "/"));
    browser.wait_for("3 calls 1 over limit");
    browser.point_at("section[aria-labelledby=hour] g:last-of-type");
    browser.wait_for(": 3 calls, 1 over limit");
}

#[tokio::test]
async fn counter_is_reset_and_granted_with_the_token_only() {
    let server = TestServer::with_rules(RULES)
        .with_env("ADMIN_TOKEN", "open-sesame")
        .with_env("ADMIN_REDACT", "none")
        .start();
    ask(&server, "ann", 3).await;
    let browser = Browser::start(1_280, 800);
    browser.open(&url(&server, "/console/rule?domain=shop&rule=shop.user"));
    browser.click("link", "ann");
    browser.find("heading", "user=ann");
    browser.wait_for("over limit");
    browser.click("button", "Reset");
    let token = browser.find("textbox", "Token");
    browser.type_into(&token, "wrong");
    browser.click("button", "Confirm");
    browser.wait_for("Wrong token");
    browser.type_into(&token, "open-sesame");
    browser.click("button", "Confirm");
    browser.wait_for("within limit");
    ask(&server, "ann", 2).await;
    browser.wait_for("over limit");
    browser.click("button", "Grant");
    let hits = browser.find("spinbutton", "Hits");
    assert!(browser.found("textbox", "Token").is_none(), "it is known");
    browser.run("document.querySelector('dialog[open] input[type=number]').value = ''");
    browser.type_into(&hits, "2");
    browser.click("button", "Confirm");
    browser.wait_for("within limit");
    ask(&server, "ann", 2).await;
    browser.wait_for("over limit");
}

#[test]
fn unavailable_service_is_shown() {
    let server = TestServer::with_rules(RULES).start();
    let browser = Browser::start(1_280, 800);
    browser.open(&url(&server, "/"));
    browser.find("heading", "Overview");
    drop(server);
    browser.wait_for("This replica does not answer.");
}
