"""What the drill breaks: three replicas behind an Envoy, on one Redis, with a load of several tenants."""

import asyncio
import contextlib
import http.client
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "helm"))

from chart import ROOT, TOOLS, Failed, run
from pod import PATIENCE_S, SERVER, Process, binary, free_ports, publish, read_reply

REPLICAS = ("tollgate-0", "tollgate-1", "tollgate-2")
RULES_FILE = "web.yaml"
RULES = """domain: web
descriptors:
  - key: tenant
    rate_limit:
      unit: second
      requests_per_unit: 20
"""
# The error is in the last line.
INVALID_RULES = RULES.replace("20", "many")
INVALID_LINE, INVALID_REASON = RULES.count("\n"), "expected a whole number"
# Requests per second of each client, below the limit of a tenant.
CLIENTS, CLIENT_RATE = 3, 10
TENANTS = [f"tenant-{number}" for number in range(10)]
# Four of five calls are of this tenant then, most of them over its limit.
FLOODING_TENANT, FLOOD_CLIENTS, FLOOD_RATE = "tenant-that-floods", 4, 30
ENVOY_CONFIG = ROOT / "deploy" / "envoy" / "envoy.yaml"
ENVOY_TIMEOUT = "0.15s"
TENANT_ACTION = '- request_headers: {header_name: x-tenant, descriptor_key: tenant}'


class Replica:
    """A Tollgate on ports that it keeps when it is started again."""

    def __init__(self, name, rules, home):
        self.name, self.rules, self.home = name, rules, home
        self.http, self.grpc, self.admin = free_ports(3)
        self.process, self.log_begin = None, 0

    def start(self, redis_url):
        """Without Redis if there is no URL."""
        variables = {"PATH": os.environ["PATH"], "POD_NAME": self.name}
        variables |= {name: "127.0.0.1" for name in ("HOST", "GRPC_HOST", "DEBUG_HOST")}
        variables |= {"PORT": str(self.http), "GRPC_PORT": str(self.grpc), "DEBUG_PORT": str(self.admin)}
        variables |= {"REDIS_URL": redis_url} if redis_url else {}
        self.process, self.log_begin = Process([binary(), self.rules], variables, self.home / f"{self.name}.log"), 0
        eventually(f"{self.name} has an admin port", lambda: fetch(self.admin, "/ready")[0], self.process)

    def mark_log(self):
        self.log_begin = len(self.process.said())

    def log(self):
        """Since the mark."""
        return self.process.said()[self.log_begin :]

    def ready(self):
        """Status and text of /ready."""
        status, text = fetch(self.admin, "/ready")
        return f"{status} {text}"

    def badge(self):
        """The status line of the console."""
        _, page = fetch(self.admin, "/")
        status = re.search(r'id="status".*?>(.*?)</div>', page, re.DOTALL)
        return " ".join(re.sub(r"<[^>]*>", " ", status[1]).split()) if status else ""


class Redis:
    """A Redis server, with a proxy in front of it that delays replies."""

    def __init__(self, home):
        (self.port,) = free_ports(1)
        words = [SERVER, "--bind", "127.0.0.1", "--port", self.port, "--dir", home, "--save", ""]
        # Redis 6.2 has no such setting, and allows DEBUG.
        words += ["--enable-debug-command", "local"] if "valkey" in SERVER.name else []
        self.process = Process(list(map(str, words)), {"PATH": os.environ["PATH"]}, home / "redis.log")
        eventually("Redis answers", lambda: self.command("PING") == "PONG", self.process)
        self.proxy = DelayProxy(self.port)

    def command(self, *words):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return read_reply(connection.makefile("rb"))

    def block_repeatedly(self, blocked_s, interval_s):
        """As slow commands of another client do, until the server is stopped."""

        def block():
            while not self.process.ended():
                self.command("DEBUG", "SLEEP", str(blocked_s))
                time.sleep(interval_s - blocked_s)

        threading.Thread(target=block, daemon=True).start()

    def stop(self):
        self.process.stop()
        self.proxy.stop()


class DelayProxy:
    """Passes connections on; each reply arrives `delay_s` later."""

    def __init__(self, port):
        self.to, self.delay_s = port, 0
        self.listener, self.has_ended = socket.create_server(("127.0.0.1", 0)), threading.Event()
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=lambda: asyncio.run(self.run()), daemon=True).start()

    async def run(self):
        server = await asyncio.start_server(self.serve, sock=self.listener)
        await asyncio.to_thread(self.has_ended.wait)
        server.close()

    async def serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.CancelledError):
            replies, requests = await asyncio.open_connection("127.0.0.1", self.to)
            await asyncio.gather(self.forward(reader, requests, lambda: 0), self.forward(replies, writer, lambda: self.delay_s))

    async def forward(self, reader, writer, delay_s):
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                # Timers with the same delay run in order.
                loop.call_later(delay_s(), writer.write, piece)
        loop.call_later(delay_s(), writer.close)

    def stop(self):
        self.has_ended.set()


class Load:
    """Clients that send requests through Envoy, at random times: at constant intervals they would be in step with a Redis that is blocked."""

    def __init__(self, port):
        self.port, self.has_ended = port, threading.Event()

    def start(self, clients, rate, tenants):
        for number in range(clients):
            threading.Thread(target=self.run, args=(rate, tenants[number::clients] or tenants), daemon=True).start()

    def run(self, rate, tenants):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        times, sent = random.Random(tenants[0]), 0
        while not self.has_ended.wait(times.uniform(0, 2 / rate)):
            try:
                connection.request("GET", "/", headers={"x-tenant": tenants[sent % len(tenants)]})
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                # Envoy is started again.
                connection.close()
            sent += 1


class Fleet:
    """Everything that runs, in a folder of its own."""

    def __init__(self, redis_delay_s):
        """With a delay, Redis is reached through the proxy."""
        self.home = Path(tempfile.mkdtemp(prefix="tollgate-drill-"))
        self.rules = self.home / "rules"
        self.publish(RULES)
        self.redis = Redis(self.home)
        self.redis.proxy.delay_s = redis_delay_s or 0
        self.redis_address = f"127.0.0.1:{self.redis.port if redis_delay_s is None else self.redis.proxy.port}"
        self.replicas = [Replica(name, self.rules, self.home) for name in REPLICAS]
        self.ingress, self.backend, self.envoy_admin = free_ports(3)
        self.envoy = None
        self.load = Load(self.ingress)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.load.has_ended.set()
        for process in [self.envoy, self.redis, *(replica.process for replica in self.replicas)]:
            if process:
                process.stop()
        shutil.rmtree(self.home)

    def start(self, envoy_timeout):
        for replica in self.replicas:
            replica.start(f"redis://{self.redis_address}")
        self.start_envoy(envoy_timeout)
        is_counted = lambda replica: f"\ntollgate_replicas {len(REPLICAS)}\n" in fetch(replica.admin, "/metrics")[1]
        eventually("replicas count each other", lambda: all(map(is_counted, self.replicas)), self.envoy)
        self.load.start(CLIENTS, CLIENT_RATE, TENANTS)

    def top(self):
        """What `tollgate top` prints."""
        return run(binary(), "top", "--url", f"http://127.0.0.1:{self.replicas[0].admin}")[1]

    def publish(self, rules):
        """As the kubelet does for a ConfigMap."""
        publish(self.rules, {RULES_FILE: rules})

    def start_envoy(self, timeout):
        """The sample configuration with the three replicas; another one is stopped first."""
        if self.envoy:
            self.envoy.stop()
        text = ENVOY_CONFIG.read_text()
        endpoint = "endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: PORT}}}"
        endpoints = "\n        - ".join(endpoint.replace("PORT", str(replica.grpc)) for replica in self.replicas)
        ports = {9901: self.envoy_admin, 10000: self.ingress, 10001: self.backend}
        changes = [
            (endpoint.replace("PORT", "8081"), endpoints),
            *((f"port_value: {there}}}", f"port_value: {here}}}") for there, here in ports.items()),
            ('- request_headers: {header_name: ":path", descriptor_key: path}', TENANT_ACTION),
            ("- remote_address: {}", ""),
            (f" timeout: {ENVOY_TIMEOUT}", f" timeout: {timeout}"),
        ]
        for there, here in changes:
            if there not in text:
                raise Failed(f"there is no `{there}` in {ENVOY_CONFIG}")
            text = text.replace(there, here)
        config = self.home / "envoy.yaml"
        config.write_text(text)
        words = [TOOLS / "envoy", "-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
        self.envoy = Process(list(map(str, words)), {"PATH": os.environ["PATH"]}, self.home / "envoy.log")
        eventually("Envoy serves", lambda: fetch(self.envoy_admin, "/ready")[0] == 200, self.envoy)


def fetch(port, path):
    """Status and body; no status without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return None, str(error)


def eventually(what, holds, process):
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        if process.ended() or time.monotonic() > give_up:
            raise Failed(f"not so: {what}; the process said:\n{process.said()}")
        time.sleep(0.05)
