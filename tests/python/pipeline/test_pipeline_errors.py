"""Errors of pipelines: one base, pickled with all they say; positions are checked."""

import copy
import pickle

import pytest

from batchqueue import BatchQueueError, ConfigError
from batchqueue.pipeline import contract, pipeline
from batchqueue.pipeline.contract import (
    MAX_POSITION_BYTES,
    GraphError,
    OperatorError,
    PipelineError,
    PositionError,
    SourcePickleError,
    StageFailedError,
    checked_position,
)

ALL = [
    error
    for error in vars(contract).values()
    if isinstance(error, type) and issubclass(error, PipelineError)
]


class TestAllErrors:
    def test_are_found(self):
        assert {StageFailedError, OperatorError, GraphError} < set(ALL)

    @pytest.mark.parametrize("error", ALL)
    def test_are_pipeline_errors(self, error):
        assert issubclass(error, PipelineError)
        assert issubclass(error, BatchQueueError)
        assert issubclass(error, RuntimeError)

    @pytest.mark.parametrize("error", ALL)
    @pytest.mark.parametrize("copied", [copy.copy, lambda it: pickle.loads(pickle.dumps(it))])
    def test_survive_the_way_from_another_process(self, error, copied):
        found = copied(error("value, limit, remedy"))
        assert type(found) is error
        assert str(found) == "value, limit, remedy"

    @pytest.mark.parametrize("error", ALL)
    def test_say_what_they_are_for(self, error):
        assert error.__doc__
        assert error.__name__.endswith("Error")

    def test_wrong_values_are_value_errors_and_wrong_types_type_errors(self):
        assert issubclass(GraphError, ValueError)
        assert issubclass(PositionError, ValueError)
        assert issubclass(SourcePickleError, TypeError)


class TestDetails:
    def test_of_a_failed_stage_are_pickled(self):
        error = pickle.loads(pickle.dumps(StageFailedError("boom", "enrich", "part-1: {'at': 5}")))
        assert (str(error), error.stage, error.position) == ("boom", "enrich", "part-1: {'at': 5}")
        assert StageFailedError("boom").position is None

    def test_of_an_operator_are_pickled(self):
        error = pickle.loads(pickle.dumps(OperatorError("boom", "map(enrich)")))
        assert (str(error), error.operator) == ("boom", "map(enrich)")

    def test_of_a_subclass_are_pickled_as_that(self):
        assert type(pickle.loads(pickle.dumps(Special("boom", "s", "p")))) is Special

    def test_the_cause_of_an_operator_is_its_error_or_itself(self):
        alone = OperatorError("boom")
        assert alone.cause is alone
        cause = KeyError("city")
        alone.__cause__ = cause
        assert alone.cause is cause


class Special(StageFailedError):
    """A class that pickle can find."""


class TestPositions:
    def test_equal_ones_give_equal_texts(self):
        assert checked_position({"b": [1, None], "a": {"c": 0.5}}, "s") == checked_position(
            {"a": {"c": 0.5}, "b": [1, None]}, "s"
        )
        assert checked_position({}, "s") == "{}"

    @pytest.mark.parametrize("position", [None, [], "5", 5, ("a", 1)])
    def test_must_be_a_dict(self, position):
        with pytest.raises(PositionError) as raised:
            checked_position(position, "orders")
        assert str(raised.value) == (
            f"source 'orders': the position is {position!r}; its source must return a dict of str, "
            "int, float, bool, None, lists and dicts"
        )

    @pytest.mark.parametrize(
        "position",
        [{"at": b"5"}, {"at": {1}}, {"at": float("nan")}, {("a",): 1}, {"at": object}],
    )
    def test_must_be_json(self, position):
        with pytest.raises(PositionError, match=r"^source 'orders': the position .* is not JSON"):
            checked_position(position, "orders")

    @pytest.mark.parametrize("position", [{"at": (1, 2)}, {"at": [{1: "a"}]}, {1: "a"}])
    def test_must_come_back_from_a_checkpoint_as_it_is(self, position):
        with pytest.raises(PositionError, match="comes back from a checkpoint as"):
            checked_position(position, "orders")

    def test_must_be_smaller_than_64_kb(self):
        largest = {"at": "x" * (MAX_POSITION_BYTES - 1 - len('{"at": ""}'))}
        assert len(checked_position(largest, "s")) == MAX_POSITION_BYTES - 1
        with pytest.raises(PositionError) as raised:
            checked_position({"at": largest["at"] + "x"}, "orders")
        assert str(raised.value) == (
            "source 'orders': a position has 65536 bytes and the limit is 65536; keep the list of "
            "pieces in the source, and in the position only the place in it"
        )

    def test_of_one_that_contains_itself(self):
        position = {}
        position["at"] = position
        with pytest.raises(PositionError, match="is not JSON"):
            checked_position(position, "orders")


def test_settings_raise_the_error_of_the_package():
    with pytest.raises(ConfigError):
        pipeline.Pipeline("")
