"""`RunSummary`: what a run has done."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSummary:
    """What a run has done.

    Attributes:
        rows_read: The rows that sources handed to the first stages, also those after the last cut.
        rows_written: The rows that sinks took; with several sinks, of all together.
        cuts: The cuts of this run.
        seconds: How long it took.
        complete: Whether all that was read is part of a cut. If False, time ran out; what came
            after the last cut is read again by the next run.
        waited_for: The stage or source that was waited for when time ran out; None if none.
    """

    rows_read: int
    rows_written: int
    cuts: int
    seconds: float
    complete: bool
    waited_for: str | None = None
