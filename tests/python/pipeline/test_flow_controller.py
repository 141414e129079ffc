"""`FlowController`: graphs that are refused, graphs of any size, and answers to other threads."""

import threading

import pytest

from batchqueue.pipeline import GraphError
from batchqueue.pipeline.runner.controller import FlowController
from batchqueue.pipeline.runner.pressure import PartitionProgress
from batchqueue.pipeline.runner.stage_flow import FlowStage
from core_support.waits import WAIT_S, eventually
from pipeline_support.flow_support import CheckedFlow, chain, reading


def test_circle_is_refused_with_its_stages():
    stages = [FlowStage(name="a", downstream=("b",)), FlowStage(name="b", downstream=("a",))]
    with pytest.raises(GraphError, match=r"the stages '(a|b)' -> '(a|b)' -> '(a|b)' make a circle"):
        FlowController(stages)


def test_two_stages_of_one_name_are_refused():
    with pytest.raises(GraphError, match="two stages are named 'a'; give each a different name"):
        FlowController([FlowStage(name="a"), FlowStage(name="a")])


def test_controller_without_stages_has_nothing_to_do():
    flow = CheckedFlow([])
    assert flow.check().missing == ()


def test_chain_of_a_thousand_stages():
    names = [f"s{number}" for number in range(1_000)]
    flow = CheckedFlow(chain(*names), gate="both")
    controller = flow.check(s999=6_000)
    assert controller.signal("s0").cause == "s999"
    assert not controller.decision("s0").may_plan
    assert len(controller.missing) == 999


def test_stage_of_ten_thousand_partitions():
    flow = CheckedFlow(chain("orders", "totals"))
    partitions = {
        number: PartitionProgress(latest=10 if number else 10_000, rate_per_s=1.0)
        for number in range(10_000)
    }
    flow.check(totals=reading(6_000, partitions=partitions))
    metrics = flow.controller.metrics("totals")
    assert (len(metrics.partitions), metrics.max_lag) == (10_000, 10_000)


def test_two_sources_of_one_stage_are_both_paused():
    flow = CheckedFlow(
        [
            FlowStage(name=name, downstream=("totals",), is_source=True)
            for name in ("orders", "returns")
        ]
        + [FlowStage(name="totals")],
        gate="both",
    )
    controller = flow.check(totals=6_000)
    assert [controller.decision(each).may_plan for each in ("orders", "returns")] == [False] * 2


def test_answers_fit_together_while_another_thread_checks():
    flow = CheckedFlow(chain("orders", "totals"), gate="both")
    controller, wrong, answers = flow.controller, [], []
    ended = threading.Event()

    def ask():
        seen = set()
        while not ended.is_set():
            decision, signal = controller.decision("orders"), controller.signal("orders")
            if decision.may_plan != (decision.cause is None):
                wrong.append(decision)
            if signal is not None and signal[:2] + signal[4:] != ("orders", 0.0, "totals"):
                wrong.append(signal)
            metrics = controller.metrics("totals")
            settled = metrics.backpressure_state
            if settled.state.value not in ("normal", "source_paused"):
                wrong.append(settled)
            if len(seen) < 2:
                seen.add(decision.may_plan)
                answers.extend(seen if len(seen) == 2 else ())

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()

    def toggles():
        for _ in range(50):
            flow.check(totals=6_000)
            flow.check(totals=0)
        return len(answers) == 8

    eventually(toggles, "all threads have seen the source paused and running")
    ended.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    state = controller.metrics("totals").backpressure_state
    assert state.count == flow.clock.now_s / 0.5 / 2 + 1
