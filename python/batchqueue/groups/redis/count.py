"""How many partitions a stream on Redis has: its first user decides."""

from batchqueue._background_log import BackgroundLog
from batchqueue._words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.groups.redis.client import Link
from batchqueue.groups.redis.keys import stream_key
from batchqueue.groups.redis.library import LIBRARY, ScriptCall

_log = BackgroundLog("batchqueue")


def fixed_partitions(link: Link, stream: str, given: int | None) -> int:
    """Return the partitions of a stream, which is created if there is none.

    Args:
        link: The connection.
        stream: The stream.
        given: How many a new stream gets, and what an existing one must have. None: 1 for a new
            stream, any number for an existing one.

    Raises:
        ConfigError: The stream has another number of partitions.
    """
    arguments = ("" if given is None else given,)
    call = ScriptCall(LIBRARY["partitions"], (stream_key(stream),), arguments)
    [(count, created)] = link.call([call])
    if created:
        _log.info("Created topic %s with %d partition(s)", stream, count)
    if given not in (None, count):
        raise ConfigError(
            f'stream "{stream}" has '
            f"{counted(count, 'partition')}, partitions={given} was given: "
            "leave it out, or use another stream"
        )
    return int(count)


def known_partitions(link: Link, stream: str) -> int:
    """Return the partitions of a stream; 0 if it has none yet."""
    [count] = link.run([("HGET", stream_key(stream), "p")])
    return int(count or 0)


def enlarged_partitions(link: Link, stream: str, partitions: int) -> int:
    """Raise the number of partitions of a stream, and return the number from now on."""
    call = ScriptCall(LIBRARY["enlarge"], (stream_key(stream),), (partitions,))
    [count] = link.call([call])
    return int(count)
