"""The PostgreSQL server of the examples that write to one."""

from outputs_support.postgres_server import postgres_server

__all__ = ["postgres_server"]
