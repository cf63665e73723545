#!/usr/bin/env python3
"""Compares two rate limit services in one run: starts both, loads them in turn, prints the ratio of the medians.

Timings on a shared machine vary by half from one run to the next, and little within a few seconds. So rounds alternate (A B, B A, A B,
...), and what counts is A over B, not the figures by themselves. Each load is a run of `load`; options after `--` go to it.

    benches/compare.py --a 'tollgate serve' --a-target 127.0.0.1:8081 \\
                       --b 'bare_server --listen 127.0.0.1:8091' --b-target 127.0.0.1:8091 -- --pick zipf

The words `tollgate`, `bare_server` and `load` at the beginning of a command mean this package's programs, which cargo builds first
unless --load names a generator that is ready. Variables may precede a command, as in a shell: 'PORT=8071 tollgate serve'.

Needs nothing but Python's standard library. Exit status: 0, or 1 if a server did not come up or a load was not answered in full.
"""

import argparse
import json
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A server that reads rules and connects to Redis is up in well under a second; a cold disk may take a few.
START_TIMEOUT_S = 15
# Long enough to end in order, short enough not to wait for a drain period.
STOP_TIMEOUT_S = 3
# What is compared: title, format, and where it is in load's JSON.
FIGURES = [
    ("cpu us/request", "{:.2f}", lambda run: run["cpu_us_per_request"]),
    ("per second", "{:.0f}", lambda run: run["per_second"]),
    ("p50 ms", "{:.3f}", lambda run: run["latency_ms"]["p50"]),
    ("p99 ms", "{:.3f}", lambda run: run["latency_ms"]["p99"]),
]


class Side:
    """One of the two servers."""

    def __init__(self, name, command, target, pids, programs):
        self.name, self.target, self.pids, self.runs = name, target, pids, []
        words = shlex.split(command)
        self.environment = dict(os.environ)
        while words and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", words[0]):
            self.environment.update([words.pop(0).split("=", 1)])
        if not words:
            sys.exit(f"compare: side {name} has no command")
        self.words = [programs.get(words[0], words[0])] + words[1:]
        self.process = None
        self.log = tempfile.TemporaryFile(mode="w+", errors="replace")

    def start(self):
        if listens(self.target):
            sys.exit(f"compare: something listens on {self.target} already")
        try:
            self.process = subprocess.Popen(
                self.words, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            sys.exit(f"compare: start {self.words[0]}: {error}")
        give_up = time.monotonic() + START_TIMEOUT_S
        while not listens(self.target):
            if self.process.poll() is not None or time.monotonic() > give_up:
                sys.exit(f"compare: {shlex.join(self.words)} does not listen on {self.target}; it said:\n{self.said()}")
            time.sleep(0.05)
        self.pids = [self.process.pid] + self.pids

    def said(self):
        self.log.seek(0)
        return self.log.read()[-2000:]

    def stop(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def load(self, generator, options):
        command = [generator, "--json", "--target", self.target, "--pid", ",".join(map(str, self.pids))] + options
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            run = json.loads(done.stdout)
        except ValueError:
            sys.exit(f"compare: {shlex.join(command)} gave no result")
        if done.returncode != 0 or run["cpu_us_per_request"] is None:
            sys.exit(f"compare: side {self.name} did not answer in full: {json.dumps(run['requests'])}")
        self.runs.append(run)
        return run


def listens(target):
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
        return True
    except OSError:
        return False


def build():
    """This package's programs, by name."""
    command = ["cargo", "bench", "--no-run", "--bench", "load", "--bench", "bare_server", "--message-format=json"]
    done = subprocess.run(command, cwd=PACKAGE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("compare: cargo did not build the programs")
    messages = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}


def compare(sides, rounds, generator, options):
    titles = "".join(f"{title:>16}" for title, _, _ in FIGURES)
    print(f"{'round':<10}{titles}")
    for number in range(1, rounds + 1):
        for side in sides if number % 2 else reversed(sides):
            run = side.load(generator, options)
            row = "".join(f"{form.format(value(run)):>16}" for _, form, value in FIGURES)
            print(f"{number:>3} {side.name:<6}{row}", flush=True)
    print()
    a, b = sides
    summary = {}
    for title, form, value in FIGURES:
        of_a, of_b = [value(run) for run in a.runs], [value(run) for run in b.runs]
        median_a, median_b = statistics.median(of_a), statistics.median(of_b)
        by_round = [ratio(x, y) for x, y in zip(of_a, of_b)]
        summary[title] = {"a": median_a, "b": median_b, "a_over_b": ratio(median_a, median_b)}
        print(
            f"{title:<16}A {form.format(median_a):>9}   B {form.format(median_b):>9}   "
            f"A/B {ratio(median_a, median_b):.3f}  (by round {min(by_round):.3f} to {max(by_round):.3f})"
        )
    return summary


def ratio(a, b):
    return a / b if b else float("nan")


def main():
    options = sys.argv[1:]
    for_load = []
    if "--" in options:
        at = options.index("--")
        options, for_load = options[:at], options[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in "ab":
        parser.add_argument(f"--{side}", required=True, metavar="COMMAND", help=f"starts server {side.upper()}")
        parser.add_argument(f"--{side}-target", required=True, metavar="HOST:PORT", help="where it will listen")
        parser.add_argument(
            f"--{side}-pid", type=int, action="append", default=[], metavar="PID", help="counts this running process with it, a Redis say"
        )
    parser.add_argument("--rounds", type=int, default=5, help="loads per server [5]")
    parser.add_argument("--seconds", type=float, default=4, help="measured part of a load [4]")
    parser.add_argument("--warmup", type=float, default=1, help="seconds of load before it [1]")
    parser.add_argument("--load", metavar="PATH", help="a generator that is built already")
    parser.add_argument("--json", action="store_true", help="prints the medians and ratios once more, as JSON, last")
    args = parser.parse_args(options)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    # So that servers are stopped on a termination too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    programs = {"load": args.load} if args.load else build()
    sides = [
        Side("A", args.a, args.a_target, args.a_pid, programs),
        Side("B", args.b, args.b_target, args.b_pid, programs),
    ]
    try:
        for side in sides:
            side.start()
            print(f"{side.name} is {shlex.join(side.words)} (pid {side.process.pid})")
        in_ms = lambda seconds: f"{round(seconds * 1000)}ms"
        times = ["--duration", in_ms(args.seconds), "--warmup", in_ms(args.warmup)]
        summary = compare(sides, args.rounds, programs["load"], times + for_load)
    finally:
        for side in sides:
            side.stop()
    if args.json:
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
