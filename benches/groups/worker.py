"""A worker process: it notes when it handled records of which partition."""

import base64
import json
import pickle
import sys
import time
from collections import defaultdict
from typing import Any

from batchqueue.groups import Batch, Worker


def main(settings: dict[str, Any]) -> None:
    """Run until SIGTERM, then print the summary and the calls."""
    worker = Worker(
        settings["group"],
        pickle.loads(base64.b64decode(settings["source"])),
        name=settings["name"],
        lease_ms=settings["lease_ms"],
    )
    calls: dict[int, list[tuple[float, int]]] = defaultdict(list)

    @worker.handler
    def handler(batch: Batch) -> None:
        calls[batch.partition].append((time.monotonic(), len(batch)))

    summary = worker.run(until_idle=settings.get("until_idle"))
    print(json.dumps({"handled": summary.handled, "calls": calls}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
