"""Lanes: the way of records from the reader to their handlers, on the drain threads.

Each partition has a lane that decodes, and one for each handler. A lane is a type of the local
queue, so the queue gives it to one drain thread at a time and moves it between threads by its load.
What is queued there is a *turn*: the order to do one piece of the lane's work, a chunk to decode or
one call of a handler. A lane has at most one turn, in the queue or running; its work waits here,
bounded by the credits of the partition. So no drain thread ever waits: a lane that has to wait,
because its last attempt failed or its partition is paused, simply has no turn.

Lanes belong to the number of a partition, not to an assignment. A partition that is lost and comes
back while a handler still runs has its new records behind that call.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from batchqueue.groups.worker.decoding import DecodingLane
from batchqueue.groups.worker.handling import HandlerLane
from batchqueue.groups.worker.routes import Route, Routes
from batchqueue.groups.worker.turns import ClosingDesk, Desk

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership


class PartitionLanes:
    """The lanes of one partition number, made when the worker gets it for the first time.

    Attributes:
        decoding: The lane that decodes.
    """

    def __init__(self, membership: "Membership", partition: int) -> None:
        self.decoding = DecodingLane(membership, partition)
        self._lanes: dict[Route | None, HandlerLane] = {
            route: HandlerLane(membership, partition, route)
            for route in (*membership.routes.all, None)
        }

    @property
    def all(self) -> list[HandlerLane]:
        """The lanes of the handlers."""
        return list(self._lanes.values())

    def lane(self, route: Route | None) -> HandlerLane:
        """Return the lane of a handler; of None, that of records which cannot be handled."""
        return self._lanes[route]

    def register(self, add: Callable[[type, Desk], None], desks: dict[Route, Desk]) -> None:
        """Register the lanes with the local queue.

        Args:
            add: Registers a class of turns and its desk.
            desks: The desks of the handlers that all partitions share.
        """
        add(type(self.decoding.turn), Desk())
        for route, lane in self._lanes.items():
            shared = desks.get(route) if route is not None else None
            add(type(lane.turn), shared or Desk())


def desks_of(routes: Routes) -> dict[Route, Desk]:
    """Return a desk for each handler that all partitions share.

    Two methods of one object share a desk: at most one thread may be inside of it.
    """
    shared = [route for route in routes.all if route.consume is not None]
    # A method of an object has no `on_close`; the object itself may be the handler of others.
    closing = {id(each.protected): each.on_close for each in shared if each.on_close is not None}
    desks: dict[int, Desk] = {}
    for route in shared:
        on_close = closing.get(id(route.protected))
        desk = Desk() if on_close is None else ClosingDesk(on_close)
        desks.setdefault(id(route.protected), desk)
    return {each: desks[id(each.protected)] for each in shared}
