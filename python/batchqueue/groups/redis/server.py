"""`Server`: where Redis is, and how to connect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from batchqueue._requirements import require
from batchqueue.exceptions import ConfigError
from batchqueue.groups.redis.node import Connector

if TYPE_CHECKING:
    from redis import Redis, RedisCluster


@dataclass(frozen=True)
class Server:
    """Where Redis is, and how to connect.

    Attributes:
        address: A URL, or a function that returns a `redis.Redis` or a `redis.RedisCluster`.
        options: Further arguments of redis-py's connections.
    """

    address: "str | Callable[[], Redis | RedisCluster]" = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        """Host, port and database, or the function: for messages, without secrets."""
        if callable(self.address):
            return getattr(self.address, "__qualname__", type(self.address).__qualname__)
        parts = urlsplit(self.address)
        database = parts.path.strip("/") or "0"
        if parts.scheme == "unix":
            return parts.path
        try:
            port = parts.port or 6379
        except ValueError:
            port = 6379
        return f"{parts.hostname or 'localhost'}:{port}/{database}"

    def connector(self, timeout_s: float) -> Connector:
        """Return what makes connections.

        Args:
            timeout_s: How long connecting may take, and waiting for a reply.

        Raises:
            MissingPackageError: redis-py is not installed.
            ConfigError: The URL is invalid, or the function returned something else.
        """
        require("redis", "RedisStreams", "redis")
        from redis.backoff import NoBackoff
        from redis.connection import UnixDomainSocketConnection
        from redis.retry import Retry

        pool = self._pool()
        settings = {
            name: value
            for name, value in pool.connection_kwargs.items()
            # Notifications of hosted servers before maintenance need protocol 3.
            if "maint_notifications" not in name and not name.startswith("orig_")
        }
        settings |= {
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "protocol": 2,  # replies as plain lists: twice as fast as those of redis-py
            "decode_responses": False,
            "socket_timeout": timeout_s,
        }
        if not issubclass(pool.connection_class, UnixDomainSocketConnection):
            settings["socket_connect_timeout"] = timeout_s
        return Connector(pool, settings)

    def _pool(self) -> Any:
        from redis import ConnectionPool, RedisCluster

        if not callable(self.address):
            try:
                return ConnectionPool.from_url(self.address, **self.options)
            except ValueError as error:
                raise ConfigError(f"RedisStreams: the URL is invalid: {error}") from None
        client = self.address()
        if isinstance(client, RedisCluster):
            node: Any = client.nodes_manager.default_node
            client = client.get_redis_connection(node)
        pool = getattr(client, "connection_pool", None)
        if pool is None:
            raise ConfigError(
                f"RedisStreams: {self.place} returned {type(client).__name__}; return a "
                "redis.Redis, or a redis.RedisCluster"
            )
        return pool
