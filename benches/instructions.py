#!/usr/bin/env python3
"""Counts the instructions of a call with callgrind and compares them with benches/instructions/figures.json.

    benches/instructions.py [SCENARIO]...          all of them by default
    REWRITE=1 benches/instructions.py [SCENARIO]...

benches/instructions/main.rs is the program. Each scenario runs RUNS times, since hash seeds are random; the lowest count is used. Exit
status: 0, or 1 if a count differs from its committed figure by more than 2 %. With REWRITE the figures are written instead.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from servers import PACKAGE, Failed, cargo

FIGURES = os.path.join(PACKAGE, "benches", "instructions", "figures.json")
RUNS = 3
# Random hash seeds move the count of a run by up to 0.4 %.
CHANGE_MAX = 0.02
# The calls that benches/instructions/main.rs counts, and the function that they run in.
CALLS = 1024
COUNTED = "instructions::serve_counted*"
# A run takes three seconds.
TIMEOUT_S = 300


def main():
    committed = read_figures()
    rewrite = os.environ.get("REWRITE") == "1"
    check_machine()
    rustc = choose_toolchain(committed["rustc"], rewrite)
    program = cargo("bench", "--no-run", "--bench", "instructions")["instructions"]
    known = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    scenarios = sys.argv[1:] or known
    if unknown := set(scenarios) - set(known):
        raise Failed(f"unknown {' '.join(sorted(unknown))}; scenarios are {' '.join(known)}")

    figures = committed["instructions_per_call"]
    off = []
    print(f"{'instructions per call':<24}{'committed':>12}{'measured':>12}{'change':>10}")
    for name in scenarios:
        measured = round(min(count(program, name) for _ in range(RUNS)) / CALLS)
        before = figures.get(name)
        change = measured / before - 1 if before else None
        print(f"{name:<24}{before or '':>12}{measured:>12}{f'{change:+.1%}' if before else 'new':>10}", flush=True)
        if change is None or abs(change) > CHANGE_MAX:
            off.append((name, before, measured, change))
        figures[name] = measured
    if rewrite:
        kept = {name: figures[name] for name in known if name in figures}
        write_figures({"rustc": rustc, "instructions_per_call": kept})
    elif off:
        raise Failed("\n".join(["figures have changed", *(words(*line) for line in off)]))


def words(name, before, measured, change):
    """What to do about a changed figure."""
    rewrite = "REWRITE=1 make instructions, and commit benches/instructions/figures.json"
    if change is None:
        return f"  {name}: {measured} measured, none committed. Run {rewrite}"
    found = f"  {name}: {before} committed, {measured} measured, {abs(change):.1%} {'more' if change > 0 else 'less'}"
    if change > 0:
        return f"{found}. Find the cause (callgrind_annotate, make profile); if it is worth that much, run {rewrite} with the reason"
    return f"{found}. Keep the improvement: run {rewrite}"


def check_machine():
    if not shutil.which("valgrind"):
        raise Failed("missing: valgrind; install it: apt-get install valgrind")
    with open("/proc/cpuinfo") as cpuinfo:
        if platform.machine() != "x86_64" or not re.search(r"\bavx2\b", cpuinfo.read()):
            raise Failed("the figures are of x86-64 with AVX2, which this machine is not")


def choose_toolchain(committed, rewrite):
    """The version of rustc that builds: that of the figures, or with `rewrite` the current one."""
    current = rustc_version()
    if current != committed and not rewrite:
        # rustup installs it if it is missing.
        os.environ["RUSTUP_TOOLCHAIN"] = committed
        current = rustc_version()
        if current != committed:
            raise Failed(f"the figures are of rustc {committed}, and this is {current}; install it: rustup toolchain install {committed}")
    return current


def rustc_version():
    done = subprocess.run(["rustc", "--version"], cwd=PACKAGE, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed("rustc --version failed")
    return done.stdout.split()[1]


def count(program, scenario):
    """Instructions of one run."""
    with tempfile.TemporaryDirectory(prefix="tollgate-instructions-") as directory:
        out = os.path.join(directory, "callgrind.out")
        command = ["valgrind", "--tool=callgrind", f"--toggle-collect={COUNTED}", f"--callgrind-out-file={out}", program, scenario]
        # The size of the environment moves the stack.
        done = subprocess.run(
            command, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} failed:\n{done.stdout}")
        with open(out) as profile:
            counted = int(re.search(r"(?m)^totals: (\d+)", profile.read())[1])
    if counted == 0:
        raise Failed(f"{scenario}: callgrind found no function {COUNTED}")
    return counted


def read_figures():
    with open(FIGURES) as file:
        return json.load(file)


def write_figures(figures):
    with open(FIGURES, "w") as file:
        json.dump(figures, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"instructions: {error}")
