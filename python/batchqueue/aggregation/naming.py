"""`metric_type`: a class for each metric, the same class in every process."""

import copyreg
import math
import re
import threading
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, TypeVar

from batchqueue.aggregation.metrics import VALUE_TYPES, MetricClass, Metrics, check_key_columns
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError

M = TypeVar("M", bound=Metrics)

_made: dict[tuple[Any, ...], MetricClass] = {}
_lock = threading.Lock()


def metric_type(
    name: str,
    kind: type[M],
    *,
    columns: Mapping[str, type] | None = None,
    keys: Mapping[str, type] | None = None,
    limit: int | None = None,
    accuracy: float | None = None,
) -> type[M]:
    """Make the class of a metric. A queue dispatches by exact class, so each metric needs its own.

    Equal arguments give the same class, in this process and in every other: pickle and cloudpickle
    send the arguments, not the class.

    Args:
        name: Name of the metric, e.g. "departures.carrier.UA"; the store keeps it.
        kind: What it computes: `CountMetrics`, `SumMetrics`, ..., or your own subclass of
            `Metrics`.
        columns: Types of value columns where they differ from the kind's, e.g. {"total": int} for a
            sum of ints, {"total": Decimal} for one of decimals, of which stores keep up to 20
            digits before the point and 18 after it; `None`: those of the kind.
        keys: The columns of an entity with their types, str, int, bool or `datetime.date`, e.g.
            {"carrier": str, "origin": str}. An entity is then given as a tuple of their values, and
            stores keep each in a column, in a table for the kind and these columns. `None`: those
            of the kind, by default none, so that an entity is a single text.
        limit: Entries to keep, at least 1; only for a `Ranking`. `None`: the limit of the kind.
        accuracy: The relative error; only for `QuantileMetrics`, 0.0001 to 0.5, and
            `DistinctMetrics`, 0.001 to 0.2. `None`: that of the kind.

    Raises:
        ConfigError: The name is empty, a key column is invalid, or the kind lacks such a column, a
            limit or an accuracy.

    Example:
        >>> from batchqueue.aggregation import CountMetrics
        >>> metric_type("departures.carrier.UA", CountMetrics).name
        'departures.carrier.UA'
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"the name of a metric is {name!r}, {a_type(name)}; give a str, e.g. "
            "'departures.carrier.UA'"
        )
    if not name:
        raise ConfigError(
            "the name of a metric is empty; give it one, e.g. 'departures.carrier.UA'"
        )
    if not isinstance(kind, type) or not issubclass(kind, Metrics):
        raise ConfigError(
            f"metric {name!r} is of kind {kind!r}; give CountMetrics, SumMetrics or another "
            "subclass of Metrics"
        )
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError(
            f"columns of metric {name!r} is {columns!r}; give a dict from column to type, e.g. "
            '{"total": int}'
        )
    changed = dict(columns or {})
    for column, value_type in changed.items():
        if column not in kind.columns or value_type not in VALUE_TYPES:
            raise ConfigError(
                f"column {column!r} of type {value_type!r} cannot be set on {kind.__name__}: "
                f"its columns are {', '.join(kind.columns)}, their types int, float, str, bool or "
                "Decimal"
            )
    # The examples of the kind are not those of the metric.
    summary = (kind.__doc__ or "").partition("\n")[0]
    members: dict[str, Any] = {"__slots__": (), "__module__": __name__, "__doc__": summary}
    members |= {"name": name, "columns": {**kind.columns, **changed}}
    if keys is not None:
        check_key_columns(name, keys, kind.columns)
        members |= {"key_columns": dict(keys), "table": _table_by(kind, keys)}
    if limit is not None:
        if not hasattr(kind, "limit") or limit < 1:
            raise ConfigError(
                f"limit={limit} on {kind.__name__}: only a Ranking has one, and it is at least 1"
            )
        members["limit"] = limit
    if accuracy is not None:
        least, most = getattr(kind, "accuracies", (math.nan, math.nan))
        if not least <= accuracy <= most:
            raise ConfigError(
                f"accuracy={accuracy} on {kind.__name__}: only QuantileMetrics, 0.0001 to 0.5, and "
                "DistinctMetrics, 0.001 to 0.2, have one"
            )
        members["accuracy"] = float(accuracy)

    arguments = (
        name,
        kind,
        tuple(sorted(changed.items())),
        limit,
        accuracy,
        tuple((keys or {}).items()),
    )
    with _lock:
        if arguments not in _made:
            _made[arguments] = _make(name, kind, members, arguments)
        return _made[arguments]  # type: ignore[return-value]


_PLAIN = re.compile(r"(?!(?:int|bool|date)$)[a-z][a-z0-9]*")
"""Names of key columns that stay unambiguous when joined."""

_LONGEST_TABLE = 45
"""The most letters before a store, which takes 63, may append the types of value columns."""


def _table_by(kind: type[Metrics], keys: Mapping[str, type]) -> str:
    """Return the table of a kind with key columns, which no other key columns share.

    No two tables differ only in the case of their letters, which SQLite ignores.
    """
    # Not the table of a class that was made with other keys.
    root = next(cls for cls in kind.__mro__ if "table" in vars(cls) and "made_by" not in vars(cls))
    columns = "".join(
        f"_{column}" if key_type is str else f"_{column}_{key_type.__name__}"
        for column, key_type in keys.items()
    )
    table = f"{root.table}_by{columns}"  # type: ignore[attr-defined]
    if all(map(_PLAIN.fullmatch, keys)) and len(table) <= _LONGEST_TABLE:
        return table
    exact = repr([(column, key_type.__name__) for column, key_type in keys.items()])
    digest = sha256(exact.encode()).hexdigest()[:8]
    return f"{table.lower()[: _LONGEST_TABLE - 9]}_{digest}"


def _make(
    name: str, kind: type[Metrics], members: dict[str, Any], arguments: tuple[Any, ...]
) -> MetricClass:
    made = MetricClass(name, (kind,), members)
    made.made_by = arguments
    # Cloudpickle sends a class by value unless its module has it under its qualified name. The
    # receiver would then have two classes: the copy, and the class that `metric_type` makes there.
    qualified = name.replace(".", "/")
    while qualified in globals():
        qualified += "'"
    made.__qualname__ = qualified
    globals()[qualified] = made
    return made


def _rebuild(  # noqa: PLR0917 - pickle passes them
    name: str,
    kind: type[Metrics],
    columns: tuple[tuple[str, type], ...],
    limit: int | None,
    accuracy: float | None,
    keys: tuple[tuple[str, type], ...] = (),
) -> type[Metrics]:
    return metric_type(
        name, kind, columns=dict(columns), keys=dict(keys) or None, limit=limit, accuracy=accuracy
    )


def _reduce(cls: MetricClass) -> str | tuple[Any, ...]:
    # `vars`, because a class statement inherits the attribute from a made class.
    made_by = vars(cls).get("made_by")
    return cls.__qualname__ if made_by is None else (_rebuild, made_by)


copyreg.pickle(MetricClass, _reduce)
