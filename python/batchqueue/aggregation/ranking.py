"""`Ranking`: the n highest scores of single rows, as a metric that combines like any other."""

from bisect import insort
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

from batchqueue.aggregation.entities import Entity
from batchqueue.aggregation.metrics import Metrics, Row


class RankedEntry(NamedTuple):
    """One row of a ranking."""

    score: int | float
    id: str
    label: str


class Ranking(Metrics):
    """The `limit` entries with the largest scores; ties are broken by id, then label, ascending.

    The top n of single rows can be merged from partial rankings. The top n of *sums* cannot: rank
    them after L2.

    Attributes:
        limit: Entries to keep, 10 by default; set it with `metric_type(name, Ranking, limit=5)`.
    """

    __slots__ = ("_entries",)
    table = "ranking_metrics"
    columns: ClassVar = {"score": float, "id": str, "label": str}
    multi_row = True
    limit: ClassVar[int] = 10

    def __init__(
        self, entity: Entity, time_bucket: int, score: int | float | None, id: str, label: str = ""
    ) -> None:
        """Start a ranking with a single row.

        Args:
            entity: Group of the ranking.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
            score: What the row is ranked by; None: not ranked, as in SQL with `IS NOT NULL`.
            id: Names the row; it breaks ties.
            label: Text to show beside the row; empty by default.

        Raises:
            ValueError: The score is NaN, which has no rank.
        """
        if score != score:  # noqa: PLR0124
            raise ValueError(
                f"the score of {id!r} in {self.name} is NaN, which has no rank; "
                "give a number or None"
            )
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        # Negated, because `insort` sorts ascending.
        self._entries = [] if score is None else [(-score, id, label)]

    @property
    def entries(self) -> list[RankedEntry]:
        """The rows, best first."""
        return [RankedEntry(-order, id, label) for order, id, label in self._entries]

    def combine(self, other: Self) -> None:
        """Take the rows of `other` that rank high enough."""
        entries, limit = self._entries, self.limit
        for entry in other._entries:
            if len(entries) >= limit:
                if entry >= entries[-1]:
                    return  # the remaining entries of `other` rank even lower
                entries.pop()
            insort(entries, entry)

    def to_rows(self) -> list[Row]:
        """Return a row of value columns per entry, best first."""
        return [tuple(entry) for entry in self.entries]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        ranking = cls(entity, time_bucket, None, "")
        ranking._entries = [(-score, id, label) for score, id, label in rows]
        return ranking
