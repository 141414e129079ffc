"""Partition groups on Redis.

| file | holds |
|---|---|
| `scripts/` | the scripts of the ownership protocol, in Lua; its `README.md` has keys and states |
| `streams.py` | `RedisStreams`, a stream as a value |
| `connection.py`, `writer.py`, `administration.py` | connections of workers, producers, monitors |
| `group.py`, `partition.py` | calls of the scripts, and what they reply |
| `client.py`, `transport.py` | what a thread sends its commands through |
| `cluster.py`, `slots.py` | nodes of a cluster, which node has a slot |
| `server.py`, `node.py`, `checks.py` | where Redis is, a connection, what the server must be like |
| `replicas.py`, `unreached.py` | waits for replicas; partitions whose node is down |
| `keys.py`, `records.py`, `library.py` | names of keys, fields of records, texts of scripts |
"""

from batchqueue.groups.redis.streams import RedisStreams

__all__ = ["RedisStreams"]
