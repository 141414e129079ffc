"""Partition groups on Redis.

| file | holds |
|---|---|
| `scripts/` | the scripts of the ownership protocol, in Lua; its `README.md` has keys and states |
| `scripts.py` | names of keys, fields of records, calls of the scripts and their replies |
| `streams.py` | `RedisStreams`, a stream as a value; connections of producers and monitors |
| `connection.py` | a worker's connection, and partitions whose node is down |
| `client.py` | the link through which a thread sends its commands |
| `cluster.py` | nodes of a cluster, and the node of each slot |
| `node.py` | the address of Redis, a connection, and waits for replicas |
"""

from batchqueue.groups.redis.streams import RedisStreams

__all__ = ["RedisStreams"]
