"""Fixtures of several folders of groups."""

from core_support.kafka_broker import kafka_broker, new_kafka_broker, steady_kafka_broker
from groups_support.backends import backend
from groups_support.redis_cluster import redis_cluster, redis_cluster_of_session
from groups_support.redis_server import durable_server, redis_server, redis_server_of_session

__all__ = [
    "backend",
    "durable_server",
    "kafka_broker",
    "new_kafka_broker",
    "redis_cluster",
    "redis_cluster_of_session",
    "redis_server",
    "redis_server_of_session",
    "steady_kafka_broker",
]
