"""What the binding adds: `produce`, the same put from Rust, and a method that does nothing."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import objects

from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "target" / "benches-python"
COUNT = 400_000


def build(*, optimized: bool) -> Any:
    """Return the module `batchqueue_floor`, rebuilt if its sources or `optimized` have changed."""
    manifest = HERE / "floor" / "Cargo.toml"
    command = [
        "cargo",
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--manifest-path",
        manifest,
        "--target-dir",
        TARGET / "cargo",
    ]
    # As maturin does: the interpreter that loads the module provides Python's symbols.
    environment = {"PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1"}
    if not optimized:
        environment |= {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0"}
    subprocess.run(command, env=os.environ | environment, check=True)
    library = TARGET / "cargo" / "release" / "libbatchqueue_floor.so"
    spec = importlib.util.spec_from_file_location("batchqueue_floor", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def produce_ns(count: int) -> float:
    """Return nanoseconds per `produce` into a queue with room for all, whose drain thread rests."""
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1),
        partitions=PartitionPolicy.adaptive(),
        buffer_size=count * 3,
        min_idle_ms=60_000,
        max_idle_ms=60_000,
    )
    with BatchQueue("bench", config) as queue:
        for kind in objects.TYPES:
            queue.add_handler(kind, len)
        return call_ns(queue.produce, count)


def call_ns(call: Callable[[Any], Any], count: int) -> float:
    """Return nanoseconds per call with an item, including the loop."""
    sent = objects.items(count)
    began = time.perf_counter()
    for item in sent:
        call(item)
    return (time.perf_counter() - began) / len(sent) * 1e9
