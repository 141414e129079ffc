"""Ways through the records of a stream, each in its own process.

| way | does |
|---|---|
| worker | `Worker`: reads, decodes, calls a handler, commits each batch at the fence |
| bare | reads raw replies of XREAD, or the messages of `consume`, and does nothing else |
| group | XREADGROUP and XACK with redis-py as it comes, in batches |
| quixstreams | the same as the worker with quixstreams, which calls a function with each record |
"""

import base64
import json
import pickle
import sys
import time
from typing import Any

import redis

from batchqueue.groups import Batch, Worker

COUNT = 10_000


def main(way: str, settings: dict[str, Any]) -> None:
    """Measure from the first read to the end of the last record."""
    started, cpu = time.perf_counter(), time.process_time()
    ways = {
        "worker": worker,
        "bare": bare,
        "group": group,
        "bare-kafka": bare_kafka,
        "quixstreams": quixstreams,
    }
    ways[way](settings)
    seconds = time.perf_counter() - started
    used = time.process_time() - cpu
    records = settings["records"]
    print(json.dumps({"per_s": records / seconds, "cpu_us": used / records * 1e6}), flush=True)


def worker(settings: dict[str, Any]) -> None:
    """Go through the records with a worker."""
    done = 0
    through = Worker(settings["group"], pickle.loads(base64.b64decode(settings["source"])))

    @through.handler
    def handler(batch: Batch) -> None:
        nonlocal done
        done += len(batch.records)

    with through:
        while done < settings["records"]:
            time.sleep(0.001)


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
