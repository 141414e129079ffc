"""`batchqueue demo --pipeline`: the same graph here and on Spark, and its options."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batchqueue.cli import main
from batchqueue.cli.demo_pipeline.check import compare, stored_values
from batchqueue.cli.demo_pipeline.command import run
from batchqueue.cli.demo_pipeline.flow import DEPARTURES
from batchqueue.cli.demo_pipeline.options import PipelineOptions
from batchqueue.outputs import SqliteStore

ROWS = 6_000


def options(output: Path, stall_s: float = 0.3) -> PipelineOptions:
    return PipelineOptions(ROWS, 1, output, "unused", stall_s)


@pytest.mark.matrix(5, name="whole programs")
def test_slow_sink_holds_the_source_and_every_aggregate_equals_spark_sql(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options(tmp_path), spark=spark)
    printed = capsys.readouterr().out
    held = re.search(r"at most ([\d,]+) of ([\d,]+) waited for board", printed)
    assert held
    deepest, bound = (int(text.replace(",", "")) for text in held.groups())
    assert 500 <= deepest <= bound
    verdicts = re.findall(r"^(here|on Spark): ([\d,]+) aggregates: equal to", printed, re.MULTILINE)
    assert [where for where, _ in verdicts] == ["here", "on Spark"]
    assert verdicts[0][1] == verdicts[1][1]
    for name in ("flow.png", "graph.svg"):
        assert (tmp_path / "pipeline" / name).stat().st_size > 1_000
    for name in ("here-stall", "spark-stall"):
        began, ended = map(float, (tmp_path / "pipeline" / name).read_text().split())
        assert ended - began >= 0.3


def test_difference_is_found(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "metrics.sqlite")
    with store.transaction() as transaction:
        transaction.merge([DEPARTURES("UA", 0, 2)])
    stored = stored_values(store.path)
    comparison = compare(stored, {**stored, DEPARTURES: {("UA", 0): 3}})
    assert comparison.compared == 1
    [difference] = comparison.differences
    assert (difference.metric, difference.stored, difference.expected) == (DEPARTURES.name, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stall", "1"], "--stall applies only with --pipeline"),
        (["--pipeline", "--l1", "rust"], "--l1 rust does not apply with --pipeline"),
    ],
)
def test_option_that_does_not_apply_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline", "--groups"], "not allowed with argument"),
        (["--pipeline", "--stall", "-1"], "use a number of seconds"),
    ],
)
def test_invalid_arguments_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", *arguments])
    assert message in capsys.readouterr().err
