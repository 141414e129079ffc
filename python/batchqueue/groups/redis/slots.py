"""Which node of a cluster has which slot, and where a command goes. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchqueue.groups.redis.node import Address, Words


class Place(NamedTuple):
    """Where a command goes.

    Attributes:
        number: Which command it is.
        address: The node.
        is_asked: Whether the node is only about to get the slot, so that ASKING comes first.
    """

    number: int
    address: Address
    is_asked: bool = False


class SlotMap:
    """The nodes by slot."""

    def __init__(self, reply: Iterable[Any], asked: Address) -> None:
        """Read it.

        Args:
            reply: What `CLUSTER SLOTS` replied.
            asked: The node that replied: one without a name is at the same host.
        """
        from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

        self._slot_of = key_slot
        self._owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, node, *_ in reply:
            host = node[0].decode() if node[0] else ""
            owner = (asked[0] if host in ("", "?") else host, int(node[1]))
            self._owners[first : last + 1] = [owner] * (last + 1 - first)

    @property
    def nodes(self) -> list[Address]:
        """The nodes that have slots."""
        return list(dict.fromkeys(owner for owner in self._owners if owner is not None))

    def slot_of(self, words: Words) -> int:
        """Return the slot of a command: that of its first key."""
        key = key_of(words)
        return self._slot_of(key if isinstance(key, bytes) else key.encode())

    def owner(self, slot: int) -> Address | None:
        """Return the node of a slot; None if the slot has none."""
        return self._owners[slot]

    def move(self, slot: int, address: Address) -> None:
        """Take in that a slot is at another node."""
        self._owners[slot] = address


@dataclass(frozen=True)
class Batch:
    """Commands that are sent together, to one node or several.

    Attributes:
        commands: The commands.
        slots: The slot of each.
        replies: Their replies, as far as they are known: values and errors.
    """

    commands: Sequence[Words]
    slots: Sequence[int]
    replies: list[Any]

    def words(self, places: Iterable[Place]) -> list[Words]:
        """Return what a node is sent."""
        words: list[Words] = []
        for place in places:
            if place.is_asked:
                words.append(("ASKING",))
            words.append(self.commands[place.number])
        return words

    def fail(self, places: Iterable[Place], error: Exception) -> None:
        """Give commands an error as their reply."""
        for place in places:
            self.replies[place.number] = error


def key_of(words: Words) -> bytes | str:
    """Return the first key of a command."""
    match words[0]:
        case "EVALSHA" | "EVAL":
            key = words[3]
        case "XREAD":
            key = words[words.index("STREAMS") + 1]
        case _:
            key = words[1]
    assert isinstance(key, (bytes, str))
    return key


def by_node(places: Iterable[Place]) -> dict[Address, list[Place]]:
    """Return places by their nodes. The commands of a node keep their order."""
    found: dict[Address, list[Place]] = {}
    for place in sorted(places):
        found.setdefault(place.address, []).append(place)
    return found


def without_asking(places: Iterable[Place], replies: Iterable[Any]) -> list[tuple[Place, Any]]:
    """Return the reply of each command among those of a node."""
    found, remaining = [], iter(replies)
    for place in places:
        if place.is_asked:
            next(remaining)
        found.append((place, next(remaining)))
    return found


def redirected(place: Place, reply: Any) -> Place | None:
    """Return where a command goes after a reply; None if it stays where it was.

    Args:
        place: Where it was.
        reply: What the node replied.
    """
    from redis.exceptions import AskError, MovedError

    if not isinstance(reply, AskError):  # MovedError is one
        return None
    address = (reply.host or place.address[0], reply.port)
    return Place(place.number, address, is_asked=not isinstance(reply, MovedError))
