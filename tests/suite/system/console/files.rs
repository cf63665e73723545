//! The editor of rules files in a real browser: a text is checked while it is typed, applied with the
//! token, and rolled back.

use std::fs;

use serde_json::{Value, json};

use super::{ENTER, TAB, ask, assert_fits, url};
use crate::support::browser::Browser;
use crate::support::{Builder, TestServer};

const RULES: &str = "domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 4}}
";
const TEXT: &str = "Rules of rules.yaml";

/// A page with the editor, after its first check.
fn editor(server: &TestServer) -> Browser {
    let browser = Browser::start(1_280, 900);
    browser.open(&url(server, "/console/files"));
    browser.click("link", "rules.yaml");
    browser.find("heading", "rules.yaml");
    browser.wait_for("Valid, same as the rules in force");
    browser
}

/// Selects a part of the text, and types over it.
fn replace(browser: &Browser, old: &str, new: &str) {
    let selected = browser.run(&format!(
        "const text = document.getElementById('text'), at = text.value.indexOf({0});
         text.focus(); text.setSelectionRange(at, at + {0}.length); return at >= 0",
        json!(old)
    ));
    assert_eq!(selected, true, "{old}");
    browser.press(new);
}

fn text(browser: &Browser) -> Value {
    browser.run("return document.getElementById('text').value")
}

#[tokio::test]
async fn text_is_checked_while_it_is_typed() {
    let server = TestServer::with_rules(RULES)
        .with_env("ADMIN_REDACT", "none")
        .start();
    ask(&server, "ann", 4).await;
    let browser = editor(&server);
    assert_eq!(text(&browser), RULES);
    replace(
        &browser,
        "unit: year, requests_per_unit: 5",
        "unit: yaer, requests_per_unit: 3",
    );
    browser.wait_for("invalid rate limit unit 'yaer'");
    browser.wait_for("1 error");
    browser.find("button", "Line 4, column 24");
    assert_eq!(browser.focus(), TEXT);
    // The message leads to its line.
    browser.run("document.getElementById('text').setSelectionRange(0, 0)");
    browser.click("button", "Line 4, column 24");
    let selected = "const text = document.getElementById('text');
        return text.value.slice(text.selectionStart, text.selectionEnd)";
    let line = "    rate_limit: {unit: yaer, requests_per_unit: 3}";
    assert_eq!(browser.run(selected), line);
    assert_eq!(browser.focus(), TEXT);

    replace(&browser, "yaer", "year");
    browser.wait_for("Valid, 1 rule differs");
    assert!(!browser.shown().contains("invalid rate limit unit"));
    browser.wait_for("changed shop.user");
    browser.wait_for("requests_per_unit: 5 → 3");
    browser.find("heading", "Top keys that would be treated differently");
    browser.wait_for("user=ann\n");
    browser.wait_for("\t4\t5 per year");
    browser.wait_for("over limit now");

    browser.click("button", "Discard changes");
    browser.wait_for("Valid, same as the rules in force");
    assert_eq!(text(&browser), RULES);
    assert!(!browser.shown().contains("Top keys that would"));
    let none: Vec<String> = Vec::new();
    assert_eq!(browser.errors(), none);
}

#[tokio::test]
async fn values_of_clients_and_rules_are_text() {
    let server = TestServer::with_rules(RULES)
        .with_env("ADMIN_REDACT", "none")
        .start();
    let value = "<img src=x onerror=\"document.title='attacked'\">";
    ask(&server, value, 2).await;
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    browser.wait_for(&format!("user={value}\n"));
    browser.click("button", &format!("Simulate user={value}"));
    browser.wait_for("Before shop.user: 5 per year");
    replace(
        &browser,
        "unit: year",
        &format!("unit: '{}'", value.replace('\'', "")),
    );
    browser.wait_for("invalid rate limit unit '<img src=x");
    let images = browser.run("return document.querySelectorAll('img').length");
    assert_eq!(images, 0);
    assert_eq!(
        browser.run("return document.title"),
        "rules.yaml · Tollgate"
    );
}

#[tokio::test]
async fn simulation_is_shown_for_a_key_and_for_what_is_typed() {
    let server = TestServer::with_rules(RULES)
        .with_env("ADMIN_REDACT", "none")
        .start();
    ask(&server, "ann", 2).await;
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 1");
    browser.click("button", "Simulate user=ann");
    browser.wait_for("Before shop.user: 5 per year");
    browser.wait_for("30 of 30 pass.");
    browser.wait_for("After shop.user: 1 per year");
    browser.wait_for("6 of 30 pass, the first over limit after 6307200 s.");
    browser.find(
        "image",
        "After: 6 of 30 pass, the first over limit after 6307200 s",
    );
    let entries = browser.find("textbox", "Entries, one KEY=VALUE per line");
    browser.run("document.querySelector('[name=entries]').value = ''");
    browser.type_into(&entries, "path=/login");
    let periods = browser.find("spinbutton", "Periods");
    browser.run("document.querySelector('[name=periods]').value = ''");
    browser.type_into(&periods, "2");
    browser.click("button", "Simulate");
    browser.wait_for("Before shop.path_/login: 4 per year");
    browser.wait_for("2, from 31536000 s\t4\t4\t4");
    browser.run("document.querySelector('[name=entries]').value = 'nothing'");
    browser.click("button", "Simulate");
    browser.wait_for("no limit has a rate for steady traffic");
}

#[test]
fn editor_is_used_by_keyboard_and_in_a_narrow_window() {
    let server = TestServer::with_rules(RULES).start();
    let browser = editor(&server);
    browser.run("document.getElementById('text').focus()");
    assert_eq!(browser.focus(), TEXT);
    browser.press("x");
    browser.wait_for("2 errors");
    browser.press(TAB);
    assert_eq!(browser.focus(), "Discard changes");
    browser.press(TAB);
    assert!(browser.focus().starts_with("Line "), "{}", browser.focus());
    browser.press(" ");
    assert_eq!(browser.focus(), TEXT);
    browser.run("document.getElementById('discard').click()");

    let narrow = Browser::start(500, 800);
    narrow.open(&url(&server, "/console/file?name=rules.yaml"));
    narrow.wait_for("Valid, same as the rules in force");
    assert_fits(&narrow);
}

#[tokio::test]
async fn typed_text_stays_while_the_page_is_refreshed() {
    let server = TestServer::with_rules(RULES).start();
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 9");
    browser.wait_for("Valid, 1 rule differs");
    // Another operator changes the file.
    server.write(
        "rules.yaml",
        &format!("{RULES}  - {{key: plan, shadow_mode: true}}\n"),
    );
    browser.wait_for("`shadow_mode` has no effect");
    let edited = RULES.replace("requests_per_unit: 5", "requests_per_unit: 9");
    assert_eq!(text(&browser), edited);
}

const TOKEN: &str = "open-sesame";

/// With rules that the token may change.
fn writable() -> Builder {
    TestServer::with_rules(RULES)
        .with_env("ADMIN_TOKEN", TOKEN)
        .with_env("RULES_WRITABLE", "true")
}

fn file(server: &TestServer) -> String {
    fs::read_to_string(server.path("rules.yaml")).expect("it exists")
}

fn confirm(browser: &Browser, token: &str) {
    let field = browser.find("textbox", "Token");
    browser.type_into(&field, token);
    browser.click("button", "Confirm");
}

#[tokio::test]
async fn text_is_applied_with_the_token_only_and_rolled_back() {
    let server = writable().start();
    let browser = editor(&server);
    let changed = RULES.replace("requests_per_unit: 5", "requests_per_unit: 3");
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    browser.wait_for("Valid, 1 rule differs");
    browser.click("button", "Apply");
    confirm(&browser, "wrong");
    browser.wait_for("Wrong token.");
    assert_eq!(file(&server), RULES);
    confirm(&browser, TOKEN);
    browser.wait_for("Applied: version 2 is in force.");
    browser.wait_for("Valid, same as the rules in force");
    assert_eq!(file(&server), changed);
    assert!(server.admin("/rlconfig").contains("requests_per_unit=3"));

    browser.wait_for("Version 2");
    browser.click("button", "Roll back");
    browser.wait_for("become those of version 1.");
    assert!(browser.found("textbox", "Token").is_none(), "it is known");
    browser.click("button", "Confirm");
    browser.wait_for("Rolled back to the text of version 1: version 3 is in force.");
    browser.wait_for("Valid, same as the rules in force");
    assert_eq!(text(&browser), RULES);
    assert_eq!(file(&server), RULES);
    assert!(server.admin("/rlconfig").contains("requests_per_unit=5"));
    let refused = |message: &String| message.contains("401");
    let errors: Vec<String> = browser.errors();
    assert!(errors.iter().all(refused), "{errors:?}");
}

#[test]
fn text_is_applied_by_keyboard() {
    let server = writable().start();
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    browser.wait_for("Valid, 1 rule differs");
    browser.press(TAB);
    assert_eq!(browser.focus(), "Apply");
    browser.press(ENTER);
    browser.find("dialog", "Apply this text?");
    assert_eq!(browser.focus(), "Token");
    browser.press(&format!("{TOKEN}{ENTER}"));
    browser.wait_for("Applied: version 2 is in force.");
    assert!(file(&server).contains("requests_per_unit: 3"));
}

#[test]
fn file_that_changed_meanwhile_is_not_overwritten() {
    let server = writable().start();
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    let other = RULES.replace("requests_per_unit: 4", "requests_per_unit: 8");
    server.write("rules.yaml", &other);
    browser.wait_for("The file has changed since this page was opened");
    browser.click("button", "Apply");
    confirm(&browser, TOKEN);
    browser.wait_for("the file has changed: its ETag is");
    assert_eq!(file(&server), other);
    browser.click("button", "Cancel");
    browser.click("button", "Discard this text and open the file again");
    browser.wait_for("Valid, same as the rules in force");
    assert_eq!(text(&browser), other);
}

#[test]
fn rules_that_another_file_makes_invalid_are_not_applied() {
    let server = writable().start();
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    browser.wait_for("Valid, 1 rule differs");
    server.write("other.yaml", "domain: shop\ndescriptors: []\n");
    browser.wait_for("Rejected: the newest rules are not in force");
    browser.click("button", "Apply");
    confirm(&browser, TOKEN);
    browser.wait_for("the rules are invalid with this change; nothing is written");
    browser.wait_for("duplicate domain 'shop' in config file");
    assert_eq!(file(&server), RULES);
}

#[test]
fn reason_why_nothing_can_be_applied_is_shown() {
    let server = TestServer::with_rules(RULES)
        .with_env("ADMIN_TOKEN", TOKEN)
        .start();
    let browser = editor(&server);
    browser.wait_for("Changes can be tried here, and not applied: ");
    browser.wait_for("RULES_WRITABLE");
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    browser.wait_for("Valid, 1 rule differs");
    assert!(browser.found("button", "Apply").is_none());
    assert!(browser.found("button", "Roll back").is_none());
}
