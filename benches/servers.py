"""Builds, starts, loads and stops servers for the comparisons. Uses only Python's standard library."""

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A server starts in well under a second; a cold disk may take a few.
START_TIMEOUT_S = 15
# Long enough for an ordered shutdown, shorter than a drain period.
STOP_TIMEOUT_S = 3


# Environment of every service in addition to ports and store, as in deployments of envoyproxy/ratelimit.
ENVIRONMENT = {
    "HOST": "127.0.0.1",
    "GRPC_HOST": "127.0.0.1",
    "DEBUG_HOST": "127.0.0.1",
    "RUNTIME_SUBDIRECTORY": "ratelimit",
    "RUNTIME_WATCH_ROOT": "false",
    "USE_STATSD": "false",
    "LOG_LEVEL": "error",
}


def split_options(words):
    """The options of a program, and those behind `--`, which are for the load generator."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


class Failed(Exception):
    """A failed measurement; the message says why."""


class Server:
    """A process that listens on `target`, HOST:PORT, once it is up."""

    def __init__(self, words, environment, target):
        self.words, self.environment, self.target = words, environment, target
        self.process = None
        self.log = tempfile.TemporaryFile(mode="w+", errors="replace")

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        if listens(self.target):
            raise Failed(f"something listens on {self.target} already")
        try:
            self.process = subprocess.Popen(
                self.words, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise Failed(f"start {self.words[0]}: {error}") from error
        give_up = time.monotonic() + START_TIMEOUT_S
        while not listens(self.target):
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise Failed(f"{shlex.join(self.words)} does not listen on {self.target}; it said:\n{self.said()}")
            time.sleep(0.05)

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


class Service(Server):
    """A rate limit service, Tollgate or the reference, with rules of `rules_directory(root)`."""

    def __init__(self, program, root, settings):
        grpc, http, admin = free_ports(3)
        ports = {"GRPC_PORT": str(grpc), "PORT": str(http), "DEBUG_PORT": str(admin)}
        super().__init__([program], plain_environment() | ENVIRONMENT | {"RUNTIME_ROOT": root} | ports | settings, f"127.0.0.1:{grpc}")
        self.page = f"http://127.0.0.1:{admin}/metrics"

    def metrics(self):
        with urllib.request.urlopen(self.page, timeout=5) as page:
            return page.read().decode()


def total(page, name, labels=""):
    """The sum of a metric of that page over all labels that include these."""
    return sum(float(value) for value in re.findall(rf"(?m)^{name}(?:{{.*{labels}.*}})? (\S+)$", page))


def rules_directory(root):
    path = os.path.join(root, ENVIRONMENT["RUNTIME_SUBDIRECTORY"], "config")
    os.makedirs(path, exist_ok=True)
    return path


def copy_rules(root):
    """Copies the rules of the benches to the folder that a service of that root reads."""
    shutil.copytree(os.path.join(PACKAGE, "benches", "rules"), rules_directory(root), dirs_exist_ok=True)


def listens(target):
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
        return True
    except OSError:
        return False


def free_ports(count):
    """Free ports, bound at the same time, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


def plain_environment():
    """The environment without settings of the shell."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}


def options(description, rate):
    """The options of a program that loads the service at a rate, in rounds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least_one, default=5, help="[5]")
    parser.add_argument("--seconds", type=float, default=4, help="measured part of a load [4]")
    parser.add_argument("--rate", type=int, default=rate, help=f"calls per second [{rate}]")
    parser.add_argument("--programs", metavar="DIR", help="a folder with tollgate and load that are built already")
    return parser


def at_least_one(word):
    if int(word) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(word)


def programs_of(folder, *benches):
    """The service, and these of this package's other programs, by name: those of a folder, if any, and the others built."""
    if folder and not os.path.isdir(folder):
        raise Failed(f"there is no folder {folder}")
    names = ("tollgate", *benches)
    ready = {name: path for name in names if folder and os.path.isfile(path := os.path.join(folder, name))}
    return build(*(name for name in names if name not in ready)) | ready


def build(*names):
    benches = [word for name in names if name != "tollgate" for word in ("--bench", name)]
    built = cargo("bench", "--no-run", *benches) if benches else {}
    # The service last and without features of dev-dependencies: cargo keeps one binary of that name, and the shipped one is measured.
    return built | (cargo("build", "--release", "--bin", "tollgate") if "tollgate" in names else {})


def cargo(*words):
    command = ["cargo", *words, "--message-format=json"]
    done = subprocess.run(command, cwd=PACKAGE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{shlex.join(command)} failed")
    messages = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}


def load(generator, target, pids, seconds, warmup, options, failed_max=0):
    """The result of one run of `load`; raises if a larger share of the requests failed. Late answers are only counted."""
    times = ["--duration", in_ms(seconds), "--warmup", in_ms(warmup)]
    command = [generator, "--json", "--allow-errors", "--target", target, "--pid", ",".join(map(str, pids)), *times, *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        run = json.loads(done.stdout)
    except ValueError as error:
        raise Failed(f"{shlex.join(command)} gave no result") from error
    requests = run["requests"]
    is_answered = requests["ok"] + requests["over_limit"] >= (1 - failed_max) * requests["sent"] > 0 and requests["unsent"] == 0
    if not is_answered or run["cpu_us_per_request"] is None:
        raise Failed(f"not answered in full: {json.dumps(requests)}")
    return run


def in_ms(seconds):
    return f"{round(seconds * 1000)}ms"


def ratio(a, b):
    return a / b if b else float("nan")
