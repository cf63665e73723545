//! A real Chromium, driven by chromedriver over WebDriver: what a page shows, and its accessible
//! names.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::http::{Connection, Reply};
use super::process::{PATIENCE, Process, look_for, look_until};

const INSTALL: &str =
    "install it: apt-get install --no-install-recommends chromium chromium-driver";
/// WebDriver's name of a reference to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// Elements that can have a role, by selector.
const ANY: &str = "a, button, input, textarea, select, dialog, h1, h2, svg, table, tr, [role]";

/// How often chromedriver is started for one browser.
const DRIVER_STARTS_MAX: usize = 5;

/// A browser with one window. Dropped, it ends.
pub(crate) struct Browser {
    _driver: Process,
    _home: TempDir,
    port: u16,
    session: String,
}

/// An element of the page.
#[derive(Debug, Clone)]
pub(crate) struct Element(String);

impl Browser {
    /// Starts with a window of this size.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let home = TempDir::new().expect("a temporary directory can be made");
        let mut starts = (0..DRIVER_STARTS_MAX).map(|_| start_driver(home.path()));
        let (driver, port) = starts.find_map(|started| started).expect("chromedriver has a port");
        let arguments = [
            "--headless=new".to_owned(),
            // The tests may run as root, where Chromium's sandbox does not start.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let options = json!({"binary": program("chromium"), "args": arguments});
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = send(port, "POST", "/session", &wanted);
        Self { _driver: driver, _home: home, port, session: text(&session["sessionId"]) }
    }

    /// Opens a page.
    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// Draws pages without motion, in `light` or `dark` colors, and this many pixels wide: a window
    /// cannot be as narrow as a telephone.
    pub(crate) fn emulate(&self, width: u32, colors: &str) {
        let feature = |name: &str, value: &str| json!({"name": name, "value": value});
        let features =
            [feature("prefers-color-scheme", colors), feature("prefers-reduced-motion", "reduce")];
        let screen = json!({"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": true});
        for (command, parameters) in [
            ("Emulation.setEmulatedMedia", json!({"features": features})),
            ("Emulation.setDeviceMetricsOverride", screen),
        ] {
            self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
        }
    }

    /// The path and query of the page.
    pub(crate) fn url(&self) -> String {
        text(&self.get("/url"))
    }

    /// Messages of the console: errors of scripts, and whatever the policy blocked.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({"type": "browser"}));
        let entries = log.as_array().cloned().unwrap_or_default();
        let messages = entries.iter().map(|entry| text(&entry["message"]));
        messages.collect()
    }

    /// The visible text of the page.
    pub(crate) fn shown(&self) -> String {
        text(&self.run("return document.body.innerText"))
    }

    /// Runs a script.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until the page shows a text.
    pub(crate) fn wait_for(&self, expected: &str) {
        look_for(&format!("the page shows {expected:?}"), || {
            self.shown().contains(expected).then_some(())
        });
    }

    /// Waits for a visible element with this role and accessible name.
    pub(crate) fn find(&self, role: &str, name: &str) -> Element {
        look_for(&format!("there is a {role} named {name:?}"), || self.found(role, name))
    }

    /// The visible element with this role and accessible name, if there is one.
    pub(crate) fn found(&self, role: &str, name: &str) -> Option<Element> {
        let all = self.post("/elements", &json!({"using": "css selector", "value": ANY}));
        let all = all.as_array().cloned().unwrap_or_default();
        let mut elements = all.iter().map(|element| Element(text(&element[ELEMENT])));
        elements.find(|element| self.is(element, role, name))
    }

    /// Clicks, as a person does.
    pub(crate) fn click(&self, role: &str, name: &str) {
        let Element(id) = self.find(role, name);
        self.post(&format!("/element/{id}/click"), &json!({}));
    }

    /// Moves the pointer to the first element of a selector.
    pub(crate) fn point_at(&self, selector: &str) {
        let query = json!({"using": "css selector", "value": selector});
        let element = self.post("/element", &query);
        let to = json!({"type": "pointerMove", "x": 0, "y": 0, "origin": element});
        let pointer = json!({"type": "pointer", "id": "mouse", "actions": [to]});
        self.post("/actions", &json!({"actions": [pointer]}));
    }

    /// Types into an element.
    pub(crate) fn type_into(&self, element: &Element, keys: &str) {
        let path = format!("/element/{}/value", element.0);
        self.post(&path, &json!({"text": keys}));
    }

    /// Presses keys where the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let focus = self.get("/element/active");
        self.type_into(&Element(text(&focus[ELEMENT])), keys);
    }

    /// The accessible name of the element that has the focus.
    pub(crate) fn focus(&self) -> String {
        let focus = text(&self.get("/element/active")[ELEMENT]);
        text(&self.get(&format!("/element/{focus}/computedlabel")))
    }

    fn is(&self, Element(id): &Element, role: &str, name: &str) -> bool {
        // An element may be replaced meanwhile.
        let of = |what: &str| {
            let path = format!("/session/{}/element/{id}/{what}", self.session);
            try_send(self.port, "GET", &path, &Value::Null).unwrap_or_default()
        };
        of("computedlabel") == name && of("computedrole") == role && of("displayed") == true
    }

    fn get(&self, path: &str) -> Value {
        let path = format!("/session/{}{path}", self.session);
        send(self.port, "GET", &path, &Value::Null)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        send(self.port, "POST", &path, body)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium; the driver is killed afterwards.
        let path = format!("/session/{}", self.session);
        let _ = try_send(self.port, "DELETE", &path, &Value::Null);
    }
}

/// A program of the distribution.
fn program(name: &str) -> String {
    let path = format!("/usr/bin/{name}");
    assert!(Path::new(&path).exists(), "{path} is missing; {INSTALL}");
    path
}

/// Starts chromedriver, which ends if the port that it has of IPv4 is taken of IPv6.
fn start_driver(home: &Path) -> Option<(Process, u16)> {
    let log = home.join("log");
    let mut command = Command::new(program("chromedriver"));
    command.arg("--port=0").env("HOME", home).env("TMPDIR", home);
    let mut driver = Process::start("chromedriver", command, log.clone());
    look_until("chromedriver has a port", || driver.ended().is_some() || port_in(&log).is_some());
    port_in(&log).map(|port| (driver, port))
}

fn port_in(log: &Path) -> Option<u16> {
    let log = fs::read_to_string(log).ok()?;
    let (_, behind) = log.split_once("started successfully on port ")?;
    behind.split('.').next()?.parse().ok()
}

fn send(port: u16, method: &str, path: &str, body: &Value) -> Value {
    try_send(port, method, path, body)
        .unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"))
}

/// The `value` of a reply.
fn try_send(port: u16, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let mut connection = Connection::open(([127, 0, 0, 1], port).into());
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write(format!("{head}{body}").as_bytes()).map_err(|error| error.to_string())?;
    let Reply { status, body, .. } =
        connection.read(method).map_err(|error| format!("no reply in {PATIENCE:?}: {error}"))?;
    let mut reply: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
    match status {
        200 => Ok(reply["value"].take()),
        _ => Err(reply["value"]["message"].to_string()),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
