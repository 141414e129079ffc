"""Exporters of this package beside the bare loop over their client, which does nothing else.

Both send the same items in batches of the same size to the same server, by turns, so that they
compare whatever else the machine does. The bare loop has the batches ready; ours pass a queue. The
servers run on this machine: a Kafka broker as in the tests (`make kafka`), and for OTLP a process
that reads requests and discards them.

Run as `PYTHONPATH=tests/python/support python benches/python/exporters.py`; `--items`, `--batch`
and `--rounds` change how much, `--only kafka` or `--only otlp` measures a part.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from batchqueue import BatchQueue, BatchQueueConfig, BufferStrategy, PartitionPolicy, ThreadPolicy
from batchqueue.exporters import KafkaTopic, OtlpLogs, OtlpMetrics, OtlpTraces
from batchqueue.exporters.fields import as_json


@dataclass(frozen=True)
class Item:
    """A row of three fields."""

    id: int
    city: str
    cents: int


Send = Callable[[list[Item]], object]
Sides = tuple[Send, Callable[[], object]]
"""The bare loop's sender of a batch, and what makes an exporter."""


@contextmanager
def kafka() -> Iterator[Sides]:
    """Yield the sides of `KafkaTopic`: an idempotent producer that is flushed after each batch."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from core_support.kafka_broker import running_new_broker

    with running_new_broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("items", 3)])["items"].result()
        settings = {"enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 5}
        producer = Producer({"bootstrap.servers": broker.address, "log_level": 2, **settings})
        failed = []

        def note(error, _message):
            if error is not None:
                failed.append(error)

        def send(batch: list[Item]) -> None:
            for item in batch:
                value = as_json(vars(item)).encode()
                producer.produce("items", value, str(item.id).encode(), on_delivery=note)
            assert producer.flush() == 0
            assert not failed

        yield send, lambda: KafkaTopic("items", bootstrap=broker.address, key="id")


_RECEIVER = """
from concurrent.futures import ThreadPoolExecutor
import grpc, sys
server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)])
handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
class Any(grpc.GenericRpcHandler):
    def service(self, details):
        return handler
server.add_generic_rpc_handlers([Any()])
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


@contextmanager
def receiver() -> Iterator[int]:
    """Yield the port of a process that takes any request, so that only the clients' work counts."""
    command = [sys.executable, "-c", _RECEIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        yield int(run.stdout.readline())
        run.stdin.close()


@contextmanager
def otlp(signal: str) -> Iterator[Sides]:
    """Yield the sides of an exporter of telemetry: a stub that gets a request for each batch."""
    import grpc
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
    from opentelemetry.proto.metrics.v1.metrics_pb2 import (
        Gauge,
        Metric,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

    def as_log(item: Item) -> LogRecord:
        return LogRecord(time_unix_nano=item.id, body=AnyValue(string_value=item.city))

    def as_metric(item: Item) -> Metric:
        point = NumberDataPoint(time_unix_nano=item.id, as_int=item.cents)
        return Metric(name=item.city, gauge=Gauge(data_points=[point]))

    def as_span(item: Item) -> Span:
        return Span(name=item.city, span_id=item.id.to_bytes(8, "big"), trace_id=bytes(16))

    def logs_of(messages):
        parts = [ResourceLogs(scope_logs=[ScopeLogs(log_records=messages)])]
        return logs.ExportLogsServiceRequest(resource_logs=parts)

    def metrics_of(messages):
        parts = [ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=messages)])]
        return metrics.ExportMetricsServiceRequest(resource_metrics=parts)

    def spans_of(messages):
        parts = [ResourceSpans(scope_spans=[ScopeSpans(spans=messages)])]
        return trace.ExportTraceServiceRequest(resource_spans=parts)

    method, convert, request_of, exporter, response = {
        "logs": ("logs.v1.Logs", as_log, logs_of, OtlpLogs, logs.ExportLogsServiceResponse),
        "metrics": (
            *("metrics.v1.Metrics", as_metric, metrics_of, OtlpMetrics),
            metrics.ExportMetricsServiceResponse,
        ),
        "trace": (
            "trace.v1.Trace",
            as_span,
            spans_of,
            OtlpTraces,
            trace.ExportTraceServiceResponse,
        ),
    }[signal]
    with receiver() as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            f"/opentelemetry.proto.collector.{method}Service/Export",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )
        yield (
            lambda batch: call(request_of(list(map(convert, batch))), timeout=10),
            lambda: exporter(f"http://127.0.0.1:{port}", to_record=convert),
        )


KINDS = {
    "KafkaTopic": kafka,
    "OtlpLogs": partial(otlp, "logs"),
    "OtlpMetrics": partial(otlp, "metrics"),
    "OtlpTraces": partial(otlp, "trace"),
}


def bare_rate(send: Send, items: list[Item], batch: int) -> float:
    """Return items per second of the loop."""
    began = time.perf_counter()
    for first in range(0, len(items), batch):
        send(items[first : first + batch])
    return len(items) / (time.perf_counter() - began)


def our_rate(exporter: object, items: list[Item], batch: int) -> float:
    """Return items per second through a queue, from the first item to the end of the last batch."""
    config = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1),
        partitions=PartitionPolicy.fixed(1),
        strategy=BufferStrategy.BLOCKING,
        buffer_size=4 * batch,
        max_batch_items=batch,
        max_delay_ms=1_000,
        consumer=exporter,
        shutdown_timeout=600,
    )
    began = time.perf_counter()
    with BatchQueue("bench", config) as queue:
        queue.produce_many(items)
    took = time.perf_counter() - began
    assert queue.stats().consumed == len(items)
    return len(items) / took


def main() -> None:
    """Measure each kind, and print the medians and the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="a part of the name of a kind")
    options = parser.parse_args()
    items = [Item(number, f"city {number % 100}", 500) for number in range(options.items)]
    for name, kind in KINDS.items():
        if options.only.lower() not in name.lower():
            continue
        ours, bare = [], []
        with kind() as (send, make):
            send(items[:1])  # connects
            for _ in range(options.rounds):
                gc.collect()
                bare.append(bare_rate(send, items, options.batch))
                exporter = make()
                exporter.consume(items[:1])
                ours.append(our_rate(exporter, items, options.batch))
        ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
        print(
            f"{name}: {statistics.median(ours):,.0f} items per s (best {max(ours):,.0f}), bare "
            f"loop {statistics.median(bare):,.0f} (best {max(bare):,.0f}); {ratio:.2f} of its rate",
            flush=True,
        )


if __name__ == "__main__":
    main()
