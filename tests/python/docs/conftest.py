"""The servers of the examples that need one."""

from groups_support.redis_server import redis_server, redis_server_of_session
from outputs_support.postgres_server import postgres_server
from spark_support.kafka_broker import kafka_broker

__all__ = ["kafka_broker", "postgres_server", "redis_server", "redis_server_of_session"]
