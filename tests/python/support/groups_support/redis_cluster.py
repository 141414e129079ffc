"""A cluster of three Redis servers for the tests, without replicas."""

import socket
import tempfile
from pathlib import Path

import pytest
from redis.crc import key_slot

from core_support.waits import eventually
from groups_support.redis_server import RedisServer, skip_without_server

SLOTS = 16_384
NODES = 3
_BUS = 10_000
"""The port of the bus of a node is that far above its port."""


class RedisCluster:
    """Three nodes on free ports, each with a third of the slots; two continue without the third."""

    def __init__(self, folder):
        self.nodes = []
        for number in range(NODES):
            place = Path(folder) / str(number)
            place.mkdir()
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
            options += ("--cluster-require-full-coverage", "no")
            self.nodes.append(RedisServer(place, *options, durable=True, port=_port()))

    def start(self):
        """Starts the nodes, and returns when they know each other."""
        for number, node in enumerate(self.nodes):
            node.start()
            first, end = (SLOTS * each // NODES for each in (number, number + 1))
            with node.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(first, end))
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        for node in self.nodes:
            eventually(lambda node=node: self._is_whole(node), "the nodes know each other")

    def _is_whole(self, node):
        with node.client() as client:
            info = client.execute_command("CLUSTER", "INFO")
        return b"cluster_state:ok" in info and b"cluster_slots_ok:%d" % SLOTS in info

    @property
    def url(self):
        return self.nodes[0].url

    def node_of(self, key):
        """Returns the node that has the slot of a key."""
        slot = key_slot(key.encode())
        with self.nodes[0].client() as client:
            ranges = client.execute_command("CLUSTER", "SLOTS")
        port = next(node[1] for first, last, node, *_ in ranges if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def flush(self):
        for node in self.nodes:
            with node.client() as client:
                client.flushall()
                client.script_flush()

    def stop(self):
        for node in self.nodes:
            node.stop()


class Migration:
    """A slot on its way from one node to another; each step is one call."""

    def __init__(self, cluster, key, target):
        self.slot = key_slot(key.encode())
        self._source, self._target = cluster.node_of(key), target
        self._nodes = cluster.nodes

    def begin(self):
        source, target = _id(self._source), _id(self._target)
        _run(self._target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", source)
        _run(self._source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", target)

    def move_keys(self):
        keys = _run(self._source, "CLUSTER", "GETKEYSINSLOT", self.slot, 1_000)
        words = ("MIGRATE", "127.0.0.1", self._target.port, "", 0, 5_000, "KEYS")
        if keys:
            _run(self._source, *words, *keys)

    def end(self):
        target = _id(self._target)
        for node in (self._target, self._source, *self._nodes):
            _run(node, "CLUSTER", "SETSLOT", self.slot, "NODE", target)


def _id(node):
    return _run(node, "CLUSTER", "MYID")


def _run(node, *words):
    with node.client() as client:
        return client.execute_command(*words)


def _port():
    """Returns a free port, whose bus is free too."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            try:
                bus.bind(("127.0.0.1", port + _BUS))
            except (OSError, OverflowError):
                continue
            return port


@pytest.fixture(scope="session")
def redis_cluster_of_session():
    skip_without_server()
    with tempfile.TemporaryDirectory(prefix="batchqueue-cluster-") as folder:
        cluster = RedisCluster(folder)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def redis_cluster(redis_cluster_of_session):
    """A cluster that holds nothing. A test that moves a slot or ends a node brings it back."""
    redis_cluster_of_session.flush()
    return redis_cluster_of_session
