"""Redis of a measurement's own: one server, servers behind Sentinel, or a cluster. Without persistence; gone when they are stopped."""

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
# Soon enough for a run of minutes, and longer than a server that is merely busy is silent.
DOWN_AFTER_MS = 1500
# How long servers may take to know each other: a replica's first copy and a round of gossip are a second or two.
FORMED_TIMEOUT_S = 30
SLOTS = 16384
# A cluster's servers talk to each other on the port that is so much higher.
BUS_OFFSET = 10000
# Below those that Linux gives to outgoing connections, both of them, so that a server that is killed finds them free when it starts again.
PORTS = range(20000, 22700)
ASK_TIMEOUT_S = 5
SINGLE, SENTINEL, CLUSTER = "single", "sentinel", "cluster"


class Refused(Failed):
    """Redis' own error."""


class RedisServer(Server):
    """One process. Clients are told to come to `announced`, which is its own port unless somebody stands in front of it."""

    def __init__(self, program, directory, port, announced=None, options=()):
        self.port, self.announced = port, announced or port
        # What a replica is sent first it keeps in that file, and would come back with when it is started again: it is its own, so that it
        # is not another one's, and it is removed.
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
        """As SIGKILL does it: nothing is said to anybody."""
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        if self.process and self.process.poll() is None:
            # One that stands still hears nothing else.
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
        """Those that serve, of the servers that answer."""
        return [server for server in self.servers if role(server) == "master"]

    def whole(self):
        """Every server is there, and in the place that it should be in."""
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
        """One master, which all sentinels have for it, and one replica that follows it."""
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
    """Masters that share the slots evenly, each with so many replicas."""

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
            # Before they meet, so that nobody has to give way.
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
    """What the server on that port replies: a number, a text, or a list of those."""
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
    raise Refused(f"{' '.join(words)[:80]}: {rest or 'the connection was closed'}")


def accepted(server, *words):
    try:
        server.ask(*words)
        return True
    except Refused:
        return False


def role(server):
    """What it says that it is; nothing where it says nothing."""
    try:
        return server.ask("ROLE")[0]
    except (OSError, Failed):
        return None


def cluster_info(server):
    return dict(line.split(":", 1) for line in server.ask("CLUSTER", "INFO").split())


def sentinel(program, directory, port, master):
    """It keeps its memory in its configuration, so it wants a file."""
    path = os.path.join(directory, f"sentinel-{port}.conf")
    with open(path, "w") as config:
        config.write(f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor {MASTER} 127.0.0.1 {master} {QUORUM}\n")
        config.write(f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\nsentinel failover-timeout {MASTER} 5000\n")
    return Server([program, path, "--sentinel"], plain_environment(), f"127.0.0.1:{port}")


def info_of_master(sentinel):
    told = ask(int(sentinel.target.rsplit(":", 1)[1]), "SENTINEL", "MASTER", MASTER)
    return dict(zip(told[::2], told[1::2]))


def until(what, holds):
    give_up = time.monotonic() + FORMED_TIMEOUT_S
    while not holds():
        if time.monotonic() > give_up:
            raise Failed(f"not within {FORMED_TIMEOUT_S} s: {what}")
        time.sleep(0.1)


def free_port(bus=False):
    """A port that nobody listens on, and with `bus` the one for a cluster's own talk neither."""
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
