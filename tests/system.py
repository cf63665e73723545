#!/usr/bin/env python3
"""Runs the tests that need system packages or take long, part by part.

Usage: tests/system.py [--check | --available] [PART]...; without a PART, all of them.

As root with apt-get, missing packages are installed. Otherwise one line lists them, and nothing is run; with --available the other parts
are run. With --check nothing is run.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = ["cargo", "test", "--test", "suite", "--"]
E2E = ["cargo", "test", "--test", "e2e", "--"]


@dataclass(frozen=True)
class Part:
    """Tests with the same requirements."""

    # Names of NEEDS.
    needs: list
    commands: list
    # Groups of tests/tools.py.
    tools: tuple = ("suite",)
    # Skipped, and not reported as missing, if no package provides it.
    is_optional: bool = False


def has_program(name):
    return lambda: shutil.which(name) is not None


def has_libfaketime():
    # Where tests/suite/support/faketime.rs looks for it.
    return any(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"))


def has_namespaces():
    # As tests/e2e/system/deployments/machine.rs asks for them.
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return any(runs("unshare", *way, *namespaces, "true") for way in ([], ["--user", "--map-root-user"]))


def runs(*command):
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


# Requirements: how to detect each, and the package that provides it.
NEEDS = {
    "redis-server": (has_program("redis-server"), "redis-server"),
    "libfaketime": (has_libfaketime, "libfaketime"),
    "promtool": (has_program("promtool"), "prometheus"),
    "ip": (has_program("ip"), "iproute2"),
    "chromium": (has_program("chromium"), "chromium"),
    "chromedriver": (has_program("chromedriver"), "chromium-driver"),
    "npm": (has_program("npm"), "npm"),
    "network namespaces (root, or unprivileged user namespaces)": (has_namespaces, None),
    "mvn": (has_program("mvn"), None),
}
PARTS = {
    "redis-tls": Part(["redis-server"], [[*SUITE, "system::redis_tls::"]]),
    "clocks": Part(["libfaketime"], [[*SUITE, "system::clocks::", "system::lease_clocks::"]]),
    "network": Part(["ip", "network namespaces (root, or unprivileged user namespaces)"], [[*E2E, "system::"], [*SUITE, "system::network::"]], ("suite", "e2e")),
    "mounts": Part(["network namespaces (root, or unprivileged user namespaces)"], [[*SUITE, "system::mounts::"]]),
    "prometheus": Part(
        ["promtool"],
        [[".tools/python/bin/python3", "tests/helm/prometheus.py"], [*SUITE, "system::prometheus::"]],
        ("suite", "helm"),
    ),
    "drill": Part(["promtool"], [["make", "drill"]]),
    "console": Part(["chromium", "chromedriver", "npm"], [[*SUITE, "system::console::"]], ("suite", "console")),
    "versions": Part(["redis-server"], [[*SUITE, "system::versions::redis_of_the_distribution"]]),
    "redis-7.0": Part(["mvn"], [[*SUITE, "system::versions::redis_7_0_of_maven"]], ("suite", "maven"), is_optional=True),
    "long-faults": Part([], [[*SUITE, "system::long_faults::"]]),
    "silent-peers": Part([], [[*SUITE, "system::silent_peers::"]]),
    "mutants": Part([], [["make", "mutants"]]),
}


def missing_for(part):
    return [need for need in PARTS[part].needs if not NEEDS[need][0]()]


def install(packages):
    """Installs packages if possible."""
    if not packages or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    print(f"installing {' '.join(packages)}", flush=True)
    for command in (["update", "-qq"], ["install", "-qq", "--yes", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", *command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def packages_of(parts):
    return sorted({NEEDS[need][1] for part in parts for need in missing_for(part)} - {None})


def line_of(parts):
    """One line about what is missing for these parts."""
    needs = dict.fromkeys(need for part in parts for need in missing_for(part))
    line = f"{', '.join(needs)} (for {', '.join(parts)})"
    return f"{line}; install it: apt-get install --no-install-recommends {' '.join(packages_of(parts))}" if packages_of(parts) else line


def main(arguments):
    options = {argument for argument in arguments if argument.startswith("--")}
    parts = [argument for argument in arguments if argument not in options] or list(PARTS)
    if unknown := options - {"--check", "--available"} | set(parts) - set(PARTS):
        sys.exit(f"tests/system.py: unknown {' '.join(sorted(unknown))}; parts are {' '.join(PARTS)}")
    install(packages_of(parts))
    left_out = [part for part in parts if missing_for(part)]
    if required := [part for part in left_out if not PARTS[part].is_optional and "--available" not in options]:
        sys.exit(f"missing: {line_of(required)}")
    if "--check" in options:
        return
    for part in parts:
        if part not in left_out:
            print(f"==> {part}", flush=True)
            for command in [["tests/tools.py", *PARTS[part].tools], *PARTS[part].commands]:
                if subprocess.run(command, cwd=ROOT).returncode != 0:
                    sys.exit(f"tests/system.py: {part} failed: {' '.join(command)}")
    if left_out:
        print(f"left out: {line_of(left_out)}")


if __name__ == "__main__":
    main(sys.argv[1:])
