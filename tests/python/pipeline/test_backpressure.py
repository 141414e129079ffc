"""When a stage is under pressure, what it signals, and what sources do about it."""

import pytest

from batchqueue import ConfigError
from batchqueue.pipeline import BackpressureState, Limit, Plan, Split
from batchqueue.pipeline.runner.stage_flow import FlowStage
from pipeline_support.flow_support import WALL_S, CheckedFlow, chain, reading


@pytest.fixture
def flow():
    """A source that obeys the signal, and two stages."""
    return CheckedFlow(chain("orders", "totals", "store"), gate="both")


class TestDetection:
    def test_active_when_lag_above(self, flow):
        assert flow.lags("totals", 5_001) == [True]

    def test_active_when_queue_above(self, flow):
        controller = flow.check(totals=reading(queue=1_001))
        assert controller.metrics("totals").backpressure_active

    def test_released_below_0_7(self, flow):
        assert flow.lags("totals", 6_000, 3_500, 3_499) == [True, True, False]

    def test_inactive_below(self, flow):
        assert flow.lags("totals", 0, 4_999, 5_000) == [False, False, False]
        controller = flow.check(totals=reading(queue=1_000))
        assert not controller.metrics("totals").backpressure_active

    def test_state_stays_over_checks(self, flow):
        assert flow.lags("totals", *[6_000] * 3, *[4_000] * 3) == [True] * 6
        assert flow.lags("totals", 100, *[4_000] * 3) == [False] * 4

    def test_queue_alone_keeps_it_active(self, flow):
        def is_active(lag, queue):
            controller = flow.check(totals=reading(lag, queue))
            return controller.metrics("totals").backpressure_active

        assert is_active(6_000, 700)
        assert is_active(0, 700)
        assert not is_active(0, 699)

    def test_unknown_reading_neither_activates_nor_releases(self, flow):
        unknown = [reading(None, None), reading(None, 0), reading(0, None), reading(-1, -1)]

        def activity():
            for each in unknown:
                metrics = flow.check(totals=each).metrics("totals")
                yield metrics.backpressure_active, metrics.slow_down_factor

        assert list(activity()) == [(False, 1.0)] * 4
        flow.check(totals=6_000)
        assert [active for active, _ in activity()] == [True] * 4
        assert [factor for _, factor in activity()] == [0.0] * 4
        assert not flow.check(totals=0).metrics("totals").backpressure_active

    def test_unknown_reading_is_shown_as_none(self, flow):
        flow.check(totals=reading(4_000, 500))
        metrics = flow.check(totals=reading(None, None)).metrics("totals")
        assert (metrics.lag, metrics.queue_rows) == (None, None)
        assert not metrics.is_missing

    def test_lag_of_a_source_is_not_a_pressure(self):
        """All files that are still to be read would pause the source that reads them."""
        flow = CheckedFlow(chain("orders", "totals"), gate="signal")
        controller = flow.check(orders=10_000_000, totals=0)
        assert controller.metrics("orders").lag == 10_000_000
        assert controller.signal("orders") is None
        assert controller.decision("orders").may_plan

    @pytest.mark.parametrize("gate", ["credit", "signal", "both"])
    def test_pressure_of_a_source_does_not_pause_it(self, gate):
        flow = CheckedFlow(chain("orders", "totals"), gate=gate)
        controller = flow.check(orders=reading(0, 5_000), totals=0)
        assert controller.signal("orders").cause == "orders"
        assert controller.decision("orders").may_plan
        assert not controller.check_backpressure_before_produce("orders")

    def test_disabled(self):
        flow = CheckedFlow(chain("orders", "totals"), gate="both", enabled=False)
        controller = flow.check(totals=reading(10**9, 10**9))
        assert controller.signal("totals") is None
        assert not controller.check_backpressure_before_produce("orders")
        metrics = controller.metrics("totals")
        assert (metrics.lag, metrics.backpressure_active) == (10**9, False)
        assert metrics.backpressure_state.state is BackpressureState.NORMAL


class TestSignal:
    def test_signal_none_when_inactive(self, flow):
        assert flow.controller.signal("totals") is None
        assert flow.check(totals=5_000).signal("totals") is None

    def test_signal_factor(self, flow):
        factors = [
            flow.check(totals=lag).signal("totals").slow_down_factor
            for lag in (6_000, 4_500, 4_000, 3_600)
        ]
        assert factors == [0.0, 0.3, 0.6, 0.9]
        assert flow.check(totals=3_400).signal("totals") is None

    @pytest.mark.parametrize(
        ("before", "now", "reason"),
        [
            (0, reading(6_000), "lag 6000 > 5000"),
            (0, reading(0, 1_200), "queue 1200 > 1000"),
            (0, reading(6_000, 1_200), "lag 6000 > 5000, queue 1200 > 1000"),
            (0, reading(6_000, busy_ratio=0.984), "lag 6000 > 5000, workers 98 % busy"),
            (6_000, reading(4_500, 10), "lag 4500 >= 3500"),
            (6_000, reading(0, 800), "queue 800 >= 700"),
            (6_000, reading(None, 10), "lag unknown"),
            (6_000, reading(0, None), "queue unknown"),
            (6_000, reading(None, 1_200), "queue 1200 > 1000, lag unknown"),
        ],
    )
    def test_signal_reason(self, flow, before, now, reason):
        flow.check(totals=before)
        assert flow.check(totals=now).signal("totals").reason == reason

    def test_reason_of_an_early_warning(self, flow):
        effective = flow.check(totals=4_500).effective("totals")
        assert effective.reason == "lag 4500 > 4000, early warning"

    def test_signal_timestamp(self, flow):
        """The time of the check, on the clock of the calendar."""
        flow.check(totals=6_000)
        flow.check(totals=6_000)
        flow.clock.now_s += 1
        assert flow.controller.signal("totals").timestamp == WALL_S + 1.0

    def test_factor_table(self, flow):
        """The factor is always there, also while backpressure is inactive."""
        lags = (0, 3_500, 3_501, 3_600, 4_000, 4_500, 4_850, 4_999, 5_000)
        factors = [flow.check(totals=lag).effective("totals").slow_down_factor for lag in lags]
        assert factors == [1.0, 1.0, 0.9, 0.9, 0.6, 0.3, 0.1, 0.0, 0.0]

    def test_early_warning_0_8(self, flow):
        def warns(**now):
            return flow.check(**now).metrics("totals").early_warning

        assert [warns(totals=lag) for lag in (4_000, 4_001)] == [False, True]
        assert [warns(totals=reading(0, queue)) for queue in (800, 801)] == [False, True]
        assert flow.controller.signal("totals") is None


class TestSourceRateControl:
    def test_check_true_when_downstream_active(self, flow):
        assert flow.check(totals=6_000).check_backpressure_before_produce("orders")
        assert flow.check(totals=3_600).check_backpressure_before_produce("orders")

    def test_check_true_on_early_warning(self, flow):
        controller = flow.check(totals=reading(0, 801))
        assert controller.check_backpressure_before_produce("orders")

    def test_check_false_when_none(self, flow):
        assert not flow.controller.check_backpressure_before_produce("orders")
        assert not flow.check(totals=0, store=0).check_backpressure_before_produce("orders")

    def test_check_false_without_downstream(self):
        flow = CheckedFlow([FlowStage(name="orders", is_source=True)])
        assert not flow.check(orders=10**6).check_backpressure_before_produce("orders")

    @pytest.mark.parametrize("slow", ["a", "b", "c"])
    def test_check_asks_all_downstream(self, slow):
        """Of a source with two branches, one of which has two stages."""
        flow = CheckedFlow(
            [
                FlowStage(name="orders", downstream=("a", "c"), is_source=True),
                FlowStage(name="a", downstream=("b",)),
                FlowStage(name="b"),
                FlowStage(name="c"),
                FlowStage(name="others", downstream=("d",), is_source=True),
                FlowStage(name="d"),
            ]
        )
        lags = dict.fromkeys("abcd", 0) | {slow: 6_000}
        controller = flow.check(**lags)
        assert controller.check_backpressure_before_produce("orders")
        assert controller.signal("orders").cause == slow
        assert not controller.check_backpressure_before_produce("others")

    def test_check_is_the_same_for_all_gates(self):
        """A producer that the pipeline does not run has no other way to know."""
        for gate in ("credit", "signal", "both"):
            flow = CheckedFlow(chain("orders", "totals"), gate=gate)
            assert flow.check(totals=6_000).check_backpressure_before_produce("orders")

    def test_missing_downstream_is_tolerated(self, flow):
        """A stage that says nothing counts as 1.0 and is named, and others are heard."""
        controller = flow.check(totals=0)
        assert not controller.check_backpressure_before_produce("orders")
        assert controller.missing == ("orders", "store")
        assert controller.effective("orders").missing == {"orders", "store"}
        assert flow.check(totals=6_000).check_backpressure_before_produce("orders")

    def test_downstream_that_is_not_in_the_graph_is_tolerated(self):
        flow = CheckedFlow([FlowStage(name="orders", downstream=("gone",), is_source=True)])
        controller = flow.check(orders=0)
        assert controller.missing == ("gone",)
        assert controller.decision("orders").may_plan

    def test_stale_downstream_counts_as_1_0(self, flow):
        flow.check(totals=6_000, store=0)
        for _ in range(3):
            assert not flow.check(store=0).decision("orders").may_plan
        controller = flow.check(store=0)
        assert controller.decision("orders").may_plan
        assert controller.missing == ("orders", "totals")
        assert controller.metrics("totals").is_missing
        assert not flow.check(totals=6_000).decision("orders").may_plan

    def test_nothing_is_held_back_when_the_checks_cease(self, flow):
        controller = flow.check(orders=0, totals=6_000, store=0)
        flow.clock.now_s += 1.5
        assert not controller.decision("orders").may_plan
        flow.clock.now_s += 0.001
        assert controller.decision("orders").may_plan
        assert controller.signal("totals") is None
        assert not controller.check_backpressure_before_produce("orders")
        assert controller.missing == ("orders", "store", "totals")

    def test_produce_splits_pauses(self, flow):
        source, loop = numbered_source(flow)
        flow.check(totals=0)
        assert loop(3) == 3
        flow.check(totals=6_000)
        assert loop(5) == 0
        assert source.plans == 3
        assert flow.controller.decision("orders").cause == "totals"

    def test_production_resumes(self, flow):
        """Whatever was paused, each row comes once and in order."""
        source, loop = numbered_source(flow)
        for lag in [0, 6_000, 4_500, 3_600, 3_400, 4_001, 0] * 40:
            flow.check(totals=lag)
            loop(2)
        flow.check(totals=0)
        while loop(1):
            pass
        assert source.rows == list(range(10_000))

    def test_limit_shrinks_with_the_factor(self, flow):
        source, loop = numbered_source(flow)
        for lag, rows in ((0, 100), (3_600, 90), (4_000, 60), (0, 100)):
            flow.check(totals=lag)
            before = len(source.rows)
            assert loop(1) == 1
            assert len(source.rows) - before == rows

    def test_unknown_source_is_named(self, flow):
        with pytest.raises(ConfigError, match=r"no source 'totals'; the sources are \['orders'\]"):
            flow.controller.decision("totals")
        for ask in (flow.controller.signal, flow.controller.check_backpressure_before_produce):
            with pytest.raises(ConfigError, match=r"no stage 'x'; the stages are \['orders', 'to"):
                ask("x")

    def test_reading_of_an_unknown_stage_changes_nothing(self, flow):
        flow.check(totals=6_000)
        with pytest.raises(ConfigError, match="there is no stage 'x'"):
            flow.check(totals=0, x=0)
        assert flow.controller.signal("totals").slow_down_factor == 0.0


class TestPropagation:
    def test_signal_reaches_upstream(self, flow):
        signal = flow.check(orders=0, totals=6_000, store=0).signal("orders")
        assert signal == ("orders", 0.0, "lag 6000 > 5000", WALL_S + 0.5, "totals")
        assert flow.controller.signal("store") is None

    def test_a_b_c(self):
        """A is informed of C at the same check, while B between them has nothing to do."""
        flow = CheckedFlow(chain("a", "b", "c"))
        controller = flow.check(a=0, b=0, c=6_000)
        assert [controller.signal(each).cause for each in "abc"] == ["c", "c", "c"]
        assert not controller.metrics("b").backpressure_active
        controller = flow.check(a=0, b=0, c=0)
        assert [controller.signal(each) for each in "abc"] == [None] * 3

    def test_effective_is_the_least_of_all(self):
        flow = CheckedFlow(chain("a", "b", "c"))
        controller = flow.check(b=4_500, c=4_000)
        assert [controller.effective(each).slow_down_factor for each in "abc"] == [0.3, 0.3, 0.6]
        assert [controller.effective(each).cause for each in "abc"] == ["b", "b", "c"]

    def test_last_of_equally_slow_stages_is_the_cause(self):
        """B is full because C is slow."""
        flow = CheckedFlow(chain("a", "b", "c"))
        assert flow.check(b=9_000, c=6_000).signal("a").cause == "c"

    def test_signal_names_a_stage_where_backpressure_is_active(self):
        """C warns and is slower, but only at B has backpressure been activated."""
        flow = CheckedFlow(chain("a", "b", "c"))
        flow.check(b=6_000, c=0)
        signal = flow.check(b=3_600, c=4_500).signal("a")
        assert (signal.cause, signal.reason) == ("b", "lag 3600 >= 3500")
        assert signal.slow_down_factor == 0.3

    def test_missing_upstream_is_tolerated(self, flow):
        """Nothing is known of the source, nor of the stage before the slow one."""
        controller = flow.check(store=6_000)
        assert [controller.signal(each).cause for each in ("orders", "totals", "store")] == [
            "store"
        ] * 3
        assert controller.missing == ("orders", "totals")


class TestStates:
    def test_states_follow_the_table(self, flow):
        state = BackpressureState

        def path(now):
            flow.check(totals=now)
            return flow.controller._flows["totals"].machine.path

        down = (state.CHECKING, state.BACKPRESSURE_ACTIVE, state.PROPAGATING, state.SOURCE_PAUSED)
        assert path(0) == (state.NORMAL, state.CHECKING, state.NORMAL)
        assert path(6_000) == (state.NORMAL, *down)
        assert path(6_000) == (state.SOURCE_PAUSED, state.MONITORING, *down)
        assert path(3_600) == (
            state.SOURCE_PAUSED,
            state.MONITORING,
            state.CHECKING,
            state.MONITORING,
        )
        assert path(4_500) == (state.MONITORING, state.CHECKING, state.MONITORING)
        assert path(3_400) == (state.MONITORING, state.CHECKING, state.NORMAL)


class NumberedSource:
    """10,000 numbered rows, and what was planned and read of them."""

    def __init__(self):
        self.plans, self.rows = 0, []

    def plan(self, start, limit):
        self.plans += 1
        first = start["row"]
        end = min(first + min(limit.rows, 100), 10_000)
        if first == end:
            return Plan((), start)
        place = {"row": first}, {"row": end}
        return Plan((Split("0", *place, end - first, None, range(first, end)),), {"row": end})

    def read(self, split):
        self.rows += split.what


def numbered_source(flow):
    """Returns a source, and a loop that plans as a runner does: not at all while paused."""
    source, position = NumberedSource(), {"row": 0}

    def loop(turns):
        nonlocal position
        read = 0
        for _ in range(turns):
            decision = flow.controller.decision("orders")
            if not decision.may_plan:
                continue
            plan = source.plan(position, decision.limited(Limit(rows=100, bytes=1 << 20)))
            for split in plan.splits:
                source.read(split)
                read += 1
            position = plan.end
        return read

    return source, loop
