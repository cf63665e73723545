#!/usr/bin/env python3
"""Writes a flame graph of the release binary under load: where the CPU time of the serving path goes.

    benches/flame_graph.py [--output FILE] [--memory] [--seconds S] [--programs DIR] [-- OPTIONS OF load]

perf samples the service on a Redis of its own, or with --memory without one, while `load` keeps 64 requests in flight. inferno draws the
samples, and is installed into .tools.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading

from redis_servers import Single
from servers import PACKAGE, Failed, Service, copy_rules, load, programs_of, split_options

OUTPUT = os.path.join(PACKAGE, "target", "profile.svg")
TOOLS = os.path.join(PACKAGE, ".tools")
INFERNO = "inferno@0.12.8"
WARMUP_S = 2
# Not a divisor of timers, which have whole milliseconds.
SAMPLES_PER_SECOND = 499
# The stack that is kept of each sample: the deepest in use has 100 frames.
STACK_BYTES = 16384
# Of perf's own time to start, and to read /proc.
START_S = 1


def main():
    args, for_load = arguments()
    check_tools(args)
    programs = programs_of(args.programs, "load")
    with tempfile.TemporaryDirectory(prefix="tollgate-profile-") as directory:
        copy_rules(directory)
        redis = None if args.memory else Single(args.redis_server, directory)
        environment = redis.environment() if redis else {}
        service = Service(programs["tollgate"], directory, environment | {"DRAIN_PERIOD": "0"})
        servers = [*([redis] if redis else []), service]
        try:
            for server in servers:
                server.start()
            samples = os.path.join(directory, "perf.data")
            record(service, programs["load"], samples, args.seconds, for_load)
        finally:
            for server in reversed(servers):
                server.stop()
        draw(samples, args.output, "memory store" if args.memory else "Redis store")
    print(args.output)


def arguments():
    options, for_load = split_options(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="FILE", default=OUTPUT, help="[target/profile.svg]")
    parser.add_argument("--memory", action="store_true", help="with the memory store")
    parser.add_argument("--seconds", type=float, default=10, help="sampled part of the load [10]")
    parser.add_argument("--programs", metavar="DIR", help="with tollgate and load, which are built otherwise")
    parser.add_argument("--redis-server", default="redis-server", metavar="PROGRAM", help="[redis-server]")
    return parser.parse_args(options), for_load


def check_tools(args):
    """Fails with how to get what is missing; installs inferno."""
    if not shutil.which("perf"):
        raise Failed("missing: perf; install it: apt-get install linux-perf (Debian) or linux-tools-generic (Ubuntu)")
    tried = subprocess.run(["perf", "record", "-o", os.devnull, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        rights = "where it is a matter of rights, be root, or run: sysctl kernel.perf_event_paranoid=1"
        raise Failed(f"perf cannot sample; {rights}. It said:\n{tried.stderr}")
    if not args.memory and not shutil.which(args.redis_server):
        raise Failed("missing: redis-server; install it: https://redis.io, or use --memory")
    if not os.access(os.path.join(TOOLS, "bin", "inferno-flamegraph"), os.X_OK):
        subprocess.run(["cargo", "install", "--locked", "--root", TOOLS, INFERNO], check=True)


def record(service, generator, samples, seconds, for_load):
    """Samples the service in the measured part of a load."""
    words = ["perf", "record", "--quiet", "-o", samples, "-F", str(SAMPLES_PER_SECOND), "--call-graph", f"dwarf,{STACK_BYTES}"]
    words += ["-p", str(service.pid), "--", "sleep", str(seconds)]
    failures = []

    def sample():
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            failures.append(done.stderr)

    sampling = threading.Timer(WARMUP_S, sample)
    sampling.start()
    try:
        load(generator, service.target, [service.pid], seconds + START_S, WARMUP_S, ["--keys", "100000", *for_load])
    finally:
        sampling.join()
    if failures:
        raise Failed(f"perf record failed:\n{failures[0]}")


def draw(samples, output, store):
    """Folds the samples into stacks, and draws those."""
    commands = [
        ["perf", "script", "--no-inline", "-i", samples],
        [os.path.join(TOOLS, "bin", "inferno-collapse-perf")],
        [os.path.join(TOOLS, "bin", "inferno-flamegraph"), "--title", f"tollgate, {store}", "--hash"],
    ]
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    with open(output, "w") as svg:
        steps = []
        for number, command in enumerate(commands):
            before = steps[-1].stdout if steps else subprocess.DEVNULL
            out = svg if number == len(commands) - 1 else subprocess.PIPE
            steps.append(subprocess.Popen(command, stdin=before, stdout=out, stderr=subprocess.DEVNULL))
        for step in steps[:-1]:
            # So that a step whose reader fails ends as well.
            step.stdout.close()
        if failed := [command[0] for command, step in zip(commands, steps) if step.wait() != 0]:
            raise Failed(f"{', '.join(failed)} failed")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"flame_graph: {error}")
