"""`source_of`: the stream that a URL names."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from batchqueue._requirements import require
from batchqueue.exceptions import ConfigError

if TYPE_CHECKING:
    from batchqueue.groups.backend import Source

_BACKEND = "batchqueue.groups.redis"
_REDIS_SCHEMES = ("redis", "rediss", "unix")


def source_of(url: str, stream: str) -> "Source":
    """Return a stream.

    Args:
        url: The server: `redis://HOST:PORT/DB`, or `rediss://` or `unix://`.
        stream: The name of the stream.

    Raises:
        ConfigError: The URL is invalid. Its text is left out of the message: it may hold a
            password.
        MissingPackageError: The package of the backend is missing.
    """
    scheme = urlsplit(url).scheme
    if scheme not in _REDIS_SCHEMES:
        given = f"begins with {scheme}://" if "://" in url else "is not a URL"
        raise ConfigError(f"--source {given}; give redis://HOST:PORT/DB, rediss:// or unix://")
    require("redis", "--source redis://", "redis")
    if find_spec(_BACKEND) is None:
        raise ConfigError("--source: this version of batchqueue has no groups on Redis")
    source: Source = import_module(_BACKEND).RedisStreams(url, stream)
    return source
