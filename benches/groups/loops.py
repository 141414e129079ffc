"""Three ways through the records of a stream, each in its own process.

| way | does |
|---|---|
| worker | `Worker`: reads, decodes, calls a handler, commits each batch at the fence |
| bare | reads raw replies of XREAD, and does nothing else: no records, no handler, no commit |
| group | XREADGROUP and XACK with redis-py as it comes, in batches |
"""

import json
import sys
import time
from typing import Any

import redis

from batchqueue.groups import Batch, RedisStreams, Worker

COUNT = 10_000


def main(way: str, settings: dict[str, Any]) -> None:
    """Measure from the first read to the end of the last record."""
    started, cpu = time.perf_counter(), time.process_time()
    {"worker": worker, "bare": bare, "group": group}[way](settings)
    seconds = time.perf_counter() - started
    used = time.process_time() - cpu
    records = settings["records"]
    print(json.dumps({"per_s": records / seconds, "cpu_us": used / records * 1e6}), flush=True)


def worker(settings: dict[str, Any]) -> None:
    """Go through the records with a worker."""
    done = 0
    through = Worker(settings["group"], RedisStreams(settings["url"], settings["stream"]))

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
