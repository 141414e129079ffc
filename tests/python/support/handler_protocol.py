"""A handler that notes its calls where any process can read them, and what the calls must be."""

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any


class Noted:
    """Has every method of a handler, and notes each call in its own file.

    Like its kind of connection, it cannot be used before it was opened or after it was closed.
    """

    def __init__(self, directory: Path, *, closed: int = 0, failing: int = 0) -> None:
        """Make a handler.

        Args:
            directory: Where its file is.
            closed: How many calls of `on_open` raise, of all handlers of the directory.
            failing: How many calls of `consume` raise, of all handlers of the directory.
        """
        self._directory = directory
        self._failures = {"open": closed, "consume": failing}
        self._file = directory / f"{os.getpid()}-{id(self)}-{os.urandom(4).hex()}.jsonl"

    def on_open(self) -> None:
        self._note("open")
        self._fail("open")
        self._note("opened")

    def consume(self, batch: Any) -> None:
        self._note("consume", len(batch))
        self._fail("consume")
        self._note("consumed", len(batch))

    def on_idle(self) -> None:
        self._note("idle")

    def on_error(self, batch: Any, error: BaseException) -> None:
        self._note("error", len(batch), str(error))

    def on_close(self) -> None:
        self._note("close")

    def _note(self, *call: Any) -> None:
        with self._file.open("a") as file:
            print(json.dumps(call), file=file)

    def _fail(self, method: str) -> None:
        for number in range(self._failures[method]):
            try:  # one file for each failure that is left, in any process
                os.close(os.open(self._directory / f"{method}-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            raise ConnectionError(f"{method} failed")


def calls(directory: Path) -> list[list[list[Any]]]:
    """The calls of each handler, in their order; calls of `on_idle` that follow each other once."""
    found = []
    for file in sorted(directory.glob("*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found.append(
            [
                line
                for at, line in enumerate(lines)
                if line != ["idle"] or at == 0 or lines[at - 1] != ["idle"]
            ]
        )
    return found


def assert_protocol(directory: Path) -> Counter[str]:
    """Check the calls of each handler of a directory, and return how many of each there were."""
    total: Counter[str] = Counter()
    for noted in calls(directory):
        names = [call[0] for call in noted]
        total.update(names)
        assert names[0] == "open", noted
        used = [at for at, name in enumerate(names) if name in ("consume", "idle")]
        if "opened" not in names:
            assert not used, noted
            assert "close" not in names, noted
            continue
        assert names.count("opened") == 1, noted
        assert names.index("opened") < min(used), noted
        assert names.count("close") == 1, noted
        assert names[-1] == "close", noted
    return total


class AsyncNoted(Noted):
    """The same on an event loop."""

    async def on_open(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().on_open()

    async def consume(self, batch: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().consume(batch)

    async def on_close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().on_close()


def noted_by_workers(noted: Noted) -> Any:
    """Return the same handler with the methods alone that a worker of a group calls."""
    names = ("consume", "on_open", "on_close")
    methods = {
        name: vars(each)[name]
        for each in reversed(type(noted).__mro__)
        for name in names
        if name in vars(each)
    }
    kind = type("NotedByWorkers", (), {**methods, "_note": Noted._note, "_fail": Noted._fail})
    made = kind()
    made.__dict__.update(vars(noted))
    return made
