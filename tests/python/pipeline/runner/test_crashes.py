"""A process that ends at any step of a cut loses nothing and counts nothing twice."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchqueue.pipeline import Pipeline, StageFailedError
from batchqueue.pipeline.runner import PipelineRun
from core_support.waits import HANG_S
from pipeline_support import crashing
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Ledger

SUPPORT = Path(crashing.__file__).parents[1]


class Crash(Exception):
    pass


def ended(directory, *crash):
    """Runs the pipeline in a process; returns its return code."""
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pipeline_support.crashing", str(directory), *crash],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode


def crashed(flow, step, cut):
    """Runs a pipeline that fails behind a step of its n-th cut; returns whether it came to that."""
    seen = []

    def on_step(name):
        if name == step:
            seen.append(name)
            if len(seen) == cut:
                raise Crash

    with crashing.each_step(on_step):
        try:
            PipelineRun(flow.settings).wait()
        except StageFailedError as error:
            if not isinstance(error.__cause__, Crash):
                raise
            return True
    return False


@pytest.mark.matrix(4, name="steps of a cut")
@pytest.mark.parametrize("step", crashing.STEPS)
def test_killed_behind_a_step_and_started_again(step, tmp_path):
    assert ended(tmp_path, step, "1") == -signal.SIGKILL
    ended(tmp_path, step, "2")  # unless what was left made a single cut
    assert ended(tmp_path) == 0
    crashing.check(tmp_path)


@pytest.mark.parametrize("step", crashing.STEPS)
def test_failed_behind_a_step_and_started_again(step, tmp_path):
    assert crashed(crashing.pipeline(tmp_path), step, 1)
    crashed(crashing.pipeline(tmp_path), step, 2)
    crashed(crashing.pipeline(tmp_path), step, 1)
    assert PipelineRun(crashing.pipeline(tmp_path).settings).wait().complete
    crashing.check(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_failed_again_and_again_at_random_steps(seed, tmp_path):
    rng = random.Random(seed)
    for _ in range(8):
        flow = crashing.pipeline(tmp_path, seconds_per_write=0.002)
        crashed(flow, rng.choice(crashing.STEPS), rng.randint(1, 2))
    assert PipelineRun(crashing.pipeline(tmp_path).settings).wait().complete
    crashing.check(tmp_path)


def two_sinks(tmp_path, source, checkpoint):
    state = str(tmp_path / "state") if checkpoint else None
    flow = Pipeline("p", checkpoint=state, cut_interval_s=0.1)
    numbers = flow.source(source)
    for name in ("left", "right"):
        numbers.to(Ledger(tmp_path / f"{name}.db"), name=name)
    return flow


@pytest.mark.parametrize("checkpoint", [True, False])
def test_two_transactional_sinks_at_different_cuts(checkpoint, tmp_path):
    left, right = Ledger(tmp_path / "left.db"), Ledger(tmp_path / "right.db")
    source = Numbers(1_000)
    assert crashed(two_sinks(tmp_path, source, checkpoint), "commit left", 1)
    assert (left.cuts, right.cuts) == ([1], [])
    behind = left.last_cut()[1]["numbers"]["split"]
    source.rows, source.reads = 3_000, []  # more input must not get into the cut that `left` has
    steps = []
    with crashing.each_step(steps.append):
        PipelineRun(two_sinks(tmp_path, source, checkpoint).settings).wait()
    assert left.last_cut() == right.last_cut()
    assert left.numbers == right.numbers == list(range(3_000))
    assert [step for step in steps if step.startswith("commit")][:1] == ["commit right"]
    assert right.numbers[: behind * 100] == list(range(behind * 100))


def test_a_replay_that_fails_can_be_repeated(tmp_path):
    source = Numbers(1_000)
    assert crashed(two_sinks(tmp_path, source, True), "commit left", 1)
    for step in ("hold", "positions", "store"):
        assert crashed(two_sinks(tmp_path, source, True), step, 1)
    PipelineRun(two_sinks(tmp_path, source, True).settings).wait()
    for name in ("left", "right"):
        assert Ledger(tmp_path / f"{name}.db").numbers == list(range(1_000))
