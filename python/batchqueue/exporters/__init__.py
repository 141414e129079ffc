"""Exporters: handlers that send the items of a queue to another system.

Each reports what became of every item; the queue retries, keeps dead letters and counts.
`PostgresRows` needs the extra `postgres`, `HttpBatches` the extra `http`, `KafkaTopic` the extra
`kafka`; `OtlpLogs`, `OtlpMetrics` and `OtlpTraces` need the extra `otlp`. For a system that has
none here, derive from `Exporter`, and run `check_exporter` in a test.
"""

from batchqueue.exporters.check import check_exporter
from batchqueue.exporters.contract import Exporter, ExportFailed, NotDelivered, Outcome
from batchqueue.exporters.http_batches import HttpBatches, HttpRefused
from batchqueue.exporters.kafka_topic import KafkaTopic
from batchqueue.exporters.otlp import OtlpLogs, OtlpMetrics, OtlpRefused, OtlpTraces
from batchqueue.exporters.postgres_rows import PostgresRows

__all__ = [
    "ExportFailed",
    "Exporter",
    "HttpBatches",
    "HttpRefused",
    "KafkaTopic",
    "NotDelivered",
    "OtlpLogs",
    "OtlpMetrics",
    "OtlpRefused",
    "OtlpTraces",
    "Outcome",
    "PostgresRows",
    "check_exporter",
]
