#!/usr/bin/env python3
"""Measures what clients of the admin port do to calls: their latency, and the CPU of the threads that serve them.

    benches/admin.py [--rounds N] [--seconds S] [--rate R] [--only LOAD] [--programs DIR]

A service is loaded at an equal rate, with a quiet admin port and with each of these loads on it:

    connections   1,000 connections from 250 addresses that send nothing, opened again when they are closed
    slow readers  200 connections that follow /api/v1/over-limit or ask for /metrics and never read, opened again likewise
    tokens        4 clients that send a wrong token without a pause
    queries       2 clients that send queries and bodies of 10 MB without a pause
    texts         2 clients that have a rules text of half a million empty keys checked without a pause
    files         120 connections that ask 20 times for a rules file and never read, opened again likewise

These clients have the lowest priority, as if they were on another machine, but the admin thread takes CPU. So each load also runs
against another process of the same kind (`elsewhere`): what differs then is only whether that process serves the calls, too. A round has all of them, the order reversed in each
second round. It prints medians over the rounds, and fails if a load changes serving beside the same load elsewhere: p50 by more than 1.5
times, or the CPU per call of the worker threads by more than 1.25 times; or if a call was not answered. p99 is printed only: on two
cores it depends on what else runs. Uses only Python's standard library.
"""

import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time

from servers import Failed, Service, copy_rules, load, options, programs_of, total

P50_MAX = 1.5
CPU_MAX = 1.25
OPTIONS = ["--keys", "10000", "--connections", "8"]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CONNECTIONS = 1000
ADDRESSES = 250
LARGE = b"x" * (10 << 20)
QUERIES = [
    b"POST /api/v1/counters HTTP/1.1\r\nhost: bench\r\ncontent-length: 10485760\r\n\r\n" + LARGE,
    b"GET /api/v1/counters?domain=bench&e=" + LARGE + b" HTTP/1.1\r\nhost: bench\r\n\r\n",
]
RULES_FILE = "bench.yaml"
LOWEST_PRIORITY = 19
# Time for the attack to begin before the measurement does.
BEGIN_S = 0.5
PAUSE_S = 0.001


def connect(port, number):
    """A connection from one of 250 addresses, so that no bound of one client applies."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(5)
    connection.bind((f"127.0.1.{number % ADDRESSES + 1}", 0))
    connection.connect(("127.0.0.1", port))
    return connection


def hold(port, count, request):
    """Keeps `count` connections open, and opens the oldest again in turn; reads nothing."""
    held, number = [], 0
    while True:
        if len(held) == count:
            held.pop(0).close()
        try:
            connection = connect(port, number)
            connection.sendall(request(number))
            held.append(connection)
        except OSError:
            pass
        number += 1
        if number > count:
            time.sleep(PAUSE_S)


def connections(port, _):
    hold(port, CONNECTIONS, lambda number: b"")


def slow_readers(port, _):
    paths = [b"/api/v1/over-limit", b"/metrics"]
    hold(port, 200, lambda number: b"GET " + paths[number % 2] + b" HTTP/1.1\r\nhost: bench\r\n\r\n")


def tokens(port, client):
    body = b'{"domain":"bench","descriptor":[["user","u1"]]}'
    head = f"POST /api/v1/counters/reset HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer wrong\r\ncontent-length: {len(body)}\r\n\r\n"
    connection = connect(port, client)
    while True:
        connection.sendall(head.encode() + body)
        if not connection.recv(4096):
            connection = connect(port, client)


def queries(port, client):
    while True:
        connection = connect(port, client)
        try:
            connection.sendall(QUERIES[client % 2])
            connection.recv(4096)
        except OSError:
            pass
        connection.close()


def files(port, _):
    request = f"GET /console/file?name={RULES_FILE} HTTP/1.1\r\nhost: bench\r\n\r\n".encode() * 20
    hold(port, 120, lambda number: request)


# Clients of a load, each a process.
LOADS = {"connections": (connections, 1), "slow readers": (slow_readers, 1), "tokens": (tokens, 4), "queries": (queries, 2), "files": (files, 1)}


def start(client, port, number):
    os.nice(LOWEST_PRIORITY)
    client(port, number)


class Attack:
    """The clients of a load, while it is open."""

    def __init__(self, name, port):
        client, count = LOADS[name]
        self.clients = [multiprocessing.Process(target=start, args=(client, port, number), daemon=True) for number in range(count)]

    def __enter__(self):
        for client in self.clients:
            client.start()
        time.sleep(BEGIN_S)

    def __exit__(self, *_):
        ended = [client for client in self.clients if not client.is_alive()]
        for client in self.clients:
            client.kill()
            client.join()
        if ended:
            raise Failed("a client of the admin port ended")


def main():
    parser = options(__doc__, rate=2000)
    parser.add_argument("--only", action="append", choices=LOADS, help="these loads only")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        return measure(args, programs_of(args.programs, "load"), home)


def measure(args, programs, home):
    copy_rules(home)
    settings = {"DRAIN_PERIOD": "0", "WORKERS": "1", "ADMIN_TOKEN": "right", "BACKEND_TYPE": "memory"}
    serving, other = (Service(programs["tollgate"], home, settings) for _ in range(2))
    sides = [("quiet", None)]
    for name in args.only or LOADS:
        sides += [(f"{name}, elsewhere", (name, other)), (name, (name, serving))]
    runs = {name: [] for name, _ in sides}
    started = []
    try:
        for service in (serving, other):
            started.append(service)
            service.start()
        for number in range(args.rounds):
            for name, attack in sides if number % 2 == 0 else reversed(sides):
                runs[name].append(run(args, programs, serving, attack))
        check_bounded(serving, args.only or LOADS)
    finally:
        for service in reversed(started):
            service.stop()
    return report(runs)


def run(args, programs, serving, attack):
    options = [*OPTIONS, "--rate", str(args.rate)]
    before = worker_seconds(serving.pid)
    if attack is None:
        result = load(programs["load"], serving.target, [serving.pid], args.seconds, 1, options)
    else:
        name, target = attack
        with Attack(name, int(target.page.split(":")[2].split("/")[0])):
            result = load(programs["load"], serving.target, [serving.pid], args.seconds, 1, options)
    # The warm-up is in both.
    calls = sum(part["ok"] + part["over_limit"] for part in (result["requests"], result["warmup"]))
    return result["latency_ms"]["p50"], result["latency_ms"]["p99"], (worker_seconds(serving.pid) - before) * 1e6 / calls


def worker_seconds(pid):
    """CPU of the threads that serve calls."""
    ticks = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as stat:
            name, fields = stat.read().split("(", 1)[1].rsplit(")", 1)
        if name.startswith("worker-"):
            ticks += sum(int(field) for field in fields.split()[11:13])
    return ticks / TICKS_PER_SECOND


def check_bounded(service, names):
    """Whether the loads reached the bounds that they are about."""
    page = service.metrics()
    for name, metric in [
        ("connections", "tollgate_http_connections_full_total"),
        ("slow readers", "tollgate_http_connections_full_total"),
        ("tokens", 'tollgate_admin_actions_total{action="reset",outcome="throttled"}'),
    ]:
        if name in names and not any(line.startswith(metric) and not line.endswith(" 0") for line in page.splitlines()):
            raise Failed(f"{metric} is 0 after {name}")
    print(f"resident memory of the serving process {total(page, 'process_resident_memory_bytes') / (1 << 20):.0f} MiB\n")


def report(runs):
    medians = {name: [statistics.median(values) for values in zip(*results)] for name, results in runs.items()}
    quiet = medians["quiet"]
    print(f"{'':<26}{'p50 ms':>8}{'p99 ms':>8}{'CPU us':>8}   beside quiet: p50, p99, CPU   beside elsewhere: p50, p99, CPU")
    good = True
    for name, values in medians.items():
        line = f"{name:<26}" + "".join(f"{value:>8.3f}" for value in values[:2]) + f"{values[2]:>8.1f}"
        line += "   " + "".join(f"{value / base:>8.2f}" for value, base in zip(values, quiet))
        if name in LOADS:
            p50, _, cpu = ratios = [value / base for value, base in zip(values, medians[f"{name}, elsewhere"])]
            is_missed = p50 > P50_MAX or cpu > CPU_MAX
            good &= not is_missed
            line += "      " + "".join(f"{ratio:>8.2f}" for ratio in ratios) + ("   MISSED" if is_missed else "")
        print(line)
    return 0 if good else 1


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"admin.py: {error}")
