"""`Transport`: how commands get to a server. A cluster is one; here is that of a single server."""

from collections.abc import Sequence
from typing import Any, Protocol

from batchqueue.groups.redis.node import Node, Receive, Words
from batchqueue.groups.redis.replicas import Replicas


class Transport(Protocol):
    """What takes commands to a server, or to the nodes of a cluster."""

    def exchange(
        self, commands: Sequence[Words], replicas: Replicas | None, receive: Receive
    ) -> list[Any]:
        """Send commands, and return their replies; for one that was refused, the error."""
        ...

    def everywhere(self, words: Words) -> dict[str, Any]:
        """Send a command to each node, and return the replies, by place."""
        ...

    def refresh(self) -> None:
        """Disconnect where the server has ended the connection."""
        ...

    def disconnect(self) -> None:
        """End all connections. The next commands connect again."""
        ...

    def interrupt(self) -> None:
        """Let another thread that waits for a reply get an error."""
        ...


class SingleServer:
    """A server outside of clusters. One thread at a time."""

    def __init__(self, place: str, node: Node) -> None:
        """Use a connection that there is."""
        self._place = place
        self._node = node
        self.refresh = node.refresh
        self.disconnect = node.disconnect
        self.interrupt = node.interrupt

    def exchange(
        self,
        commands: Sequence[Words],
        replicas: Replicas | None = None,
        receive: Receive = Node.receive,
    ) -> list[Any]:
        """Send commands, and return their replies; for one that was refused, the error."""
        if replicas is None:
            return self._node.ask(commands, receive)
        *replies, confirmed = self._node.ask([*commands, replicas.words])
        replicas.note(confirmed)
        return replies

    def everywhere(self, words: Words) -> dict[str, Any]:
        """Send a command, and return its reply, by place."""
        return {self._place: self._node.ask([words])[0]}
