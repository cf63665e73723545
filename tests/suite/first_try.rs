//! The first try of README: what its command prints, who sees values, and when it warns.

use std::io::BufReader;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::support::http::{self, Connection};
use crate::support::{Builder, TestServer, assert_has, sample, tollgate};

/// A call that is limited for each user.
const CALL: &str =
    r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;

/// The text of README between two of its lines.
fn of_readme(begin: &str, end: &str) -> String {
    let page = std::fs::read_to_string(sample("README.md")).expect("it can be read");
    let (_, rest) = page.split_once(begin).unwrap_or_else(|| panic!("README has no {begin}"));
    rest.split(end).next().expect("there is always a first").to_owned()
}

/// An address of this machine by which its clients look like those of another.
fn address_of_this_machine() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
    // Nothing is sent: the kernel selects the address from which it would be.
    socket.connect("192.0.2.1:9").expect("this machine needs a network besides loopback");
    let address = socket.local_addr().expect("it has one").ip();
    assert!(!address.is_loopback(), "this machine needs a network besides loopback: {address}");
    address
}

/// The users that `/api/v1/top` names, and its hint.
fn top(addr: SocketAddr, headers: &str) -> (Vec<String>, Value) {
    top_on(Connection::open(addr), headers)
}

fn top_on(mut connection: Connection, headers: &str) -> (Vec<String>, Value) {
    let request = format!("GET /api/v1/top?by=hits HTTP/1.1\r\n{headers}\r\n");
    connection.write(request.as_bytes()).expect("it is open");
    let reply = connection.read("GET").expect("there is a response");
    let answer = reply.json();
    let keys = answer["rules"][0]["keys"].as_array().expect("the rule has hits").iter();
    let user = |key: &Value| key["key"][0][1].as_str().expect("a value").to_owned();
    (keys.map(user).collect(), answer["hint"].clone())
}

fn with_a_call(builder: Builder) -> TestServer {
    let server = builder.start();
    assert_eq!(server.json(CALL).status, 200);
    server
}

#[test]
fn start_prints_the_block_of_the_readme_and_no_warning() {
    let server = TestServer::first_try().with_a_terminal().with_env("LOG_LEVEL", "info").start();
    let ports = [(server.grpc, "8081"), (server.http, "8080"), (server.admin, "6070")];
    let printed = ports.iter().fold(server.announcement().to_owned(), |text, (addr, usual)| {
        text.replace(&format!(":{}", addr.port()), &format!(":{usual}"))
    });
    let block = of_readme("The start prints:\n\n```text\n", "```");
    assert_eq!(printed.trim_end(), block.trim_end());
    // A call of this machine changes nothing.
    assert_eq!(server.json(CALL).status, 200);
    let log = server.log();
    let lines: Vec<&str> = log.lines().collect();
    assert!(matches!(*lines, [line] if line.contains("INFO rules loaded")), "{log}");
}

#[test]
fn memory_store_warns_once_when_another_machine_calls() {
    let address = address_of_this_machine();
    let server = TestServer::first_try().start();
    let warning = "WARN memory store: counts in this process only";
    for _ in 0..3 {
        assert_eq!(http::post(server.http, "/json", CALL).status, 200);
    }
    server.assert_not_logged(warning);
    for addr in [server.http, server.grpc, server.http] {
        http::Connection::open((address, addr.port()).into());
    }
    assert_eq!(http::get((address, server.http.port()).into(), "/ready").status, 200);
    server.assert_logged_once(warning);

    let chosen = TestServer::first_try().with_env("BACKEND_TYPE", "memory").start();
    assert_eq!(http::get((address, chosen.http.port()).into(), "/ready").status, 200);
    chosen.assert_not_logged(warning);
}

/// Headers of a request, and whether it sees values on the port of all addresses.
const VIEWERS: &str = "
    host: localhost:6070 | true
    host: LocalHost | true
    host: 127.0.0.1:6070 | true
    host: [::1]:6070 | true
    host: 127.0.0.2 | false
    host: 10.0.0.1 | false
    host: tollgate.shop.svc | false
    host: test | false
    host: localhost, host: 10.0.0.1 | false
    host: localhost, x-forwarded-for: 127.0.0.1 | false
    host: localhost, x-forwarded-proto: https | false
    host: localhost, forwarded: for=10.0.0.1 | false
    host: localhost, via: 1.1 proxy | false
    host: localhost, x-real-ip: 10.0.0.1 | false
    host: localhost, x-envoy-external-address: 10.0.0.1 | false
";

#[test]
fn viewers_of_a_first_try_on_the_same_machine_see_values() {
    let server = with_a_call(TestServer::first_try());
    let local = SocketAddr::from(([127, 0, 0, 1], server.admin.port()));
    for line in VIEWERS.trim().lines() {
        let (headers, sees) = line.trim().split_once(" | ").expect("headers | whether");
        let headers = headers.split(", ").map(|header| format!("{header}\r\n"));
        let (users, hint) = top(local, &headers.collect::<String>());
        let expected = if sees == "true" { "ann" } else { "" };
        assert_eq!(users, [expected], "{line}");
        assert_eq!(hint == Value::Null, sees == "true", "{line}: {hint}");
    }
    let remote = SocketAddr::new(address_of_this_machine(), server.admin.port());
    assert_eq!(top(remote, "host: localhost\r\n").0, [""]);
    // Sidecars connect from other addresses of loopback.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("sockets can be made");
    socket.bind(&SocketAddr::from(([127, 0, 0, 6], 0)).into()).expect("Linux has this address");
    socket.connect(&local.into()).expect("the port is open");
    let sidecar = Connection(BufReader::new(socket.into()));
    assert_eq!(top_on(sidecar, "host: localhost\r\n").0, [""]);
    let printed = tollgate(&["top", "--by", "hits", "--url", &format!("http://{local}")]).stdout;
    assert!(printed.contains("user=ann") && !printed.contains("left out"), "{printed}");
    let url = format!("http://{remote}");
    let printed = tollgate(&["top", "--by", "hits", "--url", &url]).stdout;
    let hint = format!(
        "\nvalues that clients send are left out: set ADMIN_READ_TOKEN, or ADMIN_REDACT=none; {url}/console/runbook#who-is-limited\n"
    );
    assert!(printed.contains(&hint), "{printed}");
}

#[test]
fn values_of_other_services_are_hidden_and_the_page_says_what_shows_them() {
    let rules = std::fs::read_to_string(sample("config/shop.yaml")).expect("it can be read");
    let named = || TestServer::with_rules(&rules).with_env("DEBUG_HOST", "0.0.0.0");
    let token = || TestServer::first_try().with_env("ADMIN_READ_TOKEN", "may-only-read-values");
    let dropped = || TestServer::first_try().with_env("ADMIN_REDACT", "drop");
    for (server, hint) in [
        (named(), "set ADMIN_READ_TOKEN, or ADMIN_REDACT=none"),
        (dropped(), "set ADMIN_READ_TOKEN, or ADMIN_REDACT=none"),
        (token(), "send ADMIN_READ_TOKEN to see them"),
    ] {
        let server = with_a_call(server);
        let local = SocketAddr::from(([127, 0, 0, 1], server.admin.port()));
        let seen = top(local, "host: localhost\r\n");
        assert_eq!(seen, (vec![String::new()], json!(hint)));
        let page = http::get(local, "/console/rule?domain=shop&rule=shop.user").body;
        let left_out = format!("Values that clients send are left out: {hint}. ");
        assert_has(&page, &[&left_out, "href=\"/console/runbook#who-is-limited\""]);
    }
}

#[test]
fn commands_of_the_readme_show_something() {
    let server = with_a_call(TestServer::first_try());
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let folder = binary.parent().expect("it is in a folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").expect("there is a PATH"));
    let block = of_readme("cargo install --locked --path . --profile quick-release", "```");
    let commands = block.lines().skip(1).map(|line| line.split("   ").next().unwrap_or_default());
    let commands: Vec<&str> = commands.collect();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(sample("")).env("PATH", &path);
        shell.env("TOLLGATE_URL", format!("http://127.0.0.1:{}", server.admin.port()));
        let ran = shell.output().expect("there is a shell");
        let printed = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && printed.lines().count() > 1, "{command}: {ran:?}");
    }
}

#[test]
fn start_without_rules_and_commands_without_a_service_say_what_to_do() {
    let server = TestServer::with_runtime_root("/no/such/folder".as_ref()).start();
    let hint = "none: there is no /no/such/folder/config; name a directory as in `tollgate DIR`, or start where ./config is";
    server.assert_announced(hint);
    for command in
        [&["top"][..], &["counter", "get", "shop", "user=42"], &["usage", "shop", "user=42"]]
    {
        let ran = tollgate(&[command, &["--url", "http://127.0.0.1:1"]].concat());
        let advice = "no service listens there; start it, or name its admin port by --url";
        ran.assert_failed(1, &[advice]);
    }
}
