"""Checks the chart without a cluster, and starts the real binary with the rendered manifests. `make helm` runs it.

Each check prints a line. With REWRITE=1 the goldens and the table of the chart's README are rewritten instead of compared.
"""

import difflib
import functools
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

import guides
import pod
from chart import CHART, KUBERNETES, NAMESPACE, RELEASE, ROOT, TOOLS, Failed, documents, helm, of_kind, rendered, run, template, value_sets

HERE = Path(__file__).resolve().parent
REWRITE = os.environ.get("REWRITE") == "1"
# The set of values whose golden is whole.
BASE = "memory"
REWRITE_HINT = "if this is intended, run `make helm-goldens` and commit the result"
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "tollgate.json"
SEVERITIES = ("critical", "warning", "info")
# The URL of docs/operations.md in deploy/prometheus, which its users replace, and the one in everything-values.yaml.
RUNBOOK_SAMPLE = "https://git.example.com/tollgate/blob/main/docs/operations.md"
RUNBOOK = "https://runbooks.example.com/tollgate"
# What Envoy Gateway creates in its own namespace when `rateLimit` is set.
ENVOY_GATEWAYS_NAMES = {"envoy-ratelimit", "envoy-rate-limit"}
# Variables that are not Tollgate's.
NOT_OURS = {"PATH", "NODE_NAME"}


def lint():
    """helm lint reports nothing, with and without values"""
    for options in [(), *value_sets().values()]:
        good, out, error = helm("lint", "--strict", CHART, "--kube-version", KUBERNETES[0], *options)
        if not good or "[INFO]" in out or "[WARNING]" in out:
            raise Failed(f"helm lint {options}: {out}{error}")


def goldens():
    """each set of values renders its golden: the base whole, the others as differences to it"""
    texts = {name: without_copies(rendered(*options)) for name, options in value_sets().items()}
    expected = {HERE / "golden" / f"{BASE}.yaml": texts[BASE]}
    expected |= {HERE / "golden" / f"{name}.diff": differences(texts[BASE], text) for name, text in texts.items() if name != BASE}
    for golden, text in expected.items():
        if REWRITE:
            golden.write_text(text)
        elif not golden.exists() or golden.read_text() != text:
            raise Failed(f"{golden.relative_to(ROOT)} differs from the output of helm template for the values of {golden.stem}; {REWRITE_HINT}")
    stale = set((HERE / "golden").iterdir()) - set(expected)
    if stale:
        raise Failed(f"tests/helm/golden has files without a set of values: {', '.join(sorted(path.name for path in stale))}")


def without_copies(text):
    """Rendered manifests without the dashboard and the alerts, which `chart_dashboard` and `chart_alerts` compare with their originals."""
    text = re.sub(r"(  tollgate\.json: \|\n)(    .*\n|\n)+", r"\1    (files/dashboard.json)\n", text)
    return re.sub(r"(  groups:\n)(    .*\n|\n)+", r"\1    (deploy/prometheus/tollgate-alerts.yaml)\n", text)


def differences(base, text):
    """The manifests that differ from those of the base, each as a diff. Without line numbers, which change with every line above."""
    before, after = manifests(base), manifests(text)
    found = []
    for name in dict.fromkeys([*before, *after]):
        diff = [*difflib.unified_diff(before.get(name, []), after.get(name, []), n=1, lineterm="")][2:]
        if diff:
            found += [f"=== {name}", *("@@" if line.startswith("@@") else line for line in diff)]
    return "\n".join(found) + "\n"


def manifests(text):
    """The lines of each manifest, by its kind and its name without the release and the chart, which a set of values may change."""
    found = {}
    for part in re.split(r"^---\n", text, flags=re.MULTILINE):
        if document := yaml.safe_load(part):
            suffix = re.sub(rf"^({RELEASE}-)?(tollgate|limits)", "", document["metadata"]["name"])
            key = f"{document['kind']} *{suffix}"
            if key in found:
                raise Failed(f"{key} is rendered twice")
            found[key] = part.splitlines()
    return found


def kubernetes_takes_it():
    """every document is valid for the oldest and the newest Kubernetes, and for the schemas of custom resources"""
    texts = {name: rendered(*options) for name, options in value_sets().items()}
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        for version in KUBERNETES:
            make_schemas(version, directory / version)
            for name, text in texts.items():
                if version == KUBERNETES[0]:
                    # Newer than that version.
                    text = text.replace("  trafficDistribution: PreferClose\n", "")
                good, said = kubeconform(directory / version, text)
                if not good:
                    raise Failed(f"{name}: invalid for Kubernetes {version}\n{said}")
            broken = texts["memory"].replace("containerPort:", "containerPorts:", 1)
            if kubeconform(directory / version, broken)[0]:
                raise Failed(f"kubeconform accepts `containerPorts` with the schemas of {version}: it validates nothing")


def make_schemas(version, directory):
    """Schemas for kubeconform, with local references."""
    import kubernetes_validate

    source = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{version}-local-strict"
    directory.mkdir()
    kinds = "deployment-apps-v1 job-batch-v1 service-v1 serviceaccount-v1 configmap-v1 pod-v1 horizontalpodautoscaler-autoscaling-v2"
    for name in ["_definitions", *kinds.split(), "poddisruptionbudget-policy-v1", "networkpolicy-networking-v1"]:
        schema = json.loads((source / f"{name}.json").read_text())
        schema.pop("$id", None)
        (directory / f"{name}.json").write_text(json.dumps(schema).replace('"/api/_definitions.json', '"_definitions.json'))


def kubeconform(schemas, text):
    places = [each for where in (schemas, HERE / "schemas") for each in ("-schema-location", f"{where}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json")]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        good, out, error = run(TOOLS / "kubeconform", "-strict", *places, file.name)
    return good, out + error


def rejections():
    """invalid values and combinations are rejected with a helpful message"""
    for case in yaml.safe_load((HERE / "rejected.yaml").read_text()):
        good, _, error = template(*(word for pair in case["set"] for word in ("--set", pair)))
        if good:
            raise Failed(f"{case['set']} is accepted, and should be rejected with: {case['message']}")
        if case["message"] not in error:
            raise Failed(f"{case['set']} is rejected without the message {case['message']!r}:\n{error}")


def hints():
    """names of other charts that the schema rejects with a hint are no values, and the hint names values"""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = 0
    for hint in hints_of(json.loads((CHART / "values.schema.json").read_text()), values):
        suggested = re.fullmatch(r"absent: did you mean (.+)\?", hint["const"])
        found += 1
        for path in re.split(", | or ", suggested[1]) if suggested else [""]:
            if value_at(values, path) is None:
                raise Failed(f"values.schema.json: {hint['const']!r} names no value")
    if not found:
        raise Failed("values.schema.json has no hints")


def hints_of(schema, values):
    """The hints of an object and of those in it."""
    for name, each in schema.get("properties", {}).items():
        if "const" in each:
            if name in values:
                raise Failed(f"values.schema.json rejects {name}, which is a value")
            yield each
        elif isinstance(values.get(name), dict):
            yield from hints_of(each, values[name])


def value_at(values, path):
    for name in path.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def notes():
    """the notes name the console, explain and the next step, and warn about credentials in a URL"""
    cases = [
        ((), ["http://127.0.0.1:6070/", "exec deploy/my-tollgate -- tollgate explain DOMAIN", "Next: nothing is limited"], ["WARNING"]),
        (value_sets()["memory"], ["tollgate explain shop", "Next: set redis.url"], ["WARNING"]),
        (value_sets()["production"], ["counts in Redis", "Next: add the rate limit filter"], ["WARNING"]),
        (value_sets()["istio"], ["Next: set redis.url"], ["WARNING"]),
        (("--set", "redis.url=redis://:s3cret@redis:6379"), ["WARNING: redis.url contains credentials", "redis.auth.existingSecret", "redis.urlFrom"], ["s3cret"]),
        (
            ("--set", "redis.url=redis:6379,redis.perSecond.url=redis://redis:6380/0?password=s3cret"),
            ["WARNING: redis.perSecond.url contains", "redis.perSecond.urlFrom"],
            ["s3cret", "redis.url contains"],
        ),
    ]
    for options, expected, unexpected in cases:
        text = notes_of(*options)
        missing = [each for each in expected if each not in text] + [f"no {each}" for each in unexpected if each in text]
        if missing:
            raise Failed(f"the notes of {options} must have {missing}:\n{text}")


def notes_of(*options):
    """NOTES.txt, which `helm template` does not print, rendered as a manifest."""
    with tempfile.TemporaryDirectory() as directory:
        chart = shutil.copytree(CHART, Path(directory) / "tollgate")
        text = (chart / "templates" / "NOTES.txt").read_text()
        (chart / "templates" / "notes.yaml").write_text(f'{{{{ define "notes" }}}}{text}{{{{ end }}}}notes: {{{{ include "notes" . | toJson }}}}')
        return yaml.safe_load(rendered(*options, "--show-only", "templates/notes.yaml", chart=chart))["notes"]


def readme():
    """every value has a description, is in the schema, and is in the chart's README"""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    properties = {name for name, each in schema["properties"].items() if "const" not in each}
    if unknown := properties - {"global"} ^ set(values):
        raise Failed(f"values.yaml and values.schema.json differ: {', '.join(sorted(unknown))}")
    lines = ["| value | default | |", "|---|---|---|"]
    lines += [f"| `{name}` | `{json.dumps(default)}` | {text} |" for name, text, default in described(values)]
    begin, end = "<!-- values: written by `make helm-goldens` -->\n", "<!-- end of values -->"
    path = CHART / "README.md"
    before, _, rest = path.read_text().partition(begin)
    after = rest.partition(end)[2]
    text = before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after
    if REWRITE:
        path.write_text(text)
    elif text != path.read_text():
        raise Failed(f"the table in helm/tollgate/README.md differs from values.yaml; {REWRITE_HINT}")


def described(values):
    """Name, description and default of each value with a `# --` comment; every value has one, or is part of one that has."""
    found, above, words = [], [], []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if comment := re.match(r" *# (-- )?(.*)", line):
            # A description may continue in the next line.
            words = [comment[2]] if comment[1] else words and [*words, comment[2]]
            continue
        if key := re.match(r"( *)(\w+):", line):
            above = [*above[: len(key[1]) // 2], key[2]]
            name, value = ".".join(above), values
            for each in above:
                value = value[each]
            is_within = any(name.startswith(whole + ".") for whole, _, _ in found)
            if words:
                found.append((name, " ".join(words), value))
            elif not is_within and (value == {} or not isinstance(value, dict)):
                raise Failed(f"values.yaml does not describe {name}: write a comment `# -- …` above it")
        words = []
    return found


def package():
    """the package contains all files except tests"""
    with tempfile.TemporaryDirectory() as directory:
        good, _, error = helm("package", CHART, "--destination", directory)
        if not good:
            raise Failed(f"helm package: {error}")
        names = {name.removeprefix("tollgate/") for name in run("tar", "-tzf", *Path(directory).glob("*.tgz"))[1].split()}
    expected = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file() and path.parent.name != "ci"} - {".helmignore"}
    if names - {".helmignore"} != expected:
        raise Failed(f"the package and the folder differ: {', '.join(sorted(names ^ expected))}")


def alerts():
    """each alert has series for which it fires and is silent, a description, and a section in the runbook"""
    rules, cases = (PROMETHEUS / f"tollgate-alerts{suffix}.yaml" for suffix in ("", "_test"))
    tests = [test for group in yaml.safe_load(cases.read_text())["tests"] for test in group.get("promql_expr_test", [])]
    for alert in rules_of(yaml.safe_load(rules.read_text())):
        name = alert["alert"]
        expected = [bool(test["exp_samples"]) for test in tests if f'ALERTS{{alertname="{name}",' in test["expr"]]
        if set(expected) != {True, False}:
            raise Failed(f"{cases.relative_to(ROOT)} must have series for which {name} fires, and is silent")
        if alert["labels"]["severity"] not in SEVERITIES or not {"summary", "description"} <= set(alert["annotations"]):
            raise Failed(f"{name} needs a severity of {', '.join(SEVERITIES)}, a summary, and a description of what to do")
        url, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        if url != RUNBOOK_SAMPLE or anchor != name.lower() or anchor not in anchors(ROOT / "docs" / "operations.md"):
            raise Failed(f"{name}: runbook_url must be {RUNBOOK_SAMPLE}#{name.lower()}, and docs/operations.md must have that anchor")


def chart_alerts():
    """the chart's alerts are those of deploy/prometheus, for the pods of the release, with the labels of its values"""
    (rule,) = of_kind(rendered(*value_sets()["everything"]), "PrometheusRule")
    selector = f'namespace="{NAMESPACE}",pod=~"{RELEASE}-limits-.+"'
    text = (PROMETHEUS / "tollgate-alerts.yaml").read_text().replace(f"{RUNBOOK_SAMPLE}#", f"{RUNBOOK}#")
    text = text.replace('up{job="tollgate"}', f'up{{{selector},container="tollgate"}}').replace('job="tollgate"', selector)
    expected = rules_of(yaml.safe_load(text))
    for alert in expected:
        alert["labels"]["team"] = "platform"
    if rules_of(rule["spec"]) != expected:
        raise Failed("the rendered PrometheusRule is not deploy/prometheus/tollgate-alerts.yaml with another selector and more labels")


def alerts_without_a_runbook():
    """without the URL of a runbook, alerts have no link to it"""
    alerts = [rules_of(rule["spec"]) for rule in of_kind(rendered(*value_sets()["production"]), "PrometheusRule")]
    if not alerts or any("runbook_url" in alert["annotations"] or "summary" not in alert["annotations"] for alert in alerts[0]):
        raise Failed("the alerts of values-production.yaml must have annotations, but no runbook_url")


def chart_dashboard():
    """the chart's dashboard is that of deploy/grafana, with links to the runbook of its values"""
    (found,) = [each for each in of_kind(rendered(*value_sets()["everything"]), "ConfigMap") if "tollgate.json" in each["data"]]
    if json.loads(found["data"]["tollgate.json"]) != json.loads(DASHBOARD.read_text().replace(RUNBOOK_SAMPLE, RUNBOOK)):
        raise Failed("the rendered dashboard is not deploy/grafana/tollgate.json with another runbook URL")


def rules_of(file):
    return [rule for group in file["groups"] for rule in group["rules"]]


def anchors(page):
    """Anchors of a page: explicit ids and headings."""
    text = page.read_text()
    headings = (re.sub(r"[^-_ \w]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE))
    return {*headings, *re.findall(r'<a id="([^"]+)">', text)}


def expressions():
    """Expressions of alerts, and of panels, annotations and variables of the dashboard."""
    (rule,) = of_kind(rendered(*value_sets()["everything"]), "PrometheusRule")
    alerts = [alert["expr"] for alert in rules_of(rule["spec"])]
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    panels += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    choices = [re.search(r"label_values\((.*),", each["definition"])[1] for each in dashboard["templating"]["list"] if "definition" in each]
    return [text.replace("$__rate_interval", "5m") for text in [*alerts, *panels, *choices]]


def expressions_fit():
    """the metrics and labels of every expression of alerts and of the dashboard are exposed by the real binary"""
    texts = expressions()
    pages = [metrics_page(rendered(*options)) for options in value_sets().values()]
    # Metrics of the statsd sink exist only without the Prometheus port.
    pages.append(metrics_page(rendered("--set", "metrics.enabled=false"), port="admin"))
    page = "\n".join(pages)
    metrics = set(re.findall(r"^(\w+)", page, re.MULTILINE))
    # key2 exists with rules of two levels; the others are added by Prometheus.
    labels = set(re.findall(r"[{,](\w+)=", page)) | {"key2", "pod", "container", "namespace", "instance", "job"}
    for text in texts:
        named = set(re.findall(r"\b(?:tollgate|ratelimit|process|go)_\w+", text)) - metrics
        by = {label for group in re.findall(r"by \((.*?)\)", text) for label in group.split(", ")}
        selected = set(re.findall(r"[{,](\w+)=", text))
        if named or (by | selected) - labels:
            raise Failed(f"not on the page: {', '.join(sorted(named | ((by | selected) - labels)))}, in {text}")


def metrics_page(text, port="metrics"):
    """The metrics of a pod after a few calls."""
    with start(text) as service:
        for _ in range(3):
            service.ask("shop", demo="once_a_minute")
        # Enough for a warning where this rule has `warn_at`.
        service.ask("shop", hits=20, user="frequent")
        # Enough to take hits ahead where this rule is leased.
        for _ in range(50):
            service.ask("shop", tenant="hot")
        return service.fetch(port, "/metrics")[1]


def readme_command():
    """The options of the README's `helm install`, without the chart."""
    command = re.search(r"^helm install (\S+) helm/tollgate ((?:.*\\\n)*.*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    if not command:
        raise Failed("README.md has no `helm install NAME helm/tollgate …`")
    return shlex.split(command[2].replace("\\\n", " "))


def redis_commands():
    """The variables of each command in docs/redis.md."""
    commands = re.findall(r"^((?:REDIS_\w+=\S+ )+)tollgate config$", (ROOT / "docs" / "redis.md").read_text(), re.MULTILINE)
    if len(commands) < 4:
        raise Failed("docs/redis.md has fewer than four commands `REDIS_…=… tollgate config`")
    return [dict(pair.split("=", 1) for pair in command.split()) for command in commands]


def counts_on(variables):
    """The binary counts on the servers of these variables."""
    variables = [{"name": name, "value": value} for name, value in {"BACKEND_TYPE": "redis", **variables}.items()]
    minute, second = ({"unit": unit, "requests_per_unit": 1} for unit in ("minute", "second"))
    descriptors = [{"key": "demo", "value": "once_a_minute", "rate_limit": minute}, {"key": "often", "rate_limit": second}]
    rules = {"shop": {"descriptors": descriptors}}
    with start(rendered("--set-json", f"extraEnv={json.dumps(variables)}", "--set-json", f"rules.domains={json.dumps(rules)}")) as service:
        check_answers(service)
        service.ask("shop", often="x")
        for prefix, key in (("REDIS", "once_a_minute"), (list(service.redis)[-1], "often")):
            if key not in service.redis[prefix][-1].command("KEYS", "*"):
                raise Failed(f"{prefix} has no key of {key}; it said:\n{service.said()}")


def development_redis():
    """the development Redis keeps counters when it is killed, and evicts none"""
    (deployment,) = of_kind(rendered(*value_sets()["kubernetes"]), "Deployment", "redis")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
    with tempfile.TemporaryDirectory() as directory:
        words = [directory if word == mount["mountPath"] else word for word in container["args"]]
        if directory not in words or mount["name"] != volume["name"]:
            raise Failed(f"its files are not on the volume {volume}: {container['args']}")
        for expected in ("", "1"):
            home = types.SimpleNamespace(directory=Path(tempfile.mkdtemp(dir=directory)))
            server = pod.Server(home, "redis", words, {}, "REDIS", has_password=False)
            try:
                if server.ready().command("GET", "counter") != expected:
                    raise Failed(f"a killed Redis has lost its counter: {server.said()}")
                server.command("INCR", "counter")
                info = server.command("INFO", "persistence") + server.command("INFO", "memory")
                if not {"aof_enabled:1", "maxmemory_policy:noeviction"} <= set(info.split()):
                    raise Failed(f"it would lose counters: {info}")
            finally:
                server.stop()


def start(text):
    service = pod.Pod(text, pod.binary(), authority())
    try:
        service.start()
    except BaseException:
        service.stop()
        raise
    return service


@functools.cache
def authority():
    return pod.Authority()


@functools.cache
def settings(*command):
    """Every variable that the help of a command lists."""
    good, out, error = run(pod.binary(), *command, "--help")
    if not good:
        raise Failed(f"tollgate {' '.join(command)} --help: {error}")
    return set(re.findall(r"\[env: (\w+)", out))


def serves(text):
    """The binary starts with the rendered manifests, responds, accepts every setting, and drains."""
    with start(text) as service:
        service.eventually("it is ready", lambda: service.probe("readiness"))
        for probe in ("startup", "liveness"):
            if not service.probe(probe):
                raise Failed(f"the {probe} probe fails")
        check_answers(service)
        if service.environment.get("GRPC_SERVER_USE_TLS") == "true":
            check_tls(service)
        if "ADMIN_TOKEN_FILE" in service.environment:
            check_token(service)
        check_settings(service)
        service.terminate()
        service.eventually("it is taken out of the Service while it drains", lambda: not service.probe("readiness"))
        if not service.probe("liveness"):
            raise Failed("the liveness probe fails during a drain")


def check_answers(service):
    # The first calls of a worker connect to Redis; calls before the connection exists get fallback verdicts.
    service.eventually("it counts", lambda: all_count(service))
    # Three, because a minute may end between two of them.
    statuses = [service.ask("shop", demo="once_a_minute")[0] for _ in range(3)]
    if "CONFIG_TYPE" in service.environment:
        # No control plane is here to say what is limited.
        is_right = not {None, 429} & set(statuses)
    else:
        is_right = statuses[0] == 200 and 429 in statuses
    if not is_right:
        raise Failed(f"once a minute is answered with {statuses}; it said:\n{service.said()}")


def all_count(service):
    """Whether several peeks get no fallback verdict."""
    before = fallbacks(service)
    for _ in range(8):
        service.ask("shop", hits=0, demo="once_a_minute")
    return fallbacks(service) == before


def fallbacks(service):
    return sorted(re.findall(r"^tollgate_store_fallbacks_total.*", service.fetch("admin", "/metrics")[1], re.MULTILINE))


def check_settings(service):
    if unknown := set(service.environment) - settings() - NOT_OURS:
        raise Failed(f"the chart sets what `tollgate --help` does not list: {', '.join(sorted(unknown))}")
    lines = service.said().splitlines()
    useless = [line for line in lines if re.search("has no effect|have no effect|did you mean|is not a setting", line)]
    # Collectors, control planes and upstreams of trials do not exist here, a limit of one has no share for each of several pods, and where the
    # machine is busy, Redis is late.
    others = "xds|control plane|trial's upstream|trac|otel|otlp|less than REPLICAS|lower than the replica count"
    late = "later than callers wait|slow Redis|too little CPU|replies too late|replies in time again|answered by on_store_error: Redis answers in up to|Redis unreachable.*no reply|Redis reachable again"
    is_about_others = re.compile(f"{others}|{late}", re.IGNORECASE)
    is_loud = re.compile(r'"level":"(warn|error)|\b(WARN|ERROR)\b|^warning')
    loud = [line for line in lines if is_loud.search(line) and not is_about_others.search(line)]
    if useless or loud:
        raise Failed("it warns about what the chart sets:\n" + "\n".join(useless or loud))


def check_token(service):
    """The token of the Secret resets a counter, and another one after the Secret has changed."""
    # The first action connects to Redis, and may be too late for that.
    service.eventually("the token resets a counter", lambda: reset(service, "open-sesame-open-sesame") == 200)
    pod.publish(service.mounted("/etc/tollgate/admin-token"), {"token": "changed-open-sesame"})
    service.eventually("the token is reloaded", lambda: "admin token reloaded" in service.said())
    service.eventually("the changed token resets a counter", lambda: reset(service, "changed-open-sesame") == 200)
    status = reset(service, "open-sesame-open-sesame")
    if status != 401:
        raise Failed(f"a reset with the previous token is answered with {status}")


def reset(service, token):
    body = json.dumps({"domain": "shop", "descriptor": [["demo", "once_a_minute"]]}).encode()
    return service.fetch("admin", "/api/v1/counters/reset", body, {"authorization": f"Bearer {token}"})[0]


def check_tls(service):
    wants_certificate = "GRPC_CLIENT_TLS_CACERT" in service.environment
    answers = {certificate: service.handshake(certificate) for certificate in ("tls", "stranger", None)}
    expected = {"tls": "h2", "stranger": "h2", None: "h2"}
    if wants_certificate:
        expected[None] = None
    if "GRPC_CLIENT_TLS_SAN" in service.environment:
        expected["stranger"] = None
    if answers != expected:
        raise Failed(f"with certificates, the gRPC port agrees on {answers}, and not on {expected}")


def rules_are_swapped():
    """a pod with invalid rules stays unready, and loads valid ones when the ConfigMap changes"""
    good = rendered(*value_sets()["memory"])
    bad = good.replace("unit: minute", "unit: fortnight")
    with start(bad) as service:
        service.eventually("invalid rules are rejected", lambda: "fortnight" in service.said())
        if service.probe("readiness") or not service.probe("liveness") or not service.probe("startup"):
            raise Failed("with bad rules a pod has to live on, and not to be ready")
        (rules,) = [each for each in of_kind(good, "ConfigMap") if each["metadata"]["name"].endswith("-rules")]
        pod.publish(service.mounted("/etc/tollgate/rules"), rules["data"])
        service.eventually("good rules take effect", lambda: service.probe("readiness"))
        limits = service.fetch("admin", "/rlconfig")[1]
        if "requests_per_unit=4294967295" not in limits:
            raise Failed(f"the largest limit did not arrive as it is:\n{limits}")


def variables_of(kind, text):
    """Names of the variables of Tollgate's container."""
    workload = next(each for each in of_kind(text, kind) if "redis" not in each["metadata"]["name"])
    return {variable["name"] for variable in workload["spec"]["template"]["spec"]["containers"][0]["env"]}


def rules_are_checked():
    """the Job before an install or an upgrade accepts the rules of each set of values, and rejects invalid rules and overlays"""
    for name, options in value_sets().items():
        text = rendered(*options)
        if "/etc/tollgate/rules," not in text:
            if of_kind(text, "Job"):
                raise Failed(f"{name}: there are no rules to check")
            continue
        good, said = pod.run_rules_check(text, pod.binary())
        if not good:
            raise Failed(f"{name}: {said}")
        serves, checks = (variables_of(kind, text) for kind in ("Deployment", "Job"))
        if checks != serves & settings("check"):
            raise Failed(f"{name}: the Job has not the variables of `tollgate check` that the Deployment has: {checks}")
    memory = value_sets()["memory"]
    overlay = "overlay.content.overlays[0].domain=shop"
    rule = "domain: web\ndescriptors: [{key: user, rate_limit: {unit: UNIT, requests_per_unit: 1}}]"
    files = lambda unit: ("--set-json", f"rules.files={json.dumps({'web.yaml': rule.replace('UNIT', unit)})}")
    cases = [
        (files("minute"), None),
        (files("fortnight"), "web.yaml: invalid rate limit unit 'fortnight'"),
        (("--set", overlay), None),
        (("--set", f"{overlay},overlay.content.overlays[0].tollgate.defaults.on_store_error=panic"), "panic"),
    ]
    for options, problem in cases:
        good, said = pod.run_rules_check(rendered(*memory, *options), pod.binary())
        if good != (problem is None) or (problem or "") not in said:
            raise Failed(f"{' '.join(options)}: {'accepted' if good else 'rejected'}\n{said}")
    for options in [("--set", "rules.check.enabled=false"), ("--set", "xds.enabled=true,xds.serverURL=control:18000")]:
        if of_kind(rendered(*options), "Job"):
            raise Failed(f"{' '.join(options)}: a Job is rendered")
    (job,) = of_kind(rendered("--set", "rules.existingConfigMap=mine"), "Job")
    volumes = [volume["configMap"] for volume in job["spec"]["template"]["spec"]["volumes"]]
    if volumes != [{"name": "mine"}]:
        raise Failed(f"the Job does not mount the existing ConfigMap: {volumes}")


def defaults_start():
    """with default values a pod is ready, and limits nothing"""
    with start(rendered()) as service:
        service.eventually("it is ready", lambda: service.probe("readiness"))
        status, body = service.ask("shop", demo="once_a_minute")
        if status != 200:
            raise Failed(f"without rules a call is answered with {status} {body}")


def requests_are_measured():
    """the resource requests of values.yaml and values-production.yaml follow from docs/performance.md"""
    table = (ROOT / "docs" / "performance.md").read_text()
    for name, expected in (("values.yaml", 2), ("values-production.yaml", 1)):
        text = (CHART / name).read_text()
        costs = re.findall(r"([\d.]+) µs of\s+#?\s*CPU", text)
        if len(costs) != expected or any(f"| {cost} + " not in table for cost in costs):
            raise Failed(f"{name} states {costs} µs of CPU per request, which must be figures of Tollgate in docs/performance.md")
        for rate, cost, cpu in re.findall(r"([\d,]+) × ([\d.]+) µs = (\d+)m", text):
            requested = int(yaml.safe_load(text)["resources"]["requests"]["cpu"].removesuffix("m"))
            if round(int(rate.replace(",", "")) * float(cost) / 1000) != int(cpu) or requested < int(cpu):
                raise Failed(f"{name}: {rate} × {cost} µs is not {cpu}m, or more than the request")


def common_annotations():
    """each resource has the annotations of commonAnnotations, and its own take precedence"""
    options = ("--set-string", "commonAnnotations.owner=platform", "--set-string", "service.annotations.owner=edge")
    for document in documents(rendered(*value_sets()["everything"], *options)):
        metadata = document["metadata"]
        is_service = document["kind"] == "Service" and not metadata["name"].endswith(("-metrics", "-admin"))
        if metadata.get("annotations", {}).get("owner") != ("edge" if is_service else "platform"):
            raise Failed(f"{document['kind']} {metadata['name']} has the annotations {metadata.get('annotations')}")


def restarts():
    """changed rules restart the pods only with rules.restartOnChange"""
    values, change = value_sets()["redis"], ("--set", "rules.domains.shop.descriptors[0].key=other")
    for on, expected in (("true", False), ("false", True)):
        option = (*values, "--set", f"rules.restartOnChange={on}")
        (before,), (after,) = (of_kind(rendered(*option, *more), "Deployment") for more in ((), change))
        if (before == after) != expected:
            raise Failed(f"rules.restartOnChange={on}: the Deployment {'changes' if expected else 'stays as it is'} with the rules")


def envoy_gateway():
    """no set of values renders names of Envoy Gateway, and each configuration in its samples has Tollgate's image"""
    for name, options in value_sets().items():
        text = rendered(*options)
        if taken := ENVOY_GATEWAYS_NAMES & set(re.findall(r"[-\w]+", text)):
            raise Failed(f"{name}: {', '.join(taken)} is a name that Envoy Gateway uses")
    for path in sorted((ROOT / "deploy" / "envoy-gateway").glob("*.yaml")):
        resources = documents(path.read_text())
        if {"Deployment", "Service"} & {each["kind"] for each in resources}:
            raise Failed(f"{path.relative_to(ROOT)}: Envoy Gateway deploys the rate limit service")
        configs = [yaml.safe_load(each["data"]["envoy-gateway.yaml"]) for each in resources if each["metadata"]["name"] == "envoy-gateway-config"]
        if not configs and "envoy-gateway/envoy-gateway.yaml" not in path.read_text():
            raise Failed(f"{path.relative_to(ROOT)}: it has no configuration, and does not name the file that has it")
        for config in configs:
            image = config["provider"]["kubernetes"]["rateLimitDeployment"]["container"]["image"]
            if not image.startswith("registry.example.com/tollgate:") or "rateLimit" not in config:
                raise Failed(f"{path.relative_to(ROOT)}: rateLimit must be set, and rateLimitDeployment.container.image must be Tollgate's")


def filters():
    """Envoy accepts the filter and the rate limits of the EnvoyFilter"""
    for name, options in value_sets().items():
        for document in of_kind(rendered(*options), "EnvoyFilter"):
            http_filter, host = (patch["patch"]["value"] for patch in document["spec"]["configPatches"])
            good, said = envoy_takes(http_filter, host)
            if not good:
                raise Failed(f"{name}: {said}")
            if envoy_takes(http_filter, {"rate_limitz": []})[0]:
                raise Failed("Envoy accepts anything: it validates nothing")


def envoy_takes(http_filter, host):
    cluster = http_filter["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    router = {"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}
    http = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "http_filters": [http_filter, router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], **host}]},
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": http}]}],
    }
    config = {"static_resources": {"listeners": [listener], "clusters": [{"name": cluster, "type": "STATIC", "connect_timeout": "1s"}]}}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        good, out, error = run(TOOLS / "envoy", "--mode", "validate", "-c", file.name, "-l", "error")
    return good, out + error


def failure_of(check):
    """What a check fails with, or None."""
    try:
        check()
    except Failed as error:
        return str(error).strip()
    return None


def main():
    checks = [lint, readme, hints, notes, goldens, development_redis, rejections, kubernetes_takes_it, package, requests_are_measured, common_annotations, restarts, alerts, chart_alerts, alerts_without_a_runbook, chart_dashboard, envoy_gateway, filters, expressions_fit, defaults_start, rules_are_swapped, rules_are_checked]
    named = [(check.__doc__, check) for check in checks]
    for name, options in value_sets().items():
        named.append((f"the binary serves what the values of {name} render", lambda options=options: serves(rendered(*options))))
    named.append(("the binary serves what the README's command renders", lambda: serves(rendered(*readme_command()))))
    for variables in redis_commands():
        named.append((f"the binary counts on the Redis of {' '.join(variables)} in docs/redis.md", lambda variables=variables: counts_on(variables)))
    named.append(("the binary serves what deploy/redis/shared-region-values.yaml renders", lambda: serves(guides.redis_values("shared-region"))))
    named += guides.checks(make_schemas, start)
    failures = 0
    # They mostly wait for processes.
    with ThreadPoolExecutor(max_workers=2 * os.cpu_count()) as pool:
        for (what, _), error in zip(named, pool.map(failure_of, [check for _, check in named])):
            failures += error is not None
            print(f"ok      {what}" if error is None else f"FAILED  {what}\n        {error}", flush=True)
    print(f"{len(named) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
