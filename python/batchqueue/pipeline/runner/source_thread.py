"""`SourceThread`: plans and reads one source, and hands its chunks to the first stages."""

import threading
from collections.abc import Callable, Sequence

from batchqueue._core import Counter
from batchqueue.pipeline.backpressure.gate import OPEN
from batchqueue.pipeline.chunks.cutter import ChunkCutter, SizedBatch
from batchqueue.pipeline.chunks.origin import Origin
from batchqueue.pipeline.contract import (
    Limit,
    Plan,
    Position,
    Source,
    Split,
    checked_position,
)
from batchqueue.pipeline.runner.ending import Ending, RunEnded
from batchqueue.pipeline.runner.source_control import SourceControl
from batchqueue.pipeline.runner.stage import CHUNKS_PER_WORKER, Stage

_GROUP = CHUNKS_PER_WORKER
"""The most chunks that are handed on together, if there is room for them."""

_FIRST_REST_S = 0.01
_LONGEST_REST_S = 0.5


class SourceThread:
    """A thread that reads a source as fast as the stages behind it take its chunks.

    Attributes:
        name: The name of the source in the pipeline.
        control: Who may stop it, and where.
        outlets: The stages that it feeds.
        rows_out: The rows that these have accepted; likewise `bytes_out`.
        decision: How much of the room it may plan for; a signal lowers it.
        on_finished: Called when there is nothing more to read.
        on_split: Called behind each split.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        outlets: Sequence[Stage],
        *,
        chunk_rows: int,
        ending: Ending,
        cut: Callable[[], int],
    ) -> None:
        """Prepare a thread; `start` starts it.

        Args:
            name: The name of the source.
            source: What to read.
            outlets: The stages that it feeds, which must run already.
            chunk_rows: The most rows of a chunk.
            ending: What ends the run early.
            cut: Returns the number of the cut that chunks belong to now.
        """
        self.name = name
        self.control = SourceControl()
        self.outlets = tuple(outlets)
        self.rows_out, self.bytes_out = Counter(), Counter()
        self.decision = OPEN
        self._source = source
        self._chunk_rows = chunk_rows
        self._ending = ending
        self._cut = cut
        self._replay: tuple[Position, Position] | None = None
        self._thread: threading.Thread | None = None
        self.on_finished: Callable[[], object] = _nothing
        self.on_split: Callable[[], object] = _nothing
        ending.notify(self.control.end)

    @property
    def source(self) -> Source:
        """The source itself."""
        return self._source

    def initial(self) -> Position:
        """Return where the source begins without a cut."""
        return self._source.initial()

    def start(self, position: Position, replay_to: Position | None) -> None:
        """Begin to read.

        Args:
            position: Where.
            replay_to: Where to stop until `control.release` is called; None for nowhere.
        """
        self.control.position = position
        if replay_to is not None:
            self._replay = (position, replay_to)
        # A daemon: a read that hangs must not keep the process alive.
        self._thread = threading.Thread(
            target=self._run, name=f"source {self.name}"[:60], daemon=True
        )
        self._thread.start()

    def join(self, timeout: float | None) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout)

    def commit(self, position: Position) -> None:
        """Have the source take note of a cut that is done, when its thread comes to it."""
        self.control.request(lambda: self._source.commit(position))

    def _run(self) -> None:
        try:
            if self._replay is not None:
                self._read_again(*self._replay)
            self._read_on()
            self._finish()
            self.control.serve_until_closed()
        except RunEnded:
            pass
        except BaseException as error:
            self._ending.fail(self.name, error)
        finally:
            self._finish()

    def _finish(self) -> None:
        self.control.finish()
        self.on_finished()

    def _read_again(self, start: Position, end: Position) -> None:
        """Read what some sinks already have, exactly up to their cut."""
        splits = self._source.between(start, end)
        for number, split in enumerate(splits):
            self.control.begin_again()
            self._read(split)
            self.control.complete(end if number == len(splits) - 1 else split.end)
        self.control.position = end
        self.control.wait_behind_replay()

    def _read_on(self) -> None:
        rest = _FIRST_REST_S
        while self.control.may_plan():
            plan = self._planned(self._room())
            if plan.splits:
                rest = _FIRST_REST_S
                for number, split in enumerate(plan.splits):
                    if not self.control.begin():
                        return
                    self._read(split)
                    is_last = number == len(plan.splits) - 1
                    self.control.complete(plan.end if is_last else split.end)
                    self.on_split()
            elif self._source.bounded:
                self._move_on(plan.end)
                return
            else:
                self._move_on(plan.end)
                self.control.rest(rest)
                rest = min(2 * rest, _LONGEST_REST_S)

    def _planned(self, limit: Limit) -> Plan:
        plan = self._source.plan(self.control.position, limit)
        for position in (plan.end, *(split.end for split in plan.splits)):
            checked_position(position, self.name)
        return plan

    def _move_on(self, end: Position) -> None:
        if end != self.control.position and self.control.begin():
            self.control.complete(end)

    def _room(self) -> Limit:
        """Wait until all first stages have room, and return the least of it."""
        rooms: list[Limit] = []
        for outlet in self.outlets:
            with outlet.waited_for:
                rooms.append(outlet.gate.free())
        rows, size = (min(values) for values in zip(*rooms, strict=True))
        return self.decision.limited(Limit(rows, size))

    def _read(self, split: Split) -> None:
        cutter = ChunkCutter(self._chunk_rows)
        position = checked_position(split.start, self.name)
        number = 0
        for batch in self._source.read(split):
            number = self._hand_on(cutter.add(batch), split.partition, position, number)
        self._hand_on(cutter.rest(), split.partition, position, number)

    def _hand_on(self, chunks: list[SizedBatch], partition: str, position: str, number: int) -> int:
        """Hand on chunks of a split, of which the first has a number; return the next number."""
        done = 0
        while done < len(chunks):
            self.control.wait_while_paused()
            cut = self._cut()
            parts = [
                (chunk, Origin(cut, partition, position, number + place))
                for place, chunk in enumerate(chunks[done : done + _GROUP], start=done)
            ]
            if len(self.outlets) == 1:
                count = self.outlets[0].put_ready(parts)
            else:
                count = 1
                for outlet in self.outlets:
                    outlet.put(*parts[0], None)
            handed = chunks[done : done + count]
            self.rows_out.add(sum([chunk.batch.num_rows for chunk in handed]))
            self.bytes_out.add(sum([chunk.size for chunk in handed]))
            done += count
        return number + done


def _nothing() -> None:
    pass
