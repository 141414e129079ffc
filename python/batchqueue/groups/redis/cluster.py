"""`Cluster`: the connections of one thread to the nodes of a cluster.

Each node has one connection, and gets all its commands before the first reply is read, so a call
that concerns several nodes takes one round trip.

Commands for a node that cannot be reached get a `StreamUnavailableError` as their reply; the others
get their own. A *pinned* cluster also fails once for each slot whose connection has changed,
because that ended or because the slot has moved: the new node may have lost what the old one had
(R14).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.redis.node import (
    Address,
    Node,
    Receive,
    Replicas,
    Words,
    is_lost,
    is_unavailable,
)

_MOST_REDIRECTS = 5
"""How often a command may be redirected to another node."""


_RETRY_S = 0.5
"""The time between two attempts to reach a node. Commands for other nodes wait for each attempt."""


_REFRESH_S = 0.1
"""The shortest time between two readings of the slots."""


class Cluster:
    """The nodes of a cluster. One thread at a time."""

    def __init__(
        self,
        stream: str,
        entry: Node,
        node_at: Callable[[Address], Node],
        slots: "SlotMap",
        *,
        is_pinned: bool,
    ) -> None:
        """Prepare to connect to each node with its first commands.

        Args:
            stream: The stream, for errors.
            entry: The node that was asked for the slots.
            node_at: Creates a connection.
            slots: The slots.
            is_pinned: Whether a slot fails once when its connection has changed.
        """
        self._stream = stream
        self._entry = entry
        self._node_at = node_at
        self._slots = slots
        self._is_pinned = is_pinned
        self._is_interrupted = False
        self._nodes: dict[Address, Node] = {}
        self._pins: dict[int, tuple[Address, int]] = {}
        self._unreached: dict[Address, tuple[float, str]] = {}
        self._is_stale = False
        self._refresh_at = 0.0

    def exchange(
        self,
        commands: Sequence[Words],
        replicas: Replicas | None,
        receive: Receive,
    ) -> list[Any]:
        """Send each command to the node of its key, and return the replies.

        Args:
            commands: The commands. All keys of a command are in one slot.
            replicas: What waits for replicas after writes, or None.
            receive: How to receive the replies.

        Returns:
            The replies, or the error of each command that was refused or could not be sent.
        """
        self._refresh_slots()
        slots = [self._slots.slot_of(each) for each in commands]
        batch = SlotBatch(commands, slots, [None] * len(commands))
        places = []
        for index, slot in enumerate(slots):
            if (owner := self._slots.owner(slot)) is None:
                self._is_stale = True
                batch.replies[index] = self._error(f"no node of the cluster has slot {slot}")
            else:
                places.append(SlotPlace(index, owner))
        try:
            for _ in range(_MOST_REDIRECTS):
                if places:
                    places = self._round(batch, places, replicas, receive)
        except BaseException:
            self.disconnect()  # unread replies may be left
            raise
        batch.fail(places, self._error("the cluster moves a slot again and again"))
        return batch.replies

    def everywhere(self, words: Words) -> dict[str, Any]:
        """Send a command to each node, and return the replies of the nodes that can be reached."""
        from redis.exceptions import RedisError

        found = {}
        for address in self._slots.nodes:
            with suppress(RedisError, OSError):
                [found[_text(address)]] = self._node(address).ask([words])
        return found

    def refresh(self) -> None:
        """Disconnect from nodes that have ended the connection."""
        for node in self._nodes.values():
            node.refresh()

    def disconnect(self) -> None:
        """End all connections."""
        for node in (self._entry, *self._nodes.values()):
            node.disconnect()

    def interrupt(self) -> None:
        """Make another thread that waits for a reply get an error."""
        self._is_interrupted = True
        for node in (self._entry, *self._nodes.copy().values()):
            node.interrupt()

    def _round(
        self,
        batch: "SlotBatch",
        places: "Sequence[SlotPlace]",
        replicas: Replicas | None,
        receive: Receive,
    ) -> "list[SlotPlace]":
        """Send commands, record the replies, and return the places to redirect to."""
        sent, elsewhere = [], []
        after = [] if replicas is None else [replicas.words]
        for address, chosen in by_node(places).items():
            with self._failing(batch, address, chosen):
                node = self._connected(address)
                kept = self._pinned(batch, (address, node.epoch), chosen)
                if words := batch.words(kept):
                    node.send([*words, *after])
                    sent.append((address, node, kept, len(words) + len(after)))
        for address, node, chosen, count in sent:
            with self._failing(batch, address, chosen):
                found = receive(node, count)
                if replicas is not None:
                    replicas.note(found[-1])
                for place, reply in without_asking(chosen, found):
                    elsewhere += self._take(batch, place, reply)
        return elsewhere

    def _take(self, batch: "SlotBatch", place: "SlotPlace", reply: Any) -> "list[SlotPlace]":
        """Record a reply, or return where the command has to go instead."""
        then = redirected(place, reply)
        if then is None:
            if isinstance(reply, Exception) and is_unavailable(reply):
                self._is_stale = True
                reply = self._error(f"Redis at {_text(place.address)}: {reply}")
            batch.replies[place.number] = reply
            return []
        if then.is_asked:  # the node hands its keys over, and nothing is lost
            return [then]
        self._is_stale = True
        self._slots.move(batch.slots[place.number], then.address)
        return [then]  # fails there if it is pinned to this node

    def _pinned(
        self, batch: "SlotBatch", pin: tuple[Address, int], places: "list[SlotPlace]"
    ) -> "list[SlotPlace]":
        """Return the places whose slots still have the same connection."""
        if not self._is_pinned:
            return places
        slots = {batch.slots[each.number] for each in places if not each.is_asked}
        changed = {slot for slot in slots if self._pins.setdefault(slot, pin) != pin}
        for slot in changed:
            del self._pins[slot]
        gone = [each for each in places if batch.slots[each.number] in changed]
        if gone:
            batch.fail(gone, self._error(f"Redis at {_text(pin[0])}: another connection"))
        return [each for each in places if batch.slots[each.number] not in changed]

    @contextmanager
    def _failing(
        self, batch: "SlotBatch", address: Address, places: "Sequence[SlotPlace]"
    ) -> Iterator[None]:
        """Fail commands whose node cannot be reached or ends the connection."""
        from redis.exceptions import RedisError

        try:
            yield
        except (RedisError, OSError) as error:
            if self._is_interrupted or not is_lost(error):
                raise
            self._node(address).disconnect()
            self._is_stale = True
            for place in places:
                self._pins.pop(batch.slots[place.number], None)
            batch.fail(places, self._error(f"Redis at {_text(address)}: {error}"))

    def _connected(self, address: Address) -> Node:
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import RedisError

        if time.monotonic() < self._unreached_until(address):
            raise Lost(self._unreached[address][1])
        node = self._node(address)
        try:
            node.connect()
        except (RedisError, OSError) as error:
            self._unreached[address] = (time.monotonic() + _RETRY_S, str(error))
            raise
        if self._is_interrupted:
            raise Lost("interrupted")
        return node

    def _node(self, address: Address) -> Node:
        if address not in self._nodes:
            self._nodes[address] = self._node_at(address)
        return self._nodes[address]

    def _refresh_slots(self) -> None:
        """If the slots are known to have changed, read them from the first node that answers."""
        from redis.exceptions import RedisError

        now = time.monotonic()
        if not self._is_stale or now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH_S
        tried = [each for each in self._slots.nodes if now >= self._unreached_until(each)]
        for node in (*map(self._node, tried), self._entry):
            with suppress(RedisError, OSError):
                [reply] = node.ask([("CLUSTER", "SLOTS")])
                if isinstance(reply, list):
                    self._slots = SlotMap(reply, node.address)
                    self._is_stale = False
                    self._forget_nodes()
                    return

    def _unreached_until(self, address: Address) -> float:
        return self._unreached.get(address, (0.0, ""))[0]

    def _forget_nodes(self) -> None:
        for address in self._nodes.keys() - set(self._slots.nodes):
            self._nodes.pop(address).disconnect()
            self._unreached.pop(address, None)

    def _error(self, reason: str) -> StreamUnavailableError:
        return StreamUnavailableError(self._stream, reason)


def _text(address: Address) -> str:
    return "{}:{}".format(*address)


# The slots of each node, and the node for a command. Pure.


class SlotPlace(NamedTuple):
    """The destination of a command.

    Attributes:
        number: The index of the command.
        address: The node.
        is_asked: Whether the node is only about to get the slot, so that ASKING comes first.
    """

    number: int
    address: Address
    is_asked: bool = False


class SlotMap:
    """The nodes by slot."""

    def __init__(self, reply: Iterable[Any], asked: Address) -> None:
        """Parse the slots.

        Args:
            reply: The reply to `CLUSTER SLOTS`.
            asked: The node that replied. A node without a name is at the same host.
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
        """Return the slot of a command: the slot of its first key."""
        key = key_of(words)
        return self._slot_of(key if isinstance(key, bytes) else key.encode())

    def owner(self, slot: int) -> Address | None:
        """Return the node of a slot; None if the slot has none."""
        return self._owners[slot]

    def move(self, slot: int, address: Address) -> None:
        """Record that a slot has moved to another node."""
        self._owners[slot] = address


@dataclass(frozen=True)
class SlotBatch:
    """Commands that are sent together, to one node or several.

    Attributes:
        commands: The commands.
        slots: The slot of each.
        replies: The replies known so far: values and errors.
    """

    commands: Sequence[Words]
    slots: Sequence[int]
    replies: list[Any]

    def words(self, places: Iterable[SlotPlace]) -> list[Words]:
        """Return the commands to send to a node."""
        words: list[Words] = []
        for place in places:
            if place.is_asked:
                words.append(("ASKING",))
            words.append(self.commands[place.number])
        return words

    def fail(self, places: Iterable[SlotPlace], error: Exception) -> None:
        """Set an error as the reply of commands."""
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


def by_node(places: Iterable[SlotPlace]) -> dict[Address, list[SlotPlace]]:
    """Return places by node. The commands of a node keep their order."""
    found: dict[Address, list[SlotPlace]] = {}
    for place in sorted(places):
        found.setdefault(place.address, []).append(place)
    return found


def without_asking(
    places: Iterable[SlotPlace], replies: Iterable[Any]
) -> list[tuple[SlotPlace, Any]]:
    """Return the replies to the commands of a node, without those to ASKING."""
    found, remaining = [], iter(replies)
    for place in places:
        if place.is_asked:
            next(remaining)
        found.append((place, next(remaining)))
    return found


def redirected(place: SlotPlace, reply: Any) -> SlotPlace | None:
    """Return the new place of a command after a redirecting reply; None if it is not redirected.

    Args:
        place: Its current place.
        reply: The reply of the node.
    """
    from redis.exceptions import AskError, MovedError

    if not isinstance(reply, AskError):  # MovedError is a subclass
        return None
    address = (reply.host or place.address[0], reply.port)
    return SlotPlace(place.number, address, is_asked=not isinstance(reply, MovedError))


class SingleServer:
    """A server outside clusters. One thread at a time."""

    def __init__(self, place: str, node: Node) -> None:
        """Use an existing connection."""
        self._place = place
        self._node = node
        self.refresh = node.refresh
        self.disconnect = node.disconnect
        self.interrupt = node.interrupt

    def exchange(
        self,
        commands: Sequence[Words],
        replicas: Replicas | None,
        receive: Receive,
    ) -> list[Any]:
        """Send commands, and return their replies, or the error of each refused command."""
        if replicas is None:
            return self._node.ask(commands, receive)
        *replies, confirmed = self._node.ask([*commands, replicas.words])
        replicas.note(confirmed)
        return replies

    def everywhere(self, words: Words) -> dict[str, Any]:
        """Send a command, and return its reply, by address."""
        return {self._place: self._node.ask([words])[0]}


Transport = Cluster | SingleServer
"""The transport of commands to a server, or to the nodes of a cluster."""
