"""What is in a topic of Kafka, and a topic that no other test uses."""

from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from core_support.waits import WAIT_S, eventually
from pipeline_support.kafka_topic import KafkaTopic as Topic

__all__ = ["KafkaRecord", "Topic", "records_of"]


class KafkaRecord(NamedTuple):
    """A record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list


def records_of(topic):
    """Returns all records of a topic, by partition and offset."""
    settings = {
        "bootstrap.servers": topic.address,
        "group.id": "none",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": 2,
    }
    consumer = Consumer(settings)
    found, ends = [], set()
    count = len(topic.admin.list_topics(topic.name, timeout=WAIT_S).topics[topic.name].partitions)
    places = [TopicPartition(topic.name, number, OFFSET_BEGINNING) for number in range(count)]
    consumer.assign(places)

    def is_read():
        for message in consumer.consume(10_000, 0.05):
            error = message.error()
            if error is None:
                fields = message.partition(), message.offset(), message.key(), message.value()
                found.append(KafkaRecord(*fields, message.headers() or []))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
        return len(ends) == count

    eventually(is_read, "all records are read", 2 * WAIT_S)
    consumer.close()
    return sorted(found, key=lambda record: record[:2])
