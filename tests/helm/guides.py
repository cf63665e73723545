"""Checks the files of deploy/ that docs/gateways.md and docs/redis.md describe. check.py runs it.

Schemas are those of the projects, from their Go modules, without the expressions (CEL) that an API server also evaluates.
"""

import base64
import hashlib
import hmac
import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

import pod
from chart import KUBERNETES, ROOT, TOOLS, Failed, documents, of_kind, rendered, run

# Kinds whose schemas are in no package registry. docs/gateways.md says so.
WITHOUT_SCHEMA = {"gateway.kgateway.dev/v1alpha1": {"GatewayExtension", "TrafficPolicy"}, "aigateway.envoyproxy.io/v1alpha1": {"AIGatewayRoute"}}
SAMPLES = [f"deploy/{name}.yaml" for name in ("istio/waypoint", "istio/envoy-filter", "contour/rate-limits", "kgateway/rate-limits", "envoy-gateway/tenants", "envoy-gateway/ai-tokens")]


def samples_are_valid(kubernetes_schemas):
    """the samples of gateways are valid for the schemas of Istio, Contour, Envoy Gateway, the Gateway API and Kubernetes"""
    with tempfile.TemporaryDirectory() as directory:
        schemas = Path(directory)
        kubernetes_schemas(KUBERNETES[-1], schemas / "kubernetes")
        write_schemas(schemas / "custom")
        for sample in SAMPLES:
            text = (ROOT / sample).read_text()
            validate(schemas, sample, text)
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
