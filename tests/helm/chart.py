"""Renders the chart with Helm."""

import os
import subprocess
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tollgate"
# Where tests/tools.py installs programs.
TOOLS = ROOT / ".tools" / "bin"
# The oldest that Chart.yaml allows, and the newest with a schema.
KUBERNETES = ("1.27.0", "1.37.0")
RELEASE, NAMESPACE = "my", "limits"
# The only required value. Options of a test follow and take precedence.
REQUIRED = ("--set", "image.repository=registry.example.com/tollgate")


class Failed(Exception):
    """A failed check; the message says why."""


def value_sets():
    """Options of helm for each file of ci/, and for values-production.yaml, with the rules of ci/memory-values.yaml."""
    sets = {path.name.removesuffix("-values.yaml"): ("--values", path) for path in sorted((CHART / "ci").glob("*-values.yaml"))}
    return sets | {"production": ("--values", CHART / "values-production.yaml", *sets["memory"])}


def run(*words, **options):
    """Whether a program succeeded, its stdout and stderr. It runs in the root of the repository."""
    options.setdefault("cwd", ROOT)
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    return done.returncode == 0, done.stdout, done.stderr


def helm(*words):
    """Helm, without the caller's cluster, repositories and plugins."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": os.path.join(home, "none")}
        return run(TOOLS / "helm", *words, env=environment)


def template(*options, kubernetes=KUBERNETES[0], chart=CHART):
    # Sets of values and the README's command are complete.
    required = () if "--values" in options or any("image.repository" in str(option) for option in options) else REQUIRED
    return helm("template", RELEASE, chart, "--namespace", NAMESPACE, "--kube-version", kubernetes, *required, *options)


def rendered(*options, **more):
    """The output of `helm template`, which must succeed."""
    good, out, error = template(*options, **more)
    if not good:
        raise Failed(f"helm template {' '.join(map(str, options))}: {error.strip()}")
    return out


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(text, kind, component=None):
    """All documents of a kind, of Tollgate or of the development Redis."""
    found = [document for document in documents(text) if document["kind"] == kind]
    if component is None:
        return found
    return [each for each in found if each["metadata"]["labels"].get("app.kubernetes.io/component") == component]
