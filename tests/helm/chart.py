"""Renders the chart with Helm, and reads what came out."""

import os
import subprocess
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tollgate"
# Where tests/tools.py installs programs.
TOOLS = ROOT / ".tools" / "bin"
# The oldest that Chart.yaml allows, and the newest there is a schema of.
KUBERNETES = ("1.27.0", "1.37.0")
RELEASE, NAMESPACE = "my", "limits"
# The one value that the chart requires. Options of a test come later, and win.
REQUIRED = ("--set", "image.repository=registry.example.com/tollgate")


class Failed(Exception):
    """A sentence for whoever runs the checks."""


def value_sets():
    """The files of ci/, by name."""
    return {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}


def run(*words, **options):
    """Whether a program ended well, and what it said. It runs where the README's commands do."""
    options.setdefault("cwd", ROOT)
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    return done.returncode == 0, done.stdout, done.stderr


def helm(*words):
    """Helm, without the caller's cluster, repositories and plugins."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": os.path.join(home, "none")}
        return run(TOOLS / "helm", *words, env=environment)


def template(*options, kubernetes=KUBERNETES[0]):
    # Files of ci/ are complete, and the README's command is, too.
    required = () if "--values" in options or any("image.repository" in str(option) for option in options) else REQUIRED
    return helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--kube-version", kubernetes, *required, *options)


def rendered(*options, kubernetes=KUBERNETES[0]):
    """The text that Helm makes, which has to be good."""
    good, out, error = template(*options, kubernetes=kubernetes)
    if not good:
        raise Failed(f"helm template {' '.join(map(str, options))}: {error.strip()}")
    return out


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(text, kind, component=None):
    """All of a kind, of Tollgate itself or of the Redis beside it."""
    found = [document for document in documents(text) if document["kind"] == kind]
    if component is None:
        return found
    return [each for each in found if each["metadata"]["labels"].get("app.kubernetes.io/component") == component]
