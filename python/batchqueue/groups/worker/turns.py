"""`Lane`: work that is done in order, a turn at a time; see `lanes.py`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership

from batchqueue._background_log import BackgroundLog

_log = BackgroundLog("batchqueue")


class Turn:
    """An item of the local queue. Each lane has its own class."""

    __slots__ = ("lane",)

    def __init__(self, lane: "Lane") -> None:
        self.lane = lane


class Desk:
    """The handler of turns. Lanes that share one are entered by one thread at a time."""

    def consume(self, turns: list[Turn]) -> None:
        """Run the lanes."""
        for turn in turns:
            turn.lane.run()


class ClosingDesk(Desk):
    """A desk that calls `on_close` of its handler, when the local queue has ended."""

    def __init__(self, on_close: Callable[[], Any]) -> None:
        self.on_close = on_close


class Lane(ABC):
    """Work of one partition number that has to be done in order.

    Attributes:
        turn: Its turn.
        is_scheduled: Whether the turn is in the local queue or running.
    """

    def __init__(self, membership: "Membership", name: str) -> None:
        """Begin without a turn.

        Args:
            membership: What it belongs to.
            name: What works there. The local queue knows it by the class of the turns, whose name
                is in its lines of the log.
        """
        self.membership = membership
        self.turn = type(name, (Turn,), {"__slots__": ()})(self)
        self.is_scheduled = False

    def schedule(self) -> None:
        """Have a turn, if there is none and the worker is not ending. Under the lock."""
        if not (self.is_scheduled or self.membership.is_stopping):
            self.is_scheduled = True
            self.membership.queue.produce(self.turn)

    def run(self) -> None:
        """Do one piece of work, and have another turn if there is more."""
        member = self.membership
        try:
            self.work()
        except BaseException as error:  # not of a handler: of a codec, or of this code
            _log.exception("worker %s cannot continue", member.control.name)
            with member.lock:
                member.fail(error)
            return  # and the lane has no turn any more
        with member.lock:
            self.is_scheduled = False
            if self.has_work():
                self.schedule()

    @abstractmethod
    def work(self) -> None:
        """Do one piece of work."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is work that need not wait. Under the lock."""
