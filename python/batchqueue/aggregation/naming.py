"""`metric_type`: a class of its own for each metric, the same one in every process."""

import copyreg
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from batchqueue.aggregation.metrics import MetricClass, Metrics
from batchqueue.exceptions import ConfigError

M = TypeVar("M", bound=Metrics)

_made: dict[tuple[Any, ...], MetricClass] = {}
_lock = threading.Lock()


def metric_type(
    name: str, kind: type[M], *, columns: Mapping[str, type] | None = None, limit: int | None = None
) -> type[M]:
    """Make the class of one metric. A queue dispatches by exact class, so each metric needs its own.

    The same arguments give the same class, in this process and in every other one: pickle and
    cloudpickle send the arguments, not the class.

    Args:
        name: Name of the metric, e.g. "departures.carrier.UA"; it is what the store keeps.
        kind: What it computes: `CountMetrics`, `SumMetrics`, ..., or a subclass of `Metrics` of
            your own.
        columns: Types of value columns where they differ from the kind's, e.g. {"total": int} for a
            sum of ints.
        limit: Entries to keep, for a `Ranking`.

    Raises:
        ConfigError: The name is empty, or the kind has no such column, or no limit.

    Example:
        >>> from batchqueue.aggregation import CountMetrics
        >>> metric_type("departures.carrier.UA", CountMetrics).name
        'departures.carrier.UA'
    """
    if not name:
        raise ConfigError(
            "the name of a metric is empty; give it one, e.g. 'departures.carrier.UA'"
        )
    changed = dict(columns or {})
    for column, value_type in changed.items():
        if column not in kind.columns or value_type not in (int, float, str):
            raise ConfigError(
                f"column {column!r} of type {value_type!r} cannot be set on {kind.__name__}: "
                f"its columns are {', '.join(kind.columns)}, their types int, float or str"
            )
    members: dict[str, Any] = {"__slots__": (), "__module__": __name__, "__doc__": kind.__doc__}
    members |= {"name": name, "columns": {**kind.columns, **changed}}
    if limit is not None:
        if not hasattr(kind, "limit") or limit < 1:
            raise ConfigError(
                f"limit={limit} on {kind.__name__}: only a Ranking has one, and it is at least 1"
            )
        members["limit"] = limit

    arguments = (name, kind, tuple(sorted(changed.items())), limit)
    with _lock:
        if arguments not in _made:
            _made[arguments] = _make(name, kind, members, arguments)
        return _made[arguments]  # type: ignore[return-value]


def _make(
    name: str, kind: type[Metrics], members: dict[str, Any], arguments: tuple[Any, ...]
) -> MetricClass:
    made = MetricClass(name, (kind,), members)
    made.made_by = arguments
    # Unless its module has a class by its qualified name, cloudpickle sends it by value, and what
    # arrives is a class beside the one that `metric_type` makes over there.
    qualified = name.replace(".", "/")
    while qualified in globals():
        qualified += "'"
    made.__qualname__ = qualified
    globals()[qualified] = made
    return made


def _rebuild(
    name: str, kind: type[Metrics], columns: tuple[tuple[str, type], ...], limit: int | None
) -> type[Metrics]:
    return metric_type(name, kind, columns=dict(columns), limit=limit)


def _reduce(cls: MetricClass) -> str | tuple[Any, ...]:
    made_by = vars(cls).get("made_by")  # not inherited: a subclass of a made class was written out
    return cls.__qualname__ if made_by is None else (_rebuild, made_by)


copyreg.pickle(MetricClass, _reduce)
