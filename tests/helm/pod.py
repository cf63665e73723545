"""Starts the real binary with the environment, mounts and probes of a rendered Deployment.

The kubelet's part is played here: ConfigMaps and Secrets are laid out as it does, behind `..data`; variables get their values from Secrets
and fields; ports become free ones of 127.0.0.1, and addresses of others lead to servers that belong to the test.
"""

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import trustme

from chart import ROOT, Failed, of_kind, run
from tls_proxy import TlsProxy

# For a debug build on a busy machine.
PATIENCE_S = 20
PASSWORD = "s3cret"
# As in tests/suite/support/versions.rs: PyPI has Redis for x86_64 only.
SERVER = ROOT / ".tools" / "bin" / ("redis-server-6.2" if platform.machine() == "x86_64" else "valkey-server-9.1")
SAN = "envoy.example.com"
# Prefixes of the variables of each Redis.
POOLS = ("REDIS", "REDIS_PERSECOND")
# Name of the master.
MASTER = "mymaster"
# Secrets that exist before the chart is installed. Those of other names have certificates. REDIS is replaced by an address.
SECRETS = {
    "redis-auth": {"password": PASSWORD, "both": f"default:{PASSWORD}"},
    "sentinel-auth": {"password": PASSWORD},
    "redis-address": {"url": "REDIS"},
    "admin-token": {"token": "open-sesame-open-sesame"},
    "admin-read-token": {"token": "read-sesame-read-sesame"},
    "redact-key": {"key": "k"},
    "otlp-headers": {"headers": "authorization=Bearer%20t"},
}
# What another container of the pod writes into an emptyDir, by the name of the volume.
WRITTEN = {"token": {"auth": f"default:{PASSWORD}"}}
FIELDS = {"metadata.name": "my-pod", "status.podIP": "127.0.0.1"}


class Authority:
    """An authority and certificates that it signed."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tollgate-authority-")
        self.directory = Path(self.folder.name)
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(self.directory / "ca.crt")
        self.sign("tls", SAN, "localhost", "127.0.0.1")
        self.sign("stranger", "stranger.example.com")

    def sign(self, name, *hosts):
        signed = self.ca.issue_cert(*hosts, common_name=name)
        signed.private_key_pem.write_to_path(self.directory / f"{name}.key")
        signed.cert_chain_pems[0].write_to_path(self.directory / f"{name}.crt")

    def files(self):
        return {name: (self.directory / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}


class Process:
    """A process that dies with the test."""

    def __init__(self, words, environment, log):
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def said(self):
        return self.log.read_text(errors="replace")

    def ended(self):
        return self.process.poll() is not None

    def stop(self):
        if not self.ended():
            self.process.kill()
        self.process.wait()


class Server(Process):
    """A Redis server of a pod, or a sentinel if it has a file of configuration. The server itself speaks plain text on `port`."""

    def __init__(self, pod, name, more, declared, prefix, has_password, config=None):
        self.port, tls_port = server_ports()
        self.has_password, self.proxy = has_password, None
        public_port = self.port
        if declared.get(f"{prefix}_TLS") == "true":
            public_port = tls_port
            files = [pod.authority.directory / name for name in ("tls.crt", "tls.key", "ca.crt")]
            self.proxy = TlsProxy(public_port, self.port, *files, "REDIS_TLS_CLIENT_CERT" in declared)
        self.address = f"127.0.0.1:{public_port}"
        directory = pod.directory / name
        directory.mkdir()
        words = [SERVER, *([config] if config else []), "--bind", "127.0.0.1", "--dir", directory, "--port", self.port, *more]
        words += ["--sentinel"] if config else ["--save", ""]
        if "--cluster-enabled" in more:
            words += ["--cluster-announce-port", public_port]
        if has_password:
            words += ["--requirepass", PASSWORD]
        super().__init__(list(map(str, words)), {"PATH": os.environ["PATH"]}, pod.directory / f"{name}.log")

    def stop(self):
        super().stop()
        if self.proxy:
            self.proxy.stop()

    def command(self, *words):
        """The reply as text, a line per element; empty without a reply."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection, connection.makefile("rwb") as stream:
                for command in [("AUTH", PASSWORD)] * self.has_password + [words]:
                    stream.write(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in command))
                    stream.flush()
                    reply = read_reply(stream)
                return reply
        except OSError:
            return ""

    def until(self, expected, *words):
        give_up = time.monotonic() + PATIENCE_S
        while expected not in self.command(*words):
            if self.ended() or time.monotonic() > give_up:
                raise Failed(f"{' '.join(words)} does not say {expected}; the server said:\n{self.said()}")
            time.sleep(0.02)

    def ready(self):
        self.until("PONG", "PING")
        return self


class Pod:
    """Tollgate, started like the Deployment of `text`."""

    def __init__(self, text, binary, authority):
        self.text, self.binary, self.authority = text, binary, authority
        self.directory = Path(tempfile.mkdtemp(prefix="tollgate-helm-"))
        (self.deployment,) = of_kind(text, "Deployment", "ratelimit")
        self.spec = self.deployment["spec"]["template"]["spec"]
        self.container = next(each for each in self.spec["containers"] if each["name"] == "tollgate")
        names = [port["name"] for port in self.container["ports"]]
        self.ports = dict(zip(names, free_ports(len(names))))
        self.redis, self.process = {}, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for process in [*[self.process][: self.process is not None], *(server for servers in self.redis.values() for server in servers)]:
            process.stop()
        shutil.rmtree(self.directory)

    # Kubelet.

    def start(self):
        for mount in self.container.get("volumeMounts", []):
            volume = next(each for each in self.spec["volumes"] if each["name"] == mount["name"])
            if "subPath" in mount:
                raise Failed(f"{mount['mountPath']} is mounted with subPath, which is never updated")
            files = self.volume_files(volume)
            if files is not None:
                publish(self.mounted(mount["mountPath"]), files)
        declared = self.variables()
        for prefix in POOLS:
            if f"{prefix}_URL" in declared:
                self.start_pool(prefix, declared)
        self.environment = {name: self.here(name, value) for name, value in declared.items()}
        # Variables of every container, and loopback addresses for the listeners.
        self.environment |= {"PATH": "/bin", "HOST": "127.0.0.1", "GRPC_HOST": "127.0.0.1", "DEBUG_HOST": "127.0.0.1"}
        # A Redis that is late says something of the machine, and nothing of the chart.
        self.environment["STORE_TIMEOUT"] = f"{PATIENCE_S}s"
        self.process = Process([self.binary], self.environment, self.directory / "log")
        self.eventually("it answers", lambda: self.get("admin", "/") == 200)

    def mounted(self, path):
        return self.directory / "root" / path.lstrip("/")

    def volume_files(self, volume):
        if "configMap" in volume:
            return config_map(self.text, volume["configMap"]["name"])["data"]
        if "emptyDir" in volume:
            return WRITTEN.get(volume["name"])
        return SECRETS.get(volume["secret"]["secretName"]) or self.authority.files() if "secret" in volume else None

    def variables(self):
        """The declared environment with resolved references; the last of a name applies. `envFrom` is ignored."""
        values = {}
        for variable in self.container["env"]:
            source = variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = SECRETS[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                value = FIELDS[source["fieldRef"]["fieldPath"]]
            else:
                value = variable.get("value", "")
            values[variable["name"]] = value
        return values

    def here(self, name, value):
        """Replaces an address of a cluster by one of this machine."""
        port = {"GRPC_PORT": "grpc", "PORT": "http", "DEBUG_PORT": "admin"}.get(name)
        if port is not None:
            return str(self.ports[port])
        if name == "PROMETHEUS_ADDR":
            return f"127.0.0.1:{self.ports['metrics']}"
        if name in (f"{prefix}_URL" for prefix in POOLS):
            return self.redis[name.removesuffix("_URL")][0].address
        if name == "OTEL_EXPORTER_OTLP_ENDPOINT":
            return f"http://127.0.0.1:{free_ports(1)[0]}"
        if name == "CONFIG_GRPC_XDS_SERVER_URL":
            return f"127.0.0.1:{free_ports(1)[0]}"
        if name == "RUNTIME_ROOT" or value.startswith("/etc/tollgate"):
            return str(self.mounted(value))
        return value

    def start_pool(self, prefix, declared):
        """The Redis of one set of variables: single, Sentinel, or a cluster of one node."""
        kind = declared.get(f"{prefix}_TYPE", "single")
        words = ["--cluster-enabled", "yes"] if kind == "cluster" else []
        server = Server(self, f"{prefix}.redis", words, declared, prefix, f"{prefix}_AUTH_FILE" in declared)
        self.redis[prefix] = [server]
        server.ready()
        if kind == "cluster":
            server.command("CLUSTER", "ADDSLOTS", *map(str, range(16_384)))
            server.until("cluster_state:ok", "CLUSTER", "INFO")
        if kind == "sentinel":
            self.redis[prefix].insert(0, self.start_sentinel(prefix, declared, server))

    def start_sentinel(self, prefix, declared, master):
        config = self.directory / f"{prefix}.sentinel.conf"
        lines = [f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 1"]
        if master.has_password:
            lines.append(f"sentinel auth-pass {MASTER} {PASSWORD}")
        config.write_text("\n".join(lines) + "\n")
        sentinel = Server(self, f"{prefix}.sentinel", [], declared, prefix, f"{prefix}_SENTINEL_AUTH_FILE" in declared, config)
        sentinel.address = f"{MASTER},{sentinel.address}"
        return sentinel.ready()

    # Observations.

    def eventually(self, what, holds):
        give_up = time.monotonic() + PATIENCE_S
        while not holds():
            if self.process.ended() or time.monotonic() > give_up:
                when = "before the process ended" if self.process.ended() else f"within {PATIENCE_S} s"
                raise Failed(f"not so {when}: {what}; it said:\n{self.said()}")
            time.sleep(0.02)

    def said(self):
        return self.process.said()

    def get(self, port, path):
        """The status, or None without an answer."""
        return self.fetch(port, path)[0]

    def fetch(self, port, path, body=None, headers={}):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, urllib.error.URLError):
            return None, ""

    def ask(self, domain, hits=1, **entries):
        pairs = [{"key": key, "value": value} for key, value in entries.items()]
        body = {"domain": domain, "descriptors": [{"entries": pairs, "hitsAddend": hits}]}
        return self.fetch("http", "/json", json.dumps(body).encode())

    def probe(self, name):
        """The status of one of the probes."""
        where = self.container[f"{name}Probe"]["httpGet"]
        return self.get(where["port"], where["path"]) == 200

    def terminate(self):
        self.process.process.send_signal(signal.SIGTERM)

    def handshake(self, certificate):
        """The ALPN protocol of the gRPC port for a client with that certificate (a name of the authority's), or None."""
        files = self.authority.directory
        context = ssl.create_default_context(cafile=files / "ca.crt")
        context.set_alpn_protocols(["h2"])
        if certificate is not None:
            context.load_cert_chain(files / f"{certificate}.crt", files / f"{certificate}.key")
        try:
            with socket.create_connection(("127.0.0.1", self.ports["grpc"]), timeout=5) as plain:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
                    encrypted.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                    # In TLS 1.3 a server rejects a client certificate after the client's handshake.
                    return encrypted.selected_alpn_protocol() if encrypted.recv(1) else None
        except OSError:
            return None


def config_map(text, name):
    maps = [each for each in of_kind(text, "ConfigMap") if each["metadata"]["name"] == name]
    if not maps:
        raise Failed(f"there is no ConfigMap {name}")
    return maps[0]


def run_rules_check(text, binary):
    """Whether the Job that checks the rules succeeds, and what it prints."""
    (job,) = of_kind(text, "Job")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    with tempfile.TemporaryDirectory(prefix="tollgate-helm-") as root:
        volumes = {volume["name"]: volume["configMap"]["name"] for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            source = config_map(text, volumes[mount["name"]])
            weights = [int(each["metadata"]["annotations"].get("helm.sh/hook-weight", 0)) for each in (source, job)]
            if weights[0] >= weights[1]:
                raise Failed(f"ConfigMap {volumes[mount['name']]} is not created before the Job that mounts it")
            publish(Path(root) / mount["mountPath"].lstrip("/"), source["data"])
        here = lambda value: f"{root}{value}" if value.startswith("/etc/tollgate") else value
        environment = {variable["name"]: here(variable["value"]) for variable in container["env"]}
        good, out, error = run(binary, *container["args"], env=environment)
        return good, out + error


def publish(directory, files):
    """Writes files like the kubelet: a new folder each time, and one symlink that is switched."""
    directory.mkdir(parents=True, exist_ok=True)
    version = Path(tempfile.mkdtemp(prefix="..2026_", dir=directory))
    for name, text in files.items():
        (version / name).write_text(text)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..data_tmp").symlink_to(version.name)
    (directory / "..data_tmp").rename(directory / "..data")


# Ports that a check has, which others run beside.
GIVEN_PORTS = set()


def free_ports(count):
    """Free ports that no check had before."""
    ports = []
    while len(ports) < count:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        if port not in GIVEN_PORTS:
            GIVEN_PORTS.add(port)
            ports.append(port)
    return ports


def server_ports():
    """A free port whose cluster bus port, 10,000 higher, is free as well, and a second free port."""
    while True:
        port, other = free_ports(2)
        if port < 55_536:
            with contextlib.suppress(OSError), socket.socket() as bus:
                bus.bind(("127.0.0.1", port + 10_000))
                return port, other


def read_reply(stream):
    """One reply of Redis, as text."""
    line = stream.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"$":
        return stream.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else ""
    if kind == b"*":
        return "\n".join(read_reply(stream) for _ in range(int(rest)))
    return rest.decode()


def binary():
    path = ROOT / "target" / "debug" / "tollgate"
    if not path.exists():
        raise Failed(f"{path} is missing: run `cargo build`, as `make helm` does")
    return path
