"""The graph as text and as a picture."""

import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue.aggregation import Aggregation, Count
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import (
    FunctionSink,
    GraphError,
    IterableSource,
    MetricsSink,
    Pipeline,
    StageConfig,
)
from batchqueue.pipeline.drawing import Activity, boxes_of, svg
from core_support.waits import eventually

BY_CITY = Aggregation(keys=["city"], measures={"orders": Count()})


def add_country(chunk: pa.RecordBatch) -> pa.RecordBatch:
    return chunk


def orders(rows: int = 3) -> IterableSource:
    return IterableSource(
        lambda: ({"city": "oslo", "cents": n} for n in range(rows)), name="orders"
    )


def nothing(chunks: list[pa.RecordBatch]) -> None:
    del chunks


def branched(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline("revenue")
    mapped = pipeline.source(orders()).filter(pc.field("cents") > 0).map(add_country, workers=4)
    totals = mapped.key_by("city", partitions=2).aggregate(BY_CITY)
    totals.to(MetricsSink(SqliteStore(tmp_path / "metrics.db"), lambda groups: []), name="totals")
    mapped.to(FunctionSink(nothing), name="board")
    return pipeline


def texts(picture: str) -> list[str]:
    root = ET.fromstring(picture)
    return [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]


def test_explanation_has_a_line_for_each_source_stage_and_sink(tmp_path: Path) -> None:
    lines = branched(tmp_path).explain().splitlines()
    assert [line.strip(" │├└─").split()[0] for line in lines] == [
        "orders",
        "filter",
        "map(add_country)",
        "key_by(city)",
        "totals",
        "board",
    ]
    assert "4 workers, in any order: map(add_country)" in lines[2]
    assert "sink, exactly once" in lines[4]
    assert "sink, at least once" in lines[5]


@pytest.mark.parametrize(
    ("keep_order", "keyed", "order"),
    [
        (False, False, "in any order"),
        (True, False, "in order per source partition"),
        (False, True, "in order per key"),
    ],
)
def test_explanation_says_in_which_order_a_sink_gets_rows(
    keep_order: bool, keyed: bool, order: str
) -> None:
    pipeline = Pipeline("revenue", stage=StageConfig(keep_order=keep_order))
    flow = pipeline.source(orders())
    flow = flow.key_by("city", partitions=3) if keyed else flow.map(add_country, workers=3)
    flow.map(add_country).to(FunctionSink(nothing))
    assert f"at least once, {order}: " in pipeline.explain().splitlines()[-1]


def test_order_that_is_lost_does_not_come_back(tmp_path: Path) -> None:
    lines = branched(tmp_path).explain().splitlines()
    assert all("in any order" in line for line in lines[2:])
    assert "in order" in lines[1]


def test_graph_without_a_sink_is_not_drawn(tmp_path: Path) -> None:
    pipeline = Pipeline("revenue")
    pipeline.source(orders()).map(add_country)
    with pytest.raises(GraphError, match=r"has no sink behind it; end the branch with \.to"):
        pipeline.explain()
    with pytest.raises(GraphError, match="has no sink behind it"):
        pipeline.picture(tmp_path / "flow.svg")
    assert not (tmp_path / "flow.svg").exists()


def test_branches_stand_below_each_other_and_boxes_do_not_overlap(tmp_path: Path) -> None:
    boxes = boxes_of(branched(tmp_path).compiled())
    places = {(box.column, box.row) for box in boxes.values()}
    assert len(places) == len(boxes)
    assert boxes["board"].row == boxes["totals"].row + 1
    assert boxes["map(add_country)"].row == 0.5
    assert [boxes[name].column for name in ("orders", "filter", "totals")] == [0, 1, 4]


def test_picture_names_each_box_and_escapes_what_xml_would_read(tmp_path: Path) -> None:
    pipeline = Pipeline('<revenue> & "more"')
    pipeline.source(orders(), name="a<b").to(FunctionSink(nothing), name="c & d")
    pipeline.picture(tmp_path / "flow.svg")
    found = texts((tmp_path / "flow.svg").read_text())
    assert {'<revenue> & "more"', "a<b", "c & d"} <= set(found)


def test_picture_shows_rates_depths_and_waits(tmp_path: Path) -> None:
    graph = branched(tmp_path).compiled()
    picture = svg(
        "revenue",
        graph,
        {
            "orders": Activity(1_234.0, note="paused: maintenance"),
            "board": Activity(20.0, 1_500, 2_000, 0.99, 0.93, is_root=True),
        },
    )
    found = texts(picture)
    for text in (
        "1,234 rows/s",
        "paused: maintenance",
        "20 rows/s, busy 99%",
        "1,500 of 2,000 rows",
        "waits 93%",
    ):
        assert text in found


def test_picture_of_a_run_names_what_holds_it_up(tmp_path: Path) -> None:
    released = threading.Event()
    pipeline = Pipeline("slow")
    hung = FunctionSink(lambda chunks: released.wait(), batch_rows=1)
    pipeline.source(orders(10_000)).map(add_country).to(hung, name="board")
    with pipeline.start() as run:
        try:
            eventually(lambda: run.stats().sources["orders"].held_up_by == "board")
            run.picture(tmp_path / "flow.svg")
        finally:
            released.set()
    found = texts((tmp_path / "flow.svg").read_text())
    assert "waits for board" in found
    assert "2,000 of 2,000 rows" in found
