"""Groups on Kafka: the broker decides which worker owns which partition.

| file | holds |
|---|---|
| `streams.py` | `KafkaStreams`, a topic as a value; what commands and monitors see |
| `connection.py` | a worker's connection |
| `consumer.py` | the thread that owns the consumer |
| `commits.py` | its commits, one after another |
| `inbox.py` | what other threads ask it for |
| `server.py` | the brokers and a topic: their settings and calls, and a producer |
| `redrive.py` | sends dead letters back |
| `ownership.py` | what the broker has assigned, and the rules of commits |
| `transactions.py` | offsets and records that are stored together |
"""

from batchqueue.groups.kafka.streams import KafkaStreams

__all__ = ["KafkaStreams"]
