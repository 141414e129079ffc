"""The servers of the examples that need one."""

from core_support.kafka_broker import kafka_broker, new_kafka_broker
from groups_support.redis_server import redis_server, redis_server_of_session
from outputs_support.postgres_server import postgres_server

__all__ = [
    "kafka_broker",
    "new_kafka_broker",
    "postgres_server",
    "redis_server",
    "redis_server_of_session",
]
