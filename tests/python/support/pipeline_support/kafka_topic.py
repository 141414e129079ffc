"""A topic of Kafka for tests of pipelines, and the metrics of its orders."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from batchqueue.aggregation import CountMetrics, Metrics, SumMetrics, metric_type
from batchqueue.pipeline import KafkaSource
from core_support.kafka_broker import KafkaBroker
from core_support.waits import eventually

QUICK = {"topic.metadata.refresh.interval.ms": 200}
"""Finds added partitions soon."""


class KafkaTopic:
    """A topic that no other test uses."""

    def __init__(self, broker: KafkaBroker, partitions: int = 2, **config: str) -> None:
        self.address = broker.address
        self.name = f"orders-{uuid4()}"
        self.admin = AdminClient({"bootstrap.servers": broker.address})
        self.create(partitions, **config)

    def create(self, partitions: int, **config: str) -> None:
        new = NewTopic(self.name, partitions, 1, config=config)

        def is_there() -> bool:  # a broker that was stopped may not be registered again yet
            [asked] = self.admin.create_topics([new], request_timeout=5).values()
            try:
                asked.result(10)
            except KafkaException as error:
                return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
            return True

        eventually(is_there, "the topic is created")

    def delete(self) -> None:
        self.done(self.admin.delete_topics([self.name]))

    def enlarge(self, partitions: int) -> None:
        self.done(self.admin.create_partitions([NewPartitions(self.name, partitions)]))

    def remove_before(self, partition: int, offset: int) -> None:
        """Removes records, as retention does."""
        self.done(self.admin.delete_records([TopicPartition(self.name, partition, offset)]))

    def done(self, asked: Any) -> None:
        for each in asked.values():
            each.result(60)

    def producer(self, **settings: Any) -> Producer:
        own = {"bootstrap.servers": self.address, "linger.ms": 5, "enable.idempotence": True}
        return Producer({**own, "log_level": 2, **settings})

    def send(self, values: Any, partition: int = 0, **fields: Any) -> None:
        """Sends values to a partition, and waits until the broker has them."""
        producer = self.producer()
        for value in values:
            producer.produce(self.name, value, partition=partition, **fields)
            producer.poll(0)
        assert producer.flush(120) == 0

    def source(self, **settings: Any) -> KafkaSource:
        settings = {"config": QUICK, **settings}
        return KafkaSource(self.name, bootstrap=self.address, **settings)


COUNTS = metric_type("orders", CountMetrics)
TOTALS = metric_type("totals", SumMetrics, columns={"total": int})


def metrics_of(chunk: pa.RecordBatch) -> Iterator[Metrics]:
    """Yields the number of the orders and the sum of their ids, in twenty groups."""
    for number in chunk["id"].to_pylist():
        yield COUNTS(str(number % 20), 0, 1)
        yield TOTALS(str(number % 20), 0, number)
