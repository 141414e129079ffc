"""Tables of queues, statistics and configs, for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from batchqueue._type_names import type_name
from batchqueue.display.text import duration, figures_of, settings_of
from batchqueue.exceptions import QueueForkedError

if TYPE_CHECKING:
    from batchqueue.config import BatchQueueConfig
    from batchqueue.stats import BatchQueueStats

MOST_ROWS = 12
"""Rows of a table, so that it fits a screen."""

_HANDLER_COLUMNS = ("type", "consumed", "failed", "items per call", "p50", "p99", "max", "in call")


def stats_html(stats: "BatchQueueStats", title: str | None = None) -> str:
    """Return the main figures, and the handlers that took the most time.

    Args:
        stats: The statistics.
        title: What stands above. Default: None, the name of the queue.
    """
    handlers = sorted(
        stats.handlers().items(), key=lambda each: -each[1].ns_per_item * each[1].consumed
    )
    rows = [
        (
            type_name(kind),
            f"{handler.consumed:_}",
            f"{handler.failed:_}",
            f"{handler.batch_items_mean:.3g}",
            *(
                duration(ms / 1e3)
                for ms in (handler.call_ms_p50, handler.call_ms_p99, handler.call_ms_max)
            ),
            duration(handler.in_call_s) if handler.in_call_s else "",
        )
        for kind, handler in handlers
    ]
    parts = [_table((), figures_of(stats), title or f"BatchQueueStats {stats.name!r}")]
    if rows:
        parts.append(_table(_HANDLER_COLUMNS, rows))
    return "".join(parts)


class _HasStats(Protocol):
    def stats(self) -> "BatchQueueStats": ...


def queue_html(queue: _HasStats) -> str:
    """Return the statistics of a queue below its `repr`; after a fork the `repr` alone."""
    try:
        return stats_html(queue.stats(), repr(queue).strip("<>"))
    except QueueForkedError:
        return escape(repr(queue))


def config_html(config: "BatchQueueConfig[Any]") -> str:
    """Return the settings that differ from their defaults."""
    return _table((), settings_of(config), "BatchQueueConfig")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = f"<tr>{_cells('th', columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        more = f"{len(rows) - MOST_ROWS:_} more"
        body += f'<tr><td colspan="{len(rows[0])}">{more}</td></tr>'
    return f"<table>{caption}{head}{body}</table>"


def _cells(tag: str, texts: Iterable[str]) -> str:
    shortened = (text if len(text) <= 100 else text[:99] + "…" for text in texts)
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in shortened)
