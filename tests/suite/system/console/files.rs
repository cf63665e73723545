//! The text of a rules file in a real browser: it is applied with the token.

use std::fs;

use serde_json::{Value, json};

use super::{ENTER, TAB, assert_fits, url};
use crate::support::TestServer;
use crate::support::browser::Browser;

const RULES: &str = "domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 4}}
";
const TEXT: &str = "Rules of rules.yaml";

/// The page of the file.
fn editor(server: &TestServer) -> Browser {
    let browser = Browser::start(1_280, 900);
    browser.open(&url(server, "/console/files"));
    browser.click("link", "rules.yaml");
    browser.find("heading", "rules.yaml");
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

const TOKEN: &str = "open-sesame";

/// With rules that the token may change.
fn writable() -> TestServer {
    let settings = [("ADMIN_TOKEN", TOKEN), ("RULES_WRITABLE", "true")];
    TestServer::with_rules(RULES).with_envs(&settings).start()
}

fn file(server: &TestServer) -> String {
    fs::read_to_string(server.path("rules.yaml")).expect("it exists")
}

fn confirm(browser: &Browser, token: &str) {
    let field = browser.find("textbox", "Token");
    browser.type_into(&field, token);
    browser.click("button", "Confirm");
}

#[test]
fn typed_text_stays_while_the_page_is_refreshed() {
    let server = writable();
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 9");
    // Another operator changes the file.
    server.write("rules.yaml", &format!("{RULES}  - {{key: plan, shadow_mode: true}}\n"));
    browser.wait_for("`shadow_mode` has no effect");
    let edited = RULES.replace("requests_per_unit: 5", "requests_per_unit: 9");
    assert_eq!(text(&browser), edited);
}

#[test]
fn a_message_leads_to_its_line_and_the_page_fits_a_narrow_window() {
    let server = writable();
    let narrow = Browser::start(500, 800);
    narrow.open(&url(&server, "/console/file?name=rules.yaml#L4"));
    narrow.find("textbox", TEXT);
    let selected = "const text = document.getElementById('text');
        return text.value.slice(text.selectionStart, text.selectionEnd)";
    let line = "    rate_limit: {unit: year, requests_per_unit: 5}";
    assert_eq!(narrow.run(selected), line);
    assert_eq!(narrow.focus(), TEXT);
    assert_fits(&narrow);
}

#[tokio::test]
async fn text_is_applied_with_the_token_only() {
    let server = writable();
    let browser = editor(&server);
    let changed = RULES.replace("requests_per_unit: 5", "requests_per_unit: 3");
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    browser.click("button", "Apply");
    confirm(&browser, "wrong");
    browser.wait_for("Wrong token.");
    assert_eq!(file(&server), RULES);
    confirm(&browser, TOKEN);
    browser.wait_for("Applied: this text is in force.");
    assert_eq!(file(&server), changed);
    assert!(server.admin("/rlconfig").contains("requests_per_unit=3"));

    assert_eq!(text(&browser), changed);
    let refused = |message: &String| message.contains("401");
    let errors: Vec<String> = browser.errors();
    assert!(errors.iter().all(refused), "{errors:?}");
}

#[test]
fn text_is_applied_by_keyboard() {
    let server = writable();
    let browser = editor(&server);
    replace(&browser, "requests_per_unit: 5", "requests_per_unit: 3");
    browser.press(TAB);
    assert_eq!(browser.focus(), "Apply");
    browser.press(ENTER);
    browser.find("dialog", "Apply this text?");
    assert_eq!(browser.focus(), "Token");
    browser.press(&format!("{TOKEN}{ENTER}"));
    browser.wait_for("Applied: this text is in force.");
    assert!(file(&server).contains("requests_per_unit: 3"));
}

#[test]
fn file_that_changed_meanwhile_is_not_overwritten() {
    let server = writable();
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
    browser.run(
        "document.getElementById('text').value = document.getElementById('text').defaultValue",
    );
    browser.open(&url(&server, "/console/file?name=rules.yaml"));
    browser.find("textbox", TEXT);
    assert_eq!(text(&browser), other);
}
