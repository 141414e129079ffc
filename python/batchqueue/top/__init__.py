"""The live queues of a process, for `batchqueue top`.

| file | what |
|---|---|
| `sockets.py` | where the sockets of a user's processes are |
| `server.py` | a process answers: `serve_top` |
| `reading.py` | asks the processes |
"""

from batchqueue.top.server import serve_top

__all__ = ["serve_top"]
