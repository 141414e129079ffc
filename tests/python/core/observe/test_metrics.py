"""Metrics of all queues: scraped over HTTP, and read by OpenTelemetry."""

import asyncio
import gc
import socket
import urllib.request

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from batchqueue import (
    AsyncBatchQueue,
    BatchFailed,
    BatchQueue,
    BatchQueueConfig,
    BatchQueueManager,
    BufferStrategy,
    ConfigError,
    ThreadPolicy,
    metrics,
    serve_metrics,
)
from batchqueue.groups.prometheus import GroupMetric
from batchqueue.metrics import QueueMetric
from batchqueue.metrics.names import LIMITS_ITEMS, LIMITS_NS, MOST_TYPES, OTHER_TYPES
from batchqueue.pipeline import PipelineMetric
from batchqueue.spark.driver.prometheus import SinkMetric
from core_support.handlers import Held, Recorder
from core_support.queues import config
from core_support.scripts import run_script
from core_support.waits import WAIT_S, eventually
from pages import ROOT


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def port():
    """The port of a server of metrics, which runs until the end of the process."""
    return serve_metrics(0)


def scrape(port):
    """The samples of all queues, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as reply:
        text = reply.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_queue(samples, name, queue, **labels):
    return samples[name, *sorted({"queue": queue, **labels}.items())]


def collected():
    registry = CollectorRegistry()
    registry.register(metrics.collector())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.fixture
def read_otel():
    """Reads the points of all instruments, by name and attributes."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    metrics.instrument(provider)

    def read():
        data = reader.get_metrics_data()
        return {
            (metric.name, *sorted(point.attributes.items())): point.value
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    yield read
    provider.shutdown()


def raise_error(batch):
    raise ValueError("bad")


def fail_all(batch):
    raise BatchFailed(batch)


def test_a_scrape_has_every_count_of_a_queue(port, make_queue):
    letters, held = [], Held()
    queue = make_queue(
        "scraped",
        buffer_size=2,
        strategy=BufferStrategy.IF_POSSIBLE,
        error_handler=lambda batch, error: None,
    )
    queue.add_handler(str, raise_error)
    queue.add_handler(bytes, fail_all, dead_letter=letters.extend)
    queue.add_handler(int, held)
    for item in ("failed", b"dead", 2.5):
        assert queue.produce(item)
        assert queue.flush(WAIT_S)
    held.hold(queue, 1)
    assert queue.produce_many([2, 3, 4, 5]) == 2
    eventually(lambda: queue.stats().oldest_age_ms > 0, "an item that waits")
    found = scrape(port)
    expected = {
        "produced_total": 6,
        "refused_total": 1,
        "consumed_total": 0,
        "failed_total": 1,
        "dead_lettered_total": 1,
        "unhandled_total": 1,
        "abandoned_total": 0,
        "moves_total": 0,
        "in_flight": 1,
        "capacity": queue.stats().total_capacity,
    }
    for name, value in expected.items():
        assert of_queue(found, f"batchqueue_queue_{name}", "scraped") == value, name
    queued, held_items = (
        of_queue(found, f"batchqueue_queue_{name}", "scraped") for name in ("queued", "held")
    )
    assert queued + held_items == 2
    assert of_queue(found, "batchqueue_queue_oldest_age_seconds", "scraped") > 0
    eventually(
        lambda: of_queue(scrape(port), "batchqueue_queue_stuck", "scraped") == 1, "a stuck handler"
    )
    held.released.set()
    assert queue.flush(WAIT_S)
    found = scrape(port)
    assert of_queue(found, "batchqueue_queue_consumed_total", "scraped") == 3
    assert of_queue(found, "batchqueue_queue_oldest_age_seconds", "scraped") == 0


def test_histograms_agree_with_a_model(port, make_queue):
    sizes = []
    queue = make_queue("sized", max_batch_items=20)
    queue.add_handler(int, lambda batch: sizes.append(len(batch)))
    for count in (1, 5, 16, 17, 64, 3):
        queue.produce_many(range(count))
        assert queue.flush(WAIT_S)
    found = scrape(port)
    for limit in LIMITS_ITEMS:
        name, le = "batchqueue_queue_batch_items_bucket", str(float(limit))
        at_most = of_queue(found, name, "sized", type="int", le=le)
        assert at_most == sum(size <= limit for size in sizes), limit
    for name, total in (
        ("batch_items", sum(sizes)),
        ("call_seconds", None),
        ("wait_seconds", None),
    ):
        name = f"batchqueue_queue_{name}"
        assert of_queue(found, f"{name}_count", "sized", type="int") == len(sizes)
        assert of_queue(found, f"{name}_bucket", "sized", type="int", le="+Inf") == len(sizes)
        assert total is None or of_queue(found, f"{name}_sum", "sized", type="int") == total
    longest = queue.stats().handlers()[int].call_ms_max / 1e3
    assert of_queue(found, "batchqueue_queue_call_seconds_sum", "sized", type="int") > 0
    for limit in LIMITS_NS:
        le = repr(limit / 1e9)
        name = "batchqueue_queue_call_seconds_bucket"
        at_most = of_queue(found, name, "sized", type="int", le=le)
        assert (at_most == len(sizes)) == (longest <= limit / 1e9)


def test_every_kind_of_queue_is_scraped_in_any_order_of_creation(port, make_queue):
    registered = BatchQueueManager.create("registered", config())
    make_queue("unregistered")

    async def scrape_within():
        settings = BatchQueueConfig(threads=ThreadPolicy.fixed(1), consumer=lambda batch: None)
        async with AsyncBatchQueue("looped", settings) as looped:
            await looped.produce_many([1, 2])
            await looped.flush(WAIT_S)
            return await asyncio.to_thread(scrape, port)

    found = asyncio.run(scrape_within())
    registered.shutdown(WAIT_S)
    for name, produced in {"registered": 0, "unregistered": 0, "looped": 2}.items():
        assert of_queue(found, "batchqueue_queue_produced_total", name) == produced
    items = of_queue(found, "batchqueue_queue_batch_items_sum", "looped", type="consumer")
    assert items == 2


def test_a_queue_that_no_longer_exists_has_no_samples():
    queue = BatchQueue("short", config())
    queue.shutdown(WAIT_S)
    assert ("batchqueue_queue_produced_total", ("queue", "short")) in collected()
    del queue
    gc.collect()
    assert ("batchqueue_queue_produced_total", ("queue", "short")) not in collected()


def test_queues_of_one_name_and_types_of_one_name_are_one(make_queue):
    first, second = make_queue("twins"), make_queue("twins")
    for queue in (first, second):
        for _ in range(2):
            kind = type("Local", (), {"__module__": "shop"})
            queue.add_handler(kind, Recorder())
            queue.produce(kind())
        assert queue.flush(WAIT_S)
    found = collected()
    assert of_queue(found, "batchqueue_queue_consumed_total", "twins") == 4
    name = "batchqueue_queue_batch_items_sum"
    assert of_queue(found, name, "twins", type="shop.Local") == 4


def test_the_types_of_a_queue_have_a_limited_number_of_series(make_queue):
    queue = make_queue("many")
    kinds = [type(f"Kind{number}", (), {"__module__": "m"}) for number in range(MOST_TYPES + 30)]
    for kind in kinds:
        queue.add_handler(kind, Recorder())
    queue.produce_many([kind() for kind in kinds])
    assert queue.flush(WAIT_S)
    name = "batchqueue_queue_batch_items_count"
    found = collected()
    types = {
        dict(labels)["type"]: value
        for (metric, *labels), value in found.items()
        if metric == name and dict(labels)["queue"] == "many"
    }
    assert len(types) == MOST_TYPES + 1
    assert types["m.Kind0"] == 1
    assert types[OTHER_TYPES] == 30


def test_names_of_metrics_are_unique_and_complete():
    lists = (QueueMetric, GroupMetric, PipelineMetric, SinkMetric)
    specs = [metric.value for metrics in lists for metric in metrics]
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.unit
        assert spec.what
        assert spec.changes
    for metric in QueueMetric:
        spec = metric.value
        assert spec.name.startswith("batchqueue_queue_")
        assert spec.name.endswith("_total") == (spec.kind == "counter")
        if spec.unit == "seconds":
            assert spec.name.endswith("_seconds")


def test_the_page_lists_exactly_these_metrics():
    page = (ROOT / "docs" / "guide" / "monitoring.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `batchqueue_queue_")]
    specs = [metric.value for metric in QueueMetric]
    assert rows == [
        f"| `{spec.name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels)} "
        f"| {spec.unit} | {spec.what} | {spec.changes} |"
        for spec in specs
    ]


def test_the_port_is_returned_and_port_0_takes_one_that_is_free():
    port = free_port()
    assert serve_metrics(port) == port
    other = serve_metrics(0)
    assert other not in (0, port)
    scrape(other)


def test_a_port_in_use_is_refused_with_a_remedy(port):
    with pytest.raises(ConfigError, match=rf"port {port} of '127.0.0.1'.* is free"):
        serve_metrics(port)


FORK = """
from batchqueue.metrics.reading import read_queues
serve_metrics({port})
parents = BatchQueue("parent", config())
before, parent = parents.stats(), os.getpid()
if os.fork() == 0:
    child = BatchQueue("child", config())
    say(sorted({queue for _, queue in read_queues().values}))
    eventually(lambda: os.getppid() != parent)
    def is_free():
        try:
            serve_metrics({port})
        except ConfigError:
            return False
        return True
    eventually(is_free)
    say("served")
    child.shutdown(5)
os._exit(0)
"""


def test_a_forked_child_has_its_queues_only_and_leaves_the_port_to_its_parent():
    port = free_port()
    code, out, errors = run_script(FORK.replace("{port}", str(port)))
    assert (code, out) == (0, ["['child']", "served"]), errors


@pytest.mark.parametrize("port", [-1, 65_536, "9108", True, 1.0])
def test_an_invalid_port_is_refused_with_the_limit(port):
    with pytest.raises(ConfigError, match=r"give a number from 0 to 65535"):
        serve_metrics(port)


def test_opentelemetry_reads_what_prometheus_does(make_queue, read_otel):
    queue = make_queue("observed", max_batch_items=4)
    queue.add_handler(int, Recorder())
    queue.produce_many(range(10))
    assert queue.flush(WAIT_S)
    labels = ("queue", "observed")
    scraped = {key: value for key, value in collected().items() if labels in key}
    observed = {key: value for key, value in read_otel().items() if labels in key}
    assert observed == {
        (name.removesuffix("_total"), *labels): value for (name, *labels), value in scraped.items()
    }
    assert observed["batchqueue_queue_consumed", labels] == 10


def test_each_collection_of_opentelemetry_reads_anew(make_queue, read_otel):
    queue = make_queue("again")
    queue.add_handler(int, Recorder())
    for total in (1, 2, 3):
        queue.produce(1)
        assert queue.flush(WAIT_S)
        found = read_otel()
        assert found["batchqueue_queue_consumed", ("queue", "again")] == total
        items = ("batchqueue_queue_batch_items_sum", ("queue", "again"), ("type", "int"))
        assert found[items] == total


def test_a_second_instrumentation_of_a_provider_changes_nothing(make_queue, caplog):
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    metrics.instrument(provider)
    metrics.instrument(provider)
    assert caplog.records == []
    provider.shutdown()


def test_what_cannot_make_meters_is_refused():
    with pytest.raises(ConfigError, match=r"needs a MeterProvider, not 'global'"):
        metrics.instrument("global")
