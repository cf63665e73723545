"""Redis deployments for measurements: one server, Sentinel, or a cluster. Without persistence."""

import contextlib
import os
import random
import signal
import socket
import time

from servers import Failed, Server, plain_environment

MASTER = "tollgate-bench"
SENTINELS = 3
QUORUM = 2
# Short enough for a run of minutes, longer than the pauses of a busy server.
DOWN_AFTER_MS = 1500
# For servers to find each other: the first sync of a replica and a round of gossip take a second or two.
FORMED_TIMEOUT_S = 30
SLOTS = 16384
# Offset of the cluster bus port.
BUS_OFFSET = 10000
# Both below the ephemeral ports of Linux, so that they are free when a killed server restarts.
PORTS = range(20000, 22700)
ASK_TIMEOUT_S = 5
SINGLE, SENTINEL, CLUSTER = "single", "sentinel", "cluster"


class RedisError(Failed):
    """An error reply of Redis."""


class RedisServer(Server):
    """One process. It announces `announced` to clients: its own port, or that of a proxy."""

    def __init__(self, program, directory, port, announced=None, options=()):
        self.port, self.announced = port, announced or port
        # A replica stores its first sync in this file and would load it at a restart: it has its own file, which is removed.
        self.dump = os.path.join(directory, f"dump-{port}.rdb")
        words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory]
        words += ["--dbfilename", os.path.basename(self.dump)]
        super().__init__([*words, *options], plain_environment(), f"127.0.0.1:{port}")

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.dump)
        super().start()

    def ask(self, *words):
        """The reply: a number, a text, or a list of those."""
        return ask(self.port, *words)

    def info(self, section):
        lines = (line.split(":", 1) for line in self.ask("INFO", section).splitlines() if ":" in line)
        return {name: value.strip() for name, value in lines}

    def kill(self):
        """Without a shutdown."""
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        if self.process and self.process.poll() is None:
            # A stopped process handles no other signal.
            self.process.send_signal(signal.SIGCONT)
        super().stop()


class Single:
    """One server."""

    kind = SINGLE

    def __init__(self, program, directory, before=lambda port: port):
        port = free_port()
        self.servers = [RedisServer(program, directory, port, before(port))]

    @property
    def pids(self):
        return [server.pid for server in self.servers]

    @property
    def url(self):
        return ",".join(f"127.0.0.1:{server.announced}" for server in self.servers)

    def environment(self):
        return {"REDIS_SOCKET_TYPE": "tcp", "REDIS_TYPE": self.kind.upper(), "REDIS_URL": self.url}

    def masters(self):
        """The masters among the servers that respond."""
        return [server for server in self.servers if role(server) == "master"]

    def whole(self):
        """Every server runs in its intended role."""
        return len(self.masters()) == len(self.servers)

    def counters(self):
        return sum(server.ask("DBSIZE") for server in self.masters())

    def start(self):
        for server in self.servers:
            server.start()

    def stop(self):
        for server in self.servers:
            server.stop()


class Sentinel(Single):
    """A master, a replica, and sentinels that watch them."""

    kind = SENTINEL

    def __init__(self, program, directory, before=lambda port: port):
        ports = [free_port() for _ in range(2)]
        self.servers = [RedisServer(program, directory, port, before(port)) for port in ports]
        for server in self.servers:
            server.words += ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(server.announced)]
        self.sentinels = [sentinel(program, directory, free_port(), self.servers[0].announced) for _ in range(SENTINELS)]

    @property
    def url(self):
        return ",".join([MASTER, *(sentinel.target for sentinel in self.sentinels)])

    def start(self):
        super().start()
        master, replica = self.servers
        replica.ask("REPLICAOF", "127.0.0.1", str(master.announced))
        for each in self.sentinels:
            each.start()
        until("the sentinels know each other and the replica", self.whole)

    def whole(self):
        """One master, known to all sentinels, and one replica that follows it."""
        masters = self.masters()
        following = [server for server in self.servers if server.info("replication").get("master_link_status") == "up"]
        if not len(masters) == len(following) == 1:
            return False
        whole = {"num-other-sentinels": str(SENTINELS - 1), "num-slaves": "1", "port": str(masters[0].announced), "flags": "master"}
        return all(whole.items() <= info_of_master(each).items() for each in self.sentinels)

    def stop(self):
        for each in self.sentinels:
            each.stop()
        super().stop()


class Cluster(Single):
    """Masters with equal shares of the slots, each with replicas."""

    kind = CLUSTER

    def __init__(self, program, directory, before=lambda port: port, masters=3, replicas=0):
        self.of_masters, self.replicas = masters, replicas
        self.servers = []
        for _ in range(masters * (1 + replicas)):
            port = free_port(bus=True)
            announced = before(port)
            options = ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf"]
            options += ["--cluster-node-timeout", str(DOWN_AFTER_MS), "--cluster-replica-validity-factor", "0"]
            options += ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(announced)]
            options += ["--cluster-announce-bus-port", str(port + BUS_OFFSET)]
            self.servers.append(RedisServer(program, directory, port, announced, options))

    def start(self):
        super().start()
        masters = self.servers[: self.of_masters]
        for number, server in enumerate(self.servers):
            # Before they meet, to avoid epoch conflicts.
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for number, server in enumerate(masters):
            of = range(SLOTS * number // self.of_masters, SLOTS * (number + 1) // self.of_masters)
            server.ask("CLUSTER", "ADDSLOTS", *map(str, of))
        for server in self.servers[1:]:
            server.ask("CLUSTER", "MEET", "127.0.0.1", str(self.servers[0].port), str(self.servers[0].port + BUS_OFFSET))
        until("the servers know each other", self.met)
        for number, server in enumerate(self.servers[self.of_masters :]):
            master = masters[number % self.of_masters].ask("CLUSTER", "MYID")
            until("a replica has its master", lambda: accepted(server, "CLUSTER", "REPLICATE", master))
        until("the cluster is whole", self.whole)

    def met(self):
        return all(cluster_info(server)["cluster_known_nodes"] == str(len(self.servers)) for server in self.servers)

    def whole(self):
        """Every server that answers sees all slots served, and every replica follows its master."""
        for server in self.servers:
            if cluster_info(server)["cluster_state"] != "ok" or server.info("replication").get("master_link_status", "up") != "up":
                return False
        return len(self.masters()) == self.of_masters


def ask(port, *words):
    """The reply of the server on that port: a number, a text, or a list of those."""
    with socket.create_connection(("127.0.0.1", port), timeout=ASK_TIMEOUT_S) as connection, connection.makefile("rwb") as stream:
        stream.write(b"*%d\r\n" % len(words))
        for word in words:
            word = word.encode()
            stream.write(b"$%d\r\n%s\r\n" % (len(word), word))
        stream.flush()
        return reply(stream, words)


def reply(stream, words):
    kind, rest = (line := stream.readline().decode().rstrip("\r\n"))[:1], line[1:]
    if kind == "$":
        return stream.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else None
    if kind == "*":
        return [reply(stream, words) for _ in range(int(rest))]
    if kind == ":":
        return int(rest)
    if kind == "+":
        return rest
    raise RedisError(f"{' '.join(words)[:80]}: {rest or 'the connection was closed'}")


def accepted(server, *words):
    try:
        server.ask(*words)
        return True
    except RedisError:
        return False


def role(server):
    """Its role; empty without a reply."""
    try:
        return server.ask("ROLE")[0]
    except (OSError, Failed):
        return None


def cluster_info(server):
    return dict(line.split(":", 1) for line in server.ask("CLUSTER", "INFO").split())


def sentinel(program, directory, port, master):
    """A sentinel stores its state in its configuration file."""
    path = os.path.join(directory, f"sentinel-{port}.conf")
    with open(path, "w") as config:
        config.write(f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor {MASTER} 127.0.0.1 {master} {QUORUM}\n")
        config.write(f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\nsentinel failover-timeout {MASTER} 5000\n")
    return Server([program, path, "--sentinel"], plain_environment(), f"127.0.0.1:{port}")


def info_of_master(sentinel):
    reply = ask(int(sentinel.target.rsplit(":", 1)[1]), "SENTINEL", "MASTER", MASTER)
    return dict(zip(reply[::2], reply[1::2]))


def until(what, holds):
    give_up = time.monotonic() + FORMED_TIMEOUT_S
    while not holds():
        if time.monotonic() > give_up:
            raise Failed(f"not within {FORMED_TIMEOUT_S} s: {what}")
        time.sleep(0.1)


def free_port(bus=False):
    """A free port; with `bus` its cluster bus port is free as well."""
    for _ in range(1000):
        port = random.choice(PORTS)
        try:
            with socket.create_server(("127.0.0.1", port)):
                if bus:
                    socket.create_server(("127.0.0.1", port + BUS_OFFSET)).close()
            return port
        except OSError:
            continue
    raise Failed(f"no port is free of {PORTS}")
