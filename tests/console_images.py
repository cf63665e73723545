#!/usr/bin/env python3
"""Writes the pictures of docs/console.md: starts the service with sample rules and some load, and has Chromium open its console.

Usage: tests/console_images.py FOLDER [--all]. Needs a built target/debug/tollgate, .tools/bin/redis-server-6.2 and the packages chromium and
chromium-driver.
With --all every view is drawn, also dark and narrow, to look at them.
"""

import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 70
RULES = """domain: shop
descriptors:
  - {key: path, value: /login, rate_limit: {unit: hour, requests_per_unit: 2000}}
  - {key: path, value: /checkout, rate_limit: {unit: hour, requests_per_unit: 400}}
  - {key: path, value: /search, rate_limit: {unit: minute, requests_per_unit: 900}, metadata: {tollgate: {algorithm: token_bucket, burst: 300}}}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 120}}
  - key: plan
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {tollgate: {algorithm: sliding_window}}}
  - key: plan
    value: pro
    descriptors:
      - {key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 50000}}
"""
# Name, path, width, height, dark.
PICTURES = [
    ("console-overview", "/", 1280, 760, False),
    ("console-overview-dark", "/", 1280, 760, True),
    ("console-rules", "/console/rules", 1280, 420, False),
    ("console-rule", "/console/rule?domain=shop&rule=shop.user", 1280, 860, False),
    ("console-key", "/console/key?domain=shop&e=user%3D42", 1280, 520, False),
    ("console-budgets", "/console/budgets", 1280, 420, False),
    ("console-files", "/console/files", 1280, 320, False),
    ("console-file", "/console/file?name=shop.yaml", 1280, 760, False),
    ("console-over-limit", "/console/over-limit", 1280, 420, False),
    ("console-trial", "/console/trial", 1280, 420, False),
    ("console-narrow", "/", 500, 900, False),
]
# On Redis, which is reachable, and then stopped.
STORE_PICTURES = [("console-store", "/console/store", 1280, 560, False), ("console-store-unreachable", "/console/store", 1280, 560, False)]
REDIS = ROOT / ".tools/bin/redis-server-6.2"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port, *entries):
    descriptor = {"entries": [{"key": key, "value": value} for key, value in entries]}
    body = json.dumps({"domain": "shop", "descriptors": [descriptor]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/json", body)
    try:
        urllib.request.urlopen(request, timeout=5).read()
    except (urllib.error.URLError, OSError):
        # Over limit, or the service has ended.
        pass


def load(port, seconds):
    """More and less of it, over several minutes of the chart."""
    end = time.monotonic() + seconds
    users = ["42"] * 4 + [str(number) for number in range(50, 60)]
    while time.monotonic() < end:
        user = random.choice(users)
        ask(port, ("user", user))
        ask(port, ("plan", random.choice(["free", "free", "pro"])), ("user", user))
        ask(port, ("path", random.choice(["/login", "/checkout", "/search", "/search"])))
        time.sleep(random.uniform(0.005, 0.05))


def shoot(address, picture, folder):
    name, path, width, height, is_dark = picture
    # Feeds never end: what was received after the timeout is drawn.
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--timeout=4000"]
    options += [f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"]
    output = folder / f"{name}.png"
    subprocess.run(["chromium", *options, f"--screenshot={output}", f"{address}{path}"], check=True, stderr=subprocess.DEVNULL, timeout=120)


def every_look(picture):
    """A picture, and the same dark and narrow."""
    name, path, width, height, is_dark = picture
    if is_dark or width < 1000:
        return []
    return [picture, (f"{name}-dark", path, width, height, True), (f"{name}-narrow", path, 500, 1000, False)]


class Service:
    """A running service with rules files."""

    def __init__(self, home, files, settings):
        for name, text in files.items():
            path = Path(home, "rules", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.grpc, self.http, self.admin = free_port(), free_port(), free_port()
        environment = {"GRPC_PORT": str(self.grpc), "PORT": str(self.http), "DEBUG_PORT": str(self.admin), "USE_STATSD": "false"}
        environment |= {name: "127.0.0.1" for name in ("GRPC_HOST", "HOST", "DEBUG_HOST")}
        command = [ROOT / "target/debug/tollgate", "serve", "rules"]
        self.process = subprocess.Popen(command, env=environment | settings, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.address = f"http://127.0.0.1:{self.admin}"
        while not answers(self.admin):
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def draw_rules(home, draw):
    with Service(Path(home, "service"), {"shop.yaml": RULES}, {}) as service:
        load(service.http, SECONDS)
        # Requests go on, for the feed.
        threading.Thread(target=load, args=(service.http, 600), daemon=True).start()
        for picture in PICTURES:
            draw(service.address, picture)


def draw_store(home, draw):
    port = free_port()
    redis = subprocess.Popen([REDIS, "--port", str(port), "--save", "", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
    try:
        settings = {"REDIS_URL": f"127.0.0.1:{port}"}
        with Service(Path(home, "one"), {"shop.yaml": RULES}, settings) as service, Service(Path(home, "other"), {"shop.yaml": RULES}, settings):
            load(service.http, 10)
            draw(service.address, STORE_PICTURES[0])
            redis.kill()
            redis.wait()
            load(service.http, 5)
            draw(service.address, STORE_PICTURES[1])
    finally:
        redis.kill()
        redis.wait()


def main(folder, draws_all):
    if not shutil.which("chromium"):
        sys.exit("chromium is missing; install it: apt-get install --no-install-recommends chromium")

    def draw(address, picture):
        for each in every_look(picture) if draws_all else [picture]:
            shoot(address, each, folder)

    with tempfile.TemporaryDirectory() as home:
        draw_rules(home, draw)
        draw_store(home, draw)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), "--all" in sys.argv)
