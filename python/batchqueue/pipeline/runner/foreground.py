"""`Pipeline.run`: a run that the calling thread waits for, until a signal."""

import time
from typing import TYPE_CHECKING

from batchqueue._signals import Flag, signals
from batchqueue.pipeline.runner.run import PipelineRun
from batchqueue.pipeline.runner.summary import RunSummary
from batchqueue.policies import check_finite

if TYPE_CHECKING:
    from batchqueue.pipeline.pipeline import Pipeline

_POLL_S = 0.05
"""Seconds between two checks of the flags, which a signal handler cannot notify of."""


def run_in_foreground(pipeline: "Pipeline", timeout: float | None, grace: float) -> RunSummary:
    """Run a pipeline until its end; see `Pipeline.run`."""
    if timeout is not None:
        check_finite("timeout", timeout, 0, ", or leave it out")
    check_finite("grace", grace, 0)
    # Before the signals are handled: a sink that hangs while it is opened can be interrupted.
    run = PipelineRun(pipeline)
    try:
        return _followed(run, pipeline.name, timeout, grace)
    except BaseException:
        # An interrupt that another handler raised, for instance: nothing may run behind the back of
        # the caller.
        if run.running:
            run.abandon()
        raise


def _followed(run: PipelineRun, name: str, timeout: float | None, grace: float) -> RunSummary:
    stop, give_up = Flag(), Flag()
    with signals(stop, give_up, f"stopping pipeline {name}"):
        end = None if timeout is None else time.monotonic() + timeout
        while not stop.is_set and (end is None or time.monotonic() < end):
            summary = run.wait(_POLL_S if end is None else min(_POLL_S, _left(end)))
            if summary is not None:
                return summary
        run.request_stop()
        end = time.monotonic() + grace
        while not give_up.is_set and time.monotonic() < end:
            summary = run.wait(min(_POLL_S, _left(end)))
            if summary is not None:
                return summary
        return run.stop(0)


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())
