"""The commands `batchqueue groups ...`: workers, and what monitors do with their group.

| file | holds |
|---|---|
| `commands.py` | the list of the commands |
| `options.py`, `source.py` | the stream and the group that a command is about |
| `program.py` | a worker of the user's program, by MODULE:ATTR |
| `run.py`, `process.py` | `run`: a worker in this process |
| `supervisor.py`, `child.py`, `link.py`, `restarts.py` | `run --workers N`: processes |
| `top.py`, `log.py`, `lag.py`, `drain.py` | what a group does; members that leave |
| `reset.py`, `redrive.py`, `trim.py`, `resize.py` | changes of groups and streams |
| `positions.py` | where `reset` lets a group continue |
| `text.py`, `waiting.py` | tables and numbers; waiting for a condition |
"""
