"""`HandlerLane`: calls a handler with the records of one partition."""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from batchqueue.groups.errors import StaleTokenError
from batchqueue.groups.worker.attempts import Attempts, Piece, Verdict
from batchqueue.groups.worker.batch import Batch
from batchqueue.groups.worker.failures import note_failure, refused_by_sink, stop_with
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.letters import CallFailure, dead_letter
from batchqueue.groups.worker.routes import Route, check_handled
from batchqueue.groups.worker.runs import Part, Run
from batchqueue.groups.worker.turns import Lane

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership


class HandlerLane(Lane):
    """Calls one handler with the records of one partition.

    Attributes:
        is_inside: Whether its handler is being called.
    """

    def __init__(self, membership: "Membership", partition: int, route: Route | None) -> None:
        """Begin without work.

        Args:
            membership: What it belongs to.
            partition: The number of the partition.
            route: The handler; None for records that cannot be handled.
        """
        self._route = route
        super().__init__(membership, f"{self.name} of {membership.stream}/{partition}")
        self.is_inside = False
        self._kind = "" if route is None else route.kind
        self._parts: deque[Part] = deque()
        self._run: Run | None = None
        self._due_ms = 0.0
        self._entered_ms = 0.0
        self._waits_for_lease = False

    def put(self, part: Part) -> None:
        """Take records. Under the lock."""
        self._parts.append(part)
        if self.has_work():
            self.schedule()

    def has_work(self) -> bool:
        """Whether a call need not wait."""
        run = self._run
        if self._waits_for_lease:
            return False
        if run is not None and not run.held.is_over:
            if run.is_waiting:
                return False
            return not self._is_paused(run.held) and self.membership.now_ms() >= self._due_ms
        return bool(self._parts) and not self._is_paused(self._parts[0].held)

    @property
    def name(self) -> str:
        """The name of its handler."""
        if self._route is None:
            return "a record that cannot be handled"
        handler = self._route.handler
        if handler is None:
            return "the handler of the partition"
        name: str = getattr(handler, "__qualname__", type(handler).__qualname__)
        return name

    def is_of(self, held: HeldPartition) -> bool:
        """Whether a call for a partition is under way or left to do. Under the lock."""
        return self._run is not None and self._run.held is held

    def is_blocked(self, held: HeldPartition) -> bool:
        """Whether it tries records of a partition that have failed for good. Under the lock."""
        run = self._run
        return run is not None and run.held is held and run.attempts.is_blocked

    def stuck_ms(self, now_ms: float) -> float:
        """Return for how long the handler has been in its call; 0 outside. Under the lock."""
        return now_ms - self._entered_ms if self.is_inside else 0.0

    def interrupt(self, held: HeldPartition) -> None:
        """Leave what waits for another attempt to the next owner. Under the lock."""
        run = self._run
        if run is None or run.held is not held or self.is_inside or run.is_waiting:
            return
        if self.membership.now_ms() < self._due_ms or self._is_paused(held):
            self._give_back(run)

    def work(self) -> None:
        """Call the handler once."""
        member = self.membership
        with member.lock:
            run = self._next_run()
            if run is None:
                return
            piece = run.attempts.begin()
            self.is_inside = True
            self._entered_ms = member.now_ms()
            member.load.begin(self, run.held.partition, self._entered_ms)
        batch = run.batch(piece, member, self._kind)
        first, last = batch.first, batch.last  # the handler may change its list
        failure: CallFailure | None = None
        try:
            with member.user_code():
                self._call(run.held, batch)
        except BaseException as error:
            failure = CallFailure.of(error)
        with member.lock:
            self.is_inside = False
            member.load.end(self, len(piece), member.now_ms())
            if run.held.is_over:  # lost meanwhile: whatever it returned is ignored
                self._run = None
                member.left(run.held)
            elif failure is None:
                if batch.commands:
                    run.held.run_with_commit(first, last, batch.commands)
                self._succeeded(run, piece)
            else:
                self._failed(run, piece, batch, failure)

    def _call(self, held: HeldPartition, batch: Batch) -> None:
        if self._route is None:
            raise batch.records[0].value.error
        consume = self._route.consume
        if consume is None:
            assert held.handler is not None
            consume = held.handler.consume
        check_handled(consume(batch))

    def _next_run(self) -> Run | None:
        """What to call the handler with; None if that has to wait."""
        member, run = self.membership, self._run
        if run is not None and run.held.is_over:
            run = self._run = None
        if run is None:
            run = self._run = self._claim()
        if run is None or run.is_waiting:
            return None
        if self._is_paused(run.held) or member.now_ms() < self._due_ms:
            return None
        return run if self._may_work(run.held) else None

    def _claim(self) -> Run | None:
        """Take parts of one assignment that wait, up to the most records of a batch."""
        member = self.membership
        parts: list[Part] = []
        count = 0
        while self._parts:
            part = self._parts[0]
            held, size = part.held, len(part.records)
            if parts and (held is not parts[0].held or count + size > member.max_batch_items):
                break
            if not held.is_over and (self._is_paused(held) or not self._may_work(held)):
                break
            self._parts.popleft()
            tracker = held.tracker
            if held.is_over or tracker is None or not tracker.start(part.chunk, size):
                continue  # dropped
            parts.append(part)
            count += size
        if not parts:
            return None
        self._due_ms = 0.0
        settings = member.settings
        attempts = Attempts(count, settings.attempts, settings.on_failure)
        return Run(parts[0].held, parts, attempts)

    def _succeeded(self, run: Run, piece: Piece) -> None:
        self._settle(run, piece, "handled")
        run.attempts.succeeded()
        self._continue(run)

    def _failed(self, run: Run, piece: Piece, batch: Batch, failure: CallFailure) -> None:
        member, held, error = self.membership, run.held, failure.error
        if isinstance(error, StaleTokenError):  # R9
            run.is_waiting = True  # until the partition comes again with a larger token
            refused_by_sink(member, held, error)
            return
        verdict, wait_ms = run.attempts.failed(error)
        batch = run.batch(piece, member, self._kind)  # as the handler got it
        note_failure(member, batch, verdict, failure.text)
        if verdict in (Verdict.AGAIN, Verdict.BLOCKED):
            if held.is_draining:
                self._give_back(run)
            else:
                self._due_ms = member.now_ms() + wait_ms
                member.call_at(self._due_ms, self._wake)
            return
        if verdict is Verdict.STOP:
            self._give_back(run)
            stop_with(member, batch, failure)
            return
        if verdict is Verdict.DEAD:
            run.is_waiting = True
            letter = dead_letter(run.entry(piece), batch, failure.text)
            then, give_up = self._was_set_aside, self._cannot_set_aside
            member.set_aside(held, letter, partial(then, run, piece), partial(give_up, run, piece))
            return
        if verdict is Verdict.SKIPPED:
            self._settle(run, piece, "skipped")
        self._continue(run)

    def _was_set_aside(self, run: Run, piece: Piece) -> None:
        run.is_waiting = False
        self._settle(run, piece, "dead")
        self._continue(run)
        self.resume()

    def _cannot_set_aside(self, run: Run, piece: Piece) -> None:
        """Leave a record that the server does not take to the next owner."""
        run.is_waiting = False
        run.attempts.pieces.appendleft(piece)
        self._give_back(run)

    def _continue(self, run: Run) -> None:
        self._due_ms = 0.0
        if not run.attempts.pieces:
            self._run = None
            if self._route is None and not self._parts:
                self.membership.lanes[run.held.partition].decoding.proceed()
        self.membership.check_drained(run.held)

    def _settle(self, run: Run, piece: Piece, outcome: str) -> None:
        tracker = run.held.tracker
        assert tracker is not None
        advanced = False
        for chunk, count in run.counts(piece):
            advanced = tracker.settle(chunk, **{outcome: count}) or advanced
        self.membership.settled(run.held, advanced)

    def _give_back(self, run: Run) -> None:
        tracker = run.held.tracker
        assert tracker is not None
        for piece in run.attempts.pieces:
            for chunk, count in run.counts(piece):
                tracker.give_back(chunk, count)
        self._run = None
        self._due_ms = 0.0
        self.membership.check_drained(run.held)

    def _may_work(self, held: HeldPartition) -> bool:
        # While the lease is in doubt, turns would only follow each other.
        self._waits_for_lease = not self.membership.may_work(held)
        return not self._waits_for_lease

    def _wake(self) -> None:
        self._waits_for_lease = False
        if self.has_work():
            self.schedule()

    @staticmethod
    def _is_paused(held: HeldPartition) -> bool:
        return held.is_held_up and not held.is_draining

    def resume(self) -> None:
        """Have a turn if there is work. Under the lock."""
        self._wake()

    def drop(self, held: HeldPartition) -> None:
        """Forget the records of a partition that is gone. Under the lock."""
        self._parts = deque(part for part in self._parts if part.held is not held)
        if self._run is not None and self._run.held is held and not self.is_inside:
            self._run = None
        self._wake()
