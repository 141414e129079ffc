"""The tasks of an event loop that wait for room in full partitions: one line per partition, in order of arrival.

A task puts its item in by itself, at its turn, and not whoever calls it: so a task that is
cancelled at any moment before has put nothing in, and passes its turn on. A task is called when a
look at the partition found room for it. The rule that keeps anybody from waiting for ever: while a
line has somebody in it and nobody called, the last look found the partition full, and the loop
hears of room that comes after that look.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from batchqueue import _core
from batchqueue.exceptions import BatchQueueError


class Place:
    """A task's place in a line."""

    __slots__ = ("called", "future", "line", "time_is_over", "waiting")

    def __init__(
        self, line: "Line", waiting: _core.Waiting, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.line = line
        self.waiting = waiting
        self.called = False
        self.time_is_over = False
        self.future = loop.create_future()

    async def turn(self) -> bool:
        """Wait for this task's turn; False: the time is over and others are before it."""
        while True:
            await self.future
            if self.line.first() is self:
                return True
            if self.time_is_over:
                return False
            self.rest()

    def rest(self) -> None:
        """Wait again: there was no room after all, or somebody before this task found none."""
        self.future = self.future.get_loop().create_future()
        self._end_turn()

    def call(self) -> None:
        """There is room for this one."""
        if not self.called:
            self.called = True
            self.line.called += 1
            self._wake()

    def end_time(self) -> None:
        """Stop waiting."""
        self.time_is_over = True
        self._wake()

    def leave(self) -> None:
        """Out of the line, with the item in or not."""
        if self.line.places.pop(self, self) is None:
            self._end_turn()
            if not self.line.places:
                self.line.desk.close(self.line, self.future.get_loop())

    def _end_turn(self) -> None:
        if self.called:
            self.called = False
            self.line.called -= 1
            if self.line.called == 0:
                self.line.look()

    def _wake(self) -> None:
        # A closed loop runs nobody any more.
        with contextlib.suppress(RuntimeError):
            if not self.future.done():
                self.future.set_result(None)


class Line:
    """The tasks that wait for one partition."""

    __slots__ = ("called", "desk", "partition", "places")

    def __init__(self, desk: "Desk", partition: int) -> None:
        self.desk = desk
        self.partition = partition
        self.places: OrderedDict[Place, None] = OrderedDict()
        self.called = 0

    def first(self) -> Place:
        """Return the place whose turn is next."""
        return next(iter(self.places))

    def look(self) -> None:
        """Call as many as there is room for."""
        if self.places:
            for place in islice(self.places, _core.room(self.desk.queue, self.partition)):
                place.call()


class Desk:
    """The lines of one queue on one loop, and the bell by which the loop hears of room."""

    def __init__(self, queue: _core.Queue) -> None:
        self.queue = queue
        self.bell = _core.Bell()
        self.lines: dict[int, Line] = {}

    async def put(
        self,
        waiting: _core.Waiting,
        deadline: float | None,
        inside: _core.Inside | None,
        go_on: Callable[[int], None] | None = None,
    ) -> bool:
        """Put an item in at its turn.

        Args:
            waiting: What found no room.
            deadline: When to give up, by the loop's clock; None waits as long as it takes.
            inside: The handler call that the task belongs to.
            go_on: Called with the partition when the item is in, while it is still the task's turn
                there.

        Returns:
            False: the queue is shut down.

        Raises:
            ProduceTimeoutError: The time is over.
        """
        place = timer = None
        try:
            loop = asyncio.get_running_loop()
            if deadline is not None and loop.time() >= deadline:
                raise _time_out(waiting)
            place = self._enter(waiting, loop)
            if deadline is not None:
                timer = loop.call_at(deadline, place.end_time)
            while await place.turn():
                done = waiting.again(inside)
                if done is not None:
                    if done and go_on is not None:
                        go_on(place.line.partition)
                    return done
                if place.time_is_over:
                    break
                place.rest()
            raise _time_out(waiting)
        finally:
            # In a forked child the queue answers with an error, and whatever ended the wait is the
            # one to raise.
            with contextlib.suppress(BatchQueueError):
                waiting.refuse()
            if timer is not None:
                timer.cancel()
            if place is not None:
                place.leave()

    def _enter(self, waiting: _core.Waiting, loop: asyncio.AbstractEventLoop) -> Place:
        partition = waiting.partition
        assert partition is not None, "it is not settled"
        line = self.lines.get(partition)
        if line is not None:
            place = Place(line, waiting, loop)
            line.places[place] = None
            return place
        if not self.lines:
            self._watch(loop)
        line = self.lines[partition] = Line(self, partition)
        place = Place(line, waiting, loop)
        line.places[place] = None
        self.bell.listen(waiting)
        # Room that came before the loop listened is told to nobody.
        line.look()
        return place

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.add_reader(self.bell.fileno(), self._hear)
        except NotImplementedError:
            raise BatchQueueError(
                f"a {type(loop).__name__} cannot watch file descriptors, by which tasks hear of room in a full "
                "partition: run a selector event loop"
            ) from None

    def _hear(self) -> None:
        for partition in self.bell.heard():
            line = self.lines.get(partition)
            if line is not None:
                line.look()

    def close(self, line: Line, loop: asyncio.AbstractEventLoop) -> None:
        """End a line that nobody waits in."""
        if self.lines.get(line.partition) is line:
            del self.lines[line.partition]
            self.bell.leave(line.partition)
            if not self.lines:
                # A closed loop watches nothing any more.
                with contextlib.suppress(RuntimeError):
                    loop.remove_reader(self.bell.fileno())

    def abandon(self) -> None:
        """Refuse what waits: the loop is closed, and runs none of its tasks any more."""
        for line in list(self.lines.values()):
            for place in list(line.places):
                place.waiting.refuse()
            line.places.clear()
            self.bell.leave(line.partition)
        self.lines.clear()


def _time_out(waiting: _core.Waiting) -> BaseException:
    error = waiting.time_out(0)
    assert error is not None, "it is not settled"
    return error
