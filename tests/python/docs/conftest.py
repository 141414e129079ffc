"""The PostgreSQL server of the examples that write to one."""

from groups_support.redis_server import redis_server, redis_server_of_session
from outputs_support.postgres_server import postgres_server

__all__ = ["postgres_server", "redis_server", "redis_server_of_session"]
