"""Short texts of statistics and configs, for `repr`."""

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchqueue.config import BatchQueueConfig
    from batchqueue.stats import BatchQueueStats

_RARE = ("refused", "dead_lettered", "failed", "unhandled", "abandoned")


def figures_of(stats: "BatchQueueStats") -> list[tuple[str, str]]:
    """Return the main figures with their names; those that are mostly 0 only if they are not."""
    figures = [("produced", f"{stats.produced:_}"), ("consumed", f"{stats.consumed:_}")]
    rare = [(name, getattr(stats, name)) for name in _RARE]
    figures += [(name.replace("_", " "), f"{count:_}") for name, count in rare if count]
    figures.append(("in use", f"{stats.total_used:_} of {stats.total_capacity:_}"))
    if stats.oldest_age_ms:
        figures.append(("oldest", duration(stats.oldest_age_ms / 1e3)))
    if stats.stuck_handlers:
        figures.append(("stuck", ", ".join(stats.stuck_handlers[:3])))
    return figures


def stats_text(stats: "BatchQueueStats") -> str:
    """Return the main figures in one line."""
    figures = ", ".join(f"{value} {name}" for name, value in figures_of(stats))
    return f"<BatchQueueStats {stats.name!r}: {figures}>"


def settings_of(config: "BatchQueueConfig[Any]") -> list[tuple[str, str]]:
    """Return the settings that differ from their defaults, as they are written."""
    found = []
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is MISSING or value != field.default:
            found.append((field.name, repr(value)))
    return found


def config_text(config: "BatchQueueConfig[Any]") -> str:
    """Return a config as it is written, without the settings that have their defaults."""
    settings = ", ".join(f"{name}={value}" for name, value in settings_of(config))
    return f"BatchQueueConfig({settings})"


def duration(seconds: float) -> str:
    """Return a time with its unit and three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"
