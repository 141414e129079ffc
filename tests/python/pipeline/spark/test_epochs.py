"""Epochs of a source, planned without Spark: sizes, pauses, ends, and nothing twice or left out."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as checks
from hypothesis import strategies as st

from batchqueue.pipeline import Position
from batchqueue.pipeline.spark.control import DriverControl, EpochReport
from batchqueue.pipeline.spark.epoch_size import EpochGoal
from batchqueue.pipeline.spark.epochs import Epochs, EpochSettings, grouped
from spark_support.numbered_rows import NumberedRows


class Clock:
    """A clock that moves with each wait, and then calls `on_wait`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_wait: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.on_wait()


@pytest.fixture
def control(tmp_path: Path) -> DriverControl:
    (tmp_path / "control").mkdir()
    return DriverControl(tmp_path / "control")


def settings(**changes) -> EpochSettings:
    goal = changes.pop("goal", EpochGoal(first_rows=2000))
    values = {"query": "q", "goal": goal, "max_bytes": 1 << 30, "max_tasks": 8, "commits": True}
    return EpochSettings(**{**values, **changes})


def rows_read(tasks) -> list[int]:
    return [split.start["row"] for task in tasks for split in task]


def run_to_the_end(epochs: Epochs, everything: bool = False) -> list[int]:
    """Plan epochs as Spark does under availableNow; return the first row of every split."""
    position, seen = epochs.initial(), []
    while (end := epochs.next_end(position, everything=everything)) != position:
        seen += rows_read(epochs.tasks(position, end))
        position = end
    return seen


def test_epochs_follow_each_other_without_gaps_and_grow_toward_the_goal(control):
    clock = Clock()
    epochs = Epochs(NumberedRows(100_000), settings(), control, clock=clock, wait=clock.wait)
    position, sizes, seen = epochs.initial(), [], []
    while (end := epochs.next_end(position, everything=False)) != position:
        sizes.append(end["row"] - position["row"])
        seen += rows_read(epochs.tasks(position, end))
        clock.now += 0.1 + sizes[-1] / 10_000
        position = end
    assert seen == list(range(0, 100_000, 500))
    assert sizes[:4] == [2000, 4000, 8000, 16_000]
    assert all(size <= 20_000 for size in sizes)


def test_position_texts_do_not_depend_on_the_order_of_their_fields(control):
    class Unordered(NumberedRows):
        def initial(self) -> Position:
            return {"row": 0, "a": 1}

        def plan(self, start, limit):
            plan = super().plan(start, limit)
            return plan._replace(end={"row": plan.end["row"], "a": 1})

    epochs = Epochs(Unordered(0), settings(), control)
    start = epochs.initial()
    assert json.dumps(epochs.next_end(start, everything=False)) == json.dumps(start)
    assert list(start) == ["a", "row"]


def test_pause_returns_the_start_and_plans_nothing(control, tmp_path):
    clock, source = Clock(), NumberedRows(10_000, notes=tmp_path)
    epochs = Epochs(source, settings(), control, clock=clock, wait=clock.wait)
    start = epochs.initial()
    control.pause("the sink rests")
    assert epochs.next_end(start, everything=False) == start
    assert source.noted("plan") == []
    assert clock.now >= 0.1, "a poll each 10 ms would keep a core busy"
    control.resume()
    assert epochs.next_end(start, everything=False) == {"row": 2000}


@pytest.mark.parametrize("everything", [False, True])
def test_pause_where_returning_the_start_would_end_the_query_is_waited_for(control, everything):
    clock = Clock()
    epochs = Epochs(NumberedRows(100_000), settings(), control, clock=clock, wait=clock.wait)
    epochs.end_with_what_is_there()
    control.pause("the sink rests")
    clock.on_wait = lambda: control.resume() if clock.now > 60 else None
    assert run_to_the_end(epochs, everything) == list(range(0, 100_000, 500))
    assert clock.now > 60


def test_reader_stops_waiting_when_the_directory_is_gone(control, tmp_path):
    clock = Clock()
    epochs = Epochs(NumberedRows(1000), settings(), control, clock=clock, wait=clock.wait)
    epochs.end_with_what_is_there()
    control.pause("the sink rests")

    def remove() -> None:
        (tmp_path / "control" / "paused").unlink()
        (tmp_path / "control").rmdir()

    clock.on_wait = remove
    assert run_to_the_end(epochs) == [0, 500]


def test_source_without_end_ends_at_what_was_there_under_available_now(control, tmp_path):
    there = tmp_path / "there"
    there.write_text("5000")
    epochs = Epochs(NumberedRows(there), settings(), control)
    epochs.end_with_what_is_there()
    start = epochs.initial()
    first = epochs.next_end(start, everything=False)
    there.write_text("9000")
    ends = [first]
    while (end := epochs.next_end(ends[-1], everything=False)) != ends[-1]:
        ends.append(end)
    assert ends[-1] == {"row": 5000}
    assert len(ends) > 1


def test_source_that_is_written_faster_than_it_is_planned_has_an_end(control, tmp_path):
    there = tmp_path / "there"
    there.write_text("5000")

    class Written(NumberedRows):
        def plan(self, start, limit):
            plan = super().plan(start, limit)
            there.write_text(str(int(there.read_text()) + 1000))
            return plan

    epochs = Epochs(Written(there), settings(), control)
    assert epochs.next_end(epochs.initial(), everything=True)["row"] == 5000


def test_epoch_that_is_replayed_after_a_restart_has_the_same_splits(control, tmp_path):
    source = NumberedRows(10_000, notes=tmp_path)
    before = Epochs(source, settings(), control)
    start = before.initial()
    end = before.next_end(start, everything=False)
    planned = before.tasks(start, end)
    assert source.noted("between") == []
    assert Epochs(source, settings(), control).tasks(start, end) == planned
    assert len(source.noted("between")) == 1


def test_epoch_without_rows_has_no_tasks(control):
    assert Epochs(NumberedRows(10), settings(), control).tasks({"row": 5}, {"row": 5}) == []


def test_report_of_spark_is_used_instead_of_the_wait_for_a_trigger(control):
    goal = EpochGoal(first_rows=2000, trigger_s=60)
    clock = Clock()
    epochs = Epochs(NumberedRows(10**6), settings(goal=goal), control, clock=clock)
    start = epochs.initial()
    end = epochs.next_end(start, everything=False)
    epochs.tasks(start, end)
    clock.now += 60
    control.report("q", EpochReport(json.dumps(end), 2000, 96.0))
    control.report("another query", EpochReport(json.dumps(end), 2000, 1.0))
    assert epochs.next_end(end, everything=False)["row"] == end["row"] + 1000  # half as many


def test_report_of_an_earlier_epoch_is_not_mistaken_for_the_last(control):
    clock = Clock()
    epochs = Epochs(NumberedRows(10**6), settings(), control, clock=clock)
    start = epochs.initial()
    end = epochs.next_end(start, everything=False)
    epochs.tasks(start, end)
    clock.now += 0.5
    control.report("q", EpochReport(json.dumps(start), 2000, 96.0))
    assert epochs.next_end(end, everything=False)["row"] == end["row"] + 4000


def test_kept_trigger_without_a_report_does_not_shrink_epochs_to_nothing(control):
    clock = Clock()
    goal = EpochGoal(first_rows=2000, trigger_s=5)
    epochs = Epochs(NumberedRows(10**7), settings(goal=goal), control, clock=clock)
    position, sizes = epochs.initial(), []
    for _ in range(20):
        end = epochs.next_end(position, everything=False)
        sizes.append(end["row"] - position["row"])
        epochs.tasks(position, end)
        busy = 0.3 + sizes[-1] / 20_000
        clock.now += max(5, busy)
        position = end
    assert sizes == sorted(sizes)
    assert sizes[-1] > 10 * sizes[0]


def test_source_that_does_not_know_its_rows_is_read_split_by_split(control):
    epochs = Epochs(NumberedRows(5000, counts=False), settings(), control)
    epochs.end_with_what_is_there()
    assert run_to_the_end(epochs) == list(range(0, 5000, 500))


def test_splits_of_unknown_size_share_an_epoch_once_their_size_is_reported(control):
    epochs = Epochs(NumberedRows(50_000, counts=False), settings(), control)
    start = epochs.initial()
    first = epochs.next_end(start, everything=False)
    assert first == {"row": 500}
    epochs.tasks(start, first)
    control.report("q", EpochReport(json.dumps(first), 500, 0.1))
    second = epochs.next_end(first, everything=False)
    assert second == {"row": 500 + 2000}
    assert rows_read(epochs.tasks(first, second)) == [500, 1000, 1500, 2000]


def test_source_of_several_queries_does_not_learn_what_one_of_them_has_stored(control, tmp_path):
    source = NumberedRows(5000, notes=tmp_path)
    Epochs(source, settings(commits=False), control).commit({"row": 500})
    assert source.noted("commit") == []
    Epochs(source, settings(), control).commit({"row": 500})
    assert [call[2:] for call in source.noted("commit")] == [["500"]]


def test_empty_source_is_not_asked_each_time_that_spark_polls(control, tmp_path):
    clock, source = Clock(), NumberedRows(0, notes=tmp_path)
    epochs = Epochs(source, settings(), control, clock=clock, wait=clock.wait)
    start = epochs.initial()
    for _ in range(100):
        assert epochs.next_end(start, everything=False) == start
    assert clock.now > 9.5, "each plan but the first waits for a tenth of a second"


@checks(deadline=None)  # machines may be busy
@given(st.integers(1, 40), st.integers(1, 60))
def test_groups_keep_every_split_in_order(count, most):
    splits = list(NumberedRows(count * 300, 300).between({"row": 0}, {"row": count * 300}))
    groups = grouped(splits, most)
    assert list(itertools.chain(*groups)) == splits
    assert len(groups) == min(most, count)
    assert all(groups)
