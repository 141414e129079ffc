"""What Redis servers must be like for groups, and what it had better be."""

from batchqueue._background_log import BackgroundLog
from batchqueue.exceptions import ConfigError
from batchqueue.groups.redis.client import Link

_log = BackgroundLog("batchqueue")

OLDEST = (6, 2)
"""The first version of Redis with `XTRIM MINID` and `ZRANGE` as the scripts use them."""


def check_server(link: Link) -> None:
    """Check the version of each server, and warn if one may lose what groups store.

    Raises:
        ConfigError: The server is too old.
        StreamUnavailableError: It cannot be reached.
    """
    from redis.exceptions import ResponseError

    found: dict[str, list[str]] = {}
    for place, reply in link.everywhere(("INFO",)).items():
        if isinstance(reply, ResponseError):
            return  # this user may not ask
        for warning in warnings_of(_fields(reply)):
            found.setdefault(warning, []).append(place)
    for warning, places in found.items():
        where = f" (at {', '.join(places)})" if link.is_cluster else ""
        _log.warning("%s%s", warning, where)


def warnings_of(info: dict[str, str]) -> list[str]:
    """Return what to warn about, from the fields of `INFO`.

    Raises:
        ConfigError: The server is too old.
    """
    version = info.get("redis_version", "")
    numbers = version.split(".")[:2]
    if all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < OLDEST:
        raise ConfigError(f"Redis is version {version}; groups need 6.2 or later: upgrade it")
    found = []
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-") and info.get("maxmemory") != "0":
        found.append(f"Redis evicts keys ({policy}): set noeviction, or groups lose offsets")
    if info.get("aof_enabled") == "0":
        found.append(
            "Redis writes no append-only file: set appendonly yes, or a crash loses records and "
            "offsets"
        )
    return found


def _fields(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode("utf8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
