"""Ways through the records of a stream, each in its own process.

| way | does |
|---|---|
| worker | `Worker`: reads, decodes, calls a handler, commits each batch at the fence |
| stalled | the same with a sink that stands still in its first call |
| forward | the same with a handler that sends values to another topic, and waits for the brokers |
| exactly-once | the same, sent in the transaction that commits the batch |
| bare | reads raw replies of XREAD, or the messages of `consume`, and does nothing else |
| group | XREADGROUP and XACK with redis-py as it comes, in batches |
| quixstreams | the same as the worker with quixstreams, which calls a function with each record |
"""

import base64
import json
import pickle
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from batchqueue.groups import Batch, KafkaStreams, Worker

COUNT = 10_000


def main(way: str, settings: dict[str, Any]) -> None:
    """Measure from the first read to the end of the last record."""
    started, cpu = time.perf_counter(), time.process_time()
    ways = {
        "worker": worker,
        "stalled": stalled,
        "forward": forward,
        "exactly-once": exactly_once,
        "bare": bare,
        "group": group,
        "bare-kafka": bare_kafka,
        "quixstreams": quixstreams,
    }
    ways[way](settings)
    seconds = time.perf_counter() - started
    used = time.process_time() - cpu
    records = settings["records"]
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"per_s": records / seconds, "cpu_us": used / records * 1e6, "peak_mb": peak_kb / 1_024}
    print(json.dumps(found), flush=True)


def worker(settings: dict[str, Any]) -> None:
    """Go through the records with a worker."""
    size = 0

    def handle(batch: Batch) -> None:
        nonlocal size
        size += sum(map(len, batch.values))

    _work(settings, pickle.loads(base64.b64decode(settings["source"])), handle)


def stalled(settings: dict[str, Any]) -> None:
    """Go through the records behind a first call that takes long."""
    has_stood_still = False

    def handle(batch: Batch) -> None:
        nonlocal has_stood_still
        if not has_stood_still:
            has_stood_still = True
            time.sleep(settings["stall_s"])

    _work(settings, pickle.loads(base64.b64decode(settings["source"])), handle)


def forward(settings: dict[str, Any]) -> None:
    """Send the values to another topic."""
    from confluent_kafka import Producer

    own = {"enable.idempotence": True, "linger.ms": 5}
    producer = Producer({"bootstrap.servers": settings["url"], **own})

    def handle(batch: Batch) -> None:
        for value in batch.values:
            while True:
                try:
                    producer.produce(settings["target"], value)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush() == 0

    _work(settings, pickle.loads(base64.b64decode(settings["source"])), handle)


def exactly_once(settings: dict[str, Any]) -> None:
    """Send the values to another topic, in the transaction that commits them."""

    def handle(batch: Batch) -> None:
        for value in batch.values:
            batch.send(settings["target"], value)

    source = KafkaStreams(settings["stream"], bootstrap=settings["url"], exactly_once=True)
    _work(settings, source, handle)


def _work(settings: dict[str, Any], source: Any, handle: Callable[[Batch], None]) -> None:
    """Run a worker until its handler has had all records."""
    done = 0
    finished = threading.Event()
    worker = Worker(settings["group"], source)

    @worker.handler
    def handler(batch: Batch) -> None:
        nonlocal done
        handle(batch)
        done += len(batch)
        if done >= settings["records"]:
            finished.set()

    with worker:
        finished.wait()


def bare(settings: dict[str, Any]) -> None:
    """Read raw replies, all partitions with each command."""
    client = redis.Redis.from_url(settings["url"], protocol=2)
    client.set_response_callback("XREAD", lambda reply, **_: reply)
    last = dict.fromkeys(settings["keys"], b"0-0")
    done = 0
    while done < settings["records"]:
        for key, entries in client.execute_command(
            "XREAD", "COUNT", COUNT, "STREAMS", *last.keys(), *last.values()
        ):
            last[key.decode()] = entries[-1][0]
            done += len(entries)


def bare_kafka(settings: dict[str, Any]) -> None:
    """Read what a worker needs of each message, and nothing else."""
    from confluent_kafka import Consumer

    own = {"group.id": settings["group"], "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": settings["url"], "fetch.queue.backoff.ms": 10, **own})
    consumer.subscribe([settings["stream"]])
    done = 0
    while done < settings["records"]:
        for message in consumer.consume(500, 1):
            if message.error() is None:
                message.value(), message.partition(), message.offset()
                done += 1
    consumer.close()


def quixstreams(settings: dict[str, Any]) -> None:
    """Go through the records with quixstreams."""
    from quixstreams import Application

    application = Application(
        broker_address=settings["url"],
        consumer_group=settings["group"],
        auto_offset_reset="earliest",
        loglevel="ERROR",
        consumer_extra_config={"fetch.queue.backoff.ms": 10},
    )
    done = 0

    def handler(value: bytes) -> None:
        nonlocal done
        done += 1

    topic = application.topic(settings["stream"], value_deserializer="bytes")
    application.dataframe(topic).update(handler)
    application.run(count=settings["records"])
    assert done >= settings["records"]


def group(settings: dict[str, Any]) -> None:
    """Read and acknowledge with redis-py's own functions."""
    client = redis.Redis.from_url(settings["url"])
    name = settings["group"]
    for key in settings["keys"]:
        client.xgroup_create(key, name, id="0")
    done = 0
    while done < settings["records"]:
        found = client.xreadgroup(name, "c", dict.fromkeys(settings["keys"], ">"), count=COUNT)
        for key, entries in found:
            client.xack(key, name, *(entry for entry, _ in entries))
            done += len(entries)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
