"""How queues, statistics and configs look: short, escaped, and with all that matters."""

import asyncio
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueueConfig,
    BufferStrategy,
    DrainBalancer,
    PartitionPolicy,
    ThreadPolicy,
)
from batchqueue.base.words import duration
from batchqueue.queues.stats import MOST_ROWS, picture
from core_support.handlers import Recorder
from core_support.queues import config
from core_support.waits import WAIT_S

SVG = "{http://www.w3.org/2000/svg}"


def raise_error(batch):
    raise ValueError("bad")


def rows_of(html):
    """The rows of all tables, as lists of texts; fails if a tag is left open."""
    rows, open_tags = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            open_tags.append(tag)
            if tag == "tr":
                rows.append([])
            elif tag in ("td", "th"):
                rows[-1].append("")

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

        def handle_data(self, data):
            if open_tags[-1:] in (["td"], ["th"]):
                rows[-1][-1] += data

    Reader().feed(html)
    assert not open_tags
    return rows


def test_statistics_are_one_line_with_what_is_not_zero(make_queue):
    queue = make_queue("orders", error_handler=lambda batch, error: None)
    queue.add_handler(int, Recorder())
    queue.add_handler(str, raise_error)
    queue.produce_many([*range(1_200), "a", "b"])
    assert queue.flush(WAIT_S)
    text = repr(queue.stats())
    assert text.startswith("<BatchQueueStats 'orders': 1_202 produced, 1_200 consumed, 2 failed, ")
    assert "unhandled" not in text
    assert len(text) < 160
    assert "\n" not in text


def test_a_config_shows_only_what_is_not_the_default_and_can_be_read_back():
    given = BatchQueueConfig(
        threads=ThreadPolicy.fixed(2),
        partitions=PartitionPolicy.adaptive(3),
        strategy=BufferStrategy.BLOCKING,
        buffer_size=50,
    )
    text = repr(given)
    assert "buffer_size=50" in text
    assert "strategy" not in text
    assert eval(text) == given


def test_every_row_of_a_notebook_is_escaped_and_fits_a_screen(make_queue):
    queue = make_queue("<b>&'")
    for number in range(MOST_ROWS + 5):
        queue.add_handler(f"<tag {number}>" + "x" * 500, Recorder())
    for shown in (queue, queue.stats(), queue.config):
        html = shown._repr_html_()
        assert "<b>" not in html
        assert "<tag" not in html
        rows = rows_of(html)
        assert len(rows) <= 2 * MOST_ROWS + 2
        assert all(len(cell) <= 100 for row in rows for cell in row)
    rows = rows_of(queue._repr_html_())
    assert rows[-1] == ["5 more"]


def test_a_notebook_shows_the_slowest_handlers_first(make_queue):
    queue = make_queue()
    queue.add_handler(int, lambda batch: sum(range(200_000)))
    queue.add_handler(str, Recorder())
    queue.produce_many(["a", 1])
    assert queue.flush(WAIT_S)
    rows = rows_of(queue.stats()._repr_html_())
    types = [row[0] for row in rows if row[0] in ("int", "str")]
    assert types == ["int", "str"]


def test_a_picture_shows_each_partition_at_its_first_and_its_present_thread(make_queue, tmp_path):
    balancer = DrainBalancer.custom(lambda loads, owners, threads: [1, 1, 1, 1])
    queue = make_queue(
        threads=2, partitions=4, balancer=balancer, rebalance_interval_ms=0, buffer_size=100
    )
    kinds = [type(name, (), {"__module__": "shop"}) for name in ("A", "B", "C", "D")]
    for kind in kinds:
        queue.add_handler(kind, lambda batch: sum(range(50_000)))
    queue.produce_many([kind() for kind in kinds])
    assert queue.flush(WAIT_S)
    assert queue.rebalance() == 2
    queue.picture(tmp_path / "load.svg")
    root = ET.parse(tmp_path / "load.svg").getroot()
    tips = {}
    for rect in root.iter(f"{SVG}rect"):
        if (tip := rect.find(f"{SVG}title")) is not None:
            number = int(re.match(r"partition (\d)", tip.text)[1])
            tips.setdefault(number, []).append((float(rect.get("y")), float(rect.get("width"))))
    assert set(tips) == {0, 1, 2, 3}
    rows = sorted({y for places in tips.values() for y, _ in places})
    first, second, last = rows[0], rows[1], rows[-1]
    for number, ((before, wide), (after, as_wide)) in tips.items():
        assert before == (first, second)[number % 2]
        assert after == last
        assert wide == as_wide
    text = "".join(root.itertext())
    assert "shop.A" in text
    assert "with 2 moves in 1 runs" in text


def test_a_queue_that_has_done_nothing_can_be_drawn(make_queue):
    root = ET.fromstring(picture(make_queue("<idle>", threads=2, partitions=2).stats()))
    assert "<idle>" in "".join(root.itertext())


def test_an_async_queue_is_drawn_and_shown_as_well(tmp_path):
    async def show():
        async with AsyncBatchQueue("looped", config()) as queue:
            queue.picture(tmp_path / "load.svg")
            return queue._repr_html_()

    assert "AsyncBatchQueue &#x27;looped&#x27; running" in asyncio.run(show())
    assert (tmp_path / "load.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (5e-9, "5 ns"), (1.5e-6, "1.5 µs"), (0.02, "20 ms"), (1, "1 s"), (75.04, "75 s")],
)
def test_durations_have_a_fitting_unit(seconds, text):
    assert duration(seconds) == text
