"""The reader of replies in Rust beside redis-py with hiredis, on the same replies of a server.

    python benches/groups/replies.py

Both send the same XREAD through a `Node` and make the same `Record`s of its reply, as values of the
codec "bytes": once with the reader in Rust, and once as Python would without it, from the lists
that redis-py returns. They take turns in one process, on a server that it starts. The table has
records per second of CPU time of this process, without that of the server, and their ratio: the
median, the least and the largest of all turns.

The reader stays while it is 1.4 times as fast where the CPU is the limit: with small records. Large
ones are copied once more than by hiredis, from a buffer as large as the reply.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run import Server

from batchqueue.groups.record import SEQUENCE_BITS, Record, codec_of, format_id, parse_id
from batchqueue.groups.redis.node import Node
from batchqueue.groups.redis.node import Server as Address

SIZES = {10: 100_000, 100: 100_000, 1_000: 50_000, 10_000: 5_000, 100_000: 500}
"""Records of a stream, by the bytes of their values."""

COUNT = 10_000
"""Records of a reply, as `max_batch_items` of a worker, and at most `REPLY_BYTES`."""

REPLY_BYTES = 16 << 20
"""As `prefetch_bytes` of a worker."""

Found = tuple[int, list[Record[Any]]]
"""The last offset of a reply, and its records."""


def in_rust(node: Node, words: list[str | int]) -> Found:
    """Read a reply as a worker does."""
    codec = codec_of("bytes")
    [[(_, entries, _)]] = node.ask([words], Node.receive_entries)
    values, _ = entries.values(codec.decoded, codec.plain)
    return entries.last, entries.records(values)


def in_python(node: Node, words: list[str | int]) -> Found:
    """Read a reply with the parser of redis-py, and make records of it."""
    [[(_, entries)]] = node.ask([words])
    records = [_record(entry, fields) for entry, fields in entries]
    return records[-1].offset, records


def _record(entry: bytes, fields: list[bytes]) -> Record[Any]:
    offset = parse_id(entry)
    if len(fields) == 2 and fields[0] == b"v":
        return Record(fields[1], None, offset, offset >> SEQUENCE_BITS)
    value, key, headers = b"", None, []
    for name, data in zip(fields[::2], fields[1::2], strict=True):
        if name == b"v":
            value = data
        elif name == b"k":
            key = data
        else:
            headers.append((name.removeprefix(b"h:").decode("utf8", "surrogateescape"), data))
    return Record(value, key, offset, offset >> SEQUENCE_BITS, tuple(headers))


def cpu_seconds(way: Callable[[Node, list[str | int]], Found], node: Node, key: str) -> float:
    """Return the CPU time of reading a stream to its end."""
    size, records = map(int, key.split(":")[1:3])
    count = min(COUNT, REPLY_BYTES // size)
    last, left = "0-0", records
    began = time.process_time()
    while left:
        offset, found = way(node, ["XREAD", "COUNT", count, "STREAMS", key, last])
        last = format_id(offset)
        left -= len(found)
    return time.process_time() - began


def fill(node: Node, size: int, records: int, headers: bool) -> str:
    """Store records, and return the key of their stream."""
    key = f"replies:{size}:{records}:{headers}"
    extra: tuple[bytes, ...] = (b"k", b"customer-17", b"h:type", b"order") if headers else ()
    words: list[bytes | str] = ["XADD", key, "*", b"v", b"x" * size, *extra]
    for begin in range(0, records, 1_000):
        node.ask([words] * min(1_000, records - begin))
    return key


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=9, help="of each way. Default: 9")
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            node = Address(server.url).connector(30).node()
            print("| value | fields | in Rust, per CPU second | hiredis | ratio (least, largest) |")
            print("|---:|---:|---:|---:|---:|")
            for size, records in SIZES.items():
                for headers in (False, True):
                    key = fill(node, size, records, headers)
                    pairs = [
                        (cpu_seconds(in_rust, node, key), cpu_seconds(in_python, node, key))
                        for _ in range(turns)
                    ]
                    node.ask([("DEL", key)])
                    rust, python = (statistics.median(each) for each in zip(*pairs, strict=True))
                    ratios = sorted(theirs / ours for ours, theirs in pairs)
                    print(
                        f"| {size:,} B | {3 if headers else 1} | {records / rust:,.0f} "
                        f"| {records / python:,.0f} | {statistics.median(ratios):.2f} "
                        f"({ratios[0]:.2f}, {ratios[-1]:.2f}) |",
                        flush=True,
                    )
        finally:
            server.kill()


if __name__ == "__main__":
    main()
