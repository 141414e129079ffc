"""Fixtures of several folders of groups."""

from groups_support.redis_server import durable_server, redis_server, redis_server_of_session

__all__ = ["durable_server", "redis_server", "redis_server_of_session"]
