"""What partition groups on Redis and on Kafka cost, and how quick they change hands.

    make bench-groups
    python benches/groups/run.py --page docs/figures/groups.md

It starts its own servers on loopback. Each row is measured in this run; ratios are between
processes that ran by turns. If quixstreams is installed, it runs beside the workers on Kafka.
"""

import argparse
import base64
import itertools
import json
import os
import pickle
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import redis
from confluent_kafka import Producer

from batchqueue.groups import GroupMonitor, KafkaStreams, RedisStreams, StreamUnavailableError
from core_support.kafka_broker import GROUPS, NEW_JARS, KafkaBroker

T = TypeVar("T")

HERE = Path(__file__).parent
LEASE_MS = 1_500
SESSION_MS = 2_000
PROTOCOLS: tuple[Literal["consumer", "classic"], ...] = ("consumer", "classic")

_numbers = itertools.count()


class Server:
    """A Redis server on loopback.

    Attributes:
        pace_s: Each partition gets a record this often while owners change.
    """

    pace_s = 0.01

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise SystemExit("no redis-server here; on Debian and Ubuntu: make redis")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            *(binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"),
        ]
        self.start()

    def start(self) -> None:
        """Start it, and return when it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        client = redis.Redis.from_url(self.url)
        while True:
            with suppress(redis.RedisError):
                client.ping()
                return
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def source(self, stream: str, partitions: int) -> RedisStreams:
        """Return a stream."""
        return RedisStreams(self.url, stream, partitions=partitions)

    def sender(self, source: RedisStreams) -> Callable[[int], object]:
        """Return a function that sends a record to a partition."""
        producer = source.producer()
        return lambda partition: producer.send(b"x" * 100, partition=partition)

    def lease_ms(self, wanted: int) -> int:
        """Return the lease of workers."""
        return wanted


class Broker:
    """A Kafka broker on loopback, whose groups have a protocol and short sessions.

    Attributes:
        pace_s: Each partition gets a record this often while owners change. Two cores take about
            2,000 records a second that come alone; with more, the pauses are those of the producer.
    """

    pace_s = 0.05

    def __init__(self, folder: Path, protocol: Literal["consumer", "classic"]) -> None:
        self._broker = KafkaBroker(folder, NEW_JARS, GROUPS.format(session_ms=SESSION_MS))
        self.protocol = protocol
        self._broker.start()
        self._broker.wait_for_groups()
        self.url = self._broker.address

    def kill(self) -> None:
        """Kill it."""
        self._broker.stop()
        self._broker.proxy.close()

    def source(self, stream: str, partitions: int) -> KafkaStreams:
        """Return a topic."""
        config = {"session.timeout.ms": SESSION_MS} if self.protocol == "classic" else {}
        return KafkaStreams(
            stream,
            bootstrap=self.url,
            partitions=partitions,
            protocol=self.protocol,
            config=config,
        )

    def sender(self, source: KafkaStreams) -> Callable[[int], object]:
        """Return a function that sends a record to a partition, without waiting for the broker."""
        source.producer().close()  # creates the topic
        producer = Producer({"bootstrap.servers": self.url, "linger.ms": 1, "log_level": 2})

        def send(partition: int) -> None:
            producer.produce(source.stream, b"x" * 100, partition=partition)
            producer.poll(0)

        return send

    def lease_ms(self, wanted: int) -> int:
        """Return the lease of workers, which is the default: the broker has the session."""
        del wanted
        return 5_000


class Workers:
    """Processes that work for one group on one stream, beside a producer that never stops."""

    def __init__(
        self, server: Server | Broker, partitions: int, *, lease_ms: int = LEASE_MS
    ) -> None:
        self.source: Any = server.source(f"bench-{next(_numbers)}", partitions)
        self._send, self._pace_s = server.sender(self.source), server.pace_s
        self.partitions = partitions
        self.monitor = GroupMonitor("g", self.source)
        self._settings = {
            "source": pickled(self.source),
            "group": "g",
            "lease_ms": server.lease_ms(lease_ms),
        }
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.calls: dict[str, dict[int, list[float]]] = {}
        self._ended: list[threading.Thread] = []
        self._stop = threading.Event()
        self._producing = threading.Thread(target=self._produce)
        self._producing.start()

    def start(self, count: int) -> None:
        """Start workers, and wait until partitions are spread evenly."""
        for _ in range(count):
            name = f"w{next(_numbers)}"
            settings = json.dumps({**self._settings, "name": name})
            self._processes[name] = subprocess.Popen(
                [sys.executable, HERE / "worker.py", settings],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        self.settle()

    def settle(self) -> dict[int, str | None]:
        """Wait until all workers have partitions and owners stay, and return the owners."""
        before: dict[int, str | None] = {}
        while True:
            owners = self.owners()
            if owners == before and set(owners.values()) == set(self._processes):
                return owners
            before = owners
            time.sleep(0.3)

    def owners(self) -> dict[int, str | None]:
        """Return the owners of the partitions."""
        partitions = answered(self.monitor.metrics).partitions
        return {each: it.owner for each, it in partitions.items()}

    def end(self, name: str, number: signal.Signals) -> float:
        """Send a signal to a worker, and return when."""
        process = self._processes.pop(name)
        at = time.monotonic()
        process.send_signal(number)
        self._ended.append(threading.Thread(target=self._collect, args=(name, process)))
        self._ended[-1].start()
        return at

    @property
    def names(self) -> list[str]:
        """The workers that run."""
        return list(self._processes)

    def close(self) -> None:
        """End all, and wait for what they noted."""
        for name in self.names:
            self.end(name, signal.SIGTERM)
        for thread in self._ended:
            thread.join()
        self._stop.set()
        self._producing.join()

    def _collect(self, name: str, process: "subprocess.Popen[str]") -> None:
        out, _ = process.communicate()
        if process.returncode == 0:
            calls = json.loads(out)["calls"]
            self.calls[name] = {int(each): [at for at, _ in calls[each]] for each in calls}

    def _produce(self) -> None:
        while not self._stop.wait(self._pace_s):
            with suppress(Exception):  # the server is restarted
                for partition in range(self.partitions):
                    self._send(partition)


def answered(ask: Callable[[], T]) -> T:
    """Return what a server says, as soon as it can: a broker may not know its new topics yet."""
    while True:
        try:
            return ask()
        except StreamUnavailableError:
            time.sleep(0.05)


@contextmanager
def workers(server: Server | Broker, partitions: int, **settings: Any) -> Iterator[Workers]:
    """Give workers, and end them."""
    made = Workers(server, partitions, **settings)
    try:
        yield made
    finally:
        made.close()


def handover(server: Server | Broker, number: signal.Signals, times: int) -> list[float]:
    """Return the seconds from a signal to the moment when all its partitions are served again.

    A partition is served again when a commit under a newer token has moved its position.
    """
    seconds = []
    with workers(server, 8) as group:
        group.start(3)
        administration = group.source.open_administration("g")
        for _ in range(times):
            owners = group.settle()
            name = group.names[0]
            partitions = [each for each, owner in owners.items() if owner == name]
            ask = partial(administration.infos, partitions)
            before = answered(ask)
            at = group.end(name, number)
            while True:
                now = answered(ask)
                pairs = list(zip(before, now, strict=True))
                if all(b.token > a.token and b.done > a.done for a, b in pairs):
                    break
                time.sleep(0.002)
            seconds.append(time.monotonic() - at)
            group.start(1)
        administration.close()
    return seconds


def gaps(server: Server | Broker) -> tuple[float, float]:
    """Return the longest pause of any partition without and with joins and leaves, in seconds.

    With joins and leaves, of the partitions whose owner stays.
    """
    with workers(server, 64, lease_ms=10_000) as group:
        group.start(3)
        time.sleep(1)
        calm = time.monotonic(), time.monotonic() + 4
        time.sleep(4)
        before = group.owners()
        begin = time.monotonic()
        group.start(1)
        moved = {each for each, owner in group.owners().items() if owner != before[each]}
        time.sleep(1)
        last = group.names[-1]
        group.end(last, signal.SIGTERM)
        group.settle()
        time.sleep(1)
        busy = begin, time.monotonic()
    stay = set(range(64)) - moved
    return _longest(group, calm, set(range(64))), _longest(group, busy, stay)


def _longest(group: Workers, span: tuple[float, float], partitions: set[int]) -> float:
    longest = 0.0
    for each in partitions:
        calls = [at for at in sorted(_calls_of(group, each)) if span[0] <= at <= span[1]]
        longest = max(longest, *(after - at for at, after in itertools.pairwise(calls)))
    return longest


def moves(server: Server, before: int, after: int) -> int:
    """Return how many of 64 partitions move from so many workers to so many others."""
    with workers(server, 64, lease_ms=20_000) as group:
        group.start(before)
        owners = group.settle()
        if after > before:
            group.start(after - before)
        else:
            group.end(group.names[-1], signal.SIGTERM)
        now = group.settle()
    return sum(now[each] != owners[each] for each in owners)


def back(server: Server, times: int) -> list[float]:
    """Return the seconds from the first answer of a restarted server to the next handled record."""
    restarts = []
    with workers(server, 8, lease_ms=LEASE_MS) as group:
        group.start(2)
        for _ in range(times):
            time.sleep(0.5)
            server.kill()
            time.sleep(0.5)
            server.start()
            restarts.append(time.monotonic())
            group.settle()
            time.sleep(2)
    calls = [sorted(_calls_of(group, each)) for each in range(8)]
    return [max(next(c for c in each if c > at) for each in calls) - at for at in restarts]


def _calls_of(group: Workers, partition: int) -> list[float]:
    return [at for calls in group.calls.values() for at in calls.get(partition, ())]


def rates(
    server: Server | Broker, ways: Sequence[str], records: int, rounds: int, stall_s: float = 0
) -> dict[str, list[dict[str, float]]]:
    """Return what ways of `loops.py` print, by turns."""
    stream = f"bench-{next(_numbers)}"
    source = server.source(stream, 4)
    with source.producer() as producer:
        for _ in range(records // 10_000):
            producer.send_many([b"x" * 100] * 10_000)
    keys = [f"bq:{{{stream}/{partition}}}:s" for partition in range(4)]
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way, results in found.items():
            settings = {
                "url": server.url,
                "stream": stream,
                "source": pickled(source),
                "group": f"{way}-{turn}",
                "records": records // 10_000 * 10_000,
                "keys": keys,
                "target": "bench-target",
                "stall_s": stall_s,
            }
            command = [sys.executable, HERE / "loops.py", way, json.dumps(settings)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout))
    return found


def main() -> None:
    """Measure, print a table, and write the page if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the table to this page")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stall", type=float, default=60, help="seconds of the sink's stall")
    options = parser.parse_args()
    rows: list[tuple[str, str, str]] = []

    def row(what: str, wanted: str, measure: Callable[[], str]) -> None:
        rows.append((what, wanted, measure()))
        print(" | ".join(rows[-1]), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            _measure_redis(server, row, options)
        finally:
            server.kill()
    for protocol in PROTOCOLS:
        with tempfile.TemporaryDirectory() as folder:
            broker = Broker(Path(folder), protocol)
            try:
                _measure_kafka(broker, f"Kafka, {protocol} protocol", row, options)
            finally:
                broker.kill()
    if options.page is not None:
        options.page.write_text(_page(rows))


Row = Callable[[str, str, Callable[[], str]], None]


def _measure_kafka(broker: Broker, where: str, row: Row, options: argparse.Namespace) -> None:
    peers = ["quixstreams"] if find_spec("quixstreams") else []

    def by_turns() -> str:
        found = rates(broker, ["worker", "bare-kafka", *peers], options.records, options.rounds)
        per_s = {way: statistics.median(r["per_s"] for r in each) for way, each in found.items()}
        worker, bare = per_s["worker"], per_s["bare-kafka"]
        beside = "".join(f"; {worker / per_s[peer]:.1f} times {peer}" for peer in peers)
        return f"{worker / 1e3:.0f} k/s; {worker / bare:.2f} of the bare loop{beside}"

    row(f"{where}: records through worker, handler and commit", "≥ 0.8", by_turns)
    row(
        f"{where}: takeover after SIGKILL, session {SESSION_MS / 1e3} s",
        f"≤ {SESSION_MS / 1e3 + 1} s",
        lambda: _seconds(handover(broker, signal.SIGKILL, 5)),
    )
    row(f"{where}: leave", "≤ 1 s", lambda: _seconds(handover(broker, signal.SIGTERM, 5)))
    row(
        f"{where}: longest pause of partitions that stay",
        "≤ 150 ms more",
        lambda: _longest_gaps(broker),
    )

    def peak() -> str:
        found = rates(broker, ["stalled"], options.records, 1, options.stall)
        return f"{found['stalled'][0]['peak_mb']:.0f} MB"

    row(f"{where}: memory while its sink stands still for {options.stall:g} s", "≤ 300 MB", peak)
    if broker.protocol == "consumer":
        row(
            f"{where}: topic to topic, exactly once",
            "≥ 0.85",
            lambda: _topic_to_topic(broker, options),
        )


def _topic_to_topic(broker: Broker, options: argparse.Namespace) -> str:
    broker.source("bench-target", 4).producer().close()  # creates the topic
    found = rates(broker, ["exactly-once", "forward"], options.records, options.rounds)
    once, plain = (statistics.median(r["per_s"] for r in each) for each in found.values())
    return f"{once / 1e3:.0f} k/s; {once / plain:.2f} of at least once"


def _measure_redis(server: Server, row: Row, options: argparse.Namespace) -> None:
    def by_turns() -> str:
        found = rates(server, ["worker", "bare", "group"], options.records, options.rounds)
        per_s = {way: statistics.median(r["per_s"] for r in each) for way, each in found.items()}
        cpu = {way: statistics.median(r["cpu_us"] for r in each) for way, each in found.items()}
        return (
            f"{per_s['worker'] / 1e3:.0f} k/s; {per_s['worker'] / per_s['bare']:.2f} of the bare "
            f"loop, {per_s['worker'] / per_s['group']:.2f} of XREADGROUP and XACK; CPU "
            f"{cpu['worker']:.2f}, {cpu['bare']:.2f}, {cpu['group']:.2f} µs a record"
        )

    row("records through worker, handler and commit", "≥ 0.9, ≥ 2", by_turns)
    row(
        f"takeover after SIGKILL, lease {LEASE_MS / 1e3} s",
        "≤ 2 s",
        lambda: _seconds(handover(server, signal.SIGKILL, 5)),
    )
    row("leave", "≤ 0.5 s", lambda: _seconds(handover(server, signal.SIGTERM, 5)))
    row("longest pause of partitions that stay", "≤ 50 ms more", lambda: _longest_gaps(server))
    row("moves of 64 partitions, 3 → 4 workers", "16", lambda: str(moves(server, 3, 4)))
    row("moves of 64 partitions, 8 → 7 workers", "8", lambda: str(moves(server, 8, 7)))
    row("served again after a restart of the server", "≤ 1 s", lambda: _seconds(back(server, 3)))


def _longest_gaps(server: Server | Broker) -> str:
    calm, busy = gaps(server)
    return f"{calm * 1e3:.0f} ms without, {busy * 1e3:.0f} ms with"


def _seconds(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} s, longest {max(values):.2f} s"


def pickled(source: RedisStreams | KafkaStreams) -> str:
    """Return a stream as text."""
    return base64.b64encode(pickle.dumps(source)).decode()


def _page(rows: list[tuple[str, str, str]]) -> str:
    cores = os.cpu_count()
    lines = [
        "# Partition groups, measured",
        "",
        f"Made by `make bench-groups` on {cores} cores, with servers on loopback: a Redis with AOF",
        "on, and a Kafka broker. Rows without a name are on Redis.",
        "",
        "| what | wanted | measured |",
        "|---|---|---|",
        *(f"| {what} | {wanted} | {measured} |" for what, wanted, measured in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
