#!/usr/bin/env python3
"""Runs the checks and tests of the repository, part by part, and prints how long each took and what failed.

Usage: tests/run.py [--check | --available] [PART]...; without a PART, all tests.

A part that fails does not keep the others from running. As root with apt-get, missing packages are installed. Otherwise one line lists
them, and nothing is run; with --available the other parts are run. With --check nothing is run.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
# Tests at a time: most wait for processes, so more of them run than there are processors.
THREADS = 3 * (os.cpu_count() or 1)
SUITE = ["--test", "suite"]
# Rows of the tables of the slowest tests and groups.
SLOWEST = 10
# libtest prints the seconds of a test only if RUSTC_BOOTSTRAP is set. As a variable of cargo it would rebuild everything.
WITH_TIMES = ["--config", "target.'cfg(all())'.runner=['env','RUSTC_BOOTSTRAP=1']"]
RESULT = re.compile(r"test (\S+)(?: - should panic)? \.\.\. (ok|FAILED)(?: <([0-9.]+)s>)?")



def seed():
    """Random tests play other histories for each commit, and for one commit the same."""
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return os.environ.get("PROPTEST_RNG_SEED") or str(int(commit or "1", 16))


SEED = seed()


@dataclass(frozen=True)
class Tests:
    """Tests of Rust: which executables, and which of their tests."""

    targets: list
    tests: list
    # How many at a time; by default `THREADS`.
    threads: int | None = None


@dataclass(frozen=True)
class Part:
    """Checks with the same requirements."""

    # Each is a list of words, or `Tests`.
    commands: list
    # Names of NEEDS.
    needs: tuple = ()
    # Groups of tests/tools.py.
    tools: tuple = ()
    # Runs target/debug/tollgate.
    needs_binary: bool = False
    # A test, which runs if no PART is given, and no other check.
    is_test: bool = True
    # Skipped, and not reported as missing, if no package provides it.
    is_optional: bool = False


def make(target):
    return ["make", "--no-print-directory", target]


def system(needs, names, tools=("suite",), threads=None, **options):
    """Tests of the suite below `system::`."""
    return Part([Tests(SUITE, [f"system::{name}" for name in names], threads)], needs, tools, **options)


def has_program(name):
    return lambda: shutil.which(name) is not None


def has_libfaketime():
    # Where tests/suite/support/faketime.rs looks for it.
    return any(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"))


def has_namespaces():
    # As tests/suite/e2e/system/deployments/machine.rs asks for them.
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
NAMESPACES = "network namespaces (root, or unprivileged user namespaces)"
PYTHON = ".tools/python/bin/python3"
PARTS = {
    "lint": Part([make("lint")], is_test=False),
    "workflows": Part([make("workflows")], is_test=False),
    "deny": Part([make("deny")], is_test=False),
    "unit": Part([Tests(["--lib", "--bins", "--test", "suite", "--test", "architecture"], ["--skip", "system::", "--skip", "e2e::"])], tools=("suite",)),
    "e2e": Part([Tests(SUITE, ["e2e::", "--skip", "system::"])], tools=("e2e",)),
    "helm": Part([[PYTHON, "tests/helm/check.py"]], tools=("helm",), needs_binary=True),
    "test-rules": Part([["target/debug/tollgate", "test", "config", "--coverage"]], needs_binary=True, is_test=False),
    "redis-tls": system(("redis-server",), ["redis_tls::"]),
    "clocks": system(("libfaketime",), ["clocks::", "lease_clocks::"]),
    "network": Part(
        [Tests(SUITE, ["e2e::system::", "system::network::"])],
        ("ip", NAMESPACES),
        ("suite", "e2e", "helm"),
    ),
    "mounts": system((NAMESPACES,), ["mounts::"]),
    "prometheus": Part(
        [[PYTHON, "tests/helm/prometheus.py"], Tests(SUITE, ["system::prometheus::"])],
        ("promtool",),
        ("suite", "helm"),
    ),
    # One at a time: what a process takes of memory beside others depends on the machine.
    "hostile": system((), ["hostile::"], threads=1),
    "otel": system((), ["traces::"], ("suite", "otel")),
    "drill": Part([make("drill")], ("promtool",)),
    "console": system(("chromium", "chromedriver", "npm"), ["console::"], ("suite", "console")),
    "versions": system(("redis-server",), ["versions::redis_of_the_distribution", "versions::redis_6_2", "versions::valkey"]),
    "redis-7.0": system(("mvn",), ["versions::redis_7_0_of_maven"], ("suite", "maven"), is_optional=True),
    "long-faults": system((), ["long_faults::"]),
    "silent-peers": system((), ["silent_peers::"]),
    "mutants": Part([make("mutants")]),
    "leases": system((), ["leases::"], ("suite", "otel")),
    "histories": Part([make("leases")]),
}


class Run:
    """What the parts of a run took, and what failed."""

    def __init__(self):
        self.rows = []
        self.failures = []
        self.not_run = []
        self.tests = []

    def part(self, name, part):
        print(f"==> {name}", flush=True)
        before = len(self.failures)
        installing = self.seconds(name, ["tests/tools.py", *part.tools]) if part.tools else 0
        compiling = running = 0
        builds = [[CARGO, "test", "--quiet", "--no-run", *command.targets] for command in part.commands if isinstance(command, Tests)]
        for build in [*builds, *([make("binary")] if part.needs_binary else [])] if len(self.failures) == before else ():
            compiling += self.seconds(name, build)
        used = cpu_seconds()
        self.not_run += [name] if len(self.failures) > before else []
        for command in part.commands if len(self.failures) == before else ():
            running += self.seconds(name, command)
        self.rows.append((name, installing, compiling, running, cpu_seconds() - used, "ok" if len(self.failures) == before else "failed"))

    def seconds(self, name, command):
        """Runs a command, notes whether it failed, and returns how long it took."""
        start = time.monotonic()
        failed = self.run_tests(command) if isinstance(command, Tests) else self.run_command(command)
        self.failures += [f"{name}: {failure}" for failure in failed]
        return time.monotonic() - start

    def run_command(self, command):
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        good = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL).returncode == 0
        return [] if good else [" ".join(command)]

    def run_tests(self, tests):
        environment = os.environ | {"PROPTEST_RNG_SEED": SEED}
        command = [CARGO, *WITH_TIMES, "test", "--no-fail-fast", *tests.targets]
        command += ["--", "-Zunstable-options", "--report-time", "--format=pretty", *tests.tests]
        command += [f"--test-threads={tests.threads or THREADS}"]
        failed = []
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stdout:
                print(line, end="", flush=True)
                if found := RESULT.search(line):
                    test, result, seconds = found.groups()
                    self.tests.append((float(seconds or 0), test))
                    failed += [test] if result == "FAILED" else []
        return failed or ([] if process.returncode == 0 else [" ".join(command)])

    def report(self):
        if self.tests:
            print(f"\nrandom tests: PROPTEST_RNG_SEED={SEED}")
            groups = Counter()
            for seconds, test in self.tests:
                groups[test.rpartition("::")[0]] += seconds
            print(f"\n{len(self.tests)} tests; those that took longest, and the sums of modules, in seconds beside others:")
            slowest = sorted(self.tests, reverse=True)[:SLOWEST]
            for (seconds, test), (group, total) in zip(slowest, groups.most_common(SLOWEST)):
                print(f"{seconds:8.1f}  {test:<90.90} {total:8.1f}  {group}")
        print(f"\nseconds: {'install':>7} {'compile':>8} {'run':>8} {'cpu':>8}   of processors while it ran")
        for name, *seconds, result in [*self.rows, ("all", *map(sum, zip(*(row[1:-1] for row in self.rows))), "")]:
            print(f"{' '.join(f'{each:8.0f}' for each in seconds)}{'':8} {result:<6} {name}", flush=True)


def cpu_seconds():
    """Those of all commands that have ended, and of what they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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


def runs_of(names):
    """Names and parts, in the order in which they are run. Those that only filter the suite are one run at the end: their tests wait for
    processes and for time, so together they take half as long as one part after the other."""
    together = [name for name in names if is_filter(PARTS[name])]
    runs = [(name, PARTS[name]) for name in names if name not in together]
    if together:
        filters = [test for name in together for test in PARTS[name].commands[0].tests]
        tools = dict.fromkeys(group for name in together for group in PARTS[name].tools)
        runs.append((" ".join(together), Part([Tests(SUITE, filters)], tools=tuple(tools))))
    return runs


def is_filter(part):
    """Whether it is only a list of tests of the suite, with nothing skipped."""
    first = part.commands[0]
    return len(part.commands) == 1 and isinstance(first, Tests) and first.targets == SUITE and first.threads is None and "--skip" not in first.tests


def main(arguments):
    options = {argument for argument in arguments if argument.startswith("--")}
    parts = [argument for argument in arguments if argument not in options] or [name for name, part in PARTS.items() if part.is_test]
    if unknown := options - {"--check", "--available"} | set(parts) - set(PARTS):
        sys.exit(f"tests/run.py: unknown {' '.join(sorted(unknown))}; parts are {' '.join(PARTS)}")
    install(packages_of(parts))
    left_out = [part for part in parts if missing_for(part)]
    if required := [part for part in left_out if not PARTS[part].is_optional and "--available" not in options]:
        sys.exit(f"missing: {line_of(required)}")
    if "--check" in options:
        return
    run = Run()
    for name, part in runs_of([part for part in parts if part not in left_out]):
        run.part(name, part)
    run.report()
    if left_out:
        print(f"left out: {line_of(left_out)}")
    if run.failures:
        not_run = [f"not run, because something before it failed: {name}" for name in run.not_run]
        sys.exit("\n".join(["failed:", *run.failures, *not_run]))


if __name__ == "__main__":
    main(sys.argv[1:])
