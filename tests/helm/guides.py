"""Checks the files of deploy/ that docs/envoy.md and docs/redis.md describe. check.py runs it.

Schemas are those of the projects, from their Go modules, without the expressions (CEL) that an API server also evaluates.
"""

import base64
import hashlib
import hmac
import http.server
import json
import os
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

import pod
from chart import KUBERNETES, ROOT, TOOLS, Failed, documents, of_kind, rendered, run, value_sets

# Kinds whose schemas are in no package registry. docs/envoy.md says so.
WITHOUT_SCHEMA = {"gateway.kgateway.dev/v1alpha1": {"GatewayExtension", "TrafficPolicy"}, "aigateway.envoyproxy.io/v1alpha1": {"AIGatewayRoute"}}
SAMPLES = [f"deploy/{name}.yaml" for name in ("istio/waypoint", "istio/envoy-filter", "contour/rate-limits", "kgateway/rate-limits", "envoy-gateway/tenants", "envoy-gateway/ai-tokens")]


def samples_are_valid(kubernetes_schemas):
    """the samples of gateways, and the chart's resources for Istio, are valid for the schemas of Istio, Contour, Envoy Gateway, the Gateway API and Kubernetes"""
    with tempfile.TemporaryDirectory() as directory:
        schemas = Path(directory)
        kubernetes_schemas(KUBERNETES[-1], schemas / "kubernetes")
        write_schemas(schemas / "custom")
        of_chart = [document for kind in ("EnvoyFilter", "DestinationRule") for document in of_kind(rendered(*value_sets()["istio"]), kind)]
        validate(schemas, "the chart", yaml.safe_dump_all(of_chart))
        for sample in SAMPLES:
            text = (ROOT / sample).read_text()
            validate(schemas, sample, text)
            # So that the schema is one of this kind, and closed.
            for document in documents(text):
                broken = yaml.safe_dump({**document, "spec": {**document["spec"], "rateLimitz": {}}})
                if not is_unchecked(document) and kubeconform(schemas, broken)[0]:
                    raise Failed(f"{sample}: an unknown field of {document['kind']} is accepted: the schema validates nothing")


def validate(schemas, sample, text):
    """Every document but those without a schema."""
    checked = [document for document in documents(text) if not is_unchecked(document)]
    good, said = kubeconform(schemas, yaml.safe_dump_all(checked))
    if not good or not checked:
        raise Failed(f"{sample}: {said}")


def is_unchecked(document):
    return document["kind"] in WITHOUT_SCHEMA.get(document["apiVersion"], ())


def write_schemas(directory):
    """A schema for kubeconform of each version of each custom resource that tests/tools.py installs."""
    directory.mkdir()
    for path in sorted(TOOLS.parent.glob("crds-*/*.yaml")):
        for crd in documents(path.read_text()):
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
                name = f"{spec['names']['kind']}-{spec['group'].partition('.')[0]}-{version['name']}".lower()
                (directory / f"{name}.json").write_text(json.dumps(closed(schema)))


def closed(schema):
    """Without fields that the schema does not name, which an API server would drop."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A property may have the name of a keyword, so only schemas of objects are closed.
    found = {name: closed(each) for name, each in schema.items()}
    keeps_others = found.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in found
    if found.get("type") == "object" and isinstance(found.get("properties"), dict) and not keeps_others:
        found["additionalProperties"] = False
    return found


def kubeconform(schemas, text):
    places = [each for folder in ("kubernetes", "custom") for each in ("-schema-location", f"{schemas / folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json")]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        good, out, error = run(TOOLS / "kubeconform", "-strict", *places, file.name)
    return good, out + error


def waypoint_limits(start):
    """requests through the filter, the cluster and the route of deploy/istio/waypoint.yaml in a real Envoy are limited"""
    (envoy_filter,) = of_kind((ROOT / "deploy/istio/waypoint.yaml").read_text(), "EnvoyFilter")
    http_filter, cluster, route = (patch["patch"]["value"] for patch in envoy_filter["spec"]["configPatches"])
    # A busy machine must not let requests pass without a response.
    http_filter["typed_config"] |= {"timeout": "5s", "failure_mode_deny": True}
    (rules,) = of_kind((ROOT / "deploy/istio/rate-limit-service.yaml").read_text(), "ConfigMap")
    with start(rendered("--set-json", f"rules.files={json.dumps(rules['data'])}")) as service:
        with Envoy(service, [http_filter], route, cluster) as envoy:
            # Three, because a minute may end between two of them.
            statuses = [envoy.get("/") for _ in range(3)]
            if statuses[0] != 200 or 429 not in statuses or envoy.get("/other") != 200:
                raise Failed(f"once a minute is answered with {statuses}; it said:\n{service.said()}")


def tenants_have_their_limits(start):
    """a real Envoy with the metadata of deploy/envoy-gateway/tenants.yaml limits each tenant as its token says"""
    text = (ROOT / "deploy/envoy-gateway/tenants.yaml").read_text()
    (provider,) = of_kind(text, "SecurityPolicy")[0]["spec"]["jwt"]["providers"]
    (rule,) = of_kind(text, "BackendTrafficPolicy")[0]["spec"]["rateLimit"]["global"]["rules"]
    source = rule["limit"]["fromMetadata"]
    secret = base64url(b"only for this test, of 32 bytes!")
    # As Envoy Gateway translates the policies: internal/xds/translator/jwt.go and ratelimit.go of its module.
    jwt = {
        "providers": {
            "it": {
                "issuer": provider["issuer"],
                "payload_in_metadata": provider["name"],
                "claim_to_headers": [{"header_name": each["header"], "claim_name": each["claim"]} for each in provider["claimToHeaders"]],
                "local_jwks": {"inline_string": json.dumps({"keys": [{"kty": "oct", "alg": "HS256", "k": secret}]})},
            }
        },
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "it"}}],
    }
    limit = {
        "actions": [{"request_headers": {"header_name": rule["clientSelectors"][0]["headers"][0]["name"], "descriptor_key": "tenant"}}],
        "limit": {"dynamic_metadata": {"metadata_key": {"key": source["namespace"], "path": [{"key": source["key"]}]}}},
    }
    filters = [
        {"name": source["namespace"], "typed_config": {"@type": f"{ENVOY}.filters.http.jwt_authn.v3.JwtAuthentication", **jwt}},
        {
            "name": "envoy.filters.http.ratelimit",
            "typed_config": {
                "@type": f"{ENVOY}.filters.http.ratelimit.v3.RateLimit",
                "domain": "tenants",
                "timeout": "5s",
                "failure_mode_deny": True,
                "rate_limit_service": {"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "rate_limit_cluster"}}},
            },
        },
    ]
    per_route = {"@type": f"{ENVOY}.filters.http.ratelimit.v3.RateLimitPerRoute", "rate_limits": [limit]}
    route = {"typed_per_filter_config": {"envoy.filters.http.ratelimit": per_route}}
    cluster = {"name": "rate_limit_cluster", "type": "STATIC", "connect_timeout": "5s", "http2_protocol_options": {}}
    rules = {"tenants": {"descriptors": [{"key": "tenant", "rate_limit": {"unit": "year", "requests_per_unit": 1}}]}}
    cases = [({"tenant": "basic"}, 1), *(({"tenant": name, "requests_per_unit": size, "unit": "YEAR"}, size) for name, size in (("acme", 2), ("globex", 3)))]
    with start(rendered("--set-json", f"rules.domains={json.dumps(rules)}")) as service:
        with Envoy(service, filters, route, cluster) as envoy:
            if envoy.get("/") != 401:
                raise Failed("a request without a token passes")
            for claims, size in cases:
                token = signed({"iss": provider["issuer"], **claims}, secret)
                # A client cannot choose its tenant.
                statuses = [envoy.get("/", {"authorization": f"Bearer {token}", "x-tenant": f"forged-{turn}"}) for turn in range(size + 1)]
                if statuses != [200] * size + [429]:
                    raise Failed(f"{claims} is answered with {statuses}; it said:\n{service.said()}")


def values_render(kubernetes_schemas):
    """the values of deploy/redis render what Kubernetes accepts"""
    with tempfile.TemporaryDirectory() as directory:
        schemas = Path(directory)
        kubernetes_schemas(KUBERNETES[-1], schemas / "kubernetes")
        (schemas / "custom").mkdir()
        for name in REDIS_VALUES:
            validate(schemas, name, redis_values(name))


REDIS_VALUES = ("elasticache", "memorystore", "shared-region")


def redis_values(name, *options):
    """The manifests of a file of deploy/redis, with rules."""
    return rendered("--values", ROOT / "deploy" / "redis" / f"{name}-values.yaml", *value_sets()["memory"], *options)


def tokens_are_replaced(start, name):
    """Tollgate counts before and after its token changes, when Redis has closed the connections of the old one."""
    # As long as one of ElastiCache with a session, and with its characters.
    user, token = "tollgate", "limits/?Action=connect&User=tollgate&X-Amz-Date=20261125T115500Z&X-Amz-Security-Token=" + "a%2Fb%2B" * 150
    # The authority of the test signs the certificate of its Redis.
    with start(redis_values(name, "--set", "redis.tls.existingSecret=authority")) as service:
        (server,) = service.redis["REDIS"]
        service.eventually("it counts with the first token", lambda: counted(service, server, "first"))
        server.command("ACL", "SETUSER", user, "reset", "on", f">{token}", "~*", "&*", "+@all")
        pod.publish(service.mounted("/etc/tollgate/token"), {"auth": f"{user}:{token}"})
        service.eventually("the token is reloaded", lambda: "credentials for Redis reloaded" in service.said())
        server.command("CLIENT", "KILL", "USER", "default")
        service.eventually("it counts with the second token", lambda: counted(service, server, "second"))
        # One that was just being opened with the first token may count, too.
        service.eventually(f"{name}: a connection of {user}", lambda: f"user={user}" in server.command("CLIENT", "LIST"))


def counted(service, server, user):
    service.ask("shop", user=user)
    return user in server.command("KEYS", f"*{user}*")


def metadata_token_is_written():
    """the script of deploy/redis/memorystore-values.yaml writes the token of the metadata server"""
    (deployment,) = of_kind(redis_values("memorystore"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["initContainers"]
    body = json.dumps({"access_token": "ya29.a-b_c", "expires_in": 3599, "token_type": "Bearer"}).encode()
    with tempfile.TemporaryDirectory() as directory, MetadataServer(body) as server:
        path = Path(directory) / "auth"
        environment = {"PATH": os.environ["PATH"], "GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}", "TOKEN_FILE": str(path)}
        script = pod.Process([*container["command"], *container["args"]], environment, Path(directory) / "log")
        give_up = time.monotonic() + pod.PATIENCE_S
        while not path.exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        script.stop()
        found = path.read_text() if path.exists() else script.said()
        if found != "default:ya29.a-b_c\n":
            raise Failed(f"the token file has {found!r}")


class MetadataServer(http.server.HTTPServer):
    """Responds with a token to requests as Google's metadata server requires them."""

    def __init__(self, body):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                is_valid = self.path.endswith("/service-accounts/default/token") and self.headers["Metadata-Flavor"] == "Google"
                self.send_response(200 if is_valid else 403)
                self.end_headers()
                self.wfile.write(body if is_valid else b"")

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def checks(kubernetes_schemas, start):
    """Name and function of each check. `start` starts the binary with rendered manifests."""
    found = [(check.__doc__, lambda check=check: check(kubernetes_schemas)) for check in (samples_are_valid, values_render)]
    found += [(check.__doc__, lambda check=check: check(start)) for check in (waypoint_limits, tenants_have_their_limits)]
    found.append((metadata_token_is_written.__doc__, metadata_token_is_written))
    for name in ("elasticache", "memorystore"):
        what = f"the binary counts with the token of deploy/redis/{name}-values.yaml, and with the next one"
        found.append((what, lambda name=name: tokens_are_replaced(start, name)))
    return found


ENVOY = "type.googleapis.com/envoy.extensions"


class Envoy:
    """A real Envoy with these filters, whose upstream responds 200, and whose rate limit service is `service`."""

    def __init__(self, service, filters, route, cluster):
        self.directory = tempfile.TemporaryDirectory(prefix="tollgate-envoy-")
        self.port, upstream = pod.free_ports(2)
        cluster = {**cluster, "type": "STATIC", "load_assignment": endpoint(cluster["name"], service.ports["grpc"])}
        clusters = [cluster, {"name": "upstream", "type": "STATIC", "load_assignment": endpoint("upstream", upstream)}]
        listeners = [
            listener(self.port, filters, {"match": {"prefix": "/"}, "route": {"cluster": "upstream"}, **route}),
            listener(upstream, [], {"match": {"prefix": "/"}, "direct_response": {"status": 200}}),
        ]
        config = Path(self.directory.name) / "envoy.yaml"
        config.write_text(yaml.safe_dump({"static_resources": {"listeners": listeners, "clusters": clusters}}))
        words = [TOOLS / "envoy", "-c", config, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"]
        self.process = pod.Process(list(map(str, words)), {"PATH": os.environ["PATH"]}, Path(self.directory.name) / "log")

    def __enter__(self):
        give_up = time.monotonic() + pod.PATIENCE_S
        while self.get("/ready", {"authorization": "none"}) is None:
            if self.process.ended() or time.monotonic() > give_up:
                said = self.process.said()
                self.__exit__()
                raise Failed(f"Envoy does not respond; it said:\n{said}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.stop()
        self.directory.cleanup()

    def get(self, path, headers={}):
        """The status, or None without an answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers), timeout=10) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None


def listener(port, filters, route):
    router = {"name": "router", "typed_config": {"@type": f"{ENVOY}.filters.http.router.v3.Router"}}
    http = {
        "@type": f"{ENVOY}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "http_filters": [*filters, router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    return {"address": address(port), "filter_chains": [{"filters": [{"name": "http", "typed_config": http}]}]}


def endpoint(cluster, port):
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}]}


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def signed(claims, secret):
    """A JWT, signed with HS256."""
    head, body = (base64url(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
    key = base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    return f"{head}.{body}.{base64url(hmac.digest(key, f'{head}.{body}'.encode(), hashlib.sha256))}"


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
