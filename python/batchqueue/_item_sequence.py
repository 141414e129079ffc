"""The items of one call of `AsyncBatchQueue.produce_many`, which wait for room without a thread."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, cast

from batchqueue import _core
from batchqueue._loop_handlers import current_call
from batchqueue._wait_room import Line
from batchqueue._words import a_type

_PIECE_ITEMS = 1_024
"""Items of an iterator that are enqueued before the loop gets its next turn."""


class ItemSequence:
    """The items of one call of `produce_many`.

    Args:
        queue: The core's queue.
        notifier: Returns what tasks of the running loop listen to, if any does.
        items: The items.
        by_caller: Whether the selector needs each item.
    """

    def __init__(
        self,
        queue: _core.Queue,
        notifier: Callable[[], _core.RoomNotifier | None],
        items: Iterable[Any],
        *,
        by_caller: bool,
    ) -> None:
        self.accepted = 0
        self.call = current_call()
        self._queue, self._notifier = queue, notifier
        in_pieces = type(items) in (list, tuple) and not by_caller
        self._pieces = cast(list[Any] | tuple[Any, ...], items) if in_pieces else None
        self._remaining = iter(()) if self._pieces is not None else _iterator_of(items)
        self._after_turn: bool | _core.PendingItem | None = None

    def on_accepted(self, line: Line) -> None:
        """Count a pending item as accepted, and enqueue more while it is this task's turn there."""
        self.accepted += 1
        self._after_turn = self._enqueue(line)

    def enqueue(self) -> bool | _core.PendingItem | None:
        """Enqueue the items that find room.

        Returns:
            True if all items are accepted, False if the next item was refused, None if there are
            more items, or the next item if it found no room.
        """
        result, self._after_turn = self._after_turn, None
        return self._enqueue(None) if result is None else result

    def _enqueue(self, turn_at: Line | None) -> bool | _core.PendingItem | None:
        queue, notifier = self._queue, self._notifier()
        if self._pieces is not None:
            self.accepted, result = _core.try_produce_many(
                queue, self._pieces, self.accepted, notifier, turn_at, self.call
            )
            return result
        before = self.accepted
        try:
            for item in islice(self._remaining, _PIECE_ITEMS):
                result = _core.try_produce(queue, item, notifier, turn_at, self.call)
                if result is not True:
                    return result
                self.accepted += 1
        except BaseException as error:
            self._count_in(error)
            raise
        return True if self.accepted - before < _PIECE_ITEMS else None

    def _count_in(self, error: BaseException) -> None:
        """Note the accepted items in what the iterator, the selector or the core raised."""
        # An exception that refuses attributes or notes is still the one to raise.
        with contextlib.suppress(Exception):
            error.accepted = self.accepted  # type: ignore[attr-defined]
            error.add_note(
                f"produce_many had enqueued the first {self.accepted} items when this was raised"
            )


def _iterator_of(items: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(items)
    except TypeError:
        if hasattr(items, "__iter__"):
            raise  # by its method, which says why
    remedy = "give a list or another iterable of items, or give one item to produce"
    if hasattr(items, "__aiter__"):
        remedy = "give its items to produce: `async for item in items: await queue.produce(item)`"
    raise TypeError(f"produce_many got {a_type(items)}, which is not iterable; {remedy}")
