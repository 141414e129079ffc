"""The options of a write, checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, NamedTuple, cast

from batchqueue.exceptions import ConfigError
from batchqueue.spark.job import AggregationJob

DEFAULT_MAX_COMMIT_BYTES = 64 * 1024 * 1024
"""A sixth of what a driver with the default heap of 1 GB can take; see docs/spark/production.md."""

Accept = Literal["accept"]
Skip = Literal["skip"]

L1Place = Literal["tasks", "spark"]


class L1Choice(NamedTuple):
    """The place where the rows of a write become partials.

    Attributes:
        place: "tasks": in Python, in the tasks. "spark": in Spark SQL.
        why: The reason.
    """

    place: L1Place
    why: str


IN_TASKS_OF_FORMAT = L1Choice("tasks", "a format has its rows in the tasks")

_APPEND_ONE = re.compile(r"append:\S+")


@dataclass(frozen=True)
class SinkOptions:
    """The values given to `option(...)`, parsed.

    Attributes:
        sink_id: The name of the sink within the store.
        on_new_query: What to do when an unknown query meets a sink that has data: "append",
            "replace", or "append:" followed by the id of the only query that may append; None:
            fail.
        txn_id: Names a batch write, so that it is applied once; None: at-least-once.
        max_commit_bytes: Largest size of one epoch's partial aggregates, in bytes.
        on_job_change: What to do when the job differs from the one that wrote last; None: fail.
        on_missing_epochs: What to do when the store lacks epochs before the one to commit; None:
            fail.
        shards: Number of parts of the sink, each committed by its own task; None: one commit. A
            parameter of `MetricsWriter`.
        on_changed_epoch: What to do when a replayed epoch has another number of rows than the store
            recorded, or other rows; None: fail.
        replaced: Time buckets whose results a batch write replaces; None: it adds to all of them. A
            parameter of `write_batch`.
        is_named: Whether `sinkId` was given, and is not the name of the job by default.
        l1: Where L1 runs. A parameter of `MetricsWriter`.
    """

    sink_id: str
    on_new_query: str | None
    txn_id: str | None
    max_commit_bytes: int
    on_job_change: Accept | None = None
    on_missing_epochs: Accept | None = None
    shards: int | None = None
    on_changed_epoch: Skip | None = None
    replaced: range | None = None
    is_named: bool = field(default=True, compare=False)
    l1: L1Choice = IN_TASKS_OF_FORMAT

    @classmethod
    def parse(
        cls, options: Mapping[str, str], job: AggregationJob, *, stream: bool
    ) -> "SinkOptions":
        """Parse the options of a write.

        Args:
            options: Values by name, in lower case, as Spark passes them.
            job: The job whose name is the default sink id.
            stream: True for a stream, False for a batch.

        Raises:
            ConfigError: A value is invalid, or an option is misspelt or for another kind of write.
        """
        _check_names(options, stream=stream)
        on_new_query = options.get("onnewquery")
        if on_new_query not in (None, "append", "replace") and not _APPEND_ONE.fullmatch(
            on_new_query
        ):
            raise ConfigError(
                f"option onNewQuery={on_new_query!r}: use 'append' or 'replace', or 'append:' and "
                "the id of the query, or leave it out"
            )
        size = options.get("maxcommitbytes", str(DEFAULT_MAX_COMMIT_BYTES))
        if not size.isdecimal() or int(size) == 0:
            raise ConfigError(
                f"option maxCommitBytes={size!r}: give a whole number of bytes, at least 1"
            )
        return cls(
            sink_id=options.get("sinkid", job.name),
            on_new_query=on_new_query,
            txn_id=options.get("txnid"),
            max_commit_bytes=int(size),
            on_job_change=cast(Accept | None, _only(options, "onJobChange", "accept")),
            on_missing_epochs=cast(Accept | None, _only(options, "onMissingEpochs", "accept")),
            on_changed_epoch=cast(Skip | None, _only(options, "onChangedEpoch", "skip")),
            is_named="sinkid" in options,
        )


def _only(options: Mapping[str, str], name: str, allowed: str) -> str | None:
    value = options.get(name.lower())
    if value not in (None, allowed):
        raise ConfigError(f"option {name}={value!r}: use {allowed!r}, or leave it out")
    return value


_NAMES = (
    *("sinkId", "txnId", "onNewQuery", "onJobChange", "onMissingEpochs", "onChangedEpoch"),
    "maxCommitBytes",
)
_FOR_STREAMS = "is for streams: a batch write has no query; use txnId"
_MISPLACED = {
    True: {"txnId": "is for df.write: a stream's checkpoint identifies its epochs"},
    False: dict.fromkeys(("onNewQuery", "onMissingEpochs", "onChangedEpoch"), _FOR_STREAMS),
}
_WRITER_PARAMETERS = ("l1", "shards", "checkpoint")
"""Parameters that only `MetricsWriter` has."""
_BATCH_PARAMETERS = ("replace", "overwrite")
"""Parameters of `MetricsWriter.write_batch`."""
OPTION_NAMES = frozenset(name.lower() for name in _NAMES)


def _check_names(options: Mapping[str, str], *, stream: bool) -> None:
    """Reject what would silently do nothing: blank ids, misplaced options, misspelt names."""
    known = {name.lower(): name for name in _NAMES}
    for key in ("sinkid", "txnid"):
        if key in options and not options[key].strip():
            raise ConfigError(f"option {known[key]} is blank: give a value, or leave it out")
    for name, why in _MISPLACED[stream].items():
        if name.lower() in options:
            raise ConfigError(f"option {name}={options[name.lower()]!r} {why}; leave it out")
    for name in _WRITER_PARAMETERS:
        if name in options:
            raise ConfigError(
                f"option {name}={options[name]!r} is for MetricsWriter({name}=...), not for the "
                "format"
            )
    for name in _BATCH_PARAMETERS:
        if name in options:
            raise ConfigError(
                f"option {name}={options[name]!r} is for MetricsWriter.write_batch({name}=...); "
                "give it there, and leave it out here"
            )
    for key in options:
        meant = get_close_matches(
            key.replace("_", "").replace("-", "").lower(), known, n=1, cutoff=0.85
        )
        if meant and key.lower() not in known:
            raise ConfigError(f"option {key!r} is not known: did you mean {known[meant[0]]}?")
